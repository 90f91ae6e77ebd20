"""Units of one size in files that are named by their first byte: one description of each kind, one reader.

A unit has a number; its bytes lie at `number * size` of its log of files, and never in two of them. Consume
queues, batch queues and the index of a DLedger are such logs.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from brokerset_formats import dledger, index_file, queue_units
from brokerset_formats.queue_units import BLANK_SIZE, first_that
from brokerset_spark.kernels.contract import Bools
from brokerset_spark.stores.folder import LocalFolder, StoreFolder
from brokerset_spark.stores.layout import QUEUES, LogFile, QueueFiles, read_log

Units = NDArray[np.void]

BLOCK_BYTES: Final = 65_536 * queue_units.UNIT_SIZE
"""Of a file, that are read at once."""

ZERO_BYTES: Final = 4096 * queue_units.UNIT_SIZE
"""Bytes compared together with zero: files are preallocated, and that of a small queue is mostly zeros."""

_LEGAL: Final = re.compile(r"[^/\x00]+")


def _dtype(fields: str, size: int) -> np.dtype[np.void]:
    found = np.dtype([(name, f">i{width}") for name, width in (each.split(":") for each in fields.split())])
    assert found.itemsize == size
    return found


@dataclass(frozen=True, slots=True)
class UnitKind:
    """A kind of queue: where its files are, and what a unit holds."""

    folder: str
    """Below it, a folder for each topic and in that one for each queue."""

    name: str
    """For people."""

    dtype: np.dtype[np.void]

    @property
    def size(self) -> int:
        """Bytes of a unit."""
        return self.dtype.itemsize


QUEUE: Final = UnitKind(QUEUES, "queue", _dtype("offset:8 size:4 tags:8", queue_units.UNIT_SIZE))
"""One unit for each queue offset, which is its number."""

BATCH: Final = UnitKind(
    "batchconsumequeue",
    "batch queue",
    _dtype(
        "offset:8 size:4 tags:8 time:8 base:8 count:2 compacted:4 reserved:4", queue_units.BATCH_UNIT_SIZE
    ),
)
"""One unit for each record of a topic with `queue.type=BatchCQ`, an inner batch or a single message.

Units follow each other in the order of the log, without a place for each queue offset: `base` is the queue
offset with which the batch begins, `count` how many messages it has.
"""

LEDGER_UNIT: Final = _dtype("magic:4 position:8 size:4 index:8 term:8", dledger.INDEX_UNIT_SIZE)
"""Of an entry of a DLedger; its number is the entry's index."""

INDEX_UNIT: Final = _dtype("hash:4 offset:8 seconds:4 previous:4", index_file.UNIT.size)
"""Of a key, in a file of the index; those files have a header and slots before their units."""


def is_written(units: Units | np.void) -> Bools:
    """Which of them point to a record, or are place holders before the first message of a queue."""
    found: Bools = (units["size"] > 0) & (units["offset"] >= 0)
    return found


def is_blank(units: Units | np.void) -> Bools:
    """Which are place holders."""
    found: Bools = (units["offset"] == 0) & (units["size"] == BLANK_SIZE)
    return found


def queues_of(folder: StoreFolder, kind: UnitKind) -> list[tuple[str, int]]:
    """Topic and id of all queues of a kind."""
    return [
        (topic, int(name))
        for topic in folder.folders(kind.folder)
        for name in folder.folders(f"{kind.folder}/{topic}")
        if name.isdigit()
    ]


