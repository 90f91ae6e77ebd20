"""What brokers say about their replication, read, judged and told to scripts."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from brokerset_cli.cluster_view import ControllersView, group_lines, replica_state, view_json
from brokerset_cli.replication_view import (
    lag_of,
    master_facts,
    replication_problems,
)
from brokerset_client.broker_facts import BrokerFacts, facts_from
from brokerset_protocol.bodies.controllers import GroupState, ReplicaState

SLAVES = [
    {"id": 2, "address": "h:2", "acknowledged": 900, "lagBytes": 100, "inSync": True, "learner": False},
    {"id": 3, "address": "h:3", "acknowledged": 400, "lagBytes": 600, "inSync": False, "learner": False},
]
MASTER = {
    "brokersetRole": "master",
    "brokersetMasterEpoch": "7",
    "brokersetConfirmedOffset": "900",
    "brokersetMaxOffset": "1000",
    "brokersetLagBytes": "",
    "brokersetInSync": "1,2",
    "brokersetSetEpoch": "9",
    "brokersetLeaseMs": "1234",
    "brokersetFenced": "false",
    "brokersetFollowing": "off",
    "brokersetFollowProblem": "",
    "brokersetFollowAdvice": "",
    "brokersetReplicas": json.dumps(SLAVES),
}
SLAVE = {
    **MASTER,
    "brokersetRole": "slave",
    "brokersetMaxOffset": "450",
    "brokersetLagBytes": "550",
    "brokersetInSync": "",
    "brokersetLeaseMs": "",
    "brokersetFollowing": "transfer",
    "brokersetReplicas": "",
}


def _replica(broker_id: int, standing: str = "alive") -> ReplicaState:
    return ReplicaState(broker_id, f"h:{broker_id}", "", 1, None, standing)


GROUP = GroupState(
    "C", "orders-0", None, 3, 4, 1, 7, (1, 2), 9, (), (), (_replica(1), _replica(2), _replica(3))
)


def _facts(address: str, table: dict[str, str], least: int | None = None) -> BrokerFacts:
    found = facts_from(address, table, least)
    assert found is not None
    return found


def _all(least: int = 2, **third: str) -> dict[str, BrokerFacts]:
    """A master and two slaves; the second slave says `third` as well."""
    found = (
        _facts("h:1", MASTER, least),
        _facts("h:2", {**SLAVE, "brokersetLagBytes": "90"}),
        _facts("h:3", {**SLAVE, **third}),
    )
    return {each.address: each for each in found}


def test_everything_that_a_master_says_is_read() -> None:
    found = _facts("h:1", MASTER, 2)

    assert found.is_master
    assert (found.epoch, found.set_epoch, found.in_sync) == (7, 9, (1, 2))
    assert (found.max_offset, found.confirmed_offset, found.min_in_sync) == (1000, 900, 2)
    assert [slave.to_json() for slave in found.replicas] == SLAVES


@pytest.mark.parametrize(
    ("role", "lease", "shown"),
    [
        ("master", "1234", "1,234 ms"),
        ("master", "-1", "none"),
        ("master", "", "not used"),
        ("slave", "1234", ""),
    ],
)
def test_a_lease_is_held_missing_or_not_used_at_all(role: str, lease: str, shown: str) -> None:
    """With RocketMQ's controllers there are no leases; slaves never have one."""
    assert _facts("h:1", {**MASTER, "brokersetRole": role, "brokersetLeaseMs": lease}).lease == shown


@pytest.mark.parametrize("table", [{}, {"brokersetRole": "master"}, {"bootTimestamp": "1"}])
def test_a_broker_that_says_nothing_about_replication_has_no_facts(table: dict[str, str]) -> None:
    assert facts_from("h:1", table) is None


@pytest.mark.parametrize("text", ["", "{", "[1]", "[{}]", '{"id": 1}', '[{"id": "x"}]'])
def test_slaves_that_cannot_be_read_are_none(text: str) -> None:
    assert _facts("h:1", {**MASTER, "brokersetReplicas": text}).replicas == ()


