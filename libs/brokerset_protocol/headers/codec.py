"""Header fields between the wire and frozen dataclasses, by a plan that is made once for each class.

Source: `RemotingCommand.decodeCommandCustomHeader`, `makeCustomHeaderToNet`. The wire knows text only. Java
takes the default for what is missing or unreadable and stumbles later; we refuse at once and name the field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from operator import attrgetter
from types import NoneType
from typing import Annotated, Any, ClassVar, Self, get_args, get_type_hints

from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.errors import Rejected

Int = Annotated[int, 32]
"""A Java `int`: signed, 32 bits."""

Long = Annotated[int, 64]
"""A Java `long`: signed, 64 bits."""

NUMBER_DIGITS_MAX = 20
"""A 64-bit number has at most 19 digits and a sign; longer text is refused before it is converted."""

SHOWN_MAX = 64
"""Characters of a bad value that a remark repeats."""

_WIRE = "wire"
_REQUIRED = object()


def wire(name: str) -> dict[str, str]:
    """Field metadata: the wire name, where it is not the field's own name in camelCase."""
    return {_WIRE: name}


def camel_case(name: str) -> str:
    """`max_msg_nums` becomes `maxMsgNums`."""
    head, *rest = name.split("_")
    return head + "".join(part[:1].upper() + part[1:] for part in rest)


def _read_text(value: object) -> str:
    if type(value) is str:
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise ValueError


def _read_flag(value: object) -> bool:
    """Java's `true` in any case; the C++ client's `1`, which Java misreads as false."""
    if type(value) is str:
        return value == "true" or value == "1" or value.lower() == "true"
    if isinstance(value, int):
        return value == 1
    raise ValueError


def _number_reader(bits: int) -> Callable[[object], int]:
    high = (1 << (bits - 1)) - 1
    low = -high - 1

    def read(value: object) -> int:
        if type(value) is str:
            if len(value) > NUMBER_DIGITS_MAX or "_" in value:
                raise ValueError
            number = int(value)
        elif type(value) is int:
            number = value
        else:
            raise ValueError
        if not low <= number <= high:
            raise ValueError
        return number

    return read


_READERS: dict[object, tuple[Callable[[object], Any], str]] = {
    str: (_read_text, "text"),
    bool: (_read_flag, "true or false"),
    Int: (_number_reader(32), "a 32-bit number"),
    Long: (_number_reader(64), "a 64-bit number"),
}


@dataclass(frozen=True, slots=True)
class _Field:
    wire: str
    kind: str
    read: Callable[[object], Any]
    default: object
    store: Callable[[object, object], None]
    is_text: bool


@dataclass(frozen=True, slots=True)
class _Plan:
    fields: tuple[_Field, ...]
    wires: tuple[str, ...]
    values: Callable[[object], tuple[object, ...]]


def _values_getter(names: list[str]) -> Callable[[object], tuple[object, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    if names:
        one = attrgetter(names[0])
        return lambda header: (one(header),)
    return lambda header: ()


def _make_plan(cls: type[Header]) -> _Plan:
    hints = get_type_hints(cls, include_extras=True)
    planned = []
    for field in fields(cls):
        hint = hints[field.name]
        if hint not in _READERS:  # an optional one: `X | None`
            (hint,) = (arg for arg in get_args(hint) if arg is not NoneType)
        read, kind = _READERS[hint]
        planned.append(
            _Field(
                wire=field.metadata.get(_WIRE) or camel_case(field.name),
                kind=kind,
                read=read,
                default=_REQUIRED if field.default is MISSING else field.default,
                store=getattr(cls, field.name).__set__,
                is_text=hint is str,
            )
        )
    return _Plan(
        tuple(planned),
        tuple(field.wire for field in planned),
        _values_getter([field.name for field in fields(cls)]),
    )


_PLANS: dict[type, _Plan] = {}


class Header:
    """Base of every header class: a frozen, slotted dataclass of `str`, `bool`, `Int` and `Long` fields.

    A field without a default is mandatory. `None` means that the field is not on the wire.
    """

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Any]]  # set by @dataclass

    @classmethod
    def from_ext(cls, ext: Mapping[str, object]) -> Self:
        """Read the fields of a command; unknown ones are ignored, an empty text is no number.

        Raises `Rejected` (SYSTEM_ERROR) naming the first field that is missing or cannot be read.
        """
        plan = _PLANS.get(cls)
        if plan is None:
            plan = _PLANS[cls] = _make_plan(cls)
        header = object.__new__(cls)
        get = ext.get
        for field in plan.fields:
            value = get(field.wire)
            if value is None or (value == "" and not field.is_text):
                if field.default is _REQUIRED:
                    raise Rejected(
                        ResponseCode.SYSTEM_ERROR,
                        f"the header field {field.wire} of {cls.__name__} is missing; send {field.kind}",
                    )
                field.store(header, field.default)
                continue
            try:
                field.store(header, field.read(value))
            except ValueError:
                raise Rejected(
                    ResponseCode.SYSTEM_ERROR,
                    f"the header field {field.wire} of {cls.__name__} is {str(value)[:SHOWN_MAX]!r};"
                    f" send {field.kind}",
                ) from None
        return header

    def to_ext(self) -> dict[str, str]:
        """The fields as texts, without those that are `None`."""
        plan = _PLANS.get(type(self))
        if plan is None:
            plan = _PLANS[type(self)] = _make_plan(type(self))
        ext: dict[str, str] = {}
        for name, value in zip(plan.wires, plan.values(self), strict=True):
            if type(value) is str:
                ext[name] = value
            elif value is True:
                ext[name] = "true"
            elif value is False:
                ext[name] = "false"
            elif value is not None:
                ext[name] = str(value)
        return ext

    @classmethod
    def wire_names(cls) -> tuple[str, ...]:
        """The fields' names on the wire, in the order of the class."""
        plan = _PLANS.get(cls)
        if plan is None:
            plan = _PLANS[cls] = _make_plan(cls)
        return plan.wires
