"""The raft core under seeded faults: safety after every step, progress once the faults are over."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from brokerset_sim.core_cluster import CoreCluster

TICKS = 200

REGRESSIONS = (7011, 8870)

TRACE_OF_SEEDS = f"""
from brokerset_sim.core_cluster import CoreCluster
for seed in range(5):
    cluster = CoreCluster(seed)
    cluster.run({TICKS})
    cluster.heal()
    print(cluster.trace, cluster.delivered, cluster.max_commit)
"""


def test_safe_under_faults_and_live_after_them(seed: int) -> None:
    """Whatever breaks, no promise does; when nothing breaks any more, all members agree on something new."""
    cluster = CoreCluster(seed)

    cluster.run(TICKS)
    cluster.heal()

    assert cluster.max_commit > 0


@pytest.mark.parametrize("regression", REGRESSIONS)
def test_seeds_that_once_failed(regression: int) -> None:
    """What failed once is tried permanently.

    7011: a joined node that was removed, but not yet by all, did not campaign after a restart.
    8870: an acknowledgement left though its entries were cut before they were synced.
    """
    cluster = CoreCluster(regression, biased=False)

    cluster.run(TICKS)
    cluster.heal()


def test_same_seed_same_trace_in_any_process() -> None:
    """A seed names one run, whatever order sets and dictionaries of another process would have."""
    traces = {
        subprocess.run(
            [sys.executable, "-c", TRACE_OF_SEEDS],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            timeout=60,
        ).stdout
        for hash_seed in ("1", "2")
    }

    assert len(traces) == 1
    assert traces.pop().count(b"\n") == 5
