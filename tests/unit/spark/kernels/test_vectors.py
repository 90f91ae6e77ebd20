"""Kernels on bytes that Java wrote."""

from __future__ import annotations

import struct
from itertools import product

import numpy as np
import pytest

from brokerset_formats.hashing import java_hash
from brokerset_rig.both_kernels import EitherKernels
from brokerset_spark.kernels import Stop, Texts
from brokerset_spark.kernels.contract import Bytes

RECORD = bytes.fromhex(
    "0000009ddaa320a769c865ed000000030000000500000000000000090000000000001000000000000000018bcfe568000a000001"
    "0000d4310000018bcfe5687b7f00000100002a9f0000000000000000000000000000000e48656c6c6f20526f636b65744d510954"
    "6f70696354657374002b4b455953016b31206b3202554e49515f4b4559013746303030303031303030310254414753015461674102"
)
BASE = 4096
ENTRY_HEAD = bytes.fromhex(
    "00000001 000000cd 0000000000000007 0000000000000003 0000000000000400 00000000 00000000 00000000 0000009d"
)
BLANK = bytes.fromhex("00001000 cbd43194")
LEDGER_BLANK = bytes.fromhex("ffffffff 00001000")


def array(data: bytes) -> Bytes:
    return np.frombuffer(data, np.uint8)


def int64s(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, np.int64)


def int32s(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(values, np.int32)


def test_walk(kernels: EitherKernels) -> None:
    """A record of Java is whole, and behind it the range ends."""
    found = kernels.walk(array(RECORD), 0, 157, BASE, final=True, crc=True)

    assert (found.starts.tolist(), found.sizes.tolist()) == ([0], [157])
    assert (found.position, found.stop) == (157, Stop.RANGE_END)


@pytest.mark.parametrize(
    ("behind", "final", "stop"),
    [
        (b"", True, Stop.EMPTY),
        (b"", False, Stop.SHORT),
        (BLANK + b"filler", True, Stop.BLANK),
        (bytes(100), False, Stop.EMPTY),
        (b"\0\0\0\1" * 9, True, Stop.BAD_MAGIC),
        (RECORD[:100], False, Stop.SHORT),
        (RECORD[:100], True, Stop.BAD_SIZE),
        (RECORD, True, Stop.BAD_OFFSET),
    ],
)
def test_what_stops_a_walk(kernels: EitherKernels, behind: bytes, final: bool, stop: Stop) -> None:
    """The walk says what it found instead of a record."""
    found = kernels.walk(array(RECORD + behind), 0, 1000, BASE, final=final, crc=True)

    assert found.starts.tolist() == [0]
    assert (found.position, found.stop) == (157, stop)


def test_crc(kernels: EitherKernels) -> None:
    """A changed body is told only by its CRC, and only if asked for."""
    damaged = array(RECORD.replace(b"Hello", b"hello"))

    assert kernels.walk(damaged, 0, 157, BASE, final=True, crc=False).stop is Stop.RANGE_END
    assert kernels.walk(damaged, 0, 157, BASE, final=True, crc=True).stop is Stop.BAD_CRC


def test_heads(kernels: EitherKernels) -> None:
    """All fields of Java's record are read."""
    found = kernels.heads(array(b"--" + RECORD), int64s(2))
    row = {name: column.tolist() for name, column in found._asdict().items()}

    assert row == {
        "body_crc": [1774740973], "queue_id": [3], "flag": [5], "queue_offset": [9], "offset": [4096],
        "sys_flag": [0], "born_timestamp": [1700000000000], "store_timestamp": [1700000000123],
        "reconsume_times": [0], "prepared_transaction_offset": [0], "born_host": [50], "store_host": [66],
        "body": [90], "body_size": [14], "topic": [105], "topic_size": [9], "properties": [116],
        "properties_size": [43],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [(b"KEYS", b"k1 k2"), (b"UNIQ_KEY", b"7F0000010001"), (b"TAGS", b"TagA"), (b"TAG", None), (b"EYS", None)],
)
def test_find_property(kernels: EitherKernels, name: bytes, value: bytes | None) -> None:
    """A property is found by its whole name."""
    data = array(RECORD)
    texts = kernels.find_property(data, kernels.heads(data, int64s(0)), name)

    start, size = int(texts.starts[0]), int(texts.sizes[0])
    assert (RECORD[start : start + size] if start >= 0 else None) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("TagA", 2598919),
        ("hello world", 1794106052),
        ("😀", 1772899),
        ("ß", 223),
        ("polygenelubricants", -(2**31)),
    ],
)
def test_java_hashes(kernels: EitherKernels, text: str, value: int) -> None:
    """Hashes are those of `String.hashCode`, over UTF-16 units."""
    raw = text.encode()

    assert kernels.java_hashes(array(raw), Texts(int64s(0), int32s(len(raw)))).tolist() == [value]


