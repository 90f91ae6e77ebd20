"""Fields of JSON bodies as columns of the table. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
import pyarrow as pa

from brokerset_spark.jobs.lake.ranges import Event

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_MISFIT: Final = object()
_INT64_MAX: Final = 2**63


def _text(value: Any) -> Any:
    if isinstance(value, str):
        return value
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:  # orjson reads what is deeper than it writes
        return _MISFIT


def _whole(value: Any) -> Any:
    fits = isinstance(value, int) and not isinstance(value, bool) and -_INT64_MAX <= value < _INT64_MAX
    return value if fits else _MISFIT


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else _MISFIT


def _truth(value: Any) -> Any:
    return value if isinstance(value, bool) else _MISFIT


KINDS: Final[dict[str, tuple[pa.DataType, Callable[[Any], Any]]]] = {
    "string": (pa.string(), _text),
    "bigint": (pa.int64(), _whole),
    "double": (pa.float64(), _number),
    "boolean": (pa.bool_(), _truth),
}
"""Spark's names of the types, what Arrow calls them, and how a JSON value becomes one. Objects and lists are
JSON text in a string."""


@dataclass(frozen=True, slots=True)
class JsonColumn:
    """A field of the outermost object, under its own name."""

    name: str
    kind: str

    @property
    def field(self) -> pa.Field:
        """The column."""
        return pa.field(self.name, KINDS[self.kind][0])


def parse_columns(text: str, taken: Sequence[str]) -> tuple[JsonColumn, ...]:
    """`id bigint, amount double`. ValueError for what cannot be; `taken` are names of other columns."""
    made = []
    used = {name.lower() for name in taken}
    for part in text.split(","):
        words = part.split()
        if len(words) != 2 or _NAME.fullmatch(words[0]) is None or words[1].lower() not in KINDS:
            raise ValueError(
                f"{part.strip()!r} is no column: write NAME TYPE, with a type of {', '.join(KINDS)}"
            )
        if words[0].lower() in used:
            raise ValueError(f"column {words[0]} is there already: leave it out")
        used.add(words[0].lower())
        made.append(JsonColumn(words[0], words[1].lower()))
    return tuple(made)


def read_columns(
    bodies: Sequence[bytes | None], columns: Sequence[JsonColumn]
) -> tuple[list[pa.Array], list[int]]:
    """The columns of these bodies, and which of the bodies do not fit: no JSON object, or a field of another
    type. What does not fit is null; a field that is missing or null is null, and fits."""
    values: list[list[Any]] = [[] for _ in columns]
    misfits = []
    for number, body in enumerate(bodies):
        try:
            found = orjson.loads(body or b"")
        except orjson.JSONDecodeError:
            found = None
        fits = isinstance(found, dict)
        for column, to in zip(columns, values, strict=True):
            value = found.get(column.name) if isinstance(found, dict) else None
            if value is not None:
                value = KINDS[column.kind][1](value)
                if value is _MISFIT:
                    value, fits = None, False
            to.append(value)
        if not fits:
            misfits.append(number)
    arrays = [pa.array(each, column.field.type) for each, column in zip(values, columns, strict=True)]
    return arrays, misfits


class JsonReading:
    """Reads bodies of a task."""

    event = Event.JSON_MISFIT

    def __init__(self, columns: Sequence[JsonColumn]) -> None:
        self._columns = columns
        self.names = [each.name for each in columns]

    def read(self, bodies: Sequence[bytes | None]) -> tuple[list[pa.Array], list[int], str]:
        """The columns, which bodies do not fit, and what those are."""
        arrays, misfits = read_columns(bodies, self._columns)
        return arrays, misfits, "are no JSON objects with these columns"
