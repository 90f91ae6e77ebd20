"""Names of modules, classes, functions and variables are the field's words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
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

CLEANED: Final = frozenset({
    "anew", "beside", "calm", "crew", "door", "doors", "figure", "figures", "goodbye", "look", "looked",
    "looking", "looks", "parting", "told", "unable",
})  # fmt: skip
"""No name in `NAMED` has one of these as a part; `look_up`, `look_ahead` and `look_back` may be."""

NAMED: Final = ("libs", "broker", "controller", "operator", "monitoring", "generate")
NOT_YET: Final = ("libs/brokerset_formats/",)
"""Of this folder only modules' names are checked, and so it is with `spark`."""

PARTS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def test_no_module_is_named_by_a_private_word() -> None:
    """Whoever searches for a term of the field finds the module."""
    modules = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]

    private = [str(file.relative_to(ROOT)) for file in modules if PRIVATE & set(file.stem.split("_"))]

    assert len(modules) > 600
    assert private == []


def test_no_name_has_a_private_word_in_it() -> None:
    """A word that was replaced does not come back: whoever searches for the term finds all of it."""
    files = [file for folder in NAMED for file in (ROOT / folder).rglob("*.py")]
    checked = {str(file.relative_to(ROOT)): file for file in files}
    checked = {path: file for path, file in checked.items() if not path.startswith(NOT_YET)}

    private = {
        f"{path}: {name}"
        for path, file in checked.items()
        for name in _defined(ast.parse(file.read_text()))
        if CLEANED & _words(name)
    }

    assert len(checked) > 500
    assert private == set()


def _words(name: str) -> set[str]:
    plain = re.sub(r"look(ed)?_?(up|ahead|back)", "", name, flags=re.IGNORECASE)
    return {part.lower() for part in PARTS.findall(plain)}


def _defined(tree: ast.Module) -> Iterator[str]:
    """Names that a module gives: to classes, functions, parameters, variables and attributes."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case (
                ast.arg(arg=name)
                | ast.Name(id=name, ctx=ast.Store())
                | ast.Attribute(attr=name, ctx=ast.Store())
            ):
                yield name
