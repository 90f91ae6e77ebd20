"""Reading a range of a log, piece by piece.

Ranges may be cut anywhere. A range `[start, end)` of a file owns the records from the first *sure* record
at or behind `start` to the first sure record at or behind `end`; both are found by `searching.find_start`,
which gives the same answer to everyone who asks. So neighbours meet exactly, whatever is damaged between
them: what the one behind cannot be sure of, the one before walks into.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np

from brokerset_formats.dledger import ENTRY_HEAD_SIZE
from brokerset_formats.records import BLANK_SIZE_MIN
from brokerset_spark.kernels import KERNELS, Stop
from brokerset_spark.kernels.contract import Bytes, Int32s, Int64s
from brokerset_spark.stores.folder import LocalFolder, StoreFolder
from brokerset_spark.stores.layout import Log, LogFile
from brokerset_spark.stores.searching import RECORD_MAX, Range, declared_size, find_start, find_whole

PIECE: Final = 4 << 20
"""Bytes that are read at once."""

_PIECE_MIN: Final = 64
"""Enough for what tells the size of a record."""

THROTTLE_BURST_SECONDS: Final = 1.0
"""How much unused rate a reader may save up."""

__all__ = [
    "PIECE", "RECORD_MAX", "Chunk", "Outcome", "Range", "Throttle", "damaged_ranges", "gaps", "read_range",
    "split",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records in a row, and their bytes. Valid until the next one is asked for: the buffer is used again."""

    data: Bytes
    base: int
    """Offset of the first byte of `data`."""

    starts: Int64s
    """Position in `data` of each record (in a DLedger: of the record inside its entry)."""

    sizes: Int32s
    indexes: Int64s | None = None
    """Of the entries, in a DLedger; as many as records."""

    terms: Int64s | None = None
    begin: int = 0
    end: int = 0
    """Offsets of all that was walked for this chunk, entries without message included."""

    offsets: Int64s | None = None
    """Of the records, where `data` is not a stretch of the log."""


@dataclass(slots=True)
class Outcome:
    """What became of a range; complete when the reader has ended."""

    begin: int
    """Offset of the first record; where the next range begins if this one has none."""

    end: int
    """Offset behind the last whole record."""

    stop: Stop = Stop.RANGE_END
    """`RANGE_END`: all records of the range were read. `BLANK`: and the file ends there. `SHORT`: the range's
    `bound` lies inside a record. `EMPTY` or one of `PROBLEMS`: there is no record at `end`."""

    skipped: list[tuple[int, int, Stop]] = field(default_factory=list)
    """Damaged ranges that were passed over: begin, end, why. Only with `resync`."""

    found: bool = False
    """Whether a record (or an entry without message) of the range was read."""


