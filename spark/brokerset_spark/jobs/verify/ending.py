"""Where a log ends: behind the newest record that somebody knows of, and those that follow it without a
break.

Behind the end lie zeros, old records and filler, which mean nothing; so the end is found before anything else
is read. Queues, checkpoints and epochs are witnesses: what they know of must be there, and is read even if
nothing there is whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from brokerset_spark.kernels import KERNELS
from brokerset_spark.stores.ending import LogEnd, LogWalk, StoreState
from brokerset_spark.stores.folder import StoreFolder
from brokerset_spark.stores.layout import Log, LogFile
from brokerset_spark.stores.reading import RECORD_MAX

WITNESSES_MAX: Final = 256
"""Witnesses that are tried, newest first, before the last file is walked from its beginning."""

_ZEROS: Final = bytes(16)


@dataclass(frozen=True, slots=True)
class Witness:
    """Somebody who knows of a record."""

    offset: int
    """Of the record; in a DLedger of the record inside its entry."""

    size: int
    """Of the record; 0 if only the offset is known: a record, or the log's end."""

    who: str
    """For people."""

    queue: tuple[str, int, int] | None = None
    """Topic, queue id and queue offset, if it is a queue's last unit."""

    @property
    def end(self) -> int:
        """Offset behind the record."""
        return self.offset + self.size


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a log."""

    whole: int
    """Offset behind the last whole record: what cannot be read before it is damaged, crash or not."""

    claimed: int
    """Up to where witnesses know of records: at least `whole`; what lies between is damaged or lost."""

    claims: tuple[Witness, ...] = ()
    """The witnesses for what lies behind `whole`, also those outside of all files."""

    newest_ms: int = 0
    """Store time of the last whole record."""


def _empty(folder: StoreFolder, file: LogFile) -> bool:
    head = bytearray(len(_ZEROS))
    folder.read_into(file.path, 0, memoryview(head))
    return bytes(head) == _ZEROS


def _whole_at(walk: LogWalk, file: LogFile, offset: int, size: int) -> bool:
    """Whether a record of this size is there; its CRC does not count: a damaged record is one all the
    same."""
    if not 0 < size <= RECORD_MAX or offset + size > file.end:
        return False
    data = np.empty(size, np.uint8)
    count = walk.folder.read_into(file.path, offset - file.base, data.data)
    data = data[:count]
    if walk.entries:
        return KERNELS.walk_entries(data, 0, 1, offset, index=-1, final=True, crc=False).position == size
    return KERNELS.walk(data, 0, 1, offset, final=True, crc=False).position == size


def find_end(
    folder: StoreFolder,
    log: Log,
    witnesses: list[Witness],
    *,
    entries: bool = False,
    crash: bool = False,
) -> Ending:
    """The end of the log, which must have files.

    After a `crash` the last records may be torn, so those that no witness knows of must have the right CRC.
    """
    walk = LogWalk(folder, log, entries, crash)
    state: StoreState = "left" if crash else "closed"
    ordered = sorted(witnesses, key=lambda each: each.end, reverse=True)
    files = [file for file in log.files if not _empty(folder, file)] or [log.files[0]]
    anchor = _anchor(walk, ordered)
    known = anchor if anchor is not None and anchor >= files[-1].base else None

    def walked(since: int | None) -> LogEnd:
        return walk.follow(walk.measure(since), state, tell_debris=False)

    end = walked(known)
    if known is None and anchor is not None and end.offset < anchor:
        end = walked(anchor)
    last = end.holes[-1] if end.holes and not crash else None
    if last is not None and last.end == end.offset and any(last.begin <= each.offset for each in ordered):
        end = replace(end, offset=last.begin)  # a witness tells better how far a damaged end reaches
    claims = tuple(each for each in ordered if each.end > end.offset and each.offset >= end.offset)
    inside = [min(each.end, log.end) for each in claims if log.first <= each.offset < log.end]
    newest = walk.newest_time(end)
    return Ending(end.offset, max([end.offset, *inside]), claims, newest)


def _anchor(walk: LogWalk, ordered: list[Witness]) -> int | None:
    for each in ordered[:WITNESSES_MAX]:
        offset, size = each.offset - walk.shift, each.size + walk.shift
        file = walk.log.at(offset) if each.size else None
        if file is not None and _whole_at(walk, file, offset, size):
            return offset + size
    return None
