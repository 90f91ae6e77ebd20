"""The loops of `compiled` over records and entries, on addresses.

All functions that take numbers from the data compare them with what there is before they use them; sums stay
far below 2^63, because positions are below 2^47 and sizes below 2^31.
"""

from __future__ import annotations

from typing import Final

from brokerset_formats.dledger import ENTRY_HEAD_SIZE, MAGIC_NORMAL
from brokerset_formats.dledger import MAGIC_BLANK as LEDGER_BLANK
from brokerset_formats.records import (
    BLANK_SIZE_MIN,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTY_CRC_NAME,
    PROPERTY_CRC_SIZE,
    RECORD_SIZE_MIN,
)
from brokerset_spark.kernels.compiling import (
    OutBytes,
    OutInt32s,
    OutInt64s,
    TableInt32s,
    TableInt64s,
    address_of,
    compiled,
    copy_bytes,
    crc31_at,
    load8,
    load16,
    load32,
    load64,
    store32,
    store64,
)
from brokerset_spark.kernels.contract import (
    CONFIRMATIONS,
    ENTRY_MAX,
    INDEX_MAX,
    MAGIC_LEDGER_MAX,
    Bools,
    Bytes,
    Int32s,
    Int64s,
)
from brokerset_spark.kernels.contract import Stop as _Stop

# numba takes plain numbers from here into the code; all are signed, as loads are.
_V1: Final = MAGIC_V1 - (1 << 32)
_V2: Final = MAGIC_V2 - (1 << 32)
_BLANK: Final = MAGIC_BLANK - (1 << 32)
_RECORD_MAX: Final = ENTRY_MAX - ENTRY_HEAD_SIZE
_CRC_NAME: Final = int.from_bytes(PROPERTY_CRC_NAME[:8], "big")

_SHORT, _BLANK_STOP, _EMPTY, _BAD_MAGIC, _BAD_SIZE, _BAD_LENGTHS, _BAD_OFFSET, _BAD_CRC, _BAD_INDEX = (
    -int(stop) for stop in _Stop if stop is not _Stop.RANGE_END
)

_FIRST_BYTES: Final = (MAGIC_V1 >> 24) * 0x0101010101010101 - (1 << 64)
_LOW_BITS: Final = 0x0101010101010101
_HIGH_BITS: Final = 0x8080808080808080 - (1 << 64)

SURE: Final = 1
UNSURE: Final = 0
PARTIAL: Final = -1


@compiled
def ends_with_crc(properties: int, end: int) -> bool:
    """Whether the last property of the record is a CRC over all before it; all are addresses."""
    at = end - PROPERTY_CRC_SIZE
    return (
        at >= properties
        and load64(at) == _CRC_NAME
        and load8(at + 8) == 1
        and (at == properties or load8(at - 1) == 2)
    )


@compiled
def has_right_crc(start: int, end: int, crc: int) -> bool:
    """Whether that CRC, its last digit first, is right."""
    value = crc31_at(crc, start, end - PROPERTY_CRC_SIZE - start)
    for digit in range(end - 11, end - 1):
        if load8(digit) != 48 + value % 10:
            return False
        value //= 10
    return load8(end - 1) == 2


@compiled
def check_record(data: int, position: int, limit: int, base: int, final: bool, crc: int) -> int:
    """Size of the record at `position`, or a stop with a minus; `crc`: address of the function, or 0."""
    room = limit - position
    if room < BLANK_SIZE_MIN:
        return _EMPTY if final else _SHORT
    at = data + position
    size, magic = load32(at), load32(at + 4)
    if magic != _V1 and magic != _V2:
        if magic == _BLANK:
            return _BLANK_STOP
        return _EMPTY if size == 0 and magic == 0 else _BAD_MAGIC
    if size < RECORD_SIZE_MIN:
        return _BAD_SIZE
    if size > room:
        return _BAD_SIZE if final else _SHORT
    sys_flag = load32(at + 36)
    head = 84 + (12 if sys_flag & 0x10 else 0) + (12 if sys_flag & 0x20 else 0)
    wide = 1 if magic == _V2 else 0
    end = at + size
    body = at + head + 4
    if body + 3 + wide > end:
        return _BAD_SIZE
    body_size = load32(at + head)
    topic_size_at = body + body_size
    if body_size < 0 or topic_size_at + 3 + wide > end:
        return _BAD_LENGTHS
    if wide:
        topic_size = load16(topic_size_at)
    else:
        topic_size = load8(topic_size_at)
        if topic_size > 127:
            topic_size -= 256
    topic_end = topic_size_at + 1 + wide + topic_size
    if topic_size < 0 or topic_end > end - 2:
        return _BAD_LENGTHS
    properties_size = load16(topic_end)
    if properties_size < 0 or topic_end + 2 + properties_size != end:
        return _BAD_LENGTHS
    offset = load64(at + 28)
    if offset < 0 or offset != base + position:
        return _BAD_OFFSET
    if crc != 0:
        if ends_with_crc(topic_end + 2, end):
            if not has_right_crc(at, end, crc):
                return _BAD_CRC
        elif crc31_at(crc, body, body_size) != load32(at + 8):
            return _BAD_CRC
    return size


