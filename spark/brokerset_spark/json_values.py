"""Dataclasses as JSON values and back; the names of their fields are in camelCase, as files and reports have
them."""

from __future__ import annotations

from typing import Any, Final, TypeVar

import orjson
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from brokerset_formats.errors import FormatError

T = TypeVar("T")

CAMEL: Final = ConfigDict(alias_generator=to_camel, arbitrary_types_allowed=True)
"""For `__pydantic_config__` of the dataclasses that travel; without it names stay as they are."""


_ADAPTERS: Final[dict[Any, TypeAdapter[Any]]] = {}
"""By the type; making one takes milliseconds."""


def _adapter(kind: type[T]) -> TypeAdapter[T]:
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def to_value(each: Any, *names: str) -> dict[str, Any]:
    """All fields, or those that are named."""
    adapter, wanted = _adapter(type(each)), set(names) or None
    found: dict[str, Any] = adapter.dump_python(each, by_alias=True, include=wanted, warnings=False)
    return found


def from_value(kind: type[T], value: Any) -> T:
    """The reverse; FormatError with what does not fit, and where."""
    try:
        return _adapter(kind).validate_python(value)
    except ValidationError as error:
        said = (
            f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors(include_url=False)
        )
        raise FormatError("; ".join(said)) from error


def read_versioned(kind: type[T], text: bytes, key: str, version: int, what: str) -> T:
    """Read a value from JSON that has its version under `key`; FormatError, which says what it is not."""
    try:
        value = orjson.loads(text)
        if value[key] != version:
            raise FormatError(f"its version is {value[key]}; this program reads version {version}")
        return from_value(kind, value)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise FormatError(f"no {what}: {error if isinstance(error, FormatError) else repr(error)}") from error
