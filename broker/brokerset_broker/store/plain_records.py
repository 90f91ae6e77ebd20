"""Plain records of a log, taken by the native core: checked, parsed, and grouped by queue.

A record is plain when every rule of recovery and of receiving takes it, and it follows the last message of a
queue that has some. Whoever gets None here goes on in Python, which knows what to do with any record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from brokerset_broker.store.consume_queue import ConsumeQueue
from brokerset_broker.store.consume_queues import ConsumeQueues
from brokerset_broker.store.segments import MappedFile
from brokerset_formats import native
from brokerset_formats.queue_units import UNIT_SIZE


@dataclass(frozen=True, slots=True, eq=False)
class QueueRun:
    """New units of one queue."""

    queue: ConsumeQueue
    units: bytes
    """Packed, in a row behind the queue's last one."""
    last_end: int
    """Commit log offset behind the last record."""
    tags_code: int | None
    """Of all of them; None if there are several."""


@dataclass(frozen=True, slots=True, eq=False)
class PlainRecords:
    """What was taken; nothing of it was put anywhere."""

    end: int
    """Position in the file behind the last record."""
    store_timestamp: int
    """The newest."""
    runs: list[QueueRun]
    index_entries: bytes
    """See `IndexService.put_entries`; in the order of the log."""


def take_plain(
    file: MappedFile,
    position: int,
    queues: ConsumeQueues,
    *,
    stop: int,
    limit: int,
    records_max: int,
    entry_head: int = 0,
    verify_crc: bool = True,
    units: bool,
    index: bool,
) -> PlainRecords | None:
    """Take records that begin at `position` or behind it, but before `stop`, and end before `limit`.

    `entry_head` is what each has before it. `units` and `index` say whether queue units and index entries
    are made. None if the first record is not plain, if one is not the next of its queue, or without a native
    core.
    """
    if native.core is None:
        return None
    taken = native.core.take_records(
        file.view,
        file.start,
        position,
        stop=stop,
        limit=limit,
        records_max=records_max,
        entry_head=entry_head,
        verify_crc=verify_crc,
        units=units,
        index=index,
    )
    if taken is None:
        return None
    end, store_timestamp, parts, index_entries = taken
    runs = []
    for topic, queue_id, first_queue_offset, first_offset, last_end, packed, tags_code in parts:
        queue = queues.table.get((topic.decode(), queue_id))
        if queue is None or not queue.next_offset or queue.next_offset != first_queue_offset:
            return None
        if queue.last_end > first_offset:
            return None
        runs.append(QueueRun(queue, packed, last_end, tags_code))
    return PlainRecords(end, store_timestamp, runs, index_entries)


def put_runs(runs: Sequence[QueueRun]) -> None:
    """All runs or, when the disk has no room, none: StoreRefused."""
    for run in runs:
        if run.queue.position + len(run.units) > run.queue.room_end:
            run.queue.make_room(len(run.units) // UNIT_SIZE)
    for run in runs:
        run.queue.put_many(run.units, run.last_end)