@compiled
def walk_records(
    data: Bytes, start: int, end: int, base: int, final: bool, crc: int, starts: OutInt64s, sizes: OutInt32s
) -> tuple[int, int, int]:
    """Fill `starts` and `sizes`, which are long enough; count, position, stop."""
    address, limit = address_of(data), len(data)
    position, count = start, 0
    while position < end:
        size = check_record(address, position, limit, base, final, crc)
        if size <= 0:
            return count, position, -size
        starts[count] = position
        sizes[count] = size
        count += 1
        position += size
    return count, position, 0


@compiled
def check_entry(data: int, position: int, limit: int, base: int, index: int, final: bool, crc: int) -> int:
    """Size of the entry at `position`, or a stop with a minus; bit 32 is set if there is a record in it."""
    room = limit - position
    if room < BLANK_SIZE_MIN:
        return _EMPTY if final else _SHORT
    at = data + position
    magic, size = load32(at), load32(at + 4)
    if magic < MAGIC_NORMAL or magic > MAGIC_LEDGER_MAX:
        if magic == LEDGER_BLANK:
            return _BLANK_STOP
        return _EMPTY if magic == 0 and size == 0 else _BAD_MAGIC
    if size < ENTRY_HEAD_SIZE:
        return _BAD_SIZE
    if size > room:
        return _BAD_SIZE if final else _SHORT
    body_size = size - ENTRY_HEAD_SIZE
    if load32(at + 44) != body_size:
        return _BAD_LENGTHS
    offset = load64(at + 24)
    if offset < 0 or offset != base + position:
        return _BAD_OFFSET
    found = load64(at + 8)
    if found < 0 or found > INDEX_MAX or load64(at + 16) < 0 or (index >= 0 and found != index):
        return _BAD_INDEX
    if magic == MAGIC_NORMAL and body_size > 0:
        record = check_record(data, position + ENTRY_HEAD_SIZE, position + size, base, True, crc)
        if record in (_BLANK_STOP, _EMPTY):
            return _BAD_MAGIC
        if record <= 0:
            return record
        return size | 1 << 32 if record == body_size else _BAD_SIZE
    if body_size >= RECORD_SIZE_MIN:
        magic = load32(at + ENTRY_HEAD_SIZE + 4)
        if magic in (_V1, _V2):
            return _BAD_MAGIC
    return size


@compiled
def walk_ledger(
    data: Bytes, start: int, end: int, base: int, index: int, final: bool, crc: int, starts: OutInt64s,
    sizes: OutInt32s, indexes: OutInt64s, terms: OutInt64s, are_records: Bools
) -> tuple[int, int, int]:  # fmt: skip
    """Fill the arrays, which are long enough; count, position, stop."""
    address, limit = address_of(data), len(data)
    position, count = start, 0
    while position < end:
        size = check_entry(address, position, limit, base, index, final, crc)
        if size <= 0:
            return count, position, -size
        is_record = size >> 32 != 0
        size &= 0x7FFFFFFF
        index = load64(address + position + 8)
        starts[count] = position
        sizes[count] = size
        indexes[count] = index
        terms[count] = load64(address + position + 16)
        are_records[count] = is_record
        count += 1
        position += size
        index += 1
    return count, position, 0


@compiled
def confirm_record(data: int, position: int, limit: int, base: int) -> int:
    """Whether records follow from here: `SURE`, `UNSURE`, or `PARTIAL` if the data end in the first one."""
    first = position
    for _ in range(CONFIRMATIONS + 1):
        size = check_record(data, position, limit, base, False, 0)
        if size <= 0:
            if position > first:
                return SURE if size in (_SHORT, _BLANK_STOP, _EMPTY) else UNSURE
            if size != _SHORT:
                return UNSURE
            if limit - first < 36:
                return PARTIAL
            offset = load64(data + first + 28)
            return PARTIAL if offset >= 0 and offset == base + first else UNSURE
        position += size
    return SURE


@compiled
def find_record(data: Bytes, start: int, end: int, base: int) -> int:
    """See `Kernels.resync`."""
    address, limit = address_of(data), len(data)
    partial, last = -1, min(end, limit - 7)
    position = start - 1
    while position + 1 < last:
        position += 1
        if position < limit - 12:
            others = load64(address + position + 4) ^ _FIRST_BYTES
            if (others - _LOW_BITS) & ~others & _HIGH_BITS == 0:  # none of 8 bytes begins a magic
                position += 7
                continue
        magic = load32(address + position + 4)
        if magic in (_V1, _V2):
            found = confirm_record(address, position, limit, base)
            if found == SURE:
                return position
            if found == PARTIAL and partial == -1:
                partial = -2 - position
    return partial


