"""Values of the controllers' log: JSON lists, read strictly, so all controllers read the same or stop.

Each function returns what it read, or raises `ValueError` that says what is wrong.
"""

from __future__ import annotations

from typing import Final

import orjson

FIRST_VERSION: Final = 1
"""The oldest format that is read: without fences."""

_SHOWN_MAX: Final = 60


def versioned(data: bytes, what: str, newest: int) -> list[object]:
    """The values behind the version of a list that begins with one, of at most `newest`."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"{what} that is no JSON: {error}") from None
    if not isinstance(value, list) or not value or type(value[0]) is not int:
        raise ValueError(f"{shown(value)} is no versioned list, so not {what}")
    if not FIRST_VERSION <= value[0] <= newest:
        raise ValueError(
            f"{what} of the format {value[0]}; this version reads up to {newest}: run the newer one"
        )
    return value[1:]


def shown(value: object) -> str:
    """The beginning of what was found, for a message."""
    return repr(value)[:_SHOWN_MAX]


def text(value: object) -> str:
    """A text."""
    if type(value) is not str:
        raise ValueError(f"{shown(value)} is no text")
    return value


def optional_text(value: object) -> str | None:
    """A text, or nothing."""
    return None if value is None else text(value)


def number(value: object) -> int:
    """A whole number."""
    if type(value) is not int:
        raise ValueError(f"{shown(value)} is no number")
    return value


def count(value: object) -> int:
    """A whole number from 0 on."""
    if type(value) is not int or value < 0:
        raise ValueError(f"{shown(value)} is no number from 0 on")
    return value


def optional_count(value: object) -> int | None:
    """A whole number from 0 on, or nothing."""
    return None if value is None else count(value)


def flag(value: object) -> bool:
    """True or false."""
    if type(value) is not bool:
        raise ValueError(f"{shown(value)} is neither true nor false")
    return value


def items(value: object) -> list[object]:
    """A list."""
    if type(value) is not list:
        raise ValueError(f"{shown(value)} is no list")
    return value


def ids(value: object) -> frozenset[int]:
    """A list of ids, each once."""
    listed = [count(item) for item in items(value)]
    found = frozenset(listed)
    if len(found) != len(listed):
        raise ValueError(f"{shown(value)} names an id twice")
    return found


def texts(value: object) -> tuple[str, ...]:
    """A list of texts."""
    return tuple([text(item) for item in items(value)])


def parts(value: object, what: str, size: int) -> list[object]:
    """A list of that size."""
    found = items(value)
    if len(found) != size:
        raise ValueError(f"{what} has {len(found)} fields instead of {size}")
    return found
