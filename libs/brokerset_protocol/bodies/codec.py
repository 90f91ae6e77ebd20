"""JSON bodies between the wire and frozen dataclasses, by a plan that is made once for each class.

The types of a class's fields say everything: `str`, `bool`, `int` (64 bits), `float`, `bytes` (base64),
words of a `StrEnum`, other bodies, values of `brokerset_formats`, tuples, sets and maps of these. As fastjson
does it, unknown fields are ignored, `null` is as good as absent, and numbers and flags may come as text: the
C++ client writes `"subVersion":"1700000000000"`.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from functools import cache, partial
from operator import attrgetter
from types import NoneType
from typing import Annotated, Any, ClassVar, Final, Self, TypeVar, get_args, get_origin, get_type_hints

import orjson

from brokerset_formats import fastjson
from brokerset_formats.config import DataVersion, GroupTable, SubscriptionGroupConfig, TopicConfig
from brokerset_formats.dledger import LedgerEntry
from brokerset_formats.errors import FormatError
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.errors import LocalProtocolError, Rejected
from brokerset_protocol.headers.codec import NUMBER_DIGITS_MAX, SHOWN_MAX, camel_case

INT64_MAX: Final = 0x7FFFFFFFFFFFFFFF
INT64_MIN: Final = -INT64_MAX - 1

_INTEGER: Final = re.compile(r"-?[0-9]+")

_S = TypeVar("_S")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Wire:
    """Marks a field: its name on the wire, where that is not the field's own name in camelCase."""

    name: str


@dataclass(frozen=True, slots=True)
class Absent:
    """Marks a field that our own code must give, and peers may leave out: what stands for it then."""

    value: object


@dataclass(frozen=True, slots=True)
class Most:
    """Marks a list or a map: how many entries are taken."""

    entries: int


@dataclass(frozen=True, slots=True)
class NamedByKey:
    """Marks a map of objects: its key is the value of this field, where an object lacks it."""

    field: str


OrZero = Annotated[int, Absent(0)]
OrEmpty = Annotated[str, Absent("")]

LooseText = Annotated[str, "also numbers and flags, as text"]


class Unreadable(ValueError):
    """A value of a body is not what it must be; whoever reads what it is in adds the place."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.places: list[str] = []


def _unlike(value: object, wanted: str) -> Unreadable:
    if isinstance(value, list | dict):  # may be nested deeper than Python can show
        return Unreadable(f"{'a list' if isinstance(value, list) else 'an object'} is {wanted}")
    return Unreadable(f"{str(value)[:SHOWN_MAX]!r} is {wanted}")


def _read_integer(value: object) -> int:
    if type(value) is str and len(value) <= NUMBER_DIGITS_MAX and _INTEGER.fullmatch(value):
        value = int(value)
    if type(value) is not int or not INT64_MIN <= value <= INT64_MAX:
        raise _unlike(value, "no 64-bit number")
    return value


def _read_text(value: object) -> str:
    if type(value) is not str:
        raise _unlike(value, "no text")
    return value


def _read_loose_text(value: object) -> str:
    if isinstance(value, dict | list):
        raise _unlike(value, "no text")
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _read_number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _unlike(value, "no number")
    return float(value)


def _read_flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value == "1" or value.lower() == "true"
    if isinstance(value, int):
        return value != 0
    raise _unlike(value, "neither true nor false")


def _read_bytes(value: object) -> bytes:
    try:
        return base64.b64decode(_read_text(value), validate=True)
    except (binascii.Error, ValueError):
        raise _unlike(value, "no base64") from None


def _write_bytes(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _read_list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise _unlike(value, "no list")
    return value


def _read_object(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise _unlike(value, "no JSON object")
    return value


Read = Callable[[Any], Any]
Write = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class _Kind:
    """How values of one type are read and written."""

    read: Read
    write: Write | None = None
    """None writes a value as it is."""

    absent: Callable[[], Any] | None = None
    """What stands for an absent value; None: nothing does."""

    object_keys: bool = False
    """Whether a map in it has objects as keys."""


_SCALARS: Final[Mapping[object, _Kind]] = {
    str: _Kind(_read_text),
    LooseText: _Kind(_read_loose_text),
    int: _Kind(_read_integer),
    float: _Kind(_read_number, absent=float),
    bool: _Kind(_read_flag, absent=bool),
    bytes: _Kind(_read_bytes, _write_bytes),
}


def _kind_of(hint: Any) -> _Kind:
    if hint in _SCALARS:
        return _SCALARS[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if NoneType in arguments:
        (inner,) = (_kind(each) for each in arguments if each is not NoneType)
        return _Kind(inner.read, inner.write, NoneType, inner.object_keys)
    if origin in (tuple, frozenset):
        return _kind_of_list(origin, _kind(arguments[0]))
    if origin in (dict, Mapping):
        return _kind_of_map(arguments[0], _kind(arguments[1]))
    if issubclass(hint, StrEnum):
        return _kind_of_word(hint)
    if issubclass(hint, JsonBody):
        plan = _plan(hint)
        return _Kind(plan.read, plan.write, None, plan.object_keys)
    assert issubclass(hint, DataVersion | GroupTable | LedgerEntry | SubscriptionGroupConfig | TopicConfig), (
        f"{hint!r} in a body"
    )
    return _Kind(_of_formats(hint.from_json), hint.to_json)


_kind: Callable[[Any], _Kind] = cache(_kind_of)


def _of_formats(read: Callable[[Mapping[str, object]], object]) -> Read:
    def read_configuration(value: object) -> object:
        try:
            return read(_read_object(value))
        except FormatError as error:
            raise Unreadable(str(error)) from None

    return read_configuration


def _kind_of_word(words: type[StrEnum]) -> _Kind:
    known = list(words)

    def read(value: object) -> StrEnum:
        """A word by its name or (C++ client) by its number in Java's order."""
        if isinstance(value, int) and 0 <= value < len(known):
            return known[value]
        for word in known:
            if word.value == value:
                return word
        raise _unlike(value, f"none of {', '.join(known)}")

    return _Kind(read, attrgetter("value"))