@compiled
def confirm_entry(data: int, position: int, limit: int, base: int) -> int:
    """`confirm_record` for entries."""
    first, index = position, -1
    if limit - first < 32:
        return PARTIAL
    offset = load64(data + first + 24)
    if offset < 0 or offset != base + first:
        return UNSURE
    for _ in range(CONFIRMATIONS + 1):
        size = check_entry(data, position, limit, base, index, False, 0)
        if size <= 0:
            if position > first:
                return SURE if size in (_SHORT, _BLANK_STOP, _EMPTY) else UNSURE
            return PARTIAL if size == _SHORT else UNSURE
        index = load64(data + position + 8) + 1
        position += size & 0x7FFFFFFF
    return SURE


@compiled
def find_entry(data: Bytes, start: int, end: int, base: int) -> int:
    """See `Kernels.resync_entries`."""
    address, limit = address_of(data), len(data)
    partial = -1
    for position in range(start, min(end, limit - 3)):
        magic = load32(address + position)
        if magic >= MAGIC_NORMAL and magic <= MAGIC_LEDGER_MAX:
            found = confirm_entry(address, position, limit, base)
            if found == SURE:
                return position
            if found == PARTIAL and partial == -1:
                partial = -2 - position
    return partial


@compiled
def take_heads(data: Bytes, starts: Int64s, longs: TableInt64s, ints: TableInt32s) -> int:
    """Fill the rows as `compiled.heads` names them; number of a record that leaves the data, or -1."""
    address, limit = address_of(data), len(data)
    for number in range(len(starts)):
        start = starts[number]
        if start < 0 or start > limit - RECORD_SIZE_MIN:
            return number
        at = address + start
        sys_flag = load32(at + 36)
        store_time = 56 + (12 if sys_flag & 0x10 else 0)
        rest = store_time + 16 + (12 if sys_flag & 0x20 else 0)
        body = start + rest + 16
        if body > limit - 3:
            return number
        body_size = load32(at + rest + 12)
        topic_size_at = body + body_size
        if body_size < 0 or topic_size_at > limit - 3:
            return number
        if load32(at + 4) == _V2:
            topic = topic_size_at + 2
            topic_size = load16(address + topic_size_at)
        else:
            topic = topic_size_at + 1
            topic_size = load8(address + topic_size_at)
            if topic_size > 127:
                topic_size -= 256
        properties = topic + topic_size + 2
        if topic_size < 0 or properties > limit:
            return number
        properties_size = load16(address + properties - 2)
        if properties_size < 0 or properties + properties_size > limit:
            return number
        ints[0, number] = load32(at + 8)
        ints[1, number] = load32(at + 12)
        ints[2, number] = load32(at + 16)
        longs[0, number] = load64(at + 20)
        longs[1, number] = load64(at + 28)
        ints[3, number] = sys_flag
        longs[2, number] = load64(at + 40)
        longs[3, number] = load64(at + store_time)
        ints[4, number] = load32(at + rest)
        longs[4, number] = load64(at + rest + 4)
        longs[5, number] = start + 48
        longs[6, number] = start + store_time + 8
        longs[7, number] = body
        ints[5, number] = body_size
        longs[8, number] = topic
        ints[6, number] = topic_size
        longs[9, number] = properties
        ints[7, number] = properties_size
    return -1


@compiled
def write_entries(
    data: Bytes, starts: Int64s, sizes: Int32s, out: OutBytes, positions: Int64s, out_base: int, first_index:
    int, term: int
) -> int:  # fmt: skip
    """See `Kernels.to_entries`; number of a row that does not fit, or -1."""
    source, target = address_of(data), address_of(out)
    for number in range(len(starts)):
        start, size, position = starts[number], sizes[number], positions[number]
        if size < 36 or size > _RECORD_MAX or start < 0 or start > len(data) - size:
            return number
        if position < 0 or position > len(out) - size - ENTRY_HEAD_SIZE:
            return number
        at = target + position
        store32(at, MAGIC_NORMAL)
        store32(at + 4, size + ENTRY_HEAD_SIZE)
        store64(at + 8, first_index + number)
        store64(at + 16, term)
        store64(at + 24, out_base + position)
        store64(at + 32, 0)
        store32(at + 40, 0)
        store32(at + 44, size)
        copy_bytes(at + ENTRY_HEAD_SIZE, source + start, size)
        store64(at + ENTRY_HEAD_SIZE + 28, out_base + position + ENTRY_HEAD_SIZE)
    return -1


@compiled
def write_records(
    data: Bytes, starts: Int64s, sizes: Int32s, out: OutBytes, positions: Int64s, out_base: int
) -> int:
    """See `Kernels.to_records`; number of a row that does not fit, or -1."""
    source, target = address_of(data), address_of(out)
    for number in range(len(starts)):
        start, size, position = starts[number], sizes[number], positions[number]
        if size < 36 or start < 0 or start > len(data) - size:
            return number
        if position < 0 or position > len(out) - size:
            return number
        copy_bytes(target + position, source + start, size)
        store64(target + position + 28, out_base + position)
    return -1
