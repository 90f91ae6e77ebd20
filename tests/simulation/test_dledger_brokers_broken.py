"""The checkers of brokers in DLedger mode see what they are for: deliberate mistakes are found."""

from __future__ import annotations

import pytest

from brokerset_sim.broken_ledger import VARIANTS, LedgerVariant
from brokerset_sim.ledger_world import simulate_ledger


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_a_deliberate_bug_is_caught_and_its_seed_passes_without_it(variant: LedgerVariant) -> None:
    """The named promise is seen broken while the bug is in; the very same run passes without the bug."""
    caught_at = None
    for number in range(variant.seeds_max):
        with variant.on():
            outcome = simulate_ledger(number, variant.plan)
        if outcome.failure is not None and outcome.failure.invariant in variant.caught_by:
            caught_at = number
            break

    assert caught_at is not None, f"not caught within {variant.seeds_max} seeds"
    assert simulate_ledger(caught_at, variant.plan).failure is None


def test_there_are_enough_deliberate_bugs() -> None:
    """At least twelve, each with its own name."""
    assert len({variant.name for variant in VARIANTS}) == len(VARIANTS) >= 12
