"""Elections of the raft core under seeded faults."""

from __future__ import annotations

from brokerset_sim.cluster import Cluster, Faults


def test_one_leader_per_term_and_a_leader_in_the_end(seed: int) -> None:
    cluster = Cluster(
        seed=seed, size=5, faults=Faults(loss=0.2, delay_ticks_max=8, crash=0.02, partition=0.02)
    )
    cluster.run(1000)
    cluster.settle(200)
    assert cluster.leader() is not None


def test_same_seed_same_trace() -> None:
    runs = [Cluster(seed=7, size=5, faults=Faults(loss=0.2, crash=0.02)) for _ in range(2)]
    for run in runs:
        run.run(500)
    assert runs[0].trace == runs[1].trace
