"""Files of a DLedger commit log: entries, index units, and the two small text files next to them.

Source: DLedger 0.3.1.2 (`DLedgerEntryCoder`, `DLedgerMmapFileStore`, `MemberState`). The body of an entry is
one record of the commit log, whose offset is the entry's position + 48.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping

from brokerset_formats.errors import FormatError
from brokerset_formats.lazy_dataclasses import dataclass

ENTRY_HEAD = struct.Struct(">iiqqqiiii")
"""Magic, size, index, term, position, channel, chain CRC, body CRC, body size."""

ENTRY_HEAD_SIZE = ENTRY_HEAD.size
INDEX_UNIT = struct.Struct(">iqiqq")
"""Magic, position, size, index, term: 32 bytes, at index x 32 of the index log."""

INDEX_UNIT_SIZE = INDEX_UNIT.size
BLANK = struct.Struct(">ii")
"""End of a data file: magic -1, then the free bytes (the commit log has them the other way round)."""

MAGIC_NORMAL = 1
MAGIC_BLANK = -1

NUMBER_END = 1 << 58
"""No pushed index, term or position is so large: 32 bytes for each index would not fit into 63 bits."""

TEXT_SIZE_MAX = 65_536
"""Bytes of `currterm` or `checkpoint`; real ones have fewer than a hundred."""

Readable = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One entry; `position` is its byte address in the data log. The CRCs are never computed by DLedger."""

    index: int
    term: int
    position: int
    body: bytes
    magic: int = MAGIC_NORMAL
    channel: int = 0
    chain_crc: int = 0
    body_crc: int = 0

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return ENTRY_HEAD_SIZE + len(self.body)

    @property
    def record_offset(self) -> int:
        """Offset of the record inside, which is what queues, indexes and clients see."""
        return self.position + ENTRY_HEAD_SIZE

    def encode(self) -> bytes:
        """The entry's bytes."""
        crcs = self.channel, self.chain_crc, self.body_crc
        head = self.magic, self.size, self.index, self.term, self.position, *crcs, len(self.body)
        return ENTRY_HEAD.pack(*head) + self.body

    def to_json(self) -> dict[str, object]:
        """The entry as members push it to each other (fastjson of `DLedgerEntry`)."""
        return {
            "body": base64.b64encode(self.body).decode(),
            "bodyCrc": self.body_crc,
            "chainCrc": self.chain_crc,
            "channel": self.channel,
            "index": self.index,
            "magic": self.magic,
            "pos": self.position,
            "size": self.size,
            "term": self.term,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, object]) -> LedgerEntry:
        """Read a pushed entry; FormatError if a field is missing or the size is not that of the body."""
        text = values.get("body")
        try:
            body = base64.b64decode(text if isinstance(text, str) else "?", validate=True)
        except ValueError as error:
            raise FormatError("an entry whose body is no base64") from error
        entry = cls(
            _integer(values, "index"),
            _integer(values, "term"),
            _integer(values, "pos"),
            body,
            _integer(values, "magic"),
            *(_integer(values, name, 0) for name in ("channel", "chainCrc", "bodyCrc")),
        )
        numbers = (entry.index, entry.term, entry.position)
        if entry.magic != MAGIC_NORMAL or not all(0 <= number < NUMBER_END for number in numbers):
            raise FormatError(f"entry {entry.index} of term {entry.term} at {entry.position}")
        if _integer(values, "size", entry.size) != entry.size:
            raise FormatError(f"entry {entry.index} of {values['size']} bytes, with a body of {len(body)}")
        return entry


@dataclass(frozen=True, slots=True)
class LedgerBlank:
    """The rest of a data file is empty; `size` bytes with this mark."""

    size: int

    def encode(self) -> bytes:
        """The mark; zeros follow it to the end of the file."""
        return BLANK.pack(MAGIC_BLANK, self.size)


def decode_entry(buffer: Readable, position: int = 0) -> LedgerEntry | LedgerBlank:
    """Read what begins at `position` of the buffer; FormatError if it is neither an entry nor a blank."""
    available = len(buffer) - position
    if position < 0 or available < BLANK.size:
        raise FormatError("the data ends inside an entry", position)
    magic, size = BLANK.unpack_from(buffer, position)
    if magic == MAGIC_BLANK:
        if size < BLANK.size:
            raise FormatError(f"a blank of {size} bytes", position)
        return LedgerBlank(size)
    if magic != MAGIC_NORMAL:
        raise FormatError(f"entry magic {magic}", position)
    if not ENTRY_HEAD_SIZE <= size <= available:
        raise FormatError(f"an entry of {size} bytes where {available} are left", position)
    _, _, index, term, place, channel, chain_crc, body_crc, body_size = ENTRY_HEAD.unpack_from(
        buffer, position
    )
    if body_size != size - ENTRY_HEAD_SIZE:
        raise FormatError(f"entry size {size} with a body of {body_size}", position)
    if index < 0 or term < 0 or place < 0:
        raise FormatError(f"entry {index} of term {term} at {place}", position)
    start = position + ENTRY_HEAD_SIZE
    body = bytes(buffer[start : start + body_size])
    return LedgerEntry(index, term, place, body, magic, channel, chain_crc, body_crc)


