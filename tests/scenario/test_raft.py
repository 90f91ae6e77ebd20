"""The raft core in scenes that are written down: what is saved, sent and applied, in which order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from brokerset_sim.raft_script import RaftScript
from brokerset_sim.scenario import replay

SCENARIOS = sorted((Path(__file__).parent / "raft").glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path, pytestconfig: pytest.Config) -> None:
    """The core does what the file says; `--rewrite` writes down what it does."""
    expected = path.read_text()

    actual = replay(expected, RaftScript().handle)

    if pytestconfig.getoption("--rewrite"):
        path.write_text(actual)
    assert actual == expected


def test_there_are_scenarios() -> None:
    """An empty folder proves nothing; the table of subjects names each of them, and nothing else."""
    named = set(re.findall(r"`([a-z0-9_]+)`", (Path(__file__).parent / "raft" / "README.md").read_text()))

    assert len(SCENARIOS) >= 100
    assert {path.stem for path in SCENARIOS} == named
