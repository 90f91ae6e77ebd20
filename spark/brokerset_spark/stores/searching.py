"""Where the first sure record behind an offset begins.

The answer depends on nothing but the bytes of the file below the bound: not on who asks, nor on how much was
read at once. A record is sure if `Kernels.resync` says so of a window that begins with it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import numpy as np

from brokerset_formats import dledger, records
from brokerset_spark.kernels import KERNELS, Kernels
from brokerset_spark.kernels.contract import Bytes
from brokerset_spark.stores.folder import StoreFolder

WINDOW: Final = 256 << 10
"""Bytes in which a record must prove itself; more if it is longer."""

RECORD_MAX: Final = 128 << 20
"""Longest record that is read; a longer size is damage."""

FILLER_MAX: Final = 16 << 20
"""How far from the end of a file its blank record is looked for: longer than any record of a broker with the
usual limits, since a file ends where the next record does not fit."""

_HEAD: Final = 40
"""Bytes from which a record or an entry tells its own size and offset."""

_MARKS: Final = (struct.pack(">I", records.MAGIC_V1), struct.pack(">I", records.MAGIC_V2))
_ENTRY_MARK: Final = struct.pack(">i", dledger.MAGIC_NORMAL)


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

    @property
    def limit(self) -> int:
        """Offset behind the last byte that may be read."""
        return min(self.base + self.size, self.bound)


def declared_size(data: Bytes, position: int, entries: bool) -> int:
    """The size that a record or entry gives itself; 0 if the data end before."""
    at = position + 4 if entries else position
    return int.from_bytes(data[at : at + 4].tobytes(), "big") if at + 4 <= len(data) else 0


def find_start(folder: StoreFolder, wanted: Range, offset: int, kernels: Kernels = KERNELS) -> int:
    """Offset of the first sure record of the file at or behind `offset`; the range's `limit` if there is
    none.

    What lies behind the blank record of the file is none. OSError as from the folder.
    """
    resync = kernels.resync_entries if wanted.entries else kernels.resync
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


def _read(folder: StoreFolder, wanted: Range, offset: int, count: int) -> Bytes:
    buffer = np.empty(count, np.uint8)
    return buffer[: folder.read_into(wanted.path, offset - wanted.base, buffer.data)]


def _unfinished(data: Bytes, offset: int, entries: bool) -> int:
    """Position of the first record that gives itself the right offset and goes on behind the data; -1 if
    none."""
    raw = data.tobytes()
    best = -1
    for mark in (_ENTRY_MARK,) if entries else _MARKS:
        at = raw.find(mark)
        while at >= 0:
            start = at if entries else at - 4
            place = start + (24 if entries else records.OFFSET_POSITION)
            if start >= 0 and place + 8 <= len(raw) and (best < 0 or start < best):
                size = declared_size(data, start, entries)
                if (
                    int.from_bytes(raw[place : place + 8], "big") == offset + start
                    and len(raw) - start < size + 8
                    and size <= RECORD_MAX
                ):
                    best = start
                    break
            at = raw.find(mark, at + 1)
    return best


def _blank(folder: StoreFolder, wanted: Range, offset: int) -> int:
    """Offset of the file's blank record, if it lies before `offset`; -1 if it does not, or the log ends
    here."""
    file_end = wanted.base + wanted.size
    if wanted.limit < file_end or file_end - offset > FILLER_MAX:
        return -1
    start = max(wanted.base, file_end - FILLER_MAX)
    raw = _read(folder, wanted, start, offset - start).tobytes()
    magic = (
        struct.pack(">i", dledger.MAGIC_BLANK) if wanted.entries else struct.pack(">I", records.MAGIC_BLANK)
    )
    at = raw.find(magic)
    while at >= 0:
        begin = at if wanted.entries else at - 4
        free = at + 4 if wanted.entries else at - 4
        if begin >= 0 and raw[free : free + 4] == struct.pack(">I", file_end - start - begin):
            return start + begin
        at = raw.find(magic, at + 1)
    return -1
