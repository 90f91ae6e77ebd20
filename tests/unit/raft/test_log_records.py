"""Records of segments and headers of snapshots."""

from __future__ import annotations

import zlib

import pytest

from brokerset_raft import log_records
from brokerset_raft.configuration import Configuration, Member
from brokerset_raft.log_records import Broken, Damaged, Record, RecordKind, SegmentStart, Torn, Whole
from brokerset_raft.messages import Entry, EntryKind, HardState, SnapshotMeta

START = SegmentStart(3, 40, 6, HardState(7, 2))


def entry(index: int, data: bytes = b"some data") -> Record:
    return log_records.entry_record(Entry(index, 7, EntryKind.DATA, data))


def saves(*records: list[Record]) -> tuple[bytes, list[int]]:
    """A segment of several saves, and where each begins."""
    content, begins = b"", []
    for save in records:
        begins.append(len(content))
        content += log_records.encode_save(save, sequence=3, position=len(content))
    return content, begins


SEGMENT, (_, SECOND, THIRD) = saves(
    [log_records.segment_record(START), entry(41)], [entry(42), entry(43)], [entry(44), entry(45)]
)


def test_records_come_back() -> None:
    """What was written is read, with positions; entries, votes and headers keep all that they hold."""
    scan = log_records.scan_segment(SEGMENT, sequence=3, last=True)

    assert scan.fault is None
    assert scan.end == len(SEGMENT)
    assert log_records.record_segment(scan.records[0][1]) == START
    assert [log_records.record_entry(r).index for _, r in scan.records[1:]] == [41, 42, 43, 44, 45]
    for state in (HardState(9, None), HardState(9, 0), HardState(9, 5)):
        assert log_records.record_hard_state(log_records.hard_state_record(state)) == state


@pytest.mark.parametrize("size", range(len(SEGMENT)))
def test_every_cut_is_a_torn_end(size: int) -> None:
    """A segment cut anywhere is readable up to the last whole record, and the rest is torn."""
    scan = log_records.scan_segment(SEGMENT[:size], sequence=3, last=True)

    whole = log_records.scan_segment(SEGMENT, sequence=3, last=True).records
    assert scan.records == whole[: len(scan.records)]
    assert scan.end == (whole[len(scan.records)][0])
    assert isinstance(scan.fault, Torn) is (scan.end != size)


@pytest.mark.parametrize("position", range(len(SEGMENT)))
def test_every_flipped_byte_is_found(position: int) -> None:
    """It is damage wherever it lies, in the last record too: no power failure leaves such a thing."""
    content = bytearray(SEGMENT)
    content[position] ^= 0x10

    scan = log_records.scan_segment(bytes(content), sequence=3, last=True)
    sealed = log_records.scan_segment(bytes(content), sequence=3, last=False)

    assert isinstance(scan.fault, Damaged)
    assert isinstance(sealed.fault, Damaged)


def test_pages_of_one_save_arrive_in_any_order() -> None:
    """Zeros within the last save are a torn end, although what follows them in that save can be read."""
    content, (_, begin) = saves(
        [log_records.segment_record(START)], [entry(41, b"x" * 3000), entry(42), entry(43)]
    )
    torn = content[:1024] + bytes(512) + content[1536:]

    scan = log_records.scan_segment(torn, sequence=3, last=True)

    assert scan.fault == Torn(begin, scan.fault.reason if scan.fault else "")


def test_zeros_before_a_later_save_are_damage() -> None:
    """A later save proves that the bytes before it were on the disk."""
    content, (_, begin, _) = saves(
        [log_records.segment_record(START)], [entry(41, b"x" * 3000), entry(42)], [entry(43)]
    )
    lost = content[:1024] + bytes(512) + content[1536:]

    scan = log_records.scan_segment(lost, sequence=3, last=True)

    assert isinstance(scan.fault, Damaged)
    assert scan.fault.position == begin


