"""Amounts of resources in the API server's own spelling, so that equal amounts are equal texts."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Final

_SHAPE: Final = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)(?P<suffix>[KMGTPE]i|[numkMGTPE]?)")

_BINARY: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
"""Powers of 1024."""

_DECIMAL: Final = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")
"""Powers of 1000, from the ninth digit after the point on, which is as exact as Kubernetes is."""

_ONE: Final = _DECIMAL.index("")


def amount_of(text: str) -> Fraction:
    """The number that a text stands for. Raises `ValueError` for a text that is no amount."""
    match = _SHAPE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no amount; write a number with a unit, like 20Gi")
    number, suffix = Fraction(match["number"]), match["suffix"]
    if suffix.endswith("i"):
        return number * _power(1024, _BINARY.index(suffix))
    return number * _power(1000, _DECIMAL.index(suffix)) / _power(1000, _ONE)


def smaller(first: str, second: str) -> str:
    """The smaller one of two amounts, as it was spelled. Raises `ValueError`."""
    return min(first, second, key=amount_of)


def canonical(amount: int | str) -> str:
    """`1024Mi` is `1Gi`, `0.5` is `500m`, `2000m` is `2`: no fraction, and the largest unit that needs none.

    A text that is no amount is returned as it is: the API server will say what is wrong with it.
    """
    text = str(amount)
    try:
        value = amount_of(text)
    except ValueError:
        return text
    if text.endswith("i") and value >= 1024:
        return _largest(math.ceil(value), 1024, _BINARY)
    return _largest(math.ceil(value * _power(1000, _ONE)), 1000, _DECIMAL) if value else "0"


def _power(base: int, exponent: int) -> Fraction:
    return Fraction(base**exponent)


def _largest(number: int, step: int, suffixes: tuple[str, ...]) -> str:
    unit = 0
    while number % step == 0 and unit + 1 < len(suffixes):
        number, unit = number // step, unit + 1
    return f"{number}{suffixes[unit]}"
