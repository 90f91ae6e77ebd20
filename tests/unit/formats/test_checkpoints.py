"""The checkpoint file."""

from __future__ import annotations

import dataclasses
import struct

import pytest

from brokerset_formats.checkpoints import (
    CHECKPOINT_SIZE,
    MARKS_POSITION,
    StoreCheckpoint,
    SyncedOffsets,
    decode_checkpoint,
)
from brokerset_formats.errors import FormatError

CHECKPOINT = StoreCheckpoint(
    physic_msg_timestamp=1_700_000_005_000,
    logics_msg_timestamp=1_700_000_004_000,
    index_msg_timestamp=1_600_000_000_000,
    master_flushed_offset=4,
    confirm_phy_offset=5,
    reserved=(6, 7, 8),
    marks=SyncedOffsets(2000, 1000, 1500),
)


def test_layout() -> None:
    """Eight longs at the start of 4096 bytes, as Java reads them."""
    data = CHECKPOINT.encode()

    assert len(data) == CHECKPOINT_SIZE
    assert struct.unpack(">8q", data[:64]) == (
        1_700_000_005_000,
        1_700_000_004_000,
        1_600_000_000_000,
        4,
        5,
        6,
        7,
        8,
    )
    assert decode_checkpoint(data) == CHECKPOINT
    assert StoreCheckpoint().encode() == bytes(CHECKPOINT_SIZE)


def test_times_of_recovery() -> None:
    """Three seconds before the older of log and queues, and never negative."""
    assert CHECKPOINT.min_timestamp == 1_700_000_001_000
    assert CHECKPOINT.min_timestamp_index == 1_600_000_000_000
    assert StoreCheckpoint().min_timestamp == 0


def test_marks_do_not_outlive_their_times() -> None:
    """When a Java broker has moved the times since, our offsets no longer count."""
    data = bytearray(CHECKPOINT.encode())
    struct.pack_into(">q", data, 0, 1_700_000_009_000)

    assert decode_checkpoint(bytes(data)).marks is None
    assert decode_checkpoint(bytes(data)).physic_msg_timestamp == 1_700_000_009_000


@pytest.mark.parametrize("position", range(MARKS_POSITION, MARKS_POSITION + 44))
def test_damaged_marks_do_not_count(position: int) -> None:
    """Any flipped bit in the marks makes them vanish, not lie."""
    data = bytearray(CHECKPOINT.encode())
    data[position] ^= 4

    assert decode_checkpoint(bytes(data)).marks is None


def test_impossible_marks_do_not_count() -> None:
    """Queues cannot be further than the log."""
    wrong = dataclasses.replace(CHECKPOINT, marks=SyncedOffsets(1000, 2000, 2000))

    assert decode_checkpoint(wrong.encode()).marks is None


def test_short_files() -> None:
    """Java's older files end after the longs; less than those is an error."""
    assert decode_checkpoint(CHECKPOINT.encode()[:64]).marks is None
    with pytest.raises(FormatError, match="63 bytes"):
        decode_checkpoint(bytes(63))
