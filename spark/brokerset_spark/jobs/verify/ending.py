"""Where a log ends: behind the newest record that somebody knows of, and those that follow it without a
break.

Behind the end lie zeros, old records and filler, which mean nothing; so the end is found before anything else
is read. Queues, marks and epochs are witnesses: what they know of must be there, and is looked at even if
nothing there is whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from brokerset_formats.dledger import ENTRY_HEAD_SIZE
from brokerset_spark.kernels import Kernels
from brokerset_spark.stores.folder import StoreFolder
from brokerset_spark.stores.layout import Log, LogFile
from brokerset_spark.stores.reading import RECORD_MAX
from brokerset_spark.stores.tail import walk_end

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
    """Offset behind the last record that follows on the ones before."""

    claimed: int
    """Up to where witnesses know of records: at least `whole`; what lies between is damaged or lost."""

    claims: tuple[Witness, ...] = ()
    """The witnesses for what lies behind `whole`, also those outside of all files."""


def _empty(folder: StoreFolder, file: LogFile) -> bool:
    head = bytearray(len(_ZEROS))
    folder.read_into(file.path, 0, memoryview(head))
    return bytes(head) == _ZEROS


def _whole_at(
    folder: StoreFolder, file: LogFile, offset: int, size: int, kernels: Kernels, entries: bool
) -> bool:
    """Whether a record of this size is there; its CRC does not count: a damaged record is one all the
    same."""
    if not 0 < size <= RECORD_MAX or offset + size > file.end:
        return False
    data = np.empty(size, np.uint8)
    count = folder.read_into(file.path, offset - file.base, data.data)
    if entries:
        found = kernels.walk_entries(data[:count], 0, 1, offset, index=-1, final=True, crc=False).position
    else:
        found = kernels.walk(data[:count], 0, 1, offset, final=True, crc=False).position
    return found == size


def _walk_on(folder: StoreFolder, log: Log, start: int, kernels: Kernels, entries: bool, crc: bool) -> int:
    return walk_end(folder, log, start, entries=entries, crc=crc, kernels=kernels).offset


def find_end(
    folder: StoreFolder,
    log: Log,
    witnesses: list[Witness],
    *,
    kernels: Kernels,
    entries: bool = False,
    crash: bool = False,
) -> Ending:
    """The end of the log, which must have files.

    After a `crash` the last records may be torn, so those that no witness knows of must have the right CRC.
    """
    shift = ENTRY_HEAD_SIZE if entries else 0
    ordered = sorted(witnesses, key=lambda each: each.end, reverse=True)
    files = [file for file in log.files if not _empty(folder, file)] or [log.files[0]]
    anchor = _anchor(folder, log, ordered, kernels, entries, shift)
    newest = max(files[-1].base, 0)
    if anchor is None or anchor < newest:
        # Nobody knows of the last file: it counts if records begin it, or the one before is closed.
        end = _walk_on(folder, log, newest, kernels, entries, crash)
        if end == newest and anchor is not None:
            end = _walk_on(folder, log, anchor, kernels, entries, crash)
        elif end == newest:
            end = _last_end(folder, log, files, kernels, entries, crash)
    else:
        end = _walk_on(folder, log, anchor, kernels, entries, crash)
    claims = tuple(each for each in ordered if each.end > end and each.offset >= end)
    inside = [min(each.end, log.end) for each in claims if log.first <= each.offset < log.end]
    return Ending(end, max([end, *inside]), claims)


def _anchor(
    folder: StoreFolder, log: Log, ordered: list[Witness], kernels: Kernels, entries: bool, shift: int
) -> int | None:
    for each in ordered[:WITNESSES_MAX]:
        offset, size = each.offset - shift, each.size + shift
        file = log.at(offset) if each.size else None
        if file is not None and _whole_at(folder, file, offset, size, kernels, entries):
            return offset + size
    return None


def _last_end(
    folder: StoreFolder, log: Log, files: list[LogFile], kernels: Kernels, entries: bool, crash: bool
) -> int:
    """The first record of the last file is damaged, or it is all that is left of an older life of the
    file."""
    if len(files) > 1:
        return _walk_on(folder, log, files[-2].base, kernels, entries, crash)
    return files[-1].base
