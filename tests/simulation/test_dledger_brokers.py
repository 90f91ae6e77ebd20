"""Whole brokers in DLedger mode under seeded faults: nothing acknowledged is lost, and all goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from brokerset_sim.history import Violation
from brokerset_sim.ledger_plan import FAULTS, POWER_FAULTS, LedgerPlan, draw_ledger
from brokerset_sim.ledger_world import simulate_ledger
from brokerset_sim.world import Outcome

pytestmark = pytest.mark.xdist_group("dledger-brokers")
"""One worker runs all of them, because outcomes of seeds are kept."""

SEEDS = 60
"""So many run in `make sim`; `run.py` runs more."""

SEEDS_COUNTED = SEEDS

REGRESSIONS: list[int] = []
"""Seeds that have shown a fault of the product."""

HAPPENS = (
    "acknowledged",
    "committed offset",
    "made topic",
    "answer: 21011 0",
    "answer: 51005 200",
    "answer: 310 14",
    "died of its disk",
)
"""What must come about in the first seeds, or they prove little."""

TRACE_OF_SEEDS = """
from brokerset_sim.ledger_world import simulate_ledger
for seed in range(2):
    print(simulate_ledger(seed).trace)
"""

_DONE: dict[int, Outcome] = {}


def _run(seed: int) -> Outcome:
    if seed not in _DONE:
        _DONE[seed] = simulate_ledger(seed)
    return _DONE[seed]


@pytest.mark.parametrize("number", range(SEEDS))
def test_faults_lose_nothing_and_a_healed_group_serves(number: int) -> None:
    """Whatever a seed breaks, no promise does; once all is healed, one leader serves, all have the same."""
    outcome = _run(number)

    assert outcome.failure is None, f"seed {number}: {outcome.failure}"


@pytest.mark.parametrize("seed_once_bad", REGRESSIONS)
def test_what_was_found_once_stays_mended(seed_once_bad: int) -> None:
    """Seeds that showed a fault pass."""
    outcome = _run(seed_once_bad)

    assert outcome.failure is None, f"seed {seed_once_bad}: {outcome.failure}"


def test_seeds_do_every_kind_of_thing() -> None:
    """Every fault, changes of leader, and each way to answer happen in the first seeds."""
    counts: Counter[str] = Counter()

    for number in range(SEEDS_COUNTED):
        counts += _run(number).counts

    assert [each for each in (*HAPPENS, *(f"fault: {name}" for name in FAULTS)) if not counts[each]] == []
    assert counts["acknowledged"] > 20 * SEEDS_COUNTED
    assert counts["role: master"] > 2 * SEEDS_COUNTED
    assert counts["reads of leaders"] > 20 * SEEDS_COUNTED


@pytest.mark.parametrize("members", [1, 3, 5])
def test_a_calm_group_keeps_its_leader_and_acknowledges_everything(members: int) -> None:
    """Without faults nobody else leads, and no send fails but those that wait for their topic to be made."""
    plan = LedgerPlan(members=members, seconds=1.5)

    outcome = simulate_ledger(1, plan)

    assert outcome.failure is None
    assert outcome.counts["acknowledged"] > 50
    assert outcome.counts["role: master"] == 1
    assert outcome.counts["answer: 310 None"] <= plan.producers


def test_plans_lose_power_only_where_messages_are_synced() -> None:
    """With asynchronous flushing a power failure may take what was acknowledged, as the document says."""
    plans = [draw_ledger(number) for number in range(300)]

    careless = [plan for plan in plans if not plan.sync_flush]
    assert careless
    assert not [plan for plan in careless if set(plan.faults) & set(POWER_FAULTS)]
    assert {plan.members for plan in plans} == {3, 5}
    assert {bool(plan.old_messages) for plan in plans} == {True, False}


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


def test_a_violation_names_what_was_violated() -> None:
    """A failure says which promise it broke."""
    assert str(Violation("one leader for each term", "two lead")) == "one leader for each term: two lead"
