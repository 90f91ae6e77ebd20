"""An expression as a tree: what the parser builds, and what is compiled.

Numbers keep Java's distinction: an integer is an `Integer` if its absolute value is at most 2^31 - 1, or else
a `Long`, and properties are converted to the one or the other. `BETWEEN` is a node of its own, and chains
of AND or OR are one node, so that evaluation is neither deep nor double.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from brokerset_broker.filters.java_numbers import double_text

TREE_DEPTH_MAX = 128
"""Levels of a tree. Compilation takes up to three frames of Python's stack for each, of 1,000."""

TEXT_DEPTH_MAX = 32
"""Levels that a message shows; it is made while the parser's frames are on the stack, too."""

TEXT_SIZE_MAX = 4_096
"""Characters of any node in a message: the value of BETWEEN is there twice, and may have a BETWEEN in it."""


class Ordering(Enum):
    """The comparisons of numbers."""

    GREATER = ">"
    GREATER_EQUAL = ">="
    LESS = "<"
    LESS_EQUAL = "<="


class Search(Enum):
    """What is searched for in a text."""

    CONTAINS = "CONTAINS"
    STARTSWITH = "STARTSWITH"
    ENDSWITH = "ENDSWITH"


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant; `None` is NULL."""

    value: str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Property:
    """The value of a property: text, or null where the message has none."""

    name: str


@dataclass(frozen=True, slots=True)
class Negate:
    """A number with the other sign; null for whatever is no number, which properties never are."""

    operand: Node


@dataclass(frozen=True, slots=True)
class Not:
    """Null stays null."""

    operand: Node


@dataclass(frozen=True, slots=True)
class Cast:
    """A property where a condition is expected: false, since text is not true, or null."""

    operand: Property


@dataclass(frozen=True, slots=True)
class AllOf:
    """AND of all terms: the first false one decides, and the others are not evaluated."""

    terms: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """OR of all terms: the first true one decides, and the others are not evaluated."""

    terms: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Equal:
    """`left = right`; `<>` is its negation. Null if the left one alone is null, false if the right one is."""

    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class IsNull:
    """`IS NULL`; `IS NOT NULL` is its negation."""

    operand: Node


@dataclass(frozen=True, slots=True)
class Compare:
    """An ordered comparison; null if one side is null."""

    ordering: Ordering
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Between:
    """`value BETWEEN low AND high`, both included; `negated`: outside of both."""

    value: Node
    low: Node
    high: Node
    negated: bool


@dataclass(frozen=True, slots=True)
class InList:
    """Whether a property has one of these values (`negated`: none of them); null without the property."""

    operand: Property
    values: tuple[str, ...]
    negated: bool


@dataclass(frozen=True, slots=True)
class TextSearch:
    """Whether a text has another in it; false (also if negated) for null, and if the other is empty."""

    search: Search
    operand: Node
    text: str
    negated: bool


Node: TypeAlias = (
    Literal | Property | Negate | Not | Cast | AllOf | AnyOf | Equal | IsNull | Compare | Between | InList
    | TextSearch
)  # fmt: skip


def is_condition(node: Node) -> bool:
    """Whether it is true, false or null by its form: a `BooleanExpression` of Java."""
    match node:
        case Literal(value):
            return value is None or isinstance(value, bool)
        case Property() | Negate():
            return False
    return True


def children(node: Node) -> tuple[Node, ...]:
    """The nodes directly below."""
    match node:
        case Literal() | Property():
            return ()
        case Negate(operand) | Not(operand) | IsNull(operand):
            return (operand,)
        case Cast(name) | InList(operand=name):
            return (name,)
        case TextSearch(operand=operand):
            return (operand,)
        case AllOf(terms) | AnyOf(terms):
            return terms
        case Equal(left, right) | Compare(left=left, right=right):
            return (left, right)
        case Between(value, low, high, _):
            return (value, low, high)


def all_nodes(root: Node) -> Iterator[tuple[Node, int]]:
    """Every node with its depth, the root's is 1; without recursion, so of a tree of any depth."""
    stack = [(root, 1)]
    while stack:
        node, depth = stack.pop()
        yield node, depth
        stack.extend((child, depth + 1) for child in children(node))


def java_text(node: Node, depth: int = 1) -> str:
    """`toString` of Java's expression, for messages; what is too deep or too long is `...`."""
    if depth > TEXT_DEPTH_MAX:
        return "..."
    text = _java_text(node, depth + 1)
    return text if len(text) <= TEXT_SIZE_MAX else text[:TEXT_SIZE_MAX] + "..."


def _java_text(node: Node, below: int) -> str:
    def text(child: Node) -> str:
        return java_text(child, below)

    match node:
        case Literal(value):
            return _constant(value)
        case Property(name):
            return name
        case Cast(operand):
            return text(operand)
        case Negate(operand):
            return f"(- {text(operand)})"
        case Not(operand):
            return f"(NOT {text(operand)})"
        case IsNull(operand):
            return f"({text(operand)} == NULL)"
        case Equal(left, right):
            return f"({text(left)} == {text(right)})"
        case Compare(ordering, left, right):
            return f"({text(left)} {ordering.value} {text(right)})"
        case AllOf(terms) | AnyOf(terms):
            sign = "&&" if isinstance(node, AllOf) else "||"
            pieces = [text(term) for term in terms]
            return "(" * (len(pieces) - 1) + pieces[0] + "".join(f" {sign} {one})" for one in pieces[1:])
        case Between(operand, low, high, negated):
            value = text(operand)
            signs = ("<", "||", ">") if negated else (">=", "&&", "<=")
            return f"(({value} {signs[0]} {text(low)}) {signs[1]} ({value} {signs[2]} {text(high)}))"
        case InList(operand, values, negated):
            return f"{text(operand)} {'NOT ' if negated else ''}IN ( {', '.join(values)} )"
        case TextSearch(search, operand, _, negated):
            return f"({'NOT ' if negated else ''}{search.value} {text(operand)})"


def _constant(value: str | int | float | bool | None) -> str:
    match value:
        case None | bool():
            return str("NULL" if value is None else value).upper()
        case str():
            return "'" + value.replace("'", "''") + "'"
        case float():
            return double_text(value)
    return str(value)
