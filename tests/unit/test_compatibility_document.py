"""The tables of requests in the document about compatibility are those of the servers."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_tables_of_requests_are_up_to_date() -> None:
    """If this fails: `make docs`, and commit the result."""
    text = (DOCS / "compatibility.md").read_text(encoding="utf-8")

    renewed: str = runpy.run_path(str(DOCS / "make_compatibility.py"))["renewed"](text)

    assert text == renewed
