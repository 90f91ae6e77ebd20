"""Where each record goes: new offsets, and what each new file is made of. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from brokerset_formats.dledger import ENTRY_HEAD_SIZE
from brokerset_formats.records import BLANK_SIZE_MIN
from brokerset_spark.json_values import CAMEL
from brokerset_spark.kernels.contract import Int32s, Int64s


class RecordTooLong(Exception):
    """A record of `size` bytes fits no file."""

    def __init__(self, size: int, file_size: int) -> None:
        super().__init__(f"a record of {size} bytes does not fit into files of {file_size}")
        self.size = size


@dataclass(frozen=True, slots=True)
class Piece:
    """Records of one source file that follow each other there, those that are left out between them."""

    source: int
    """Number of the source file."""

    start: int
    """Where the first one's bytes begin, in a DLedger those of its entry."""

    end: int
    """Behind the last one."""

    count: int


@dataclass(slots=True)
class NewFile:
    """A file of the new log."""

    __pydantic_config__: ClassVar = CAMEL

    base: int
    first_index: int
    """Of its first entry in a DLedger."""

    pieces: list[Piece] = field(default_factory=list)
    used: int = 0
    count: int = 0
    closed: bool = False
    """Whether a blank record ends it."""


class Placer:
    """Puts records one behind the other into files of one size.

    A file is closed when the next record would leave fewer than 8 bytes for the blank record.
    """

    def __init__(self, base: int, file_size: int, *, target_head: int) -> None:
        """The head is what stands before a record: 48 bytes in a DLedger, else nothing."""
        assert target_head in (0, ENTRY_HEAD_SIZE)
        assert base % file_size == 0
        self._size, self._target_head = file_size, target_head
        self.files = [NewFile(base, 0)]

    @property
    def end(self) -> int:
        """Offset behind the last record."""
        return self.files[-1].base + self.files[-1].used

    @property
    def count(self) -> int:
        """Records that were placed."""
        return self.files[-1].first_index + self.files[-1].count

    def place(self, source: int, offsets: Int64s, sizes: Int32s, *, source_head: int) -> Int64s:
        """New offsets of the records of a source file, which have such a head there. RecordTooLong."""
        long_sizes = sizes.astype(np.int64) + self._target_head
        ends = np.cumsum(long_sizes)
        found = np.empty(len(sizes), np.int64)
        done = 0
        while done < len(sizes):
            file = self.files[-1]
            before = int(ends[done - 1]) if done else 0
            room = self._size - file.used - BLANK_SIZE_MIN
            until = int(np.searchsorted(ends, before + room, "right"))
            if until > done:
                start = int(offsets[done]) - source_head
                stop = int(offsets[until - 1]) + int(sizes[until - 1])
                file.pieces.append(Piece(source, start, stop, until - done))
                starts = ends[done:until] - long_sizes[done:until] - before
                found[done:until] = file.base + file.used + starts + self._target_head
                file.used += int(ends[until - 1]) - before
                file.count += until - done
                done = until
            elif not file.used:
                raise RecordTooLong(int(sizes[done]), self._size)
            if done < len(sizes):
                file.closed = True
                self.files.append(NewFile(file.base + self._size, file.first_index + file.count))
        return found


@dataclass(slots=True)
class Moves:
    """New offsets of the few records that others name; sorted by the old ones."""

    old: Int64s
    new: Int64s

    @classmethod
    def wanted(cls, offsets: Int64s) -> Moves:
        """For these old offsets, none of them found yet."""
        old = np.unique(offsets)
        return cls(old, np.full(len(old), -1, np.int64))

    def learn(self, offsets: Int64s, placed: Int64s) -> None:
        """Find them among the records of a file, in their order."""
        if not len(offsets):
            return
        low, high = np.searchsorted(self.old, (offsets[0], offsets[-1] + 1))
        asked = self.old[low:high]
        at = np.searchsorted(offsets, asked)
        hit = offsets[np.minimum(at, len(offsets) - 1)] == asked
        self.new[low:high] = np.where(hit, placed[np.minimum(at, len(offsets) - 1)], self.new[low:high])

    def look_up(self, offsets: Int64s) -> Int64s:
        """New offsets; -1 for records that are not in the new log."""
        if not len(self.old):
            return np.full(len(offsets), -1, np.int64)
        at = np.minimum(np.searchsorted(self.old, offsets), len(self.old) - 1)
        return np.where(self.old[at] == offsets, self.new[at], -1)


class EpochStarts:
    """New places of old offsets at which something begins (epochs): of the first record there or behind."""

    def __init__(self, old: Iterator[int] | list[int]) -> None:
        self._open = sorted(set(old))
        self.found: dict[int, int] = {}

    def learn(self, offsets: Int64s, placed: Int64s) -> None:
        """Take the records of a file, in their order."""
        while self._open and len(offsets) and self._open[0] <= int(offsets[-1]):
            at = int(np.searchsorted(offsets, self._open[0]))
            self.found[self._open.pop(0)] = int(placed[at])

    def close(self, end: int) -> None:
        """Behind the last record nothing follows: the rest begins at the end."""
        for old in self._open:
            self.found[old] = end
        self._open = []
