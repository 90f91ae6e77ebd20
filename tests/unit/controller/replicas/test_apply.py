"""Events change the state once, or not at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brokerset_controller.replicas.apply import apply
from brokerset_controller.replicas.events import (
    Applied,
    BrokerIdApplied,
    Event,
    GroupRebuilt,
    MasterElected,
    ReplicaAdopted,
    ReplicaMoved,
    ReplicasCleaned,
    ReplicaStarted,
    Superseded,
    SyncStateSetAltered,
)
from brokerset_controller.replicas.state import LOSSES_KEPT_MAX, Group, PossibleLoss
from brokerset_sim.replica_groups import CLUSTER, NAME, group_of

GROUP = group_of(1, 2, 3, master=1, epoch=4, in_sync=(1, 2), set_epoch=6)
START = ReplicaStarted(NAME, 2, "n2", "x2", "h9:1", False, 3)


def done(group: Group | None, event: Event) -> Group:
    after, outcome = apply(group, event)
    assert outcome == Applied()
    assert after is not None
    return after


def test_a_start_moves_the_replica_and_counts_its_incarnation() -> None:
    """Nothing else changes for a replica that is not master."""
    after = done(GROUP, START)

    assert after.replicas[2].nonce == "x2"
    assert (after.replicas[2].address, after.replicas[2].incarnation) == ("h9:1", 2)
    assert (after.master_id, after.master_epoch, after.expected_replicas) == (1, 4, 3)
    assert apply(after, START) == (after, Applied())


def test_a_masters_start_ends_its_mastership() -> None:
    """The epoch grows, the in-sync set stays."""
    after = done(GROUP, ReplicaStarted(NAME, 1, "n1", "x1", "h1:1", False, 0))

    assert (after.master_id, after.master_epoch) == (None, 5)
    assert after.sync_state_set == frozenset((1, 2))


def test_a_lost_page_cache_costs_the_place_in_the_set_but_not_the_last_one() -> None:
    """The last one stays and is a suspect; one that was not in sync had nothing to lose."""
    first = done(GROUP, replace(START, lost_cache=True))
    second = done(first, ReplicaStarted(NAME, 1, "n1", "x1", "h1:1", True, 0))
    third = done(second, ReplicaStarted(NAME, 3, "n3", "x3", "h3:1", True, 0))

    assert (first.sync_state_set, first.sync_state_set_epoch) == (frozenset((1,)), 7)
    assert first.suspects == frozenset((2,))
    assert (second.sync_state_set, second.sync_state_set_epoch) == (frozenset((1,)), 7)
    assert second.suspects == third.suspects == frozenset((1, 2))


def test_joining_the_set_and_electing_clear_suspicion() -> None:
    """Whoever is in sync again has everything."""
    suspected = replace(GROUP, suspects=frozenset((2, 3)), sync_state_set=frozenset((1,)))
    joined = done(suspected, SyncStateSetAltered(NAME, 1, 4, 6, frozenset((1, 2))))
    elected = done(joined, MasterElected(NAME, 2, 9, 4, 7, False, "", expected_nonce="n2"))

    assert joined.suspects == frozenset((3,))
    assert elected.suspects == frozenset()
    assert (elected.master_id, elected.master_epoch) == (2, 9)
    assert (elected.sync_state_set, elected.sync_state_set_epoch) == (frozenset((2,)), 8)


def test_old_losses_give_way_to_new_ones() -> None:
    """The list is bounded."""
    losses = tuple(PossibleLoss(i, 1, i, "") for i in range(LOSSES_KEPT_MAX))
    newest = PossibleLoss(9, 2, 5, "")
    after = done(replace(GROUP, losses=losses), MasterElected(NAME, 2, 9, 4, 6, True, "", newest, "n2"))

    assert after.losses == (*losses[1:], newest)


@pytest.mark.parametrize(
    "event",
    [
        BrokerIdApplied(CLUSTER, NAME, None, 0, 5, "h:1", "c"),
        BrokerIdApplied(CLUSTER, NAME, None, 0, 1, "h:1", "c"),
        BrokerIdApplied("elsewhere", NAME, None, 0, 4, "h:1", "c"),
        ReplicaAdopted(CLUSTER, NAME, None, 0, 3, "h:1", "n", 0),
        ReplicaAdopted(CLUSTER, NAME, None, 0, 4, "h:1", "n", 5),
        replace(START, expected_nonce="older"),
        replace(START, broker_id=9),
        ReplicaMoved(NAME, 9, "h:1"),
        SyncStateSetAltered(NAME, 2, 4, 6, frozenset((1, 2, 3))),
        SyncStateSetAltered(NAME, 1, 3, 6, frozenset((1, 2, 3))),
        SyncStateSetAltered(NAME, 1, 4, 5, frozenset((1, 2, 3))),
        SyncStateSetAltered(NAME, 1, 4, 6, frozenset((1, 9))),
        SyncStateSetAltered(NAME, 1, 4, 6, frozenset((2,))),
        MasterElected(NAME, 2, 5, 3, 6, False, "", None, "n2"),
        MasterElected(NAME, 2, 5, 4, 5, False, "", None, "n2"),
        MasterElected(NAME, 2, 4, 4, 6, False, "", None, "n2"),
        MasterElected(NAME, 3, 5, 4, 6, False, "", None, "n3"),
        MasterElected(NAME, 9, 5, 4, 6, True, ""),
        MasterElected(NAME, 2, 5, 4, 6, False, "", None, "an older start"),
        ReplicasCleaned(NAME, frozenset((3,)), 3, 6),
        ReplicasCleaned(NAME, frozenset((1, 2)), 4, 6),
        GroupRebuilt(group_of(7)),
    ],
)
def test_a_guard_that_does_not_hold_changes_nothing(event: Event) -> None:
    """Other events came in between: the leader decides again."""
    after, outcome = apply(GROUP, event)

    assert after is GROUP
    assert isinstance(outcome, Superseded)
    assert outcome.reason


@pytest.mark.parametrize(
    "event", [START, ReplicaMoved(NAME, 1, "h:1"), ReplicasCleaned(NAME, frozenset((1,)), 0, 0)]
)
def test_events_about_unknown_groups_change_nothing(event: Event) -> None:
    """There is nothing to change."""
    after, outcome = apply(None, event)

    assert after is None
    assert isinstance(outcome, Superseded)


@pytest.mark.parametrize(
    "event",
    [
        BrokerIdApplied(CLUSTER, NAME, None, 0, 4, "h4:1", "h4:1;9"),
        ReplicaAdopted(CLUSTER, NAME, None, 0, 6, "h6:1", "n6", 3),
        START,
        ReplicaMoved(NAME, 1, "h7:1"),
        SyncStateSetAltered(NAME, 1, 4, 6, frozenset((1, 2, 3))),
        MasterElected(NAME, 2, 5, 4, 6, False, "", None, "n2"),
        ReplicasCleaned(NAME, frozenset((2,)), 4, 6),
    ],
)
def test_a_repeated_event_changes_nothing_and_holds(event: Event) -> None:
    """A proposal whose fate was unknown may be proposed again."""
    once = done(GROUP, event)

    assert apply(once, event) == (once, Applied())


def test_adopted_ids_may_come_in_any_order() -> None:
    """The ids that were passed over are not given to new brokers, and still belong to their volumes."""
    group = done(None, ReplicaAdopted(CLUSTER, NAME, "uid", 3, 3, "h3:1", "n3", 8))
    assert (group.next_broker_id, group.unclaimed, group.master_epoch) == (4, frozenset((1, 2)), 8)

    group = done(group, ReplicaAdopted(CLUSTER, NAME, "uid", 3, 1, "h1:1", "n1", 9))

    assert (group.next_broker_id, group.unclaimed, group.master_epoch) == (4, frozenset((2,)), 9)
    assert list(group.replicas) == [1, 3]
    cleaned = done(group, ReplicasCleaned(NAME, frozenset((1,)), 9, 0))
    assert isinstance(
        apply(cleaned, ReplicaAdopted(CLUSTER, NAME, "uid", 3, 1, "h1:1", "n9", 9))[1], Superseded
    )
