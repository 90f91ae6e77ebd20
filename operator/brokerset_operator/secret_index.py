"""Which BrokerSets and Users read which Secret, from their own events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from brokerset_kube import kinds
from brokerset_operator.access_users.secret import secret_name
from brokerset_operator.plan.objects import part, text
from brokerset_operator.reconcile_queue import Key
from brokerset_operator.set_signing import secret_of


@dataclass(slots=True)
class SecretIndex:
    """By Secret; an object that is not known yet reads it at its first reconcile anyway."""

    _read: dict[Key, str] = field(default_factory=dict)
    _readers: dict[tuple[str, str], dict[Key, None]] = field(default_factory=dict)

    def saw(self, key: Key, live: Mapping[str, Any]) -> None:
        """An object as it is now."""
        name = None
        if key.kind == kinds.USER.kind:
            given = text(part(part(live, "spec"), "passwordSecret").get("name"))
            name = given or secret_name(key.name)
        elif key.kind == kinds.BROKER_SET.kind:
            name = secret_of(live)
        if self._read.get(key) == name:
            return
        self.forget(key)
        if name is not None:
            self._read[key] = name
            self._readers.setdefault((key.namespace, name), {})[key] = None

    def forget(self, key: Key) -> None:
        """An object is gone."""
        name = self._read.pop(key, None)
        if name is not None:
            readers = self._readers[key.namespace, name]
            del readers[key]
            if not readers:
                del self._readers[key.namespace, name]

    def readers(self, namespace: str, name: str) -> tuple[Key, ...]:
        """Who reads a Secret."""
        return tuple(self._readers.get((namespace, name), ()))
