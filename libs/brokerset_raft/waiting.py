"""Who waits for what at a driver: proposals for their entry, readers for an index. No I/O, no clock."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from brokerset_raft.engine import EngineError, NotLeader, OutcomeUnknown


@dataclass(frozen=True, slots=True)
class _Waiter:
    term: int
    future: asyncio.Future[object]


class Proposals:
    """Futures of entries that this node has appended as leader, by index."""

    def __init__(self) -> None:
        self._waiters: dict[int, _Waiter] = {}
        self._orphans: deque[tuple[float, int]] = deque()

    def __len__(self) -> int:
        return len(self._waiters)

    def watch(self, index: int, term: int, future: asyncio.Future[object]) -> None:
        """The future wants to know what becomes of that entry."""
        older = self._waiters.get(index)
        if older is not None:
            # It was truncated here. Another node may have it still, win against this one, and commit it.
            problem = f"entry {index} was replaced here when leadership was lost, and may live on elsewhere"
            refuse(older.future, OutcomeUnknown(problem))
        self._waiters[index] = _Waiter(term, future)

    def applied(self, index: int, term: int, result: object, leader_id: int | None) -> None:
        """An entry is committed and applied; with another term the one that was waited for never will be."""
        waiter = self._waiters.pop(index, None)
        if waiter is None or waiter.future.done():
            return
        if waiter.term == term:
            waiter.future.set_result(result)
        else:
            waiter.future.set_exception(NotLeader(leader_id))

    def skipped(self, last_index: int) -> None:
        """A snapshot took the place of everything up to an index: what it holds is not known here."""
        for index in [index for index in self._waiters if index <= last_index]:
            refuse(
                self._waiters.pop(index).future,
                OutcomeUnknown(f"entry {index} came, or did not come, with a snapshot of another leader"),
            )

    def leadership_lost(self, term: int, deadline: float) -> None:
        """Entries of that term may still be committed or replaced; after the deadline nobody waits for it."""
        if self._waiters:
            self._orphans.append((deadline, term))

    def expire(self, now: float) -> None:
        """Give up on entries whose deadline has passed."""
        while self._orphans and self._orphans[0][0] <= now:
            _, term = self._orphans.popleft()
            for index in [index for index, waiter in self._waiters.items() if waiter.term <= term]:
                problem = f"leadership was lost before entry {index} was seen to be committed"
                refuse(self._waiters.pop(index).future, OutcomeUnknown(problem))

    def stop(self) -> None:
        """The node stops."""
        for index, waiter in self._waiters.items():
            refuse(waiter.future, OutcomeUnknown(f"this node stopped before entry {index} was applied"))
        self._waiters.clear()


class Barriers:
    """Futures of readers: first by the number of the request that asks for them, then by index."""

    def __init__(self) -> None:
        self._next_id = 1
        self._asked: dict[int, list[asyncio.Future[object]]] = {}
        self._confirmed: list[tuple[int, list[asyncio.Future[object]]]] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def ask(self, futures: list[asyncio.Future[object]]) -> int:
        """These wait for one request; returns its number."""
        request_id, self._next_id = self._next_id, self._next_id + 1
        self._asked[request_id] = futures
        self._count += len(futures)
        return request_id

    def confirmed(self, request_id: int, index: int) -> None:
        """The request may be answered once `index` is applied; call `applied` after this."""
        futures = self._asked.pop(request_id, None)
        if futures is not None:
            self._confirmed.append((index, futures))

    def refused(self, request_id: int, error: EngineError) -> None:
        """The request cannot be answered by this node."""
        futures = self._asked.pop(request_id, [])
        self._count -= len(futures)
        for future in futures:
            refuse(future, error)

    def applied(self, applied_index: int) -> None:
        """Let those go whose index is applied."""
        if not self._confirmed:
            return
        waiting: list[tuple[int, list[asyncio.Future[object]]]] = []
        for index, futures in self._confirmed:
            if index > applied_index:
                waiting.append((index, futures))
                continue
            self._count -= len(futures)
            for future in futures:
                if not future.done():
                    future.set_result(None)
        self._confirmed = waiting

    def stop(self) -> None:
        """The node stops."""
        refuse_all((f for futures in self._asked.values() for f in futures), NotLeader(None))
        refuse_all((f for _, futures in self._confirmed for f in futures), NotLeader(None))
        self._asked.clear()
        self._confirmed.clear()
        self._count = 0


def refuse(future: asyncio.Future[object], error: Exception) -> None:
    """Hand out an error, unless nobody waits any more."""
    if not future.done():
        future.set_exception(error)


def refuse_all(futures: Iterable[asyncio.Future[object]], error: Exception) -> None:
    """The same error for all."""
    for future in futures:
        refuse(future, error)
