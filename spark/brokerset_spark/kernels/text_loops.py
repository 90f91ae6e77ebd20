"""The loops of `compiled` over topics and properties."""

from __future__ import annotations

from brokerset_spark.kernels.compiling import (
    BYTES,
    INT,
    INT32S,
    INT64S,
    OUT_INT32S,
    OUT_INT64S,
    address_of,
    compiled,
    load8,
)
from brokerset_spark.kernels.contract import Bytes, Int32s, Int64s


@compiled(INT, BYTES, INT64S, INT32S, BYTES, OUT_INT64S, OUT_INT32S)
def search_property(
    data: Bytes, properties: Int64s, properties_sizes: Int32s, key: Bytes, starts: Int64s, sizes: Int32s
) -> int:
    """Fill `starts` and `sizes`; `key` ends in a 1. Number of a text outside the data, or -1."""
    address, limit, key_size = address_of(data), len(data), len(key)
    first = key[0]
    for number in range(len(properties)):
        start, size = properties[number], properties_sizes[number]
        if start < 0 or size < 0 or start > limit - size:
            return number
        found, found_size = -1, 0
        position, end = start, start + size
        while position < end:
            matches = end - position > key_size and load8(address + position) == first
            at = 1
            while matches and at < key_size:
                matches = load8(address + position + at) == key[at]
                at += 1
            chunk = position
            while position < end and load8(address + position) != 2:
                position += 1
            if matches and position - chunk > key_size:
                found, found_size = chunk + key_size, position - chunk - key_size
            position += 1
        starts[number] = found
        sizes[number] = found_size
    return -1


@compiled(INT, INT, INT)
def continuation(at: int, end: int) -> int:
    """The six bits of a byte that goes on a character of UTF-8, or -1."""
    if at >= end:
        return -1
    value = load8(at)
    return value & 0x3F if value & 0xC0 == 0x80 else -1


@compiled(INT, INT, INT)
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


@compiled(INT, BYTES, INT64S, INT32S, OUT_INT32S)
def hash_texts(data: Bytes, starts: Int64s, sizes: Int32s, found: Int32s) -> int:
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
