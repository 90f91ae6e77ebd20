"""Ordered subjects under seeded faults: every key in its order, nothing lost or twice, and all goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest

from brokerset_broker.tables.ordered import shared_pulls
from brokerset_sim.broken_shared import LATE_COPIES
from brokerset_sim.ordered_plan import FAULTS, OrderedPlan, draw_ordered
from brokerset_sim.ordered_world import simulate_ordered
from brokerset_sim.world import Outcome

pytestmark = pytest.mark.xdist_group("ordered")
"""One worker runs all of them, because outcomes of seeds are kept."""

SEEDS = 50
"""So many run in `make sim`; `run.py` runs more."""

REGRESSIONS: list[int] = []
"""Seeds that have shown a fault of the product."""

HAPPENS = (
    "acknowledged",
    "answer: 11 2125",
    "answer: 21022 0",
    "answer: 21034 0",
    "answer: 310 2120",
    "answer: 310 2121",
    "answer: 21033 2126",
    "sent back",
    "shared: given again after silence",
    "left",
    "role: entries lost",
    "elected: entries kept",
)
"""What must come about in the first seeds, or they prove little."""

TRACE_OF_SEEDS = """
from brokerset_sim.ordered_world import simulate_ordered
for seed in range(3):
    print(simulate_ordered(seed).trace)
"""

QUIET = OrderedPlan(seconds=8.0, fails=0.0, drift=0.0)

_DONE: dict[int, Outcome] = {}


def _run(seed: int) -> Outcome:
    if seed not in _DONE:
        _DONE[seed] = simulate_ordered(seed)
    return _DONE[seed]


@pytest.mark.parametrize("number", range(SEEDS))
def test_each_key_keeps_its_order_under_faults_and_everything_is_handled(number: int) -> None:
    """Whatever a seed breaks, each key is handled in its order, and nothing is lost (statement 80)."""
    outcome = _run(number)

    assert outcome.failure is None, f"seed {number}: {outcome.failure}"


@pytest.mark.parametrize("seed_once_bad", REGRESSIONS)
def test_what_was_found_once_stays_mended(seed_once_bad: int) -> None:
    """Seeds that showed a fault pass."""
    outcome = _run(seed_once_bad)

    assert outcome.failure is None, f"seed {seed_once_bad}: {outcome.failure}"


def test_seeds_do_every_kind_of_thing() -> None:
    """Every fault, and each way to answer that matters, happens in the first seeds."""
    counts: Counter[str] = Counter()

    for number in range(SEEDS):
        counts += _run(number).counts

    assert [each for each in (*HAPPENS, *(f"fault: {name}" for name in FAULTS)) if not counts[each]] == []
    assert counts["handled"] > 50 * SEEDS
    assert counts["shared: given"] > 20 * SEEDS
    assert counts["shared: acknowledgements"] > SEEDS
    assert counts["scaled"] > SEEDS // 2
    assert counts["role: failovers"] > SEEDS


FAULTS_OF_STATEMENTS = (
    pytest.param(("kill consumer",), id="71 consumers are killed"),
    pytest.param(("pause consumer",), id="72 consumers are stopped"),
    pytest.param(("kill master", "kill group"), id="73 brokers are killed"),
    pytest.param(("switch over", "cut off master", "slow replication"), id="74 masters change"),
    pytest.param(("elect", "kill controllers", "cut controller leader"), id="75 controllers change"),
    pytest.param(("scale", "handlers are slow", "idle producer"), id="76 partitions change"),
    pytest.param(("storm",), id="77 members come and go"),
    pytest.param(
        ("cut consumer from controllers", "cut consumer from brokers", "cut off consumer", "cut off master"),
        id="78 links are cut",
    ),
    pytest.param(("wall jump", "cut consumer from controllers"), id="79 wall clocks jump"),
)


@pytest.mark.parametrize("faults", FAULTS_OF_STATEMENTS)
def test_the_order_of_keys_survives_one_kind_of_fault(faults: tuple[str, ...]) -> None:
    """One kind of fault again and again changes no order and loses nothing (statements 71, 72, 73,
    74, 75, 76, 77, 78, 79)."""
    plan = OrderedPlan(seconds=15.0, faults=faults, pause=1.0, hold=3.0, permission=4.0, heartbeat=0.7)

    outcome = simulate_ordered(1, plan)

    assert outcome.failure is None
    assert any(outcome.counts[f"fault: {fault}"] for fault in faults)
    assert outcome.counts["handled"] > 50


SHARED_FAULTS = (
    pytest.param(("kill consumer", "restart consumer", "storm"), id="71 77 members come and go"),
    pytest.param(("pause consumer", "cut consumer from brokers"), id="72 78 members are silent"),
    pytest.param(("kill master", "switch over", "cut off master", "slow replication"), id="73 74 masters"),
    pytest.param(("scale", "handlers fail", "kill group"), id="76 partitions change"),
)


@pytest.mark.parametrize("faults", SHARED_FAULTS)
def test_a_shared_group_handles_everything_and_nobody_has_what_another_member_has(
    faults: tuple[str, ...],
) -> None:
    """One kind of fault again and again: all is handled, what is acknowledged is given to nobody again, no
    message to two living members, and partitions are retired (statements 60, 71, 72, 73, 74, 76, 77, 78)."""
    plan = OrderedPlan(
        seconds=15.0,
        faults=faults,
        pause=1.0,
        hold=3.0,
        permission=4.0,
        heartbeat=0.7,
        consumer_groups=0,
        shared_groups=1,
    )

    outcome = simulate_ordered(1, plan)

    assert outcome.failure is None
    assert any(outcome.counts[f"fault: {fault}"] for fault in faults)
    assert outcome.counts["handled"] > 50


def test_a_quiet_shared_group_gets_each_message_once() -> None:
    """Without faults each message is given to one member, once, and all members get some."""
    outcome = simulate_ordered(3, replace(QUIET, consumer_groups=0, shared_groups=1))

    assert outcome.failure is None
    assert outcome.counts["handled"] == outcome.counts["shared: given"] == outcome.counts["stored"] > 50


def test_what_a_shared_group_has_and_did_not_acknowledge_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the window nothing new is given until gaps are closed, and then all goes on (statement 44)."""
    monkeypatch.setattr(shared_pulls, "WINDOW", 8)
    plan = replace(QUIET, send_pause=0.03, handler_seconds=0.3, consumer_groups=0, shared_groups=1)

    outcome = simulate_ordered(4, plan)

    assert outcome.failure is None
    assert outcome.counts["handled"] == outcome.counts["stored"] > 200


