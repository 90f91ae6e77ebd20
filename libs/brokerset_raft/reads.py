"""Reads that wait until a majority confirms that the node which took them still leads."""

from __future__ import annotations

from dataclasses import dataclass

from brokerset_raft.messages import ReadReady


@dataclass(frozen=True, slots=True)
class _Waiting:
    request_id: int
    index: int
    round: int
    """The first heartbeat round that is sent after the read was taken."""


class PendingReads:
    """Reads in the order in which they came, with the commit index and the round that each waits for.

    Reads that came before the leader's first commit of its own term have no index yet: until then the leader
    does not know what its predecessors have committed.
    """

    def __init__(self) -> None:
        self._early: list[int] = []
        self._waiting: list[_Waiting] = []

    def __len__(self) -> int:
        return len(self._early) + len(self._waiting)

    def add_early(self, request_id: int) -> None:
        """A read that came before the first commit of the leader's own term."""
        self._early.append(request_id)

    def add(self, request_id: int, index: int, round: int) -> None:
        """A read of everything up to `index`, once `round` is answered."""
        self._waiting.append(_Waiting(request_id, index, round))

    def take_early(self) -> tuple[int, ...]:
        """The reads without an index; they are forgotten here."""
        early, self._early = tuple(self._early), []
        return early

    def confirmed(self, round: int) -> tuple[ReadReady, ...]:
        """A majority has answered this round, or a later one: take out the reads that waited for it."""
        ready = tuple(ReadReady(each.request_id, each.index) for each in self._waiting if each.round <= round)
        if ready:
            self._waiting = [each for each in self._waiting if each.round > round]
        return ready

    def waits_beyond(self, round: int) -> bool:
        """Whether a read waits for a round that is later than this one."""
        return bool(self._waiting) and self._waiting[-1].round > round

    def drop(self) -> tuple[int, ...]:
        """All reads, to be refused; none is left."""
        refused = (*self._early, *(each.request_id for each in self._waiting))
        self._early, self._waiting = [], []
        return refused
