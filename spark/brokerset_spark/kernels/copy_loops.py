"""The loops of `compiled` that copy and compare whole texts, and units with rows."""

from __future__ import annotations

from typing import Final

from brokerset_formats.queue_units import UNIT_SIZE
from brokerset_spark.kernels.compiling import (
    OutBytes,
    OutInt32s,
    OutInt64s,
    address_of,
    compiled,
    copy_bytes,
    load8,
    load32,
    load64,
    store64,
)
from brokerset_spark.kernels.contract import Bytes, Int32s, Int64s
from brokerset_spark.kernels.text_loops import same_bytes

ODD: Final = -0x61C8864680B583EB
"""2^64 by the golden ratio, as a signed number: a product has something of all bits below in its top."""


@compiled
def lay_texts(data: Bytes, starts: Int64s, sizes: Int32s, offsets: OutInt32s) -> int:
    """Fill `offsets`, which are right if all texts have less than 2 GiB; bytes of all texts.

    `-1 - number` for a text outside the data.
    """
    limit, total = len(data), 0
    offsets[0] = 0
    for number in range(len(starts)):
        start = starts[number]
        if start >= 0:
            size = sizes[number]
            if size < 0 or start > limit - size:
                return -1 - number
            total += size
        offsets[number + 1] = total
    return total


@compiled
def copy_laid(data: Bytes, starts: Int64s, offsets: Int32s, flat: OutBytes) -> None:
    """Copy texts to where `lay_texts` has given them a place."""
    source, target = address_of(data), address_of(flat)
    for number in range(len(starts)):
        size = offsets[number + 1] - offsets[number]
        if size > 0:
            copy_bytes(target + offsets[number], source + starts[number], size)


@compiled
def digits_of(number: int) -> int:
    """Eight hexadecimal digits, the first one in the highest byte, of a number of 32 bits."""
    spread = (number & 0xFFFF0000) << 16 | number & 0xFFFF
    spread = (spread & 0x0000FF000000FF00) << 8 | spread & 0x000000FF000000FF
    spread = (spread & 0x00F000F000F000F0) << 4 | spread & 0x000F000F000F000F
    letters = (spread + 0x0606060606060606) >> 4 & 0x0101010101010101
    return spread + 0x3030303030303030 + letters * 7


@compiled
def write_digits(address: int, start: int, size: int, target: int, flat: OutBytes, place: int) -> int:
    """Write the digits of a text to `place` of `flat`, whose address is `target`; the place behind them."""
    at, end = address + start, address + start + size
    while end - at >= 4:
        store64(target + place, digits_of(load32(at) & 0xFFFFFFFF))
        at += 4
        place += 8
    while at < end:
        byte = load8(at)
        for nibble in (byte >> 4, byte & 15):
            flat[place] = nibble + (0x30 if nibble < 10 else 0x37)
            place += 1
        at += 1
    return place


@compiled
def copy_digits(
    data: Bytes, starts: Int64s, offsets: Int32s, tail_starts: Int64s, tail_offsets: Int32s, flat: OutBytes
) -> None:
    """Fill `flat` with the digits of each text and of its tail; `offsets` are those of `lay_texts`."""
    source, target, place = address_of(data), address_of(flat), 0
    for number in range(len(starts)):
        size = offsets[number + 1] - offsets[number]
        place = write_digits(source, starts[number], size, target, flat, place)
        size = tail_offsets[number + 1] - tail_offsets[number]
        place = write_digits(source, tail_starts[number], size, target, flat, place)


@compiled
def mixed(at: int, size: int) -> int:
    """A hash of so many bytes; the upper half of its bits is good."""
    value, end = size * ODD, at + size
    while end - at >= 8:
        value = ((value ^ load64(at)) * ODD) ^ value >> 29
        at += 8
    last = 0
    while at < end:
        last = last << 8 | load8(at)
        at += 1
    return ((value ^ value >> 32) ^ last) * ODD


@compiled
def number_distinct(
    data: Bytes, starts: Int64s, sizes: Int32s, slots: OutInt32s, codes: OutInt32s, firsts: OutInt64s
) -> int:
    """Fill `codes` and the begin of `firsts`; how many different texts there are.

    `slots` are zeros, a power of two of them, more than texts. `-1 - number` for a text outside the data.
    """
    address, limit, mask, count = address_of(data), len(data), len(slots) - 1, 0
    for number in range(len(starts)):
        start = starts[number]
        size = sizes[number] if start >= 0 else 0
        if size < 0 or start > limit - size:
            return -1 - number
        at = address + start
        slot = mixed(at, size) >> 32 & mask
        while True:
            code = slots[slot] - 1
            if code < 0:
                firsts[count] = number
                codes[number] = count
                count += 1
                slots[slot] = count
                break
            first = firsts[code]
            other = starts[first]
            other_size = sizes[first] if other >= 0 else 0
            if other_size == size and same_bytes(address + other, at, size):
                codes[number] = code
                break
            slot = (slot + 1) & mask
    return count


@compiled
def fitting_units(
    units: Bytes, rows: Int64s, offsets: Int64s, sizes: Int32s, codes: Int64s, least_code: int
) -> int:
    """See `Kernels.count_fitting`; `-1 - number` for a unit whose row is not there."""
    at, most = address_of(units), len(offsets)
    for number in range(len(rows)):
        row = rows[number]
        if row < 0 or row >= most:
            return -1 - number
        code = load64(at + 12)
        if (
            load64(at) != offsets[row]
            or load32(at + 8) != sizes[row]
            or code != codes[row]
            or code < least_code
        ):
            return number
        at += UNIT_SIZE
    return len(rows)