def _kind_of_list(origin: type[tuple[Any, ...] | frozenset[Any]], item: _Kind) -> _Kind:
    read_item, write_item = item.read, item.write
    in_order: Callable[[Any], list[Any]] = sorted if origin is frozenset else list

    def read(value: object) -> object:
        return origin([read_item(each) for each in _read_list(value) if each is not None])

    if write_item is None:
        return _Kind(read, in_order, origin, item.object_keys)
    if origin is tuple:
        return _Kind(read, lambda values: [write_item(each) for each in values], origin, item.object_keys)
    return _Kind(read, lambda values: [write_item(each) for each in sorted(values)], origin, item.object_keys)


def _kind_of_map(key_hint: Any, item: _Kind) -> _Kind:
    read_item, write_item = item.read, item.write
    empty_item = item.absent if item.absent in (dict, frozenset, tuple) else None

    def read(value: object) -> dict[str, object]:
        items = _read_object(value).items()
        if empty_item is not None:
            return {key: read_item(each) if each is not None else empty_item() for key, each in items}
        return {key: read_item(each) for key, each in items if each is not None}

    def read_keys(read_key: Read) -> Read:
        return lambda value: {read_key(key): each for key, each in read(value).items()}

    write: Write | None = None
    if write_item is not None:
        write = lambda values: {key: write_item(each) for key, each in values.items()}  # noqa: E731

    def write_by_object(values: Mapping[JsonBody, object]) -> orjson.Fragment:
        """As Java writes it: `{{"brokerName":…}:value,…}`. No JSON by itself."""
        pairs = (
            key.to_json() + b":" + dump(write_item(each) if write_item else each)
            for key, each in values.items()
        )
        return orjson.Fragment(b"{" + b",".join(pairs) + b"}")

    if key_hint is str:
        return _Kind(read, write, dict, item.object_keys)
    if key_hint is int:
        return _Kind(read_keys(_read_integer), write, dict, item.object_keys)
    # Keys are bare objects (Java), which `fastjson` turns into their text, or texts that hold their JSON.
    read_key = _plan(key_hint).read
    return _Kind(read_keys(lambda key: read_key(_parsed(key.encode()))), write_by_object, dict, True)


@dataclass(frozen=True, slots=True)
class _Plan:
    read: Read
    write: Write
    object_keys: bool


def _plan_of(cls: type[JsonBody]) -> _Plan:
    hints = get_type_hints(cls, include_extras=True)
    slots: list[tuple[str, Read, Callable[[], Any] | None, Callable[[object, object], None]]] = []
    kinds: dict[str, tuple[str, _Kind]] = {}
    for field in fields(cls):
        hint = hints[field.name]
        marks: tuple[object, ...] = ()
        if get_origin(hint) is Annotated:
            hint, marks = hint.__origin__, hint.__metadata__
        kind = _kind(hint)
        wire, read, absent = camel_case(field.name), kind.read, kind.absent
        if field.default is not MISSING:
            absent = _always(field.default)
        elif field.default_factory is not MISSING:
            absent = field.default_factory
        for mark in marks:
            match mark:
                case Wire(name):
                    wire = name
                case Absent(value):
                    absent = _always(value)
                case Most(entries):
                    read = _bounded(read, entries)
                case NamedByKey(name):
                    read = _named_by_key(read, name)
        slots.append((wire, read, absent, getattr(cls, field.name).__set__))
        kinds[wire] = field.name, kind
    object_keys = any(kind.object_keys for _, kind in kinds.values())
    return _Plan(_reader(cls, slots), _writer(kinds, cls.constants), object_keys)


_plan: Callable[[Any], _Plan] = cache(_plan_of)


