"""The document of the settings says what the settings classes say."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs"


def test_the_settings_document_is_what_the_classes_make_of_it() -> None:
    """If this fails: `make docs`, and commit the result."""
    made: str = runpy.run_path(str(DOCS / "make_settings.py"))["document"]()

    assert (DOCS / "settings.md").read_text(encoding="utf-8") == made
