"""Order stamps of many records at once: whole arrays, with the answer of `order_stamps.decode_stamp`.

No I/O. A stamp is `partition:logical:producer:epoch:sequence`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from brokerset_formats.errors import FormatError
from brokerset_formats.order_keys import LOGICAL_PARTITIONS
from brokerset_formats.order_stamps import PRODUCER_ID, decode_stamp
from brokerset_spark.kernels.contract import Bools, Bytes, Int32s, Int64s, Texts

_COLON: Final = ord(":")
_COLONS: Final = 4
_ZERO: Final = ord("0")
_DIGITS_MAX: Final = 18
"""Digits of a number that surely fits 64 bits; the few longer ones are left to `decode_stamp`."""

_PRODUCER_MAX: Final = 64

_IS_DIGIT: Final = np.zeros(256, np.bool_)
_IS_DIGIT[_ZERO : _ZERO + 10] = True
_IS_PRODUCER: Final = np.array([PRODUCER_ID.fullmatch(chr(each)) is not None for each in range(256)])


class Stamps(NamedTuple):
    """The parts of stamps; zeros where a stamp is not `readable`."""

    readable: Bools
    partition: Int64s
    logical: Int64s
    producer: Texts
    """Where the ids are in the bytes that were handed in; a start of -1 where a stamp is not readable."""

    epoch: Int64s
    sequence: Int64s


def parse_stamps(flat: Bytes, offsets: Int32s | Int64s) -> Stamps:
    """Read stamps that lie one behind the other in `flat`, divided at `offsets` (one more than stamps)."""
    ends = offsets.astype(np.int64)
    begins, ends = ends[:-1], ends[1:]
    colons = np.flatnonzero(flat == _COLON)
    low = np.searchsorted(colons, begins)
    rows = np.flatnonzero(np.searchsorted(colons, ends) - low == _COLONS)
    found = _unread(len(begins))
    if not len(rows):
        return found
    at = colons[low[rows][:, None] + np.arange(_COLONS)].T
    starts = (begins[rows], *(at + 1))
    stops = (*at, ends[rows])
    bad_digits, bad_letters = _counted(~_IS_DIGIT[flat]), _counted(~_IS_PRODUCER[flat])
    good = np.ones(len(rows), np.bool_)
    long = np.zeros(len(rows), np.bool_)
    for field, column in ((0, found.partition), (1, found.logical), (3, found.epoch), (4, found.sequence)):
        start, stop = starts[field], stops[field]
        size = stop - start
        only_digits = bad_digits[stop] == bad_digits[start]
        first = flat[np.minimum(start, len(flat) - 1)]
        good &= (size > 0) & only_digits & ((size == 1) | (first != _ZERO))
        long |= size > _DIGITS_MAX
        column[rows] = _numbers(flat, start, np.where(only_digits & (size <= _DIGITS_MAX), size, 0))
    good &= found.logical[rows] < LOGICAL_PARTITIONS
    size = stops[2] - starts[2]
    good &= (size > 0) & (size <= _PRODUCER_MAX) & (bad_letters[stops[2]] == bad_letters[starts[2]])
    found.producer.starts[rows], found.producer.sizes[rows] = starts[2], size
    found.readable[rows] = good
    for row in rows[long].tolist():
        _read_alone(flat, int(begins[row]), int(ends[row]), row, found)
    _clear(found, ~found.readable)
    return found


def _unread(count: int) -> Stamps:
    numbers = [np.zeros(count, np.int64) for _ in range(4)]
    producer = Texts(np.full(count, -1, np.int64), np.zeros(count, np.int32))
    return Stamps(np.zeros(count, np.bool_), numbers[0], numbers[1], producer, numbers[2], numbers[3])


def _counted(flags: Bools) -> Int32s:
    """How many of the flags before each place, and before the end, are set."""
    found = np.zeros(len(flags) + 1, np.int32)
    np.cumsum(flags, out=found[1:], dtype=np.int32)
    return found


def _numbers(flat: Bytes, starts: Int64s, sizes: Int64s) -> Int64s:
    """The numbers that so many digits are; 0 for none."""
    values = np.zeros(len(starts), np.int64)
    for digit in range(int(sizes.max(initial=0))):
        there = np.flatnonzero(sizes > digit)
        values[there] = values[there] * 10 + (flat[starts[there] + digit].astype(np.int64) - _ZERO)
    return values


def _read_alone(flat: Bytes, begin: int, end: int, row: int, found: Stamps) -> None:
    try:
        stamp = decode_stamp(flat[begin:end].tobytes().decode("latin-1"))
    except FormatError:
        found.readable[row] = False
        return
    found.readable[row] = True
    for column, value in (
        (found.partition, stamp.partition_id), (found.logical, stamp.logical_partition),
        (found.epoch, stamp.producer_epoch), (found.sequence, stamp.sequence),
    ):  # fmt: skip
        column[row] = value


def _clear(found: Stamps, rows: Bools) -> None:
    for column in (found.partition, found.logical, found.epoch, found.sequence, found.producer.sizes):
        column[rows] = 0
    found.producer.starts[rows] = -1
