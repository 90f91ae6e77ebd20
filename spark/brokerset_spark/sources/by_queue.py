"""Messages of a small topic, found by the units of its queues instead of in the whole log.

Nothing may be missing that the log would have given. So queues are believed only up to where they surely
are: behind the newest unit of all queues whose record is the one that it says, nothing is known to be
dispatched, and the log is read there. A group of units of which one does not fit its record is not
believed: the log between its ends is read instead, and says what is damaged. Where one group ends and the
next begins is what a unit says, so both check that one: if it is wrong, the log is read on both sides of it.
So it is with units beside what is read: one that wrongly points there would hide its record.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from brokerset_formats.queue_units import UNIT_SIZE
from brokerset_spark.kernels import KERNELS, Stop
from brokerset_spark.kernels.contract import Bools, Int32s, Int64s, Texts
from brokerset_spark.stores.folder import LocalFolder, StoreFolder
from brokerset_spark.stores.http_folder import HttpFolder
from brokerset_spark.stores.layout import QUEUES, Log, QueueFiles, StoreFacts
from brokerset_spark.stores.reading import RECORD_MAX, Chunk, Throttle
from brokerset_spark.stores.tail import state_of
from brokerset_spark.stores.units import QUEUE, ZERO_BYTES, QueueReader, UnitFiles, Units, is_blank

_LOG: Final = logging.getLogger("brokerset_spark")

GROUP_BYTES: Final = 4 << 20
"""Records that are read and checked together, before one of them is given out."""

GAP_BYTES: Final = 64 << 10
"""Between two records: less is read with them, because a read of its own costs more."""

SEEK_BYTES: Final = 64 << 10
REMOTE_SEEK_BYTES: Final = 1 << 20
"""What finding one record costs, as bytes of the log that could be read in that time: on a disk, and by a
request."""

SHARE_MAX: Final = 4
"""Queues are used if they cost at most the log's bytes divided by this."""


@dataclass(frozen=True, slots=True)
class UnitGroup:
    """Units `[first, end)` of a queue, and the stretch of the log in which no others of this queue are."""

    topic: str
    queue_id: int
    first: int
    end: int
    log_begin: int
    log_end: int
    followed: bool = False
    """Whether the unit behind these begins the next group, at `log_end`."""


class QueuePlan(NamedTuple):
    """What of a store is read by queues."""

    groups: tuple[UnitGroup, ...]
    log_from: int
    """Behind what is dispatched: from here on the log is read."""


