"""Controllers and brokers under seeded faults: no promise is broken, and afterwards all goes on."""

from __future__ import annotations

import pytest

from brokerset_sim.plan import Plan, draw
from brokerset_sim.world import simulate

REGRESSIONS = (11, 21, 26, 49, 65, 73, 79, 85, 101, 135, 152, 157, 203, 330)
"""Seeds that have found something once; they run however many seeds are asked for."""


def test_faults_break_no_promise_and_progress_follows(seed: int) -> None:
    """Whatever a seed breaks, no invariant is violated, and a healed installation has leaders and masters."""
    outcome = simulate(seed)

    assert outcome.failure is None, f"seed {seed}: {outcome.failure}"


@pytest.mark.parametrize("seed_once_bad", REGRESSIONS)
def test_what_was_found_once_stays_mended(seed_once_bad: int) -> None:
    """Seeds that showed a bug pass."""
    outcome = simulate(seed_once_bad)

    assert outcome.failure is None, f"seed {seed_once_bad}: {outcome.failure}"


@pytest.mark.parametrize("controllers", [1, 2, 3, 4, 5, 7])
def test_calm_installations_of_every_size_serve(controllers: int) -> None:
    """Without faults, controllers of any number register all brokers and elect a master for each group."""
    outcome = simulate(1, Plan(controllers=controllers, brokers=(2, 1), java_brokers=1, seconds=5.0))

    assert outcome.failure is None
    assert outcome.commands >= 10


def test_lost_controllers_are_rebuilt() -> None:
    """After the loss of all controllers' data, ids and epochs go on from what the brokers hold."""
    plan = Plan(controllers=3, brokers=(3,), seconds=8.0, rebuild=True, faults={"kill broker": 1.0})

    outcomes = [simulate(seed, plan) for seed in range(4)]

    assert [outcome.failure for outcome in outcomes] == [None] * 4


def test_plans_differ_and_cover_every_size() -> None:
    """Seeds draw different installations, even numbers of controllers among them."""
    plans = [draw(seed) for seed in range(100)]

    assert {plan.controllers for plan in plans} == {1, 2, 3, 4, 5, 7}
    assert any(plan.rebuild for plan in plans)
    assert any(plan.java_brokers for plan in plans)
