"""No number in the data, however wrong, leads a kernel out of its buffer."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from brokerset_formats.hosts import Host
from brokerset_formats.records import MAGIC_V1, MAGIC_V2, Record, encode_record
from brokerset_rig.both_kernels import EitherKernels
from brokerset_spark.kernels import Stop

EXTREMES = [
    -(2**31),
    -(2**31) + 1,
    -1000,
    -1,
    0,
    1,
    47,
    48,
    90,
    91,
    92,
    200,
    2**31 - 49,
    2**31 - 2,
    2**31 - 1,
]
SIZES_V4 = {MAGIC_V1: 91, MAGIC_V2: 92}


def log(magic: int, count: int = 3, *, v6: bool = False) -> bytes:
    """Records of a log at offset 0, one of them with an empty body, empty topic and no properties."""
    data = b""
    for number in range(count):
        host = Host(bytes(16 if v6 else 4), 1)
        data += encode_record(
            Record(
                magic=magic, queue_id=0, queue_offset=number, offset=len(data), born_timestamp=0,
                born_host=host, store_timestamp=0, store_host=host, body=b"body" * number, topic="T" * number,
                properties=b"A\x01b\x02" * number,
            )
        )  # fmt: skip
    return data


def ledger(magic: int, count: int = 3) -> bytes:
    data = b""
    for number in range(count):
        record = encode_record(
            Record(
                magic=magic, queue_id=0, queue_offset=number, offset=len(data) + 48, born_timestamp=0,
                born_host=Host(bytes(4), 1), store_timestamp=0, store_host=Host(bytes(4), 1),
                body=b"body" * number, topic="T",
            )
        )  # fmt: skip
        data += (
            struct.pack(">iiqqqiiii", 1, 48 + len(record), number, 0, len(data), 0, 0, 0, len(record))
            + record
        )
    return data


@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize("magic", [MAGIC_V1, MAGIC_V2])
@pytest.mark.parametrize("v6", [False, True])
def test_sizes_of_records(kernels: EitherKernels, magic: int, v6: bool, final: bool) -> None:
    """Any value in any 4 bytes of the last record ends the walk there, or leaves a record of its size."""
    whole = log(magic, v6=v6)
    first = kernels.walk(np.frombuffer(whole, np.uint8), 0, len(whole), 0, final=True, crc=False)
    assert len(first.starts) == 3
    last = int(first.starts[2])
    for place in range(last, len(whole) - 3):
        for value in EXTREMES:
            data = bytearray(whole)
            struct.pack_into(">i", data, place, value)
            found = kernels.walk(np.frombuffer(bytes(data), np.uint8), 0, len(data), 0, final=final, crc=True)

            assert found.starts.tolist()[:2] == first.starts.tolist()[:2]
            if len(found.starts) == 3:
                assert (found.position, found.stop) == (len(whole), Stop.RANGE_END)
            else:
                assert found.position == last
                assert found.stop not in (Stop.RANGE_END, Stop.BLANK)


@pytest.mark.parametrize("magic", [MAGIC_V1, MAGIC_V2])
def test_sizes_of_entries(kernels: EitherKernels, magic: int) -> None:
    """The same of entries."""
    whole = ledger(magic)
    first = kernels.walk_entries(
        np.frombuffer(whole, np.uint8), 0, len(whole), 0, index=0, final=True, crc=False
    )
    assert len(first.starts) == 3
    last = int(first.starts[2])
    for place in range(last, len(whole) - 3):
        for value in EXTREMES:
            data = bytearray(whole)
            struct.pack_into(">i", data, place, value)
            found = kernels.walk_entries(
                np.frombuffer(bytes(data), np.uint8), 0, len(data), 0, index=0, final=False, crc=True
            )

            assert found.starts.tolist()[:2] == first.starts.tolist()[:2]
            if len(found.starts) == 3:
                assert (found.position, found.stop) == (len(whole), Stop.RANGE_END)
            else:
                assert found.position == last
                blank = place == last and value == -1
                assert found.stop is Stop.BLANK if blank else found.stop not in (Stop.RANGE_END, Stop.BLANK)


def test_smallest_records(kernels: EitherKernels) -> None:
    """A record without body, topic and properties is one; a byte less is none, wherever the buffer ends."""
    for magic, size in SIZES_V4.items():
        whole = log(magic, 1)
        assert len(whole) == size
        data = np.frombuffer(whole, np.uint8)
        assert kernels.walk(data, 0, size, 0, final=True, crc=True).sizes.tolist() == [size]
        for end in range(size):
            found = kernels.walk(data[:end], 0, size, 0, final=False, crc=True)
            assert (found.starts.tolist(), found.position, found.stop) == ([], 0, Stop.SHORT)
            with pytest.raises(ValueError, match="does not fit the buffer"):
                kernels.heads(data[:end], np.array([0], np.int64))


def test_a_record_that_begins_before_the_buffer_is_refused(kernels: EitherKernels) -> None:
    """Also if only bytes that no head is read from lie outside."""
    data = np.frombuffer(log(MAGIC_V1, 1), np.uint8)[1:].copy()

    with pytest.raises(ValueError, match="record 0 at position -1 does not fit the buffer"):
        kernels.heads(data, np.array([-1], np.int64))


def test_offsets_beyond_64_bits(kernels: EitherKernels) -> None:
    """A file may have any 20 digits as its name; no record belongs there."""
    data = np.frombuffer(log(MAGIC_V1), np.uint8)
    for base in (2**63 - len(data) // 2, 2**63, 2**64, 10**20 - 1):
        assert kernels.walk(data, 0, len(data), base, final=True, crc=True).stop is Stop.BAD_OFFSET
        assert kernels.resync(data, 0, len(data), base) == -1
        assert kernels.resync_entries(data, 0, len(data), base) == -1
