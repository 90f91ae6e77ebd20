"""The checker of metadata sees what it is for: metadata in the log that is broken on purpose is caught."""

from __future__ import annotations

import pytest

from brokerset_sim.broken import Variant
from brokerset_sim.broken_metadata import VARIANTS
from brokerset_sim.world import simulate


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


def test_there_are_enough_deliberate_bugs() -> None:
    """At least five, each with its own name."""
    assert len({variant.name for variant in VARIANTS}) == len(VARIANTS) >= 5
