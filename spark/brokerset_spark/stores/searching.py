"""Where the first sure record behind an offset begins.

The answer depends on nothing but the bytes of the file below the bound: not on who asks, nor on how much was
read at once. A record is sure if `Kernels.resync` says so of a window that begins with it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from brokerset_formats import dledger, records
from brokerset_spark.kernels import KERNELS
from brokerset_spark.kernels.contract import Bytes
from brokerset_spark.stores.folder import StoreFolder

WINDOW: Final = 256 << 10
"""Bytes in which a record must prove itself; more if it is longer."""

RECORD_MAX: Final = 128 << 20
"""Longest record that is read; a longer size is damage."""

FILLER_MAX: Final = 16 << 20
"""How far from the end of a file its blank record is searched: longer than any record of a broker with the
usual limits, since a file ends where the next record does not fit."""

WHOLE_WINDOW: Final = 8 << 20
"""Bytes in which whole records are searched at once."""

_HEAD: Final = 40
"""Bytes from which a record or an entry tells its own size and offset."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where records, or entries of a DLedger, have what tells them from other bytes."""

    magic: re.Pattern[bytes]
    magic_at: int
    offset_at: int
    blank: bytes
    """Magic of what closes a file; before or behind it is the size of the rest of the file."""

    blank_size_at: int


_RECORDS: Final = _Layout(
    re.compile(
        b"|".join(re.escape(struct.pack(">I", each)) for each in (records.MAGIC_V1, records.MAGIC_V2))
    ),
    4,
    records.OFFSET_POSITION,
    struct.pack(">I", records.MAGIC_BLANK),
    0,
)
_ENTRIES: Final = _Layout(
    re.compile(re.escape(struct.pack(">i", dledger.MAGIC_NORMAL))),
    0,
    24,
    struct.pack(">i", dledger.MAGIC_BLANK),
    4,
)


@dataclass(frozen=True, slots=True)
class Range:
    """Part of one file of a log. Offsets are those of the whole log."""

    path: str
    base: int
    """Offset of the file's first byte."""

    size: int
    """Bytes of the file."""

    start: int
    end: int
    entries: bool = False
    """Whether the file belongs to a DLedger."""

    bound: int = 2**63 - 1
    """Nothing is read behind this offset, though the file goes on: the end of what is sure in a store that is
    being written, or the end of the log."""

    exact_start: bool = False
    """Whether a record surely begins at `start`, and nothing is to be searched."""

    exact_bound: bool = False
    """Whether a record surely ends at `bound`, so that one that claims to go on behind it is damaged."""

    @property
    def limit(self) -> int:
        """Offset behind the last byte that may be read."""
        return min(self.base + self.size, self.bound)


def declared_size(data: Bytes, position: int, entries: bool) -> int:
    """The size that a record or entry gives itself; 0 if the data end before."""
    at = position + 4 if entries else position
    return int.from_bytes(data[at : at + 4].tobytes(), "big") if at + 4 <= len(data) else 0


def find_start(folder: StoreFolder, wanted: Range, offset: int) -> int:
    """Offset of the first sure record of the file at or behind `offset`; the range's `limit` if there is
    none.

    What lies behind the blank record of the file is none. OSError as from the folder.
    """
    resync = KERNELS.resync_entries if wanted.entries else KERNELS.resync
    limit, size, blank = wanted.limit, WINDOW, -2
    while offset < limit:
        data = _read(folder, wanted, offset, min(size, limit - offset))
        if len(data) < _HEAD:
            return limit
        at_end = offset + len(data) >= limit or len(data) < size
        position = resync(data, 0, len(data), offset)
        unfinished = -1 if at_end or position == 0 else _unfinished(data, offset, wanted.entries)
        candidates = [each for each in (position, unfinished) if each >= 0]
        if not candidates:
            if at_end:
                return limit
            offset, size = offset + len(data) - _HEAD, WINDOW
        elif min(candidates):
            offset, size = offset + min(candidates), WINDOW
        elif position == 0:
            if blank == -2:
                blank = _blank(folder, wanted, offset)
            return offset if blank < 0 or offset < blank else limit
        elif size == WINDOW:
            size += declared_size(data, 0, wanted.entries)
        else:  # it has the bytes that it wanted, and is no record yet
            offset, size = offset + 1, WINDOW
    return limit


