"""Finding messages of a queue by the time when they were stored."""

from __future__ import annotations

from brokerset_broker.store.commit_log import CommitLog
from brokerset_broker.store.consume_queue import ConsumeQueue
from brokerset_broker.store.results import Boundary
from brokerset_formats.queue_units import first_that
from brokerset_formats.records import RECORD_SIZE_MIN, store_timestamp_at


def store_time_at(log: CommitLog, queue: ConsumeQueue, queue_offset: int) -> int | None:
    """Store time (ms) of one message; None if the queue or the log does not have it."""
    if not queue.min_offset <= queue_offset < queue.next_offset:
        return None
    offset, size, _ = queue.unit(queue_offset)
    record = log.read(offset, size) if size >= RECORD_SIZE_MIN else None
    return store_timestamp_at(record, 0) if record is not None else None


def queue_offset_by_time(
    log: CommitLog, queue: ConsumeQueue, maximum: int, timestamp_ms: int, boundary: Boundary
) -> int:
    """The message that `boundary` means, always between the queue's minimum and `maximum` (both included).

    Store times never decrease along the log, so not along a queue either: a binary search over the whole
    queue gives what Java's search by files gives.
    """
    minimum = queue.min_offset

    def is_behind(queue_offset: int) -> bool:
        stored = store_time_at(log, queue, queue_offset)
        if stored is None:  # deleted, or lost: it counts as older than anything
            return False
        return stored >= timestamp_ms if boundary is Boundary.LOWER else stored > timestamp_ms

    found = first_that(minimum, maximum, is_behind)
    if boundary is Boundary.UPPER:
        found -= 1
    return min(max(found, minimum), maximum)