@pytest.mark.parametrize("number", range(3))
def test_copies_for_retry_that_come_after_their_partition_was_drained_are_handled(number: int) -> None:
    """BestTried, with handlers that fail and partitions that change all the time: nothing is lost (statements
    39, 81)."""
    outcome = simulate_ordered(number, replace(LATE_COPIES, seconds=15.0, shared_groups=number % 2))

    assert outcome.failure is None
    assert outcome.counts["sent back"] > 20
    assert outcome.counts["scaled"] > 3


@pytest.mark.parametrize("slow", [True, False], ids=["slow consumers", "fast controllers"])
def test_clocks_that_run_a_tenth_wrong_on_one_side_change_nothing(slow: bool) -> None:
    """Permissions of 30 s bear clocks that are wrong by 10 % on one side (statement 82)."""
    plan = OrderedPlan(
        seconds=150.0,
        permission=30.0,
        heartbeat=5.0,
        drift=0.0,
        slow_consumers=0.1 if slow else 0.0,
        fast_controllers=0.0 if slow else 0.1,
        faults=("pause consumer", "cut consumer from controllers", "kill consumer", "elect"),
        pause=8.0,
        send_pause=1.0,
    )

    outcome = simulate_ordered(2, plan)

    assert outcome.failure is None
    assert outcome.counts["handled"] > 50


def test_a_quiet_subject_has_no_overlaps_repetitions_or_reassignments() -> None:
    """Without faults each message is stored once and handled once, and no token is refused."""
    outcome = simulate_ordered(3, QUIET)

    assert outcome.failure is None
    assert outcome.counts["handled"] == outcome.counts["sent"] == outcome.counts["stored"]
    assert not outcome.counts["effect refused"]
    assert not outcome.counts["overlap with a stopped one"]


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


def test_plans_keep_clocks_within_the_margin() -> None:
    """Rates of two hosts differ by less than the margin, or the promise would not hold (statement 82)."""
    for plan in map(draw_ordered, range(300)):
        fastest = 1 + plan.fast_controllers + plan.drift
        slowest = 1 - plan.slow_consumers - plan.drift
        assert fastest / slowest < 1 + 1 / 6
