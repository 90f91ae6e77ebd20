"""Writes everything that is made from code: `python -m generate`, which is `make generate`.

With `--check` nothing is written, and files that differ are named.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from generate import (
    benchmarks_page,
    compatibility_page,
    crds,
    monitoring_files,
    reference_pages,
    settings_page,
    statements,
)
from tests.bench import history

ROOT: Final = Path(__file__).parents[1]


def files() -> Mapping[Path, str]:
    """What is written, by path below the root."""
    docs = Path("docs")
    found = {docs / "settings.md": settings_page.document(), **monitoring_files.files()}
    for kind in crds.KINDS:
        text = crds.text_of(kind)
        for folder in (Path("crds"), Path("charts/brokerset/files/crds")):
            found[folder / f"{kind.plural}.yaml"] = text
        page = docs / f"{kind.name.lower()}-reference.md"
        found[page] = reference_pages.renewed(kind, (ROOT / page).read_text(encoding="utf-8"))
    page = docs / "compatibility.md"
    found[page] = compatibility_page.renewed((ROOT / page).read_text(encoding="utf-8"))
    page = docs / "ordered.md"
    found[page] = statements.renewed((ROOT / page).read_text(encoding="utf-8"))
    page = docs / "benchmarks.md"
    records = history.read(ROOT / history.FILE)
    found[page] = benchmarks_page.renewed((ROOT / page).read_text(encoding="utf-8"), records)
    return found


def stale() -> dict[Path, str]:
    """What would be written, of files that are otherwise or not there."""
    return {
        path: text
        for path, text in files().items()
        if not (ROOT / path).exists() or (ROOT / path).read_text(encoding="utf-8") != text
    }


def main(arguments: list[str]) -> int:
    """Write, or with `--check` compare; returns the exit code."""
    different = stale()
    for path, text in different.items():
        if "--check" in arguments:
            sys.stdout.write(f"{path} is stale: run `make generate`, and commit the result\n")
        else:
            (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / path).write_text(text, encoding="utf-8")
            sys.stdout.write(f"wrote {path}\n")
    return int("--check" in arguments and bool(different))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
