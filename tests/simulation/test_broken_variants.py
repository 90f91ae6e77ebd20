"""The checkers see what they are for: code that is broken on purpose is caught within a few seeds."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest

from brokerset_controller.replicas.events import GroupRebuilt, MasterElected
from brokerset_controller.replicas.state import Group, Replica
from brokerset_sim.broken import VARIANTS, Variant
from brokerset_sim.group_checker import ELECTED_PROCESS, EPOCHS_GROW, ID_ONCE, GroupChecker
from brokerset_sim.history import Violation
from brokerset_sim.survivors import Survived
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


def test_an_election_of_a_process_that_was_overtaken_is_seen() -> None:
    """A mastership that was decided for one process and took effect for the next one is a violation.

    Seeds do not reach it without the guard: the two events would have to be proposed in the same sync.
    """
    before = Group("sim", "group-0", replicas={1: Replica(1, "b:1", "b:1;1", "second", 2)}, next_broker_id=2)
    event = MasterElected("group-0", 1, 1, 0, 0, False, "", None, "first")
    after = replace(
        before, master_id=1, master_epoch=1, sync_state_set=frozenset((1,)), sync_state_set_epoch=1
    )
    checker = GroupChecker("group-0", codes={1: "b:1;1"})

    with pytest.raises(Violation) as caught:
        checker.changed(before, after, event)

    assert caught.value.invariant == ELECTED_PROCESS


@pytest.mark.parametrize(
    ("epoch", "next_id", "invariant"), [(5, 3, None), (4, 3, EPOCHS_GROW), (5, 2, ID_ONCE)]
)
def test_numbers_fall_only_to_what_a_broker_knows(epoch: int, next_id: int, invariant: str | None) -> None:
    """What no broker knows any more may be given again; anything below what one knows is seen."""
    checker = GroupChecker("group-0", epoch_max=7, next_id_max=4, codes={1: "b:1;1", 3: "c:1;1"})
    checker.owns(1, "folder")
    checker.owns(3, "emptied folder")
    checker.controllers_lost(Survived(epoch=5, next_id=3))
    after = Group(
        "sim",
        "group-0",
        replicas={1: Replica(1, "b:1", "b:1;1", "first", 1)},
        next_broker_id=next_id,
        master_epoch=epoch,
    )

    with contextlib.ExitStack() as stack:
        caught = stack.enter_context(pytest.raises(Violation)) if invariant is not None else None
        checker.changed(None, after, GroupRebuilt(after))

    assert (caught.value.invariant if caught is not None else None) == invariant


def test_there_are_enough_deliberate_bugs() -> None:
    """At least twelve, each with its own name."""
    assert len({variant.name for variant in VARIANTS}) == len(VARIANTS) >= 12
