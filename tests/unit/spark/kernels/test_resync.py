"""Finding the first record of a range that begins anywhere."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import pytest

from brokerset_formats.dledger import ENTRY_HEAD_SIZE, LedgerEntry
from brokerset_formats.hosts import Host
from brokerset_formats.records import MAGIC_V1, MAGIC_V2, Record, encode_record
from brokerset_rig.both_kernels import EitherKernels

BASE = 1 << 20


def record(number: int, offset: int, body: bytes) -> bytes:
    return encode_record(
        Record(
            magic=MAGIC_V2 if number % 3 == 0 else MAGIC_V1, queue_id=0, queue_offset=number, offset=offset,
            born_timestamp=0, born_host=Host(bytes(16 if number % 4 == 1 else 4), 1), store_timestamp=0,
            store_host=Host(bytes(4), 1), body=body, topic="T", properties=b"A\x01b\x02",
        )
    )  # fmt: skip


def log(count: int = 24) -> tuple[bytes, list[int]]:
    """Records, some with all that was before them as their body, and where they begin."""
    data, starts = b"", []
    for number in range(count):
        starts.append(len(data))
        body = data[-700:] if number % 5 == 4 else b"\xda\xa3\x20\xa7" * number
        data += record(number, BASE + len(data), body)
    return data, starts


def ledger(count: int = 24) -> tuple[bytes, list[int]]:
    """The same as entries, some without message."""
    data, starts = b"", []
    for number in range(count):
        starts.append(len(data))
        if number % 7 == 3:
            body, magic = b"", 2 + number % 2
        else:
            inside = data[-700:] if number % 5 == 4 else b"\0\0\0\1" * number
            body, magic = record(number, BASE + len(data) + ENTRY_HEAD_SIZE, inside), 1
        data += LedgerEntry(number, 2, BASE + len(data), body, magic).encode()
    return data, starts


@pytest.mark.parametrize("behind", [b"", bytes(200), b"\0\0\1\0\xcb\xd4\x31\x94filler"])
def test_every_offset(kernels: EitherKernels, behind: bytes) -> None:
    """From every byte of a log its next record is found, up to the very last, whatever ends the log."""
    raw, starts = log()
    data = np.frombuffer(raw + behind, np.uint8)
    for position in range(len(data)):
        found = kernels.resync(data, position, len(data), BASE)

        number = bisect_left(starts, position)
        assert found == (starts[number] if number < len(starts) else -1), position


@pytest.mark.parametrize("behind", [b"", bytes(200), b"\xff\xff\xff\xff\0\0\1\0" + bytes(100)])
def test_every_offset_of_a_ledger(kernels: EitherKernels, behind: bytes) -> None:
    """The same in a DLedger, whose entries without message count as well."""
    raw, starts = ledger()
    data = np.frombuffer(raw + behind, np.uint8)
    for position in range(len(raw) - 32):
        found = kernels.resync_entries(data, position, len(data), BASE)

        number = bisect_left(starts, position)
        if number < len(starts):
            assert found == starts[number], position
        else:  # the very end may be too short to tell
            assert found == -1 or (not behind and -2 - found > len(raw) - 32), position


def test_range(kernels: EitherKernels) -> None:
    """Records that begin at the end of the range or behind it belong to the next one."""
    raw, starts = log()
    data = np.frombuffer(raw, np.uint8)

    assert kernels.resync(data, starts[3] + 1, starts[4], BASE) == -1
    assert kernels.resync(data, starts[3] + 1, starts[4] + 1, BASE) == starts[4]
    assert kernels.resync(data, len(data) + 5, len(data) + 90, BASE) == -1


def test_copies_are_no_records(kernels: EitherKernels) -> None:
    """A whole log inside a body is passed over: its records say other offsets."""
    raw, _ = log()
    outer = record(1, BASE, raw)
    data = outer
    for number in range(10):
        data += record(number, BASE + len(data), b"")

    assert kernels.resync(np.frombuffer(data, np.uint8), 1, len(data), BASE) == len(outer)


def test_damage_behind(kernels: EitherKernels) -> None:
    """What fewer than eight whole records follow before damage is not believed."""
    raw, starts = log()
    damaged = bytearray(raw)
    damaged[starts[12] + 4] ^= 1
    data = np.frombuffer(bytes(damaged), np.uint8)

    assert kernels.resync(data, 1, len(data), BASE) == starts[1]
    assert kernels.resync(data, starts[3], len(data), BASE) == starts[3]
    assert kernels.resync(data, starts[3] + 1, len(data), BASE) == starts[13]


def test_data_that_end_too_early(kernels: EitherKernels) -> None:
    """If the data end inside what may be a record, the answer says where it begins."""
    raw, starts = log()
    for kept in range(8, starts[21] - starts[20]):
        data = np.frombuffer(raw[: starts[20] + kept], np.uint8)
        assert kernels.resync(data, starts[19] + 1, len(data), BASE) == -2 - starts[20]
    other = np.frombuffer(raw[: starts[20] + 60], np.uint8)
    assert kernels.resync(other, starts[19] + 1, len(other), BASE + 1) == -1


def test_entries_that_end_too_early(kernels: EitherKernels) -> None:
    """The same for entries."""
    raw, starts = ledger()
    for kept in range(4, starts[21] - starts[20]):
        data = np.frombuffer(raw[: starts[20] + kept], np.uint8)
        assert kernels.resync_entries(data, starts[20], len(data), BASE) == -2 - starts[20]
