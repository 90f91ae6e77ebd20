"""What bodies can do to who reads them by a schema, and what its defaults stand for. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from typing import Any, Final
from uuid import UUID

C_DEPTH_MAX: Final = 100
"""Types within each other up to which fastavro's C reader is used: it checks no depth, so a few kilobytes by
a schema that refers to itself end the process. Its Python reader raises RecursionError."""

DECIMAL_BYTES_MORE: Final = 16
"""Bytes of a decimal that only repeat its sign, as writers with numbers of one width have them."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MIDNIGHT: Final = _EPOCH.replace(tzinfo=None)


def depth_of(schema: Any, named: Mapping[str, Any]) -> float:
    """How deep values of a parsed schema can be within each other; infinite for one that refers to itself.

    RecursionError for one that is too deep to be asked.
    """
    return _depth(schema, named, {})


def _depth(schema: Any, named: Mapping[str, Any], known: dict[str, float]) -> float:
    kind = _kind(schema)
    if isinstance(kind, list):
        return 1 + max((_depth(each, named, known) for each in kind), default=0)
    if isinstance(kind, dict):
        return _depth(kind, named, known)
    if isinstance(schema, str):
        return _depth(named[schema], named, known) if schema in named else 1
    if kind in ("array", "map"):
        return 1 + _depth(schema["items" if kind == "array" else "values"], named, known)
    if kind in ("record", "error"):
        name = schema["name"]
        if name not in known:
            known[name] = float("inf")  # as long as it is not known: who meets it again is within it
            inner = (_depth(each["type"], named, known) for each in schema["fields"])
            known[name] = 1 + max(inner, default=0)
        return known[name]
    return _depth(named[kind], named, known) if kind in named else 1


def endless_array(schema: Any, named: Mapping[str, Any]) -> bool:
    """Whether a schema has an array of items that take no bytes: ten bytes can be 2**60 of them."""
    return _endless(schema, named, set())


def _endless(schema: Any, named: Mapping[str, Any], seen: set[str]) -> bool:
    kind = _kind(schema)
    if isinstance(kind, list):
        return any(_endless(each, named, seen) for each in kind)
    if isinstance(kind, dict):
        return _endless(kind, named, seen)
    if isinstance(schema, str) or kind in named:
        name = kind
        if name in seen or name not in named:
            return False
        return _endless(named[name], named, seen)
    if kind == "array":
        return _empty(schema["items"], named, ()) or _endless(schema["items"], named, seen)
    if kind == "map":
        return _endless(schema["values"], named, seen)
    if kind in ("record", "error") and schema["name"] not in seen:
        seen.add(schema["name"])
        return any(_endless(each["type"], named, seen) for each in schema["fields"])
    return False


def _empty(schema: Any, named: Mapping[str, Any], within: tuple[str, ...]) -> bool:
    """Whether values of a schema take no bytes. A record within itself is no value at all."""
    kind = _kind(schema)
    if isinstance(kind, list):
        return False  # a number says which of its types it is
    if isinstance(kind, dict):
        return _empty(kind, named, within)
    if isinstance(schema, str) or kind in named:
        return kind == "null" or (kind in named and _empty(named[kind], named, within))
    if kind == "fixed":
        return bool(schema["size"] == 0)
    if kind in ("record", "error"):
        inner = (*within, schema["name"])
        return schema["name"] not in within and all(
            _empty(each["type"], named, inner) for each in schema["fields"]
        )
    return bool(kind == "null")


def bounded_decimal(read: Callable[..., Any]) -> Callable[..., Any]:
    """The same reader of decimals, which refuses more bytes than the digits of its schema need.

    Python's numbers take time by the square of their length: an hour for the largest body.
    """

    def bounded(data: bytes, writer: Any = None, reader: Any = None) -> Any:
        if len(data) > writer["precision"] + DECIMAL_BYTES_MORE:  # a digit needs half a byte
            raise ValueError(f"a decimal of {writer['precision']} digits has {len(data)} bytes")
        return read(data, writer, reader)

    return bounded


def put_defaults(schema: Any, named: Mapping[str, Any]) -> None:
    """Replace the defaults of a parsed schema, which are JSON, by what bodies with these values would give.

    fastavro gives them out as they are: milliseconds for a time, text for bytes, parts of a record. Raises
    what Python does for defaults that cannot be.
    """
    fields: dict[int, Any] = {}
    for each in (schema, *named.values()):
        _collect(each, fields)
    made = [
        (each, _value(each["type"], each["default"], named)) for each in fields.values() if "default" in each
    ]
    for field, value in made:  # one that stands for parts of a record needs the others as they were
        field["default"] = value


def _collect(schema: Any, fields: dict[int, Any]) -> None:
    """All fields of records, by identity: copies of a record share them."""
    kind = _kind(schema)
    if isinstance(kind, list):
        for each in kind:
            _collect(each, fields)
    elif isinstance(kind, dict):
        _collect(kind, fields)
    elif isinstance(schema, dict):
        for each in schema.get("fields", ()):
            if id(each) not in fields:
                fields[id(each)] = each
                _collect(each["type"], fields)
        for name in ("items", "values"):
            if name in schema:
                _collect(schema[name], fields)


def _value(schema: Any, given: Any, named: Mapping[str, Any]) -> Any:
    """What a reader would give for a JSON value."""
    kind = _kind(schema)
    if isinstance(kind, list):
        if given is None:
            return None
        return _value(next(each for each in kind if _kind(each) != "null"), given, named)
    if isinstance(kind, dict):
        return _value(kind, given, named)
    if kind in named and (isinstance(schema, str) or named[kind] is not schema):
        return _value(named[kind], given, named)
    logical = None if isinstance(schema, str) else schema.get("logicalType")
    if kind == "array":
        return [_value(schema["items"], each, named) for each in given]
    if kind == "map":
        return {key: _value(schema["values"], each, named) for key, each in given.items()}
    if kind in ("record", "error"):
        return {
            each["name"]: _value(each["type"], given.get(each["name"], each.get("default")), named)
            for each in schema["fields"]
        }
    if kind in ("bytes", "fixed"):
        data = given.encode("latin-1")
        return _decimal(data, schema) if logical == "decimal" else data
    convert = _LOGICAL.get((kind, logical))
    return given if convert is None else convert(given)


def _decimal(data: bytes, schema: Any) -> Decimal:
    context = Context(prec=schema["precision"])
    number = context.create_decimal(int.from_bytes(data, "big", signed=True))
    return number.scaleb(-schema.get("scale", 0), context)


def _time(micros: int) -> time:
    return (_MIDNIGHT + timedelta(microseconds=micros)).time()


_LOGICAL: Final[Mapping[tuple[str, str | None], Callable[[Any], Any]]] = {
    ("int", "date"): lambda days: date(1970, 1, 1) + timedelta(days=days),
    ("int", "time-millis"): lambda value: _time(value * 1000),
    ("long", "time-micros"): _time,
    ("long", "timestamp-millis"): lambda value: _EPOCH + timedelta(milliseconds=value),
    ("long", "timestamp-micros"): lambda value: _EPOCH + timedelta(microseconds=value),
    ("long", "local-timestamp-millis"): lambda value: _MIDNIGHT + timedelta(milliseconds=value),
    ("long", "local-timestamp-micros"): lambda value: _MIDNIGHT + timedelta(microseconds=value),
    ("string", "uuid"): UUID,
}


def _kind(schema: Any) -> Any:
    """The type's name, or the type that stands for it."""
    return schema["type"] if isinstance(schema, dict) else schema
