"""Popped messages of a DLedger group, and of a broker alone that dies again and again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from brokerset_sim.deferred_plan import ALONE_FAULTS
from brokerset_sim.pop_alone import simulate_pop_alone
from brokerset_sim.pop_order_oracle import PopOrderOracle
from brokerset_sim.pop_plan import PopPlan, draw_pop_alone, draw_pop_ledger
from brokerset_sim.pop_world import simulate_pop_ledger
from brokerset_sim.world import Outcome

pytestmark = pytest.mark.xdist_group("pop-worlds")
"""One worker runs all of them, because outcomes of seeds are kept."""

SEEDS = {"dledger": (0, 2, 4, 8, 9), "alone": (2, 4, 7, 8, 13)}
"""These run in `make sim`; `run.py` runs more.

DLedger 8: a wall clock that was set back made an old handle good again.
Alone 2, 4, 7, 8: after a crash a lock of an ordered pop did not say where the group was.
"""

WORLDS: dict[str, Callable[[int], Outcome]] = {"dledger": simulate_pop_ledger, "alone": simulate_pop_alone}

HAPPENS = (
    "pop: acknowledged",
    "pop: came back",
    "pop: changed",
    "pop: notified True",
    "pop: notified False",
    "pop: peeked",
    "order: given again",
    "order: changed",
)
"""What must come about in these seeds of each world, or they prove little."""

_DONE: dict[tuple[str, int], Outcome] = {}


def _run(world: str, seed: int) -> Outcome:
    if (world, seed) not in _DONE:
        _DONE[world, seed] = WORLDS[world](seed)
    return _DONE[world, seed]


@pytest.mark.parametrize(("world", "number"), [(world, each) for world in WORLDS for each in SEEDS[world]])
def test_each_message_has_one_holder_until_it_is_acknowledged(world: str, number: int) -> None:
    """Whatever a seed breaks, no promise does; once all is healed, nothing is lost, out, or in memory."""
    outcome = _run(world, number)

    assert outcome.failure is None, f"seed {number}: {outcome.failure}"


@pytest.mark.parametrize("world", WORLDS)
def test_seeds_do_every_kind_of_thing(world: str) -> None:
    """All that consumers and brokers do happens in these seeds."""
    counts: Counter[str] = Counter()

    for seed in SEEDS[world]:
        counts += _run(world, seed).counts

    assert [each for each in HAPPENS if not counts[each]] == []


def test_a_broker_alone_forgets_no_ack_of_ordered_pops_in_a_crash() -> None:
    """It is killed again and again, and what was acknowledged in order is not given out again."""
    plan = PopPlan(
        members=1,
        producers=1,
        poppers=2,
        seconds=2.5,
        pause=0.3,
        down_max=0.1,
        invisible_ms=(100, 400),
        faults=("kill",),
    )

    assert [simulate_pop_alone(seed, plan).failure for seed in range(4)] == [None] * 4


def test_an_attempt_that_is_repeated_in_one_millisecond_counts_again() -> None:
    """The second answer has another invisible time, which counts from then on."""
    oracle = PopOrderOracle()
    oracle.stored(0, 0)
    for invisible_ms, until in ((2_000, 3.0), (60, 1.06)):
        oracle.given(
            0, [0], attempt="a", pop_time=1_000, invisible_ms=invisible_ms, now=1.0, since=1.0, until=until,
            server=("n", 1), early=0.0,
        )  # fmt: skip

    oracle.given(
        0, [0], attempt="b", pop_time=1_100, invisible_ms=60, now=1.1, since=1.1, until=1.16,
        server=("n", 1), early=0.0,
    )  # fmt: skip

    assert oracle.counts["order: given"] == 3


def test_plans_fit_their_worlds() -> None:
    """A broker alone has faults that one broker can have; transactions and timers are left to others."""
    alone = [draw_pop_alone(seed) for seed in range(50)]
    ledger = [draw_pop_ledger(seed) for seed in range(50)]

    assert {plan.members for plan in alone} == {1}
    assert {fault for plan in alone for fault in plan.faults} <= {*ALONE_FAULTS}
    assert {plan.members for plan in ledger} == {3, 5}
    assert not any(plan.timer_producers or plan.transaction_producers for plan in (*alone, *ledger))
