"""Dataclasses whose methods are made when one of them is called for the first time.

`dataclasses.dataclass` compiles six methods for each frozen class, about half a millisecond. The programs
have hundreds of such classes (every header and body of the protocol is one), and a process uses a few of
them: made at once they were more than half of what a broker's imports took.
"""

from __future__ import annotations

from dataclasses import Field, FrozenInstanceError, fields
from dataclasses import dataclass as _dataclass
from inspect import get_annotations
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass as dataclass  # for type checkers there is no difference

__all__ = ["dataclass"]

_C = TypeVar("_C")

_METHODS: Final = ("__init__", "__repr__", "__eq__", "__hash__")
_OF_INSTANCES: Final = ("__dict__", "__weakref__")
_ORDER: Final = ("__lt__", "__le__", "__gt__", "__ge__")


if not TYPE_CHECKING:

    def dataclass(
        *, frozen: bool, slots: bool, kw_only: bool = False, order: bool = False
    ) -> Callable[[type[_C]], type[_C]]:
        """As `dataclasses.dataclass(frozen=True, slots=True)`; a class of another kind has no use for this.

        What `dataclasses` does with a class works: `fields`, `replace`, `asdict`, `is_dataclass`.
        """
        if not (frozen and slots):
            raise TypeError("only frozen classes with slots are made lazily; use dataclasses.dataclass")
        return lambda cls: _Lazy(cls, kw_only=kw_only, order=order).made


class _Lazy:
    """A class with slots for the fields of `plain`, which becomes a dataclass when a method is called."""

    __slots__ = ("kw_only", "made", "methods", "order", "plain")

    def __init__(self, plain: type[Any], *, kw_only: bool, order: bool) -> None:
        self.plain, self.kw_only, self.order = plain, kw_only, order
        self.methods = (*_METHODS, *_ORDER) if order else _METHODS
        own = get_annotations(plain)
        names = [name for name, hint in own.items() if not hint.startswith("ClassVar")]
        left = {*names, *_OF_INSTANCES}
        namespace = {name: value for name, value in vars(plain).items() if name not in left}
        namespace |= {name: self._stub(name) for name in self.methods if name not in namespace}
        namespace |= {
            "__slots__": tuple(names),
            "__match_args__": () if kw_only else _by_place(plain, names),
            "__dataclass_fields__": _Fields(self),
            "__setattr__": _set_attribute,
            "__delattr__": _delete_attribute,
            "__getstate__": _state,
            "__setstate__": _set_state,
        }
        self.made = _new_class(plain, namespace)

    def complete(self) -> dict[str, Field[Any]]:
        """Make the methods; returns the fields. Threads that do it at once make the same ones."""
        made = vars(self.made)
        if "__dataclass_params__" not in made:
            plain = self.plain
            namespace = {name: value for name, value in vars(plain).items() if name not in _OF_INSTANCES}
            copied = _new_class(plain, namespace)
            source = _dataclass(frozen=True, kw_only=self.kw_only, order=self.order)(copied)
            self.made.__dataclass_fields__ = source.__dataclass_fields__
            for name in (*self.methods, "__dataclass_params__"):
                setattr(self.made, name, vars(source)[name])
        found: dict[str, Field[Any]] = made["__dataclass_fields__"]
        return found

    def _stub(self, name: str) -> Callable[..., Any]:
        """A method that makes the real ones, and calls the one that it stands for."""

        def call(this: object, *arguments: object, **named: object) -> object:
            self.complete()
            return getattr(self.made, name)(this, *arguments, **named)

        return call


class _Fields:
    """`__dataclass_fields__` of a class until it is read for the first time."""

    __slots__ = ("_lazy",)

    def __init__(self, lazy: _Lazy) -> None:
        self._lazy = lazy

    def __get__(self, instance: object, owner: type[Any]) -> dict[str, Field[Any]]:
        return self._lazy.complete()


def _by_place(plain: type[Any], names: list[str]) -> tuple[str, ...]:
    """The fields in the order in which they are given."""
    inherited: tuple[str, ...] = getattr(plain, "__match_args__", ())
    return (*inherited, *(name for name in names if name not in inherited))


def _new_class(like: type[Any], namespace: dict[str, Any]) -> type[Any]:
    namespace = namespace | {"__qualname__": like.__qualname__}
    return type.__new__(type(like), like.__name__, like.__bases__, namespace)


def _set_attribute(self: object, name: str, value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _delete_attribute(self: object, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[object]:
    return [getattr(self, each.name) for each in fields(self)]


def _set_state(self: Any, state: list[object]) -> None:
    for each, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, each.name, value)
