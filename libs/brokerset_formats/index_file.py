"""Index files: from a key's hash to the offsets of the messages that have the key, newest first.

A header of 40 bytes, then slots (i32, the newest unit of each), then units of 20 bytes that are chained
through `previous`. Unit 0 is never used. Source: RocketMQ's `IndexFile`, `IndexHeader`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import astuple
from functools import lru_cache

from brokerset_formats import native
from brokerset_formats.cursors import Buffer, IndexCursor
from brokerset_formats.errors import FormatError
from brokerset_formats.lazy_dataclasses import dataclass

HEADER = struct.Struct(">qqqqii")
"""Begin and end timestamp, begin and end offset, used slots, number of the next unit (from 1)."""

UNIT = struct.Struct(">iqii")
"""Key hash, offset in the commit log, seconds since the begin timestamp, previous unit of the slot."""

SLOT = struct.Struct(">i")

ENTRY = struct.Struct(">iqq")
"""Not of the file: what the native core makes of each key of a message: key hash, offset, store time (ms)."""

SLOTS_DEFAULT = 5_000_000
UNITS_DEFAULT = 20_000_000

CHAIN_STEPS_MAX = 200_000
"""Units that one query follows in a file, about 0.1 s; older messages of so frequent a key are not found."""

_SECONDS_MAX = 0x7FFFFFFF
_read_slot = SLOT.unpack_from
_write_slot = SLOT.pack_into
_read_unit = UNIT.unpack_from
_write_unit = UNIT.pack_into
_write_header = HEADER.pack_into


@lru_cache(maxsize=256)
def _units_struct(count: int) -> struct.Struct:
    """Several neighbouring units in one."""
    return struct.Struct(">" + "iqii" * count)


_HEADER_SIZE = HEADER.size
_SLOT_SIZE = SLOT.size
_UNIT_SIZE = UNIT.size


def file_size(slots: int, units: int) -> int:
    """Bytes of a file: 420,000,040 with the default sizes."""
    return _HEADER_SIZE + slots * _SLOT_SIZE + units * _UNIT_SIZE


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """The first 40 bytes. Timestamps in milliseconds; `next_unit` is 1 in a new file."""

    begin_timestamp: int = 0
    end_timestamp: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    slots_used: int = 0
    next_unit: int = 1

    def encode(self) -> bytes:
        """The header's bytes."""
        return HEADER.pack(*astuple(self))

    @classmethod
    def decode(cls, buffer: Buffer) -> IndexHeader:
        """Read the header; FormatError if the numbers are impossible. A file of zeros counts as new."""
        if len(buffer) < _HEADER_SIZE:
            raise FormatError(f"an index file of {len(buffer)} bytes")
        header = cls(*HEADER.unpack_from(buffer, 0))
        if header.next_unit == header.slots_used == 0:  # created, and the process died before the first put
            return cls(*HEADER.unpack_from(buffer, 0)[:4])
        if header.next_unit < 1 or not 0 <= header.slots_used < header.next_unit:
            raise FormatError(f"index header with {header.slots_used} slots, next unit {header.next_unit}")
        if header.begin_offset < 0 or header.end_offset < header.begin_offset:
            raise FormatError(f"index header from offset {header.begin_offset} to {header.end_offset}")
        return header


