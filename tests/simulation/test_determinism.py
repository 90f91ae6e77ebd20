"""A seed is all that a run depends on."""

from __future__ import annotations

import os
import subprocess
import sys

from brokerset_sim.world import simulate

PROGRAM = """
import sys
from brokerset_sim.world import simulate
for seed in sys.argv[1:]:
    print(simulate(int(seed)).trace)
"""
SEEDS = ("2", "5", "8", "15", "30")


def _traces(hash_seed: str) -> list[str]:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *SEEDS],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.split()


def test_the_same_seed_gives_the_same_trace_in_another_process() -> None:
    """Two processes with different hash seeds, and this one, see the same events at the same times."""
    first, second = _traces("1"), _traces("4242")

    assert len(first) == len(SEEDS)
    assert first == second
    assert first[0] == simulate(int(SEEDS[0])).trace


def test_another_seed_gives_another_trace() -> None:
    """The trace says something about the run."""
    assert simulate(1).trace != simulate(2).trace
