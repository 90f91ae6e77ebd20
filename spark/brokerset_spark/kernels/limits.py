"""What callers of kernels must not hand in."""

from __future__ import annotations

from brokerset_spark.kernels.contract import OFFSET_MAX, Bytes, Int32s, Int64s


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
