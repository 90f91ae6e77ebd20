"""The settings that pods start with: accepted by the processes, kept where they must not change."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.operator.resources.sets import Objects, build, hash_of, observe

from brokerset_operator.resources.set_facts import facts_of
from brokerset_operator.resources.settings_files import broker_settings, file_text
from brokerset_runtime.settings import from_properties, load
from brokerset_spec.broker_settings import BrokerSettings
from brokerset_spec.controller_settings import ControllerSettings
from brokerset_spec.manifest import BrokerSet


def _file(objects: Objects, name: str) -> str:
    (text,) = objects["ConfigMap", name]["data"].values()
    return str(text)


def _environment(objects: Objects, stateful_set: str, pod: str, ip: str = "10.1.2.3") -> dict[str, str]:
    """Settings from the environment of a pod, with references filled in as the kubelet does."""
    template = objects["StatefulSet", stateful_set]["spec"]["template"]
    facts = {
        "metadata.name": pod,
        "status.podIP": ip,
        "metadata.labels['apps.kubernetes.io/pod-index']": pod.rpartition("-")[2],
    }
    known: dict[str, str] = {}
    for item in template["spec"]["containers"][0]["env"]:
        if "valueFrom" in item:
            known[item["name"]] = facts[item["valueFrom"]["fieldRef"]["fieldPath"]]
        else:
            known[item["name"]] = re.sub(r"\$\((\w+)\)", lambda match: known[match[1]], item["value"])
    prefix = "BROKERSET_SET_"
    return {name.removeprefix(prefix): value for name, value in known.items() if name.startswith(prefix)}


def _broker(objects: Objects, group: str = "orders-0", pod: str = "orders-0-1") -> BrokerSettings:
    return load(
        BrokerSettings,
        ("file", from_properties(_file(objects, group))),
        ("environment", _environment(objects, group, pod)),
    )


def _controller(objects: Objects, pod: str) -> ControllerSettings:
    return load(
        ControllerSettings,
        ("file", from_properties(_file(objects, "orders-controller"))),
        ("environment", _environment(objects, "orders-controller", pod)),
    )


def test_a_broker_accepts_its_settings_and_knows_itself_by_its_pod() -> None:
    """A broker of the smallest set takes its pod's IP, and tells clients its group's lasting address."""
    found = _broker(build())

    assert found.broker_ip1 == "10.1.2.3"
    assert found.broker_name == "orders-0"
    assert found.advertised_address == "orders-0-1.orders-0.shop.svc:10911"
    assert found.advertised_master_address == "orders-0-master.shop.svc:10911"
    assert found.master_endpoint_slice == "shop/orders-0-master"
    assert found.controller_addr == "orders-controller.shop.svc:9878"
    assert found.namesrv_addr == "orders-controller.shop.svc:9876"
    assert found.fetch_controller_addr_by_dns_lookup
    assert found.fetch_namesrv_addr_by_dns_lookup
    assert found.enable_controller_mode
    assert (found.expected_replicas, found.min_in_sync_replicas) == (3, 2)
    assert found.all_ack_in_sync_state_set
    assert found.owner_uid == "4f7c1b1e-0000-4000-8000-000000000001"
    assert str(found.store_path_root_dir) == "/data/store"
    assert (found.listen_port, found.ha_listen_port, found.http_port) == (10911, 10912, 8080)
    assert found.mapped_file_size_commit_log == 256 * 1024 * 1024


@pytest.mark.parametrize(
    ("advertise", "slave", "master"),
    [
        ("masterService", "orders-0-1.orders-0.shop.svc:10911", "orders-0-master.shop.svc:10911"),
        ("podName", "orders-0-1.orders-0.shop.svc:10911", ""),
        ("podIP", "", ""),
    ],
)
def test_clients_are_told_what_advertise_says(advertise: str, slave: str, master: str) -> None:
    """An empty master address means the slave's, an empty slave's address means the pod's IP."""
    found = _broker(build({"advertise": advertise}))

    assert (found.advertised_address, found.advertised_master_address) == (slave, master)


def test_every_controller_finds_itself_among_the_first_members() -> None:
    """Each controller pod takes its number from its index, and its settings name all of them."""
    objects = build({"controllers": {"replicas": 5}})

    for number in range(5):
        found = _controller(objects, f"orders-controller-{number}")
        assert found.node_id == number
        assert sorted(found.peers()) == [0, 1, 2, 3, 4]
        assert found.peers()[4] == "orders-controller-4.orders-controller.shop.svc:9878"
        assert found.raft_addresses()[4] == "orders-controller-4.orders-controller.shop.svc:9877"
        assert not found.raft_join


