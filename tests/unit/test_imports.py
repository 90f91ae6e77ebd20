"""No circle of imports between files, anywhere in the product."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("libs", "broker", "controller", "operator", "spark")


def modules() -> dict[str, Path]:
    """Every module of the product, by its dotted name."""
    found = {}
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*.py")):
            parts = file.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join(parts).removesuffix(".__init__")] = file
    return found


def imported(name: str, source: str, known: Mapping[str, object]) -> set[str]:
    """The modules that one takes something from: also inside of functions, and for types alone."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in known else node.module)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return (found & known.keys()) - {name}


def circles(graph: Mapping[str, set[str]]) -> Iterator[list[str]]:
    """What is left when all that imports nothing of the rest is taken away, again and again, at both ends."""
    left = {name: set(targets) for name, targets in graph.items()}
    while True:
        imports = {name: targets & left.keys() for name, targets in left.items()}
        wanted = set[str]().union(*imports.values()) if imports else set()
        ends = {name for name, targets in imports.items() if not targets or name not in wanted}
        if not ends:
            break
        for name in ends:
            del left[name]
    if left:
        yield sorted(left)


def test_no_circle_of_imports() -> None:
    """Whoever reads a file need not have read the ones that use it."""
    known = modules()
    graph = {name: imported(name, file.read_text(), known) for name, file in known.items()}

    assert len(graph) > 600
    assert list(circles(graph)) == []


def test_a_circle_is_found() -> None:
    """Also one that is closed by an import inside of a function."""
    sources = {
        "a": "from b import x",
        "b": "def f():\n    import c",
        "c": "import a\nimport d",
        "d": "",
        "e": "import a",
    }
    graph = {name: imported(name, source, sources) for name, source in sources.items()}

    assert list(circles(graph)) == [["a", "b", "c"]]
