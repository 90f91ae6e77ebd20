"""What Java 5.5.0 answers for single expressions; `test_java_results` has some hundreds of random ones."""

from __future__ import annotations

import inspect

import pytest

from brokerset_broker.filters import EvaluationFailed, FilterError, compile_filter
from brokerset_broker.filters.errors import REASON_SIZE_MAX
from brokerset_broker.filters.expression_parser import EXPRESSION_SIZE_MAX, IN_VALUES_MAX, NESTING_MAX
from brokerset_broker.filters.tree import TREE_DEPTH_MAX
from brokerset_formats.properties import encode_properties

MESSAGE = encode_properties({"a": "5", "b": "abc", "t": "TRUE", "d": "3.5", "big": "9999999999"})
ERROR = "an error"

VALUES: list[tuple[str, bool | str | None]] = [
    ("a = 5", True),
    ("a = '5'", True),
    ("5 = a", True),
    ("a = 5.0", True),
    ("5 < a", False),
    ("4 < a", True),
    ("6 <= a", False),
    ("6 > a", True),
    ("5 >= a", True),
    ("4 >= a", False),
    ("a <> 5", False),
    ("a <> 6", True),
    ("x = 5", None),
    ("x <> 5", None),
    ("x NOT IN ('x')", None),
    ("x IS NULL", True),
    ("a IS NULL", False),
    ("a IS NOT NULL", True),
    ("b > 3", ERROR),
    ("big > 1", ERROR),
    ("d > 3", ERROR),
    ("d > 3.4", True),
    ("big = 9999999999", True),
    ("a > d", True),
    ("b > d", ERROR),
    ("TRUE", True),
    ("t = TRUE", True),
    ("1 = 1", True),
    ("a = 5 = TRUE", True),
    ("t", False),
    ("a = TRUE", False),
    ("1 = TRUE", False),
    ("TRUE = a", ERROR),
    ("b CONTAINS ''", False),
    ("b CONTAINS 'b'", True),
    ("b STARTSWITH 'a'", True),
    ("x CONTAINS 'b'", False),
    ("x NOT CONTAINS 'b'", False),
    # A missing property is null on the left, but false on the right.
    ("5 = x", False),
    ("5 <> x", True),
    ("x = y", True),
    ("TRUE = x", False),
    # Every text but "true" is false.
    ("b = FALSE", True),
    # NOT binds tighter than a comparison, and a property is no condition that could be true.
    ("NOT a = 5", False),
    ("NOT (a = 6)", True),
    ("NOT t", True),
    # What decides ends the evaluation, from the left.
    ("a = 5 OR b > 3", True),
    ("a = 6 AND b > 3", False),
    ("b > 3 OR a = 5", ERROR),
    ("x = 1 OR a = 6", None),
    ("x = 1 OR a = 5", True),
    ("x = 1 AND a = 5", None),
    ("x = 1 AND a = 6", False),
    ("NULL AND a = 5", None),
    ("a BETWEEN 5 AND 6", True),
    ("a BETWEEN -6 AND -5", False),
    ("a NOT BETWEEN 6 AND 1", True),
    ("d BETWEEN 3 AND 4", ERROR),
    ("d BETWEEN 3.0 AND 4", ERROR),
    ("d BETWEEN 3.0 AND 4.0", True),
    ("x BETWEEN 1 AND 2", None),
    ("b IN ('x', 'abc')", True),
    ("b NOT IN ('x', 'abc')", False),
    ("b ENDSWITH 'bc'", True),
    ("b NOT ENDSWITH 'bc'", False),
    ("5 CONTAINS '5'", False),
    # What is no number has no negative, and a Long is no Integer although its value would fit.
    ("-a = -5", None),
    ("- -'5' = 5", None),
    ("a > -2147483648", True),
    ("big > -2147483648", True),
    ("big > -2147483647", ERROR),
    ("a = 5L", True),
]


