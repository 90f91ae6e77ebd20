"""Fifth task: key index files, whole arrays at a time. Format: `brokerset_formats.index_file`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brokerset_formats.index_file import SLOTS_DEFAULT, UNITS_DEFAULT, IndexHeader, file_size
from brokerset_spark.jobs.migrate.checking import KEY
from brokerset_spark.jobs.migrate.cloning import described, read_slice, set_mtime, write_file
from brokerset_spark.jobs.running import Result, Row
from brokerset_spark.stores.layout import INDEX
from brokerset_spark.stores.reading import Throttle
from brokerset_spark.stores.units import INDEX_UNIT

TASK: Final = "brokerset_spark.jobs.migrate.indexes:build"


def build(row: Row) -> Iterator[Result]:
    """Write one index file of the keys in some slices of scratch files: [file, first, count]."""
    throttle = Throttle(row["rate"])
    parts = [
        read_slice(Path(row["staging"]) / name, KEY, count, first * KEY.itemsize)
        for name, first, count in row["slices"]
    ]
    keys = np.concatenate(parts)
    throttle.took(keys.nbytes)
    header, slots, entries = index_arrays(keys, row["slots"])
    name = index_name(header.begin_timestamp, row["number"])
    path = Path(row["staging"]) / "store" / INDEX / name
    empty = np.zeros(INDEX_UNIT.itemsize, np.uint8)  # number 0 is never used
    write_file(path, [header.encode(), slots, empty, entries], size=file_size(row["slots"], row["units"]))
    set_mtime(path, header.end_timestamp)
    files = [described(row["staging"], path, throttle=throttle)]
    yield Result({"key": row["key"], "bytesRead": keys.nbytes, "files": files})


def index_arrays(keys: NDArray[Any], slot_count: int) -> tuple[IndexHeader, NDArray[Any], NDArray[Any]]:
    """Header, slots and units (from number 1) of a file with these keys. Pure."""
    slot = keys["hash"] % slot_count
    order = np.argsort(slot, kind="stable")
    sorted_slots = slot[order]
    follows = np.concatenate(([False], sorted_slots[1:] == sorted_slots[:-1]))
    previous = np.zeros(len(keys), np.int32)
    before = np.concatenate(([0], order[:-1]))
    previous[order[follows]] = before[follows] + 1
    slots = np.zeros(slot_count, ">i4")
    last = np.flatnonzero(np.concatenate((sorted_slots[1:] != sorted_slots[:-1], [True])))
    slots[sorted_slots[last]] = order[last] + 1
    entries = np.empty(len(keys), INDEX_UNIT)
    begin = int(keys["stored"][0])
    entries["hash"], entries["offset"], entries["previous"] = keys["hash"], keys["offset"], previous
    entries["seconds"] = np.clip((keys["stored"] - begin) // 1000, 0, 2**31 - 1)
    header = IndexHeader(
        begin_timestamp=begin,
        end_timestamp=int(keys["stored"][-1]),
        begin_offset=int(keys["offset"][0]),
        end_offset=int(keys["offset"][-1]),
        slots_used=len(last),
        next_unit=len(keys) + 1,
    )
    return header, slots, entries


def index_name(begin_ms: int, number: int) -> str:
    """When the file begins, in local time as brokers name them, to the millisecond; `number` keeps names
    apart."""
    moment = datetime.fromtimestamp((begin_ms + number) / 1000).astimezone()
    return moment.strftime("%Y%m%d%H%M%S") + f"{(begin_ms + number) % 1000:03d}"


def cut_slices(counts: Sequence[tuple[str, int]], per_file: int) -> list[list[list[Any]]]:
    """The slices ([file, first, count]) of each index file, from files of so many keys. Pure."""
    found: list[list[list[Any]]] = []
    room = 0
    for name, total in counts:
        first = 0
        while first < total:
            if room == 0:
                found.append([])
                room = per_file
            count = min(room, total - first)
            found[-1].append([name, first, count])
            first, room = first + count, room - count
    return found


def find_sizes(sizes: Sequence[int]) -> tuple[int, int] | None:
    """Slots and units of files of these sizes; None if they do not tell.

    Only their sum is in the size. Everybody seems to keep RocketMQ's proportion: four units for each slot.
    """
    if not sizes:
        return SLOTS_DEFAULT, UNITS_DEFAULT
    size = sizes[0]
    slots = (size - 40) // 84
    return (slots, 4 * slots) if slots > 0 and file_size(slots, 4 * slots) == size else None
