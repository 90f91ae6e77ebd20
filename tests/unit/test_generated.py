"""What is made from code is what the code makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_nothing_that_is_generated_is_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """CRDs, the chart's copies, rules, dashboards, pages. If this fails: `make generate`, and commit."""
    monkeypatch.syspath_prepend(str(ROOT))
    from generate.__main__ import stale

    assert sorted(map(str, stale())) == []
