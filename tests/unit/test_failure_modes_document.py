"""The tests that the documents about failures and reported pain name exist."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

from brokerset_bench.faults import KINDS

TESTS = Path(__file__).parents[1]
DOCS = TESTS.parent / "docs"


@pytest.mark.parametrize("page", ["failure-modes.md", "user-pain.md"])
def test_every_named_test_exists(page: str) -> None:
    """Functions, and names like `test_x = Machine.TestCase`, as Hypothesis wants them."""
    text = (DOCS / page).read_text()
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", text)
    assert named

    missing = [f"{file}::{name}" for file, name in named if name not in _functions(TESTS / file)]

    assert missing == []


@pytest.mark.parametrize("page", ["failure-modes.md", "user-pain.md"])
def test_every_named_fault_scenario_and_program_exists(page: str) -> None:
    """Kinds of `bench failover`, files of the controllers' scenarios, and programs among the tests."""
    text = (DOCS / page).read_text()
    kinds = re.findall(r"`bench failover` (\w+)", text)
    scenarios = re.findall(r"`(\w+\.txt)`", text)
    programs = re.findall(r"`(?:python )?tests/([\w/]+\.py)", text)

    assert [kind for kind in kinds if kind not in KINDS] == []
    assert [name for name in scenarios if not (TESTS / "scenario" / "controller" / name).exists()] == []
    assert [name for name in programs if not (TESTS / name).exists()] == []


@functools.cache
def _functions(path: Path) -> set[str]:
    if not path.exists():
        return set()
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found
