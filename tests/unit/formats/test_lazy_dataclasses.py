"""Dataclasses whose methods are made later behave as those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from brokerset_formats.lazy_dataclasses import dataclass


class Base:
    """With methods of its own and no fields, as `Header`."""

    __slots__ = ()

    def doubled(self: Any) -> int:
        return int(self.number) * 2


@dataclass(frozen=True, slots=True)
class Lazy(Base):
    """What is tested."""

    number: int
    text: str = "none"
    items: tuple[int, ...] = dataclasses.field(default_factory=tuple)
    constant: ClassVar[int] = 7


@dataclass(frozen=True, slots=True)
class Child(Lazy):
    """A field more."""

    more: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """By name only, without a first field."""

    late: int = 1
    needed: int


@dataclass(frozen=True, slots=True, order=True)
class Ordered:
    """With an order."""

    first: int
    second: int


@dataclass(frozen=True, slots=True)
class Checked:
    """Looks at its own values."""

    number: int

    def __post_init__(self) -> None:
        if self.number < 0:
            raise ValueError("negative")

    def __repr__(self) -> str:
        return f"<{self.number}>"


@pytest.fixture
def fresh() -> type[Any]:
    """A class of which nothing was used before."""

    @dataclass(frozen=True, slots=True)
    class Fresh:
        number: int
        text: str = "none"

    return Fresh


def test_values_are_given_by_place_by_name_and_by_default() -> None:
    value = Lazy(1, items=(2,))

    assert (value.number, value.text, value.items, value.constant) == (1, "none", (2,), 7)
    assert value.doubled() == 2
    assert repr(value) == "Lazy(number=1, text='none', items=(2,))"
    assert not hasattr(value, "__dict__")


def test_what_is_missing_or_unknown_is_an_error() -> None:
    with pytest.raises(TypeError, match="needed"):
        Named()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="positional"):
        Named(1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="other"):
        Lazy(1, other=2)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "use",
    [
        lambda cls: cls(1) == cls(1),
        lambda cls: hash(cls(1)) == hash(cls(1)),
        lambda cls: repr(cls(1)).endswith("Fresh(number=1, text='none')"),
        lambda cls: [field.name for field in dataclasses.fields(cls)] == ["number", "text"],
        lambda cls: dataclasses.replace(cls(1), text="new").text == "new",
        lambda cls: dataclasses.asdict(cls(1)) == {"number": 1, "text": "none"},
        lambda cls: dataclasses.is_dataclass(cls),
    ],
)
def test_each_of_these_may_be_the_first_use(fresh: type[Any], use: Callable[[type[Any]], bool]) -> None:
    assert use(fresh)
    assert use(fresh)


def test_a_value_whose_slots_were_filled_without_a_call_has_all_methods(fresh: type[Any]) -> None:
    """As `from_ext` and `from_json` make them."""
    value = object.__new__(fresh)
    fresh.__dict__["number"].__set__(value, 1)
    fresh.__dict__["text"].__set__(value, "none")

    assert repr(value).endswith("Fresh(number=1, text='none')")
    assert value == fresh(1)


def test_nothing_can_be_changed() -> None:
    value = Lazy(1)

    with pytest.raises(dataclasses.FrozenInstanceError):
        value.number = 2  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del value.text
    assert value == Lazy(1)


def test_a_class_below_another_has_its_fields_too() -> None:
    child = Child(1, "a", (), True)

    assert [field.name for field in dataclasses.fields(child)] == ["number", "text", "items", "more"]
    assert child != Lazy(1, "a")
    assert isinstance(child, Lazy)


def test_an_order_compares_fields_one_after_the_other() -> None:
    assert sorted([Ordered(2, 1), Ordered(1, 2), Ordered(1, 1)]) == [
        Ordered(1, 1),
        Ordered(1, 2),
        Ordered(2, 1),
    ]
    assert Ordered(1, 1) <= Ordered(1, 1)


def test_methods_of_the_class_itself_stay() -> None:
    assert repr(Checked(1)) == "<1>"
    with pytest.raises(ValueError, match="negative"):
        Checked(-1)


def test_patterns_match_by_place(fresh: type[Any]) -> None:
    """Also a value that was made without a call, as the first use of its class."""
    match Child(1, "a", (2,), True):
        case Child(number, text, items, more):
            assert (number, text, items, more) == (1, "a", (2,), True)
    value = object.__new__(fresh)
    fresh.__dict__["number"].__set__(value, 1)
    match value:
        case fresh(number):
            assert number == 1


class Outer:
    """Has a class within it."""

    @dataclass(frozen=True, slots=True)
    class Inner:
        """Named by where it is."""

        number: int


def test_a_class_within_another_keeps_its_name() -> None:
    assert repr(Outer.Inner(1)) == "Outer.Inner(number=1)"
    assert pickle.loads(pickle.dumps(Outer.Inner(1))) == Outer.Inner(1)


def test_copies_are_equal() -> None:
    value = Child(1, "a", (1, 2), True)

    assert copy.copy(value) == copy.deepcopy(value) == pickle.loads(pickle.dumps(value)) == value


def test_threads_may_use_a_class_first_at_once(fresh: type[Any]) -> None:
    start, values = threading.Barrier(8), []

    def use() -> None:
        start.wait()
        values.append(fresh(1))

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values == [fresh(1)] * 8


def test_other_kinds_of_dataclasses_are_refused() -> None:
    with pytest.raises(TypeError, match="frozen"):
        dataclass(frozen=False, slots=True)
