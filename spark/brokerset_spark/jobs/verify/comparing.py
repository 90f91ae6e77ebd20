"""Comparing units with what they must be, whatever kind they are of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brokerset_spark.kernels.contract import Bools, Int64s
from brokerset_spark.stores.units import Units

Kinds = NDArray[np.int8]


def first_differences(units: Units, wanted: Mapping[str, NDArray[Any]]) -> Kinds:
    """For each unit which of its fields, from 1 on, is the first that is not as it must be; 0 for none."""
    found = np.zeros(len(units), np.int8)
    for number, (name, values) in reversed(list(enumerate(wanted.items(), 1))):
        found[units[name] != values] = number
    return found


def runs_of(kinds: Kinds) -> Iterator[tuple[int, int, int]]:
    """Stretches `[begin, end)` of one kind, and the kind; those of kind 0 are left out."""
    if kinds.any():
        for begin, end in pairwise([0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), len(kinds)]):
            if kinds[begin]:
                yield begin, end, int(kinds[begin])


def inside(values: Int64s, ranges: list[list[int]]) -> Bools:
    """Which values lie in one of these sorted ranges `[first, end)`."""
    if not ranges:
        return np.zeros(len(values), np.bool_)
    bounds = np.array(ranges, np.int64)
    at = np.searchsorted(bounds[:, 0], values, side="right") - 1
    found: Bools = (at >= 0) & (values < bounds[np.maximum(at, 0), 1])
    return found


def joined(ranges: list[list[int]]) -> list[list[int]]:
    """Ranges `[first, end)`, sorted, those that touch as one."""
    found: list[list[int]] = []
    for first, end in sorted(ranges):
        if found and first <= found[-1][1]:
            found[-1][1] = max(found[-1][1], end)
        else:
            found.append([first, end])
    return found


def in_a_row(numbers: Int64s) -> list[Int64s]:
    """Sorted numbers, divided where one does not follow on the one before."""
    return np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1) if len(numbers) else []
