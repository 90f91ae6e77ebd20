"""SQL92 filters against an evaluator over trees that shares nothing with the closures, and against noise."""

from __future__ import annotations

from typing import Any

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from brokerset_broker.filters import EvaluationFailed, FilterError, compile_filter
from brokerset_broker.filters.sql_filter import LONG_PROPERTIES
from brokerset_formats.properties import decode_properties, encode_properties, find_property

# A tree is a tuple: what it is, then its parts. Values are pairs of Java's class and the value, or None.
Tree = tuple[Any, ...]

NUMBERS: dict[str, tuple[int | None, int | None, float | None]] = {
    "5": (5, 5, 5.0),
    "+7": (7, 7, 7.0),
    "-3": (-3, -3, -3.0),
    " 4 ": (None, None, 4.0),
    "5.0": (None, None, 5.0),
    "2.5": (None, None, 2.5),
    "4d": (None, None, 4.0),
    "1_0": (None, None, None),
    "abc": (None, None, None),
    "true": (None, None, None),
    "TrUe": (None, None, None),
    "2147483648": (None, 2147483648, 2147483648.0),
    "99999999999999999999": (None, None, 1e20),
    "0x1p2": (None, None, 4.0),
    "nan": (None, None, None),
    "ä'组": (None, None, None),
}
"""Each text as `Integer`, `Long` and `Double`, where it is one."""

NAMES = st.sampled_from(["a", "b", "cC", "$d_1", "never"])
TEXTS = st.sampled_from([*NUMBERS, ""])
CONSTANT_VALUES = [
    ("int", 5, "5"), ("int", 4, "4"), ("int", 0, "0"), ("int", 2147483647, "2147483647"),
    ("long", 2147483648, "2147483648"), ("long", 9223372036854775807, "9223372036854775807L"),
    ("double", 5.0, "5."), ("double", 2.5, "2.5"), ("double", 4.0, "40e-1"), ("double", 1e20, "1E+20"),
]  # fmt: skip
CONSTANTS = st.sampled_from(CONSTANT_VALUES)


class Failure(Exception):
    """Java would raise an exception."""


# -- trees ------------------------------------------------------------------------------------------------

PROPERTY = NAMES.map(lambda name: ("property", name))
NUMBER = CONSTANTS.map(lambda constant: ("constant", *constant))
STRING = TEXTS.map(lambda text: ("constant", "str", text, "'" + text.replace("'", "''") + "'"))
SIGNED = (NUMBER | PROPERTY).map(lambda operand: ("-", operand))
NUMERIC = PROPERTY | NUMBER | SIGNED | SIGNED.map(lambda operand: ("-", operand))
LOGICAL = st.sampled_from([("constant", "bool", True, "TRUE"), ("constant", "bool", False, "FALSE")])
LEAF = LOGICAL | PROPERTY | st.just(("constant", "null", None, "NULL"))


@st.composite
def equalities(draw: st.DrawFn, any_value: st.SearchStrategy[Tree]) -> Tree:
    tree = (draw(st.sampled_from(["=", "<>"])), draw(any_value), draw(any_value))
    assume(_may_be_equal(tree))
    return tree


@st.composite
def ranges(draw: st.DrawFn) -> Tree:
    tree = ("BETWEEN", draw(st.booleans()), draw(NUMERIC), draw(NUMERIC), draw(NUMERIC))
    assume(_is_range(tree))
    return tree