@pytest.mark.parametrize("tail", [bytes(1), bytes(4096), bytes(100_000), b"\0\0\0\x40 cut short"])
def test_a_tail_of_zeros_or_a_cut_record_is_torn(tail: bytes) -> None:
    """File systems leave such tails after a power failure."""
    scan = log_records.scan_segment(SEGMENT + tail, sequence=3, last=True)

    assert isinstance(scan.fault, Torn)
    assert scan.end == len(SEGMENT)


@pytest.mark.parametrize("tail", [b"\xff" * 700, bytes(100) + b"\xff" * 700])
def test_a_tail_of_garbage_is_damaged(tail: bytes) -> None:
    """No power failure leaves such a tail of what was written, so something else happened to the file."""
    scan = log_records.scan_segment(SEGMENT + tail, sequence=3, last=True)

    assert isinstance(scan.fault, Damaged)
    assert scan.fault.position == len(SEGMENT)


def test_a_flipped_bit_beside_zeros_that_were_written_is_damage() -> None:
    """An entry may hold sectors of zeros; they do not make a changed bit look like a sector that got lost."""
    content, (_, begin) = saves([log_records.segment_record(START)], [entry(41, b"x" + bytes(3000) + b"x")])
    for position in (
        begin + 3,
        begin + 5,
        begin + 20,
        begin + 28,
        begin + 29,
        begin + 1500,
        len(content) - 1,
    ):
        for bit in range(8):
            changed = bytearray(content)
            changed[position] ^= 1 << bit

            fault = log_records.scan_segment(bytes(changed), sequence=3, last=True).fault

            assert isinstance(fault, Damaged), (position, bit)
            assert fault.position == begin


def test_records_inside_data_prove_nothing() -> None:
    """A torn entry whose data is a segment itself is still a torn end, not damage."""
    content, (_, begin) = saves([log_records.segment_record(START)], [entry(41, SEGMENT + bytes(50))])

    scan = log_records.scan_segment(content[:-10], sequence=3, last=True)

    assert isinstance(scan.fault, Torn)
    assert scan.end == begin


def test_records_belong_to_their_place() -> None:
    """A record of another segment, or another position, is none."""
    one = log_records.encode_record(entry(1), sequence=3, position=0, save=0)

    assert isinstance(log_records.decode_record(one, 0, sequence=3), Whole)
    assert isinstance(log_records.decode_record(one, 0, sequence=4), Broken)
    assert isinstance(log_records.decode_record(b"x" + one, 1, sequence=3), Broken)


def test_other_versions_are_refused() -> None:
    """The error names both versions."""
    record = log_records.segment_record(START)
    newer = Record(record.index, record.term, record.kind, b"\0\x09" + record.data[2:])

    with pytest.raises(ValueError, match="version 9 is not 1"):
        log_records.record_segment(newer)
    with pytest.raises(ValueError, match="does not begin"):
        log_records.record_segment(entry(1))
    with pytest.raises(ValueError, match="no hard state"):
        log_records.record_hard_state(Record(0, 1, RecordKind.HARD_STATE, b""))


STATE = b"the whole state"
META = SnapshotMeta(9, 3, Configuration((Member(1, "h:1", "h:2"),)), size=len(STATE), crc=zlib.crc32(STATE))
SNAPSHOT = log_records.encode_snapshot_header(META) + STATE


def test_snapshots_come_back() -> None:
    """Meta and state are what was written."""
    assert log_records.check_snapshot(SNAPSHOT) == (META, STATE)


@pytest.mark.parametrize("position", range(len(SNAPSHOT)))
def test_damaged_snapshots_are_refused(position: int) -> None:
    """No changed byte and no cut passes."""
    changed = bytearray(SNAPSHOT)
    changed[position] ^= 1

    with pytest.raises(ValueError, match=r"."):
        log_records.check_snapshot(bytes(changed))
    with pytest.raises(ValueError, match=r"."):
        log_records.check_snapshot(SNAPSHOT[:position])
