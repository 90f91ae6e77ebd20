"""Message records of the commit log: writing, reading, and checking them after a crash."""

from __future__ import annotations

import struct
from typing import NamedTuple

from isal import isal_zlib

from brokerset_formats.errors import FormatError
from brokerset_formats.hashing import crc31
from brokerset_formats.hosts import HOST_SIZE_V4, HOST_SIZE_V6, Host
from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_formats.properties import PROPERTIES_SIZE_MAX

MAGIC_V1 = 0xDAA320A7
"""Topic length on one byte (`MESSAGE_MAGIC_CODE`)."""

MAGIC_V2 = 0xDAA320AB
"""Topic length on two bytes, for topics of more than 127 bytes (`MESSAGE_MAGIC_CODE_V2`)."""

MAGIC_BLANK = 0xCBD43194
"""Fills the rest of a commit log file when the next record did not fit (`BLANK_MAGIC_CODE`)."""

BLANK = struct.Struct(">II")
"""Free bytes and magic: what is written where a file ends."""

BLANK_SIZE_MIN = BLANK.size
"""A record leaves at least so many bytes of its file for the blank record."""

TOPIC_SIZE_V1_MAX = 127

Buffer = bytes | bytearray | memoryview


class SysFlag:
    """Bits of a record's sysFlag (`MessageSysFlag` of Java)."""

    COMPRESSED = 0x1
    MULTI_TAGS = 0x2
    TRANSACTION_NONE = 0x0
    TRANSACTION_PREPARED = 0x4
    TRANSACTION_COMMIT = 0x8
    TRANSACTION_ROLLBACK = 0xC
    TRANSACTION_MASK = 0xC
    BORN_HOST_V6 = 0x10
    STORE_HOST_V6 = 0x20
    NEED_UNWRAP = 0x40
    INNER_BATCH = 0x80
    COMPRESSION_LZ4 = 0x100
    COMPRESSION_ZSTD = 0x200
    COMPRESSION_ZLIB = 0x300
    COMPRESSION_MASK = 0x700


_HEADS = {
    (born, store): struct.Struct(f">IIIiiqqiq{born}sq{store}siqi")
    for born in (HOST_SIZE_V4, HOST_SIZE_V6)
    for store in (HOST_SIZE_V4, HOST_SIZE_V6)
}

FIXED = _HEADS[HOST_SIZE_V4, HOST_SIZE_V4]
"""Everything before the body, both hosts IPv4: size, magic, body CRC, queue id, flag, queue offset, offset,
sysFlag, born time, born host, store time, store host, reconsume times, prepared offset, body length."""

QUEUE_OFFSET_POSITION = 20
OFFSET_POSITION = 28
SYS_FLAG_POSITION = 36
BORN_HOST_POSITION = 48
STORE_TIMESTAMP_POSITION = 56
"""With an IPv4 born host; 12 more with an IPv6 one."""

V6_EXTRA = HOST_SIZE_V6 - HOST_SIZE_V4

RECORD_SIZE_MIN = FIXED.size + 3

PROPERTY_CRC_NAME = b"__CRC32#\x01"
"""How the property begins that brokers with `enabledAppendPropCRC` write behind all others."""

PROPERTY_CRC_SIZE = len(PROPERTY_CRC_NAME) + 10 + 1

PROPERTIES_BESIDE_CRC_MAX = PROPERTIES_SIZE_MAX - PROPERTY_CRC_SIZE
"""Bytes of all other properties of a record with that property, the last separator included."""

_crc32 = isal_zlib.crc32
_LENGTH = struct.Struct(">h")
_SYS_FLAG = struct.Struct(">i")
_SIZE_AND_MAGIC = struct.Struct(">II")

COMPUTE_CRC = -1
"""Body CRC of a `Record` that shall be computed from its body."""


def fixed_struct(born_host_size: int, store_host_size: int) -> struct.Struct:
    """`FIXED` for hosts of 8 or 20 bytes; KeyError for other sizes."""
    return _HEADS[born_host_size, store_host_size]


