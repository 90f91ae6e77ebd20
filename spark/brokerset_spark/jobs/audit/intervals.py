"""Which stretches of a log get a digest, so that replicas which were mapped apart can be compared.

A stretch `[start, end)` stands for the records that begin in it. Two replicas are compared where both
have the
same stretch, so there are four sizes of them, from coarse ones that all replicas share to fine ones
near the end,
where replicas differ in how far they are confirmed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Final

SEGMENT: Final = 16 << 20
"""Bytes of the stretches; they begin at multiples of it."""

COARSE: Final = 256 << 20
"""Bytes of those that remain of the oldest part of a log with very many."""

MARK: Final = 256 << 10
"""Bytes of the finest, in the last `SEGMENT` before the bound."""

Interval = tuple[int, int]


def wanted_intervals(
    begin: int, end: int, *, epoch_starts: Iterable[int] = (), cuts: Iterable[int] = (), bound: int
) -> list[Interval]:
    """Stretches for one file `[begin, end)` of a log that is read up to `bound` (not before `end`); sorted.

    Coarse ones, segments, segments cut at the starts of epochs and at `cuts`, and the same cut at each `MARK`
    where the bound is near.
    """
    coarse = _points(begin, end, range(_up(begin, COARSE), end, COARSE))
    segments = _points(begin, end, [*coarse, *range(_up(begin, SEGMENT), end, SEGMENT)])
    pieces = _points(begin, end, [*segments, *epoch_starts, *cuts])
    near = max(begin, bound - SEGMENT)
    marks = _points(begin, end, [*pieces, *range(_up(near, MARK), end, MARK)])
    found = {pair for points in (coarse, segments, pieces, marks) for pair in _pairs(points)}
    return sorted(found)


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _points(begin: int, end: int, between: Iterable[int]) -> list[int]:
    return sorted({begin, end, *(each for each in between if begin < each < end)})


def _pairs(points: Sequence[int]) -> list[Interval]:
    return list(itertools.pairwise(points))


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same without overlaps, sorted; neighbours are joined."""
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        elif start < end:
            found.append((start, end))
    return found


def missing(whole: Interval, covered: Iterable[Interval]) -> list[Interval]:
    """What of `whole` is not covered."""
    found, at = [], whole[0]
    for start, end in union(covered):
        if start > at:
            found.append((at, min(start, whole[1])))
        at = max(at, end)
        if at >= whole[1]:
            break
    if at < whole[1]:
        found.append((at, whole[1]))
    return [each for each in found if each[0] < each[1]]


def smallest(intervals: Iterable[Interval]) -> list[Interval]:
    """Those that contain no other one of them, sorted."""
    ordered = sorted(set(intervals), key=lambda each: (each[0], -each[1]))
    found: list[Interval] = []
    for start, end in ordered:
        while found and found[-1][0] <= start and end <= found[-1][1]:
            found.pop()
        found.append((start, end))
    return found
