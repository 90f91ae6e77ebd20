"""What the machine gives without any broker, as benchmarks measure it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.bench import floors


def test_the_floor_of_a_copy_is_measured_and_leaves_nothing(tmp_path: Path) -> None:
    """A file goes over loopback into another one, between two processes that have ended afterwards."""
    rate = floors.copied_mib_per_second(tmp_path, 4 * floors.CHUNK)

    assert rate > 0
    assert list(tmp_path.iterdir()) == []


def test_a_copy_that_failed_is_no_floor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sender that dies makes an error that a benchmark notes, instead of a rate."""
    monkeypatch.setattr(floors, "SENDER", "raise SystemExit(1)")
    monkeypatch.setattr(floors, "RECEIVER", floors.RECEIVER.replace("listener.accept()", "exit()"))

    with pytest.raises(OSError, match="has failed"):
        floors.copied_mib_per_second(tmp_path, floors.CHUNK)
