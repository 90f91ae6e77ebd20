"""The oracle of ordered subjects sees what it is for: deliberate mistakes are found."""

from __future__ import annotations

import pytest

from brokerset_sim import broken_ordered, broken_shared
from brokerset_sim.broken_ordered import OrderedVariant
from brokerset_sim.ordered_world import simulate_ordered

VARIANTS = (*broken_ordered.VARIANTS, *broken_shared.VARIANTS)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_a_deliberate_bug_is_caught_and_its_seed_passes_without_it(variant: OrderedVariant) -> None:
    """The named promise is seen broken while the bug is in; the very same run passes without the bug."""
    caught_at = None
    for number in range(variant.first, variant.first + variant.seeds_max):
        with variant.on():
            outcome = simulate_ordered(number, variant.plan)
        if outcome.failure is not None and outcome.failure.invariant in variant.caught_by:
            caught_at = number
            break

    assert caught_at is not None, f"not caught within {variant.seeds_max} seeds"
    assert simulate_ordered(caught_at, variant.plan).failure is None


def test_there_are_enough_deliberate_bugs() -> None:
    """At least twelve, and four of Shared groups, each with its own name."""
    assert len({variant.name for variant in VARIANTS}) == len(VARIANTS) >= 12
    assert len(broken_shared.VARIANTS) >= 4