def test_numbers_that_are_none_are_not_known() -> None:
    found = _facts("h:1", {**MASTER, "brokersetMaxOffset": "many", "brokersetInSync": "1, x,3"})

    assert (found.max_offset, found.in_sync) == (None, (1, 3))


def test_the_lag_is_what_the_master_counts_else_what_the_slave_says() -> None:
    facts = _all()
    master = master_facts(GROUP, facts)

    assert [lag_of(each, facts, master) for each in GROUP.replicas] == [0, 100, 600]
    assert lag_of(GROUP.replicas[1], facts, None) == 90
    assert lag_of(_replica(9), facts, master) is None


def test_a_group_in_which_all_is_well_has_no_problem() -> None:
    facts = _all()
    facts["h:1"] = replace(facts["h:1"], in_sync=(1, 2, 3))

    assert replication_problems([GROUP], facts) == []
    assert replication_problems([GROUP], {}) == []


def test_a_replica_that_is_behind_is_named_with_its_lag() -> None:
    assert replication_problems([GROUP], _all()) == ["orders-0/3 at h:3 is not in sync yet, 600 bytes behind"]


def test_a_replica_that_does_not_follow_says_why_and_what_to_do() -> None:
    facts = _all(
        brokersetFollowProblem="nothing in common", brokersetFollowAdvice="run `brokerset replica replace`"
    )

    assert replication_problems([GROUP], facts) == [
        "orders-0/3 at h:3 does not follow: nothing in common; run `brokerset replica replace`"
    ]


def test_too_few_in_sync_and_a_master_without_lease_are_problems() -> None:
    facts = _all(3)
    facts["h:1"] = replace(facts["h:1"], lease_ms=-1)

    found = replication_problems([GROUP], facts)

    assert found[0].startswith("orders-0: 2 in sync, and sends are refused below 3: ")
    assert found[1].startswith("orders-0/1 is master and has no lease: ")


def test_fenced_dead_and_learning_replicas_need_not_be_in_sync() -> None:
    facts = _all()
    learner = replace(facts["h:1"].replicas[1], learner=True)
    learns = {**facts, "h:1": replace(facts["h:1"], replicas=(learner,))}
    dead = replace(GROUP, replicas=(*GROUP.replicas[:2], _replica(3, "dead")))

    assert replication_problems([replace(GROUP, fenced=(3,))], facts) == []
    assert replication_problems([dead], facts) == []
    assert replication_problems([GROUP], learns) == []


def test_a_replica_whose_log_is_stuck_is_named() -> None:
    group = replace(GROUP, replicas=(replace(_replica(1), stuck=True),))

    (found,) = replication_problems([group], {})

    assert found.startswith("orders-0/1 at h:1 lives, and its log takes nothing any more")


def test_a_group_is_shown_with_its_least_number_and_fenced_replicas_as_such() -> None:
    facts = _all()
    group = replace(GROUP, fenced=(2, 4))
    dead = _replica(4, "dead")

    (line,) = group_lines(group, master_facts(group, facts))

    assert line.startswith("orders-0: master 1, epoch 7; in sync: 1, 2 (epoch 9, at least 2)")
    assert [replica_state(group, each) for each in (*group.replicas, dead)] == [
        "alive",
        "fenced",
        "alive",
        "dead, fenced",
    ]
    assert replica_state(group, replace(_replica(1), stuck=True)) == "stuck"


def test_scripts_get_all_of_it_with_every_key_for_every_replica() -> None:
    facts = _all()
    del facts["h:2"]
    view = ControllersView(
        (), (GROUP, replace(GROUP, broker_name="silent", replicas=(_replica(9),))), None, facts
    )

    first, silent = view_json(view, {})["groups"]

    assert set(first) == set(silent)
    assert len({frozenset(replica) for replica in (*first["replicas"], *silent["replicas"])}) == 1
    assert (first["minInSyncReplicas"], first["confirmedOffset"]) == (2, 900)
    master, unheard, behind = first["replicas"]
    assert (master["leaseMs"], master["leaseUsed"], master["slaves"]) == (1234, True, SLAVES)
    assert (unheard["lagBytes"], unheard["following"]) == (None, None)
    assert (behind["lagBytes"], behind["following"], behind["inSync"]) == (600, "transfer", False)
