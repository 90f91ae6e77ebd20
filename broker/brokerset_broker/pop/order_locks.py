"""Ordered pops: which queues are locked and for whom, and what acks and changes make of a lock. Pure.

A group gets messages of a queue in order, and nobody of it gets more of that queue before all that is out is
acknowledged or visible again. Source: `QueueLevelConsumerManager` of Java 5.5. Unlike there

* a message that is acknowledged is not given out again when one before it was not: it stays in the lock;
* an ack of a message that nobody has is refused instead of moving the group past it;
* a lock frees up when its last message is visible, not its first: else who waits is woken in vain, and then
  never again.

All times are milliseconds since 1970 on the clock that gave the lock its pop time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from typing import Final

from brokerset_broker.tables.pop.order_lock import OFFSETS_MAX, UNREAD, OrderLock
from brokerset_formats.pop.names import NORMAL
from brokerset_formats.pop.offset_infos import encode_order_counts

EXPIRY_MS: Final = 24 * 3600 * 1000
"""A lock of a queue that the group has not popped for so long is forgotten (`CLEAN_SPAN_FROM_LAST`)."""


def free_at(lock: OrderLock) -> int:
    """When all messages that are not acknowledged are visible; 0 if there are none."""
    time = 0
    end = lock.pop_time + lock.invisible_ms
    for offset in lock.open_offsets():
        time = max(time, lock.visible_at.get(offset, end))
    return time


def is_locked(lock: OrderLock, attempt_id: str | None, now_ms: int) -> bool:
    """Whether a pop gets nothing of the queue: somebody has messages of it, and this is no repetition."""
    if attempt_id is not None and attempt_id == lock.attempt_id:
        return False
    return now_ms < free_at(lock)


def is_expired(lock: OrderLock, now_ms: int) -> bool:
    """Whether the lock may be forgotten."""
    return now_ms - lock.consumed_at > EXPIRY_MS and now_ms >= free_at(lock)


def given_before(lock: OrderLock, position: int) -> frozenset[int]:
    """Messages from the group's position on that it has acknowledged: a pop passes them by.

    A group that has acknowledged all and is before the first of them went back on purpose.
    """
    if position < lock.queue_offsets[0] and not lock.open_offsets():
        return frozenset()
    return frozenset([offset for offset in lock.acked_offsets() if offset >= position])


def room(passed_by: frozenset[int]) -> int:
    """Messages that a pop may take of the queue, so that its lock has a bit for each."""
    return max(1, OFFSETS_MAX - len(passed_by) - bool(passed_by))


def popped(
    before: OrderLock | None,
    *,
    attempt_id: str | None,
    pop_time: int,
    invisible_ms: int,
    queue_offsets: Sequence[int],
    passed_by: frozenset[int] = frozenset(),
) -> OrderLock:
    """The lock of a pop that has taken messages; `passed_by` is what `given_before` said of it."""
    assert queue_offsets, "a pop without messages locks nothing"
    kept = sorted([offset for offset in passed_by if offset > queue_offsets[0]])
    kept = kept[: OFFSETS_MAX - len(queue_offsets) - 1]  # a Java lock may have one more
    holes = _first_hole(queue_offsets[-1], kept)
    offsets = tuple(sorted({*queue_offsets, *kept, *holes}))
    assert len(offsets) <= OFFSETS_MAX, "there is a bit for each message"
    acked = sum([1 << index for index, offset in enumerate(offsets) if offset in passed_by])
    counts: dict[int, int] = {}
    if before is not None:
        if attempt_id is not None and attempt_id == before.attempt_id:
            counts = {offset: n for offset, n in before.counts.items() if offset in offsets}
        else:
            had = frozenset(before.open_offsets())
            counts = {offset: before.counts.get(offset, 0) + 1 for offset in queue_offsets if offset in had}
    return OrderLock(
        attempt_id, pop_time, invisible_ms, offsets, acked, counts=counts,
        visible_at=dict.fromkeys(holes, UNREAD), consumed_at=pop_time,
    )  # fmt: skip


def _first_hole(last: int, kept: Sequence[int]) -> tuple[int, ...]:
    """The first message behind the last one that is given out which was not read, if some behind it are kept.

    It is in the lock as unread: there the group goes on.
    """
    following = last + 1
    for offset in kept:
        if offset > following:
            return (following,)
        following = max(following, offset + 1)
    return ()


class Fate(Enum):
    """What becomes of an ack, or of a change of the invisible time."""

    DONE = "the lock changes"
    DONE_BEFORE = "the message is acknowledged already"
    UNKNOWN = "nobody has messages of the queue"
    NOT_GIVEN = "the pop has not given this message"
    OTHER_POP = "the message is out with another pop time: it was popped again"


def find(lock: OrderLock | None, queue_offset: int, pop_time: int) -> Fate:
    """What becomes of an ack that names this message, from the group's position on, and its pop time."""
    if lock is None:
        return Fate.UNKNOWN
    if pop_time != lock.pop_time:
        return Fate.OTHER_POP
    if queue_offset not in lock.queue_offsets or lock.visible_at.get(queue_offset) == UNREAD:
        return Fate.NOT_GIVEN
    return Fate.DONE_BEFORE if lock.acked >> lock.queue_offsets.index(queue_offset) & 1 else Fate.DONE


def acked(lock: OrderLock, queue_offset: int) -> OrderLock:
    """The lock after a message was acknowledged."""
    return replace(lock, acked=lock.acked | 1 << lock.queue_offsets.index(queue_offset))


def made_visible(lock: OrderLock, queue_offset: int, time_ms: int) -> OrderLock:
    """The lock after the invisible time of one message was changed to end at `time_ms`."""
    return replace(lock, visible_at={**lock.visible_at, queue_offset: time_ms})


def order_counts(queue_id: int, lock: OrderLock) -> str:
    """The items of `orderCountInfo`: how often each message was given out before, and all of them at least.

    Clients before 5.1 know the queue's item alone, which is the last one.
    """
    given = lock.open_offsets()
    counts = {offset: lock.counts[offset] for offset in given if offset in lock.counts}
    least = min(counts.values()) if counts and len(counts) == len(given) else 0
    return encode_order_counts(
        {(NORMAL, queue_id, offset): count for offset, count in counts.items()}, {(NORMAL, queue_id): least}
    )
