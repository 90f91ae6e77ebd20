"""Runs seeds of a simulated world until one fails: exit code 1 then, 0 when all of them pass."""

from __future__ import annotations

import argparse
import sys

from tests.mutation.table import WORLDS

from brokerset_sim.core_cluster import CoreCluster
from brokerset_sim.plan import draw_replicating
from brokerset_sim.world import simulate

CORE_TICKS = 200


def failure(world: str, seed: int) -> str | None:
    """What is wrong in the run of a seed; None if nothing is."""
    try:
        if world == "core":
            cluster = CoreCluster(seed)
            cluster.run(CORE_TICKS)
            cluster.heal()
            return None
        outcome = simulate(seed, draw_replicating(seed) if world == "groups" else None)
    except Exception as error:  # the edge of a run: broken code may raise anything
        return f"{type(error).__name__}: {error}"
    return None if outcome.failure is None else str(outcome.failure)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world", choices=WORLDS, required=True)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seeds", type=int, required=True, help="how many")
    asked = parser.parse_args()
    for seed in range(asked.first, asked.first + asked.seeds):
        found = failure(asked.world, seed)
        if found is not None:
            print(f"seed {seed}: {found[:300]}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
