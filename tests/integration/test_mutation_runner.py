"""The runner of deliberate mistakes tells what is noticed from what is not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.mutation.run import outcome
from tests.mutation.table import Mutation, Seeds

HARMLESS = Mutation(
    name="harmless",
    breaks="Nothing.",
    path="libs/brokerset_raft/changes.py",
    old='"a group needs a voter"',
    new='"a group needs some voter"',
    caught_by="tests/unit/raft/core/test_receiving.py",
)


@pytest.mark.parametrize(
    ("mutation", "became"),
    [
        (HARMLESS, "survived"),
        (replace(HARMLESS, caught_by=Seeds("core", 2)), "survived"),
        (replace(HARMLESS, path="libs/brokerset_raft/receiving.py", old="installing:", new="!"), "occurs"),
        (replace(HARMLESS, path="libs/brokerset_raft/gone.py"), "there is no such file"),
        (replace(HARMLESS, caught_by="tests/unit/raft/core/test_receiving.py::test_gone"), "ended with 4"),
        (
            replace(
                HARMLESS,
                path="libs/brokerset_raft/receiving.py",
                old="self._stored is not None and self._stored[0] == meta",
                new="self._stored is not None",
            ),
            "caught",
        ),
    ],
    ids=["survives", "survives seeds", "not there", "no file", "no test", "caught"],
)
def test_the_runner_says_what_became_of_a_mutation(mutation: Mutation, became: str) -> None:
    """Only a test that ran and failed counts as noticing; everything else ends the run with an error."""
    assert became in outcome(mutation)
