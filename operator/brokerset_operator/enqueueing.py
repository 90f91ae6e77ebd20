"""Events of objects enqueue what is to be reconciled: sets, Topics, Subjects, Users and jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from brokerset_kube import kinds
from brokerset_kube.kinds import Kind
from brokerset_kube.watching import key_of
from brokerset_operator.audits import AUDIT, AuditIndex
from brokerset_operator.claims import NAME_FIELDS, ClaimIndex
from brokerset_operator.model import names
from brokerset_operator.quiescence import QuiescentSets
from brokerset_operator.reconcile_queue import Key, ReconcileQueue
from brokerset_operator.secret_index import SecretIndex
from brokerset_operator.set_reconciler import SET, SharedControllers, interest
from brokerset_operator.store_jobs import labels as job_labels

DELETED: Final = "DELETED"

Counted = Callable[[str], None]
"""Called with the kind of each event."""


@dataclass(slots=True)
class Enqueuer:
    """Hears of everything, and keeps nothing but what it takes to know whether an event is news."""

    queue: ReconcileQueue
    quiescent: QuiescentSets
    counted: Counted
    claims: ClaimIndex = field(default_factory=ClaimIndex)
    audits: AuditIndex = field(default_factory=AuditIndex)
    shared: SharedControllers = field(default_factory=SharedControllers)
    secrets: SecretIndex = field(default_factory=SecretIndex)
    _interests: dict[Key, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.claims.serving = self.shared.serving

    def set_or_topic_event(self, kind: str, event: str, live: Mapping[str, Any]) -> None:
        """An object that people write was listed, has changed or is gone."""
        self.counted(kind)
        key = Key(kind, *key_of(live))
        if event == DELETED:
            self._interests.pop(key, None)
            peers = self.shared.peers_of(key)
            self.shared.forget(key)
            self.secrets.forget(key)
            self.enqueue(key, fresh=True)
            for peer in peers:
                self.enqueue(peer)
            waiting = self.claims.others(key)
            self.claims.forget(key)
            for other in waiting:
                self.enqueue(other)  # what it was in the way of may be done now
        else:
            self._saw(key, live)

    def know(self, kind: str, items: Iterable[Mapping[str, Any]]) -> None:
        """All objects of a kind, listed before the first reconcile; their events enqueue them."""
        for live in items:
            self._remember(Key(kind, *key_of(live)), live)

    def compare(self, kind: str, items: Iterable[Mapping[str, Any]], before: frozenset[Key]) -> int:
        """Enqueue what kopf has not told; returns how many that were.

        `items` is the metadata of all objects of a kind, and `before` what was known when it was asked for.
        """
        there = {Key(kind, *key_of(live)): live for live in items}
        late = 0
        for key, live in there.items():
            self._version(key, live)
            if self._interests.get(key) != interest(live):
                late += 1
                self.enqueue(key, fresh=True)
        for key in sorted(before - there.keys()):
            late += 1
            self.enqueue(key, fresh=True)
        return late

    def kind_gone(self, kind: str) -> None:
        """The cluster does not serve a kind any more: reconciles find that its objects are gone."""
        self.compare(kind, (), self.known(kind))

    def known(self, kind: str) -> frozenset[Key]:
        """The objects of a kind of which was heard."""
        return frozenset(key for key in self._interests if key.kind == kind)

    def child_event(self, kind: Kind) -> Callable[[str, Mapping[str, Any]], None]:
        """What is to be called with the events of a kind that sets consist of."""

        def enqueued(_event: str, child: Mapping[str, Any]) -> None:
            self.counted(kind.kind)
            namespace, _ = key_of(child)
            labels = child["metadata"].get("labels") or {}
            owner = labels.get(names.SET_LABEL)
            if owner:
                key = Key(SET, namespace, owner)
                self.enqueue(key)
                if kind == kinds.POD and labels.get(names.COMPONENT_LABEL) == "controller":
                    for user in self.shared.served_by(key):
                        self.enqueue(user)
                if kind == kinds.CONFIG_MAP and child["metadata"]["name"] == names.authority(owner):
                    for peer in self.shared.peers_of(key):
                        self.enqueue(peer)  # it trusts these authorities, too

        return enqueued

    def job_event(self, _event: str, job: Mapping[str, Any]) -> None:
        """A Job of a kind that becomes Jobs has changed."""
        self.counted(kinds.JOB.kind)
        namespace, _ = key_of(job)
        chosen = job["metadata"].get("labels") or {}
        owner, word = chosen.get(job_labels.OWNER), chosen.get(job_labels.STORE_JOB)
        for kind, known in job_labels.KIND_WORDS.items():
            if owner and word == known:
                self.enqueue(Key(kind, namespace, owner))

    def secret_event(self, _event: str, secret: Mapping[str, Any]) -> None:
        """A Secret has changed, of which the metadata alone is watched; most are nobody's here."""
        self.counted(kinds.SECRET.kind)
        for key in self.secrets.readers(*key_of(secret)):
            self.enqueue(key)

    def listed(self, again: bool) -> None:
        """A watch has listed everything; what was deleted since the list before is told by nobody."""
        if again:
            self.quiescent.all_dirty()
            self.queue.enqueue_all()

    def groups_changed(self, namespace: str, name: str) -> None:
        """A set has other groups, or other masters."""
        for key in self.claims.of_set(namespace, name):
            self.queue.enqueue(key)

    def gone(self, key: Key) -> None:
        """A reconcile has found that an object is not there any more."""
        self._interests.pop(key, None)
        self.quiescent.forget(key)
        if key.kind in NAME_FIELDS:
            self.claims.forget(key)
        elif key.kind == SET:
            self.shared.forget(key)
        self.secrets.forget(key)

    def enqueue(self, key: Key, *, fresh: bool = False) -> None:
        """Let an object be observed completely."""
        self.quiescent.heard(key)
        self.queue.enqueue(key, fresh=fresh)

    def _remember(self, key: Key, live: Mapping[str, Any]) -> None:
        self.secrets.saw(key, live)
        if key.kind in NAME_FIELDS:
            self.claims.saw(key.kind, live)
        elif key.kind == AUDIT:
            self.audits.saw(live)
        elif key.kind == SET:
            self.shared.saw(live)

    def _saw(self, key: Key, live: Mapping[str, Any]) -> None:
        before = self.shared.peers_of(key)  # a set may leave those with which it shared controllers
        self._remember(key, live)
        self._version(key, live)
        now = interest(live)
        if self._interests.get(key) != now:  # else only the status has changed, and that was us
            self._interests[key] = now
            self.enqueue(key, fresh=True)
            for peer in dict.fromkeys((*before, *self.shared.peers_of(key))):
                self.enqueue(peer)

    def _version(self, key: Key, live: Mapping[str, Any]) -> None:
        if key.kind == SET:
            self.quiescent.saw(key, str(live["metadata"].get("resourceVersion") or ""))
