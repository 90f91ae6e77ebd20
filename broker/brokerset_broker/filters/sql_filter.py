"""A filter by SQL92: an expression, compiled once, that says for each message whether a consumer gets it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from brokerset_broker.filters.errors import CannotEvaluate, EvaluationFailed
from brokerset_broker.filters.evaluation import Condition, compile_condition
from brokerset_broker.filters.expression_parser import parse
from brokerset_broker.filters.native_programs import native_program
from brokerset_broker.filters.tree import Property, all_nodes

if TYPE_CHECKING:
    from brokerset_native import FilterProgram

LONG_PROPERTIES: Final = 1_024
"""Bytes of properties from which on only those are examined that the expression asks for."""


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """A compiled expression; made by `compile_filter`."""

    expression: str
    ignored: str
    """Text behind the complete expression, which has no effect, as with Java: worth a warning."""
    names: frozenset[str]
    """The properties that the expression asks for."""
    _raw_names: frozenset[bytes] = field(repr=False, compare=False)
    _condition: Condition = field(repr=False, compare=False)
    program: FilterProgram | None = field(default=None, repr=False, compare=False)
    """For the native core: the same for every message that it does not leave to `evaluate`."""

    def evaluate(self, properties: bytes) -> bool | EvaluationFailed | None:
        """What the expression is for a message, from the bytes of its properties as the record has them.

        Only `True` matches; `None` is null. Nothing is raised.
        """
        if len(properties) > LONG_PROPERTIES:
            properties = self._asked_for(properties)
        try:
            return self._condition(b"\x02" + properties + b"\x02")
        except CannotEvaluate as error:
            return EvaluationFailed(str(error))

    def matches(self, properties: bytes) -> bool:
        """Whether the consumer gets the message; a failed evaluation is no match."""
        return self.evaluate(properties) is True

    def _asked_for(self, properties: bytes) -> bytes:
        """Only the properties that the expression asks for: it searches all of them for each of its terms."""
        names = self._raw_names
        kept = [pair for pair in properties.split(b"\x02") if pair.partition(b"\x01")[0] in names]
        return b"\x02".join(kept)


def compile_filter(expression: str) -> SqlFilter:
    """Compile an expression of `SQL92`. Raises `FilterError`, whose `remark` is the answer to the client."""
    parsed = parse(expression)
    names = frozenset(node.name for node, _ in all_nodes(parsed.root) if isinstance(node, Property))
    condition, program = compile_condition(parsed.root), native_program(parsed.root)
    raw_names = frozenset(name.encode() for name in names)
    return SqlFilter(expression, parsed.ignored, names, raw_names, condition, program)
