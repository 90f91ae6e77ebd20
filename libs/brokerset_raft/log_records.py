"""What the files of a raft node hold: records of log segments, headers of snapshots. Bytes in, values out.

A record is `length, CRC-32, index, term, kind, back, data`, big-endian. Its CRC also covers the number of the
segment and the position in it, so that neither stale blocks nor a record inside a command's data pass for
one. `back` is the distance to the first record of the same save. As a save begins only after everything
before it was synced, any readable record proves that all bytes before the beginning of its save had been on
the disk.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from brokerset_raft.configuration import Configuration
from brokerset_raft.messages import Entry, EntryKind, HardState, SnapshotMeta

FORMAT_VERSION = 1
"""Of segments and snapshots; files of another version are refused."""

ENTRY_BYTES_MAX = 8 << 20
"""Most bytes of one entry's data; a larger proposal is refused before it enters the log."""

CONFIGURATION_BYTES_MAX = 64 << 10
"""Most bytes of an encoded configuration in a snapshot's meta."""

SECTOR_BYTES = 512
"""What a disk writes as a whole, at least; a sector that never arrived reads as zeros."""

FLIP_SEARCH_BYTES_MAX = 64 << 10
"""Records up to this size are searched for a single flipped bit; larger ones would also match by chance."""

_HEADER = struct.Struct(">IIQQBI")
_PREFIX = struct.Struct(">II")
_SALT = struct.Struct(">QQ")
_SEGMENT = struct.Struct(">HQQBQ")
_HARD_STATE = struct.Struct(">BQ")
_META = struct.Struct(">QQQII")
_SNAPSHOT = struct.Struct(">8sHII")
_SNAPSHOT_MAGIC = b"BRKSNAP\0"

_REST_MIN = _HEADER.size - _PREFIX.size
_REST_MAX = _REST_MIN + ENTRY_BYTES_MAX

_CRC_OF_BYTE = tuple(zlib.crc32(bytes((byte,))) ^ zlib.crc32(b"\0") for byte in range(256))
_CRC_BYTE_OF_TOP = {crc >> 24: byte for byte, crc in enumerate(_CRC_OF_BYTE)}
_CRC_OF_BIT = frozenset(_CRC_OF_BYTE[1 << bit] for bit in range(8))

_PLAUSIBLE = re.compile(
    rb"(?=[\x00](?!\x00\x00\x00)[\s\S]{3}[\s\S]{4}[\x00]{2}[\s\S]{6}[\x00]{2}[\s\S]{6}[\x00-\x02\x10\x11])"
)
"""Where a record may begin: its length fits, index and term are below 2**48, its kind is known."""


class RecordKind(IntEnum):
    """What a record is: an entry of that kind, or something about the log."""

    NOOP = EntryKind.NOOP
    DATA = EntryKind.DATA
    CONFIGURATION = EntryKind.CONFIGURATION
    HARD_STATE = 16
    """`term` and, as data, the vote."""

    SEGMENT = 17
    """First of each segment: `index` and `term` of the entry before it; version, sequence and hard state."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record. `data` is a copy of its own."""

    index: int
    term: int
    kind: RecordKind
    data: bytes


@dataclass(frozen=True, slots=True)
class Whole:
    """A record that can be read."""

    record: Record
    end: int
    """Position of the next record."""

    save: int
    """Position of the first record of the same save: everything before that was synced."""


@dataclass(frozen=True, slots=True)
class Broken:
    """No record can be read here."""

    reason: str


@dataclass(frozen=True, slots=True)
class Torn:
    """The end of a segment in which the power went: truncate it. Nothing of it was promised."""

    position: int
    reason: str


@dataclass(frozen=True, slots=True)
class Damaged:
    """Bytes that had been synced cannot be read."""

    position: int
    reason: str


@dataclass(frozen=True, slots=True)
class SegmentStart:
    """What the first record of a segment says."""

    sequence: int
    base_index: int
    """The entry before the first of this segment; entries above it in older segments are void."""

    base_term: int
    """Its term; with another term in the older segments all of their entries are void."""

    hard_state: HardState


@dataclass(frozen=True, slots=True)
class Scan:
    """A segment that was read to its end, or to the first fault."""

    records: tuple[tuple[int, Record], ...]
    """With their positions."""

    end: int
    """Where the readable part ends."""

    fault: Torn | Damaged | None


