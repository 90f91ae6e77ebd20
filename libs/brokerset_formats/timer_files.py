"""Files of timer messages: `timerwheel`, `timerlog`, `config/timercheck` and `config/timermetrics`.

Sources: RocketMQ's `TimerWheel`, `Slot`, `TimerLog`, `TimerCheckpoint`, `TimerMetrics`. Times are
milliseconds since 1970; positions are bytes of the whole timer log, over all of its files.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntFlag
from typing import Final

from brokerset_formats import fastjson
from brokerset_formats.config import DataVersion
from brokerset_formats.config import fields as json_fields
from brokerset_formats.config.fields import ConfigFile
from brokerset_formats.errors import FormatError
from brokerset_formats.hashing import crc31

Buffer = bytes | bytearray | memoryview

NO_POSITION: Final = -1
"""In place of the position of a unit that does not exist."""

# -- timerwheel ---------------------------------------------------------------------------------------------

SLOT: Final = struct.Struct(">qqqii")
"""Time divided by the precision, first position, last position, count, magic."""

SLOT_SIZE: Final = SLOT.size

WHEEL_SLOTS: Final = 7 * 24 * 3600
"""Slots of half the wheel, whatever the precision: seven days at a second each."""

PRECISIONS_MS: Final = (100, 200, 500, 1000)
"""Widths that a slot may have."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot of the wheel: the chain of units whose time lies in it."""

    number: int
    """Time of the slot divided by the precision."""

    first_position: int
    """Of the oldest unit; `NO_POSITION` if there is none."""

    last_position: int
    """Of the newest unit, from which the chain goes back."""

    count: int = 0
    """Units that deliver a message minus units that delete one; may be negative."""

    magic: int = 0
    """Always 0 so far; kept as it is."""

    def encode(self) -> bytes:
        """The 32 bytes of the file."""
        return SLOT.pack(self.number, self.first_position, self.last_position, self.count, self.magic)


def decode_slot(buffer: Buffer, position: int = 0) -> Slot:
    """Read a slot; FormatError if the buffer ends inside it."""
    if position < 0 or position + SLOT_SIZE > len(buffer):
        raise FormatError("the data ends inside a slot of the timer wheel", position)
    return Slot(*SLOT.unpack_from(buffer, position))


def valid_precision(precision_ms: int) -> int:
    """The precision that a broker uses for `timerPrecisionMs`: rounded down to one of `PRECISIONS_MS`."""
    return max((known for known in PRECISIONS_MS if known <= precision_ms), default=PRECISIONS_MS[0])


def floor_time(time_ms: int, precision_ms: int) -> int:
    """Beginning of the slot that `time_ms` lies in."""
    return time_ms - time_ms % precision_ms


def out_time(deliver_ms: int, precision_ms: int) -> int:
    """`TIMER_OUT_MS`: time of the slot of a message that is to be delivered at `deliver_ms` (`HookUtils`).

    The slot is read when it has ended, so the message is never early, and less than a precision late.
    """
    return floor_time(deliver_ms - 1, precision_ms)


# -- timerlog -----------------------------------------------------------------------------------------------

TIMER_UNIT: Final = struct.Struct(">iqiqiqiiq")
"""Size, previous position, magic, base time, delay, record offset, record size, topic hash, reserved."""

TIMER_UNIT_SIZE: Final = TIMER_UNIT.size

TIMER_BLANK: Final = struct.Struct(">iqI")
"""Bytes to the end of the file, 0, magic: what stands behind the last unit of a full file."""

TIMER_BLANK_SIZE: Final = TIMER_BLANK.size
"""A unit leaves at least so many bytes of its file for the blank."""

TIMER_BLANK_MAGIC: Final = 0xCBD43194

TIMER_LOG_FILE_BYTES: Final = 100 * 1024 * 1024
"""Default of `mappedFileSizeTimerLog`."""

_DELAY_MAX: Final = 2**31 - 1


class TimerMagic(IntFlag):
    """Bits of a unit's magic."""

    DEFAULT = 1
    ROLL = 2
    """The slot is before the message's time: the message goes into the wheel again then."""
    DELETE = 4
    """The message deletes another one that waits."""


_DEFAULT, _ROLL, _DELETE = (int(each) for each in TimerMagic)
"""As plain numbers: an `IntFlag` takes ten times as long to be compared."""