def plan_queues(
    folder: StoreFolder,
    facts: StoreFacts,
    topics: tuple[str, ...],
    queue_ids: tuple[int, ...],
    start: int,
    end: int,
) -> QueuePlan | None:
    """Units to read for topics in `[start, end)` of the log; None if the log is cheaper, or must be read.

    OSError as from the folder.
    """
    log, entries = facts.current
    queues = [each for each in facts.queues if each.topic in topics]
    if entries or len(facts.logs) != 1 or {each.topic for each in queues} != set(topics):
        return None
    if queue_ids:
        queues = [each for each in queues if each.queue_id in queue_ids]
    seek = SEEK_BYTES if isinstance(folder, LocalFolder) else REMOTE_SEEK_BYTES
    room = (end - start) // SHARE_MAX
    if len(queues) * seek > room:
        return None
    known = min(_dispatched(folder, facts, log), end)  # before the units are read, which may grow
    if known <= start:
        return None
    unread_from = readable_end(folder)
    folder.forget_names()  # queues and files may have come since the store was looked at, before `known`
    if not _are_all_queues(folder, facts, topics):
        return None
    reader, groups, cost = QueueReader(folder, QUEUE), list[UnitGroup](), 0
    for queue in queues:
        found = _written(reader.of(queue.topic, queue.queue_id), (room - cost) // seek)
        if found is None:
            return None
        first, units = found
        if not _ascending(units):
            _LOG.warning(
                "%s: units of queue %s/%d are out of order; the log is read instead; `brokerset store "
                "verify` says more",
                facts.url,
                queue.topic,
                queue.queue_id,
            )
            return None
        begin, until = np.searchsorted(units["offset"], [start, known]).tolist()
        beside = [at for at in (begin - 1, until) if 0 <= at < len(units)]
        beside = [at for at in beside if log.first <= units["offset"][at] < unread_from]
        if not all(has_record(folder, log, queue, first + at, units[at : at + 1]) for at in beside):
            return None
        units = units[begin:until]
        cost += len(units) * seek + int(units["size"].sum(dtype=np.int64))
        groups += _groups(queue, units, first + begin, start, known)
    if cost > room:
        return None
    return QueuePlan(tuple(groups), known)


def readable_end(folder: StoreFolder) -> int:
    """Records from here on cannot be read: of a broker that runs, which has units of them all the time."""
    return folder.confirmed_offset() if isinstance(folder, HttpFolder) else 2**63 - 1


def has_record(folder: StoreFolder, log: Log, queue: QueueFiles, number: int, unit: Units) -> bool:
    """Whether the record of this unit is where it points to."""
    return read_units(folder, log, queue.topic, queue.queue_id, number, unit) is not None


def _are_all_queues(folder: StoreFolder, facts: StoreFacts, topics: tuple[str, ...]) -> bool:
    """Whether the topics have no other queues now than in `facts`."""
    now = {
        (topic, int(name))
        for topic in topics
        for name in folder.folders(f"{QUEUES}/{topic}")
        if name.isdigit()
    }
    return now <= {(each.topic, each.queue_id) for each in facts.queues}


def _dispatched(folder: StoreFolder, facts: StoreFacts, log: Log) -> int:
    """Behind the newest record that a queue has: brokers enter records in the order of the log. 0 if unknown.

    After a crash queues may lack what was in memory only, one more than the other.
    """
    if isinstance(folder, HttpFolder):
        return folder.state().dispatched_offset
    if state_of(folder, facts) == "left":
        return 0
    reader, found = QueueReader(folder, QUEUE), []
    for queue in facts.queues:
        last = reader.of(queue.topic, queue.queue_id).last_written()
        if last is not None and last[1]["size"] <= RECORD_MAX:
            found.append((int(last[1]["offset"]), int(last[1]["size"]), last[0], queue))
    for offset, size, number, queue in sorted(found, key=lambda each: each[:2], reverse=True):
        unit = np.zeros(1, QUEUE.dtype)
        unit["offset"], unit["size"] = offset, size
        if has_record(folder, log, queue, number, unit):
            return offset + size
    return 0


def _written(files: UnitFiles, most: int) -> tuple[int, Units] | None:
    """The units from the first that is no place holder to the last that is not zero, and the number of the
    first. None if they are more than `most`.

    They are read one by one and not found by halves, which a damaged unit leads astray.
    """
    first, parts, count = 0, list[Units](), 0
    for number, units in files.blocks():
        part = units
        if not parts:
            kept = np.flatnonzero(~is_blank(units))
            if not len(kept):
                continue
            first, part = number + int(kept[0]), units[int(kept[0]) :]
        missing = number - first - count
        if parts and missing:
            parts.append(np.zeros(missing, QUEUE.dtype))
        parts.append(part)
        count += len(part) + (missing if len(parts) > 1 else 0)
        if count > most + ZERO_BYTES // UNIT_SIZE:
            return None
    found = np.concatenate(parts) if parts else np.zeros(0, QUEUE.dtype)
    filled = np.flatnonzero(found["size"] != 0)
    found = found[: int(filled[-1]) + 1] if len(filled) else found[:0]
    return (first, found) if len(found) <= most else None


def _ascending(units: Units) -> bool:
    """Whether their records follow each other: without places that are empty or no offset."""
    offsets, sizes = units["offset"].astype(np.int64), units["size"].astype(np.int64)
    if not len(units):
        return True
    sound = bool((sizes > 0).all() and (sizes <= RECORD_MAX).all() and offsets[0] >= 0)
    return sound and bool((offsets[1:] - sizes[:-1] >= offsets[:-1]).all())


def _groups(queue: QueueFiles, units: Units, first: int, start: int, end: int) -> Iterator[UnitGroup]:
    """Groups of about `GROUP_BYTES`, which together stand for all of `[start, end)`."""
    if not len(units):
        return
    numbers = np.cumsum(units["size"].astype(np.int64)) // GROUP_BYTES
    cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(units)]
    for begin, until in pairwise(cuts):
        log_begin = start if begin == 0 else int(units["offset"][begin])
        log_end = end if until == len(units) else int(units["offset"][until])
        followed = until < len(units)
        yield UnitGroup(
            queue.topic, queue.queue_id, first + begin, first + until, log_begin, log_end, followed
        )


def read_group(
    folder: StoreFolder,
    log: Log,
    group: UnitGroup,
    *,
    crc: bool = False,
    throttle: Throttle | None = None,
) -> Chunk | None:
    """The records of a group; None if one of them, or the next, is not what its unit says.

    OSError as from the folder.
    """
    count = group.end - group.first
    units = (
        QueueReader(folder, QUEUE).of(group.topic, group.queue_id).read(group.first, count + group.followed)
    )
    offsets = units["offset"]
    if not _ascending(units) or offsets[0] < group.log_begin or offsets[count - 1] >= group.log_end:
        return None
    if group.followed and (len(units) <= count or offsets[count] != group.log_end):
        return None
    chunk = read_units(
        folder,
        log,
        group.topic,
        group.queue_id,
        group.first,
        units,
        crc=crc,
        throttle=throttle,
    )
    return chunk if chunk is None or not group.followed else _without_last(chunk)


