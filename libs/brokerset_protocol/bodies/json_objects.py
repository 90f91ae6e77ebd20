"""Typed reading of JSON bodies, and base class of those that are JSON.

Unknown fields are ignored and `null` is as good as absent, as fastjson does it. Numbers and flags may come as
text: the C++ client writes `"subVersion":"1700000000000"`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import ClassVar, Final, Self, TypeVar

import orjson

from brokerset_formats import fastjson
from brokerset_formats.errors import FormatError
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.errors import LocalProtocolError, Rejected

INT64_MAX: Final = 0x7FFFFFFFFFFFFFFF
INT64_MIN: Final = -INT64_MAX - 1

NUMBER_DIGITS_MAX: Final = 20
"""Longest text that is read as a number."""

SHOWN_MAX: Final = 64
"""Characters of a bad value that a remark repeats."""

_INTEGER: Final = re.compile(r"-?[0-9]+")

_S = TypeVar("_S")
_T = TypeVar("_T")
_Word = TypeVar("_Word", bound=StrEnum)


def rejected(what: str, problem: str) -> Rejected:
    """The refusal of a body: names the place and what is wrong there."""
    return Rejected(ResponseCode.SYSTEM_ERROR, f"{what} cannot be read: {problem}")


def integer(value: object, what: str) -> int:
    """A 64-bit number, also as text."""
    if type(value) is str and len(value) <= NUMBER_DIGITS_MAX and _INTEGER.fullmatch(value):
        value = int(value)
    if type(value) is not int or not INT64_MIN <= value <= INT64_MAX:
        raise rejected(what, f"{str(value)[:SHOWN_MAX]!r} is no 64-bit number")
    return value


def text(value: object, what: str) -> str:
    """A text."""
    if type(value) is not str:
        raise rejected(what, f"{str(value)[:SHOWN_MAX]!r} is no text")
    return value


class JsonObject:
    """One object of a body, with typed access to its fields. Every method raises `Rejected`."""

    __slots__ = ("_fields", "what")

    def __init__(self, value: object, what: str) -> None:
        if not isinstance(value, dict):
            raise rejected(what, f"{str(value)[:SHOWN_MAX]!r} is no JSON object")
        self._fields: Mapping[str, object] = value
        self.what = what

    @property
    def fields(self) -> Mapping[str, object]:
        """All fields as parsed."""
        return self._fields

    def raw(self, name: str) -> object:
        """The field as parsed; `None` if absent."""
        return self._fields.get(name)

    def has(self, name: str) -> bool:
        """Whether the field is there and not `null`."""
        return self._fields.get(name) is not None

    def names(self) -> list[str]:
        """The fields' names in the order of the text."""
        return list(self._fields)

    def _at(self, name: str) -> str:
        return f"{name} of {self.what}"

    def text(self, name: str, default: str | None = None) -> str:
        """A text; mandatory without a default."""
        value = self._fields.get(name)
        if value is None:
            if default is None:
                raise rejected(self.what, f"{name} is missing")
            return default
        return text(value, self._at(name))

    def optional_text(self, name: str) -> str | None:
        """A text, or `None` if absent."""
        value = self._fields.get(name)
        return None if value is None else text(value, self._at(name))

    def integer(self, name: str, default: int | None = None) -> int:
        """A 64-bit number; mandatory without a default."""
        value = self._fields.get(name)
        if value is None:
            if default is None:
                raise rejected(self.what, f"{name} is missing")
            return default
        return integer(value, self._at(name))

    def optional_integer(self, name: str) -> int | None:
        """A 64-bit number, or `None` if absent."""
        value = self._fields.get(name)
        return None if value is None else integer(value, self._at(name))

    def number(self, name: str, default: float = 0.0) -> float:
        """A floating point number."""
        value = self._fields.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise rejected(self._at(name), f"{str(value)[:SHOWN_MAX]!r} is no number")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false, also as text or as 0 and 1."""
        value = self._fields.get(name)
        if value is None:
            return default
        if isinstance(value, bool):
            return value
        if isinstance(value, str):
            return value == "1" or value.lower() == "true"
        if isinstance(value, int):
            return value != 0
        raise rejected(self._at(name), f"{str(value)[:SHOWN_MAX]!r} is neither true nor false")

    def word(self, name: str, words: type[_Word], default: _Word) -> _Word:
        """A word of an enumeration, by its name or (C++ client) by its number in Java's order."""
        value = self._fields.get(name)
        if value is None:
            return default
        known = list(words)
        if isinstance(value, int) and 0 <= value < len(known):
            return known[value]
        for word in known:
            if word.value == value:
                return word
        raise rejected(self._at(name), f"{str(value)[:SHOWN_MAX]!r} is none of {', '.join(known)}")

    def inner(self, name: str) -> JsonObject | None:
        """An object, or `None` if absent."""
        value = self._fields.get(name)
        return None if value is None else JsonObject(value, self._at(name))

    def values(self, name: str) -> list[object]:
        """A list as parsed; empty if absent."""
        value = self._fields.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise rejected(self._at(name), f"{str(value)[:SHOWN_MAX]!r} is no list")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts; empty if absent."""
        return tuple(text(value, self._at(name)) for value in self.values(name) if value is not None)

    def integers(self, name: str) -> tuple[int, ...]:
        """A list of 64-bit numbers; empty if absent."""
        return tuple(integer(value, self._at(name)) for value in self.values(name) if value is not None)

    def objects(self, name: str) -> list[JsonObject]:
        """A list of objects; empty if absent."""
        return [JsonObject(value, self._at(name)) for value in self.values(name) if value is not None]

    def items(self, name: str) -> list[tuple[str, object]]:
        """The entries of a map without those that are `null`; empty if absent."""
        inner = self.inner(name)
        if inner is None:
            return []
        return [(key, value) for key, value in inner._fields.items() if value is not None]

    def object_items(self, name: str) -> list[tuple[str, JsonObject]]:
        """The entries of a map of objects; empty if absent."""
        return [(key, JsonObject(value, self._at(name))) for key, value in self.items(name)]

    def text_map(self, name: str) -> dict[str, str]:
        """A map of texts; numbers and flags in it become text."""
        found: dict[str, str] = {}
        for key, value in self.items(name):
            if isinstance(value, dict | list):
                raise rejected(self._at(name), f"the value of {key[:SHOWN_MAX]!r} is no text")
            found[key] = value if isinstance(value, str) else orjson.dumps(value).decode()
        return found


def parse(data: bytes, what: str, *, object_keys: bool = False) -> object:
    """The JSON of a body, in the standard form or in fastjson's. Raises `Rejected`.

    `object_keys` is for answers: objects as keys are read so slowly that no request may hold them.
    """
    if not data:
        raise rejected(what, "the body is empty")
    try:
        value: object = fastjson.loads(data, object_keys=object_keys)
    except FormatError as error:
        raise rejected(what, str(error)) from None
    return value


def convert(read: Callable[[_S], _T], source: _S, what: str) -> _T:
    """`read(source)`, a reader of `brokerset_formats`, with its complaint turned into a refusal."""
    try:
        return read(source)
    except FormatError as error:
        raise rejected(what, str(error)) from None


def dump(value: object) -> bytes:
    """Standard JSON of a body. Raises `LocalProtocolError` for a value that JSON does not have."""
    try:
        return fastjson.dumps(value)
    except TypeError as error:
        raise LocalProtocolError(f"body cannot be written as JSON: {error}") from None


def compact(**fields: object) -> dict[str, object]:
    """The fields without those that are `None`, as fastjson leaves them out."""
    return {name: value for name, value in fields.items() if value is not None}


class JsonBody:
    """Base of bodies that are one JSON object: subclasses give `from_object` and `to_object`."""

    __slots__ = ()

    object_keys: ClassVar[bool] = False
    """Whether Java writes this body with objects as keys."""

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        """Read the object's fields. Raises `Rejected`."""
        raise NotImplementedError

    def to_object(self) -> dict[str, object]:
        """The fields under their wire names, in alphabetical order."""
        raise NotImplementedError

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Read a body. Raises `Rejected` saying where it is malformed."""
        return cls.from_object(
            JsonObject(parse(data, cls.__name__, object_keys=cls.object_keys), cls.__name__)
        )

    def to_json(self) -> bytes:
        """The body's bytes."""
        return dump(self.to_object())