@dataclass(frozen=True, slots=True)
class LedgerUnit:
    """Where one entry lies in the data log."""

    position: int
    size: int
    index: int
    term: int
    magic: int = MAGIC_NORMAL

    @classmethod
    def of(cls, entry: LedgerEntry) -> LedgerUnit:
        """The unit of an entry."""
        return cls(entry.position, entry.size, entry.index, entry.term, entry.magic)

    def encode(self) -> bytes:
        """The unit's 32 bytes."""
        return INDEX_UNIT.pack(self.magic, self.position, self.size, self.index, self.term)

    @classmethod
    def decode(cls, buffer: Readable, position: int = 0) -> LedgerUnit:
        """Read a unit; FormatError if there is none."""
        if position < 0 or position + INDEX_UNIT_SIZE > len(buffer):
            raise FormatError("the data ends inside an index unit", position)
        magic, place, size, index, term = INDEX_UNIT.unpack_from(buffer, position)
        if magic != MAGIC_NORMAL or place < 0 or size < ENTRY_HEAD_SIZE or index < 0 or term < 0:
            raise FormatError(f"no index unit: magic {magic}, size {size}, index {index}", position)
        return cls(place, size, index, term, magic)


@dataclass(frozen=True, slots=True)
class RunUnits:
    """What the heads of a run say: its index units, one behind the other, and its terms."""

    units: bytes
    first_term: int
    last_term: int


@dataclass(frozen=True, slots=True)
class LedgerRun:
    """Consecutive entries of one data file, as they stand there: what a member pushes in one piece."""

    first_index: int
    count: int
    position: int
    data: bytes

    @property
    def last_index(self) -> int:
        """Index of its last entry."""
        return self.first_index + self.count - 1

    def check(self) -> RunUnits:
        """Read all heads; FormatError if one is not that of the entry which belongs there."""
        data, end = self.data, len(self.data)
        if not 0 < self.count <= end // ENTRY_HEAD_SIZE:
            raise FormatError(f"a run of {self.count} entries in {end} bytes")
        if not (0 <= self.position < NUMBER_END and 0 <= self.first_index < NUMBER_END - self.count):
            raise FormatError(f"a run from entry {self.first_index} at {self.position}")
        units = bytearray(self.count * INDEX_UNIT_SIZE)
        read, write = ENTRY_HEAD.unpack_from, INDEX_UNIT.pack_into
        start = unit = 0
        term_before = first_term = term = -1
        for expected in range(self.first_index, self.first_index + self.count):
            if start + ENTRY_HEAD_SIZE > end:
                raise FormatError("a run ends inside an entry", start)
            magic, size, index, term, place, _, _, _, body_size = read(data, start)
            if magic != MAGIC_NORMAL or index != expected or place != self.position + start:
                raise FormatError(f"entry {index} at {place} in the place of {expected}", start)
            if size < ENTRY_HEAD_SIZE or body_size != size - ENTRY_HEAD_SIZE or start + size > end:
                raise FormatError(f"entry {index} of {size} bytes with a body of {body_size}", start)
            if not 0 <= term < NUMBER_END or term < term_before:
                raise FormatError(f"entry {index} of term {term} behind one of {term_before}", start)
            write(units, unit, magic, place, size, index, term)
            if unit == 0:
                first_term = term
            start, unit, term_before = start + size, unit + INDEX_UNIT_SIZE, term
        if start != end:
            raise FormatError(f"{end - start} bytes behind a run", start)
        return RunUnits(bytes(units), first_term, term)

    def entries(self) -> tuple[LedgerEntry, ...]:
        """Its entries one by one; FormatError as in `check`."""
        self.check()
        found: list[LedgerEntry] = []
        start = 0
        while start < len(self.data):
            entry = decode_entry(self.data, start)
            assert isinstance(entry, LedgerEntry), "its heads were checked"
            found.append(entry)
            start += entry.size
        return tuple(found)


@dataclass(frozen=True, slots=True)
class CurrentTerm:
    """`currterm`: the newest term that a node has seen, and whom it voted for in it."""

    term: int = 0
    voted_for: str | None = None

    def encode(self) -> bytes:
        """The file's bytes."""
        voted = f"voteLeader={self.voted_for}\n" if self.voted_for else ""
        return f"{voted}currTerm={self.term}\n".encode()

    @classmethod
    def decode(cls, data: bytes) -> CurrentTerm:
        """Read the file."""
        values = _properties(data)
        return cls(_number(values, "currTerm"), values.get("voteLeader") or None)


@dataclass(frozen=True, slots=True)
class LedgerCheckpoint:
    """`checkpoint` of a DLedger: -1 where there is no entry."""

    committed_index: int = -1
    end_index: int = -1

    def encode(self) -> bytes:
        """The file's bytes."""
        return f"committedIndex={self.committed_index}\nendIndex={self.end_index}\n".encode()

    @classmethod
    def decode(cls, data: bytes) -> LedgerCheckpoint:
        """Read the file."""
        values = _properties(data)
        return cls(_number(values, "committedIndex"), _number(values, "endIndex"))


def _integer(values: Mapping[str, object], name: str, absent: int | None = None) -> int:
    value = values.get(name, absent)
    if not isinstance(value, int) or isinstance(value, bool) or not -(2**63) <= value < 2**63:
        raise FormatError(f"{name} of an entry is {str(value)[:60]!r} instead of a number")
    return value


def _properties(data: bytes) -> dict[str, str]:
    if len(data) > TEXT_SIZE_MAX:
        raise FormatError(f"a properties file of {len(data)} bytes")
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError as error:
        raise FormatError("a properties file that is not UTF-8", error.start) from error
    found = {}
    for line in lines:
        if line.strip() and not line.lstrip().startswith(("#", "!")):
            name, _, value = line.partition("=")
            found[name.strip()] = value.strip()
    return found


def _number(values: Mapping[str, str], name: str) -> int:
    text = values.get(name, "")
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 19):
        raise FormatError(f"{name} is {text[:60]!r} instead of a number")
    return int(text)
