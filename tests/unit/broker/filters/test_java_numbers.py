"""Texts that Java takes as numbers, and Python does not, or the other way round."""

from __future__ import annotations

import math

import pytest

from brokerset_broker.filters.java_numbers import (
    INT32_MAX,
    INT64_MAX,
    compare_doubles,
    double_text,
    parse_double,
    parse_integer,
)


@pytest.mark.parametrize(
    ("text", "int32", "int64"),
    [
        ("5", 5, 5),
        ("+5", 5, 5),
        ("-007", -7, -7),
        ("2147483647", INT32_MAX, INT32_MAX),
        ("2147483648", None, INT32_MAX + 1),
        ("-2147483648", -INT32_MAX - 1, -INT32_MAX - 1),
        ("-2147483649", None, -INT32_MAX - 2),
        ("9223372036854775807", None, INT64_MAX),
        ("9223372036854775808", None, None),
        ("-9223372036854775808", None, -INT64_MAX - 1),
        ("٥", 5, 5),
        ("５", 5, 5),
        ("𝟓", None, None),
        ("0" * 30_000 + "5", 5, 5),
        ("9" * 30_000, None, None),
        *((text, None, None) for text in ("", "+", " 5", "5 ", "1_000", "5L", "0x10", "--5", "5.0", "abc")),
    ],
)
def test_integers_are_read_as_by_java(text: str, int32: int | None, int64: int | None) -> None:
    """`Integer.valueOf` and `Long.valueOf`: no spaces, no underscores, but digits of every script."""
    assert parse_integer(text, INT32_MAX) == int32
    assert parse_integer(text, INT64_MAX) == int64


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5.0),
        ("-.5", -0.5),
        ("5.", 5.0),
        ("\t5e-1F ", 0.5),
        ("5d", 5.0),
        ("Infinity", math.inf),
        ("-Infinity", -math.inf),
        ("1e400", math.inf),
        ("1e-400", 0.0),
        ("0x1.8P-2f", 0.375),
        ("0x.8p1", 1.0),
        ("-0x1p99999", -math.inf),
        ("0x1p-99999", 0.0),
        *(
            (text, None)
            for text in ("", " ", ".", "nan", "inf", "1_0", "٥", "0x1", "0xp1", "5dd", "1e", "\u00a05")
        ),
        ("1" * 30_000 + "x", None),
    ],
)
def test_doubles_are_read_as_by_java(text: str, value: float | None) -> None:
    """`Double.valueOf`: spaces around, a type behind, hexadecimal with an exponent, and two words."""
    assert parse_double(text) == value


def test_not_a_number_is_a_word() -> None:
    """It can be a property's value, and compares as the largest one."""
    value = parse_double("-NaN")

    assert value is not None
    assert math.isnan(value)


def test_doubles_are_ordered_as_by_java() -> None:
    """`Double.compareTo` orders all of them: NaN is the largest, and the two zeros differ."""
    ordered = [-math.inf, -1.5, -0.0, 0.0, 5e-324, 1.5, math.inf, math.nan]

    for index, left in enumerate(ordered):
        for other, right in enumerate(ordered):
            assert compare_doubles(left, right) == (index > other) - (index < other)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1.0"),
        (0.001, "0.001"),
        (9999999.0, "9999999.0"),
        (123456.7, "123456.7"),
        (1e7, "1.0E7"),
        (12345678.9, "1.23456789E7"),
        (1.5e-7, "1.5E-7"),
        (0.00015, "1.5E-4"),
        (1e300, "1.0E300"),
        (-1e16, "-1.0E16"),
        (120000000.0, "1.2E8"),
    ],
)
def test_doubles_are_written_as_by_java(value: float, text: str) -> None:
    """Messages name the limits of BETWEEN so."""
    assert double_text(value) == text