def _reader(
    cls: type[JsonBody],
    slots: list[tuple[str, Read, Callable[[], Any] | None, Callable[[object, object], None]]],
) -> Read:
    """Reads fields into their slots; each has its name, its reader, and what stands for it when absent."""

    def read_body(value: object) -> JsonBody:
        get = _read_object(value).get
        body = object.__new__(cls)
        for wire, read, absent, store in slots:
            item = get(wire)
            if item is not None:
                try:
                    store(body, read(item))
                except Unreadable as error:
                    error.places.append(wire)
                    raise
            elif absent is not None:
                store(body, absent())
            else:
                raise Unreadable(f"{wire} is missing")
        return body

    return read_body


def _writer(kinds: Mapping[str, tuple[str, _Kind]], constants: Mapping[str, object]) -> Write:
    """One expression of all fields in alphabetical order, as Java has them: a loop takes thrice as long."""
    names: dict[str, Any] = {"constants": constants}
    values = {wire: f"constants[{wire!r}]" for wire in constants}
    for number, (wire, (name, kind)) in enumerate(kinds.items()):
        values[wire] = f"body.{name}"
        if kind.write is not None:
            names[f"write_{number}"] = kind.write
            values[wire] = f"write_{number}(body.{name})"
            if kind.absent is NoneType:
                values[wire] += f" if body.{name} is not None else None"
    fields_of = f"{{{', '.join(f'{wire!r}: {values[wire]}' for wire in sorted(values))}}}"
    if any(kind.absent is NoneType for _, kind in kinds.values()):
        fields_of = f"{{wire: value for wire, value in {fields_of}.items() if value is not None}}"
    write: Write = eval(f"lambda body: {fields_of}", names)
    return write


def _always(value: object) -> Callable[[], object]:
    return lambda: value


def _bounded(read: Read, entries_max: int) -> Read:
    def read_bounded(value: object) -> object:
        if isinstance(value, dict | list) and len(value) > entries_max:
            raise Unreadable(f"it has {len(value)} entries, at most {entries_max} are taken")
        return read(value)

    return read_bounded


def _named_by_key(read: Read, field: str) -> Read:
    def read_named(value: object) -> object:
        return read(
            {
                key: {**item, field: key} if isinstance(item, dict) and item.get(field) is None else item
                for key, item in _read_object(value).items()
            }
        )

    return read_named


class JsonBody:
    """Base of bodies that are one JSON object: frozen, slotted dataclasses.

    A field without a default is mandatory, unless its type has an empty value (lists, maps, flags, what may
    be None) or it is marked `Absent`.
    """

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Any]]  # set by @dataclass

    constants: ClassVar[Mapping[str, object]] = {}
    """Fields that Java writes as well, and nobody uses."""

    def to_object(self) -> dict[str, Any]:
        """The fields under their wire names, in alphabetical order, without those that are `None`."""
        found: dict[str, Any] = _plan(type(self)).write(self)
        return found

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Read a body. Raises `Rejected` saying where it is malformed."""
        plan = _plan(cls)
        body: Self = convert(plan.read, parse(data, cls.__name__, object_keys=plan.object_keys), cls.__name__)
        return body

    def to_json(self) -> bytes:
        """The body's bytes."""
        return dump(self.to_object())


def read_as(hint: type[_T], value: object, what: str) -> _T:
    """Read a parsed value as a field of this type is read; absent is as good as empty. Raises `Rejected`."""
    kind = _kind(hint)
    found: _T = kind.absent() if value is None and kind.absent else convert(kind.read, value, what)
    return found


def rejected(what: str, problem: str) -> Rejected:
    """The refusal of a body: names the place and what is wrong there."""
    return Rejected(ResponseCode.SYSTEM_ERROR, f"{what} cannot be read: {problem}")


def convert(read: Callable[[_S], _T], source: _S, what: str) -> _T:
    """`read(source)`, with its complaint turned into a refusal."""
    try:
        return read(source)
    except Unreadable as error:
        raise rejected(" of ".join([*error.places, what]), error.problem) from None
    except FormatError as error:
        raise rejected(what, str(error)) from None


def _parsed(data: bytes, *, object_keys: bool = False) -> object:
    if not data:
        raise Unreadable("the body is empty")
    try:
        return fastjson.loads(data, object_keys=object_keys)
    except FormatError as error:
        raise Unreadable(str(error)) from None


def parse(data: bytes, what: str, *, object_keys: bool = False) -> object:
    """The JSON of a body, in the standard form or in fastjson's. Raises `Rejected`.

    `object_keys` is for answers: objects as keys are read so slowly that no request may hold them.
    """
    return convert(partial(_parsed, object_keys=object_keys), data, what)


def dump(value: object) -> bytes:
    """Standard JSON of a body. Raises `LocalProtocolError` for a value that JSON does not have."""
    try:
        return fastjson.dumps(value)
    except TypeError as error:
        raise LocalProtocolError(f"body cannot be written as JSON: {error}") from None