@dataclass(frozen=True, slots=True)
class TimerUnit:
    """A unit of the timer log: one message that waits in one slot."""

    previous_position: int
    """Of the unit before it in the same slot; `NO_POSITION` for the first."""

    magic: int
    """See `TimerMagic`."""

    base_ms: int
    """Time of the wheel's clock when the unit was written (`currWriteTime`)."""

    delay_ms: int
    """Time of the slot minus `base_ms`; may be negative."""

    offset: int
    """Commit log offset of the message's record."""

    size: int
    """Bytes of the record."""

    topic_hash: int
    """`java_hash` of the topic that the message is for, 0 without one."""

    reserved: int = 0

    @property
    def slot_ms(self) -> int:
        """Time of the unit's slot."""
        return self.base_ms + self.delay_ms

    @property
    def rolls(self) -> bool:
        """Whether the message goes into the wheel again when the slot is read."""
        return self.magic & _ROLL != 0

    @property
    def deletes(self) -> bool:
        """Whether the message deletes another one."""
        return self.magic & _DELETE != 0

    def encode(self) -> bytes:
        """The 52 bytes of the file."""
        return TIMER_UNIT.pack(
            TIMER_UNIT_SIZE,
            self.previous_position,
            self.magic,
            self.base_ms,
            self.delay_ms,
            self.offset,
            self.size,
            self.topic_hash,
            self.reserved,
        )


def base_and_delay(slot_ms: int, write_ms: int) -> tuple[int, int]:
    """Base and delay of a unit for a slot; the base is `write_ms` unless the delay would not fit an i32."""
    delay = slot_ms - write_ms
    return (write_ms, delay) if -_DELAY_MAX <= delay <= _DELAY_MAX else (slot_ms, 0)


def decode_timer_unit(buffer: Buffer, position: int = 0) -> TimerUnit:
    """Read a unit. FormatError if the buffer ends inside it, or if no broker can have written it."""
    if position < 0 or position + TIMER_UNIT_SIZE > len(buffer):
        raise FormatError("the data ends inside a unit of the timer log", position)
    size, *fields = TIMER_UNIT.unpack_from(buffer, position)
    if size != TIMER_UNIT_SIZE:
        raise FormatError(f"a unit of the timer log has {TIMER_UNIT_SIZE} bytes, not {size}", position)
    unit = TimerUnit(*fields)
    if not unit.magic & _DEFAULT or unit.magic & ~0xF:
        raise FormatError(f"{unit.magic:#x} is no magic of a timer log unit", position)
    if unit.previous_position < NO_POSITION or unit.offset < 0 or unit.size <= 0:
        raise FormatError("a unit of the timer log has a negative position, offset or size", position)
    return unit


def encode_timer_blank(rest: int) -> bytes:
    """What is written where `rest` bytes of a file are free and the next unit does not fit."""
    return TIMER_BLANK.pack(rest, 0, TIMER_BLANK_MAGIC)


def is_timer_blank(buffer: Buffer, position: int = 0) -> bool:
    """Whether a blank begins at `position`: the file has no further units."""
    if position < 0 or position + TIMER_BLANK_SIZE > len(buffer):
        return False
    return bool(TIMER_BLANK.unpack_from(buffer, position)[2] == TIMER_BLANK_MAGIC)


def fits_in_file(position_in_file: int, file_bytes: int) -> bool:
    """Whether a unit and a blank behind it fit in a file from `position_in_file` on (`TimerLog.append`)."""
    return position_in_file + TIMER_UNIT_SIZE + TIMER_BLANK_SIZE <= file_bytes


def last_unit_position(file_bytes: int) -> int:
    """Position of the last unit of a full file; from it the newest record of the file is known."""
    return (file_bytes - TIMER_BLANK_SIZE) // TIMER_UNIT_SIZE * TIMER_UNIT_SIZE - TIMER_UNIT_SIZE


# -- config/timercheck --------------------------------------------------------------------------------------

TIMER_CHECKPOINT_SIZE: Final = 4096

_CHECKPOINT: Final = struct.Struct(">7q")

TIMER_CHECKPOINT_BODY_SIZE: Final = _CHECKPOINT.size
"""Bytes of the body that GET_TIMER_CHECK_POINT (60) answers."""

OWN_PART_POSITION: Final = 2048
"""Where brokerset keeps its own part of the file; RocketMQ uses the first 56 bytes and ignores the rest."""

