"""Options as Spark hands them over, as text and without regard to case; what is wrong is said all at once."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_type_hints

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_SIZE: Final = re.compile(r"(\d{1,12})\s*([kmgt]?)b?", re.IGNORECASE)
_FACTORS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_INT64_MAX: Final = 2**63 - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class OptionsError(ValueError):
    """Options that cannot be: `problems` has a sentence for each."""

    def __init__(self, source: str, problems: Sequence[str]) -> None:
        lines = "".join(f"\n  - {problem}" for problem in problems)
        super().__init__(f"options of {source}:{lines}")
        self.problems = tuple(problems)


class Option(NamedTuple):
    """What fills a field of options, as annotation of the field. `parse` raises ValueError."""

    name: str
    parse: Callable[[str], Any]
    others: tuple[str, ...] = ()
    """Other names of the same option."""


class Given:
    """Takes options out of a mapping and collects what is wrong with them."""

    def __init__(self, options: Mapping[str, str], *, passed_over: Collection[str] = ()) -> None:
        """`passed_over` are names, in small letters, of options for somebody else."""
        self._left = {
            name.lower(): str(value) for name, value in options.items() if name.lower() not in passed_over
        }
        self._known: list[str] = []
        self.problems: list[str] = []

    def has(self, name: str) -> bool:
        """Whether an option is there and not yet taken."""
        return name.lower() in self._left

    def take(self, option: Option, default: Any = None) -> Any:
        """The value of an option; the default if it is not given, or wrong."""
        names = (option.name, *option.others)
        self._known += names
        given = [name for name in names if self.has(name)]
        if len(given) > 1:
            self.problems.append(f"{' and '.join(given)} mean the same: give one of them")
        values = [self._left.pop(name.lower()) for name in given]
        if not values:
            return default
        try:
            return option.parse(values[0].strip())
        except ValueError as error:
            self.problems.append(f"{given[0]}={values[0][:100]}: {error}")
            return default

    def take_fields(self, kind: type[DataclassInstance]) -> dict[str, Any]:
        """What is given for fields that are options."""
        hints = get_type_hints(kind, include_extras=True)
        options = [
            (each, option)
            for each in fields(kind)
            for option in getattr(hints[each.name], "__metadata__", ())
        ]
        return {each.name: self.take(option, each.default) for each, option in options}

    def finish(self, source: str, also: Sequence[str] = ()) -> None:
        """OptionsError with all problems and these, if there are any; an option that is left is one, too."""
        for name in self._left:
            close = difflib.get_close_matches(name, [each.lower() for each in self._known], 1)
            spelled = next((each for each in self._known if close and each.lower() == close[0]), None)
            hint = f"did you mean {spelled}?" if spelled else f"there are {', '.join(self._known)}"
            self.problems.append(f"{name}: no such option; {hint}")
        if self.problems or also:
            raise OptionsError(source, [*self.problems, *also])


# -- values -----------------------------------------------------------------------------------------------


def text(value: str) -> str:
    """Anything but nothing."""
    if not value:
        raise ValueError("must not be empty")
    return value


def names(value: str) -> tuple[str, ...]:
    """One or several, divided by commas."""
    found = tuple(part.strip() for part in value.split(",") if part.strip())
    if not found:
        raise ValueError("must name at least one, several divided by commas")
    return found


def pattern(value: str) -> str:
    """A regular expression."""
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error
    return value


def number(value: str) -> int:
    """From 0."""
    if not (value.isascii() and value.isdigit() and int(value) <= _INT64_MAX):
        raise ValueError("must be a whole number from 0")
    return int(value)


def numbers(value: str) -> tuple[int, ...]:
    """One or several, divided by commas."""
    return tuple(number(part) for part in names(value))


def count(value: str) -> int:
    """From 1."""
    if not (value.isascii() and value.isdigit() and 0 < int(value) <= _INT64_MAX):
        raise ValueError("must be a whole number above 0")
    return int(value)


def number_in(first: int, last: int) -> Callable[[str], int]:
    """A number of this range."""

    def parse(value: str) -> int:
        if not (value.isascii() and value.isdigit() and first <= int(value) <= last):
            raise ValueError(f"must be a whole number from {first} to {last}")
        return int(value)

    return parse


def truth(value: str) -> bool:
    """True or false."""
    if value.lower() not in ("true", "false"):
        raise ValueError("must be true or false")
    return value.lower() == "true"


def choice(*allowed: str) -> Callable[[str], str]:
    """One of these words."""

    def parse(value: str) -> str:
        if value.lower() not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}")
        return value.lower()

    return parse


def second(one: str, other: str) -> Callable[[str], bool]:
    """Whether the second of two is asked for."""
    return lambda value: choice(one, other)(value) == other


def size(minimum: int, maximum: int = 1 << 50) -> Callable[[str], int]:
    """A number of bytes."""

    def parse(value: str) -> int:
        match = _SIZE.fullmatch(value)
        if match is None:
            raise ValueError("must be a number of bytes, as 4194304, 4m or 1g")
        found = int(match[1]) * _FACTORS[match[2].lower()]
        if not minimum <= found <= maximum:
            raise ValueError(f"must be from {minimum} to {maximum} bytes")
        return found

    return parse


def time_ms(value: str) -> int:
    """Milliseconds since 1970."""
    if value.isascii() and value.removeprefix("-").isdigit():
        if len(value) > 18:
            raise ValueError("must be milliseconds since 1970")
        return int(value)
    try:
        found = datetime.fromisoformat(value)
    except ValueError as error:
        raise ValueError("must be milliseconds since 1970, or like 2026-11-22T10:00:00Z") from error
    return since_1970(found)


def since_1970(time: datetime) -> int:
    """Whole milliseconds, without a floating number, which may be one less; in UTC if it has no zone."""
    return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH) // timedelta(milliseconds=1)


def seconds(value: str) -> float:
    """A length of time."""
    match = re.fullmatch(r"(\d{1,9})\s*(ms|s|m|h)", value.lower())
    if match is None:
        raise ValueError("must be a time like 500ms, 30s, 15m or 1h")
    return int(match[1]) * {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}[match[2]]
