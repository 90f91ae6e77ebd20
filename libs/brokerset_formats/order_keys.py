"""Order keys, logical partitions, and the ranges of them that partitions have.

Source: QMQ's design for ordered messages. Ranges differ: QMQ's round the width, so that some numbers of
partitions leave keys without one.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

LOGICAL_PARTITIONS: Final = 1_024
"""Of each subject, permanently: what a key belongs to."""

Range = tuple[int, int]
"""Logical partitions from the first up to, and without, the second."""


def order_key_hash(key: str) -> int:
    """Java's `String.hashCode`: over UTF-16 code units, in 32 bits with a sign."""
    units = key.encode("utf-16-be", "surrogatepass")
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFF_FFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def logical_partition(key: str) -> int:
    """The logical partition of a key; the empty one is a key, too."""
    return abs(order_key_hash(key)) % LOGICAL_PARTITIONS


def partition_ranges(count: int) -> tuple[Range, ...]:
    """The ranges of `count` partitions: each logical partition is in one, and sizes differ by one at most.

    ValueError unless `count` is between 1 and 1,024.
    """
    if not 1 <= count <= LOGICAL_PARTITIONS:
        raise ValueError(f"{count} partitions; a subject has 1 to {LOGICAL_PARTITIONS}")
    bounds = [LOGICAL_PARTITIONS * number // count for number in range(count + 1)]
    return tuple(pairwise(bounds))


def overlap(first: Range, second: Range) -> bool:
    """Whether two ranges have a logical partition in common."""
    return first[0] < second[1] and second[0] < first[1]
