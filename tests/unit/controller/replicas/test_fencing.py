"""Taking replicas out of service, and what a fenced one may not be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brokerset_controller.replicas.apply import apply
from brokerset_controller.replicas.decide_election import decide_elect, decide_failover
from brokerset_controller.replicas.decide_fencing import decide_fence
from brokerset_controller.replicas.decide_sync_set import decide_alter_sync_state_set
from brokerset_controller.replicas.decisions import Decision
from brokerset_controller.replicas.describe import advice, describe_group
from brokerset_controller.replicas.events import (
    Applied,
    FencingChanged,
    GroupRebuilt,
    MasterElected,
    ReplicasCleaned,
    Superseded,
    SyncStateSetAltered,
)
from brokerset_controller.replicas.state import Group
from brokerset_protocol.bodies.controllers import GroupState
from brokerset_protocol.bodies.replicas import SyncStateSet
from brokerset_protocol.headers.controller import AlterSyncStateSet, ElectMaster, FenceReplica
from brokerset_sim.replica_groups import NAME, group_of, view_of

SERVING = group_of(1, 2, 3, master=1, epoch=4, in_sync=(1, 2, 3), set_epoch=6)
FENCED = replace(SERVING, sync_state_set=frozenset((1, 2)), fenced=frozenset((3,)))


def fence(group: Group | None, broker_id: int, *, fenced: bool = True, force: bool = False) -> Decision:
    header = FenceReplica(broker_name=NAME, broker_id=broker_id, fenced=fenced, force=force or None)
    return decide_fence(group, header)


def applied(group: Group, decision: Decision) -> Group:
    assert decision.event is not None, decision.remark
    after, outcome = apply(group, decision.event)
    assert outcome == Applied()
    assert after is not None
    return after


def test_a_fenced_slave_leaves_the_in_sync_set_in_the_same_event() -> None:
    """The set epoch grows, so the master cannot put it back by a request that was on its way."""
    after = applied(SERVING, fence(SERVING, 3))

    assert (set(after.fenced), set(after.sync_state_set), after.sync_state_set_epoch) == ({3}, {1, 2}, 7)
    assert (after.master_id, after.master_epoch) == (1, 4)


def test_who_is_not_in_sync_is_fenced_without_another_set() -> None:
    """Nothing changes for the master."""
    group = group_of(1, 2, 3, master=1, epoch=4, in_sync=(1,), set_epoch=6)

    after = applied(group, fence(group, 3))

    assert (set(after.fenced), set(after.sync_state_set), after.sync_state_set_epoch) == ({3}, {1}, 6)


def test_a_fence_can_be_lifted_and_repetitions_are_granted() -> None:
    """The replica gets in sync again by itself."""
    after = applied(FENCED, fence(FENCED, 3, fenced=False))

    assert (set(after.fenced), set(after.sync_state_set)) == (set(), {1, 2})
    assert (fence(FENCED, 3).code, fence(FENCED, 3).event) == (0, None)
    assert (fence(SERVING, 3, fenced=False).code, fence(SERVING, 3, fenced=False).event) == (0, None)


@pytest.mark.parametrize(
    ("group", "broker_id", "code", "text"),
    [
        (None, 3, 2008, "is unknown"),
        (replace(SERVING, replicas={}), 3, 2008, "is unknown"),
        (SERVING, 9, 2003, "replica 9 of a is not registered; registered are 1, 2, 3"),
        (SERVING, 1, 2005, "`brokerset switchover a`"),
        (
            group_of(1, 2, master=1, epoch=4, in_sync=(1, 2)),
            2,
            2005,
            "only the master of a, replica 1, would",
        ),
        (group_of(1, 2, epoch=4, in_sync=(2,)), 2, 2005, "replica 2 alone is in sync"),
    ],
)
def test_what_cannot_be_fenced(group: Group | None, broker_id: int, code: int, text: str) -> None:
    """The refusal says what to do first."""
    decision = fence(group, broker_id)

    assert (decision.code, decision.event) == (code, None)
    assert text in (decision.remark or "")


def test_force_leaves_the_master_alone_but_nobody_without_replicas_in_sync() -> None:
    """The last in-sync replica is not fenced even so: nobody could be elected."""
    two = group_of(1, 2, master=1, epoch=4, in_sync=(1, 2), set_epoch=1)

    assert applied(two, fence(two, 2, force=True)).sync_state_set == {1}
    assert fence(SERVING, 1, force=True).code == 2005
    assert fence(group_of(1, 2, epoch=4, in_sync=(2,)), 2, force=True).code == 2005


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (FencingChanged(NAME, 9, True, 4, 6), "not registered"),
        (FencingChanged(NAME, 3, True, 3, 6), "at epoch 4"),
        (FencingChanged(NAME, 3, True, 4, 5), "set epoch 6"),
        (FencingChanged(NAME, 1, True, 4, 6), "1 is master"),
    ],
)
def test_guards_are_checked_again(event: FencingChanged, reason: str) -> None:
    """Between the decision and the event another master may have been elected."""
    after, outcome = apply(SERVING, event)

    assert after is SERVING
    assert isinstance(outcome, Superseded)
    assert reason in outcome.reason


def test_the_last_in_sync_replica_stays_whatever_was_decided() -> None:
    """And a group that is not there cannot be fenced."""
    group = group_of(1, 2, epoch=4, in_sync=(2,), set_epoch=1)

    assert isinstance(apply(group, FencingChanged(NAME, 2, True, 4, 1))[1], Superseded)
    assert isinstance(apply(None, FencingChanged(NAME, 2, True, 4, 1))[1], Superseded)


def test_events_that_would_serve_a_fenced_replica_change_nothing() -> None:
    """An election or a set that was decided on before the fence."""
    elected = MasterElected(NAME, 3, 5, 4, 6, True, "", None, "n3")
    altered = SyncStateSetAltered(NAME, 1, 4, 6, frozenset((1, 3)))

    assert isinstance(apply(FENCED, elected)[1], Superseded)
    assert isinstance(apply(FENCED, altered)[1], Superseded)


def test_fences_end_with_the_replica_and_with_a_rebuild() -> None:
    """An id is never given twice; and brokers know nothing of fences."""
    cleaned, _ = apply(FENCED, ReplicasCleaned(NAME, frozenset((3,)), 4, 6))
    rebuilt, _ = apply(None, GroupRebuilt(FENCED))

    assert cleaned is not None
    assert cleaned.fenced == frozenset()
    assert rebuilt is not None
    assert rebuilt.fenced == frozenset()


def test_a_fenced_replica_is_not_taken_into_the_set() -> None:
    """2003, with the way out."""
    header = AlterSyncStateSet(broker_name=NAME, master_broker_id=1, master_epoch=4)
    body = SyncStateSet(frozenset((1, 2, 3)), 6)

    decision = decide_alter_sync_state_set(FENCED, header, body, view_of(1, 2, 3))

    assert decision.code == 2003
    assert "`brokerset unfence a 3`" in (decision.remark or "")


def test_a_fenced_replica_is_never_elected() -> None:
    """Not clean, not unclean, not by name, not as the first master."""
    in_sync = replace(SERVING, sync_state_set=frozenset((1, 3)), fenced=frozenset((3,)))
    virgin = group_of(1, 2, expected=2, fenced=(2,))
    logs = {1: (1, 10), 2: (1, 20)}

    assert decide_failover(in_sync, view_of(2, 3, dead=(1,)), unclean_allowed=False) is None
    unclean = decide_failover(FENCED, view_of(3, dead=(1, 2)), unclean_allowed=True)
    assert unclean is None
    named = ElectMaster(broker_name=NAME, broker_id=3, designate_elect=True, unclean=True)
    refused = decide_elect(FENCED, named, view_of(3, dead=(1, 2)), unclean_allowed=True)
    assert refused.code == 2012
    assert "`brokerset unfence a 3` first" in (refused.remark or "")
    assert decide_failover(virgin, view_of(1, 2, logs=logs), unclean_allowed=False) is None
    assert "replica 2 of a is fenced" in (advice(virgin, view_of(1, 2, logs=logs)) or "")
    asked = ElectMaster(broker_name=NAME, broker_id=2)
    first = decide_elect(group_of(1, 2, fenced=(2,)), asked, view_of(1, 2), unclean_allowed=False)
    assert first.code == 2012


def test_a_fenced_suspect_with_the_longest_log_holds_the_election_up() -> None:
    """Another one would lose what it has."""
    group = group_of(1, 2, 3, epoch=4, in_sync=(1,), suspects=(1, 2), fenced=(2,))
    view = view_of(1, 2, dead=(3,), logs={1: (4, 10), 2: (4, 20)})

    assert decide_failover(group, view, unclean_allowed=False) is None
    assert "`brokerset unfence a 2`" in (advice(group, view) or "")
    shorter = view_of(1, 2, dead=(3,), logs={1: (4, 30), 2: (4, 20)})
    assert decide_failover(group, shorter, unclean_allowed=False) is not None


def test_people_see_who_is_fenced() -> None:
    """In the answer to 21005."""
    state = describe_group(FENCED, view_of(1, 2, 3), 0.0)

    assert state.fenced == (3,)
    assert GroupState.from_json(state.to_json()) == state