def test_a_controller_without_data_waits_once_there_is_a_group() -> None:
    """After the group was formed, `raftJoin` keeps an emptied volume from voting with forgotten votes."""
    assert _controller(build(shape={"raft_join": True}), "orders-controller-0").raft_join


def test_settings_of_the_manifest_reach_brokers_by_their_names() -> None:
    """`spec.config` goes into the file as it is, next to what the other fields mean."""
    found = _broker(
        build(
            {
                "clusterName": "eu",
                "brokerNames": ["a", "b"],
                "config": {"flushDiskType": "SYNC_FLUSH", "autoCreateTopicEnable": False},
                "replication": {"acknowledge": "master", "minInSyncReplicas": 3},
            }
        ),
        "orders-1",
        "orders-1-0",
    )

    assert (found.broker_cluster_name, found.broker_name) == ("eu", "b")
    assert found.flush_disk_type == "SYNC_FLUSH"
    assert not found.auto_create_topic_enable
    assert not found.all_ack_in_sync_state_set
    assert found.min_in_sync_replicas == 3


def test_a_message_larger_than_a_small_log_file_gets_larger_files() -> None:
    """The default size of log files gives way when the largest allowed message does not fit."""
    found = _broker(build({"config": {"maxMessageSize": 500_000_000}}))

    assert found.mapped_file_size_commit_log == 1024 * 1024 * 1024


def test_a_value_cannot_smuggle_in_another_setting() -> None:
    """A value with line breaks, which manifests may not have anyway, stays one value."""
    found = observe()
    document = {"apiVersion": "brokerset.io/v1alpha1", "kind": "BrokerSet", "metadata": {"name": "orders"}}
    unchecked = BrokerSet.model_validate(
        {**document, "spec": {"config": {"regionId": "eu\nlistenPort=1\rhttpPort=2"}}}
    )

    settings = broker_settings(facts_of(replace(found, manifest=unchecked)), 0)

    assert from_properties(file_text(settings))["regionId"] == "eu listenPort=1 httpPort=2"
    assert from_properties(file_text(settings))["listenPort"] == "10911"


def test_the_expected_number_stays_that_of_the_groups_first_creation() -> None:
    """A group that grows does not wait for its new brokers at an election; its pods are not old for that."""
    first = build()
    there = {"orders-0": first["ConfigMap", "orders-0"]}

    later = build({"replicas": 5}, config_maps=there)

    assert _broker(later).expected_replicas == 3
    assert hash_of(later, "orders-0") == hash_of(first, "orders-0")


def test_a_group_on_its_way_out_keeps_its_name_and_stays_read_only() -> None:
    """A drained group that the manifest no longer has keeps its ConfigMap's name, and takes no writes."""
    first = build({"brokerNames": ["a", "b"]})
    there = {name: item for (kind, name), item in first.items() if kind == "ConfigMap"}

    later = build(
        {"brokerNames": ["a"]},
        shape={"groups": {0: 3, 1: 3}, "read_only_groups": frozenset({1})},
        config_maps=there,
    )

    assert _broker(later, "orders-1", "orders-1-0").broker_name == "b"
    assert _broker(later, "orders-1", "orders-1-0").broker_permission == 4
    assert _broker(later).broker_permission == 6
    assert hash_of(later, "orders-1") == hash_of(first, "orders-1")


def test_brokers_use_the_controllers_of_another_set() -> None:
    """With `controllers.ref` all addresses are the other set's, and no controllers are made."""
    objects = build({"controllers": {"ref": {"name": "shared"}}})

    found = _broker(objects)
    assert found.controller_addr == "shared-controller.shop.svc:9878"
    assert found.namesrv_addr == "shared-controller.shop.svc:9876"
    assert not [name for _kind, name in objects if "controller" in name or "namesrv" in name]


def test_settings_of_volumes_that_outlived_their_set_go_on() -> None:
    """A BrokerSet that is made again goes on under the UID that its retained volumes are bound to."""
    claims: Mapping[str, Any] = {
        "data-orders-0-0": {"metadata": {"annotations": {"brokerset.io/owner-uid": "brokers"}}},
        "data-orders-controller-1": {"metadata": {"annotations": {"brokerset.io/owner-uid": "before"}}},
        "data-orders-x-0": {"metadata": {"annotations": {"brokerset.io/owner-uid": "somebody else"}}},
        "data-orders-controller-0": {"metadata": {}},
    }

    objects = build(claims=claims)

    assert _broker(objects).owner_uid == "before"
    assert _controller(objects, "orders-controller-0").controller_group == "orders-before"
    assert objects["StatefulSet", "orders-0"]["metadata"]["ownerReferences"][0]["uid"].startswith("4f7c")
    template = objects["StatefulSet", "orders-0"]["spec"]["volumeClaimTemplates"][0]
    assert template["metadata"]["annotations"] == {"brokerset.io/owner-uid": "before"}
