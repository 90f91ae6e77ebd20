"""The grammar of RocketMQ's SQL92 filters, as `SelectorParser` of 5.5.0 accepts it.

Written by hand: a parser generator would be a dependency for forty lines of grammar.

    expression := and { OR and }
    and        := equality { AND equality }
    equality   := comparison { ("=" | "<>") comparison | IS [NOT] NULL }
    comparison := unary { (">" | ">=" | "<" | "<=") unary | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) string
                        | [NOT] BETWEEN unary AND unary | [NOT] IN "(" string { "," string } ")" }
    unary      := { "+" | "-" | NOT } ( literal | name | "(" expression ")" )

What follows a complete expression is ignored, as Java does, and is returned for a warning.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NoReturn

from brokerset_broker.filters.errors import NUMBER_ERROR, PARSE_EXCEPTION, CannotEvaluate, FilterError
from brokerset_broker.filters.java_numbers import INT64_MAX, double_text
from brokerset_broker.filters.lexer import Kind, Lexer, Token, escaped, image, position_of
from brokerset_broker.filters.tree import (
    TREE_DEPTH_MAX,
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
    all_nodes,
    is_condition,
    java_text,
)
from brokerset_broker.filters.values import NotANumber, Value, order_of

EXPRESSION_SIZE_MAX = 32_768
"""Characters of an expression: it is compiled within the loop, at one to three microseconds for each."""

NESTING_MAX = 64
"""Parentheses within each other. Each takes six frames of Python's stack, of which there are 1,000."""

IN_VALUES_MAX = 2_048
"""Values in one list of IN."""

