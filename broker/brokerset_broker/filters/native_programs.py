"""Compiles trees to programs of the native core, which examines units of a queue by them in one call.

Only what is decided by bytes alone, as in `evaluation`, of which this is a part: comparisons of a property
with a constant, and what they are combined with. An expression with anything else has no program. Of a
message whose value is not clear from its bytes (a text where a number is needed, a long number) the core lets
Python decide.

The program is the tree, root first: a byte for the node, then its parts (`native/src/filter_programs.rs`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from brokerset_broker.filters.evaluation import MIRRORED, constant_of, exact_bytes
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
    Node,
    Not,
    Ordering,
    Property,
    Search,
    TextSearch,
)
from brokerset_formats import native

if TYPE_CHECKING:
    from brokerset_native import FilterProgram

_FALSE, _TRUE, _NULL = b"\0", b"\1", b"\2"
_ORDERS: Final = {
    Ordering.GREATER: 0, Ordering.GREATER_EQUAL: 1, Ordering.LESS: 2, Ordering.LESS_EQUAL: 3,
}  # fmt: skip
_SEARCHES: Final = {Search.CONTAINS: 0, Search.STARTSWITH: 1, Search.ENDSWITH: 2}


class _NoProgramError(Exception):
    """The expression has a part that only Python evaluates."""


def native_program(root: Node) -> FilterProgram | None:
    """A program for the native core; None where there is no such core, or none for this expression."""
    core = native.core
    if core is None or not hasattr(core, "FilterProgram"):
        return None
    try:
        code = program_code(root)
    except _NoProgramError:
        return None
    program: FilterProgram = core.FilterProgram(code)
    return program


def program_code(node: Node) -> bytes:
    """The bytes of a program. Raises `_NoProgramError`."""
    match node:
        case Literal(value):
            return b"\0" + _constant(value if isinstance(value, bool) else None)
        case Cast(name):
            return b"\1" + _name(name)
        case Not(operand):
            return b"\2" + program_code(operand)
        case AllOf(terms):
            return b"\3" + _count(terms) + b"".join(map(program_code, terms))
        case AnyOf(terms):
            return b"\4" + _count(terms) + b"".join(map(program_code, terms))
        case IsNull(Property() as name):
            return b"\5" + _name(name)
        case Equal(left, right):
            return _equal(left, right)
        case Compare(ordering, left, right):
            return _compare(ordering, left, right)
        case Between(Property() as name, low, high, negated):
            limits = _number(constant_of(low)) + _number(constant_of(high))
            return b"\x09" + _name(name) + limits + _constant(negated)
        case InList(name, values, negated):
            literals = [_literal(value) for value in values]
            return b"\x0a" + _name(name) + _count(literals) + b"".join(literals) + _constant(negated)
        case TextSearch(search, Property() as name, text, negated):
            if not text:
                return b"\0" + _FALSE
            kind = bytes([_SEARCHES[search]])
            return b"\x0b" + _name(name) + kind + _literal(text) + _constant(negated)
    raise _NoProgramError


def _equal(left: Node, right: Node) -> bytes:
    if isinstance(left, Property) and (constant := constant_of(right)) is not None:
        name, missing = left, _NULL
    elif isinstance(right, Property) and (constant := constant_of(left)) is not None:
        name, missing = right, _FALSE
    else:
        raise _NoProgramError
    if isinstance(constant, str):
        return b"\6" + _name(name) + _literal(constant) + missing
    if type(constant) is int:
        return b"\7" + _name(name) + struct.pack(">q", constant) + missing
    raise _NoProgramError


def _compare(ordering: Ordering, left: Node, right: Node) -> bytes:
    for name, other, effective in ((left, right, ordering), (right, left, MIRRORED[ordering])):
        if isinstance(name, Property):
            limit = _number(constant_of(other))
            return b"\x08" + _name(name) + bytes([_ORDERS[effective]]) + limit
    raise _NoProgramError


def _constant(value: bool | None) -> bytes:
    return _NULL if value is None else _TRUE if value else _FALSE


def _count(parts: Sequence[object]) -> bytes:
    return struct.pack(">I", len(parts))


def _name(name: Property) -> bytes:
    return _text(name.name.encode())


def _literal(text: str) -> bytes:
    literal = exact_bytes(text)
    if literal is None:
        raise _NoProgramError
    return _text(literal)


def _text(text: bytes) -> bytes:
    return struct.pack(">I", len(text)) + text


def _number(constant: object) -> bytes:
    """A limit for numbers of at most nine digits: as a double it is on the same side of all of them."""
    if type(constant) is not int and type(constant) is not float:
        raise _NoProgramError
    return struct.pack(">d", constant)