@pytest.mark.parametrize(("expression", "expected"), VALUES)
def test_an_expression_has_the_value_that_java_gives_it(expression: str, expected: bool | str | None) -> None:
    """Null is not false, an error is neither, and only true matches."""
    compiled = compile_filter(expression)

    result = compiled.evaluate(MESSAGE)

    assert (ERROR if isinstance(result, EvaluationFailed) else result) == expected
    assert compiled.matches(MESSAGE) is (expected is True)
    assert compiled.ignored == ""


def test_a_failed_evaluation_says_which_text_was_no_number() -> None:
    """The log must name the value: nobody can guess it from the expression."""
    result = compile_filter("b > 3").evaluate(MESSAGE)

    assert result == EvaluationFailed("the text 'abc' is no integer of 32 bits")


@pytest.mark.parametrize(
    ("expression", "ignored"),
    [
        ("a = 5 garbage !", "garbage !"),
        ("a LIKE 'a%'", "LIKE 'a%'"),
        ("a = 5 + 1 > 5", "+ 1 > 5"),
        ("a = 010", "10"),
        ("a = 5)", ")"),
        ("a = 5 /* all */ -- of it\n", ""),
        ("a = 5 -- a comment without its end", ""),
    ],
)
def test_what_stands_behind_a_complete_expression_is_returned(expression: str, ignored: str) -> None:
    """Java ignores it silently; whoever wrote it should read a warning."""
    assert compile_filter(expression).ignored == ignored


PARSE = "org.apache.rocketmq.filter.parser.ParseException: "
LEXICAL = "org.apache.rocketmq.filter.parser.TokenMgrError: Lexical error at line 1, column "
ONE_STRING = "\nWas expecting:\n    <STRING_LITERAL> ...\n    "
RUNTIME = "java.lang.RuntimeException: "


@pytest.mark.parametrize(
    ("expression", "remark"),
    [
        ("a > '4'", RUNTIME + "Value ''4'' cannot be compared."),
        (
            "a BETWEEN 6 AND 1",
            RUNTIME + "Illegal values of between, left value(6) must less than or equal to right value(1)",
        ),
        ("a BETWEEN NULL AND 1", RUNTIME + "Illegal values of between, values can not be null!"),
        ("a = NULL", RUNTIME + "'NULL' cannot be compared."),
        ("a = 0.0", RUNTIME + "0.0 is less than 4.9E-324"),
        ("a = 1e400", RUNTIME + "1e400 is greater than 1.7976931348623157E308"),
        (
            "a = 9223372036854775808",
            'java.lang.NumberFormatException: For input string: "9223372036854775808"',
        ),
        ("TRUE = 1", RUNTIME + "'TRUE' cannot be compared with '1'"),
        ("5 IN ('x')", RUNTIME + "Expected a property for In expression, got: 5"),
        ("a > 3 > 2", RUNTIME + "Value '(a > 3)' cannot be compared."),
        # Behind a plus, Java looks for errors of syntax first, and blames the plus for them.
        ("+(a > '4')", RUNTIME + "Value ''4'' cannot be compared."),
        ("+(1e400 IN ('x'))", RUNTIME + "1e400 is greater than 1.7976931348623157E308"),
        ("a AND -b", PARSE + "Expression will not result in a boolean value: (- b)"),
        ("a != 5", LEXICAL + '3.  Encountered: "!" (33), after : ""'),
        ("a = 'x", LEXICAL + '7.  Encountered: <EOF> after : "\\\'x"'),
        ("a .b c", LEXICAL + '4.  Encountered: "b" (98), after : "."'),
        ("a IN ()", PARSE + 'Encountered " ")" ") "" at line 1, column 7.' + ONE_STRING),
        (
            "a IN (1)",
            PARSE + 'Encountered " <DECIMAL_LITERAL> "1 "" at line 1, column 7.' + ONE_STRING,
        ),
    ],
)
def test_an_error_reads_as_in_java(expression: str, remark: str) -> None:
    """Clients show the remark of CHECK_CLIENT_CONFIG, and people search the web for it."""
    with pytest.raises(FilterError) as raised:
        compile_filter(expression)

    assert raised.value.remark == remark


