"""What callers of kernels must not hand in."""

from __future__ import annotations

import numpy as np

from brokerset_formats.queue_units import UNIT_SIZE
from brokerset_spark.kernels.contract import OFFSET_MAX, Bytes, Int32s, Int64s

TEXTS_MAX = 2**31 - 1
"""Bytes of texts that are split at once: places in Arrow's arrays have 32 bits."""


def check_range(start: int, end: int) -> None:
    """ValueError for positions before the data."""
    if start < 0 or end < 0:
        raise ValueError(f"[{start}, {end}) begins before the data")


def check_offsets(
    starts: Int64s,
    sizes: Int32s,
    positions: Int64s,
    out: Bytes,
    out_base: int,
    *,
    first_index: int = 0,
    term: int = 0,
) -> None:
    """ValueError if arrays differ in length, or numbers would not fit 64 bits."""
    if not len(starts) == len(sizes) == len(positions):
        raise ValueError(
            f"{len(starts)} starts, {len(sizes)} sizes, {len(positions)} positions: must be as many"
        )
    if not 0 <= out_base <= OFFSET_MAX - len(out):
        raise ValueError(f"offset {out_base} of the output is out of range")
    if not 0 <= first_index <= OFFSET_MAX - len(starts) or not 0 <= term <= OFFSET_MAX:
        raise ValueError(f"index {first_index} or term {term} is out of range")


def misfit(number: int, starts: Int64s) -> ValueError:
    """For a record that leaves the data, or the output."""
    return ValueError(f"record {number} at position {int(starts[number])} does not fit the buffer")


def text_misfit(number: int) -> ValueError:
    """For a text that leaves the data."""
    return ValueError(f"text {number} does not fit the buffer")


def check_texts(data: Bytes, starts: Int64s, sizes: Int32s) -> int:
    """Bytes of all texts; ValueError if one leaves the data, or if their ends do not fit 32 bits."""
    if len(starts) != len(sizes):
        raise ValueError(f"{len(starts)} starts, {len(sizes)} sizes: must be as many")
    wrong = (starts < 0) | (sizes < 0) | (starts > len(data) - sizes.astype(np.int64))
    if wrong.any():
        raise text_misfit(int(wrong.argmax()))
    total = int(sizes.sum(dtype=np.int64))
    check_total(total)
    return total


def check_units(units: Bytes, rows: Int64s, *columns: Int64s | Int32s) -> None:
    """ValueError if there are not as many units as rows, or columns differ in length."""
    if len(units) != len(rows) * UNIT_SIZE or len({len(each) for each in columns}) > 1:
        lengths = [len(each) for each in columns]
        raise ValueError(f"{len(units)} bytes of units for {len(rows)} rows, columns of {lengths}")


def row_misfit(number: int, rows: Int64s) -> ValueError:
    """For a unit whose row is not there."""
    return ValueError(f"unit {number} has row {int(rows[number])}, which is not there")


def check_total(total: int) -> None:
    """ValueError for more bytes of texts than places of 32 bits can divide."""
    if total > TEXTS_MAX:
        raise ValueError(f"{total} bytes of texts at once are more than {TEXTS_MAX}; hand in fewer")
