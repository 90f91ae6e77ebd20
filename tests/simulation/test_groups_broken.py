"""The checkers of logs and leases see what they are for: replication that is broken on purpose is caught."""

from __future__ import annotations

import pytest

from brokerset_sim import broken
from brokerset_sim.broken import Variant
from brokerset_sim.broken_replication import VARIANTS
from brokerset_sim.drills import DRILLS
from brokerset_sim.world import simulate

DRILL_SEEDS = 3
"""Timings in which each directed schedule must reach its end."""


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_a_deliberate_bug_is_caught_and_its_seed_passes_without_it(variant: Variant) -> None:
    """The named invariant is seen violated while the bug is in; the very same run passes without the bug."""
    caught_at = None
    for number in range(variant.seeds_max):
        with variant.on():
            outcome = simulate(number, variant.plan)
        if outcome.failure is not None and outcome.failure.invariant in variant.caught_by:
            caught_at = number
            break

    assert caught_at is not None, f"not caught within {variant.seeds_max} seeds"
    healthy = simulate(caught_at, variant.plan)
    assert healthy.failure is None


@pytest.mark.parametrize("name", DRILLS)
def test_a_directed_schedule_reaches_its_end_and_harms_nobody(name: str) -> None:
    """Without a bug every step of a schedule comes about, nothing is violated, and all goes on behind it."""
    plan = next(each.plan for each in (*broken.VARIANTS, *VARIANTS) if each.plan.drill == name)

    outcomes = [simulate(number, plan) for number in range(DRILL_SEEDS)]

    assert [outcome.failure for outcome in outcomes] == [None] * DRILL_SEEDS
    assert [outcome.counts[f"drill: {name}"] for outcome in outcomes] == [1] * DRILL_SEEDS


def test_there_are_enough_deliberate_bugs() -> None:
    """At least fifteen, each with its own name."""
    assert len({variant.name for variant in VARIANTS}) == len(VARIANTS) >= 15