def test_an_error_of_syntax_behind_a_plus_is_at_the_plus() -> None:
    """Java scans the whole operand before it takes the sign, and then expects anything but a plus."""
    with pytest.raises(FilterError) as raised:
        compile_filter("a = +(b > '4' AND )")

    assert raised.value.remark.startswith(PARSE + 'Encountered " "+" "+ "" at line 1, column 5.')
    assert '"+" ...' not in raised.value.remark


@pytest.mark.parametrize("expression", ["a =", "a =  ", "a = \n"])
def test_an_end_that_comes_too_early_names_all_that_could_follow(expression: str) -> None:
    """The list is Java's, in its order; the place is that of the last character."""
    with pytest.raises(FilterError) as raised:
        compile_filter(expression)

    first, second, *expected = raised.value.remark.split("\n")
    assert first == f'{PARSE}Encountered "<EOF>" at line 1, column {len(expression)}.'
    assert second == "Was expecting one of:"
    assert [line.strip() for line in expected] == [
        '"NOT" ...', '"TRUE" ...', '"FALSE" ...', '"NULL" ...', "<DECIMAL_LITERAL> ...",
        "<FLOATING_POINT_LITERAL> ...", "<STRING_LITERAL> ...", "<ID> ...",
        '"(" ...', '"-" ...', '"+" ...', "",
    ]  # fmt: skip
    assert (raised.value.line, raised.value.column) == (1, len(expression))


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 30_000,
        "(" * (NESTING_MAX + 1) + "a" + ")" * (NESTING_MAX + 1),
        "NOT " * 8_000 + "a",
        "-" * 30_000 + "5 = a",
        "+" * 30_000,
        "a" + " IS NULL" * 4_000,
        "a = TRUE" + " = TRUE" * 4_000,
        "a CONTAINS 'x'" + " NOT CONTAINS 'x'" * 1_500,
        "a > 5" + " > 5" * 6_000,
        "a IN (" + "'x'," * IN_VALUES_MAX + "'x')",
        "a = 5 OR " * 3_700 + "a = 5",
        "'" * 30_001,
        "/*" * 15_000,
        "",
        " ",
    ],
)
def test_no_input_exhausts_the_stack(expression: str) -> None:
    """Each limit is an error with a reason of bounded length."""
    assert len(expression) <= EXPRESSION_SIZE_MAX or expression.startswith("a = 5 OR")

    with pytest.raises(FilterError) as raised:
        compile_filter(expression)

    assert 0 < len(raised.value.reason) <= REASON_SIZE_MAX + 3


def test_what_is_as_large_as_allowed_is_compiled_and_evaluated() -> None:
    """Long chains of AND and OR are no deep trees; parentheses, signs and lists go up to their limits."""
    chain = compile_filter(" OR ".join(f"p{number} = 'v'" for number in range(2_000)) + " OR a = 5")
    nested = compile_filter("(" * NESTING_MAX + "a = 5" + ")" * NESTING_MAX)
    deep = compile_filter("NOT " * (TREE_DEPTH_MAX - 3) + "(a = 6)")
    both = compile_filter("(NOT " * (NESTING_MAX - 1) + "(a = 6)" + ")" * (NESTING_MAX - 1))
    values = compile_filter("a IN (" + ",".join(f"'{number}'" for number in range(IN_VALUES_MAX)) + ")")

    results = [one.evaluate(MESSAGE) for one in (chain, nested, deep, both, values)]

    assert results == [True, True, True, True, True]
    assert len(chain.names) == 2_001


