"""The second direction: units that no record claims. One task for each queue, after the log has been read."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from brokerset_formats.queue_units import BLANK_SIZE, UNIT_SIZE
from brokerset_spark.jobs.running import Result, Row
from brokerset_spark.jobs.verify.units import UNIT, UnitReader, Units
from brokerset_spark.kernels.contract import Bools, Int64s
from brokerset_spark.stores.opening import open_folder

BLOCK: Final = 65_536
"""Units that are read at once."""

ZERO_BYTES: Final = 4096 * UNIT_SIZE
"""Bytes looked at together for zeros: files are preallocated, and that of a small queue is mostly zeros."""

SINGLE_MAX: Final = 256
"""Runs of unclaimed units that one queue tells one by one."""


def check_queues(row: Row) -> Iterator[Result]:
    """A task: for each queue of `queues` its units against what the log has claimed.

    `claims` are ranges of queue offsets `[first, end)`, in order; `damage` are ranges of the log that could
    not be read; `first` and `end` bound the log.
    """
    folder = open_folder(row["url"])
    try:
        reader = UnitReader(folder)
        for queue in row["queues"]:
            yield from _check_queue(reader, queue, row)
    finally:
        folder.close()


def _inside(values: Int64s, ranges: list[list[int]]) -> Bools:
    """Which values lie in one of these sorted ranges."""
    if not ranges:
        return np.zeros(len(values), np.bool_)
    bounds = np.array(ranges, np.int64)
    at = np.searchsorted(bounds[:, 0], values, side="right") - 1
    inside: Bools = (at >= 0) & (values < bounds[np.maximum(at, 0), 1])
    return inside


def _claimed_from(first: int, count: int, claims: list[list[int]]) -> int:
    """How many of `[first, first + count)` one of these sorted ranges has from `first` on: mostly all."""
    at = bisect_right(claims, first, key=lambda claim: claim[0]) - 1
    return max(0, min(count, claims[at][1] - first)) if at >= 0 else 0


def _check_queue(reader: UnitReader, queue: dict[str, Any], row: Row) -> Iterator[Result]:
    topic, queue_id = queue["topic"], int(queue["queue"])
    claims: list[list[int]] = queue["claims"]
    counts = {"units": 0, "expired": 0, "blank": 0, "damaged": 0}
    runs: list[list[int]] = []  # kind, first, end, offset of the first, size of the first
    begun = False  # whether a unit of a message was seen: place holders behind it are wrong
    for file in reader.files(topic, queue_id):
        for first, last in _blocks(reader.written(file)):
            units = _without_tail(reader.read(topic, queue_id, first, last - first))
            if not len(units):
                continue
            count = len(units)
            claimed_count = _claimed_from(first, count, claims)
            if claimed_count and (units["offset"][:claimed_count] != 0).all():
                counts["units"] += claimed_count
                begun = True
                units, first, count = units[claimed_count:], first + claimed_count, count - claimed_count
                if not count:
                    continue
            numbers = np.arange(first, first + count)
            offset = units["offset"].astype(np.int64)
            size = units["size"].astype(np.int64)
            zero = (offset == 0) & (size == 0) & (units["tags"] == 0)
            claimed = _inside(numbers, claims)
            blank = (offset == 0) & (size == BLANK_SIZE) & ~zero
            expired = ~zero & ~blank & (offset < row["first"]) & (offset >= 0) & (size > 0)
            damaged = ~zero & ~blank & _inside(offset, row["damage"])
            beyond = ~zero & ~blank & (offset >= row["end"]) & (size > 0)
            counts["units"] += int((~zero).sum())
            counts["expired"] += int((expired & ~claimed).sum())
            counts["blank"] += int(blank.sum())
            counts["damaged"] += int((damaged & ~claimed).sum())
            kinds = np.zeros(count, np.int8)
            kinds[~zero & ~blank & ~expired & ~claimed & ~damaged] = 1
            kinds[beyond & ~claimed] = 2
            if row["live"]:
                kinds[beyond & ~claimed] = 0
            real = np.flatnonzero(~zero & ~blank)
            late = blank & ~claimed & (begun | (numbers > numbers[real[0]] if len(real) else False))
            kinds[late] = 3
            kinds[damaged & ~claimed] = 4
            begun = begun or len(real) > 0
            _add_runs(runs, kinds, first, offset, size)
    for kind, begin, end, offset_first, size_first in runs:
        yield Result(
            {
                "kind": "unclaimed",
                "topic": topic,
                "queue": queue_id,
                "file": reader.file_of(topic, queue_id, begin),
                "why": ("", "dangling", "beyond", "blank", "damaged")[kind],
                "first": begin,
                "end": end,
                "offset": offset_first,
                "size": size_first,
            }
        )
    yield Result({"kind": "queue", "topic": topic, "queue": queue_id, **counts})


def _blocks(ranges: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The ranges in pieces of at most `BLOCK`."""
    for begin, end in ranges:
        for first in range(begin, end, BLOCK):
            yield first, min(first + BLOCK, end)


def _without_tail(units: Units) -> Units:
    """The units without most of the zeros behind the last written one; zeros say nothing about a queue."""
    raw = units.view(np.uint8)
    filled = np.flatnonzero(np.maximum.reduceat(raw, np.arange(0, len(raw), ZERO_BYTES)))
    return units[: (int(filled[-1]) + 1) * ZERO_BYTES // UNIT_SIZE] if len(filled) else units[:0]


def _add_runs(
    runs: list[list[int]], kinds: np.ndarray[Any, Any], first: int, offset: Int64s, size: Int64s
) -> None:
    if not kinds.any():
        return
    edges = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), len(kinds)]
    for begin, end in itertools.pairwise(edges):
        kind = int(kinds[begin])
        if kind == 0:
            continue
        if runs and runs[-1][0] == kind and (runs[-1][2] == first + begin or len(runs) >= SINGLE_MAX):
            runs[-1][2] = first + end
            continue
        runs.append([kind, first + begin, first + end, int(offset[begin]), int(size[begin])])


def last_unit(reader: UnitReader, topic: str, queue_id: int) -> tuple[int, int, int] | None:
    """Queue offset, offset and size of the last unit of a queue, found by halving; None if there is none."""
    for file in reversed(reader.files(topic, queue_id)):
        low, high = file.first, file.end  # units below `low` are there, from `high` on they are not
        while low < high:
            middle = (low + high) // 2
            unit = reader.read(topic, queue_id, middle, 1)[0]
            if unit["size"] > 0:
                low = middle + 1
            else:
                high = middle
        if low > file.first:
            unit = reader.read(topic, queue_id, low - 1, 1)[0]
            if unit["size"] == BLANK_SIZE and unit["offset"] == 0:
                return None
            return low - 1, int(unit["offset"]), int(unit["size"])
    return None


assert UNIT.itemsize == UNIT_SIZE