def test_to_entries(kernels: EitherKernels) -> None:
    """An entry has Java's head, and the record in it says where it is now; nothing around is touched."""
    out = np.full(300, 0x55, np.uint8)
    kernels.to_entries(array(RECORD), int64s(0), int32s(157), out, int64s(24), 1000, first_index=7, term=3)

    inside = RECORD[:28] + struct.pack(">q", 1024 + 48) + RECORD[36:]
    assert out.tobytes() == b"\x55" * 24 + ENTRY_HEAD + inside + b"\x55" * (300 - 24 - 205)


def test_walk_entries(kernels: EitherKernels) -> None:
    """Entries with a record and without, up to the blank at the end of the file."""
    inside = RECORD[:28] + struct.pack(">q", 1024 + 48) + RECORD[36:]
    nothing = struct.pack(">iiqqqiiii", 2, 48, 8, 4, 1024 + 205, 0, 0, 0, 0)
    data = array(ENTRY_HEAD + inside + nothing + LEDGER_BLANK)

    found = kernels.walk_entries(data, 0, len(data), 1024, index=7, final=True, crc=True)

    assert [each.tolist() for each in found[:5]] == [[0, 205], [205, 48], [7, 8], [3, 4], [True, False]]
    assert (found.position, found.stop) == (253, Stop.BLANK)
    assert kernels.walk_entries(data, 0, 300, 1024, index=6, final=True, crc=True).stop is Stop.BAD_INDEX
    assert kernels.walk_entries(data, 0, 300, 1023, index=7, final=True, crc=True).stop is Stop.BAD_OFFSET


