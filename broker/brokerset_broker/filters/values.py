"""How Java compares the values of an expression: texts become what they are compared with."""

from __future__ import annotations

from typing import TypeAlias

from brokerset_broker.filters.errors import CannotEvaluate
from brokerset_broker.filters.java_numbers import (
    INT32_MAX,
    INT64_MAX,
    SPACES,
    compare_doubles,
    parse_double,
    parse_integer,
)

Value: TypeAlias = str | int | float | bool
"""Not null: `int` is Java's `Integer` or `Long`, by its size, and `float` its `Double`."""

_SHOWN_MAX = 100
"""Characters of a value in a message of the log."""


class NotANumber(CannotEvaluate):
    """A text is compared with a number; `java_reason` is what Java's `NumberFormatException` says."""

    def __init__(self, kind: str, text: str, java_reason: str) -> None:
        super().__init__(f"the text {text[:_SHOWN_MAX]!r} is no {kind}")
        self.java_reason = java_reason


def text_as(text: str, other: int | float) -> int | float:
    """A text as the type of the number that it is compared with. Raises `NotANumber`."""
    if isinstance(other, float):
        double = parse_double(text)
        if double is None:
            trimmed = text.strip(SPACES)
            reason = f'For input string: "{trimmed}"' if trimmed else "empty String"
            raise NotANumber("floating-point number", text, reason)
        return double
    largest = INT32_MAX if -INT32_MAX <= other <= INT32_MAX else INT64_MAX
    integer = parse_integer(text, largest)
    if integer is None:
        kind = f"integer of {32 if largest == INT32_MAX else 64} bits"
        raise NotANumber(kind, text, f'For input string: "{text}"')
    return integer


def order_of(left: Value, right: Value) -> int:
    """Negative, 0 or positive, as `ComparisonExpression.__compare`; also -1 for types that never are equal.

    Raises `CannotEvaluate` for a text that is not what it is compared with.
    """
    if isinstance(left, bool) or isinstance(right, bool):
        if isinstance(right, str):
            raise CannotEvaluate(f"a condition cannot be compared with the text {right[:_SHOWN_MAX]!r}")
        if isinstance(left, str):
            left = left.lower() == "true"
        if isinstance(left, bool) and isinstance(right, bool):
            return left - right
        return -1
    if isinstance(left, str):
        if isinstance(right, str):
            return 0 if left == right else -1  # of two texts, nobody asks which is the larger
        left = text_as(left, right)
    elif isinstance(right, str):
        right = text_as(right, left)
    if isinstance(left, int) and isinstance(right, int):
        return (left > right) - (left < right)
    return compare_doubles(float(left), float(right))


def number_order(left: Value, right: Value) -> int:
    """As `order_of`, for the ordered comparisons: two texts are compared as doubles."""
    if isinstance(left, str) and isinstance(right, str):
        return compare_doubles(float(text_as(left, 0.0)), float(text_as(right, 0.0)))
    return order_of(left, right)
