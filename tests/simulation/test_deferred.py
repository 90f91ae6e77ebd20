"""Transactions and timer messages under seeded faults: what is promised of them holds, whoever dies."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable

import pytest

from brokerset_sim.deferred_alone import draw_alone, simulate_alone
from brokerset_sim.deferred_plan import ALONE_FAULTS, MORE_FAULTS, DeferredPlan, draw_deferred
from brokerset_sim.deferred_world import simulate_deferred
from brokerset_sim.ledger_plan import POWER_FAULTS
from brokerset_sim.world import Outcome

pytestmark = pytest.mark.xdist_group("deferred")
"""One worker runs all of them, because outcomes of seeds are kept."""

WORLDS: dict[str, Callable[[int], Outcome]] = {"group": simulate_deferred, "alone": simulate_alone}
SEEDS = {"group": 12, "alone": 12}
"""So many run in `make sim`; `run.py` runs more."""

REGRESSIONS: list[tuple[str, int]] = [("group", 128)]
"""Worlds and seeds that have shown a fault of the product.

128: a DLedger's follower whose truncation failed on the disk refused every entry from then on, and went on.
"""

HAPPENS = (
    "half",
    "end acknowledged: COMMIT",
    "end acknowledged: ROLLBACK",
    "check",
    "given up",
    "timer",
    "rolled",
    "recalled",
    "answer: 37 1",
    "answer: 37 None",
)
"""What must come about in the first seeds of each world, or they prove little."""

TRACE_OF_SEEDS = """
from brokerset_sim.deferred_alone import simulate_alone
from brokerset_sim.deferred_world import simulate_deferred
print(simulate_deferred(0).trace, simulate_alone(0).trace)
"""

_DONE: dict[tuple[str, int], Outcome] = {}


def _run(world: str, seed: int) -> Outcome:
    if (world, seed) not in _DONE:
        _DONE[world, seed] = WORLDS[world](seed)
    return _DONE[world, seed]


@pytest.mark.parametrize(("world", "number"), [(name, seed) for name in SEEDS for seed in range(SEEDS[name])])
def test_every_transaction_ends_once_and_every_timer_comes_in_time(world: str, number: int) -> None:
    """Whatever a seed breaks, no promise does; once all is healed, nothing is left open, missing or late."""
    outcome = _run(world, number)

    assert outcome.failure is None, f"{world}, seed {number}: {outcome.failure}"


@pytest.mark.parametrize(("world", "seed_once_bad"), REGRESSIONS)
def test_what_was_found_once_stays_mended(world: str, seed_once_bad: int) -> None:
    """Seeds that showed a fault pass."""
    outcome = _run(world, seed_once_bad)

    assert outcome.failure is None, f"{world}, seed {seed_once_bad}: {outcome.failure}"


@pytest.mark.parametrize("world", WORLDS)
def test_seeds_do_every_kind_of_thing(world: str) -> None:
    """Every fault, and all that producers and brokers do, happens in the first seeds."""
    counts: Counter[str] = Counter()

    for number in range(SEEDS[world]):
        counts += _run(world, number).counts

    faults = (
        ALONE_FAULTS if world == "alone" else (*MORE_FAULTS, *POWER_FAULTS, "kill leader", "cut off leader")
    )
    assert [each for each in (*HAPPENS, *(f"fault: {name}" for name in faults)) if not counts[each]] == []
    assert counts["half"] > 20 * SEEDS[world]
    assert counts["timer"] > 10 * SEEDS[world]


@pytest.mark.parametrize("world", WORLDS)
def test_without_faults_nothing_is_repeated(world: str) -> None:
    """One broker leads, and no timer message comes twice."""
    plan = DeferredPlan(members=1 if world == "alone" else 3, seconds=1.5)

    outcome = simulate_alone(1, plan) if world == "alone" else simulate_deferred(1, plan)

    assert outcome.failure is None
    assert outcome.counts["delivered again"] == 0
    assert outcome.counts["half"] > 20
    assert outcome.counts["timer"] > 10


def test_plans_lose_power_only_where_messages_are_synced() -> None:
    """With asynchronous flushing a power failure may take what was acknowledged, as the document says."""
    plans = [draw(number) for number in range(200) for draw in (draw_deferred, draw_alone)]

    careless = [plan for plan in plans if not plan.sync_flush]
    assert careless
    assert not [plan for plan in careless if set(plan.faults) & set(POWER_FAULTS)]
    assert not [plan for plan in plans if plan.old_messages or "delete files" in plan.faults]


def test_the_same_seed_is_the_same_run_in_any_process() -> None:
    """A run depends on its seed alone, whatever order sets and dictionaries of another process would have."""
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
    assert traces != {b""}
