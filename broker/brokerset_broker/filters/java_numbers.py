"""Numbers as Java reads and writes them: Python's `int` and `float` take other texts than `valueOf`."""

from __future__ import annotations

import math
import re
from typing import Final

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1

SPACES: Final = "".join(map(chr, range(0x21)))
"""What `String.trim` removes at both ends."""

_INTEGER = re.compile(r"[+-]?(\d++)")
_DOUBLE = re.compile(
    r"[\0-\x20]*+([+-]?)(?:(NaN|Infinity)"
    r"|((?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?)[fFdD]?"
    r"|(0[xX](?:[0-9a-fA-F]++\.?|[0-9a-fA-F]*+\.[0-9a-fA-F]++)[pP][+-]?[0-9]++)[fFdD]?)[\0-\x20]*+"
)


def parse_integer(text: str, largest: int) -> int | None:
    """`Integer.valueOf` (with `INT32_MAX` as the largest) or `Long.valueOf`; `None` if Java raises.

    A sign may lead. Digits of every script will do, but no spaces.
    """
    match = _INTEGER.fullmatch(text)
    if match is None or not (text.isascii() or max(text) <= "\uffff"):
        return None
    digits = match[1].lstrip("0")
    if len(digits) > 400:  # far beyond 64 bits, unless written with zeros of another script
        return None
    value = int(digits or "0")
    if text[0] == "-":
        value = -value
    return value if -largest - 1 <= value <= largest else None


def parse_double(text: str) -> float | None:
    """`Double.valueOf`; `None` if Java raises. Spaces and control characters around it are ignored."""
    match = _DOUBLE.fullmatch(text)
    if match is None:
        return None
    sign, word, decimal, hexadecimal = match.groups()
    if word is not None:
        value = math.inf if word == "Infinity" else math.nan
    elif decimal is not None:
        value = float(decimal)
    else:
        try:
            value = float.fromhex(hexadecimal)
        except OverflowError:
            value = math.inf
    return -value if sign == "-" else value


def compare_doubles(left: float, right: float) -> int:
    """`Double.compareTo`: -1, 0 or 1. NaN equals itself and is the largest; -0.0 is less than 0.0."""
    if left < right:
        return -1
    if left > right:
        return 1
    one, other = _order(left), _order(right)
    return (one > other) - (one < other)


def _order(value: float) -> int:
    """Among doubles of which none is the less."""
    if value != value:
        return 1
    return -1 if value == 0 and math.copysign(1.0, value) < 0 else 0


def double_text(value: float) -> str:
    """`Double.toString` of a finite number: 1.0E10 rather than 1e+10."""
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return f"{value:.1f}" if value.is_integer() else repr(value)
    mantissa, _, exponent = f"{value!r}".partition("e")
    if not exponent:
        mantissa, _, exponent = _scientific(value).partition("e")
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}E{int(exponent)}"


def _scientific(value: float) -> str:
    digits = repr(value).lstrip("-").replace(".", "").strip("0")
    return f"{value:.{max(len(digits) - 1, 0)}e}"