def encode_record(record: Record, *, sequence: int, position: int, save: int) -> bytes:
    """A record for `position` of segment `sequence`, in a save that began at position `save`."""
    assert len(record.data) <= ENTRY_BYTES_MAX, f"{len(record.data)} bytes are more than {ENTRY_BYTES_MAX}"
    packed = _HEADER.pack(
        _REST_MIN + len(record.data), 0, record.index, record.term, record.kind, position - save
    )
    crc = zlib.crc32(packed[8:], zlib.crc32(packed[:4], _salt(sequence, position)))
    crc = zlib.crc32(record.data, crc)
    return b"".join((packed[:4], crc.to_bytes(4, "big"), packed[8:], record.data))


def encode_save(records: Iterable[Record], *, sequence: int, position: int) -> bytes:
    """All records of one save, which is written at `position` and synced once."""
    parts: list[bytes] = []
    at = position
    for record in records:
        part = encode_record(record, sequence=sequence, position=at, save=position)
        parts.append(part)
        at += len(part)
    return b"".join(parts)


def ends_in_one_bit(save: bytes, *, position: int) -> bool:
    """Whether a save at `position` leaves one set bit in its last sector.

    Losing that sector would look like that bit changed, so such a save needs another record behind it.
    """
    end = position + len(save)
    tail = save[max(0, end - 1 - (end - 1) % SECTOR_BYTES - position) :]
    return int.from_bytes(tail, "big").bit_count() == 1


def decode_record(content: bytes, position: int, *, sequence: int) -> Whole | Broken:
    """The record at `position` of a segment's content."""
    left = len(content) - position
    if left < _HEADER.size:
        return Broken(f"{left} bytes are less than the {_HEADER.size} of a record's header")
    length, crc, index, term, kind, back = _HEADER.unpack_from(content, position)
    if not _REST_MIN <= length <= _REST_MAX:
        return Broken(f"{length} is no length of a record")
    end = position + _PREFIX.size + length
    if end > len(content):
        return Broken(f"the record has {length + _PREFIX.size} bytes, but only {left} are left")
    found = _crc(content, position, length, sequence)
    if found != crc:
        return Broken(f"the CRC is {found:#010x} and should be {crc:#010x}")
    if back > position:
        return Broken("its save would begin before the segment")
    try:
        known = RecordKind(kind)
    except ValueError:
        return Broken(f"{kind} is no kind of a record that this version knows")
    data = content[position + _HEADER.size : end]
    return Whole(Record(index, term, known, data), end, position - back)


def scan_segment(content: bytes, *, sequence: int, last: bool) -> Scan:
    """Read a segment. Only the end of the `last` one can be torn; whatever else is broken is damaged."""
    records: list[tuple[int, Record]] = []
    position = 0
    while position < len(content):
        found = decode_record(content, position, sequence=sequence)
        if isinstance(found, Broken):
            fault = _judge(content, position, found.reason, sequence, last)
            return Scan(tuple(records), position, fault)
        records.append((position, found.record))
        position = found.end
    return Scan(tuple(records), position, None)


def entry_record(entry: Entry) -> Record:
    """The record that keeps an entry."""
    return Record(entry.index, entry.term, RecordKind(entry.kind), entry.data)


def record_entry(record: Record) -> Entry:
    """The entry that a record keeps; it must be of an entry's kind."""
    return Entry(record.index, record.term, EntryKind(record.kind), record.data)


def hard_state_record(state: HardState) -> Record:
    """The record that keeps a hard state."""
    return Record(0, state.term, RecordKind.HARD_STATE, _pack_vote(state))


def record_hard_state(record: Record) -> HardState:
    """The hard state that a record keeps. Raises `ValueError`."""
    if len(record.data) != _HARD_STATE.size:
        raise ValueError(f"{len(record.data)} bytes are no hard state")
    voted, voted_for = _HARD_STATE.unpack(record.data)
    return HardState(record.term, voted_for if voted else None)


def segment_record(start: SegmentStart) -> Record:
    """The first record of a segment."""
    state = start.hard_state
    data = _SEGMENT.pack(
        FORMAT_VERSION, start.sequence, state.term, state.voted_for is not None, state.voted_for or 0
    )
    return Record(start.base_index, start.base_term, RecordKind.SEGMENT, data)


