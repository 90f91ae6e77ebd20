"""The table of statements in `docs/ordered.md`: it names tests that are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[3]
PAGE: Final = ROOT / "docs" / "ordered.md"
ROW: Final = re.compile(r"^\| (\d+) \| (.+?) \| (.+) \|$", re.MULTILINE)
TEST: Final = re.compile(r"`([^`]+)::(test_[^`]+)`")


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.syspath_prepend(str(ROOT))
    import generate.statements

    return generate.statements


def rows() -> dict[int, str]:
    """By number, what a row of the page names."""
    return {int(number): tests for number, _, tests in ROW.findall(PAGE.read_text())}


def test_every_statement_has_a_row_with_tests_or_says_that_it_has_none() -> None:
    found = rows()

    assert sorted(found) == list(range(1, 83))
    assert [
        number for number, tests in found.items() if not TEST.search(tests) and "none yet" not in tests
    ] == []


def test_every_test_that_is_named_is_there() -> None:
    named = {match for tests in rows().values() for match in TEST.findall(tests)}

    missing = []
    for path, name in sorted(named):
        file = ROOT / "tests" / path
        tree = ast.parse(file.read_text()) if file.exists() else ast.Module([], [])
        functions = {
            node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        if name not in functions:
            missing.append(f"{path}::{name}")

    assert len(named) > 40
    assert missing == []


def test_no_test_shows_a_statement_that_there_is_not(statements: object) -> None:
    """A number that was mistyped would show nothing."""
    shown = statements.tests_by_statement(ROOT / "tests")  # type: ignore[attr-defined]  # a module of another folder

    assert {number: tests for number, tests in shown.items() if not 1 <= number <= 82} == {}


def test_a_docstring_may_name_several_statements_on_any_of_its_lines(
    statements: object, tmp_path: Path
) -> None:
    (tmp_path / "test_x.py").write_text(
        'def test_a():\n    """It holds.\n\n    (statements 3,\n    4)\n    """\n'
        'def test_b():\n    """No (statement) here."""\n'
        'async def test_c():\n    """So (statement 4)."""\n'
    )

    shown = statements.tests_by_statement(tmp_path)  # type: ignore[attr-defined]  # as above

    assert shown == {3: ["test_x.py::test_a"], 4: ["test_x.py::test_a", "test_x.py::test_c"]}
