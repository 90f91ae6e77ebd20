"""The loops of `compiled` over topics and properties."""

from __future__ import annotations

from typing import Final

from brokerset_spark.kernels.compiling import (
    OutBytes,
    OutInt32s,
    TableInt32s,
    TableInt64s,
    address_of,
    compiled,
    copy_bytes,
    load8,
    load64,
)
from brokerset_spark.kernels.contract import PAIRS_COMPARED, Bytes, Int32s, Int64s

_TWOS: Final = 0x0202020202020202
_ONES: Final = 0x0101010101010101
_TOPS: Final = -0x7F7F7F7F7F7F7F80


@compiled
def chunk_end(at: int, end: int) -> int:
    """Address of the first byte 2 from `at` on, or `end`; eight bytes at once that have none."""
    while end - at >= 8:
        word = load64(at) ^ _TWOS
        if (word - _ONES) & ~word & _TOPS:
            break
        at += 8
    while at < end and load8(at) != 2:
        at += 1
    return at


@compiled
def same_bytes(left: int, right: int, size: int) -> bool:
    """Whether so many bytes at two addresses are the same."""
    at = 0
    while size - at >= 8 and load64(left + at) == load64(right + at):
        at += 8
    while at < size and load8(left + at) == load8(right + at):
        at += 1
    return at == size


@compiled
def search_properties(
    data: Bytes, properties: Int64s, properties_sizes: Int32s, keys: Bytes, key_bounds: Int64s, starts:
    TableInt64s, sizes: TableInt32s
) -> int:  # fmt: skip
    """Fill a row of `starts` and `sizes` for each key; number of a text outside the data, or -1.

    Keys end in a 1 and lie one behind the other, divided at `key_bounds`; an empty one is nowhere.
    """
    address, limit, keys_address = address_of(data), len(data), address_of(keys)
    count = len(key_bounds) - 1
    for number in range(len(properties)):
        start, size = properties[number], properties_sizes[number]
        if start < 0 or size < 0 or start > limit - size:
            return number
        for kind in range(count):
            starts[kind, number], sizes[kind, number] = -1, 0
        at, end = address + start, address + start + size
        while at < end:
            stop = chunk_end(at, end)
            for kind in range(count):
                key, key_size = keys_address + key_bounds[kind], key_bounds[kind + 1] - key_bounds[kind]
                if key_size > 0 and stop - at > key_size and same_bytes(at, key, key_size):
                    starts[kind, number] = at + key_size - address
                    sizes[kind, number] = stop - at - key_size
            at = stop + 1
    return -1


@compiled
def split_pairs(
    data: Bytes, starts: Int64s, text_sizes: Int32s, offsets: OutInt32s, names: OutBytes, name_offsets:
    OutInt32s, values: OutBytes, value_offsets: OutInt32s
) -> tuple[int, int]:  # fmt: skip
    """Fill all but the first three, which lie in the data; number of pairs, and 1 if names may repeat."""
    address, names_address, values_address = address_of(data), address_of(names), address_of(values)
    pairs = name_end = value_end = repeated = 0
    offsets[0], name_offsets[0], value_offsets[0] = 0, 0, 0
    for number in range(len(starts)):
        at, first = address + starts[number], pairs
        end = at + text_sizes[number]
        while at < end:
            stop, middle = chunk_end(at, end), at
            while middle < stop and load8(middle) != 1:
                middle += 1
            name_size, value_size = middle - at, stop - middle - 1
            if name_size > 0 and value_size > 0:
                if pairs - first >= PAIRS_COMPARED:
                    repeated = 1
                other = first
                while repeated == 0 and other < pairs:
                    begin = name_offsets[other]
                    alike = name_offsets[other + 1] - begin == name_size
                    if alike and same_bytes(names_address + begin, at, name_size):
                        repeated = 1
                    other += 1
                copy_bytes(names_address + name_end, at, name_size)
                copy_bytes(values_address + value_end, middle + 1, value_size)
                name_end += name_size
                value_end += value_size
                pairs += 1
                name_offsets[pairs], value_offsets[pairs] = name_end, value_end
            at = stop + 1
        offsets[number + 1] = pairs
    return pairs, repeated


@compiled
def continuation(at: int, end: int) -> int:
    """The six bits of a byte that goes on a character of UTF-8, or -1."""
    if at >= end:
        return -1
    value = load8(at)
    return value & 0x3F if value & 0xC0 == 0x80 else -1


@compiled
def java_hash(at: int, size: int) -> int:
    """`String.hashCode` of UTF-8 text; what is none becomes U+FFFD, as often as Python's decoder has it."""
    end, value = at + size, 0
    while at < end:
        lead = load8(at)
        at += 1
        unit = lead
        if lead >= 0x80:
            unit = 0xFFFD
            second = continuation(at, end)
            if second >= 0 and lead >= 0xC2 and lead <= 0xDF:
                unit = (lead & 0x1F) << 6 | second
                at += 1
            elif second >= 0 and lead >= 0xE0 and lead <= 0xEF:
                unit = (lead & 0x0F) << 12 | second << 6
                if unit < 0x800 or (unit >= 0xD800 and unit <= 0xDFFF):
                    unit = 0xFFFD
                else:
                    at += 1
                    third = continuation(at, end)
                    unit = unit | third if third >= 0 else 0xFFFD
                    at += 1 if third >= 0 else 0
            elif second >= 0 and lead >= 0xF0 and lead <= 0xF4:
                point = (lead & 0x07) << 18 | second << 12
                if point >= 0x10000 and point < 0x110000:
                    at += 1
                    third = continuation(at, end)
                    if third >= 0:
                        at += 1
                        fourth = continuation(at, end)
                        if fourth >= 0:
                            at += 1
                            point = (point | third << 6 | fourth) - 0x10000
                            value = (value * 31 + 0xD800 + (point >> 10)) & 0xFFFFFFFF
                            unit = 0xDC00 + (point & 0x3FF)
        value = (value * 31 + unit) & 0xFFFFFFFF
    return value if value < 0x80000000 else value - 0x100000000


@compiled
def hash_texts(data: Bytes, starts: Int64s, sizes: Int32s, found: OutInt32s) -> int:
    """Fill `found`; number of a text outside the data, or -1."""
    address, limit = address_of(data), len(data)
    for number in range(len(starts)):
        start, size = starts[number], sizes[number]
        if start < 0:
            found[number] = 0
        elif size < 0 or start > limit - size:
            return number
        else:
            found[number] = java_hash(address + start, size)
    return -1
