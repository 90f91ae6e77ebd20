"""What a power failure leaves of the last save is cut; what it cannot have left is refused."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from brokerset_raft import log_records
from brokerset_raft.log_records import SECTOR_BYTES, Damaged, Record, SegmentStart, Torn
from brokerset_raft.messages import Entry, EntryKind, HardState

SEQUENCE = 7

datas = st.one_of(
    st.binary(max_size=40),
    st.builds(bytes, st.integers(0, 3000)),
    st.builds(lambda size, byte: bytes((byte,)) * size, st.integers(0, 3000), st.integers(0, 255)),
    st.builds(
        lambda left, zeros, right: left + bytes(zeros) + right,
        st.binary(max_size=9),
        st.integers(0, 1500),
        st.binary(max_size=9),
    ),
)
votes = st.builds(HardState, st.integers(1, 1 << 40), st.none() | st.integers(0, 1 << 62))


@st.composite
def segments(draw: st.DrawFn) -> tuple[bytes, int]:
    """A segment of saves, and where the last save begins, at any place in a sector."""
    before = draw(st.lists(st.lists(datas, min_size=1, max_size=2), max_size=3))
    last = draw(st.lists(datas, max_size=4))
    vote = draw(st.none() | votes)
    index = 1
    content = b""
    begin = 0
    saves: list[list[Record]] = [[log_records.segment_record(SegmentStart(SEQUENCE, 0, 0, HardState()))]]
    for group in before:
        saves.append([])
        for data in group:
            saves[-1].append(log_records.entry_record(Entry(index, 1, EntryKind.DATA, data)))
            index += 1
    newest: list[Record] = []
    if vote is not None or not last:
        newest.append(log_records.hard_state_record(vote or HardState(1, 2)))
    for data in last:
        newest.append(log_records.entry_record(Entry(index, 2, EntryKind.DATA, data)))
        index += 1
    for save in [*saves, newest]:
        begin = len(content)
        content += log_records.encode_save(save, sequence=SEQUENCE, position=begin)
    return content, begin


def set_bits(data: bytes) -> int:
    """How many bits are one."""
    return int.from_bytes(data, "big").bit_count()


@given(segment=segments(), data=st.data())
def test_any_torn_tail_is_cut(segment: tuple[bytes, int], data: st.DataObject) -> None:
    """Of the last save any sectors may be missing, and its end: a prefix of its records is read."""
    content, begin = segment
    whole = log_records.scan_segment(content, sequence=SEQUENCE, last=True)
    size = data.draw(st.integers(begin, len(content)), "cut at")
    torn = bytearray(content[:size])
    for start in range(begin // SECTOR_BYTES * SECTOR_BYTES, size, SECTOR_BYTES):
        if data.draw(st.booleans(), f"sector at {start} is lost"):
            first, end = max(start, begin), min(start + SECTOR_BYTES, size)
            torn[first:end] = bytes(end - first)
    # A sector that held one set bit and no more looks like that bit changed, and is refused: a known limit.
    ends = [position for position, _ in whole.records[1:]] + [len(content)]
    for (position, _), end in zip(whole.records, ends, strict=True):
        lost = bytes(
            one ^ other for one, other in zip(torn[position:end], content[position:end], strict=False)
        )
        assume(set_bits(lost) != 1)

    scan = log_records.scan_segment(bytes(torn), sequence=SEQUENCE, last=True)

    assert not isinstance(scan.fault, Damaged), scan.fault
    assert scan.records == whole.records[: len(scan.records)]
    assert all(position >= begin for position, _ in whole.records[len(scan.records) :])
    assert isinstance(scan.fault, Torn) is (scan.end != len(torn))


@given(segment=segments(), data=st.data())
def test_every_changed_bit_is_refused(segment: tuple[bytes, int], data: st.DataObject) -> None:
    """Wherever a bit changed, and whatever zeros were written next to it, the segment is damaged."""
    content, _ = segment
    bit = data.draw(st.integers(0, 8 * len(content) - 1), "bit")
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8

    scan = log_records.scan_segment(bytes(changed), sequence=SEQUENCE, last=True)

    assert isinstance(scan.fault, Damaged), scan.fault
    assert scan.fault.position <= bit // 8
