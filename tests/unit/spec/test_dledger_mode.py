"""`replication: {mode: dledger}`: what a manifest may say with it, and what is run on one machine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from brokerset_spec.manifest import ManifestError
from brokerset_spec.namesrv_settings import NamesrvSettings
from brokerset_spec.plan import PlanRefused, PortsTaken, PortWishes, move_broker
from brokerset_spec.set_memory import JoinedCluster, SetMemory

from .planning import NEW, brokers_of, controllers_of, manifest_of, plan_of

DLEDGER: dict[str, Any] = {"replication": {"mode": "dledger"}}
FIXED = "members of a DLedger group cannot be added or taken away"


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"replicas": 1}, "spec.replicas: a DLedger group has 3 or 5 brokers, not 1"),
        ({"replicas": 4}, "spec.replicas: a DLedger group has 3 or 5 brokers, not 4"),
        ({"replicas": 7}, "spec.replicas: a DLedger group has 3 or 5 brokers, not 7"),
        (
            {"replication": {"mode": "dledger", "minInSyncReplicas": 2}},
            "spec.replication.minInSyncReplicas: there are no in-sync sets with dledger",
        ),
        (
            {"replication": {"mode": "dledger", "acknowledge": "master"}},
            "spec.replication.acknowledge: cannot be chosen with dledger",
        ),
        (
            {"replication": {"mode": "dledger", "acknowledge": "allInSync"}},
            "spec.replication.acknowledge: cannot be chosen with dledger",
        ),
        (
            {"replication": {"mode": "dledger", "uncleanElection": True}},
            "spec.replication.uncleanElection: a DLedger elects no broker that may lack",
        ),
        ({"controllers": {"ref": {"name": "other"}}}, "spec.controllers.ref: a DLedger group elects its"),
        (
            {"config": {"enabledAppendPropCRC": True}},
            "spec.config.enabledAppendPropCRC: records of a DLedger have no check code",
        ),
        (
            {"config": {"preferredLeaderId": "n0;n3"}},
            "spec.config.preferredLeaderId: 'n3' is none of the members n0, n1, n2",
        ),
    ],
)
def test_what_makes_no_sense_with_a_dledger_is_refused_with_the_reason(
    spec: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ManifestError) as caught:
        manifest_of(**{**DLEDGER, **spec})

    (found,) = caught.value.problems
    assert str(found).startswith(problem)
    assert found.advice


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"replicas": 5},
        {"replication": {"mode": "dledger", "uncleanElection": False, "minInSyncReplicas": None}},
        {"controllers": {"replicas": 1}},
        {"config": {"preferredLeaderId": "n2;n0", "flushDiskType": "SYNC_FLUSH"}},
    ],
)
def test_what_has_a_meaning_with_a_dledger_is_accepted(spec: dict[str, Any]) -> None:
    assert manifest_of(**{**DLEDGER, **spec}).is_dledger


@pytest.mark.parametrize(
    "setting",
    [
        "enableDLegerCommitLog",
        "dLegerGroup",
        "dLegerPeers",
        "dLegerSelfId",
        "dLegerBrokersetOnly",
        "storePathDLedgerCommitLog",
    ],
)
@pytest.mark.parametrize("spec", [{}, DLEDGER], ids=["controller", "dledger"])
def test_what_the_set_decides_is_no_setting_of_a_manifest(setting: str, spec: dict[str, Any]) -> None:
    value = setting in ("enableDLegerCommitLog", "dLegerBrokersetOnly") or "n0"

    with pytest.raises(ManifestError, match=f"spec.config.{setting}: is set by brokerset itself"):
        manifest_of(**spec, config={setting: value})


def test_controllers_that_the_api_server_fills_in_without_a_field_are_not_asked_for() -> None:
    """It has `controllers: {}` as its default."""
    assert manifest_of(**DLEDGER, controllers={}).controllers_wanted == 0
    assert manifest_of(**DLEDGER, controllers={"ref": None}).controllers_wanted == 0
    assert manifest_of(**DLEDGER, controllers={"replicas": 1}).controllers_wanted == 1
    assert manifest_of(controllers={}).controllers_wanted == 3


@pytest.mark.parametrize(("replicas", "least"), [(3, 2), (5, 3)])
def test_a_dledger_takes_sends_while_more_than_half_of_its_members_have_them(
    replicas: int, least: int
) -> None:
    assert manifest_of(**DLEDGER, replicas=replicas).min_in_sync_replicas == least


def test_a_group_is_run_with_a_name_server_and_without_controllers() -> None:
    plan = plan_of(manifest_of(**DLEDGER))

    assert [(p.name, p.kind, p.address, p.ledger_address) for p in plan.processes] == [
        ("namesrv-0", "namesrv", "127.0.0.1:9876", ""),
        ("orders-0-0", "broker", "127.0.0.1:10911", "127.0.0.1:10912"),
        ("orders-0-1", "broker", "127.0.0.1:10921", "127.0.0.1:10922"),
        ("orders-0-2", "broker", "127.0.0.1:10931", "127.0.0.1:10932"),
    ]
    assert (plan.namesrv_address, plan.controller_address) == ("127.0.0.1:9876", "")
    assert isinstance(plan.processes[0].settings, NamesrvSettings)
    assert plan.notes == ()
    for number, settings in enumerate(brokers_of(plan)):
        assert settings.enable_dledger_commit_log
        assert settings.dledger_brokerset_only
        assert not settings.enable_controller_mode
        assert settings.dledger_group == settings.broker_name == "orders-0"
        assert settings.dledger_self_id == f"n{number}"
        assert settings.dledger_peers == "n0-127.0.0.1:10912;n1-127.0.0.1:10922;n2-127.0.0.1:10932"
        assert settings.namesrv_addr == "127.0.0.1:9876"
    assert all(process.settings.problems() == [] for process in plan.processes)
    taken = [port for process in plan.processes for port in process.ports]
    assert len(taken) == len(set(taken))


def test_each_group_is_a_dledger_of_its_own() -> None:
    plan = plan_of(manifest_of(**DLEDGER, groups=2, replicas=5))

    peers = {settings.broker_name: settings.dledger_peers for settings in brokers_of(plan)}
    assert [text.count(";") for text in peers.values()] == [4, 4]
    assert not set(peers["orders-0"].split(";")) & set(peers["orders-1"].split(";"))


def test_controllers_run_where_they_are_asked_for_and_serve_names_only() -> None:
    plan = plan_of(manifest_of(**DLEDGER, controllers={"replicas": 3}))

    assert [process.kind for process in plan.processes] == ["controller"] * 3 + ["broker"] * 3
    assert len(controllers_of(plan)) == 3
    assert plan.namesrv_address.count(";") == 2
    assert not any(settings.enable_controller_mode for settings in brokers_of(plan))
    (note,) = plan.notes
    assert "the controllers only serve names" in note


def test_the_next_start_takes_the_ports_of_the_last_one() -> None:
    first = plan_of(manifest_of(**DLEDGER), wishes=PortWishes(namesrv=20000, broker=21000, http=22000))

    again = plan_of(manifest_of(**DLEDGER), memory=first.memory)

    assert again == first
    assert SetMemory.from_json(first.memory.to_json()) == first.memory


def test_members_keep_their_ports_when_brokers_move() -> None:
    first = plan_of(manifest_of(**DLEDGER))

    other = plan_of(manifest_of(**DLEDGER), memory=first.memory, wishes=PortWishes(broker=30000))
    moved = move_broker(first, "orders-0-1", 31000)

    assert [process.port for process in other.brokers] == [30000, 30010, 30020]
    for plan in (other, moved):
        assert [p.ledger_address for p in plan.brokers] == [p.ledger_address for p in first.brokers]
        assert [s.dledger_peers for s in brokers_of(plan)] == [s.dledger_peers for s in brokers_of(first)]
        assert not any(process.ha_address for process in plan.brokers)


@pytest.mark.parametrize(("port", "who"), [(10922, "the DLedger of orders-0-1"), (9876, "namesrv-0")])
def test_a_port_by_which_others_know_a_process_is_not_replaced(port: int, who: str) -> None:
    memory = plan_of(manifest_of(**DLEDGER)).memory

    with pytest.raises(PortsTaken) as caught:
        plan_of(manifest_of(**DLEDGER), memory=memory, is_free=lambda one: one != port)

    assert (caught.value.port, caught.value.wanted_by, caught.value.kept) == (port, who, True)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({**DLEDGER, "replicas": 5}, f"spec.replicas: is 5, and orders-0 has 3 brokers: {FIXED}"),
        ({}, "spec.replication.mode: is controller, and this data folder has brokers in mode dledger"),
    ],
)
def test_neither_mode_nor_number_of_brokers_can_be_changed(spec: dict[str, Any], reason: str) -> None:
    memory = plan_of(manifest_of(**DLEDGER)).memory

    with pytest.raises(PlanRefused) as caught:
        plan_of(manifest_of(**spec), memory=memory)

    assert caught.value.reason.startswith(reason)
    assert caught.value.advice


def test_brokers_of_controllers_do_not_become_members_of_a_dledger() -> None:
    with pytest.raises(PlanRefused, match="has brokers in mode controller"):
        plan_of(manifest_of(**DLEDGER), memory=plan_of().memory)


def test_groups_can_be_added() -> None:
    first = plan_of(manifest_of(**DLEDGER))

    more = plan_of(manifest_of(**DLEDGER, groups=2), memory=first.memory)

    assert more.brokers[:3] == first.brokers
    assert len(more.brokers) == 6


def test_members_know_each_other_by_their_host() -> None:
    memory = plan_of(manifest_of(**DLEDGER)).memory

    with pytest.raises(
        PlanRefused, match=r"the brokers of this data folder know each other by .* 127\.0\.0\.1"
    ):
        plan_of(manifest_of(**DLEDGER), memory=memory, host="10.0.0.1")


def test_a_set_that_joins_another_cluster_has_controllers() -> None:
    joined = replace(NEW, joined_cluster_of=JoinedCluster("h:9878", "h:9876"))

    with pytest.raises(PlanRefused, match="brokers that join another cluster follow its controllers"):
        plan_of(manifest_of(**DLEDGER), memory=joined)