def above(conditions: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    any_value = conditions | NUMERIC | STRING
    negated = st.booleans()
    return st.one_of(
        st.tuples(st.sampled_from(["AND", "OR"]), conditions, conditions),
        st.tuples(st.just("NOT"), conditions),
        equalities(any_value),
        st.tuples(st.sampled_from([">", ">=", "<", "<="]), NUMERIC, NUMERIC),
        ranges(),
        st.tuples(st.just("IN"), negated, NAMES, st.lists(TEXTS, min_size=1, max_size=7)),
        st.tuples(st.sampled_from(["CONTAINS", "STARTSWITH", "ENDSWITH"]), negated, any_value, TEXTS),
        st.tuples(st.just("IS NULL"), negated, any_value),
    )


def _may_be_equal(tree: Tree) -> bool:
    """Java refuses NULL, and a condition on the left of another constant."""
    _, left, right = tree
    if "null" in (left[1], right[1]):
        return False
    return not (left[0] == right[0] == "constant" and left[1] == "bool" and right[1] != "bool")


def _is_range(tree: Tree) -> bool:
    """Java refuses constants in the wrong order, unless it does not see them because of a sign."""
    _, negated, _, low, high = tree
    return bool(negated or low[0] != "constant" or high[0] != "constant" or low[2] <= high[2])


CONDITIONS = above(st.recursive(LEAF, above, max_leaves=12))


# -- printing ---------------------------------------------------------------------------------------------

LEVELS = {"OR": 0, "AND": 1, "=": 2, "<>": 2, "IS NULL": 2, "-": 4, "NOT": 4, "property": 5, "constant": 5}
"""How tightly an expression binds; everything else is 3."""


def printed(tree: Tree, level: int = 0) -> str:
    """With parentheses only where the grammar needs them: so precedence is tested, too."""
    own = LEVELS.get(tree[0], 3)
    return _plain(tree, own) if own >= level else f"({_plain(tree, own)})"


def _plain(tree: Tree, own: int) -> str:
    match tree:
        case ("property", name):
            return str(name)
        case ("constant", _, _, text):
            return str(text)
        case ("-" | "NOT" as sign, operand):
            return f"{sign} {printed(operand, 4)}"
        case ("BETWEEN", negated, value, low, high):
            limits = f"{printed(low, 4)} AND {printed(high, 4)}"
            return f"{printed(value, 3)} {_not(negated)}BETWEEN {limits}"
        case ("IN", negated, name, texts):
            quoted = ", ".join("'" + text.replace("'", "''") + "'" for text in texts)
            return f"{name} {_not(negated)}IN ({quoted})"
        case ("IS NULL", negated, operand):
            return f"{printed(operand, 2)} IS {_not(negated)}NULL"
        case (("CONTAINS" | "STARTSWITH" | "ENDSWITH") as search, negated, operand, text):
            quote = "'" + text.replace("'", "''") + "'"
            return f"{printed(operand, 3)} {_not(negated)}{search} {quote}"
        case (sign, left, right):
            return f"{printed(left, own)} {sign} {printed(right, own + 1)}"
    raise AssertionError(tree)


def _not(negated: bool) -> str:
    return "NOT " if negated else ""


# -- evaluating -------------------------------------------------------------------------------------------


def value_of(tree: Tree, properties: dict[str, str]) -> tuple[str, Any] | None:
    match tree:
        case ("property", name):
            return ("str", properties[name]) if name in properties else None
        case ("constant", kind, value, _):
            return None if value is None else (kind, value)
        case ("-", operand):
            found = value_of(operand, properties)
            return (found[0], -found[1]) if found and found[0] in ("int", "long", "double") else None
    truth = truth_of(tree, properties)
    return None if truth is None else ("bool", truth)


def truth_of(tree: Tree, properties: dict[str, str]) -> bool | None:
    match tree:
        case ("property", name):
            return False if name in properties else None
        case ("constant", _, value, _):
            return value if isinstance(value, bool) else None
        case ("NOT", operand):
            return inverse(truth_of(operand, properties))
        case ("AND", left, right):
            return conjunction(left, right, properties)
        case ("OR", left, right):
            return inverse(conjunction(("NOT", left), ("NOT", right), properties))
        case ("=", left, right):
            return equality(value_of(left, properties), value_of(right, properties))
        case ("<>", left, right):
            return inverse(truth_of(("=", left, right), properties))
        case ("IS NULL", negated, operand):
            return (value_of(operand, properties) is None) is not negated
        case ("BETWEEN", False, value, low, high):
            return conjunction((">=", value, low), ("<=", value, high), properties)
        case ("BETWEEN", True, value, low, high):
            return truth_of(("OR", ("<", value, low), (">", value, high)), properties)
        case ("IN", negated, name, texts):
            return (properties[name] in texts) is not negated if name in properties else None
        case ("CONTAINS" | "STARTSWITH" | "ENDSWITH" as search, negated, operand, text):
            found = value_of(operand, properties) if text else None
            if found is None or found[0] != "str":
                return False
            is_there = {
                "CONTAINS": found[1].find(text) >= 0,
                "STARTSWITH": found[1][: len(text)] == text,
                "ENDSWITH": found[1][-len(text) :] == text,
            }[search]
            return bool(is_there) is not negated
    sign, left, right = tree
    one, other = value_of(left, properties), value_of(right, properties)
    if one is None or other is None:
        return None
    if one[0] == other[0] == "str":
        one, other = converted(one[1], "double"), converted(other[1], "double")
    first, second = numbers(one, other)
    return {">": first > second, ">=": first >= second, "<": first < second, "<=": first <= second}[sign]


def inverse(truth: bool | None) -> bool | None:
    return None if truth is None else not truth


def conjunction(left: Tree, right: Tree, properties: dict[str, str]) -> bool | None:
    first = truth_of(left, properties)
    if first is False:
        return False
    second = truth_of(right, properties)
    if second is False:
        return False
    return None if None in (first, second) else True


def equality(left: tuple[str, Any] | None, right: tuple[str, Any] | None) -> bool | None:
    if left is None:
        return True if right is None else None
    if right is None:
        return False
    kinds = (left[0], right[0])
    if kinds == ("bool", "str"):
        raise Failure
    if kinds == ("str", "bool"):
        return bool((left[1].lower() == "true") is right[1])
    if kinds.count("bool") == 1:
        return False
    if kinds[0] == kinds[1]:
        return bool(left[1] == right[1])
    first, second = numbers(left, right)
    return first == second


def numbers(left: tuple[str, Any], right: tuple[str, Any]) -> tuple[float, float]:
    if left[0] == "str":
        left = converted(left[1], right[0])
    if right[0] == "str":
        right = converted(right[1], left[0])
    if "double" in (left[0], right[0]):
        return float(left[1]), float(right[1])
    return left[1], right[1]


def converted(text: str, kind: str) -> tuple[str, Any]:
    value = NUMBERS[text][("int", "long", "double").index(kind)] if text else None
    if value is None:
        raise Failure
    return kind, value


# -- tests ------------------------------------------------------------------------------------------------

PROPERTIES = st.dictionaries(
    st.sampled_from(["a", "b", "cC", "$d_1", "other"]), st.sampled_from(list(NUMBERS))
)


def outcome(tree: Tree, properties: dict[str, str]) -> bool | str | None:
    try:
        return truth_of(tree, properties)
    except Failure:
        return "failed"


def filtered(tree: Tree, properties: dict[str, str]) -> bool | str | None:
    compiled = compile_filter(printed(tree))
    assert compiled.ignored == ""
    result = compiled.evaluate(encode_properties(properties))
    return "failed" if isinstance(result, EvaluationFailed) else result


@settings(max_examples=600)
@given(tree=CONDITIONS, properties=PROPERTIES)
def test_an_expression_is_what_its_tree_is(tree: Tree, properties: dict[str, str]) -> None:
    """Lexer, precedence, null, conversions and errors agree with an evaluator that walks the tree."""
    expected = outcome(tree, properties)

    result = filtered(tree, properties)

    assert result == expected


def test_every_text_is_compared_with_every_constant() -> None:
    """On both sides of each sign, with and without a minus, and as limits: what random trees rarely have."""
    constants: list[Tree] = [("constant", *constant) for constant in CONSTANT_VALUES]
    constants += [("-", constant) for constant in constants]
    value: Tree = ("property", "a")
    trees: list[Tree] = [
        (sign, *sides)
        for constant in constants
        for sign in ("=", "<>", ">", ">=", "<", "<=")
        for sides in ((value, constant), (constant, value))
    ]
    trees += [("BETWEEN", negated, value, low, high)
              for negated in (False, True) for low in constants for high in constants
              if _is_range(("BETWEEN", negated, value, low, high))]  # fmt: skip
    different = [
        (printed(tree), text)
        for tree in trees
        for text in NUMBERS
        if filtered(tree, {"a": text}) != outcome(tree, {"a": text})
    ]

    assert len(trees) > 800
    assert different == []


PIECES = st.sampled_from([
    "NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "NULL", "IS", "CONTAINS", "(", ")", ",", "+", "-", "=", "<>",
    ">", "<=", "5", "1.5", "1e9", "'x'", "a", "b", "!", "*", "/", "'", '"', ".", "--", "/*", "*/", "\n", "\r",
    "\t", "é", "😀", "\ud800", "\x00", "99999999999999999999", "1e400", "0.0",
])  # fmt: skip


def with_pieces(text: str, pieces: list[tuple[int, str]]) -> str:
    """An expression with other tokens put between its own."""
    words = text.split(" ")
    for place, piece in pieces:
        words.insert(place % (len(words) + 1), piece)
    return " ".join(words)


NOISE = st.one_of(
    st.text(),
    st.builds(
        with_pieces, CONDITIONS.map(printed), st.lists(st.tuples(st.integers(0, 60), PIECES), max_size=4)
    ),
    st.binary().map(lambda raw: raw.decode("latin-1")),
    st.lists(PIECES, max_size=30).map(" ".join),
    st.lists(PIECES, max_size=30).map("".join),
)


@settings(max_examples=600)
@given(text=NOISE, raw=st.binary())
@example(text="+(1e400 IN ('x'))", raw=b"")
@example(text="a = '\ud800' OR b > 1", raw=b"a\x01\xed\xa0\x80\x02b\x01\xff\x02")
def test_noise_is_a_filter_or_a_filter_error(text: str, raw: bytes) -> None:
    """Whatever a client sends, and whatever a record has, nothing else comes out."""
    try:
        compiled = compile_filter(text)
    except FilterError:
        return
    assert isinstance(compiled.evaluate(raw), bool | EvaluationFailed | None)


@given(
    raw=st.lists(st.sampled_from([b"a", b"b", b"\x01", b"\x02", b"\xff", b"5", "组".encode()]), max_size=30),
    before=st.sampled_from([b"", b"long\x01%s\x02" % (b"v" * LONG_PROPERTIES)]),
)
def test_a_property_is_found_where_the_codec_finds_it(raw: list[bytes], before: bytes) -> None:
    """In damaged and in long properties, too: the filter has a search of its own, for speed."""
    properties = before + b"".join(raw)
    expected = decode_properties(properties).get("a")

    present = compile_filter("a IS NOT NULL").evaluate(properties)
    texts = ("a", "5", "组", "b5", "aa")
    same = [text for text in texts if compile_filter(f"a = '{text}'").matches(properties)]

    assert present is (expected is not None)
    assert same == ([expected] if expected in texts else [])
    assert (find_property(properties, b"a") is None) is (expected is None)
