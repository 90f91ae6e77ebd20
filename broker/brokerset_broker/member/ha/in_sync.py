"""Which in-sync sets may be in force, and which one to propose next. Pure.

A proposal is pending from before it is sent until a set with a higher set epoch is known to be committed: the
controllers take a proposal only on the set epoch that it is based on, so nothing else settles it.
"""

from __future__ import annotations

from typing import Final

from brokerset_formats.lazy_dataclasses import dataclass

PAUSE_SECONDS_MIN: Final = 0.05
PAUSE_SECONDS_MAX: Final = 1.0
"""Waits after proposals whose end is not known, doubled from the first to the second."""

JOIN_PAUSE_SECONDS: Final = 2.0
"""After a refusal the replica that was to join is left alone for so long: what the controllers have against
it (it is fenced, or silent to them) must not keep others from leaving."""


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """What counts of a replica for the in-sync set."""

    broker_id: int
    may_join: bool = False
    """It is connected, no learner, and has all that members must have."""

    must_leave: bool = False
    """Its connection has ended, or it lags for too long."""


class InSync:
    """The in-sync set of one mastership: what is committed, and what was proposed since."""

    def __init__(self, own_id: int, committed: frozenset[int], set_epoch: int) -> None:
        """`committed` may be empty: then the controllers have not said yet which set is in force."""
        self.own_id = own_id
        self.committed = committed
        """The last set known to be committed."""
        self.set_epoch = set_epoch
        self.pending: tuple[frozenset[int], ...] = ()
        """Proposed on top of `committed`, oldest first; each may be in force."""
        self.in_flight = False
        """Whether the end of a proposal is awaited; then there is no other one."""
        self._attempts = 0
        self._pause = PAUSE_SECONDS_MIN
        self._not_before = 0.0
        self._join_not_before: dict[int, float] = {}
        self._not_wanted: frozenset[int] = frozenset()
        """The set of the last join that was refused; empty if that is settled, or cannot be."""

    @property
    def known(self) -> bool:
        """Whether it is known at all which sets may be in force."""
        return self.own_id in self.committed

    def electable(self) -> frozenset[int]:
        """Everybody who is a member of a set that may be in force."""
        return self.committed.union(*self.pending) if self.pending else self.committed

    @property
    def smallest(self) -> int:
        """Members of the smallest set that may be in force; 0 if nothing is known."""
        return min(map(len, (self.committed, *self.pending))) if self.known else 0

    def proposed(self, wanted: frozenset[int]) -> None:
        """A proposal is about to be sent: from now on it may be in force."""
        assert not self.in_flight, "one proposal at a time"
        assert self.own_id in wanted
        self.in_flight = True
        self._attempts += 1
        if wanted not in self.pending:
            self.pending = (*self.pending, wanted)

    def expect_pending(self, wanted: frozenset[int], based_on: int) -> None:
        """A set that this broker proposed before it led may be in force, if nothing newer is."""
        if based_on >= self.set_epoch and wanted not in (self.committed, *self.pending):
            self.pending = (*self.pending, wanted)

    def ended(self, now: float, wanted: frozenset[int], *, refused: bool) -> None:
        """The proposal's end is known, or there will be none. It stays pending, whatever the answer was."""
        self.in_flight = False
        self._not_before = now + self._pause
        self._pause = min(2 * self._pause, PAUSE_SECONDS_MAX)
        if refused:
            self._not_wanted = wanted if wanted - self.committed else frozenset()
            for broker_id in sorted(wanted - self.committed):
                self._join_not_before[broker_id] = now + JOIN_PAUSE_SECONDS

    def adopt(self, committed: frozenset[int], set_epoch: int) -> bool:
        """Take what the controllers say is in force; False if it is nothing new.

        Only a higher set epoch settles what is pending: the same one may be a look from before.
        """
        if set_epoch < self.set_epoch or self.own_id not in committed:
            return False
        if set_epoch == self.set_epoch:
            if self.known:
                return False
            self.committed = committed
            return True
        self.committed, self.set_epoch = committed, set_epoch
        self.pending = ()
        self._attempts = 0
        self._pause = PAUSE_SECONDS_MIN
        self._not_before = 0.0
        self._not_wanted = frozenset()
        return True

    def decide(self, now: float, replicas: tuple[ReplicaState, ...]) -> frozenset[int] | None:
        """The set to propose now; None if none should be.

        Who must leave leaves first, all at once; replicas join one by one, so that one that the controllers
        do not want holds up nobody.
        """
        if self.in_flight or not self.known or now < self._not_before:
            return None
        leaving = frozenset(r.broker_id for r in replicas if r.must_leave and r.broker_id != self.own_id)
        if leaving & self.committed:
            return self.committed - leaving
        for replica in sorted(replicas, key=lambda r: r.broker_id):
            broker_id = replica.broker_id
            if not replica.may_join or replica.must_leave or broker_id in self.committed:
                continue
            if self._join_not_before.get(broker_id, 0.0) <= now:
                return self.committed | {broker_id}
        return self._settling(leaving)

    def _settling(self, leaving: frozenset[int]) -> frozenset[int] | None:
        """What to propose when the committed set is the right one, but another may be in force.

        The same proposal again; if it has somebody who is gone, the committed set itself, which controllers
        may answer with a new set epoch; or, as they may refuse that, the set without one member, who then
        joins again. A pending set that holds up nothing is left alone. Of a join that was refused the
        committed set is proposed, once: nobody is to wait for a replica that is not wanted.
        """
        hinders = [p for p in self.pending if p & leaving or len(p) < len(self.committed)]
        if not hinders:
            return self.committed if self._not_wanted in self.pending else None
        choices = [p for p in self.pending if not p & leaving and p != self.committed]
        choices.append(self.committed)
        others = sorted(self.committed - {self.own_id})
        if others and self.committed - {others[-1]} not in choices:
            choices.append(self.committed - {others[-1]})
        return choices[self._attempts % len(choices)]
