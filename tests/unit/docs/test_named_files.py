"""Files that the architecture and the design documents name are there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[3]
BROKER: Final = ROOT / "broker/brokerset_broker"
NAMED: Final = re.compile(r"`([a-z_]+(?:/[A-Za-z_*-]+)*(?:\.py|\.md)?)`")
PACKAGES: Final = tuple(ROOT / folder for folder in ("libs", "controller", "operator", "spark"))
FOLDERS: Final = ("libs/", "broker/", "controller/", "operator/", "spark/", "tests/", "docs/", "charts/")


def documents() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "*DESIGN.md", "docs/ARCHITECTURE.md"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return [ROOT / name for name in listed.stdout.split("\0") if name]


def missing(document: Path) -> list[str]:
    """Named paths that lead nowhere: from the root, from the broker, or from next to the document."""
    found = []
    for name in NAMED.findall(document.read_text()):
        if "/" not in name or (not name.endswith((".py", ".md")) and not name.startswith(FOLDERS)):
            continue
        places = (ROOT, *PACKAGES, BROKER, BROKER / "member", document.parent, document.parent.parent)
        if not any((place / name).exists() for place in places) and not list(ROOT.glob(name)):
            found.append(name)
    return found


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_named_file_is_there(document: Path) -> None:
    """A file that was renamed is renamed here, too."""
    assert missing(document) == []


def test_the_map_names_many_files() -> None:
    """The pattern finds what the map names, and what is not there is found out."""
    text = (ROOT / "docs/ARCHITECTURE.md").read_text()

    assert len([name for name in NAMED.findall(text) if "/" in name]) > 50
    assert not (BROKER / "member/no_such_file.py").exists()
