"""The pages about Kubernetes name conditions and annotations that exist, and their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from brokerset_operator.apply import ACTION_FAILED
from brokerset_operator.model import names
from brokerset_operator.plan import reasons
from brokerset_operator.store_jobs.labels import AUDIT_NOW, EXPORT_NOW, OWNER

ROOT = Path(__file__).parents[3]
PAGES = sorted((ROOT / "docs" / "kubernetes").glob("*.md"))
LABELS = ("set", "group", "config-hash", "epoch", "topic", "subject", "tls")
"""What else of our domain may be named, besides annotations for people."""


def anchors(page: Path) -> set[str]:
    """What links may point to in a page."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_every_condition_and_reason_is_explained() -> None:
    """Also those that are there only while they are true."""
    page = (ROOT / "docs" / "kubernetes" / "conditions.md").read_text()
    known = {value for name, value in vars(reasons).items() if name.isupper() and isinstance(value, str)}

    assert [name for name in sorted({*known, ACTION_FAILED}) if f"`{name}" not in page] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    """To a file, and to a heading in it."""
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        if not found.exists() or (anchor and anchor not in anchors(found)):
            broken.append(target)

    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_annotations_and_labels_exist(page: Path) -> None:
    """None is told that nobody reads."""
    annotations = (
        names.PAUSED,
        names.SWITCH_OVER,
        names.FENCE,
        names.APPROVE,
        names.BELOW_MINIMUM,
        names.DISCARD_GROUP,
        names.DELETE_CLAIMS,
        names.OPERATOR,
        names.RENEW_CERTIFICATES,
        names.RENEW_AUTHORITY,
        AUDIT_NOW,
        EXPORT_NOW,
    )
    known = {*annotations, OWNER, *(f"{names.DOMAIN}/{label}" for label in LABELS)}
    told = set(re.findall(r"(?<![.\w])brokerset\.io/[a-z-]+[a-z]", page.read_text()))

    assert told - known == set()
