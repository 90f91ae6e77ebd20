"""Forgetting replicas, and rebuilding groups."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brokerset_controller.liveness import LiveView
from brokerset_controller.replicas.apply import apply
from brokerset_controller.replicas.decide_cleaning import decide_clean, decide_rebuild
from brokerset_controller.replicas.decisions import Decision
from brokerset_controller.replicas.events import Applied, GroupRebuilt, ReplicasCleaned
from brokerset_controller.replicas.state import GROUPS_MAX, Group, Replica
from brokerset_protocol.headers.controller import CleanControllerBrokerData
from brokerset_sim.replica_groups import CLUSTER, NAME, group_of, view_of

GROUP = group_of(1, 2, 3, master=1, epoch=4, in_sync=(1, 2), set_epoch=6, owner="uid", expected=3)


def clean(
    group: Group | None,
    view: LiveView,
    ids: str | None = None,
    *,
    living: bool = False,
    cluster: str = CLUSTER,
) -> Decision:
    return decide_clean(
        group,
        CleanControllerBrokerData(
            cluster_name=cluster,
            broker_name=NAME,
            broker_controller_ids_to_clean=ids,
            is_clean_living_broker=living,
        ),
        view,
    )


def cleaned(group: Group, view: LiveView, ids: str | None = None, *, living: bool = False) -> Group:
    event = clean(group, view, ids, living=living).event
    assert event is not None
    after, outcome = apply(group, event)
    assert outcome == Applied()
    assert after is not None
    return after


def test_a_living_broker_is_refused_in_rocketmqs_words() -> None:
    """mqadmin shows this text."""
    decision = clean(GROUP, view_of(1, 2, 3), "1")

    assert (decision.code, decision.event) == (2009, None)
    assert decision.remark == "Broker [a,  1] is still alive, clean up failure"


@pytest.mark.parametrize(
    ("ids", "part"),
    [
        ("x", "illegal"),
        ("1;;2", "illegal"),
        ("9" * 30, "illegal"),
        (None, "has a master"),
        ("3", "not known yet"),
    ],
)
def test_requests_that_might_hit_the_wrong_ones_are_refused(ids: str | None, part: str) -> None:
    """Bad numbers, a whole group with a master, and brokers that nobody has asked yet."""
    decision = clean(GROUP, LiveView(), ids)

    assert decision.code == 2009
    assert part in (decision.remark or "")


def test_another_clusters_group_and_an_unknown_one_are_refused() -> None:
    """RocketMQ would take the brokers of another cluster's name for dead and clean them."""
    assert clean(GROUP, view_of(dead=(3,)), "3", cluster="elsewhere").code == 2009
    assert clean(None, LiveView(), "3").code == 2009
    assert clean(group_of(next_id=4), LiveView(), "3").code == 2009


def test_a_dead_replica_out_of_sync_just_goes() -> None:
    """Epochs stay as they are, and so does the next id."""
    after = cleaned(GROUP, view_of(1, 2, dead=(3,)), "3")

    assert list(after.replicas) == [1, 2]
    assert (after.master_id, after.master_epoch, after.sync_state_set_epoch, after.next_broker_id) == (
        1,
        4,
        6,
        4,
    )
    assert clean(after, view_of(1, 2), "3").code == 0
    assert clean(after, view_of(1, 2), "3").event is None


def test_a_cleaned_master_is_no_master() -> None:
    """Named ones only, also with living ones; both epochs grow."""
    after = cleaned(GROUP, view_of(1, 2, 3), "1", living=True)

    assert list(after.replicas) == [2, 3]
    assert (after.master_id, after.master_epoch) == (None, 5)
    assert (after.sync_state_set, after.sync_state_set_epoch) == (frozenset((2,)), 7)


def test_the_last_in_sync_replica_stays_while_others_do() -> None:
    """Who came after it might lack messages."""
    assert clean(GROUP, view_of(dead=(1, 2)), "1;2").code == 2009
    assert clean(GROUP, view_of(1, 2, 3), "1;2", living=True).code == 2009
    assert clean(GROUP, view_of(1, 2, 3), "1;2;3", living=True).code == 0


def test_a_fully_cleaned_group_keeps_ids_and_epochs_and_belongs_to_nobody() -> None:
    """Ids are never given twice."""
    after = cleaned(GROUP, view_of(1, 2, 3), living=True)

    assert not after.known
    assert (after.next_broker_id, after.master_epoch, after.sync_state_set_epoch) == (4, 5, 7)
    assert (after.owner, after.expected_replicas, after.master_id) == (None, 0, None)


def test_a_group_without_master_is_cleaned_when_all_are_dead() -> None:
    """Without names everybody goes, unless somebody lives."""
    group = group_of(1, 2)

    assert clean(group, view_of(dead=(1, 2))).event == ReplicasCleaned(NAME, frozenset((1, 2)), 0, 0)
    assert clean(group, view_of(1, dead=(2,))).code == 2009


def test_rebuilding_never_lowers_what_is_known() -> None:
    """Next id and epochs are the highest that anybody remembers; nobody is in sync."""
    wanted = replace(group_of(1, 7, master=1, epoch=9, in_sync=(1,), set_epoch=3), next_broker_id=4)
    decision = decide_rebuild(group_of(next_id=30, epoch=5, set_epoch=8), wanted)

    assert isinstance(decision.event, GroupRebuilt)
    rebuilt = decision.event.group
    assert (rebuilt.next_broker_id, rebuilt.master_epoch, rebuilt.sync_state_set_epoch) == (30, 9, 8)
    assert (rebuilt.master_id, rebuilt.sync_state_set) == (None, frozenset())
    fresh = decide_rebuild(None, wanted).event
    assert isinstance(fresh, GroupRebuilt)
    assert fresh.group.next_broker_id == 8


def test_rebuilding_is_for_groups_without_replicas_and_may_be_repeated() -> None:
    """A group in use is never overwritten."""
    wanted = group_of(1, 2, epoch=3)
    event = decide_rebuild(None, wanted).event
    assert event is not None
    after, _ = apply(None, event)

    assert decide_rebuild(after, wanted).code == 0
    assert decide_rebuild(after, wanted).event is None
    assert decide_rebuild(after, group_of(1, 2, 3, epoch=3)).code == 2005
    assert decide_rebuild(None, wanted, group_count=GROUPS_MAX).code == 2005


@pytest.mark.parametrize(
    "wanted",
    [
        replace(group_of(1), broker_name=""),
        replace(group_of(1), cluster_name="c" * 256),
        group_of(next_id=3),
        replace(group_of(1), master_epoch=-1),
        replace(group_of(1), next_broker_id=0),
        replace(group_of(1), replicas={1: Replica(2, "h:1", "")}),
        replace(group_of(1), replicas={1: Replica(1, "", "")}),
        replace(group_of(1), replicas={0: Replica(0, "h:1", "")}),
        group_of(*range(1, 66)),
    ],
)
def test_impossible_groups_are_not_rebuilt(wanted: Group) -> None:
    """What an administrator sends is checked like everything from outside."""
    assert decide_rebuild(None, wanted).code == 2005
