"""Compiles trees to closures over the raw properties of a message: true, false, or null (`None`).

Each closure gets the properties between two separators, `0x02 name 0x01 value 0x02 ... 0x02`, so that a
property is found by one search; nothing else is decoded. No node is evaluated twice, and terms of AND and OR
only until one of them decides. `CannotEvaluate` is raised for what Java raises an exception for: text where
a number is needed, above all.

Sources: `ComparisonExpression`, `LogicExpression`, `UnaryExpression` and `PropertyExpression` of 5.5.0.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Final, TypeAlias

from brokerset_broker.filters.tree import (
    AllOf,
    AnyOf,
    Between,
    Cast,
    Compare,
    Equal,
    InList,
    IsNull,
    Literal,
    Negate,
    Node,
    Not,
    Ordering,
    Property,
    Search,
    TextSearch,
)
from brokerset_broker.filters.values import Value, number_order, order_of, text_as

Condition: TypeAlias = Callable[[bytes], bool | None]
Operand: TypeAlias = Callable[[bytes], Value | None]
Find: TypeAlias = Callable[[bytes], bytes | None]
Order: TypeAlias = Callable[[float, float], bool]

_ORDERS: Final[dict[Ordering, Order]] = {
    Ordering.GREATER: operator.gt, Ordering.GREATER_EQUAL: operator.ge,
    Ordering.LESS: operator.lt, Ordering.LESS_EQUAL: operator.le,
}  # fmt: skip
MIRRORED: Final = {
    Ordering.GREATER: Ordering.LESS, Ordering.GREATER_EQUAL: Ordering.LESS_EQUAL,
    Ordering.LESS: Ordering.GREATER, Ordering.LESS_EQUAL: Ordering.GREATER_EQUAL,
}  # fmt: skip
"""A comparison read from right to left."""


def compile_condition(node: Node) -> Condition:
    """A closure for a node that is a condition by its form."""
    match node:
        case Literal(value):
            constant = value if isinstance(value, bool) else None
            return lambda _: constant
        case Cast(name):
            find = _finder(name)
            return lambda raw: None if find(raw) is None else False
        case Not(operand):
            return _negation(compile_condition(operand))
        case AllOf(terms):
            return _decided_by(False, [compile_condition(term) for term in terms])
        case AnyOf(terms):
            return _decided_by(True, [compile_condition(term) for term in terms])
        case IsNull(operand):
            value_of = _operand(operand)
            return lambda raw: value_of(raw) is None or False
        case Equal(left, right):
            return _equality(left, right)
        case Compare(ordering, left, right):
            return _comparison(ordering, left, right)
        case Between():
            return _between(node)
        case InList(name, values, negated):
            return _in_list(_finder(name), values, negated)
        case TextSearch():
            return _text_search(node)
    raise AssertionError(f"{node} is no condition")


# -- values ---------------------------------------------------------------------------------------------


def _finder(name: Property) -> Find:
    """Finds the bytes of a property: of a repeated name the last value; an empty value is none."""
    start_of = b"\x02%s\x01" % name.name.encode()
    size = len(start_of)

    def find(raw: bytes) -> bytes | None:
        start = raw.rfind(start_of)
        if start < 0:
            return None
        value = raw[start + size : raw.index(b"\x02", start + size)]
        return value or find_before(raw, start)

    def find_before(raw: bytes, end: int) -> bytes | None:
        while (start := raw.rfind(start_of, 0, end + 1)) >= 0:
            if value := raw[start + size : raw.index(b"\x02", start + size)]:
                return value
            end = start
        return None

    return find


def _decoded(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def constant_of(node: Node) -> Value | None:
    """What the node is in every message: of literals, and of numbers with signs."""
    signs = 0
    while isinstance(node, Negate):
        node, signs = node.operand, signs + 1
    if not isinstance(node, Literal):
        return None
    value = node.value
    if not signs:
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None  # with a sign, what is no number is null
    return -value if signs % 2 else value


def _operand(node: Node) -> Operand:
    """A closure for any node, where a value of any type will do."""
    if isinstance(node, Literal) or (isinstance(node, Negate) and constant_of(node) is not None):
        value = constant_of(node)
        return lambda _: value
    if isinstance(node, Property):
        find = _finder(node)

        def text(raw: bytes) -> str | None:
            found = find(raw)
            return None if found is None else found.decode("utf-8", "replace")

        return text
    if isinstance(node, Negate):
        # No number can be behind it. What it negates is evaluated all the same, for its errors.
        value_of = _operand(node.operand)

        def nothing(raw: bytes) -> None:
            value_of(raw)

        return nothing
    return compile_condition(node)


# -- AND, OR, NOT ---------------------------------------------------------------------------------------


def _negation(condition: Condition) -> Condition:
    def negation(raw: bytes) -> bool | None:
        value = condition(raw)
        return None if value is None else not value

    return negation


def _decided_by(decisive: bool, terms: list[Condition]) -> Condition:
    """AND (a false term decides) or OR (a true one does)."""
    default = not decisive
    if len(terms) == 2:
        first, second = terms

        def both(raw: bytes) -> bool | None:
            value = first(raw)
            if value is decisive:
                return decisive
            other = second(raw)
            if other is decisive:
                return decisive
            return None if value is None or other is None else default

        return both

    def every(raw: bytes) -> bool | None:
        result: bool | None = default
        for term in terms:
            value = term(raw)
            if value is decisive:
                return decisive
            if value is None:
                result = None
        return result

    return every


# -- comparisons ----------------------------------------------------------------------------------------


def _equality(left: Node, right: Node) -> Condition:
    if isinstance(left, Property) and (constant := constant_of(right)) is not None:
        return _property_equals(_finder(left), constant, None)
    if (
        isinstance(right, Property)
        and (constant := constant_of(left)) is not None
        and not isinstance(constant, bool)
    ):
        # A missing property on the right is false rather than null. (TRUE = property is an error in Java.)
        return _property_equals(_finder(right), constant, False)
    left_value, right_value = _operand(left), _operand(right)

    def equality(raw: bytes) -> bool | None:
        one, other = left_value(raw), right_value(raw)
        if one is None:
            return True if other is None else None
        if other is None:
            return False
        return order_of(one, other) == 0

    return equality


def _property_equals(find: Find, constant: Value, missing: bool | None) -> Condition:
    if isinstance(constant, str) and (literal := exact_bytes(constant)) is not None:

        def same_bytes(raw: bytes) -> bool | None:
            value = find(raw)
            return missing if value is None else value == literal

        return same_bytes

    if isinstance(constant, int) and not isinstance(constant, bool):
        number = constant

        def same_number(raw: bytes) -> bool | None:
            value = find(raw)
            if value is None:
                return missing
            if len(value) < 10 and value.isdigit():
                return int(value) == number
            return text_as(_decoded(value), number) == number

        return same_number

    def same(raw: bytes) -> bool | None:
        value = find(raw)
        return missing if value is None else order_of(_decoded(value), constant) == 0

    return same


def _comparison(ordering: Ordering, left: Node, right: Node) -> Condition:
    for name, other, effective in ((left, right, ordering), (right, left, MIRRORED[ordering])):
        constant = constant_of(other)
        if isinstance(name, Property) and isinstance(constant, int | float):
            return _property_compares(_finder(name), _ORDERS[effective], constant)
    order, left_value, right_value = _ORDERS[ordering], _operand(left), _operand(right)

    def comparison(raw: bytes) -> bool | None:
        one = left_value(raw)
        if one is None:
            return None
        other = right_value(raw)
        return None if other is None else order(number_order(one, other), 0)

    return comparison


def _property_compares(find: Find, order: Order, constant: int | float) -> Condition:
    def compares(raw: bytes) -> bool | None:
        value = find(raw)
        if value is None:
            return None
        if len(value) < 10 and value.isdigit():
            return order(int(value), constant)  # nine digits are exact as each of Java's types
        return order(order_of(_decoded(value), constant), 0)

    return compares


def _between(node: Between) -> Condition:
    """Two comparisons in one, as Java has them: the second is not made if the first decides."""
    value_of, low_of, high_of = _operand(node.value), _operand(node.low), _operand(node.high)
    decisive = node.negated
    low_order, high_order = (operator.lt, operator.gt) if node.negated else (operator.ge, operator.le)
    low, high = constant_of(node.low), constant_of(node.high)

    def side(value: Value, limit: Value | None, order: Order) -> bool | None:
        return None if limit is None else order(number_order(value, limit), 0)

    def between(raw: bytes) -> bool | None:
        value = value_of(raw)
        if value is None:
            return None
        first = side(value, low_of(raw), low_order)
        if first is decisive:
            return decisive
        second = side(value, high_of(raw), high_order)
        if second is decisive:
            return decisive
        return None if first is None or second is None else not decisive

    if isinstance(node.value, Property) and isinstance(low, int | float) and isinstance(high, int | float):
        find, first_number, last_number = _finder(node.value), low, high

        def digits_between(raw: bytes) -> bool | None:
            value = find(raw)
            if value is None:
                return None
            if len(value) < 10 and value.isdigit():
                return (first_number <= int(value) <= last_number) is not decisive
            return between(raw)

        return digits_between
    return between


# -- texts ----------------------------------------------------------------------------------------------


def exact_bytes(text: str) -> bytes | None:
    """The UTF-8 of a literal, to be found in bytes; `None` if it must be searched for in decoded text.

    That is so if it has U+FFFD, as which every damaged byte is decoded, or half of a surrogate pair.
    """
    if "\ufffd" in text:
        return None
    try:
        return text.encode()
    except UnicodeEncodeError:
        return None


def _in_list(find: Find, values: tuple[str, ...], negated: bool) -> Condition:
    literals = [exact_bytes(value) for value in values]
    exact = frozenset(literal for literal in literals if literal is not None)
    if len(exact) == len(set(values)):

        def bytes_in_list(raw: bytes) -> bool | None:
            value = find(raw)
            return None if value is None else (value in exact) is not negated

        return bytes_in_list
    texts = frozenset(values)

    def text_in_list(raw: bytes) -> bool | None:
        value = find(raw)
        return None if value is None else (_decoded(value) in texts) is not negated

    return text_in_list


def _text_search(node: TextSearch) -> Condition:
    text, wanted = node.text, not node.negated
    if not text:
        return lambda _: False
    value_of = _operand(node.operand)
    if isinstance(node.operand, Property) and (literal := exact_bytes(text)) is not None:
        find = _finder(node.operand)
        match node.search:
            case Search.CONTAINS:
                return lambda raw: (value := find(raw)) is not None and (literal in value) is wanted
            case Search.STARTSWITH:
                return lambda raw: (value := find(raw)) is not None and value.startswith(literal) is wanted
            case Search.ENDSWITH:
                return lambda raw: (value := find(raw)) is not None and value.endswith(literal) is wanted
    is_found: Callable[[str], bool] = {
        Search.CONTAINS: lambda value: text in value,
        Search.STARTSWITH: lambda value: value.startswith(text),
        Search.ENDSWITH: lambda value: value.endswith(text),
    }[node.search]

    def search(raw: bytes) -> bool | None:
        value = value_of(raw)
        return isinstance(value, str) and is_found(value) is wanted

    return search
