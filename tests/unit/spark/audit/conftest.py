"""Replicas of one log, made here."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerset_rig.replica_stores import Log, write_replicas


@pytest.fixture
def log() -> Log:
    """Four files: two epochs of 300 and 700 records."""
    made = Log()
    made.fill(1000)
    return made


def epochs_of(log: Log) -> tuple[tuple[int, int], ...]:
    """The second epoch starts at the record with number 300."""
    return ((1, 0), (2, log.starts[300]))


@pytest.fixture
def trio(tmp_path: Path, log: Log) -> list[Path]:
    """Three equal replicas, all confirmed."""
    return write_replicas(tmp_path, *[(log, epochs_of(log), log.end)] * 3)
