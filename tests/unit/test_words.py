"""Names of modules are the field's words."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
FOLDERS: Final = ("libs", "broker", "controller", "operator", "spark", "monitoring", "generate")

PRIVATE: Final = frozenset({
    "anew", "asking", "beside", "calm", "crew", "door", "figures", "goodbye", "guest", "handover",
    "held", "holding", "holds", "look", "looking", "looks", "mark", "marks", "parting", "question",
    "questions", "round", "rounds", "telling", "told", "unable", "unserved", "utils",
})  # fmt: skip
"""CONTRIBUTING.md says what to use instead."""


def test_no_module_is_named_by_a_private_word() -> None:
    """Whoever searches for a term of the field finds the module."""
    modules = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]

    private = [str(file.relative_to(ROOT)) for file in modules if PRIVATE & set(file.stem.split("_"))]

    assert len(modules) > 600
    assert private == []
