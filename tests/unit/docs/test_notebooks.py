"""Notebooks in git are what people wrote: no results of somebody's run, and nothing of somebody's machine."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
NOTEBOOKS = sorted((ROOT / "examples").rglob("*.ipynb"))
MACHINE_PATHS = re.compile(r"(?<![\w.:/])(?:/(?:home|root|tmp|work|Users|mnt|opt|var)\b|[A-Z]:\\)")


def cells(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return found


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_has_no_outputs_and_names_no_machine(path: Path) -> None:
    """Outputs, counts of executions and paths of the author's machine are left out."""
    for cell in cells(path):
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
        assert set(cell["metadata"]) <= {"tags"}
        assert not MACHINE_PATHS.search("".join(cell["source"])), "".join(cell["source"])


def test_the_lake_notebook_is_found_where_newcomers_read() -> None:
    """README and docs/spark.md link it, with the command that opens it."""
    assert ROOT / "examples" / "lake.ipynb" in NOTEBOOKS
    for name in ("README.md", "docs/spark.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert "examples/lake.ipynb" in text, name
        assert "make notebook" in text, name
