"""Fourth task: consume queues, from the units that were read back from the new log.

A queue offset never changes. So a queue whose first messages are gone begins with blank units, and a queue
without
any message ends with a unit that points before the log, so that its numbers go on where they were.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brokerset_formats.queue_units import BLANK_SIZE, UNIT_SIZE
from brokerset_spark.jobs.migrate.cloning import described, read_slice, set_mtime, write_file
from brokerset_spark.jobs.running import Result, Row
from brokerset_spark.kernels.contract import Int64s
from brokerset_spark.stores.folder import StoreFolder
from brokerset_spark.stores.layout import QUEUES, LogFile, QueueFiles
from brokerset_spark.stores.reading import Throttle
from brokerset_spark.stores.units import QUEUE, UnitFiles, is_written

TASK: Final = "brokerset_spark.jobs.migrate.queues:build"
QUEUE_FILE_SIZE: Final = 300_000 * UNIT_SIZE
QUEUE_OFFSET_MAX: Final = (2**63 - 1) // UNIT_SIZE - 1
"""The last queue offset that has a place in a file of a queue."""

BLANKS_MAX: Final = 1 << 20
"""Place holders between messages of a queue at most: a queue offset with a wrong bit may be far off."""

_UNITS_AT_ONCE: Final = 8_192


@dataclass(frozen=True, slots=True)
class QueueEnd:
    """The end of a queue as its files have it."""

    end: int
    """Queue offset that the next message gets."""

    offset: int
    """In the log, of the last message; -1 without one."""

    log_end: int
    """Behind that message."""


def build(row: Row) -> Iterator[Result]:
    """Write the files of some queues: see the module."""
    files = []
    ends = []
    throttle = Throttle(row["rate"])
    for queue in row["queues"]:
        units, queue_offsets = _collect(row["staging"], queue["slices"])
        throttle.took(units.nbytes + queue_offsets.nbytes)
        laid = lay_out(units, queue_offsets, floor=queue["floor"])
        folder = Path(row["staging"]) / "store" / QUEUES / queue["topic"] / str(queue["queueId"])
        for base, part in split_files(laid.first, laid.units, row["fileSize"] // UNIT_SIZE):
            path = folder / f"{base * UNIT_SIZE:020d}"
            write_file(path, [part], size=row["fileSize"])
            set_mtime(path, row["mtimeMs"])
            files.append(described(row["staging"], path, used=len(part) * UNIT_SIZE, throttle=throttle))
        first, end = laid.first, laid.first + len(laid.units)
        ends.append(
            [
                *(queue["topic"], queue["queueId"], first, end, laid.messages, laid.replaced),
                asdict(laid.faults) if laid.faults is not None else None,
            ]
        )
    yield Result({"key": row["key"], "queues": ends, "bytesRead": 0, "files": files})


def _collect(staging: str, slices: list[Any]) -> tuple[NDArray[Any], Int64s]:
    """Units and queue offsets of one queue, in the order of the log: [file, units in it, first, count]."""
    units, queue_offsets = [np.empty(0, QUEUE.dtype)], [np.empty(0, np.int64)]
    for name, total, first, count in slices:
        path = Path(staging) / name
        units.append(read_slice(path, QUEUE.dtype, count, first * UNIT_SIZE))
        queue_offsets.append(read_slice(path, np.int64, count, total * UNIT_SIZE + first * 8))
    return np.concatenate(units).astype(QUEUE.dtype), np.concatenate(queue_offsets)


@dataclass(frozen=True, slots=True)
class Faults:
    """What no broker does: queue offsets between others that no record has, or that several have."""

    missing: tuple[int, int, int] | None = None
    """The first such stretch, first and last queue offset, and how many are missing in all."""

    doubled: tuple[int, int] | None = None
    """The first queue offset that several records have, and how many records are too many in all."""

    misplaced: int | None = None
    """A queue offset for which there is no place in a file."""

    @property
    def can_lay(self) -> bool:
        """Whether place holders can stand for what is missing."""
        return self.misplaced is None and (self.missing is None or self.missing[2] <= BLANKS_MAX)


def describe_faults(found: Mapping[str, Faults]) -> str:
    """The first of the faults of queues, and how many there are; empty if there are none. Pure."""
    if not found:
        return ""
    name, first = min(found.items(), key=lambda each: each[1].can_lay)
    if first.misplaced is not None:
        what = f"a record says queue offset {first.misplaced}"
    elif first.missing is not None:
        low, high, _ = first.missing
        what = f"no record has queue offset {low}" + (f" to {high}" if high > low else "")
    else:
        assert first.doubled is not None, "a fault says what it is"
        what = f"several records have queue offset {first.doubled[0]}"
    missing = sum(each.missing[2] for each in found.values() if each.missing is not None)
    doubled = sum(each.doubled[1] for each in found.values() if each.doubled is not None)
    return f"queue {name}: {what} (all queues: {missing} missing, {doubled} doubled)"


def find_faults(queue_offsets: Int64s) -> Faults | None:
    """What is wrong with the queue offsets of a queue's present life, in the order of the log. Pure."""
    first, last = int(queue_offsets.min()), int(queue_offsets.max())
    if first < 0 or last > QUEUE_OFFSET_MAX:
        return Faults(misplaced=first if first < 0 else last)
    if last - first + 1 == len(queue_offsets) and (np.diff(queue_offsets) == 1).all():
        return None
    there, counts = np.unique(queue_offsets, return_counts=True)
    holes, twice = np.flatnonzero(np.diff(there) > 1), np.flatnonzero(counts > 1)
    missing = doubled = None
    if len(holes):
        low, high = int(there[holes[0]]) + 1, int(there[holes[0] + 1]) - 1
        missing = (low, high, last - first + 1 - len(there))
    if len(twice):
        doubled = (int(there[twice[0]]), len(queue_offsets) - len(there))
    return Faults(missing, doubled) if missing or doubled else None