_OWN_HEAD: Final = struct.Struct(">8siI")
"""Magic, bytes that follow, CRC of the first 56 bytes of the file and of the bytes that follow."""

_OWN_MAGIC: Final = b"BSTIMER1"

OWN_PART_SIZE_MAX: Final = TIMER_CHECKPOINT_SIZE - OWN_PART_POSITION - _OWN_HEAD.size


@dataclass(frozen=True, slots=True)
class TimerCheckpoint:
    """`config/timercheck`: up to where timer messages were taken and delivered."""

    last_read_ms: int = 0
    """Slots before this time are done."""

    log_flush_position: int = 0
    """The timer log below is on disk."""

    queue_offset: int = 0
    """The next message of the wheel's topic to take."""

    master_queue_offset: int = 0
    """The same of the master, as far as a slave knows; on a master its own."""

    version: DataVersion = field(default_factory=DataVersion)

    own: bytes = b""
    """What brokerset adds; empty if it is missing, damaged, or older than what a Java broker wrote since."""

    def encode_body(self) -> bytes:
        """The 56 bytes that slaves get."""
        version = self.version.state_version, self.version.timestamp, self.version.counter
        places = self.last_read_ms, self.log_flush_position, self.queue_offset, self.master_queue_offset
        return _CHECKPOINT.pack(*places, *version)

    def encode(self) -> bytes:
        """The whole file. FormatError if `own` has more than `OWN_PART_SIZE_MAX` bytes."""
        if len(self.own) > OWN_PART_SIZE_MAX:
            raise FormatError(f"{len(self.own)} bytes do not fit into timercheck", OWN_PART_POSITION)
        body = self.encode_body()
        data = bytearray(TIMER_CHECKPOINT_SIZE)
        data[: len(body)] = body
        if self.own:
            head = _OWN_HEAD.pack(_OWN_MAGIC, len(self.own), crc31(body + self.own))
            data[OWN_PART_POSITION : OWN_PART_POSITION + len(head) + len(self.own)] = head + self.own
        return bytes(data)


def decode_timer_checkpoint(data: Buffer) -> TimerCheckpoint:
    """Read the file or the body of an answer; FormatError if it is shorter than seven longs."""
    if len(data) < TIMER_CHECKPOINT_BODY_SIZE:
        raise FormatError(f"{len(data)} bytes are too few for a timer checkpoint", len(data))
    read, flushed, queue_offset, master, state, timestamp, counter = _CHECKPOINT.unpack_from(data)
    version = DataVersion(counter, state, timestamp)
    return TimerCheckpoint(read, flushed, queue_offset, master, version, _own_part(data))


def _own_part(data: Buffer) -> bytes:
    if len(data) < OWN_PART_POSITION + _OWN_HEAD.size:
        return b""
    magic, size, crc = _OWN_HEAD.unpack_from(data, OWN_PART_POSITION)
    start = OWN_PART_POSITION + _OWN_HEAD.size
    if magic != _OWN_MAGIC or not 0 < size <= len(data) - start:
        return b""
    own = bytes(data[start : start + size])
    return own if crc31(bytes(data[:TIMER_CHECKPOINT_BODY_SIZE]) + own) == crc else b""


# -- config/timermetrics ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TimerCount:
    """How many messages of one topic wait, and when that changed last."""

    count: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class TimerMetrics(ConfigFile):
    """`config/timermetrics`, and the body of GET_TIMER_METRICS (61): waiting messages by their real topic."""

    data_version: DataVersion = field(default_factory=DataVersion)
    counts: Mapping[str, TimerCount] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """See `ConfigFile`."""
        counts = {
            topic: {"count": item.count, "timeStamp": item.timestamp} for topic, item in self.counts.items()
        }
        return {"dataVersion": self.data_version.to_json(), "timingCount": counts}

    @classmethod
    def from_json(cls, fields: Mapping[str, object]) -> TimerMetrics:
        """See `ConfigFile`."""
        counts = {}
        for topic, value in json_fields.get_object(fields, "timingCount").items():
            item = json_fields.as_object(value, f"timingCount.{topic}")
            get = json_fields.get_integer
            counts[topic] = TimerCount(get(item, "count", 0), get(item, "timeStamp", 0))
        return cls(DataVersion.of_table(fields), counts)

    def encode(self) -> bytes:
        """The file's bytes: one line, as Java writes it."""
        return fastjson.dumps(self.to_json())