DEEPEST = [
    "(" * NESTING_MAX + "a = 5" + ")" * NESTING_MAX,
    "(NOT " * (NESTING_MAX - 1) + "(a = 5)" + ")" * (NESTING_MAX - 1),
    "+(" * NESTING_MAX + "a = 5" + ")" * NESTING_MAX,
    "(a = 5 AND " * NESTING_MAX + "a = 5" + ")" * NESTING_MAX,
    "(" * (NESTING_MAX - 1) + "a = 5" + " = TRUE)" * (NESTING_MAX - 1),
    "TRUE = (" * (NESTING_MAX - 1) + "a = 5" + ")" * (NESTING_MAX - 1),
    "a = 5" + " = TRUE" * (TREE_DEPTH_MAX - 2),
    "a" + " CONTAINS 'x'" * (TREE_DEPTH_MAX - 1),
]


def _deeper(frames: int, expression: str) -> object:
    return _deeper(frames - 1, expression) if frames else compile_filter(expression).evaluate(MESSAGE)


@pytest.mark.parametrize("expression", DEEPEST, ids=[text[:16] for text in DEEPEST])
def test_the_deepest_expressions_need_less_than_half_of_the_stack(expression: str) -> None:
    """A broker compiles within a task, and evaluates below a pull: some of the 1,000 frames are taken."""
    used = len(inspect.stack(0))

    assert _deeper(500 - used, expression) in (True, False)


@pytest.mark.parametrize(
    "value", ["-(x BETWEEN 1 AND 2)", "-(x NOT BETWEEN 1 AND 2)", "-(a CONTAINS 'x')", "-(a = 5 OR a = 6)"]
)
def test_a_value_within_a_value_takes_no_time_that_doubles(value: str) -> None:
    """Java has the value of BETWEEN twice, in its tree and in messages: 2^60 of the innermost one here."""
    for _ in range(NESTING_MAX - 4):
        value = f"-({value} BETWEEN 1 AND 2)"

    compiled = compile_filter(f"{value} IS NULL")
    with pytest.raises(FilterError) as raised:
        compile_filter(f"{value} > '4' OR {value} AND 5 = 5")
    with pytest.raises(FilterError) as not_a_condition:
        compile_filter(value)

    assert compiled.evaluate(MESSAGE) is True
    assert raised.value.reason == "Value ''4'' cannot be compared."
    assert len(not_a_condition.value.reason) <= REASON_SIZE_MAX + 3


def test_properties_are_read_as_everywhere_else() -> None:
    """The last value counts, empty ones do not, and what resembles a name within a value is none."""
    compiled = compile_filter("a = '1'")

    assert compiled.matches(b"a\x012\x02a\x011\x02")
    assert compiled.matches(b"a\x011\x02a\x01\x02")
    assert compiled.matches(b"b\x01a\x02a\x011")
    assert compiled.evaluate(b"aa\x011\x02") is None
    assert compiled.evaluate(b"b\x01a\x011\x02") is None
    assert compiled.evaluate(b"A\x011\x02") is None
    assert compiled.evaluate(b"a\x01\x02") is None
    assert compiled.evaluate(b"") is None


def test_damaged_text_is_what_it_is_decoded_to() -> None:
    """Java sees U+FFFD in the place of bytes that are no UTF-8, and compares that."""
    damaged = b"a\x01x\xff\x02"

    assert compile_filter("a = 'x\ufffd'").matches(damaged)
    assert compile_filter("a IN ('x\ufffd')").matches(damaged)
    assert compile_filter("a ENDSWITH '\ufffd'").matches(damaged)
    assert compile_filter("a STARTSWITH 'x'").matches(damaged)
    assert not compile_filter("a = 'x'").matches(damaged)
    assert compile_filter("a <> '\ud800'").matches(damaged)


def test_names_are_those_that_the_expression_asks_for() -> None:
    """Names are case-sensitive, keywords are not."""
    compiled = compile_filter("a > 5 aNd (B in ('x') Or $c_1 iS nOt nUlL) or a")

    assert compiled.names == {"a", "B", "$c_1"}
