"""What is remembered from one reconcile to the next: frozen dataclasses as JSON values of `status.workflow`.

A field is written under its name in camelCase, unless `kept` names another one, and left out while it has its
default. Who may write a status may write anything, so what cannot be read counts as not remembered.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Value = TypeVar("Value")


def kept(
    name: str = "", *, always: bool = False, whole: bool = False, pair: tuple[str, str] | None = None
) -> Mapping[str, Any]:
    """Metadata of a field: its name in the status, and how it is written.

    `always`: also written while it has its default. `whole`: a time without fractions. `pair`: a mapping is a
    list of objects, in which key and value have these names; of a value that is an object, its fields follow.
    """
    return {"name": name, "always": always, "whole": whole, "pair": pair}


def write(value: Any) -> dict[str, Any]:
    """Return a dataclass as JSON values; equal values give equal results."""
    found: dict[str, Any] = {}
    for one in dataclasses.fields(value):
        current = getattr(value, one.name)
        if one.metadata.get("always") or current != _default(one):
            found[_name(one)] = _written(current, one.metadata)
    return found


def read(kind: type[Value], given: object) -> Value | None:
    """Return what was written; None when something without a default cannot be read."""
    values = {}
    hints = _hints(kind)  # type: ignore[arg-type]  # classes are hashable
    for one in dataclasses.fields(kind):  # type: ignore[arg-type]  # every kind of these is a dataclass
        found = _read(hints[one.name], _get(given, _name(one)), one.metadata)
        if found is not None:
            values[one.name] = found
        elif _default(one) is dataclasses.MISSING:
            return None
    return kind(**values)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _name(one: dataclasses.Field[Any]) -> str:
    first, *others = one.name.split("_")
    return str(one.metadata.get("name") or "") or first + "".join(map(str.capitalize, others))


def _default(one: dataclasses.Field[Any]) -> Any:
    return one.default_factory() if one.default_factory is not dataclasses.MISSING else one.default


def _get(given: object, name: str) -> object:
    return given.get(name) if isinstance(given, Mapping) else None


def _written(value: Any, how: Mapping[str, Any]) -> Any:
    if dataclasses.is_dataclass(value):
        return write(value)
    if isinstance(value, Mapping):
        key, item = how["pair"]
        return [
            {key: each, **(write(of) if dataclasses.is_dataclass(of) else {item: of})}
            for each, of in sorted(value.items())
        ]
    if isinstance(value, tuple):
        return [_written(each, {}) for each in value]
    return int(value) if how.get("whole") else value


def _read(kind: Any, given: Any, how: Mapping[str, Any]) -> Any:
    """A value of that type; None for what is none."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _read(next(each for each in inner if each is not type(None)), given, how)
    if origin is Literal:
        return given if given in inner else None
    if dataclasses.is_dataclass(kind):
        return read(kind, given) if isinstance(given, Mapping) else None  # type: ignore[arg-type]  # a class
    if isinstance(given, list) and origin is tuple:
        if Ellipsis not in inner:
            found = [_read(each, value, {}) for each, value in zip(inner, given, strict=False)]
            return None if len(given) != len(inner) or None in found else tuple(found)
        return tuple(value for each in given if (value := _read(inner[0], each, {})) is not None)
    if isinstance(given, list) and origin is not None and issubclass(origin, Mapping):
        return _read_pairs(inner, given, how["pair"])
    if kind in (int, float) and isinstance(given, int | float) and not isinstance(given, bool):
        return kind(given)
    return given if kind in (str, bool) and type(given) is kind and given != "" else None


def _read_pairs(inner: tuple[Any, ...], given: list[Any], pair: tuple[str, str]) -> dict[Any, Any]:
    found = {}
    for each in given:
        key = _read(inner[0], _get(each, pair[0]), {})
        value = _read(inner[1], each if dataclasses.is_dataclass(inner[1]) else _get(each, pair[1]), {})
        if key is not None and value is not None:
            found[key] = value
    return dict(sorted(found.items()))
