"""How far a group that pops is in a queue: what it has, and what it has not been given.

The consumer offset of such a group moves when messages are handed out, so it does not say what is consumed.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from brokerset_broker.pop.order_locks import free_at
from brokerset_broker.requests.pop.log import PopLog
from brokerset_broker.tables.pop.order_table import OrderTable
from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_formats.pop.names import RETRY_V1, RETRY_V2, pop_retry_topic
from brokerset_runtime.clock import Clock

STARTS_MAX: Final = 1_000
"""Check points of one queue that are searched for the oldest message: those that were stored first."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Of one group in one queue."""

    position: int
    """Queue offset of the next message that has not been given out; all from there on are ready."""

    in_flight: int
    """Messages that somebody has, and that are not acked."""

    ready_again: int
    """Messages before `position` that pops of a FIFO group get next: their invisible time is over."""

    oldest: int
    """Queue offset of the oldest message that is not consumed."""


class PopProgress:
    """Asked by metrics and by administrators; it changes nothing."""

    def __init__(self, *, log_of_pops: PopLog, locks: OrderTable, clock: Clock) -> None:
        self._log = log_of_pops
        self._locks = locks
        self._clock = clock

    def of(self, topic: str, group: str, queue_id: int, committed: int | None) -> Progress | None:
        """`committed`: its consumer offset. None if the group has popped nothing of the queue."""
        source = self._log.points.sources.get((topic, group, queue_id)) if self._log.is_known else None
        lock = self._locks.get(topic, group, queue_id)
        if source is None and lock is None:
            return None
        position = committed or 0
        in_flight = again = 0
        oldest: int | None = None
        if source is not None:
            if source.position is not None and source.committed == committed:
                position = source.position
            in_flight = source.in_flight
            oldest = min(islice(source.starts, STARTS_MAX), default=None)
        if lock is not None and lock.next_offset >= position:
            waiting = [offset for offset in lock.open_offsets() if offset >= position]
            if waiting and self._clock.now_ms() < free_at(lock):
                in_flight += len(waiting)
            else:
                again = len(waiting)
            oldest = min(oldest, position) if oldest is not None else position
            position = lock.queue_offsets[-1] + 1
        return Progress(position, in_flight, again, position if oldest is None else min(oldest, position))

    def reported(
        self, topic: str, group: str, queue_id: int, committed: int | None
    ) -> tuple[int | None, int]:
        """The consumer offset as administrators see it, and messages in flight.

        Where a master is alone, the offset is committed up to 10 s after messages were handed out; so that is
        what it will be.
        """
        found = self.of(topic, group, queue_id, committed)
        if found is None:
            return committed, 0
        source = self._log.points.sources.get((topic, group, queue_id)) if self._log.is_known else None
        if source is not None and source.position is not None and source.committed == committed:
            committed = source.position
        return committed, found.in_flight

    def retry_topics(self) -> Iterator[tuple[str, str]]:
        """Retry topics that messages of popping groups may be in, with the group; some are not there."""
        pairs = {(topic, group) for topic, group, _ in self._log.points.sources}
        for topic, group in pairs:
            for flag in (RETRY_V1, RETRY_V2):
                yield pop_retry_topic(group, topic, flag), group
