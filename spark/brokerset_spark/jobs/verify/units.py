"""Units of consume queues: reading them, and comparing them with the records that must have them."""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brokerset_formats.queue_units import BLANK_SIZE, EXTENSION_ADDRESS_MAX, UNIT_SIZE
from brokerset_spark.jobs.verify.columns import Columns, Topics
from brokerset_spark.jobs.verify.extended_units import ExtendedUnits, extended_findings
from brokerset_spark.kernels import KERNELS, Kernels
from brokerset_spark.kernels.contract import Int32s, Int64s
from brokerset_spark.stores.folder import LocalFolder, StoreFolder
from brokerset_spark.stores.layout import QUEUES

UNIT: Final = np.dtype([("offset", ">i8"), ("size", ">i4"), ("tags", ">i8")])
Units = NDArray[np.void]

_LEGAL: Final = re.compile(r"[^/\x00]+")
_NAME: Final = re.compile(r"\d{20}")

BAD_RUNS_MAX: Final = 64
"""Runs of units that differ, told for one queue by one batch; more are counted in the last one."""


class Bad(IntEnum):
    """How a unit differs from its record."""

    FINE = 0
    MISSING = 1
    BLANK = 2
    OFFSET = 3
    SIZE = 4
    TAGS = 5
    DELIVER_TIME = 6


CODE_OF: Final = {
    Bad.MISSING: "cq-missing",
    Bad.BLANK: "cq-blank",
    Bad.OFFSET: "cq-offset",
    Bad.SIZE: "cq-size",
    Bad.TAGS: "cq-tags",
    Bad.DELIVER_TIME: "cq-deliver-time",
}


@dataclass(frozen=True, slots=True)
class UnitFile:
    """One file of a queue; `first` and `end` are queue offsets."""

    path: str
    first: int
    end: int


def legal_topic(name: str) -> bool:
    """Whether a topic, perhaps read from a damaged record, can be a folder's name."""
    return name not in (".", "..") and _LEGAL.fullmatch(name) is not None


def topic_text(name: bytes) -> str:
    """A topic for reports; damaged bytes are escaped."""
    return name.decode(errors="backslashreplace")


