"""What is kept of records instead of them: tables whose rows are put together, whatever a range is cut at.

A record is a row of each table; rows of the same group become one, and a table of tables is made the same
way. So tasks hand the driver a few rows for each queue, producer and logical partition, and no records.
Rows are in the order of one log. No I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brokerset_spark.kernels.contract import Bytes, Int32s, Int64s

Table = NDArray[np.void]

QUEUE: Final = np.dtype(
    [
        ("queue", "<i8"),
        ("records", "<i8"),
        ("absent", "<i8"),  # without a stamp
        ("unreadable", "<i8"),
        ("misplaced", "<i8"),  # the logical partition is not that of the key
        ("keyed", "<i8"),
        ("first_place", "<i8"),
        ("last_place", "<i8"),
        ("first_time", "<i8"),
        ("last_time", "<i8"),
    ]
)
"""Records of a queue. Places are queue offsets: of the first record in the log, and the highest one. Times
are the lowest and the highest, in milliseconds."""

LOGICAL: Final = np.dtype(
    [
        ("queue", "<i8"),
        ("logical", "<i8"),
        ("messages", "<i8"),
        ("first_place", "<i8"),
        ("first_offset", "<i8"),
        ("last_offset", "<i8"),
        ("first_time", "<i8"),
        ("last_time", "<i8"),
    ]
)
"""Messages of a logical partition in a queue. Offsets are those of the log."""

RUN: Final = np.dtype(
    [
        ("queue", "<i8"),
        ("producer", "<i8"),
        ("partition", "<i8"),
        ("epoch", "<i8"),
        ("first", "<i8"),
        ("last", "<i8"),
        ("first_place", "<i8"),
        ("last_place", "<i8"),
        ("offset", "<i8"),
        ("time", "<i8"),
    ]
)
"""Messages of a producer that follow each other in a queue: same partition and epoch, sequences that grow by
one, queue offsets that grow. `offset` and `time` are those of the first."""

_SUMS: Final = frozenset({"records", "absent", "unreadable", "misplaced", "keyed", "messages"})
_FIRSTS: Final = frozenset({"first_place", "first_offset"})
_LEASTS: Final = frozenset({"first_time"})
"""How a column of several rows becomes that of one: the sum, the first, the least; the greatest otherwise."""


def rows_of(kind: np.dtype[Any], count: int, **columns: Any) -> Table:
    """A table with these columns, which are arrays or one value for all rows."""
    found = np.empty(count, kind)
    for name in kind.names or ():
        found[name] = columns[name]
    return found


def group(table: Table) -> Table:
    """One row for each queue (and logical partition), in the order of the log; sorted by them."""
    if not len(table):
        return table
    fields = table.dtype.names or ()
    keys = [name for name in ("queue", "logical") if name in fields]
    order = _order([table[name] for name in keys])
    ordered = table[order]
    starts = np.flatnonzero(_differs(ordered, keys))
    found = np.empty(len(starts), table.dtype)
    for name in fields:
        column = ordered[name]
        if name in keys or name in _FIRSTS:
            found[name] = column[starts]
        elif name in _SUMS:
            found[name] = np.add.reduceat(column, starts)
        elif name in _LEASTS:
            found[name] = np.minimum.reduceat(column, starts)
        else:
            found[name] = np.maximum.reduceat(column, starts)
    return found


def fuse(runs: Table) -> Table:
    """The fewest runs that say the same; they and the result are in the order of the log."""
    if not len(runs):
        return runs
    order = _order([runs["queue"], runs["producer"]])
    ordered = runs[order]
    begins = _differs(ordered, ["queue", "producer", "partition", "epoch"])
    begins[1:] |= ordered["first"][1:] != ordered["last"][:-1] + 1
    begins[1:] |= ordered["first_place"][1:] <= ordered["last_place"][:-1]
    starts = np.flatnonzero(begins)
    ends = np.append(starts[1:], len(ordered)) - 1
    found = ordered[starts].copy()
    found["last"], found["last_place"] = ordered["last"][ends], ordered["last_place"][ends]
    return found[np.argsort(found["offset"], kind="stable")]


_SMALL: Final = 1 << 16
"""Numbers below it are sorted by their digits, several times as fast as larger ones."""


def _order(keys: Sequence[Int64s]) -> Int64s:
    """Rows by these numbers, none of which is negative; those with equal ones stay in their order."""
    together = keys[0]
    for each in keys[1:]:
        together = together * (each.max() + 1) + each
    if together.max() < _SMALL:
        together = together.astype(np.uint16)
    return np.argsort(together, kind="stable")


def _differs(ordered: Table, keys: Sequence[str]) -> NDArray[np.bool_]:
    """Which rows are not of the same group as the one before; the first is."""
    found = np.ones(len(ordered), np.bool_)
    found[1:] = False
    for name in keys:
        found[1:] |= ordered[name][1:] != ordered[name][:-1]
    return found


KEYS_KEPT: Final = 16_384
"""Hashes of a subject's keys that are kept: up to so many keys are counted exactly, more to about 1 %."""


def least_hashes(*parts: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The lowest hashes of all parts, each once."""
    found = np.sort(np.concatenate(parts))
    fresh = np.ones(len(found), np.bool_)
    np.not_equal(found[1:], found[:-1], out=fresh[1:])
    return found[fresh][:KEYS_KEPT]


_FACTOR: Final = np.uint64(0x9E37_79B9_7F4A_7C15)
_INVERSE: Final = np.uint64(pow(0x9E37_79B9_7F4A_7C15, -1, 2**64))
_MIXERS: Final = (np.uint64(0xBF58_476D_1CE4_E5B9), np.uint64(0x94D0_49BB_1331_11EB))


def hash_texts(flat: Bytes, offsets: Int32s | Int64s) -> NDArray[np.uint64]:
    """64 bits for each text of those that lie one behind the other, divided at `offsets`.

    A polynomial of the bytes modulo 2^64, from sums that begin before the first text; then mixed as
    splitmix64 does it, so that equal texts have equal hashes and different ones are spread evenly.
    """
    powers = np.full(len(flat) + 1, _FACTOR)
    powers[0] = 1
    inverses = np.full(len(flat) + 1, _INVERSE)
    inverses[0] = 1
    np.multiply.accumulate(powers, out=powers)
    np.multiply.accumulate(inverses, out=inverses)
    sums = np.zeros(len(flat) + 1, np.uint64)
    np.cumsum((flat.astype(np.uint64) + np.uint64(1)) * powers[:-1], out=sums[1:])
    found: NDArray[np.uint64] = (sums[offsets[1:]] - sums[offsets[:-1]]) * inverses[offsets[:-1]]
    for shift, mixer in zip((30, 27), _MIXERS, strict=True):
        found = (found ^ (found >> np.uint64(shift))) * mixer
    return found ^ (found >> np.uint64(31))


def count_keys(hashes: NDArray[np.uint64]) -> tuple[int, bool]:
    """How many different keys gave these lowest hashes, and whether that is exact.

    Hashes of 64 bits are spread evenly, so the highest of the lowest k tells how densely they lie.
    """
    if len(hashes) < KEYS_KEPT:
        return len(hashes), True
    return round((KEYS_KEPT - 1) / (int(hashes[-1]) / 2**64)), False


def joined(kind: np.dtype[Any], parts: Sequence[Table]) -> Table:
    """One behind the other."""
    return np.concatenate(parts) if parts else np.empty(0, kind)


def column(table: Table, name: str) -> Int64s:
    """One column of a table."""
    found: Int64s = table[name]
    return found