def record_segment(record: Record) -> SegmentStart:
    """What the first record of a segment says. Raises `ValueError`, also for another version."""
    if record.kind is not RecordKind.SEGMENT or len(record.data) < 2:
        raise ValueError("the segment does not begin with its header")
    version = int.from_bytes(record.data[:2], "big")
    if version != FORMAT_VERSION or len(record.data) != _SEGMENT.size:
        raise ValueError(f"format version {version} is not {FORMAT_VERSION}, the one this program reads")
    _, sequence, term, voted, voted_for = _SEGMENT.unpack(record.data)
    return SegmentStart(sequence, record.index, record.term, HardState(term, voted_for if voted else None))


def encode_meta(meta: SnapshotMeta) -> bytes:
    """The meta of a snapshot, for its file and for the wire."""
    configuration = meta.configuration.encode()
    assert len(configuration) <= CONFIGURATION_BYTES_MAX, "a configuration of impossible size"
    return _META.pack(meta.index, meta.term, meta.size, meta.crc, len(configuration)) + configuration


def decode_meta(data: bytes | memoryview, position: int = 0) -> tuple[SnapshotMeta, int]:
    """The meta at `position`, and where it ends. Raises `ValueError`."""
    if len(data) - position < _META.size:
        raise ValueError("the meta of a snapshot is truncated")
    index, term, size, crc, length = _META.unpack_from(data, position)
    begin = position + _META.size
    if length > CONFIGURATION_BYTES_MAX or length > len(data) - begin:
        raise ValueError(f"a configuration of {length} bytes is too long")
    configuration = Configuration.decode(bytes(data[begin : begin + length]))
    return SnapshotMeta(index, term, configuration, size, crc), begin + length


def encode_snapshot_header(meta: SnapshotMeta) -> bytes:
    """What stands before the state in a snapshot's file."""
    body = encode_meta(meta)
    return _SNAPSHOT.pack(_SNAPSHOT_MAGIC, FORMAT_VERSION, len(body), zlib.crc32(body)) + body


def decode_snapshot_header(content: bytes) -> tuple[SnapshotMeta, int]:
    """The meta of a snapshot's file, and where the state begins. Raises `ValueError`."""
    if len(content) < _SNAPSHOT.size:
        raise ValueError("the file is shorter than a snapshot's header")
    magic, version, length, crc = _SNAPSHOT.unpack_from(content)
    if magic != _SNAPSHOT_MAGIC:
        raise ValueError("the file does not begin like a snapshot")
    if version != FORMAT_VERSION:
        raise ValueError(f"format version {version} is not {FORMAT_VERSION}, the one this program reads")
    body = content[_SNAPSHOT.size : _SNAPSHOT.size + length]
    if len(body) != length or zlib.crc32(body) != crc:
        raise ValueError("the CRC of the snapshot's header is wrong")
    meta, end = decode_meta(body)
    if end != length:
        raise ValueError("the snapshot's header has bytes too many")
    return meta, _SNAPSHOT.size + length


def check_snapshot(content: bytes) -> tuple[SnapshotMeta, bytes]:
    """Meta and state of a snapshot's file. Raises `ValueError` when any of it is not as it was written."""
    meta, begin = decode_snapshot_header(content)
    data = content[begin:]
    if len(data) != meta.size:
        raise ValueError(f"the state has {len(data)} bytes and should have {meta.size}")
    if zlib.crc32(data) != meta.crc:
        raise ValueError("the CRC of the state is wrong")
    return meta, data


def encode_initial(members: Configuration) -> bytes:
    """The file that remembers a group's first members: the CRC-32 of the rest in hex, a space, JSON."""
    data = members.encode()
    return b"%08x " % zlib.crc32(data) + data


def decode_initial(content: bytes) -> Configuration:
    """Raises `ValueError` when any of it is not as it was written."""
    crc, _, data = content.partition(b" ")
    if crc != b"%08x" % zlib.crc32(data):
        raise ValueError("the CRC of the first members is wrong")
    return Configuration.decode(data)


