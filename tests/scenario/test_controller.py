"""The controller's decision rules, as readable scenarios."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerset_sim.controller_script import ControllerScript
from brokerset_sim.scenario import replay

SCENARIOS = sorted((Path(__file__).parent / "controller").glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path, pytestconfig: pytest.Config) -> None:
    """The controller answers as the file says."""
    expected = path.read_text()
    actual = replay(expected, ControllerScript().handle)
    if pytestconfig.getoption("--rewrite"):
        path.write_text(actual)
    assert actual == expected
