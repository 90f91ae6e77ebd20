"""What a stream remembers of the last record that it read, to notice when its store is another one.

An offset alone says nothing about what lies before it: a log may have been cut and have grown again, or the
folder may hold another broker's store by now. A mark is the place of the last record, and the checksum of its
bytes; its store time alone makes it unlike any other record at that place.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np

from brokerset_spark.stores.ending import LogWalk
from brokerset_spark.stores.folder import StoreFolder, read_bytes
from brokerset_spark.stores.layout import Log, LogFile
from brokerset_spark.stores.searching import Range, declared_size, find_start

SUFFIX: Final = "#last"
"""Behind a store's URL in a stream's offset: the key of its mark."""

COVERED_MAX: Final = 64 << 10
"""Bytes of a record that its checksum covers."""

_STEPS: Final = (64 << 10, 4 << 20)
"""How far before an offset a record is looked for, before the file is walked from its beginning."""

_TEXT: Final = re.compile(r"(\d{1,19})\+(\d{1,6}):([0-9a-f]{8})")


class MarkState(StrEnum):
    """What became of a marked record."""

    SAME = "same"
    CHANGED = "changed"
    UNKNOWN = "unknown"
    """There is no mark, or its record cannot be read: expired, or not confirmed (again) by the broker."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The last record before an offset of a stream."""

    offset: int
    """Of the record; in a DLedger of its entry."""

    size: int
    """Bytes that the checksum covers."""

    checksum: int

    def encode(self) -> str:
        """As it stands in a stream's offset: `OFFSET+SIZE:CRC32`."""
        return f"{self.offset}+{self.size}:{self.checksum:08x}"

    @classmethod
    def decode(cls, text: str) -> Mark | None:
        """None for what is no mark."""
        found = _TEXT.fullmatch(text)
        return cls(int(found[1]), int(found[2]), int(found[3], 16)) if found else None


def places(offsets: dict[str, Any]) -> dict[str, int]:
    """Store to offset, without the marks."""
    return {url: int(offset) for url, offset in offsets.items() if not url.endswith(SUFFIX)}


def mark_in(offsets: dict[str, Any], url: str) -> Mark | None:
    """The mark of a store; None if there is none, as in checkpoints of older streams."""
    text = offsets.get(url + SUFFIX)
    return Mark.decode(text) if isinstance(text, str) else None


def make_mark(folder: StoreFolder, logs: tuple[tuple[Log, bool], ...], offset: int) -> Mark | None:
    """The mark of the last record before `offset`, where one ends; None if there is none, or if its file
    expires meanwhile. OSError as from the folder."""
    for log, entries in reversed(logs):
        for file in reversed(log.files):
            if file.base < offset:
                try:
                    last = _last_record(folder, log, file, entries, min(offset, file.end))
                    return _marked(folder, file, entries, last, offset) if last >= 0 else None
                except FileNotFoundError:
                    return None
    return None


def _last_record(folder: StoreFolder, log: Log, file: LogFile, entries: bool, bound: int) -> int:
    walk = LogWalk(folder, log, entries)
    for step in _STEPS:
        start = max(file.base, bound - step)
        if start > file.base:
            wanted = Range(file.path, file.base, file.size, start, file.end, entries, bound)
            start = find_start(folder, wanted, start)
        if start < bound:
            last = walk.walk(start, bound).last
            if last >= 0:
                return last
    return walk.walk(file.base, bound).last


def _marked(folder: StoreFolder, file: LogFile, entries: bool, last: int, offset: int) -> Mark | None:
    head = np.frombuffer(read_bytes(folder, file.path, last - file.base, 8), np.uint8)
    size = min(declared_size(head, 0, entries), offset - last, COVERED_MAX)
    data = read_bytes(folder, file.path, last - file.base, size)
    return Mark(last, size, zlib.crc32(data)) if size > 0 and len(data) == size else None


def check_mark(folder: StoreFolder, logs: tuple[tuple[Log, bool], ...], mark: Mark | None) -> MarkState:
    """Whether the marked record is still the same."""
    file = next((file for log, _ in logs if mark and (file := log.at(mark.offset))), None)
    if mark is None or file is None:
        return MarkState.UNKNOWN
    try:
        data = read_bytes(folder, file.path, mark.offset - file.base, mark.size)
    except FileNotFoundError:
        return MarkState.UNKNOWN
    if len(data) < mark.size:
        return MarkState.UNKNOWN
    return MarkState.SAME if zlib.crc32(data) == mark.checksum else MarkState.CHANGED