def _without_last(chunk: Chunk) -> Chunk:
    assert chunk.offsets is not None, "made by read_units"
    starts, sizes, offsets = chunk.starts[:-1], chunk.sizes[:-1], chunk.offsets[:-1]
    data = chunk.data[: int(chunk.starts[-1])]
    return replace(
        chunk, data=data, starts=starts, sizes=sizes, offsets=offsets, end=int(offsets[-1] + sizes[-1])
    )


def read_units(
    folder: StoreFolder,
    log: Log,
    topic: str,
    queue_id: int,
    first: int,
    units: Units,
    *,
    crc: bool = False,
    throttle: Throttle | None = None,
) -> Chunk | None:
    """The records that ascending units point to, one behind the other in the chunk's data; None if one is not
    a whole record of this queue and queue offset at this place."""
    offsets, sizes = units["offset"].astype(np.int64), units["size"].astype(np.int32)
    starts = np.zeros(len(units), np.int64)
    np.cumsum(sizes[:-1], out=starts[1:])
    data = np.empty(int(sizes.sum(dtype=np.int64)), np.uint8)
    for begin, until in _runs(log, offsets, sizes):
        low, high = int(offsets[begin]), int(offsets[until - 1] + sizes[until - 1])
        file = log.at(low)
        if file is None or high > file.end:
            return None
        piece = np.empty(high - low, np.uint8)
        count = folder.read_into(file.path, low - file.base, piece.data)
        if throttle is not None:
            throttle.took(count)
        if count < len(piece):
            return None
        for number in range(begin, until):
            at, size = int(starts[number]), int(sizes[number])
            position = int(offsets[number]) - low
            record = data[at : at + size]
            record[:] = piece[position : position + size]
            walked = KERNELS.walk(record, 0, size, int(offsets[number]), final=False, crc=crc)
            if walked.stop is not Stop.RANGE_END or len(walked.starts) != 1:
                return None
    chunk = Chunk(
        data, 0, starts, sizes, begin=int(offsets[0]), end=int(offsets[-1] + sizes[-1]), offsets=offsets
    )
    return chunk if _fits(chunk, topic, queue_id, first) else None


def _runs(log: Log, offsets: Int64s, sizes: Int32s) -> Iterator[tuple[int, int]]:
    """Numbers `[begin, end)` of records that are read at once: near each other, and in one file."""
    far = offsets[1:] - (offsets[:-1] + sizes[:-1]) > GAP_BYTES
    bases = np.array([file.base for file in log.files], np.int64)
    files = np.searchsorted(bases, offsets, side="right")
    long = (offsets - offsets[0]) // GROUP_BYTES
    cuts: Bools = far | (files[1:] != files[:-1]) | (long[1:] != long[:-1])
    edges = [0, *(np.flatnonzero(cuts) + 1).tolist(), len(offsets)]
    yield from pairwise(edges)


def _fits(chunk: Chunk, topic: str, queue_id: int, first: int) -> bool:
    heads = KERNELS.heads(chunk.data, chunk.starts)
    numbers = np.arange(first, first + len(chunk.starts))
    if not bool((heads.queue_id == queue_id).all() and (heads.queue_offset == numbers).all()):
        return False
    firsts = KERNELS.number_texts(chunk.data, Texts(heads.topic, heads.topic_size)).firsts
    at, size = int(heads.topic[firsts[0]]), int(heads.topic_size[firsts[0]])
    return len(firsts) == 1 and chunk.data[at : at + size].tobytes() == topic.encode()


def by_file(chunk: Chunk, log: Log) -> Iterator[Chunk]:
    """The records of a chunk apart by their file, which is a column."""
    assert chunk.offsets is not None, "made by read_units"
    files = np.searchsorted(
        np.array([file.base for file in log.files], np.int64), chunk.offsets, side="right"
    )
    for each in np.unique(files).tolist():
        rows = np.flatnonzero(files == each)
        offsets, sizes = chunk.offsets[rows], chunk.sizes[rows]
        begin, end = int(offsets[0]), int(offsets[-1] + sizes[-1])
        yield replace(chunk, starts=chunk.starts[rows], sizes=sizes, offsets=offsets, begin=begin, end=end)
