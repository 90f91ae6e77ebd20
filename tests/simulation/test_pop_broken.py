"""The checkers of pops see what they are for: deliberate mistakes are found."""

from __future__ import annotations

import pytest

from brokerset_sim.broken_deferred import DeferredVariant
from brokerset_sim.broken_pop import VARIANTS as OF_POPS
from brokerset_sim.broken_pop_waits import VARIANTS as OF_WAITS

VARIANTS: tuple[DeferredVariant, ...] = (*OF_POPS, *OF_WAITS)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_a_deliberate_bug_is_caught_and_its_seed_passes_without_it(variant: DeferredVariant) -> None:
    """The named promise is seen broken while the bug is in; the very same run passes without the bug."""
    caught_at = None
    for number in range(variant.seeds_max):
        with variant.on():
            outcome = variant.run(number)
        if outcome.failure is not None and outcome.failure.invariant in variant.caught_by:
            caught_at = number
            break

    assert caught_at is not None, f"not caught within {variant.seeds_max} seeds"
    assert variant.run(caught_at).failure is None


def test_there_are_enough_deliberate_bugs() -> None:
    """At least ten, each with its own name."""
    assert len({variant.name for variant in VARIANTS}) == len(VARIANTS) >= 30
