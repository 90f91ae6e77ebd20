"""Which objects stand for which topic or user of which set; Subjects are topics as well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from brokerset_kube import kinds
from brokerset_operator.reconcile_queue import Key

NAME_FIELDS: Final[Mapping[str, str]] = {
    kinds.TOPIC.kind: "topicName",
    kinds.SUBJECT.kind: "subject",
    kinds.USER.kind: "username",
}
"""Kinds that stand for a topic or a user, with the field that names it; by default the object's name does."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What an object stands for."""

    broker_set: str
    is_user: bool
    """Whether it is a user, and else a topic."""

    name: str
    created: str
    """When the object was made, as the API writes it."""


@dataclass(slots=True)
class ClaimIndex:
    """What there is for each set, from events; an object that is not known yet does no harm."""

    _claims: dict[Key, Claim] = field(default_factory=dict)

    def saw(self, kind: str, live: Mapping[str, Any]) -> None:
        """A Topic, Subject or User as it is now."""
        metadata, spec = live["metadata"], live.get("spec") or {}
        key = Key(kind, str(metadata.get("namespace") or ""), metadata["name"])
        self._claims[key] = Claim(
            str((spec.get("brokerSetRef") or {}).get("name") or ""),
            kind == kinds.USER.kind,
            str(spec.get(NAME_FIELDS[kind]) or metadata["name"]),
            str(metadata.get("creationTimestamp") or ""),
        )

    def forget(self, key: Key) -> None:
        """An object is gone."""
        self._claims.pop(key, None)

    def of_set(self, namespace: str, name: str) -> tuple[Key, ...]:
        """The objects of a set."""
        return tuple(
            key
            for key, claim in self._claims.items()
            if key.namespace == namespace and claim.broker_set == name
        )

    def name_of(self, key: Key) -> str:
        """Name of the topic or user that an object stands for, which was seen."""
        return self._claims[key].name

    def others(self, key: Key) -> tuple[Key, ...]:
        """Other objects for the same topic or user of the same set, the oldest first."""
        own = self._claims.get(key)
        if own is None:
            return ()
        same = [
            (claim.created, other)
            for other, claim in self._claims.items()
            if other != key
            and other.namespace == key.namespace
            and replace(claim, created=own.created) == own
        ]
        return tuple(other for _, other in sorted(same))

    def older(self, key: Key) -> Key | None:
        """The object that was there first for the same topic or user; None when that is this one."""
        own = self._claims.get(key)
        first = next(iter(self.others(key)), None)
        if own is None or first is None:
            return None
        return first if (self._claims[first].created, first) < (own.created, key) else None
