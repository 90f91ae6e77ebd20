"""What members of DLedger groups say, put together as controllers would tell it."""

from __future__ import annotations

import json
from typing import Any

from brokerset_operator.brokers_view import trouble_of
from brokerset_operator.ledger_view import (
    Member,
    elects_itself,
    group_names,
    group_states,
    members_of,
)
from brokerset_protocol.bodies.controllers import GroupState
from brokerset_spec.dledger_members import IN_SYNC_BYTES

LIVE: dict[str, Any] = {
    "metadata": {"name": "orders", "namespace": "shop"},
    "spec": {"replication": {"mode": "dledger"}, "groups": 1},
}
DOMAIN = "orders-0.shop.svc"
PEERS = ";".join(f"n{n}-orders-0-{n}.{DOMAIN}:40911" for n in range(3))


def pod(name: str, ip: str, component: str = "broker", **status: Any) -> dict[str, Any]:
    running = {"state": {"running": {"startedAt": "2026-11-26T10:00:00Z"}}}
    return {
        "metadata": {"name": name, "labels": {"app.kubernetes.io/component": component}},
        "status": {"podIP": ip, "containerStatuses": [running], **status},
    }


PODS = {f"orders-0-{n}": pod(f"orders-0-{n}", f"10.0.0.{n}") for n in range(3)}
MEMBERS = members_of(LIVE, PODS)


STARTED = 1795687200
"""2026-11-26T10:00:00Z."""


def table(
    number: int, *, role: str = "FOLLOWER", term: int = 4, leader: str = "n0", **said: str
) -> dict[str, str]:
    leads = role == "LEADER"
    return {
        "brokersetRole": "master" if leads else "slave",
        "brokersetMaxOffset": "900",
        "brokersetInSync": "1,2" if leads else "",
        "brokersetReplicas": lags(0, 0) if leads else "[]",
        "brokersetDLedgerSelfId": f"n{number}",
        "brokersetDLedgerPeers": PEERS,
        "brokersetDLedgerRole": role,
        "brokersetDLedgerTerm": str(term),
        "brokersetDLedgerLeader": leader,
        "brokersetDLedgerEndIndex": "9",
        **said,
    }


def lags(second: int, third: int) -> str:
    return json.dumps([{"id": 2, "lagBytes": second}, {"id": 3, "lagBytes": third}])


def state_of(*tables: dict[str, str] | None) -> GroupState:
    found = {f"orders-0-{n}": each for n, each in enumerate(tables) if each is not None}
    (state,) = group_states(MEMBERS, found)
    return state


def test_members_are_the_pods_of_brokers_that_run_with_their_number_and_peer_address() -> None:
    pods = {
        **PODS,
        "orders-0-2": pod("orders-0-2", "10.0.0.2", containerStatuses=[]),
        "orders-namesrv-0": pod("orders-namesrv-0", "10.0.0.9", "namesrv"),
        "orders-7-0": pod("orders-7-0", "10.0.0.8"),
    }

    assert members_of(LIVE, pods) == (
        Member("orders-0-0", "10.0.0.0:10911", "orders-0", 0, f"orders-0-0.{DOMAIN}:40911", STARTED),
        Member("orders-0-1", "10.0.0.1:10911", "orders-0", 1, f"orders-0-1.{DOMAIN}:40911", STARTED),
    )


def test_groups_have_their_names_of_the_manifest_and_those_that_went_their_remembered_ones() -> None:
    had = [{"index": 1, "name": "broker-b"}, {"index": 0, "name": "broker-a"}]
    live = {**LIVE, "spec": {"brokerNames": ["broker-a"]}, "status": {"workflow": {"groups": had}}}

    assert group_names(live) == {"orders-0": "broker-a", "orders-1": "broker-b"}
    assert group_names(LIVE) == {"orders-0": "orders-0"}


def test_only_the_mode_dledger_elects_itself() -> None:
    assert elects_itself(LIVE)
    assert not elects_itself({"spec": {"replication": {"mode": "controller"}}})
    assert not elects_itself({"spec": None})


def test_the_leader_is_master_in_the_epoch_above_its_term_and_all_have_the_ids_of_their_pods() -> None:
    state = state_of(table(0, role="LEADER"), table(1), table(2))

    assert (state.broker_name, state.master_id, state.master_epoch) == ("orders-0", 1, 5)
    assert [(r.broker_id, r.address, r.standing) for r in state.replicas] == [
        (1, "10.0.0.0:10911", "alive"),
        (2, "10.0.0.1:10911", "alive"),
        (3, "10.0.0.2:10911", "alive"),
    ]
    assert {replica.incarnation for replica in state.replicas} == {STARTED}
    assert state.sync_state_set == (1, 2, 3)


def test_who_lacks_a_little_under_load_is_in_sync_and_who_lacks_much_is_not() -> None:
    little = state_of(table(0, role="LEADER", brokersetReplicas=lags(0, IN_SYNC_BYTES)), table(1), table(2))
    much = state_of(table(0, role="LEADER", brokersetReplicas=lags(0, IN_SYNC_BYTES + 1)), table(1), table(2))

    assert little.sync_state_set == (1, 2, 3)
    assert much.sync_state_set == (1, 2)


def test_who_does_not_follow_the_leader_in_its_term_is_not_in_sync_however_long_its_log_is() -> None:
    older = state_of(table(0, role="LEADER"), table(1, term=3), table(2))
    alone = state_of(table(0, role="LEADER"), table(1, role="CANDIDATE", leader=""), table(2))
    silent = state_of(table(0, role="LEADER"), None, table(2))

    assert older.sync_state_set == alone.sync_state_set == silent.sync_state_set == (1, 3)
    assert [replica.standing for replica in silent.replicas] == ["alive", "dead", "alive"]


def test_without_a_leader_nobody_is_in_sync_and_it_is_said_why() -> None:
    state = state_of(table(0, role="CANDIDATE", leader=""), None, None)

    assert (state.master_id, state.sync_state_set) == (None, ())
    assert state.advice is not None
    assert "no member leads (1 of 3 answer)" in state.advice


def test_a_group_that_nobody_ever_led_has_no_epoch() -> None:
    new = table(0, role="CANDIDATE", leader="", brokersetDLedgerEndIndex="-1")

    assert state_of(new).master_epoch == 0
    assert state_of(table(0, role="CANDIDATE", leader="")).master_epoch == 5


def test_an_answer_of_another_broker_at_the_address_counts_for_nothing() -> None:
    """Another member, or the member of another set's group of the same number."""
    foreign = PEERS.replace("orders", "others")
    found = {"orders-0-0": table(1), "orders-0-1": table(1, brokersetDLedgerPeers=foreign)}

    assert group_states(MEMBERS, found) == ()


def test_a_member_that_does_not_serve_says_why_in_its_own_words() -> None:
    text = "the commit log that it began with differs from that of n0"

    found = trouble_of(None, table(1, role="CANDIDATE", leader="", brokersetProblem=text))

    assert found is not None
    assert (found.text, found.refused) == (text, False)
    assert trouble_of(None, table(1)) is None
