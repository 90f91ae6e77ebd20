"""Where the local ports of `kubectl brokerset port-forward` lead."""

from __future__ import annotations

from typing import Any

from brokerset_cli.kubernetes.forward_targets import (
    Targets,
    changed_masters,
    local_addresses,
    read_targets,
)
from brokerset_cli.kubernetes.sets import SetView, read_set


def a_set(**spec: Any) -> SetView:
    """A BrokerSet `orders` in the namespace `shop`."""
    return read_set({"metadata": {"name": "orders", "namespace": "shop"}, "spec": {"groups": 1, **spec}})


def a_pod(name: str, *, of: str = "orders", ready: bool = True, uid: str = "u") -> dict[str, Any]:
    """A pod of a set; its component follows from its name."""
    resource = name.rpartition("-")[0]
    component = resource.rpartition("-")[2]
    named = component in ("controller", "namesrv")
    labels = {
        "brokerset.io/set": of,
        "app.kubernetes.io/component": component if named else "broker",
    }
    if not named:
        labels["brokerset.io/group"] = resource
    return {
        "metadata": {"name": name, "namespace": "shop", "uid": uid, "labels": labels},
        "status": {"podIP": "10.0.0.7", "conditions": [{"type": "Ready", "status": str(ready)}]},
    }


def a_slice(name: str, *pods: str) -> dict[str, Any]:
    """An EndpointSlice that leads to pods."""
    return {
        "metadata": {"name": name},
        "endpoints": [{"targetRef": {"kind": "Pod", "name": pod}} for pod in pods],
    }


def targets(master: str = "orders-0-1", uid: str = "u") -> Targets:
    """Two brokers of a group and its controllers."""
    pods = [a_pod("orders-0-0", uid=uid), a_pod("orders-0-1", uid=uid), a_pod("orders-controller-0")]
    return read_targets(a_set(), pods, [a_slice("orders-0-master", master), a_slice("orders-0-x7k2p", "y")])


def test_the_master_is_where_its_slice_leads() -> None:
    """The slice that masters write themselves tells who is master; those of other Services do not count."""
    assert targets().masters == {"orders-0": "orders-0-1"}


def test_name_servers_are_controllers_or_those_of_a_set_without_any() -> None:
    """Those that are ready first."""
    alone = [a_pod("orders-namesrv-0", ready=False), a_pod("orders-namesrv-1"), a_pod("orders-0-0")]

    assert targets().name_servers == ("orders-controller-0",)
    assert read_targets(a_set(), alone, []).name_servers == ("orders-namesrv-1", "orders-namesrv-0")


def test_clients_are_told_ports_of_this_machine() -> None:
    """A master is told at the port that follows it, a slave, by name or IP, at that of its pod."""
    found = local_addresses(targets(), {"orders-0-master": 1, "orders-0-0": 2, "orders-0-1": 3})

    assert found.masters == {"orders-0": "127.0.0.1:1"}
    assert found.brokers["orders-0-0.orders-0.shop.svc:10911"] == "127.0.0.1:2"
    assert found.brokers["orders-0-1.orders-0.shop.svc:10911"] == "127.0.0.1:3"
    assert "10.0.0.7:10911" in found.brokers


def test_a_group_with_another_brokers_name_is_told_under_that() -> None:
    """Routes name groups as `brokerNames` does, and Kubernetes as the set."""
    seen = a_set(brokerNames=["broker-a"])
    found = read_targets(seen, [a_pod("orders-0-0")], [a_slice("orders-0-master", "orders-0-0")])

    assert local_addresses(found, {"orders-0-master": 1}).masters == {"broker-a": "127.0.0.1:1"}


def test_a_group_without_master_is_left_out() -> None:
    """Nobody is sent to a port that leads nowhere."""
    found = read_targets(a_set(), [a_pod("orders-0-0")], [a_slice("orders-0-master")])

    assert local_addresses(found, {"orders-0-master": 1, "orders-0-0": 2}).masters == {}


def test_ready_name_servers_come_first_and_shared_ones_count() -> None:
    """Requests go to the controllers that the set uses, also another set's, first to those that are ready."""
    pods = [
        a_pod("main-controller-0", of="main", ready=False),
        a_pod("main-controller-1", of="main"),
        a_pod("orders-controller-0"),
    ]
    seen = a_set(controllers={"ref": {"name": "main"}})

    assert read_targets(seen, pods, ()).name_servers == ("main-controller-1", "main-controller-0")


def test_a_new_pod_of_the_same_name_is_another_master() -> None:
    """Connections to a master end when its pod was replaced, also by one of the same name."""
    assert changed_masters(targets(), targets()) == {}
    assert changed_masters(targets(), targets("orders-0-0")) == {"orders-0": "orders-0-0"}
    assert changed_masters(targets(), targets(uid="v")) == {"orders-0": "orders-0-1"}