_ORDERINGS: Final = {
    Kind.GREATER: Ordering.GREATER, Kind.GREATER_EQUAL: Ordering.GREATER_EQUAL,
    Kind.LESS: Ordering.LESS, Kind.LESS_EQUAL: Ordering.LESS_EQUAL,
}  # fmt: skip
_SEARCHES: Final = {
    Kind.CONTAINS: Search.CONTAINS, Kind.STARTSWITH: Search.STARTSWITH, Kind.ENDSWITH: Search.ENDSWITH,
}  # fmt: skip
_CONSTANTS: Final = {Kind.TRUE: Literal(True), Kind.FALSE: Literal(False), Kind.NULL: Literal(None)}
_NEGATABLE: Final = frozenset({*_SEARCHES, Kind.BETWEEN, Kind.IN})
_BEHIND_COMPARISON: Final = frozenset({Kind.NOT, *_NEGATABLE, *_ORDERINGS})
_BEHIND_NOT: Final = frozenset({*_NEGATABLE, *_ORDERINGS})
_BEHIND_EQUALITY: Final = frozenset({Kind.IS, Kind.EQUAL, Kind.NOT_EQUAL})
_OPERAND: Final = (
    Kind.NOT, Kind.TRUE, Kind.FALSE, Kind.NULL, Kind.INTEGER, Kind.FLOAT, Kind.STRING, Kind.NAME, Kind.OPEN,
    Kind.MINUS,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Parsed:
    """An expression's tree, and the text behind it that has no effect (empty almost always)."""

    root: Node
    ignored: str


def parse(text: str) -> Parsed:
    """Parse a whole expression. Raises `FilterError`, and nothing else."""
    if len(text) > EXPRESSION_SIZE_MAX:
        raise FilterError(f"The expression has {len(text)} characters, more than {EXPRESSION_SIZE_MAX}")
    return _Parser(text).parse()


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self._lexer = Lexer(text)
        # Read when they are needed only: what Java does not read must not be an error of ours.
        self._ahead: list[Token] = []
        self._expected: set[Kind] = set()
        self._nesting = 0
        # Java scans all of the operand of a plus for its syntax before it checks anything in it.
        self._plus: Token | None = None
        self._postponed: FilterError | None = None

    def parse(self) -> Parsed:
        root = self._condition(self._expression())
        if any(depth > TREE_DEPTH_MAX for _, depth in all_nodes(root)):
            raise FilterError(f"The expression has more than {TREE_DEPTH_MAX} levels")
        ignored = self.text[self._peek().start :]
        if ignored.startswith("--"):
            ignored = ""  # a comment all the same; Java merely misses the end of its line
        return Parsed(root, ignored)

    # -- tokens -------------------------------------------------------------------------------------------

    def _next(self) -> Token:
        """Consume the token; what was expected in its place is forgotten."""
        token = self._peek()
        del self._ahead[0]
        self._expected.clear()
        return token

    def _peek(self, behind: int = 0) -> Token:
        """The token that is to be consumed, or the one behind it."""
        while len(self._ahead) <= behind:
            self._ahead.append(self._lexer.next())
        return self._ahead[behind]

    def _sees(self, kinds: Iterable[Kind]) -> bool:
        """Whether the token is one of these; they are what the message names if nothing goes on from here."""
        if self._peek().kind in kinds:
            return True
        self._expected.update(kinds)
        return False

    def _take(self, kind: Kind) -> Token:
        if self._peek().kind is not kind:
            self._fail(sorted({*self._expected, kind}))
        return self._next()

    def _fail(self, expected: Iterable[Kind]) -> NoReturn:
        token = self._peek()
        if self._plus is not None:
            token, expected = self._plus, _OPERAND
        raise _encountered(self.text, token, [image(kind) for kind in expected])

    def _refuse(self, error: FilterError) -> None:
        """The syntax is right, but Java does not build such an expression."""
        if self._plus is None:
            raise error
        self._postponed = self._postponed or error

    # -- grammar ------------------------------------------------------------------------------------------

    def _expression(self) -> Node:
        first = self._conjunction()
        terms: list[Node] = []
        while self._sees((Kind.OR,)):
            self._next()
            right = self._conjunction()
            if not terms:
                terms.append(self._condition(first))
            terms.append(self._condition(right))
        return AnyOf(tuple(terms)) if terms else first

    def _conjunction(self) -> Node:
        first = self._equality()
        terms: list[Node] = []
        while self._sees((Kind.AND,)):
            self._next()
            right = self._equality()
            if not terms:
                terms.append(self._condition(first))
            terms.append(self._condition(right))
        return AllOf(tuple(terms)) if terms else first

    def _equality(self) -> Node:
        left = self._comparison()
        while self._sees(_BEHIND_EQUALITY):
            kind = self._next().kind
            if kind is Kind.IS:
                negated = self._sees((Kind.NOT,))
                if negated:
                    self._next()
                self._take(Kind.NULL)
                left = IsNull(left)
            else:
                negated = kind is Kind.NOT_EQUAL
                left = self._equal(left, self._comparison())
            if negated:
                left = Not(left)
        return left

    def _comparison(self) -> Node:
        left = self._unary()
        while self._sees(_BEHIND_COMPARISON):
            negated = self._peek().kind is Kind.NOT
            if negated:
                if self._peek(1).kind not in _NEGATABLE:
                    self._fail(sorted(_BEHIND_NOT))
                self._next()
            kind = self._next().kind
            if kind in _ORDERINGS:
                left = self._compare(_ORDERINGS[kind], left, self._unary())
            elif kind in _SEARCHES:
                left = TextSearch(_SEARCHES[kind], left, self._string(), negated)
            elif kind is Kind.IN:
                left = self._in_list(left, negated)
            else:
                low = self._unary()
                self._take(Kind.AND)
                left = self._between(left, low, self._unary(), negated)
        return left

    def _unary(self) -> Node:
        signs: list[Kind] = []
        outermost = False
        while self._peek().kind in (Kind.PLUS, Kind.MINUS, Kind.NOT):
            if self._peek().kind is Kind.PLUS and self._plus is None:
                self._plus, outermost = self._peek(), True
            kind = self._next().kind
            if kind is not Kind.PLUS:
                signs.append(kind)
        node = self._primary()
        if outermost:
            self._plus = None
            if self._postponed is not None:
                raise self._postponed
        for sign in reversed(signs):
            # A negative literal is no literal for Java, which refuses them in some places: it stays `Negate`.
            node = Not(self._condition(node)) if sign is Kind.NOT else Negate(node)
        return node

    def _primary(self) -> Node:
        token = self._peek()
        if token.kind is Kind.NAME:
            return Property(self._next().text)
        if token.kind is Kind.STRING:
            return Literal(self._string())
        if token.kind is Kind.INTEGER:
            return Literal(self._integer(self._next().text))
        if token.kind is Kind.FLOAT:
            return Literal(self._float(self._next().text))
        if token.kind in _CONSTANTS:
            return _CONSTANTS[self._next().kind]
        if token.kind is not Kind.OPEN:
            self._fail((*_OPERAND, Kind.PLUS))
        if self._nesting == NESTING_MAX:
            line, column = position_of(self.text, token.start)
            where = f"at line {line}, column {column}"
            raise FilterError(
                f"More than {NESTING_MAX} parentheses within each other {where}", line=line, column=column
            )
        self._nesting += 1
        self._next()
        node = self._expression()
        self._take(Kind.CLOSE)
        self._nesting -= 1
        return node

    def _string(self) -> str:
        return self._take(Kind.STRING).text[1:-1].replace("''", "'")

    def _integer(self, text: str) -> int:
        digits = text.rstrip("lL")
        if len(digits) > 19 or int(digits) > INT64_MAX:
            self._refuse(FilterError(f'For input string: "{digits}"', java_class=NUMBER_ERROR))
            return 0  # the error is only postponed
        return int(digits)

    def _float(self, text: str) -> float:
        value = float(text)
        if value == float("inf"):
            self._refuse(FilterError(f"{text} is greater than 1.7976931348623157E308"))
        elif value == 0:
            self._refuse(FilterError(f"{text} is less than 4.9E-324"))
        else:
            return value
        return 1.0  # the error is only postponed; until then, any finite number will do

    # -- checks of operands -------------------------------------------------------------------------------

    def _condition(self, node: Node) -> Node:
        if isinstance(node, Property):
            return Cast(node)
        if not is_condition(node):
            reason = f"Expression will not result in a boolean value: {java_text(node)}"
            self._refuse(FilterError(reason, java_class=PARSE_EXCEPTION))
        return node

    def _equal(self, left: Node, right: Node) -> Node:
        for node in (left, right):
            if node == Literal(None):
                self._refuse(FilterError("'NULL' cannot be compared."))
        literals = isinstance(left, Literal) and isinstance(right, Literal)
        if literals and is_condition(left) and not is_condition(right):
            reason = f"'{java_text(left)}' cannot be compared with '{java_text(right)}'"
            self._refuse(FilterError(reason))
        return Equal(left, right)

    def _compare(self, ordering: Ordering, left: Node, right: Node) -> Node:
        self._check_ordered(left)
        self._check_ordered(right)
        return Compare(ordering, left, right)

    def _check_ordered(self, node: Node) -> None:
        if is_condition(node) or (isinstance(node, Literal) and isinstance(node.value, str)):
            self._refuse(FilterError(f"Value '{java_text(node)}' cannot be compared."))

    def _between(self, value: Node, low: Node, high: Node, negated: bool) -> Node:
        if not negated and isinstance(low, Literal) and isinstance(high, Literal):
            self._check_range(low, high)
        for node in (value, low, high):
            self._check_ordered(node)
        return Between(value, low, high, negated)

    def _check_range(self, low: Literal, high: Literal) -> None:
        """Java compares the limits before it asks whether they can be compared at all."""
        if low.value is None or high.value is None:
            self._refuse(FilterError("Illegal values of between, values can not be null!"))
            return
        try:
            empty = order_of(high.value, low.value) < 0
        except NotANumber as error:
            self._refuse(FilterError(f"{NUMBER_ERROR}: {error.java_reason}"))
            return
        except CannotEvaluate:
            return  # one is a text or a condition, which `_check_ordered` refuses
        if empty:
            left, right = _shown(low.value), _shown(high.value)
            reason = f"left value({left}) must less than or equal to right value({right})"
            self._refuse(FilterError(f"Illegal values of between, {reason}"))

    def _in_list(self, left: Node, negated: bool) -> Node:
        self._take(Kind.OPEN)
        values = [self._string()]
        while self._sees((Kind.COMMA,)):
            self._next()
            values.append(self._string())
            if len(values) > IN_VALUES_MAX:
                raise FilterError(f"More than {IN_VALUES_MAX} values in a list of IN")
        self._take(Kind.CLOSE)
        if not isinstance(left, Property):
            self._refuse(FilterError(f"Expected a property for In expression, got: {java_text(left)}"))
            return left
        return InList(left, tuple(values), negated)


def _shown(value: Value) -> str:
    """`toString` of a value, without the quotes of an expression."""
    if isinstance(value, bool):
        return str(value).lower()
    return double_text(value) if isinstance(value, float) else str(value)


def _encountered(text: str, token: Token, expected: list[str]) -> FilterError:
    if token.kind is Kind.END:
        line, column = position_of(text, -1)
        found = "<EOF>"
    else:
        line, column = position_of(text, token.start)
        found = f' {image(token.kind)} "{escaped(token.text)} "'
    lines = [f'Encountered "{found}" at line {line}, column {column}.']
    lines.append("Was expecting:" if len(expected) == 1 else "Was expecting one of:")
    lines += [f"    {one} ..." for one in expected]
    reason = "\n".join([*lines, "    "])
    return FilterError(reason, line=line, column=column, java_class=PARSE_EXCEPTION)
