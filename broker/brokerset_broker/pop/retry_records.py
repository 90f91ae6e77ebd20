"""Records of a retry topic as a pop gives them: under the topic of the message, with the handle in `POP_CK`.

Source: `PopMessageProcessor` of 5.5.0. Everything else stays as it is stored, the body compressed or not.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

from brokerset_formats.properties import PROPERTIES_SIZE_MAX
from brokerset_formats.records import (
    FIXED,
    MAGIC_V2,
    QUEUE_OFFSET_POSITION,
    SYS_FLAG_POSITION,
    V6_EXTRA,
    Buffer,
    SysFlag,
    magic_for,
    topic_field,
    without_property_crc,
)

_POP_CK: Final = b"POP_CK\x01"
_SIZE: Final = struct.Struct(">I")
_SIZE_AND_MAGIC: Final = struct.Struct(">II")
_INT: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")
_LENGTH: Final = struct.Struct(">h")


def split_records(parts: Sequence[memoryview]) -> Iterator[memoryview]:
    """The single records of parts that hold whole ones, as the store gives them."""
    for part in parts:
        position, end = 0, len(part)
        while position < end:
            (size,) = _SIZE.unpack_from(part, position)
            yield part[position : position + size]
            position += size


def queue_offsets(parts: Sequence[memoryview]) -> list[int]:
    """The queue offset of each record."""
    found: list[int] = []
    for part in parts:
        position, end = 0, len(part)
        while position < end:
            found += _LONG.unpack_from(part, position + QUEUE_OFFSET_POSITION)
            position += _SIZE.unpack_from(part, position)[0]
    return found


def as_original(record: Buffer, topic: bytes, handle: bytes) -> bytes | None:
    """The record of a retry topic as one of `topic`, with its handle; None if that does not fit a record."""
    _, magic = _SIZE_AND_MAGIC.unpack_from(record)
    (sys_flag,) = _INT.unpack_from(record, SYS_FLAG_POSITION)
    body = FIXED.size + V6_EXTRA * (
        bool(sys_flag & SysFlag.BORN_HOST_V6) + bool(sys_flag & SysFlag.STORE_HOST_V6)
    )
    (body_size,) = _INT.unpack_from(record, body - _INT.size)
    body_end = body + body_size
    old_topic = body_end + (2 if magic == MAGIC_V2 else 1)
    properties_at = old_topic + int.from_bytes(record[body_end:old_topic], "big") + _LENGTH.size
    properties = with_handle(bytes(record[properties_at:]), handle)
    if len(properties) > PROPERTIES_SIZE_MAX:
        return None
    tail = topic_field(topic) + _LENGTH.pack(len(properties)) + properties
    head = _SIZE_AND_MAGIC.pack(body_end + len(tail), magic_for(topic))
    return b"".join((head, record[_SIZE_AND_MAGIC.size : body_end], tail))


def with_handle(properties: bytes, handle: bytes) -> bytes:
    """Raw properties with this handle and no other, and without a CRC over what the record was."""
    properties = without_property_crc(properties)
    if _POP_CK in properties:
        pairs = [pair for pair in properties.split(b"\x02") if pair and not pair.startswith(_POP_CK)]
        properties = b"\x02".join(pairs)
    separator = b"" if not properties or properties.endswith(b"\x02") else b"\x02"
    return b"".join((properties, separator, _POP_CK, handle, b"\x02"))