def test_damaged_message_is_no_entry_without_one(kernels: EitherKernels) -> None:
    """Any changed bit of a record's magic, or an entry's, is damage: no message gets lost in silence."""
    inside = RECORD[:28] + struct.pack(">q", 1024 + 48) + RECORD[36:]
    whole = ENTRY_HEAD + inside
    for place in (*range(4), *range(52, 56)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            found = kernels.walk_entries(array(bytes(damaged)), 0, 205, 1024, index=7, final=True, crc=True)

            if place >= 52 and damaged[52:56] == b"\xda\xa3\x20\xab":
                assert found.stop is Stop.BAD_LENGTHS
            else:
                assert found.stop is Stop.BAD_MAGIC, (place, bit)
            assert found.starts.tolist() == []


def test_to_records(kernels: EitherKernels) -> None:
    """A record that moves says where it is now."""
    out = np.full(200, 0x55, np.uint8)
    kernels.to_records(array(b"-" + RECORD), int64s(1), int32s(157), out, int64s(3), 5000)

    assert out.tobytes() == b"\x55" * 3 + RECORD[:28] + struct.pack(">q", 5003) + RECORD[36:] + b"\x55" * 40


@pytest.mark.parametrize(
    ("start", "size", "position"),
    [
        (0, 157, 44),
        (1, 157, 0),
        (-1, 100, 0),
        (0, 35, 0),
        (0, -1, 0),
        (0, 2**31 - 1, 0),
        (2**62, 157, 0),
        (0, 157, -1),
    ],
)
def test_rows_that_leave_the_buffers(kernels: EitherKernels, start: int, size: int, position: int) -> None:
    """A row that leaves its buffers is refused."""
    out = np.zeros(200, np.uint8)
    row = array(RECORD), int64s(start), int32s(size), out, int64s(position), 0

    with pytest.raises(ValueError, match="record 0 at position"):
        kernels.to_records(*row)
    with pytest.raises(ValueError, match="record 0 at position"):
        kernels.to_entries(*row, first_index=0, term=0)
    assert not out.any()


def test_numbers_that_do_not_fit(kernels: EitherKernels) -> None:
    """Offsets, indexes and terms beyond 63 bits are refused, and so are arrays of different lengths."""
    out = np.zeros(300, np.uint8)
    row = array(RECORD), int64s(0), int32s(157), out, int64s(0)
    for base, index, term in (
        (2**63 - 100, 0, 0),
        (-1, 0, 0),
        (0, 2**63, 0),
        (0, -1, 0),
        (0, 0, 2**63),
        (0, 0, -1),
    ):
        with pytest.raises(ValueError, match="out of range"):
            kernels.to_entries(*row, base, first_index=index, term=term)
    with pytest.raises(ValueError, match="must be as many"):
        kernels.to_records(array(RECORD), int64s(0, 0), int32s(157), out, int64s(0), 0)
    with pytest.raises(ValueError, match="before the data"):
        kernels.walk(array(RECORD), -1, 157, 0, final=True, crc=False)


def test_texts_that_leave_the_buffer(kernels: EitherKernels) -> None:
    """A text outside the data is refused."""
    for start, size in ((0, 4), (3, 1), (0, -1), (2**62, 1), (1, 2**31 - 1)):
        with pytest.raises(ValueError, match="text 0 does not fit"):
            kernels.java_hashes(array(b"abc"), Texts(int64s(start), int32s(size)))


def test_entries_need_room_for_their_heads(kernels: EitherKernels) -> None:
    """An entry is refused where its record alone would fit, and written where it just fits."""
    out = np.zeros(300, np.uint8)
    for room in range(157, 205):
        with pytest.raises(ValueError, match="does not fit"):
            kernels.to_entries(
                array(RECORD), int64s(0), int32s(157), out[:room], int64s(0), 0, first_index=0, term=0
            )
    assert not out.any()
    kernels.to_entries(array(RECORD), int64s(0), int32s(157), out[:205], int64s(0), 0, first_index=0, term=0)
    assert not out[205:].any()


@pytest.mark.parametrize("mark", [BLANK, bytes(8), LEDGER_BLANK])
def test_entries_hold_no_blanks(kernels: EitherKernels, mark: bytes) -> None:
    """What ends a file stands between entries, not in one."""
    data = array(ENTRY_HEAD + mark + RECORD[8:])

    found = kernels.walk_entries(data, 0, len(data), 1024, index=7, final=True, crc=True)

    assert (found.starts.tolist(), found.stop) == ([], Stop.BAD_MAGIC)


def test_topic_lengths_are_signed(kernels: EitherKernels) -> None:
    """A length of more than 127 on one byte is negative for Java, though the record would add up."""
    for length, stop in ((127, Stop.RANGE_END), (128, Stop.BAD_LENGTHS), (255, Stop.BAD_LENGTHS)):
        record = bytearray(RECORD[:88] + bytes([length]) + b"T" * length + b"\0\0")
        struct.pack_into(">i", record, 0, len(record))
        struct.pack_into(">ii", record, 8, 0, 0)
        struct.pack_into(">i", record, 84, 0)

        data = array(bytes(record))
        assert kernels.walk(data, 0, len(data), BASE, final=True, crc=True).stop is stop
        if stop is not Stop.RANGE_END:
            with pytest.raises(ValueError, match="does not fit"):
                kernels.heads(data, int64s(0))


def test_hashes_of_what_is_no_text(kernels: EitherKernels) -> None:
    """At every border of UTF-8, what is none becomes as many U+FFFD as Python makes of it."""
    leads = bytes.fromhex("7f 80 c0 c1 c2 df e0 e1 ec ed ee ef f0 f1 f3 f4 f5 ff")
    seconds, others = bytes.fromhex("00 7f 80 8f 90 9f a0 bf c0"), bytes.fromhex("7f 80 bf c0")
    texts = [
        bytes(each)[:count] for each in product(leads, seconds, others, others) for count in (1, 2, 3, 4)
    ]
    sizes = np.array([len(each) for each in texts], np.int32)

    found = kernels.java_hashes(
        array(b"".join(texts)), Texts(np.cumsum(sizes, dtype=np.int64) - sizes, sizes)
    )

    assert found.tolist() == [java_hash(each.decode(errors="replace")) for each in texts]
