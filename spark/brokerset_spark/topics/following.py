"""What a stream decides, given what brokers say: first offsets, the next end, what is new, gone or lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from brokerset_spark.topics.offsets import Mark, QueueKey, StreamOffset
from brokerset_spark.topics.planning import limited


@dataclass(frozen=True, slots=True)
class Ends:
    """What a queue has: offsets of the first record, and behind the last one."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Seen:
    """What brokers say of the queues of a query at one moment."""

    ends: Mapping[QueueKey, Ends]
    absent: frozenset[QueueKey] = frozenset()
    """Queues that were asked for of brokers that cannot be asked now: what they have is not known."""

    silent: frozenset[tuple[str, str]] = frozenset()
    """Topics and brokers that have them, and do not answer."""


@dataclass(frozen=True, slots=True)
class Step:
    """What a stream does next. `losses` has a sentence for each loss."""

    begins: dict[QueueKey, int]
    """Where the batch begins in each queue that it may advance."""

    ends: dict[QueueKey, int]
    jumps: dict[QueueKey, int] = field(default_factory=dict)
    """Those of `begins` that are not where the stream was."""

    losses: list[str] = field(default_factory=list)
    gone: frozenset[QueueKey] = frozenset()
    """Queues that do not exist any more."""


def next_step(
    start: StreamOffset,
    seen: Seen,
    *,
    changed: frozenset[QueueKey] = frozenset(),
    most: int = 0,
    target: Mapping[QueueKey, int] | None = None,
) -> Step:
    """How far a batch behind `start` goes: `most` records in sum (0: no limit), and up to `target` if given.

    `changed`: queues whose record before the offset is another one now. A queue that is lost, whatever the
    reason, goes on with the first record that is there.
    """
    step = Step({}, {})
    for key, ends in seen.ends.items():
        last = ends.last if target is None else min(ends.last, target.get(key, ends.first))
        was = start.offsets.get(key)
        if was is None:
            step.begins[key] = step.jumps[key] = ends.first
            if ends.first > 0:
                step.losses.append(f"{key} is new, and its first {ends.first} records have expired already")
        elif key in changed:
            step.begins[key] = step.jumps[key] = ends.first
            step.losses.append(
                f"{key}: the record before offset {was}, where the stream is, is another one now: "
                f"the topic was deleted and created again, or the store replaced; it has {ends.first} to "
                f"{ends.last}"
            )
        elif was > ends.last:
            step.begins[key] = step.jumps[key] = ends.first
            step.losses.append(
                f"{key}: the stream is at offset {was}, and the queue ends at {ends.last}: the topic was "
                "deleted and created again, or the store was replaced or cut"
            )
        elif was < ends.first:
            step.begins[key] = step.jumps[key] = ends.first
            step.losses.append(
                f"{key}: the stream is at offset {was}, and the queue begins at {ends.first}: "
                f"{ends.first - was} records expired before they were read"
            )
        else:
            step.begins[key] = was
        step.ends[key] = max(step.begins[key], last)
    gone = frozenset(start.offsets) - frozenset(seen.ends) - seen.absent
    step.losses.extend(
        f"{key} does not exist any more: the topic was deleted; the stream has read up to offset "
        f"{start.offsets[key]}"
        for key in sorted(gone)
    )
    ends_now = limited(step.begins, step.ends, most) if most else step.ends
    return Step(step.begins, ends_now, step.jumps, step.losses, gone)


def advanced(start: StreamOffset, step: Step, marks: Mapping[QueueKey, Mark]) -> StreamOffset:
    """The stream's offset behind a step; `start` itself if nothing moves.

    `marks`: of the ends of queues that advance. Others keep the marks that they have. Queues that are gone
    are dropped; so if one comes back it is a new one.
    """
    offsets = {key: offset for key, offset in start.offsets.items() if key not in step.gone} | step.ends
    moved = {key for key in step.ends if start.offsets.get(key) != step.ends[key] or key in step.jumps}
    kept = {key: mark for key, mark in start.marks.items() if key in offsets and key not in moved}
    if not moved and not step.gone:
        return start
    return StreamOffset(
        offsets,
        kept | {key: mark for key, mark in marks.items() if key in moved},
        {key: begin for key, begin in step.jumps.items() if step.ends[key] >= begin},
    )


def batch_between(start: StreamOffset, end: StreamOffset) -> dict[QueueKey, tuple[int, int]]:
    """What lies between two offsets of a stream: begin and end of each queue that has something."""
    if start == end:
        return {}
    found = {}
    for key, until in end.offsets.items():
        begin = end.begins.get(key, start.offsets.get(key, until))
        if begin < until:
            found[key] = begin, until
    return found
