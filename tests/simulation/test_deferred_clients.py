"""Producers of transactions and timers, and their checkers, on a model of a broker."""

from __future__ import annotations

from collections import Counter

import pytest

from brokerset_sim import timer_oracle as timers
from brokerset_sim import transaction_oracle as transactions
from brokerset_sim.deferred_checker import FORGED
from brokerset_sim.deferred_fake import Faults, simulate_fake
from brokerset_sim.deferred_plan import PRECISION_MS

SEEDS = 3

HAPPENS = (
    "half",
    "end acknowledged: COMMIT",
    "end acknowledged: ROLLBACK",
    "check",
    "timer",
    "recalled",
    "answer: 37 1",
    "answer: 37 None",
)

WRONG = {
    "a half is visible": (Faults(visible_halves=True), transactions.HIDDEN),
    "a transaction ends again": (Faults(commits_again=True), transactions.ONCE),
    "the op record comes first": (Faults(op_first=True), transactions.OPS),
    "there is no op record": (Faults(no_op=True), transactions.ENDED),
    "a forged end is accepted": (Faults(ends_anything=True), FORGED),
    "checks are not counted": (Faults(checks_uncounted=True), transactions.CHECKED),
    "checks come at once": (Faults(checks_at_once=True), transactions.YOUNG),
    "nobody is checked": (Faults(never_checks=True), transactions.ENDED),
    "a commit is not stored": (Faults(commit_not_stored=True), transactions.OPS),
    "a timer is a slot early": (Faults(early_ms=PRECISION_MS), timers.EARLY),
    "a timer comes twice": (Faults(delivers_twice=True), timers.TWICE),
    "timers are forgotten": (Faults(forgets_timers=True), timers.LOST),
    "recalls are ignored": (Faults(ignores_recalls=True), timers.RECALLED),
}


def test_a_model_that_does_right_breaks_nothing() -> None:
    """Every kind of thing happens, and nothing is reported."""
    counts: Counter[str] = Counter()

    for seed in range(SEEDS):
        world = simulate_fake(seed)
        assert world.failure is None, f"seed {seed}"
        counts += world.counts

    assert [each for each in HAPPENS if not counts[each]] == []


@pytest.mark.parametrize("name", WRONG)
def test_a_model_that_does_wrong_is_caught(name: str) -> None:
    """By the checker of that promise, within the first seeds."""
    faults, rule = WRONG[name]

    outcomes = (simulate_fake(seed, faults).failure for seed in range(SEEDS))
    found = next((failure for failure in outcomes if failure is not None), None)

    assert found is not None, name
    assert found.invariant == rule
