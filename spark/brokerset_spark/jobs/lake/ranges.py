"""What one pass reads: from where the table ends to where the queues end. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from brokerset_spark.topics.following import Ends
from brokerset_spark.topics.offsets import Mark, QueueKey
from brokerset_spark.topics.planning import Range, parts

TASK_QUEUES_MAX: Final = 1000
"""Queues that one task reads one after the other."""


@dataclass(frozen=True, slots=True)
class Exported:
    """What the table has of a queue."""

    next_offset: int
    """Queue offset of the first message that is not in the table."""
    mark_ms: int | None = None
    """Store time of the message before it."""


class Event(StrEnum):
    """Kinds of rows of the control table."""

    QUEUE_ADDED = "queue-added"
    """A queue that no pass has seen before."""
    EXPIRED = "expired"
    """Messages that brokers had deleted before they were exported: they are in no table."""
    RECREATED = "recreated"
    """The topic was deleted and created again, or the group's store was replaced: offsets begin again."""
    GAP = "gap"
    """Offsets in the middle of a queue that no message has; in compacted topics this is usual."""
    UNREADABLE = "body-unreadable"
    """A message whose compressed body cannot be opened: it is in the table as it is stored."""
    JSON_MISFIT = "json-misfit"
    """Messages from the first to the last that do not fit the JSON columns: these are null there."""
    AVRO_MISFIT = "avro-misfit"
    """The same for Avro: bodies that cannot be read as the schema; the column `avroError` says why."""
    QUEUE_GONE = "queue-gone"
    """A queue of the table that no broker has any more."""


@dataclass(frozen=True, slots=True)
class Control:
    """A row of the control table: what a reader of the table has to know of `[start, end)`."""

    event: Event
    queue: QueueKey
    start: int
    end: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class PassPlan:
    """What a pass reads, and what it already knows to tell."""

    ranges: tuple[Range, ...]
    control: tuple[Control, ...]
    ends: Mapping[QueueKey, Exported]
    """What the table has of each queue if all of this is read."""

    def settled(self, marks: Mapping[QueueKey, int | None], unsure: Collection[QueueKey]) -> PassPlan:
        """The same with the marks of its ends, and without ranges of `unsure`: a later pass reads these."""
        starts = {each.key: Exported(each.start) for each in self.ranges if each.key in unsure}
        sure = tuple(each for each in self.ranges if each.key not in unsure)
        marked = {each.key: Exported(each.end, marks.get(each.key)) for each in sure}
        return replace(self, ranges=sure, ends={**self.ends, **starts, **marked})


def plan_pass(
    exported: Mapping[QueueKey, Exported],
    extents: Mapping[QueueKey, Ends],
    marks: Mapping[QueueKey, int | None],
    *,
    messages_max: int | None = None,
) -> PassPlan:
    """The ranges of a pass over `extents`, for a table that has `exported`.

    `marks` has the store time of the message before `next_offset`, as the broker has it now, and None where
    there is no such message any more. `messages_max` bounds the messages of one queue.
    """
    ranges, control = [], []
    ends: dict[QueueKey, Exported] = {}
    for queue, extent in sorted(extents.items()):
        before, mark = exported.get(queue), None
        start = extent.first
        if before is None:
            control.append(Control(Event.QUEUE_ADDED, queue, extent.first, extent.last))
            if extent.first > 0:
                control.append(
                    Control(Event.EXPIRED, queue, 0, extent.first, "before the queue's first export")
                )
        elif _is_other(before, extent, marks.get(queue)):
            text = f"the table ended at {before.next_offset}"
            control.append(Control(Event.RECREATED, queue, extent.first, extent.last, text))
        elif before.next_offset < start:
            control.append(Control(Event.EXPIRED, queue, before.next_offset, start))
        else:
            start = before.next_offset
            mark = None if before.mark_ms is None else Mark(before.mark_ms)
        end = extent.last if messages_max is None else min(extent.last, start + messages_max)
        if end > start:
            ranges.append(Range(queue, start, end, mark=mark))
        ends[queue] = Exported(max(start, end))
    return PassPlan(tuple(ranges), tuple(control), ends)


def others(
    exported: Mapping[QueueKey, Exported],
    extents: Mapping[QueueKey, Ends],
    marks: Mapping[QueueKey, int | None],
) -> list[QueueKey]:
    """Queues that `plan_pass` takes for other ones than those that the table has messages of."""
    return [
        queue
        for queue, extent in extents.items()
        if queue in exported and _is_other(exported[queue], extent, marks.get(queue))
    ]


def _is_other(before: Exported, has: Ends, mark: int | None) -> bool:
    """Whether the queue is not the one that the table has messages of, although it has the same name."""
    if has.last < before.next_offset:
        return True
    return mark is not None and before.mark_ms is not None and mark != before.mark_ms


def split_tasks(ranges: Sequence[Range], messages_per_task: int) -> list[list[Range]]:
    """Ranges of one topic together, up to so many messages in a task; longer ranges are divided.

    So small topics make one file for each day instead of one for each queue, and large queues are read by
    several executors at once.
    """
    pieces = [piece for each in ranges for piece in parts(each, messages_per_task)]
    tasks: list[list[Range]] = []
    size = 0
    for piece in sorted(pieces, key=lambda each: (each.key, each.start)):
        fits = (
            tasks
            and tasks[-1][0].key.topic == piece.key.topic
            and size + len(piece) <= messages_per_task
            and len(tasks[-1]) < TASK_QUEUES_MAX
        )
        if fits:
            tasks[-1].append(piece)
            size += len(piece)
        else:
            tasks.append([piece])
            size = len(piece)
    return tasks