class UnitReader:
    """Units of any queue of a store; lists of files are read once."""

    def __init__(self, folder: StoreFolder) -> None:
        self._folder = folder
        self._files: dict[tuple[str, int], list[UnitFile]] = {}
        self.extended = ExtendedUnits(folder)

    def files(self, topic: str, queue_id: int) -> list[UnitFile]:
        """The files of a queue in their order; none if there is no such queue."""
        key = (topic, queue_id)
        if key not in self._files:
            found = []
            if legal_topic(topic) and queue_id >= 0:
                for facts in self._folder.files(f"{QUEUES}/{topic}/{queue_id}"):
                    name = facts.path.rpartition("/")[2]
                    if _NAME.fullmatch(name):
                        first = int(name) // UNIT_SIZE
                        found.append(UnitFile(facts.path, first, first + facts.size // UNIT_SIZE))
            self._files[key] = found
        return self._files[key]

    def file_of(self, topic: str, queue_id: int, queue_offset: int) -> str:
        """Path of the file that has this unit, or must have it."""
        files = self.files(topic, queue_id)
        for each in reversed(files):
            if each.first <= queue_offset:
                return each.path
        return files[0].path if files else f"{QUEUES}/{topic}/{queue_id}"

    def written(self, file: UnitFile) -> list[tuple[int, int]]:
        """Queue offsets `[first, end)` outside the file's holes, ascending: in a hole all units are zeros.

        Of a file that is not on this machine, or on a file system that knows no holes, everything.
        """
        if not isinstance(self._folder, LocalFolder):
            return [(file.first, file.end)]
        descriptor = os.open(self._folder.root / file.path, os.O_RDONLY)
        try:
            spans = _data_spans(descriptor, (file.end - file.first) * UNIT_SIZE)
        finally:
            os.close(descriptor)
        found: list[tuple[int, int]] = []
        for begin, end in spans:
            first, last = file.first + begin // UNIT_SIZE, file.first - (-end // UNIT_SIZE)
            if found and first < found[-1][1]:  # both spans have a part of one unit
                first = found[-1][1]
            if first < last:
                found.append((first, last))
        return found

    def read(self, topic: str, queue_id: int, first: int, count: int) -> Units:
        """Units from queue offset `first` on; zeros where there is no file."""
        found = np.zeros(count, UNIT)
        raw = found.view(np.uint8).data
        for each in self.files(topic, queue_id):
            begin, end = max(first, each.first), min(first + count, each.end)
            if begin < end:
                target = raw[(begin - first) * UNIT_SIZE : (end - first) * UNIT_SIZE]
                self._folder.read_into(each.path, (begin - each.first) * UNIT_SIZE, target)
        return found


def _data_spans(descriptor: int, size: int) -> list[tuple[int, int]]:
    """Bytes `[begin, end)` below `size` that lie outside holes, ascending."""
    found: list[tuple[int, int]] = []
    at = 0
    while at < size:
        try:
            begin = os.lseek(descriptor, at, os.SEEK_DATA)
            end = os.lseek(descriptor, begin, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                return found
            if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
                return [*found, (at, size)]
            raise
        if begin >= size:
            return found
        found.append((begin, min(end, size)))
        at = end
    return found


def compare(
    units: Units, offset: Int64s, size: Int64s, tags: Int64s, delayed: NDArray[np.bool_]
) -> NDArray[np.int8]:
    """`Bad` for each unit; extended units (`consumequeue_ext`) are not compared by tags."""
    found = np.zeros(len(units), np.int8)
    extended = units["tags"] <= EXTENSION_ADDRESS_MAX
    differ = (units["tags"] != tags) & ~extended
    found[differ] = Bad.TAGS
    found[differ & delayed] = Bad.DELIVER_TIME
    found[units["size"] != size] = Bad.SIZE
    found[units["offset"] != offset] = Bad.OFFSET
    found[(units["offset"] == 0) & (units["size"] == BLANK_SIZE)] = Bad.BLANK
    found[(units["offset"] == 0) & (units["size"] == 0)] = Bad.MISSING
    return found


def queue_runs(
    columns: Columns,
    topics: Topics,
    reader: UnitReader,
    wanted: frozenset[str],
    kernels: Kernels = KERNELS,
) -> list[dict[str, Any]]:
    """For each queue the runs of following queue offsets, and where their units differ.

    A run is a row: queue, first queue offset, count, offset of the first and the last record, and under
    `bad` the differences: kind, queue offset, count, offset of the record, offset and size in the unit.
    """
    chosen = np.flatnonzero(columns.queued)
    if len(chosen) == 0:
        return []
    keys = _queue_keys(columns.topic[chosen], columns.queue_id[chosen])
    order = np.argsort(keys, kind="stable")
    chosen, keys = chosen[order], keys[order]
    steps = np.diff(columns.queue_offset[chosen]) != 1
    edges = np.flatnonzero(steps | (keys[1:] != keys[:-1])) + 1
    rows = []
    for run in np.split(chosen, edges):
        topic = topic_text(topics.names[int(columns.topic[run[0]])])
        if wanted and topic not in wanted:
            continue
        queue_id, first = int(columns.queue_id[run[0]]), int(columns.queue_offset[run[0]])
        row: dict[str, Any] = {
            "kind": "run",
            "topic": topic,
            "queue": queue_id,
            "first": first,
            "count": len(run),
            "begin": int(columns.offset[run[0]]),
            "last": int(columns.offset[run[-1]]),
            "bad": [],
        }
        rows.append(row)
        if not reader.files(topic, queue_id):
            row["absent"] = True
            continue
        if first < 0:
            row["bad"] = [[int(Bad.MISSING), first, len(run), int(columns.offset[run[0]]), 0, 0]]
            continue
        units = reader.read(topic, queue_id, first, len(run))
        if _all_fit(units, run, columns, kernels):
            continue
        offset = columns.offset[run]
        kinds = compare(
            units, offset, columns.size[run].astype(np.int64), columns.tags_code[run], columns.delayed[run]
        )
        rows += extended_findings(reader.extended, row, run, columns, units["tags"], kinds, reader.file_of)
        row["bad"] = _bad_runs(kinds, first, offset, units)
    return rows


def _all_fit(units: Units, run: Int64s, columns: Columns, kernels: Kernels) -> bool:
    """Whether all units are what their records say, and none is an extended one: so it is nearly always."""
    raw, least = units.view(np.uint8), EXTENSION_ADDRESS_MAX + 1
    fitting = kernels.count_fitting(raw, run, columns.offset, columns.size, columns.tags_code, least)
    return fitting == len(run)


def _queue_keys(topics: Int32s, queue_ids: Int32s) -> NDArray[Any]:
    """A number for each record's queue, of 16 bits if they suffice: numpy sorts those by counting."""
    width = int(queue_ids.max()) + 1
    if queue_ids.min() >= 0 and (int(topics.max()) + 1) * width <= 1 << 16:
        return (topics.astype(np.int64) * width + queue_ids).astype(np.uint16)
    return topics.astype(np.int64) << 32 | queue_ids.view(np.uint32).astype(np.int64)


def _bad_runs(kinds: NDArray[np.int8], first: int, offset: Int64s, units: Units) -> list[list[int]]:
    if not kinds.any():
        return []
    edges = np.flatnonzero(np.diff(kinds)) + 1
    starts = [0, *edges.tolist()]
    ends = [*edges.tolist(), len(kinds)]
    found: list[list[int]] = []
    for begin, end in zip(starts, ends, strict=True):
        kind = int(kinds[begin])
        if kind == 0:
            continue
        if len(found) >= BAD_RUNS_MAX:
            found[-1][2] += end - begin
            continue
        single = kind in (Bad.MISSING, Bad.BLANK)
        for at in (begin,) if single else range(begin, min(end, begin + BAD_RUNS_MAX - len(found))):
            count = end - begin if single else 1
            unit = units[at]
            found.append([kind, first + at, count, int(offset[at]), int(unit["offset"]), int(unit["size"])])
    return found