class Throttle:
    """Keeps reading below a rate, so that a serving broker is not hurt."""

    def __init__(
        self,
        bytes_per_second: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """No limit with 0."""
        self._rate = bytes_per_second
        self._clock, self._sleep = clock, sleep
        self._free_at = clock()

    def took(self, count: int) -> None:
        """Wait until so many more bytes are within the rate."""
        if self._rate <= 0:
            return
        now = self._clock()
        self._free_at = max(self._free_at, now - THROTTLE_BURST_SECONDS) + count / self._rate
        if self._free_at > now:
            self._sleep(self._free_at - now)


def split(
    files: tuple[LogFile, ...],
    size: int,
    *,
    entries: bool = False,
    bound: int = 2**63 - 1,
    start: int = 0,
    end: int = 2**63 - 1,
    exact_bound: bool = False,
) -> list[Range]:
    """Ranges of at most `size` bytes that cover what begins in `[start, end)`; nothing is read behind
    `bound`."""
    found = []
    for each in files:
        begin, until = max(each.base, start), min(each.end, bound, end)
        while begin < until:
            stop = min(begin + size, until)
            found.append(
                Range(each.path, each.base, each.size, begin, stop, entries, bound, exact_bound=exact_bound)
            )
            begin = stop
    return found


def gaps(log: Log, start: int, end: int) -> tuple[tuple[str, int, int], ...]:
    """Ranges of `[start, end)` that no file of the log holds: path of the file before, begin, end."""
    found = []
    for before, after in pairwise(log.files):
        begin, until = max(before.end, start), min(after.base, end)
        if begin < until:
            found.append((before.path, begin, until))
    return tuple(found)


class _Window:
    """The bytes of a file from some offset on, in a buffer that is used again."""

    def __init__(
        self, folder: StoreFolder, wanted: Range, piece: int, throttle: Throttle | None, drop_cache: bool
    ) -> None:
        self._folder, self._wanted, self._throttle = folder, wanted, throttle
        self._drop = folder if drop_cache and isinstance(folder, LocalFolder) else None
        self._buffer: Bytes = np.empty(max(piece, _PIECE_MIN), np.uint8)
        self._kept = 0
        self.offset = wanted.start
        """Of the first byte."""

        self.limit = wanted.limit
        self.file_end = wanted.base + wanted.size
        """Where the file really ends; less than its name says when a read came back short."""

    @property
    def data(self) -> Bytes:
        return self._buffer[: self._kept]

    @property
    def all_read(self) -> bool:
        return self.offset + self._kept >= self.limit

    def go_to(self, offset: int) -> None:
        """Let the window begin there, keeping what it has of it."""
        rest = max(0, self.offset + self._kept - offset)
        if rest:
            self._buffer[:rest] = self._buffer[self._kept - rest : self._kept].copy()
        self.offset, self._kept = offset, rest

    def fill(self) -> None:
        """Read as much as fits."""
        room = min(len(self._buffer) - self._kept, self.limit - self.offset - self._kept)
        if room <= 0:
            return
        position = self.offset + self._kept - self._wanted.base
        target = self._buffer.data[self._kept : self._kept + room]
        count = self._folder.read_into(self._wanted.path, position, target)
        if self._throttle is not None:
            self._throttle.took(count)
        if self._drop is not None:
            self._drop.forget(self._wanted.path, position, count)
        self._kept += count
        if count < room:
            self.limit = self.file_end = self.offset + self._kept

    def grow(self, size: int) -> None:
        """Make room for so many bytes."""
        if size > len(self._buffer):
            bigger = np.empty(size, np.uint8)
            bigger[: self._kept] = self.data
            self._buffer = bigger


def read_range(
    folder: StoreFolder,
    wanted: Range,
    outcome: Outcome,
    *,
    crc: bool = False,
    resync: bool = False,
    throttle: Throttle | None = None,
    drop_cache: bool = False,
    piece: int = PIECE,
) -> Iterator[Chunk]:
    """Yield the records of a range; `outcome` tells how it went, when the iterator is exhausted.

    It ends at the first damage, unless `resync` asks to go on behind it in the same range. OSError as from
    the folder.
    """
    begin, until = bounds(folder, wanted)
    outcome.begin = outcome.end = begin
    outcome.stop, outcome.found, outcome.skipped = Stop.RANGE_END, False, []
    window = _Window(folder, wanted, piece, throttle, drop_cache)
    window.go_to(begin)
    index = -1
    while window.offset < until:
        window.fill()
        data, offset = window.data, window.offset
        final = window.all_read and window.limit == window.file_end
        chunk, position, stop, index = walk_chunk(
            data, min(until - offset, len(data)), offset, wanted.entries, index, final, crc
        )
        reached = offset + position
        if position:
            outcome.end, outcome.found = reached, True
            yield chunk
        if reached >= until:
            return
        if stop in (Stop.SHORT, Stop.RANGE_END) and not window.all_read:
            window.go_to(reached)
            if position:
                continue
            size = declared_size(data, 0, wanted.entries)
            if size <= RECORD_MAX:
                window.grow(size)
                continue
            stop = Stop.BAD_SIZE
        if stop is Stop.BLANK and until < wanted.limit:
            stop = Stop.BAD_SIZE  # it claims the rest of the file, and records follow
        if stop is Stop.SHORT and (
            wanted.exact_bound or find_whole(folder, wanted, reached + 1)[0] < wanted.limit
        ):
            stop = Stop.BAD_SIZE  # it claims bytes behind the bound, and is not the last one before it
        outcome.stop = Stop.EMPTY if stop is Stop.RANGE_END else stop  # the file ends before its name says
        if not resync or outcome.stop in (Stop.BLANK, Stop.SHORT):
            return
        following = min(find_start(folder, wanted, reached + 1), until)
        if stop is Stop.EMPTY and following >= window.file_end:
            return
        outcome.skipped.append((reached, following, stop))
        outcome.stop, outcome.end, index = Stop.RANGE_END, following, -1
        window.go_to(following)


def damaged_ranges(folder: StoreFolder, wanted: Range, outcome: Outcome) -> list[tuple[int, int, Stop]]:
    """Where a range that was read to its end has no records though it should: begin, end, why.

    Ranges end as they should with their last record, where their file ends, or at the bound. OSError as from
    the folder.
    """
    found = list(outcome.skipped)
    clean = outcome.stop in (Stop.RANGE_END, Stop.BLANK, Stop.SHORT)
    if not clean and not (outcome.stop is Stop.EMPTY and wanted.limit - outcome.end < BLANK_SIZE_MIN):
        _, until = bounds(folder, wanted)
        following = find_start(folder, wanted, outcome.end + 1)
        found.append((outcome.end, max(min(following, until), outcome.end), outcome.stop))
    return found


def bounds(folder: StoreFolder, wanted: Range) -> tuple[int, int]:
    """Where the first record of a range begins, and where the first one behind it does."""
    begin, until = wanted.start, min(wanted.end, wanted.limit)
    if wanted.start != wanted.base and not wanted.exact_start:
        begin = find_start(folder, wanted, wanted.start)
    if until < wanted.limit:
        until = find_start(folder, wanted, until)
    return begin, until


def walk_chunk(
    data: Bytes, end: int, offset: int, entries: bool, index: int, final: bool, crc: bool
) -> tuple[Chunk, int, Stop, int]:
    """Records from the first byte of `data` on, where and why they end, and the index of the next entry."""
    if not entries:
        found = KERNELS.walk(data, 0, end, offset, final=final, crc=crc)
        chunk = Chunk(data, offset, found.starts, found.sizes, begin=offset, end=offset + found.position)
        return chunk, found.position, found.stop, -1
    walked = KERNELS.walk_entries(data, 0, end, offset, index=index, final=final, crc=crc)
    kept = walked.are_records
    chunk = Chunk(
        data,
        offset,
        walked.starts[kept] + ENTRY_HEAD_SIZE,
        (walked.sizes[kept] - ENTRY_HEAD_SIZE).astype(np.int32),
        walked.indexes[kept],
        walked.terms[kept],
        offset,
        offset + walked.position,
    )
    following = int(walked.indexes[-1]) + 1 if len(walked.indexes) else index
    return chunk, walked.position, walked.stop, following
