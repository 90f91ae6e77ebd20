"""From a manifest to the processes of one machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from brokerset_spec.broker_settings import BrokerSettings
from brokerset_spec.manifest import BrokerSet, default_manifest, read_manifest
from brokerset_spec.namesrv_settings import NamesrvSettings
from brokerset_spec.plan import PortsTaken, PortWishes, plan_local

DATA = Path("/data")


def _manifest(**spec: Any) -> BrokerSet:
    head = {"apiVersion": "brokerset.io/v1alpha1", "kind": "BrokerSet", "metadata": {"name": "orders"}}
    return read_manifest({**head, "spec": spec})


def test_the_default_set_is_a_name_server_and_a_broker_at_rocketmqs_ports() -> None:
    plan = plan_local(default_manifest(), DATA, is_free=lambda _: True)

    assert [(p.name, p.address, p.http_port) for p in plan.processes] == [
        ("namesrv-0", "127.0.0.1:9876", 0),
        ("brokerset-0-0", "127.0.0.1:10911", 8080),
    ]
    assert plan.notes == ()


def test_each_process_gets_folders_and_settings_of_its_own() -> None:
    plan = plan_local(
        _manifest(groups=2, clusterName="C", config={"fileReservedTime": 5}), DATA, is_free=lambda _: True
    )

    namesrv, first, second = (p.settings for p in plan.processes)
    assert isinstance(namesrv, NamesrvSettings)
    assert isinstance(first, BrokerSettings)
    assert isinstance(second, BrokerSettings)
    assert namesrv.kv_config_path == DATA / "namesrv-0/kvConfig.json"
    assert first.store_path_root_dir == DATA / "brokers/orders-0-0/store"
    assert second.store_path_root_dir == DATA / "brokers/orders-1-0/store"
    assert (second.broker_name, second.broker_cluster_name, second.namesrv_addr) == (
        "orders-1",
        "C",
        "127.0.0.1:9876",
    )
    assert (first.file_reserved_time, second.file_reserved_time) == (5, 5)
    assert all(p.settings.problems() == [] for p in plan.processes)


def test_further_brokers_take_the_next_free_ports() -> None:
    taken = {10921, 10929, 8080}

    plan = plan_local(_manifest(groups=3), DATA, is_free=lambda port: port not in taken)

    assert [(p.port, p.http_port) for p in plan.processes[1:]] == [
        (10911, 8081),
        (10941, 8082),
        (10951, 8083),
    ]


@pytest.mark.parametrize(
    ("port", "wanted_by"),
    [(9876, "the name server"), (10911, "broker orders-0-0"), (10909, "broker orders-0-0")],
)
def test_a_port_where_clients_look_is_never_replaced_by_another(port: int, wanted_by: str) -> None:
    with pytest.raises(PortsTaken) as caught:
        plan_local(_manifest(), DATA, is_free=lambda asked: asked != port)

    assert (caught.value.port, caught.value.wanted_by) == (port, wanted_by)


def test_one_port_is_never_planned_twice() -> None:
    with pytest.raises(PortsTaken):
        plan_local(_manifest(), DATA, is_free=lambda _: True, wishes=PortWishes(namesrv=10911, broker=10911))


def test_no_port_beyond_the_last_is_planned() -> None:
    with pytest.raises(PortsTaken):
        plan_local(_manifest(groups=3), DATA, is_free=lambda _: True, wishes=PortWishes(broker=65_530))


def test_all_interfaces_are_reached_through_loopback() -> None:
    plan = plan_local(_manifest(), DATA, is_free=lambda _: True, host="0.0.0.0")

    settings = plan.processes[1].settings
    assert isinstance(settings, BrokerSettings)
    assert (settings.bind_address, settings.broker_ip1) == ("0.0.0.0", "127.0.0.1")


def test_what_has_no_effect_on_one_machine_is_said() -> None:
    manifest = _manifest(
        storage={"size": "5Gi"},
        advertise="podIP",
        update={"strategy": "supervised"},
        monitoring={"podMonitor": True},
        podTemplate={"resources": {}},
    )

    notes = plan_local(manifest, DATA, is_free=lambda _: True).notes

    assert [note.split(":")[0] for note in notes] == [
        "spec.storage", "spec.advertise", "spec.update", "spec.monitoring", "spec.podTemplate",
    ]  # fmt: skip
