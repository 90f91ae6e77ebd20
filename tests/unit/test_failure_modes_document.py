"""The tests that the document about failures names exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_every_named_test_exists() -> None:
    text = (TESTS.parent / "docs" / "failure-modes.md").read_text()
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", text)
    assert named

    missing = [f"{file}::{name}" for file, name in named if name not in _functions(TESTS / file)]

    assert missing == []


def _functions(path: Path) -> set[str]:
    if not path.exists():
        return set()
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}