class RecordError(FormatError):
    """The bytes at `position` are no whole, consistent record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A message as the commit log has it."""

    magic: int = MAGIC_V1
    queue_id: int
    flag: int = 0
    """Of the application; means nothing to the broker."""
    queue_offset: int
    offset: int
    """Commit log offset of the record itself (physicalOffset)."""
    sys_flag: int = 0
    """See `SysFlag`; the two bits for IPv6 hosts are set to what the hosts are."""
    born_timestamp: int
    born_host: Host
    store_timestamp: int
    store_host: Host
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    body: bytes
    """As stored, perhaps compressed."""
    topic: str
    properties: bytes = b""
    """Raw, see `properties`."""
    body_crc: int = COMPUTE_CRC

    def __post_init__(self) -> None:
        if self.body_crc == COMPUTE_CRC:
            object.__setattr__(self, "body_crc", crc31(self.body))
        sys_flag = self.sys_flag & ~(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
        sys_flag |= SysFlag.BORN_HOST_V6 if self.born_host.v6 else 0
        sys_flag |= SysFlag.STORE_HOST_V6 if self.store_host.v6 else 0
        object.__setattr__(self, "sys_flag", sys_flag)

    @property
    def size(self) -> int:
        """Bytes of the whole record (totalSize)."""
        return record_size(
            len(self.body),
            len(self.topic.encode()),
            len(self.properties),
            v2=self.magic == MAGIC_V2,
            born_v6=self.born_host.v6,
            store_v6=self.store_host.v6,
        )


def record_size(
    body: int, topic: int, properties: int, *, v2: bool = False, born_v6: bool = False, store_v6: bool = False
) -> int:
    """Bytes of a record whose parts have these many bytes."""
    hosts = V6_EXTRA * (born_v6 + store_v6)
    return FIXED.size + hosts + body + 1 + v2 + topic + _LENGTH.size + properties


def magic_for(topic_bytes: bytes) -> int:
    """The record version that a topic needs: Java before 5.0 knows only the first."""
    return MAGIC_V1 if len(topic_bytes) <= TOPIC_SIZE_V1_MAX else MAGIC_V2


def topic_field(topic_bytes: bytes) -> bytes:
    """Topic with its length before it, as the version of `magic_for` has it."""
    size = len(topic_bytes)
    return size.to_bytes(1 if size <= TOPIC_SIZE_V1_MAX else 2, "big") + topic_bytes


def encode_record(record: Record, *, property_crc: bool = False) -> bytes:
    """The bytes of the log; FormatError if topic or properties are too long for the format.

    With `property_crc`, 20 bytes with a CRC over the whole record are added to the properties, as brokers
    with `enabledAppendPropCRC` do.
    """
    topic = record.topic.encode()
    properties = record.properties
    if property_crc:
        properties += b"" if properties.endswith(b"\x02") or not properties else b"\x02"
        properties += bytes(PROPERTY_CRC_SIZE)
    if len(topic) > (TOPIC_SIZE_V1_MAX if record.magic == MAGIC_V1 else PROPERTIES_SIZE_MAX):
        raise FormatError(f"a topic of {len(topic)} bytes does not fit a record of this version")
    if len(properties) > PROPERTIES_SIZE_MAX:
        raise FormatError(f"{len(properties)} bytes of properties; {PROPERTIES_SIZE_MAX} is the limit")
    born_host, store_host = record.born_host.encode(), record.store_host.encode()
    v2 = record.magic == MAGIC_V2
    tail = len(topic).to_bytes(2 if v2 else 1, "big") + topic + _LENGTH.pack(len(properties)) + properties
    head = fixed_struct(len(born_host), len(store_host))
    data = (
        head.pack(
            head.size + len(record.body) + len(tail),
            record.magic,
            record.body_crc,
            record.queue_id,
            record.flag,
            record.queue_offset,
            record.offset,
            record.sys_flag,
            record.born_timestamp,
            born_host,
            record.store_timestamp,
            store_host,
            record.reconsume_times,
            record.prepared_transaction_offset,
            len(record.body),
        )
        + record.body
        + tail
    )
    if property_crc:
        data = data[:-PROPERTY_CRC_SIZE]
        data += property_crc_of(data)
    return data


def property_crc_of(covered: Buffer) -> bytes:
    """The last 20 bytes of a record that begins with `covered`: name, CRC with its last digit first, end.

    It covers everything before it, the fields that are only known when the record gets its place, too.
    """
    return (b"\x02%010d\x01#23CRC__" % (_crc32(covered) & 0x7FFFFFFF))[::-1]  # no call more than needed


def ends_with_property_crc(properties: bytes) -> bool:
    """Whether the last property is the CRC over the record; one that stands elsewhere means nothing.

    Its value is not inspected: a damaged one is a damage, too.
    """
    size = len(properties)
    return properties[-PROPERTY_CRC_SIZE : 9 - PROPERTY_CRC_SIZE] == PROPERTY_CRC_NAME and (
        size == PROPERTY_CRC_SIZE or (size > PROPERTY_CRC_SIZE and properties[-PROPERTY_CRC_SIZE - 1] == 2)
    )


def without_property_crc(properties: bytes) -> bytes:
    """Raw properties without any `__CRC32#`, as a message has to be that is stored (again)."""
    if PROPERTY_CRC_NAME not in properties:
        return properties
    return b"\x02".join(pair for pair in properties.split(b"\x02") if not pair.startswith(PROPERTY_CRC_NAME))


def properties_of(record: Buffer) -> bytes:
    """The raw properties of a whole record, without reading the rest of it. Raises `RecordError`."""
    return bytes(record[_places(record)[2] :])


def body_and_properties(record: Buffer) -> tuple[bytes, bytes]:
    """Body and raw properties of a whole record, without reading the rest of it. Raises `RecordError`."""
    start, end, properties = _places(record)
    return bytes(record[start:end]), bytes(record[properties:])


def _places(record: Buffer) -> tuple[int, int, int]:
    """Where the body of a whole record begins and ends, and where its properties begin."""
    end = len(record)
    try:
        size, magic = _SIZE_AND_MAGIC.unpack_from(record)
        (sys_flag,) = _SYS_FLAG.unpack_from(record, SYS_FLAG_POSITION)
        body = FIXED.size + V6_EXTRA * (
            bool(sys_flag & SysFlag.BORN_HOST_V6) + bool(sys_flag & SysFlag.STORE_HOST_V6)
        )
        (body_size,) = _SYS_FLAG.unpack_from(record, body - _SYS_FLAG.size)
        topic = body + body_size + (2 if magic == MAGIC_V2 else 1)
        topic_size = int.from_bytes(record[body + body_size : topic], "big")
        (properties_size,) = _LENGTH.unpack_from(record, topic + topic_size)
    except struct.error as error:
        raise RecordError(f"{end} bytes are no whole record: {error}") from None
    start = topic + topic_size + _LENGTH.size
    if size != end or body_size < 0 or properties_size < 0 or start + properties_size != end:
        raise RecordError(
            f"the lengths inside a record of {size} bytes do not add up to the {end} that it has"
        )
    return body, body + body_size, start


class RecordHead(NamedTuple):
    """What recovery and dispatch need of a record."""

    size: int
    topic: bytes
    queue_id: int
    queue_offset: int
    offset: int
    """Commit log offset that the record gives itself."""
    sys_flag: int
    store_timestamp: int
    properties: bytes


class Blank(NamedTuple):
    """The rest of the file is unused; go on with the next file."""

    size: int


class RecordProblem(NamedTuple):
    """There is no usable record at `position`."""

    reason: str
    position: int
    is_empty: bool = False
    """Nothing but zeros where a record would begin: most likely the end of the log."""


def check_record(
    buffer: Buffer, position: int, limit: int, *, verify_crc: bool
) -> RecordHead | Blank | RecordProblem:
    """Inspect the record at `position` of one file whose bytes end at `limit`; for scans after a crash.

    The rules are those of `checkMessageAndReturnSize` of Java. With `verify_crc` the record has to match the
    CRC in its properties, which covers all of it (Java: `forceVerifyPropCRC`), or, without one, the body has
    to match its own. Then properties that a crash cut short are a problem, too: those that brokers write end
    in a separator, never in a zero. Zeros inside say nothing without a CRC: a client may have sent them, and
    the messages behind would be truncated.
    """
    room = limit - position
    if room < BLANK.size:
        return RecordProblem("too few bytes left for a record", position)
    size, magic = _SIZE_AND_MAGIC.unpack_from(buffer, position)
    if magic == MAGIC_BLANK:
        return Blank(size)
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        if not size and not magic:
            return RecordProblem("no record", position, True)
        return RecordProblem(f"unknown magic {magic:#010x}", position)
    if not RECORD_SIZE_MIN <= size <= room:
        return RecordProblem(f"record size {size} does not fit into the {room} bytes left", position)
    (sys_flag,) = struct.unpack_from(">i", buffer, position + SYS_FLAG_POSITION)
    head = _HEADS[
        HOST_SIZE_V6 if sys_flag & 0x10 else HOST_SIZE_V4, HOST_SIZE_V6 if sys_flag & 0x20 else HOST_SIZE_V4
    ]
    end = position + size
    body_start = position + head.size
    if body_start >= end:
        return RecordProblem("record is shorter than its fixed part", position)
    fields = head.unpack_from(buffer, position)
    body_end = body_start + fields[14]
    v2 = magic == MAGIC_V2
    if fields[14] < 0 or body_end + 3 + v2 > end:
        return RecordProblem(f"body length {fields[14]} does not fit the record", position)
    topic_start = body_end + 1 + v2
    topic_end = topic_start + int.from_bytes(buffer[body_end:topic_start], "big", signed=True)
    if not topic_start <= topic_end <= end - _LENGTH.size:
        return RecordProblem("topic length does not fit the record", position)
    (properties_size,) = _LENGTH.unpack_from(buffer, topic_end)
    if properties_size < 0 or topic_end + _LENGTH.size + properties_size != end:
        return RecordProblem("the lengths inside the record do not add up to its size", position)
    properties = bytes(buffer[end - properties_size : end]) if properties_size else b""
    if verify_crc:
        if ends_with_property_crc(properties):
            covered = memoryview(buffer)[position : end - PROPERTY_CRC_SIZE]
            if properties[-PROPERTY_CRC_SIZE:] != property_crc_of(covered):
                return RecordProblem("the record does not match the CRC in its properties", position)
        elif crc31(memoryview(buffer)[body_start:body_end]) != fields[2]:
            return RecordProblem("the body does not match its CRC", position)
        elif properties and properties[-1] == 0:
            return RecordProblem("properties end in zeros", position)
    return RecordHead(
        size,
        bytes(buffer[topic_start:topic_end]),
        fields[3],
        fields[5],
        fields[6],
        sys_flag,
        fields[10],
        properties,
    )


def decode_record(buffer: Buffer, position: int = 0, *, verify_crc: bool = False) -> Record:
    """Read a whole record; RecordError if there is none at `position`, or it is inconsistent."""
    checked = check_record(buffer, position, len(buffer), verify_crc=verify_crc)
    if isinstance(checked, Blank):
        raise RecordError("the file ends here (blank record)", position)
    if isinstance(checked, RecordProblem):
        raise RecordError(checked.reason, position)
    born_v6 = bool(checked.sys_flag & SysFlag.BORN_HOST_V6)
    store_v6 = bool(checked.sys_flag & SysFlag.STORE_HOST_V6)
    head = _HEADS[HOST_SIZE_V6 if born_v6 else HOST_SIZE_V4, HOST_SIZE_V6 if store_v6 else HOST_SIZE_V4]
    fields = head.unpack_from(buffer, position)
    body_start = position + head.size
    try:
        topic = checked.topic.decode()
    except UnicodeDecodeError as error:
        raise RecordError("the topic is not UTF-8", position) from error
    return Record(
        magic=fields[1],
        body_crc=fields[2],
        queue_id=fields[3],
        flag=fields[4],
        queue_offset=fields[5],
        offset=fields[6],
        sys_flag=fields[7],
        born_timestamp=fields[8],
        born_host=Host.decode(fields[9], v6=born_v6),
        store_timestamp=fields[10],
        store_host=Host.decode(fields[11], v6=store_v6),
        reconsume_times=fields[12],
        prepared_transaction_offset=fields[13],
        body=bytes(buffer[body_start : body_start + fields[14]]),
        topic=topic,
        properties=checked.properties,
    )


def store_timestamp_at(buffer: Buffer, position: int) -> int:
    """The store time of the record at `position`, without checking the record."""
    (sys_flag,) = struct.unpack_from(">i", buffer, position + SYS_FLAG_POSITION)
    extra = V6_EXTRA if sys_flag & SysFlag.BORN_HOST_V6 else 0
    (timestamp,) = struct.unpack_from(">q", buffer, position + STORE_TIMESTAMP_POSITION + extra)
    return int(timestamp)
