"""Fourth task: consume queues, from the units that were read back from the new log.

A queue offset never changes. So a queue whose first messages are gone begins with blank units, and a queue
without
any message ends with a unit that points before the log, so that its numbers go on where they were.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brokerset_formats.queue_units import BLANK_SIZE, UNIT_SIZE
from brokerset_spark.jobs.migrate.checking import UNIT
from brokerset_spark.jobs.migrate.cloning import described, read_slice, set_mtime, write_file
from brokerset_spark.jobs.running import Result, Row
from brokerset_spark.kernels.contract import Int64s
from brokerset_spark.stores.folder import StoreFolder
from brokerset_spark.stores.layout import QUEUES, LogFile, QueueFiles
from brokerset_spark.stores.reading import Throttle

TASK: Final = "brokerset_spark.jobs.migrate.queues:build"
QUEUE_FILE_SIZE: Final = 300_000 * UNIT_SIZE
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
            [queue["topic"], queue["queueId"], first, end, laid.messages, laid.missing, laid.replaced]
        )
    yield Result({"key": row["key"], "queues": ends, "bytesRead": 0, "files": files})


def _collect(staging: str, slices: list[Any]) -> tuple[NDArray[Any], Int64s]:
    """Units and queue offsets of one queue, in the order of the log: [file, units in it, first, count]."""
    units, queue_offsets = [np.empty(0, UNIT)], [np.empty(0, np.int64)]
    for name, total, first, count in slices:
        path = Path(staging) / name
        units.append(read_slice(path, UNIT, count, first * UNIT_SIZE))
        queue_offsets.append(read_slice(path, np.int64, count, total * UNIT_SIZE + first * 8))
    return np.concatenate(units).astype(UNIT), np.concatenate(queue_offsets)


@dataclass(frozen=True, slots=True)
class LaidOut:
    """A queue without gaps."""

    first: int
    """Queue offset of the first unit."""

    units: NDArray[Any]
    messages: int
    """Units that point to a message."""

    missing: int
    """Queue offsets between the first and the last message that no record has."""

    replaced: int
    """Records whose queue offset a later one has: their topic was deleted, or their queue cut."""


def lay_out(units: NDArray[Any], queue_offsets: Int64s, *, floor: int) -> LaidOut:
    """Put units where their queue offsets say; `floor` is where an empty queue goes on. Pure.

    A queue that begins at 0 again was deleted before: what was before that is no part of it any more.
    """
    if not len(units):
        if floor <= 0:
            return LaidOut(0, units, 0, 0, 0)
        last = np.array([(0, 1, 0)], UNIT)
        return LaidOut(floor - 1, last, 0, 0, 0)
    again = np.flatnonzero(queue_offsets == 0)
    begin = int(again[-1]) if len(again) else 0
    live, places = units[begin:], queue_offsets[begin:]
    first, end = int(places.min()), int(places.max()) + 1
    laid = blanks(end - first)
    laid[places - first] = live
    there = int(np.count_nonzero(laid["size"] != BLANK_SIZE))
    return LaidOut(first, laid, there, end - first - there, len(units) - there)


def blanks(count: int) -> NDArray[Any]:
    """Units without message."""
    found = np.zeros(count, UNIT)
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
        yield base, np.concatenate((blanks(before), part)).astype(UNIT) if before else part
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
    total, count, last = file.size // UNIT_SIZE, 0, None
    while count < total:
        buffer = np.empty(min(total - count, _UNITS_AT_ONCE) * UNIT_SIZE, np.uint8)
        read = folder.read_into(file.path, count * UNIT_SIZE, buffer.data) // UNIT_SIZE
        if throttle is not None:
            throttle.took(read * UNIT_SIZE)
        units = buffer[: read * UNIT_SIZE].view(UNIT)
        good = (units["size"] > 0) & (units["offset"] >= 0) & (units["offset"] < below)
        number = read if good.all() else int(np.argmin(good))
        last = units[number - 1] if number else last
        count += number
        if number < _UNITS_AT_ONCE:
            break
    return last, count