class UnitFiles:
    """The units of one queue, or of another log of units."""

    def __init__(
        self, folder: StoreFolder, dtype: np.dtype[np.void], path: str, files: Sequence[LogFile]
    ) -> None:
        self._folder, self._dtype, self.path, self.files = folder, dtype, path, files

    def span(self, file: LogFile) -> tuple[int, int]:
        """Numbers `[first, end)` of the units in a file."""
        first = file.base // self._dtype.itemsize
        return first, first + file.size // self._dtype.itemsize

    def path_of(self, number: int) -> str:
        """The file that has this unit, or must have it."""
        for each in reversed(self.files):
            if self.span(each)[0] <= number:
                return each.path
        return self.files[0].path if self.files else self.path

    def read(self, first: int, count: int) -> Units:
        """Units from number `first` on; zeros where there is no file."""
        found, size = np.zeros(count, self._dtype), self._dtype.itemsize
        raw = found.view(np.uint8).data
        for each in self.files:
            begin, end = self.span(each)
            low, high = max(first, begin), min(first + count, end)
            if low < high:
                target = raw[(low - first) * size : (high - first) * size]
                self._folder.read_into(each.path, (low - begin) * size, target)
        return found

    def blocks(self, block_bytes: int | None = None) -> Iterator[tuple[int, Units]]:
        """All units piece by piece, with the number of the first; holes and most other zeros are left out."""
        most = max((block_bytes or BLOCK_BYTES) // self._dtype.itemsize, 1)
        for file in self.files:
            for begin, end in self.written(file):
                for first in range(begin, end, most):
                    units = _without_tail(self.read(first, min(most, end - first)))
                    if len(units):
                        yield first, units

    def written(self, file: LogFile) -> list[tuple[int, int]]:
        """Numbers `[first, end)` outside the file's holes, ascending: in a hole all units are zeros.

        Of a file that is not on this machine, or on a file system that knows no holes, everything.
        """
        number, last = self.span(file)
        if not isinstance(self._folder, LocalFolder):
            return [(number, last)]
        size = self._dtype.itemsize
        descriptor = os.open(self._folder.root / file.path, os.O_RDONLY)
        try:
            spans = _data_spans(descriptor, (last - number) * size)
        finally:
            os.close(descriptor)
        found: list[tuple[int, int]] = []
        for begin, end in spans:
            first = number + begin // size
            if found:  # both spans may have a part of one unit
                first = max(first, found[-1][1])
            if first < number - (-end // size):
                found.append((first, number - (-end // size)))
        return found

    def search(self, holds: Callable[[np.void], bool]) -> int:
        """The first unit for which something holds, by halves: it must hold for all that follow."""
        if not self.files:
            return 0
        low, high = self.span(self.files[0])[0], self.span(self.files[-1])[1]
        return first_that(low, high, lambda number: holds(self.read(number, 1)[0]))

    def pointing(self, first_offset: int) -> tuple[int, int]:
        """Numbers `[first, end)` of the units whose records lie at or behind an offset of the log, by halves.

        In a queue, blank units come first, then those with ascending offsets, then zeros.
        """
        end = self.search(lambda unit: not is_written(unit))
        first = self.search(
            lambda unit: not is_written(unit) or (not is_blank(unit) and bool(unit["offset"] >= first_offset))
        )
        return min(first, end), end

    def first_written(self) -> tuple[int, np.void] | None:
        """The number of the first unit that was written, and the unit."""
        for first, units in self.blocks():
            at = int(np.argmax(units["size"] > 0))
            if units["size"][at] > 0:
                return first + at, units[at]
        return None

    def last_written(self) -> tuple[int, np.void] | None:
        """The number of the last unit that was written, found by halves in its file, and the unit."""
        for file in reversed(self.files):
            first, end = self.span(file)
            behind = first_that(first, end, lambda number: not self.read(number, 1)[0]["size"] > 0)
            if behind > first:
                return behind - 1, self.read(behind - 1, 1)[0]
        return None


def units_of(folder: StoreFolder, queue: QueueFiles) -> UnitFiles:
    """The units of a consume queue whose files are known."""
    return UnitFiles(folder, QUEUE.dtype, f"{QUEUES}/{queue.topic}/{queue.queue_id}", queue.log.files)


class QueueReader:
    """The units of any queue of one kind; lists of files are read once."""

    def __init__(self, folder: StoreFolder, kind: UnitKind) -> None:
        self.kind = kind
        self._folder = folder
        self._known: dict[tuple[str, int], UnitFiles] = {}

    def of(self, topic: str, queue_id: int) -> UnitFiles:
        """Of one queue; without files if it does not exist, or a damaged record names it."""
        key = (topic, queue_id)
        if key not in self._known:
            path = f"{self.kind.folder}/{topic}/{queue_id}"
            legal = topic not in (".", "..") and _LEGAL.fullmatch(topic) is not None and queue_id >= 0
            files = read_log(self._folder, path).files if legal else ()
            self._known[key] = UnitFiles(self._folder, self.kind.dtype, path, files)
        return self._known[key]


def _without_tail(units: Units) -> Units:
    """The units without most of the zeros behind the last written one; zeros say nothing about a queue."""
    raw = units.view(np.uint8)
    filled = np.flatnonzero(np.maximum.reduceat(raw, np.arange(0, len(raw), ZERO_BYTES)))
    return units[: -(-(int(filled[-1]) + 1) * ZERO_BYTES // units.itemsize)] if len(filled) else units[:0]


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
