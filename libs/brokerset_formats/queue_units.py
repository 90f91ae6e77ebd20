"""Units of consume queues: 20 bytes for each message, and 46 for each inner batch."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import astuple
from functools import lru_cache

from brokerset_formats.errors import FormatError
from brokerset_formats.hashing import java_hash
from brokerset_formats.lazy_dataclasses import dataclass

UNIT = struct.Struct(">qiq")
"""Commit log offset, record size, tags code (`ConsumeQueue` of Java)."""

UNIT_SIZE = UNIT.size

BLANK_SIZE = 0x7FFFFFFF
"""Size in the units before the first message of a queue that does not begin at 0; their offset is 0."""

BLANK_UNIT = UNIT.pack(0, BLANK_SIZE, 0)
"""A unit without a message: readers pass it over."""

EXTENSION_ADDRESS_MAX = -(2**31) - 1
"""Tags codes up to this one are addresses in a `consumequeue_ext` file, which is not supported here."""

BATCH_UNIT = struct.Struct(">qiqqqhii")
"""Offset, size, tags code, store time, base queue offset, count, compacted offset, reserved."""

BATCH_UNIT_SIZE = BATCH_UNIT.size

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class QueueUnit:
    """Where the record of one message is, and the hash of its tags."""

    offset: int
    size: int
    tags_code: int
    """Signed hash of the tags, 0 without tags; in the delay topic the time of delivery in milliseconds."""

    @property
    def is_valid(self) -> bool:
        """Whether something was ever written here: blank units are valid, zeros are not."""
        return self.offset >= 0 and self.size > 0

    @property
    def is_blank(self) -> bool:
        """Whether this is a place holder before the first message of a queue."""
        return self.offset == 0 and self.size == BLANK_SIZE

    def encode(self) -> bytes:
        """The 20 bytes of the file."""
        return UNIT.pack(self.offset, self.size, self.tags_code)


@dataclass(frozen=True, slots=True)
class BatchQueueUnit:
    """The unit of an inner batch (`BatchConsumeQueue` of Java)."""

    offset: int
    size: int
    tags_code: int
    store_timestamp: int
    base_queue_offset: int
    """Queue offset of the batch's first message."""
    count: int
    """Messages in the batch."""

    def encode(self) -> bytes:
        """The 46 bytes of the file."""
        return BATCH_UNIT.pack(*astuple(self), -1, 0)


def decode_unit(buffer: Buffer, position: int = 0) -> QueueUnit:
    """Read a unit; FormatError if the buffer ends inside it."""
    if position < 0 or position + UNIT_SIZE > len(buffer):
        raise FormatError("the data ends inside a queue unit", position)
    return QueueUnit(*UNIT.unpack_from(buffer, position))


def decode_batch_unit(buffer: Buffer, position: int = 0) -> BatchQueueUnit:
    """Read the unit of an inner batch; FormatError if the buffer ends inside it."""
    if position < 0 or position + BATCH_UNIT_SIZE > len(buffer):
        raise FormatError("the data ends inside a batch queue unit", position)
    return BatchQueueUnit(*BATCH_UNIT.unpack_from(buffer, position)[:6])


@lru_cache(maxsize=256)
def units_struct(count: int) -> struct.Struct:
    """Reads or writes `count` units at once, as one flat row of numbers."""
    return struct.Struct(">" + "qiq" * count)


@lru_cache(maxsize=256)
def sizes_struct(count: int) -> struct.Struct:
    """Reads the record sizes of `count` units at once: a quarter of the time that all their numbers take."""
    return struct.Struct(">" + "8xi8x" * count)


def tags_code(tags: str | None) -> int:
    """The hash that a unit holds for the TAGS property: of the whole text, 0 without tags."""
    return java_hash(tags) if tags else 0


def first_that(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The first number in [low, high) for which `holds`, or `high`; it must hold for all that follow."""
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


def count_before(buffer: Buffer, units: int, limit_offset: int) -> int:
    """How many units at the start of `buffer` are valid and point below `limit_offset`.

    A binary search over the first `units` units: what is behind the first other unit does not matter.
    """

    def ends(number: int) -> bool:
        offset, size, _ = UNIT.unpack_from(buffer, number * UNIT_SIZE)
        return not (offset >= 0 and size > 0 and offset < limit_offset)

    return first_that(0, units, ends)
