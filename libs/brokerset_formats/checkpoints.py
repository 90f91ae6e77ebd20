"""The `checkpoint` file: up to which times everything is surely on disk."""

from __future__ import annotations

import struct
from dataclasses import astuple, field

from brokerset_formats.errors import FormatError
from brokerset_formats.hashing import crc31
from brokerset_formats.lazy_dataclasses import dataclass

CHECKPOINT_SIZE = 4096

_LONGS = struct.Struct(">8q")

MARKS_POSITION = 2048
"""Where brokerset keeps its own part of the file; RocketMQ uses the first 64 bytes and ignores the rest."""

_MARKS = struct.Struct(">8sqqqqqi")
"""Magic, flushed, dispatched, written, physic time, logics time, CRC of those before."""
_MARKS_MAGIC = b"BSMARKS2"

SAFETY_MS = 3_000
"""Java steps back this far from the times of a checkpoint."""


@dataclass(frozen=True, slots=True)
class SyncedOffsets:
    """Offsets that surely were on disk; more exact than times. Not known to RocketMQ."""

    flushed_offset: int
    """The commit log below is on disk, whole, and begins a record here (or ends)."""

    dispatched_offset: int
    """Consume queues and index have everything below, on disk; also the beginning of a record."""

    written_offset: int
    """They have everything below, on disk or in the page cache: a log that ends before, though the machine
    ran on, has lost pages."""


@dataclass(frozen=True, slots=True)
class StoreCheckpoint:
    """`StoreCheckpoint` of Java: eight i64 at the start of 4096 bytes. Times are store timestamps."""

    physic_msg_timestamp: int = 0
    """Of the last message of the commit log that is surely on disk."""

    logics_msg_timestamp: int = 0
    """Of the last message whose consume queue unit is surely on disk."""

    index_msg_timestamp: int = 0
    """Of the last message in the last full, flushed index file."""

    master_flushed_offset: int = 0
    confirm_phy_offset: int = 0
    """In controller mode, below this every in-sync replica has everything."""

    reserved: tuple[int, int, int] = (0, 0, 0)
    """Longs of newer RocketMQ versions, kept as they are."""

    marks: SyncedOffsets | None = field(default=None)
    """Our own part; None if it is missing, damaged, or older than what a Java broker wrote since."""

    @property
    def min_timestamp(self) -> int:
        """Messages stored before are in the log and in their queues, on disk; 0 if nothing is sure."""
        return max(0, min(self.physic_msg_timestamp, self.logics_msg_timestamp) - SAFETY_MS)

    @property
    def min_timestamp_index(self) -> int:
        """Messages stored before are in the index as well."""
        return min(self.min_timestamp, self.index_msg_timestamp)

    def encode(self) -> bytes:
        """The whole file."""
        data = bytearray(CHECKPOINT_SIZE)
        times = self.physic_msg_timestamp, self.logics_msg_timestamp
        longs = self.index_msg_timestamp, self.master_flushed_offset, self.confirm_phy_offset, *self.reserved
        _LONGS.pack_into(data, 0, *times, *longs)
        if self.marks is not None:
            fields = _MARKS_MAGIC, *astuple(self.marks), *times
            crc = crc31(_MARKS.pack(*fields, 0)[:-4])
            _MARKS.pack_into(data, MARKS_POSITION, *fields, crc)
        return bytes(data)


def decode_checkpoint(data: bytes) -> StoreCheckpoint:
    """Read the file; FormatError if it is shorter than its eight longs. Bad marks are left out."""
    if len(data) < _LONGS.size:
        raise FormatError(f"{len(data)} bytes are too few for a checkpoint", len(data))
    physic, logics, index, flushed, confirmed, *rest = _LONGS.unpack_from(data)
    return StoreCheckpoint(
        physic_msg_timestamp=physic,
        logics_msg_timestamp=logics,
        index_msg_timestamp=index,
        master_flushed_offset=flushed,
        confirm_phy_offset=confirmed,
        reserved=(rest[0], rest[1], rest[2]),
        marks=_decode_marks(data, physic, logics),
    )


def _decode_marks(data: bytes, physic: int, logics: int) -> SyncedOffsets | None:
    """The marks, if they belong to these times: a Java broker moves the times and leaves old marks behind."""
    if len(data) < MARKS_POSITION + _MARKS.size:
        return None
    magic, flushed, dispatched, in_cache, marks_physic, marks_logics, crc = _MARKS.unpack_from(
        data, MARKS_POSITION
    )
    written = data[MARKS_POSITION : MARKS_POSITION + _MARKS.size - 4]
    if magic != _MARKS_MAGIC or crc31(written) != crc or (marks_physic, marks_logics) != (physic, logics):
        return None
    if not 0 <= dispatched <= min(flushed, in_cache):
        return None
    return SyncedOffsets(flushed, dispatched, in_cache)