def find_whole(
    folder: StoreFolder,
    wanted: Range,
    offset: int,
    *,
    took: Callable[[int], None] | None = None,
) -> tuple[int, bool]:
    """Offset of the first whole record of the file at or behind `offset`, and False; of the blank record that
    closes the file if that comes first, and True; the range's `limit` if there is neither.

    Whole: magic, lengths, place and CRC are right, whatever follows. So unlike a sure one it may be a record
    that was truncated. OSError as from the folder.
    """
    at, limit = offset, wanted.limit
    while at < limit:
        data = _read(folder, wanted, at, min(WHOLE_WINDOW, limit - at))
        if took is not None:
            took(len(data))
        if data.any():
            raw = data.tobytes()
            blank = _blank_in(raw, at, wanted)
            for position in _candidates(raw, at, wanted.entries):
                if 0 <= blank < position:
                    break
                if _is_whole(folder, wanted, data, at, position):
                    return at + position, False
            if blank >= 0:
                return at + blank, True
        if at + len(data) >= limit or len(data) < WHOLE_WINDOW:
            break
        at += len(data) - _HEAD  # a head may lie across the edge
    return limit, False


def _candidates(raw: bytes, base: int, entries: bool) -> Iterator[int]:
    """Positions that have the magic of a record and give themselves the right offset, ascending."""
    layout = _ENTRIES if entries else _RECORDS
    for found in layout.magic.finditer(raw):
        start = found.start() - layout.magic_at
        said = raw[start + layout.offset_at : start + layout.offset_at + 8] if start >= 0 else b""
        if len(said) == 8 and int.from_bytes(said, "big") == base + start:
            yield start


def _is_whole(folder: StoreFolder, wanted: Range, data: Bytes, base: int, position: int) -> bool:
    """Whether a record with the right CRC begins there."""
    size = declared_size(data, position, wanted.entries)
    if not 0 < size <= RECORD_MAX or base + position + size > wanted.limit:
        return False
    piece = data[position : position + size]
    if len(piece) < size:
        piece = _read(folder, wanted, base + position, size)
    start = base + position
    if wanted.entries:
        return KERNELS.walk_entries(piece, 0, 1, start, index=-1, final=True, crc=True).position == size
    return KERNELS.walk(piece, 0, 1, start, final=True, crc=True).position == size


def _blank_in(raw: bytes, base: int, wanted: Range) -> int:
    """Position of the blank record that closes the file, -1 if it is not in these data."""
    layout, rest = _ENTRIES if wanted.entries else _RECORDS, wanted.base + wanted.size - base
    at = raw.find(layout.blank)
    while at >= 0:
        start = at - layout.magic_at
        size_at = start + layout.blank_size_at
        if start >= 0 and raw[size_at : size_at + 4] == struct.pack(">I", rest - start):
            return start
        at = raw.find(layout.blank, at + 1)
    return -1


def _read(folder: StoreFolder, wanted: Range, offset: int, count: int) -> Bytes:
    buffer = np.empty(count, np.uint8)
    return buffer[: folder.read_into(wanted.path, offset - wanted.base, buffer.data)]


def _unfinished(data: Bytes, offset: int, entries: bool) -> int:
    """Position of the first record that gives itself the right offset and goes on behind the data; -1 if
    none."""
    for start in _candidates(data.tobytes(), offset, entries):
        size = declared_size(data, start, entries)
        if len(data) - start < size + 8 and size <= RECORD_MAX:
            return start
    return -1


def _blank(folder: StoreFolder, wanted: Range, offset: int) -> int:
    """Offset of the file's blank record, if it lies before `offset`; -1 if it does not, or the log ends
    here."""
    file_end = wanted.base + wanted.size
    if wanted.limit < file_end or file_end - offset > FILLER_MAX:
        return -1
    start = max(wanted.base, file_end - FILLER_MAX)
    found = _blank_in(_read(folder, wanted, start, offset - start).tobytes(), start, wanted)
    return start + found if found >= 0 else -1
