"""Typed access to parsed JSON: the value, its default, or FormatError naming the field."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Self

from brokerset_formats import fastjson
from brokerset_formats.errors import FormatError

_INT64_MAX = 0x7FFFFFFFFFFFFFFF
_is_integer = re.compile(r"-?[0-9]{1,19}").fullmatch


def parse_object(data: bytes | str) -> dict[str, object]:
    """The JSON object of a whole file or body; none of these has objects as keys, which are read slowly."""
    return as_object(fastjson.loads(data, object_keys=False), "the JSON")


def as_object(value: object, what: str) -> dict[str, object]:
    """`value` as a JSON object."""
    if not isinstance(value, dict):
        raise FormatError(f"{what} should be an object and is {_shown(value)}")
    return value


def as_integer(value: object, what: str) -> int:
    """`value` as a 64-bit integer; text with digits will do, as it does for Java."""
    if isinstance(value, str) and _is_integer(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not -_INT64_MAX - 1 <= value <= _INT64_MAX:
        raise FormatError(f"{what} should be an integer and is {_shown(value)}")
    return value


def get_object(fields: Mapping[str, object], name: str) -> dict[str, object]:
    """A field that is an object; empty where it is missing or null."""
    value = fields.get(name)
    return {} if value is None else as_object(value, name)


def get_integer(fields: Mapping[str, object], name: str, default: int) -> int:
    """A field that is an integer."""
    value = fields.get(name)
    return default if value is None else as_integer(value, name)


def get_boolean(fields: Mapping[str, object], name: str, default: bool) -> bool:
    """A field that is a boolean, or the text of one."""
    value = fields.get(name)
    if value is None:
        return default
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise FormatError(f"{name} should be true or false and is {_shown(value)}")
    return value


def get_text(fields: Mapping[str, object], name: str, default: str = "") -> str:
    """A field that is text."""
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, str):
        raise FormatError(f"{name} should be text and is {_shown(value)}")
    return value


def get_text_map(fields: Mapping[str, object], name: str) -> dict[str, str]:
    """A field that is an object with text only; other scalars are taken as their JSON text."""
    found: dict[str, str] = {}
    for key, value in get_object(fields, name).items():
        if value is None:
            continue
        if isinstance(value, dict | list):
            raise FormatError(f"{name}.{key} should be text and is {_shown(value)}")
        found[key] = value if isinstance(value, str) else fastjson.dumps(value).decode()
    return found


def integer_map(value: object, what: str) -> dict[int, int]:
    """`value` as a map from integers to integers; JSON holds the keys as text."""
    fields = as_object(value, what)
    return {
        as_integer(key, f"a key of {what}"): as_integer(item, f"{what}.{key}") for key, item in fields.items()
    }


class ConfigFile:
    """A table that is a file of its own."""

    __slots__ = ()

    def to_json(self) -> dict[str, object]:
        """As the file holds it, which is also what slaves get."""
        raise NotImplementedError

    @classmethod
    def from_json(cls, fields: Mapping[str, object]) -> Self:
        """From the file's object; fields of other tables next to it are ignored."""
        raise NotImplementedError

    def encode(self) -> bytes:
        """The file's bytes."""
        return fastjson.dumps_pretty(self.to_json())

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read the file."""
        return cls.from_json(parse_object(data))


def _shown(value: object) -> str:
    return f"{type(value).__name__} {str(value)[:60]!r}"
