"""Reading the log after a start: where does it end, and is what follows a torn tail or damage? No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum

from brokerset_formats import native
from brokerset_formats.checkpoints import StoreCheckpoint
from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_formats.records import (
    MAGIC_V1,
    MAGIC_V2,
    RECORD_SIZE_MIN,
    Blank,
    Buffer,
    RecordHead,
    RecordProblem,
    check_record,
)

_MAGICS = (MAGIC_V1.to_bytes(4, "big"), MAGIC_V2.to_bytes(4, "big"))
_MAGIC_POSITION = 4

SEARCH_CHUNK_BYTES = 1024 * 1024
"""How much of a file is copied at a time when records are searched for behind a damage."""


@dataclass(frozen=True, slots=True)
class FirstRecord:
    """How a file of the log begins."""

    start: int
    """Offset of the file."""
    store_timestamp: int
    """Of its first record; 0 if there is none."""


def first_record(buffer: Buffer, start: int) -> FirstRecord:
    """Examine the first record of a file that begins at offset `start`."""
    head = check_record(buffer, 0, len(buffer), verify_crc=False)
    if isinstance(head, RecordHead) and head.offset == start:
        return FirstRecord(start, head.store_timestamp)
    return FirstRecord(start, 0)


def start_after_clean_exit(files: Sequence[FirstRecord], queues_end: int) -> int:
    """Offset of the file to begin with: the last whose first record is in its queue (Java's rule)."""
    for file in reversed(files):
        if file.store_timestamp and file.start <= queues_end:
            return file.start
    return files[0].start if files else 0


def start_after_crash(files: Sequence[FirstRecord], min_timestamp: int) -> int:
    """Offset of the file to begin with: the last whose first record is surely in log and queues on disk."""
    for file in reversed(files):
        if file.store_timestamp and file.store_timestamp <= min_timestamp:
            return file.start
    return files[0].start if files else 0


def scan(
    buffer: Buffer, start: int, position: int, *, verify_crc: bool
) -> Iterator[RecordHead | Blank | RecordProblem]:
    """The records of one file from `position` on; the last value is what ended them.

    `start` is the offset of the file: a record that says it is somewhere else is a problem, too, for instance
    the rest of an older file.
    """
    limit = len(buffer)
    while True:
        head = check_record(buffer, position, limit, verify_crc=verify_crc)
        if isinstance(head, RecordHead) and head.offset != start + position:
            head = RecordProblem(f"the record says that it is at offset {head.offset}", position)
        elif isinstance(head, RecordHead) and head.queue_offset * RECORD_SIZE_MIN > head.offset:
            head = RecordProblem(f"{head.queue_offset} messages cannot be before it in its queue", position)
        elif isinstance(head, RecordHead) and b"\0" in head.topic:  # cut short, and nothing behind it
            head = RecordProblem("the topic has zeros in it", position)
        yield head
        if not isinstance(head, RecordHead):
            return
        position += head.size


def record_within(buffer: Buffer, start: int, begin: int, end: int) -> RecordHead | None:
    """The first whole record of this log whose magic is between positions `begin` and `end`."""
    for magic_position in _magic_positions(buffer, begin, end):
        candidate = magic_position - _MAGIC_POSITION
        if candidate < 0:
            continue
        head = check_record(buffer, candidate, len(buffer), verify_crc=True)
        if isinstance(head, RecordHead) and head.offset == start + candidate:
            return head
    return None


def _magic_positions(buffer: Buffer, begin: int, end: int) -> Iterator[int]:
    """Where magics begin, at `begin` or behind it, but before `end`."""
    if native.core is not None:
        found = native.core.find_magic(buffer, begin, end)
        while found is not None:
            yield found
            found = native.core.find_magic(buffer, found + 1, end)
        return
    for position in range(begin, end, SEARCH_CHUNK_BYTES):
        chunk = bytes(buffer[position : min(position + SEARCH_CHUNK_BYTES, end) + 3])
        yield from (position + found for found in _magics_in(chunk))


def _magics_in(chunk: bytes) -> list[int]:
    found = []
    for magic in _MAGICS:
        position = chunk.find(magic)
        while position >= 0:
            found.append(position)
            position = chunk.find(magic, position + 1)
    return sorted(found)


class Verdict(Enum):
    """What the bytes behind the last whole record are."""

    END = "END"
    """Nothing of interest: the log ended there, or in the middle of a record that nobody was told about."""
    HOLE = "HOLE"
    """Whole records follow, but none that was surely on disk: a crash lost a page before them."""
    DAMAGE = "DAMAGE"
    """Something that was surely on disk is not there any more."""


def judge_end(end: int, following: RecordHead | None, checkpoint: StoreCheckpoint) -> Verdict:
    """What it means that the last whole record in a row ends at `end`, with `following` somewhere behind it.

    What was surely on disk: below the flushed offset of our own marks; without them (a Java broker wrote the
    checkpoint), records with a store time up to the checkpoint's.
    """
    if checkpoint.marks is not None:
        if end < checkpoint.marks.flushed_offset:
            return Verdict.DAMAGE
        return Verdict.END if following is None else Verdict.HOLE
    if following is None:
        return Verdict.END
    return Verdict.DAMAGE if following.store_timestamp <= checkpoint.physic_msg_timestamp else Verdict.HOLE
