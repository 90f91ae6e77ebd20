"""Compares the commit logs of two stores: byte by byte here, by digests with a store on another host."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from brokerset_cli.takeover.old_store import LogFile, entries, log_files, mapped, records
from brokerset_cli.takeover.upgrade_facts import Comparison, Extent, Likeness
from brokerset_formats.dledger import BLANK

COMPARED_BYTES: Final = 4 << 20
BLOCK_BYTES: Final = 16 << 20
"""Of one digest, when log files are multiples of it; else a block is a whole file."""


def compare_logs(master: Path, master_extent: Extent, slave: Path, slave_extent: Extent) -> Comparison:
    """Compare two stores that are both here."""
    early = _without_bytes(master_extent, slave_extent)
    if early is not None:
        return early
    begin = max(master_extent.begin, slave_extent.begin)
    end = min(master_extent.end, slave_extent.end)
    place = _first_difference(log_files(master), log_files(slave), begin, end)
    while place is not None and (behind := _behind_filler(log_files(master), log_files(slave), place)):
        place = _first_difference(log_files(master), log_files(slave), behind, end)
    if place is None and slave_extent.end <= master_extent.end:
        return Comparison(Likeness.PREFIX, slave_extent.end)
    common = end if place is None else _record_begin(log_files(slave), place)
    return Comparison(
        Likeness.LONGER if place is None else Likeness.APART,
        common,
        _count(log_files(slave), common, slave_extent.end),
        slave_extent.end - common,
    )


def _without_bytes(master: Extent, slave: Extent) -> Comparison | None:
    """What the extents alone say."""
    if slave.empty:
        return Comparison(Likeness.PREFIX, slave.end)
    if master.empty or slave.end <= master.begin or master.end <= slave.begin:
        return Comparison(
            Likeness.NOTHING,
            detail=f"one goes from {master.begin:,} to {master.end:,},"
            f" the other from {slave.begin:,} to {slave.end:,}",
        )
    return None


def _parts(files: list[LogFile], begin: int, end: int) -> Iterator[tuple[LogFile, int, int]]:
    """The files that have a part of [begin, end), with the part's begin and end."""
    for file in files:
        start, stop = max(begin, file.begin), min(end, file.begin + file.size)
        if start < stop:
            yield file, start, stop


def _first_difference(one: list[LogFile], other: list[LogFile], begin: int, end: int) -> int | None:
    """The first offset of [begin, end) at which logs differ; a missing file differs."""
    others = {file.begin: file for file in other}
    for file, start, stop in _parts(one, begin, end):
        match = others.get(file.begin)
        if match is None or match.size != file.size:
            return start
        with mapped(file) as left, mapped(match) as right:
            for at in range(start - file.begin, stop - file.begin, COMPARED_BYTES):
                limit = min(at + COMPARED_BYTES, stop - file.begin)
                a, b = left[at:limit], right[at:limit]
                if a != b:
                    place = next(i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)
                    return file.begin + at + place
    return None


def _behind_filler(one: list[LogFile], other: list[LogFile], place: int) -> int | None:
    """The end of the file if `place` lies behind the blank that closes it in both DLedgers: what a truncation
    left there means nothing."""
    begin, found = _record_begin(other, place), None
    for files in (one, other):
        file = next((each for each in files if each.begin <= place < each.begin + each.size), None)
        if file is None or not file.entries or place < begin + BLANK.size:
            return None
        blank = next(entries(file, begin, verify=False), None)
        if blank is None or blank.index >= 0:
            return None
        found = blank.end
    return found


def _record_begin(files: list[LogFile], offset: int) -> int:
    """Where the record begins that has the byte at an offset."""
    file = next(each for each in files if each.begin <= offset < each.begin + each.size)
    found = file.begin
    for begin, end in records(file, file.begin, verify=False):
        found = begin if begin <= offset else found
        if end > offset:
            break
        found = end
    return found


def _count(files: list[LogFile], begin: int, end: int) -> int:
    """Messages in [begin, end); what fills a file up is none."""
    return sum(
        at < stop and to < file.begin + file.size
        for file, start, stop in _parts(files, begin, end)
        for at, to in records(file, start, verify=False)
    )


def counted(slave: Path, slave_extent: Extent, found: Comparison) -> Comparison:
    """What another host found in blocks, with the record at which this store is to end, and what goes."""
    if found.exact or not slave_extent.begin <= found.common_end < slave_extent.end:
        return found
    files = log_files(slave)
    common = _record_begin(files, found.common_end)
    messages = _count(files, common, slave_extent.end)
    return replace(found, common_end=common, cut_messages=messages, cut_bytes=slave_extent.end - common)


# -- a store on another host ------------------------------------------------------------------------------


def block_bytes(file_size: int) -> int:
    """Bytes of a digest's block: logs begin at multiples of it."""
    return BLOCK_BYTES if file_size and file_size % BLOCK_BYTES == 0 else max(1, file_size)


def digests(store: Path, extent: Extent) -> dict[int, str]:
    """SHA-256 of each block of a log by its offset; the last one ends with the log."""
    files = log_files(store)
    size = block_bytes(files[0].size if files else 0)
    return {
        at: _digest(files, at, min(at + size, extent.end)) for at in range(extent.begin, extent.end, size)
    }


def _digest(files: list[LogFile], begin: int, end: int) -> str:
    found = hashlib.sha256()
    for file, start, stop in _parts(files, begin, end):
        with mapped(file) as data:
            found.update(memoryview(data)[start - file.begin : stop - file.begin].tobytes())
    return found.hexdigest()


def compare_digests(
    master: Path, master_extent: Extent, slave_extent: Extent, slave_digests: Mapping[int, str]
) -> Comparison:
    """Compare the future master, here, with a slave of which another host wrote the digests.

    Where they differ, only the block is known; the slave is read on its own host then. A slave that goes
    further than its master has a block with the master's end, of which nothing can be said.
    """
    early = _without_bytes(master_extent, slave_extent)
    if early is not None:
        return early
    files = log_files(master)
    size = block_bytes(files[0].size)
    first = same = max(master_extent.begin, slave_extent.begin)
    for at, digest in sorted(slave_digests.items()):
        end = min(at + size, slave_extent.end)
        if end <= master_extent.begin:
            continue
        if at > same:
            break
        if end > master_extent.end:
            return Comparison(
                Likeness.LONGER,
                same,
                cut_bytes=slave_extent.end - same,
                detail=f"it ends at {slave_extent.end:,}, the other at {master_extent.end:,};"
                f" compared, and the same, is what lies between {first:,} and {same:,}",
                exact=False,
            )
        if at < master_extent.begin or _digest(files, at, end) != digest:
            return Comparison(
                Likeness.APART,
                same,
                cut_bytes=slave_extent.end - same,
                detail=f"they differ between {at:,} and {end:,}",
                exact=False,
            )
        same = end
    if same != slave_extent.end:
        return Comparison(Likeness.UNKNOWN, detail="the file of facts has no digests of all of it")
    return Comparison(Likeness.PREFIX, slave_extent.end)
