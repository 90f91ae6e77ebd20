"""DLedger's core under seeded faults: safety after every step, progress once the faults are over."""

from __future__ import annotations

import os
import subprocess
import sys

from brokerset_sim.dledger_cluster import DLedgerCluster

RUN_MS = 6_000

TRACE_OF_SEEDS = f"""
from brokerset_sim.dledger_cluster import DLedgerCluster
for seed in range(3):
    cluster = DLedgerCluster(seed)
    cluster.run({RUN_MS})
    cluster.heal()
    print(cluster.now, sorted(cluster.acked), cluster.leaders, cluster.reads)
"""


def test_safe_under_faults_and_live_after_them(seed: int) -> None:
    """Whatever breaks, no promise does; when nothing breaks any more, all members commit something new."""
    cluster = DLedgerCluster(seed)

    cluster.run(RUN_MS)
    cluster.heal()

    assert cluster.committed


def test_members_that_promise_less_agree_as_well(seed: int) -> None:
    """In the settings of a group with Java's members: no lease, no pre-vote, Java's times."""
    cluster = DLedgerCluster(seed, alone=False)

    cluster.run(RUN_MS)
    cluster.heal()

    assert cluster.committed


def test_seeds_do_every_kind_of_thing() -> None:
    """Changes of leader, acknowledged appends and reads happen in the first seeds, or they prove nothing."""
    clusters = [DLedgerCluster(seed) for seed in range(30)]
    for cluster in clusters:
        cluster.run(RUN_MS)

    assert sum(len(cluster.leaders) for cluster in clusters) > 40
    assert sum(len(cluster.acked) for cluster in clusters) > 1_000
    assert sum(cluster.reads for cluster in clusters) > 1_000
    assert {cluster.size for cluster in clusters} == {1, 3, 5}


def test_same_seed_same_trace_in_any_process() -> None:
    """A seed names one run, whatever order sets and dictionaries of another process would have."""
    traces = {
        subprocess.run(
            [sys.executable, "-c", TRACE_OF_SEEDS],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            timeout=120,
        ).stdout
        for hash_seed in ("1", "2")
    }

    assert len(traces) == 1