@dataclass(frozen=True, slots=True)
class LaidOut:
    """A queue without gaps."""

    first: int
    """Queue offset of the first unit."""

    units: NDArray[Any]
    """None of them if faults forbid it."""

    messages: int
    """Units that point to a message."""

    replaced: int
    """Records of before the queue began again at 0: their topic was deleted."""

    faults: Faults | None = None


def lay_out(units: NDArray[Any], queue_offsets: Int64s, *, floor: int) -> LaidOut:
    """Put units where their queue offsets say; `floor` is where an empty queue goes on. Pure.

    A queue that begins at 0 again was deleted before: what was before that is no part of it any more.
    """
    if not len(units):
        if floor <= 0:
            return LaidOut(0, units, 0, 0)
        last = np.array([(0, 1, 0)], QUEUE.dtype)
        return LaidOut(floor - 1, last, 0, 0)
    again = np.flatnonzero(queue_offsets == 0)
    begin = int(again[-1]) if len(again) else 0
    live, places = units[begin:], queue_offsets[begin:]
    faults = find_faults(places)
    if faults is not None and not faults.can_lay:
        return LaidOut(0, units[:0], 0, begin, faults)
    first, end = int(places.min()), int(places.max()) + 1
    laid = blanks(end - first)
    laid[places - first] = live
    there = int(np.count_nonzero(laid["size"] != BLANK_SIZE))
    return LaidOut(first, laid, there, begin, faults)


def blanks(count: int) -> NDArray[Any]:
    """Units without message."""
    found = np.zeros(count, QUEUE.dtype)
    found["size"] = BLANK_SIZE
    return found


def split_files(first: int, units: NDArray[Any], per_file: int) -> Iterator[tuple[int, NDArray[Any]]]:
    """Files (queue offset of the first unit, units), the first one with blank units before `first`. Pure."""
    base = first // per_file * per_file
    position = 0
    while position < len(units):
        before = first + position - base
        count = min(per_file - before, len(units) - position)
        part = units[position : position + count]
        yield base, np.concatenate((blanks(before), part)).astype(QUEUE.dtype) if before else part
        position += count
        base += per_file


def read_end(
    folder: StoreFolder, queue: QueueFiles, *, below: int = 2**63 - 1, throttle: Throttle | None = None
) -> QueueEnd:
    """The end of a queue of the source, or of its units that point below an offset of the log."""
    for file in reversed(queue.log.files):
        last, count = _last_good(folder, file, below, throttle)
        if last is None:
            continue
        end = file.base // UNIT_SIZE + count
        if last["size"] == BLANK_SIZE:
            return QueueEnd(end, -1, -1)
        return QueueEnd(end, int(last["offset"]), int(last["offset"]) + int(last["size"]))
    return QueueEnd(queue.log.first // UNIT_SIZE, -1, -1)


def _last_good(folder: StoreFolder, file: LogFile, below: int, throttle: Throttle | None) -> tuple[Any, int]:
    """The last unit before the first one that is none, and their count; what lies behind is not read."""
    files, count, last = UnitFiles(folder, QUEUE.dtype, file.path, [file]), 0, None
    begin, end = files.span(file)
    for first in range(begin, end, _UNITS_AT_ONCE):
        units = files.read(first, min(end - first, _UNITS_AT_ONCE))
        if throttle is not None:
            throttle.took(units.nbytes)
        good = is_written(units) & (units["offset"] < below)
        number = len(units) if good.all() else int(np.argmin(good))
        last, count = units[number - 1] if number else last, count + number
        if number < len(units):
            break
    return last, count
