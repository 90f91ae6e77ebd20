"""Medians and spreads of ratios of neighbouring runs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times the base a side is: the median over all pairs, the least, and the most."""

    median: float
    least: float
    most: float
    pairs: int


def paired_ratio(side: Sequence[float | None], base: Sequence[float | None]) -> Ratio | None:
    """Ratios of runs of the same round; None when there is no round with both."""
    found = [one / other for one, other in zip(side, base, strict=False) if one is not None and other]
    if not found:
        return None
    return Ratio(statistics.median(found), min(found), max(found), len(found))


def middle(values: Sequence[float | None]) -> float | None:
    """The median of what was measured."""
    found = [value for value in values if value is not None]
    return statistics.median(found) if found else None


def sparkline(values: Sequence[float]) -> str:
    """A line of bars, the highest being the largest value; nothing for less than two values."""
    bars = "▁▂▃▄▅▆▇█"
    if len(values) < 2 or not max(values) > 0:
        return ""
    return "".join(bars[round(value / max(values) * (len(bars) - 1))] for value in values)
