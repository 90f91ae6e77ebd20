"""Index entries against the keys of records, for one piece of the log, in both directions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from brokerset_spark.jobs.dispatch import index_keys
from brokerset_spark.jobs.running import Result
from brokerset_spark.jobs.verify.columns import Columns, Topics
from brokerset_spark.jobs.verify.findings import finding
from brokerset_spark.jobs.verify.index_files import HEADER_SIZE, SLOT_SIZE, UNIT_SIZE, read_units
from brokerset_spark.json_values import CAMEL
from brokerset_spark.kernels import Heads
from brokerset_spark.kernels.contract import Bools, Int64s
from brokerset_spark.stores.folder import StoreFolder
from brokerset_spark.stores.reading import Chunk

SPAN_MAX = 1 << 31
"""Bytes of log that one comparison may cover: offset and hash must fit 63 bits together."""

SAID_MAX = 200
"""Keys or units that one comparison reports one by one."""

_SECONDS_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys of records as the index must have them, in the order of the log."""

    hashes: Int64s
    offset: Int64s
    time: Int64s
    required: Bools

    @classmethod
    def joined(cls, parts: list[Self]) -> Self:
        """One behind the other."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__slots__))


def keys_of(chunk: Chunk, heads: Heads, columns: Columns, topics: Topics) -> Keys:
    """Of a chunk's records."""
    found = index_keys(chunk.data, heads, topics.names, columns.topic)
    return Keys(found.hashes, columns.offset[found.rows], columns.time[found.rows], found.required)


@dataclass(frozen=True, slots=True)
class IndexFile:
    """What `index_files.check_index_file` reported about one file."""

    __pydantic_config__: ClassVar = CAMEL

    path: str
    slots: int
    next: int
    begin_time: int
    begin: int
    end: int
    bad: frozenset[int] = field(default=frozenset())


def _lower_bound(folder: StoreFolder, file: IndexFile, offset: int) -> int:
    """Number of the first unit whose offset is not below."""
    low, high = 1, file.next
    while low < high:
        middle = (low + high) // 2
        probe = middle
        while probe in file.bad and probe + 1 < high:
            probe += 1
        if probe in file.bad:  # all of the upper half is: go on below
            high = middle
            continue
        if int(read_units(folder, file.path, file.slots, probe, 1)[0]["offset"]) < offset:
            low = probe + 1
        else:
            high = middle
    return low


@dataclass(slots=True)
class _Found:
    """Units of one file whose offsets lie in the piece."""

    file: IndexFile
    numbers: Int64s
    units: NDArray[np.void]


def _units_between(folder: StoreFolder, files: list[IndexFile], begin: int, end: int) -> list[_Found]:
    found = []
    for file in files:
        if file.next <= 1 or file.end < begin or file.begin >= end:
            continue
        first, last = _lower_bound(folder, file, begin), _lower_bound(folder, file, end)
        units = read_units(folder, file.path, file.slots, first, last - first)
        numbers = np.arange(first, first + len(units))
        fits = (units["offset"] >= begin) & (units["offset"] < end) & (units["hash"] >= 0)
        if file.bad:
            fits &= ~np.isin(numbers, np.array(sorted(file.bad), np.int64))
        found.append(_Found(file, numbers[fits], units[fits]))
    return found


def compare_keys(
    folder: StoreFolder,
    files: list[IndexFile],
    keys: Keys,
    offsets: Int64s,
    begin: int,
    end: int,
    log_path: str,
) -> Iterator[Result]:
    """Findings for the records of `[begin, end)`; `offsets` are those of all records in it, sorted."""
    found = _units_between(folder, files, begin, end)
    wanted = (keys.offset - begin) << 31 | keys.hashes
    have = [
        (each.units["offset"].astype(np.int64) - begin) << 31 | each.units["hash"].astype(np.int64)
        for each in found
    ]
    all_have = np.unique(np.concatenate(have)) if have else np.empty(0, np.int64)
    missing = ~np.isin(wanted, all_have) & keys.required
    if missing.any():
        yield from _report_missing(files, keys, missing, log_path)
    unique, first = np.unique(wanted, return_index=True)
    for each, codes in zip(found, have, strict=True):
        at = np.searchsorted(unique, codes)
        matched = (
            (at < len(unique)) & (unique[np.minimum(at, len(unique) - 1)] == codes)
            if len(unique)
            else np.zeros(len(codes), np.bool_)
        )
        stray = np.flatnonzero(~matched)
        if len(stray) > SAID_MAX:
            text = (
                f"{len(stray)} units, the last one unit {int(each.numbers[stray[-1]])}, "
                f"have keys that no record has"
            )
            yield _about(each.file, "index-dangling", int(each.numbers[stray[0]]), text)
            stray = stray[:0]
        for number in stray.tolist():
            offset = int(each.units["offset"][number])
            place = np.searchsorted(offsets, offset)
            begins = place < len(offsets) and int(offsets[place]) == offset
            what = "the record there has no such key" if begins else "no record begins there"
            unit = int(each.numbers[number])
            yield _about(each.file, "index-dangling", unit, f"unit {unit} points to offset {offset}: {what}")
        times = keys.time[first[at[matched]]] if matched.any() else np.empty(0, np.int64)
        begin_time = each.file.begin_time
        seconds = (
            np.clip((times - begin_time) // 1000, 0, _SECONDS_MAX)
            if begin_time > 0
            else np.zeros(len(times), np.int64)
        )
        stored = each.units["seconds"][matched]
        for number in np.flatnonzero(stored != seconds)[:SAID_MAX].tolist():
            unit = int(each.numbers[matched][number])
            text = (
                f"unit {unit} says {int(stored[number])} s, its record "
                f"{int(seconds[number])} s after the file's begin"
            )
            yield _about(each.file, "index-time", unit, text)


def _about(file: IndexFile, code: str, unit: int, text: str) -> Result:
    return finding(code, text, file.path, HEADER_SIZE + file.slots * SLOT_SIZE + unit * UNIT_SIZE)


def _report_missing(
    files: list[IndexFile], keys: Keys, missing: NDArray[np.bool_], log_path: str
) -> Iterator[Result]:
    offset = keys.offset[missing]
    hashes = keys.hashes[missing]
    covered = np.zeros(len(offset), np.bool_)
    for file in files:
        if file.next > 1:
            covered |= (offset >= file.begin) & (offset <= file.end)
    bare = offset[~covered]
    if len(bare):
        yield Result({"kind": "uncovered", "first": int(bare[0]), "last": int(bare[-1]), "keys": len(bare)})
    lost = offset[covered]
    if len(lost) > SAID_MAX:
        text = (
            f"{len(lost)} keys of the records from here on are in no index file: they are not found by them"
        )
        yield finding("index-missing", text, log_path, int(lost[0]), int(lost[-1]))
        return
    for one, key in zip(lost.tolist(), hashes[covered].tolist(), strict=True):
        text = f"a key of the record (hash {key}) is in no index file: the message is not found by it"
        yield finding("index-missing", text, log_path, one)