class IndexTable(IndexCursor):
    """One index file over a writable buffer of `file_size` bytes.

    The header's fields live in this object; `write_header` stores them, once for each message is enough:
    units beyond the stored number are ignored by readers.
    """

    __slots__ = ("_units_position",)

    def __init__(self, buffer: Buffer, slots: int, units: int) -> None:
        """FormatError if the buffer has another size, or a header that cannot be."""
        if len(buffer) != file_size(slots, units):
            needed = file_size(slots, units)
            raise FormatError(f"{len(buffer)} bytes where {slots} slots and {units} units need {needed}")
        header = IndexHeader.decode(buffer)
        if header.next_unit > units:
            raise FormatError(f"index header with next unit {header.next_unit} of {units}")
        super().__init__()
        self.buffer = buffer
        self.slots = slots
        self.units = units
        self._units_position = _HEADER_SIZE + slots * _SLOT_SIZE
        self.begin_timestamp = header.begin_timestamp
        self.end_timestamp = header.end_timestamp
        self.begin_offset = header.begin_offset
        self.end_offset = header.end_offset
        self.slots_used = header.slots_used
        self.next_unit = header.next_unit

    def release(self) -> None:
        """Let go of the buffer; nothing may be put or asked any more."""
        self.buffer = bytearray()

    @property
    def full(self) -> bool:
        """Whether the next put needs a new file."""
        return self.next_unit >= self.units

    @property
    def empty(self) -> bool:
        """Whether nothing has been put."""
        return self.next_unit <= 1

    def continue_from(self, end_timestamp: int, end_offset: int) -> None:
        """Begin a new file where the previous one ended, so that its header is never without an offset."""
        assert self.empty, "only a new file can continue another"
        self.begin_timestamp = self.end_timestamp = end_timestamp
        self.begin_offset = self.end_offset = end_offset
        self.write_header()

    def write_header(self) -> None:
        """Store the header's fields."""
        _write_header(
            self.buffer,
            0,
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_offset,
            self.end_offset,
            self.slots_used,
            self.next_unit,
        )

    def put(self, key_hash: int, offset: int, store_timestamp: int) -> None:
        """Add one unit; `key_hash` is `hashing.index_hash` of `topic#key`. The file must not be full."""
        number = self.next_unit
        assert number < self.units, "a full index file must be replaced before the next put"
        slot_position = _HEADER_SIZE + key_hash % self.slots * _SLOT_SIZE
        buffer = self.buffer
        (previous,) = _read_slot(buffer, slot_position)
        if previous >= number:
            previous = self._older_than(number, previous)
        if previous <= 0:
            previous = 0
            self.slots_used += 1
        if number == 1:
            self.begin_timestamp = store_timestamp
            self.begin_offset = offset
        seconds = (store_timestamp - self.begin_timestamp) // 1000
        if not 0 <= seconds <= _SECONDS_MAX:
            seconds = 0 if seconds < 0 else _SECONDS_MAX
        _write_unit(buffer, self._units_position + number * _UNIT_SIZE, key_hash, offset, seconds, previous)
        _write_slot(buffer, slot_position, number)
        self.next_unit = number + 1
        self.end_offset = offset
        self.end_timestamp = store_timestamp

    def put_many(self, entries: Sequence[tuple[int, int]], store_timestamp: int) -> None:
        """Add a unit for each (`index_hash`, offset), all of one store time. There must be room for all of
        them.

        Units are written before the slots that lead to them, and the header last: whoever is killed in
        between leaves
        slots that point behind the last unit, and `_older_than` finds the way from there to the units that
        count.
        """
        number = first = self.next_unit
        assert entries, "nothing to put"
        assert number + len(entries) <= self.units, "a full index file must be replaced before the next put"
        if number == 1:
            self.begin_timestamp = store_timestamp
            self.begin_offset = entries[0][1]
        seconds = min(max((store_timestamp - self.begin_timestamp) // 1000, 0), _SECONDS_MAX)
        buffer, slots = self.buffer, self.slots
        latest: dict[int, int] = {}
        units: list[int] = []
        for key_hash, offset in entries:
            slot_position = _HEADER_SIZE + key_hash % slots * _SLOT_SIZE
            previous = latest.get(slot_position, 0)
            if not previous:
                (previous,) = _read_slot(buffer, slot_position)
                if previous >= first:
                    previous = self._older_than(first, previous)
                if previous <= 0:
                    previous = 0
                    self.slots_used += 1
            units += (key_hash, offset, seconds, previous)
            latest[slot_position] = number
            number += 1
        _units_struct(len(entries)).pack_into(buffer, self._units_position + first * _UNIT_SIZE, *units)
        for slot_position, latest_number in latest.items():
            _write_slot(buffer, slot_position, latest_number)
        self.next_unit = number
        self.end_offset = entries[-1][1]
        self.end_timestamp = store_timestamp

    def put_entries(self, entries: bytes, done: int, room: int) -> int:
        """Put packed `ENTRY` from byte `done` on, one after the other, by the native core.

        It stops before a unit with the number `room`; returns how many bytes of `entries` are done. Entries
        of messages before `end_offset` are skipped. The header is written.
        """
        assert native.core is not None, "only the native core makes such entries"
        limit = min(room, self.units)
        put = native.core.put_index_entries
        end: int = put(self, self.buffer, self.slots, limit, entries, done)
        return end

    def _older_than(self, limit: int, number: int) -> int:
        """The newest unit below `limit` in the chain from `number`, 0 if there is none.

        `number` comes from a slot that was written before the writer was killed and its header was not.
        """
        for _ in range(CHAIN_STEPS_MAX):
            if not limit <= number < self.units:
                break
            older: int = _read_unit(self.buffer, self._units_position + number * _UNIT_SIZE)[3]
            if older >= number:
                return 0
            number = older
        return number if 0 < number < limit else 0

    def covers(self, begin_ms: int, end_ms: int) -> bool:
        """Whether messages of that time can be in this file."""
        return not self.empty and begin_ms <= self.end_timestamp and end_ms >= self.begin_timestamp

    def query(self, key_hash: int, count_max: int, begin_ms: int, end_ms: int) -> list[int]:
        """Offsets of the messages with that hash and store time (both ends included), newest first.

        Times are kept in seconds: the answer may hold messages up to a second older than `begin_ms`. The
        reader checks keys anyway, because different keys can have the same hash.
        """
        found: list[int] = []
        (number,) = _read_slot(self.buffer, _HEADER_SIZE + key_hash % self.slots * _SLOT_SIZE)
        if number >= self.next_unit:
            number = self._older_than(self.next_unit, number)
        for _ in range(CHAIN_STEPS_MAX):
            if number <= 0 or len(found) >= count_max:
                break
            unit_hash, offset, seconds, previous = _read_unit(
                self.buffer, self._units_position + number * _UNIT_SIZE
            )
            latest_ms = self.begin_timestamp + seconds * 1000 + 999
            if seconds < 0 or latest_ms < begin_ms:
                break
            if unit_hash == key_hash and latest_ms - 999 <= end_ms:
                found.append(offset)
            if previous >= number:  # a chain only leads back; anything else is damage
                break
            number = previous
        return found

    def truncate(self, offset: int) -> None:
        """Take back the newest units whose messages begin at `offset` or later, and write the header.

        Undoing puts in reverse order restores every slot exactly.
        """
        while self.next_unit > 1:
            number = self.next_unit - 1
            position = self._units_position + number * _UNIT_SIZE
            key_hash, unit_offset, seconds, previous = _read_unit(self.buffer, position)
            if unit_offset < offset:
                self.end_offset = unit_offset
                self.end_timestamp = min(self.end_timestamp, self.begin_timestamp + seconds * 1000 + 999)
                break
            if key_hash < 0 or not 0 <= previous < number:
                raise FormatError(f"index unit {number} is damaged", position)
            _write_slot(self.buffer, _HEADER_SIZE + key_hash % self.slots * _SLOT_SIZE, previous)
            if previous == 0:
                self.slots_used -= 1
            self.next_unit = number
        else:
            self.begin_offset = self.end_offset = min(self.begin_offset, offset)
            self.end_timestamp = self.begin_timestamp
        self.write_header()