def _judge(content: bytes, position: int, reason: str, sequence: int, last: bool) -> Torn | Damaged:
    """Tell an end that never got to the disk from synced bytes that were lost: etcd's rule, and one more.

    A record is torn if it is cut short, or if all of it that lies in one sector is zeros. Zeros may also be
    what was written, and a length may be what changed, so a record that one flipped bit explains is damaged.
    """
    if not last:
        return Damaged(position, reason)
    end = len(content)
    for match in _PLAUSIBLE.finditer(content, position + 1):
        later = match.start()
        found = decode_record(content, later, sequence=sequence)
        if isinstance(found, Broken):
            continue
        if found.save > position:
            return Damaged(position, f"{reason}; the record at {later} was written after it had been synced")
        end = min(end, later)
    left = end - position
    length = int.from_bytes(content[position : position + 4], "big")
    if _has_other_length(content, position, sequence) or (
        _is_one_bit_off(content, position, sequence)
        and not _is_sector_lost_behind(content, position + _PREFIX.size + length)
    ):
        return Damaged(position, f"{reason}; one changed bit, or another length, explains that")
    if left < _HEADER.size or _PREFIX.size + length > left:
        cut_short = end == len(content) and (left < _HEADER.size or _REST_MIN <= length <= _REST_MAX)
        if cut_short:
            return Torn(position, reason)
    elif length >= _REST_MIN:
        end = position + _PREFIX.size + length
    if _has_lost_sector(content, position, end):
        return Torn(position, reason)
    return Damaged(position, f"{reason}; it is not cut short, and no sector of it is missing")


def _has_lost_sector(content: bytes, begin: int, end: int) -> bool:
    """Whether what a sector holds of this range is nothing but zeros."""
    while begin < end:
        chunk = content[begin : min(end, begin + SECTOR_BYTES - begin % SECTOR_BYTES)]
        if chunk.count(0) == len(chunk):
            return True
        begin += len(chunk)
    return False


def _is_sector_lost_behind(content: bytes, end: int) -> bool:
    """Whether the file goes on behind a record in the sector that it ends in, which is all zeros."""
    begin = (end - 1) - (end - 1) % SECTOR_BYTES
    sector = content[begin : begin + SECTOR_BYTES]
    return begin + len(sector) > end and not any(sector)


def _has_other_length(content: bytes, position: int, sequence: int) -> bool:
    """Whether the record would be whole with a length one bit off, or with that of what is left."""
    left = len(content) - position - _PREFIX.size
    if left < _REST_MIN:
        return False
    length, crc = _PREFIX.unpack_from(content, position)
    return any(
        _REST_MIN <= other <= min(left, _REST_MAX) and _crc(content, position, other, sequence) == crc
        for other in (length, left, *(length ^ 1 << bit for bit in range(32)))
    )


def _is_one_bit_off(content: bytes, position: int, sequence: int) -> bool:
    """Whether the record would be whole with one bit of its CRC, or of what follows that, changed."""
    left = len(content) - position - _PREFIX.size
    if left < _REST_MIN:
        return False
    length, crc = _PREFIX.unpack_from(content, position)
    if not _REST_MIN <= length <= min(left, FLIP_SEARCH_BYTES_MAX):
        return False
    difference = crc ^ _crc(content, position, length, sequence)
    if difference.bit_count() == 1:
        return True
    for _ in range(length):  # from the last byte on: the CRC is linear, so each step can be undone
        if difference in _CRC_OF_BIT:
            return True
        byte = _CRC_BYTE_OF_TOP[difference >> 24]
        difference = ((difference ^ _CRC_OF_BYTE[byte]) & 0xFFFFFF) << 8 | byte
    return False


def _crc(content: bytes, position: int, length: int, sequence: int) -> int:
    """The CRC of the record at a position, as if it had this length."""
    view = memoryview(content)
    crc = zlib.crc32(length.to_bytes(4, "big"), _salt(sequence, position))
    return zlib.crc32(view[position + _PREFIX.size : position + _PREFIX.size + length], crc)


def _pack_vote(state: HardState) -> bytes:
    return _HARD_STATE.pack(state.voted_for is not None, state.voted_for or 0)


def _salt(sequence: int, position: int) -> int:
    return zlib.crc32(_SALT.pack(sequence, position))
