"""Addresses for clients outside the cluster, and what the plan does about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from brokerset_operator.model.actions import ApplyObject, DeleteObject
from brokerset_operator.model.observed import Observed
from brokerset_operator.plan.deciding import plan
from brokerset_operator.plan.external import ExternalAccess, external_access
from brokerset_operator.plan.facts import gather
from brokerset_operator.plan.static import with_mark
from brokerset_operator.resources.wanted import Shape, wanted_objects
from brokerset_protocol.external_routes import ExternalAddresses
from brokerset_sim.kubernetes_worlds import settled
from brokerset_spec.manifest import read_manifest

INSIDE = ("InternalIP", "10.9.0.1")


def manifest(external: object, **spec: Any) -> Any:
    """A set with this section."""
    document = {"apiVersion": "brokerset.io/v1alpha1", "kind": "BrokerSet", "metadata": {"name": "orders"}}
    return read_manifest({**document, "spec": {**spec, "external": external}})


def service(name: str, port: str, *, node_port: int | None = None, ingress: Any = ()) -> dict[str, Any]:
    """A Service as the API server has it."""
    one: dict[str, Any] = {"name": port, "port": 1}
    if node_port is not None:
        one["nodePort"] = node_port
    return {
        "metadata": {"name": name},
        "spec": {"ports": [one]},
        "status": {"loadBalancer": {"ingress": list(ingress)}},
    }


def with_services(
    observed: Observed, external: object, *services: Mapping[str, Any], **seen: Any
) -> Observed:
    """The same with this section, and these Services; each pod is on the node `node-<number of its pod>`."""
    pods = {
        name: {**pod, "spec": {**pod["spec"], "nodeName": f"node-{name[-1]}"}}
        for name, pod in observed.pods.items()
    }
    return replace(
        observed,
        manifest=manifest(external),
        pods=pods,
        services={each["metadata"]["name"]: each for each in services},
        **seen,
    )


def access_of(observed: Observed) -> ExternalAccess:
    """The addresses."""
    found = external_access(gather(observed))
    assert found is not None
    return found


PORTS = (
    service("orders-0-master", "remoting", node_port=30911),
    service("orders-namesrv-external", "namesrv", node_port=30876),
)
NODES = {f"node-{n}": (("InternalIP", f"10.9.0.{n}"), ("ExternalIP", f"192.0.2.{n}")) for n in range(3)}


@pytest.fixture(name="at_rest")
def at_rest_fixture() -> Observed:
    """A set of three brokers and three controllers in which all is well; the master is `orders-0-0`."""
    return settled().observe_now()


def test_without_the_section_there_is_nothing(at_rest: Observed) -> None:
    """Neither addresses nor a part of the status."""
    assert external_access(gather(at_rest)) is None
    assert "external" not in plan(at_rest).status


def test_node_ports_are_at_the_nodes_of_pods(at_rest: Observed) -> None:
    """The master's address is at the node that it is on, name servers are at all nodes of controllers."""
    found = access_of(with_services(at_rest, {"type": "NodePort"}, *PORTS, node_addresses=NODES))

    assert found.masters == (("orders-0", "192.0.2.0:30911"),)
    assert found.name_servers == ("192.0.2.0:30876", "192.0.2.1:30876", "192.0.2.2:30876")
    ips = {n: at_rest.pods[f"orders-0-{n}"]["status"]["podIP"] for n in range(3)}
    assert found.addresses == ExternalAddresses(
        {"orders-0": "192.0.2.0:30911"},
        hosts={f"orders-0/{ip}": f"192.0.2.{n}:30911" for n, ip in ips.items()},
    )
    assert found.missing == ()


def test_the_address_goes_with_the_master_and_stays_while_there_is_none(at_rest: Observed) -> None:
    """After a failover the address is at the new master's node, in between at the old one's."""
    before = with_services(at_rest, {"type": "NodePort"}, *PORTS, node_addresses=NODES)
    told = access_of(before).addresses.to_json().decode()
    maps = {**before.config_maps, "orders-controller": {"data": {"external-addresses.json": told}}}
    group = before.groups["orders-0"]
    nobody = {"orders-0": replace(group, master_id=None)}
    next_one = {"orders-0": replace(group, master_id=2)}
    pod = next(
        name
        for name, pod in before.pods.items()
        if f"{pod['status']['podIP']}:10911" == group.replicas[1].address
    )

    between = access_of(replace(before, groups=nobody, config_maps=maps))
    after = access_of(replace(before, groups=next_one, config_maps=maps))

    assert between.masters == (("orders-0", "192.0.2.0:30911"),)
    assert after.masters == (("orders-0", f"192.0.2.{pod[-1]}:30911"),)
    assert pod != "orders-0-0"


def test_the_preferred_address_of_a_node_comes_first(at_rest: Observed) -> None:
    """If the node has one of that type; else the usual order."""
    internal = {"type": "NodePort", "preferredNodeAddressType": "InternalIP"}
    host = {"type": "NodePort", "preferredNodeAddressType": "Hostname"}

    found = [
        access_of(with_services(at_rest, given, *PORTS, node_addresses=NODES)).masters[0][1]
        for given in (internal, host)
    ]

    assert found == ["10.9.0.0:30911", "192.0.2.0:30911"]


def test_where_nodes_may_not_be_read_pods_say_where_they_are(at_rest: Observed) -> None:
    """A namespaced installation has no right to nodes."""
    seen = with_services(at_rest, {"type": "NodePort"}, *PORTS)
    pods = {
        name: {**pod, "status": {**pod["status"], "hostIP": "fd00::9"}} for name, pod in seen.pods.items()
    }

    found = access_of(replace(seen, pods=pods))

    assert found.masters == (("orders-0", "[fd00::9]:30911"),)
    assert found.name_servers == ("[fd00::9]:30876",)


def test_given_hosts_and_ports_come_before_all_others(at_rest: Observed) -> None:
    """What the manifest says of one Service, then what it says of all."""
    external = {
        "type": "NodePort",
        "advertisedHost": "nodes.example.com",
        "masters": [{"group": "orders-0", "advertisedHost": "mq.example.com", "advertisedPort": 443}],
    }

    found = access_of(with_services(at_rest, external, *PORTS, node_addresses=NODES))

    assert found.masters == (("orders-0", "mq.example.com:443"),)
    assert found.addresses.hosts == {}
    assert found.name_servers == ("nodes.example.com:30876",)


def test_load_balancers_say_their_addresses(at_rest: Observed) -> None:
    """A name, or an IP; what has none yet is missing, and is looked at again soon."""
    balanced = {"type": "LoadBalancer"}
    name_servers = service("orders-namesrv-external", "namesrv", ingress=[{"hostname": "ns.lb.example.com"}])
    master = service("orders-0-master", "remoting", ingress=[{"ip": "203.0.113.7"}])

    half = access_of(with_services(at_rest, balanced, name_servers))
    whole = access_of(with_services(at_rest, balanced, name_servers, master))

    assert half.name_servers == ("ns.lb.example.com:9876",)
    assert half.masters == ()
    assert half.missing == ("Service orders-0-master has no address of a load balancer yet",)
    assert whole.addresses == ExternalAddresses({"orders-0": "203.0.113.7:10911"})
    assert whole.missing == ()


def test_single_brokers_are_known_by_what_they_registered(at_rest: Observed) -> None:
    """With `perBroker` slaves have addresses, too."""
    single = [service(f"orders-0-{n}-external", "remoting", node_port=30920 + n) for n in range(3)]
    external = {"type": "NodePort", "perBroker": True}

    found = access_of(with_services(at_rest, external, *PORTS, *single, node_addresses=NODES))

    assert dict(found.brokers)["orders-0-1"] == "192.0.2.1:30921"
    assert found.addresses.brokers["orders-0-1.orders-0.shop.svc:10911"] == "192.0.2.1:30921"
    assert len(found.addresses.brokers) == 3


def test_status_says_what_clients_are_to_use_and_what_is_missing(at_rest: Observed) -> None:
    """Name servers in RocketMQ's form, each master, and what is waited for."""
    status = plan(with_services(at_rest, {"type": "NodePort"}, PORTS[1], node_addresses=NODES)).status

    assert status["external"] == {
        "nameServers": "192.0.2.0:30876;192.0.2.1:30876;192.0.2.2:30876",
        "masters": [],
        "waiting": "Service orders-0-master has no node port yet",
    }


def test_a_way_in_that_is_refused_stops_nothing_else(at_rest: Observed) -> None:
    """A port may be taken: open Services go last; a new master Service is made closed, for those inside."""
    actions = plan(with_services(at_rest, {"type": "NodePort"})).actions

    sent = [each.manifest for each in actions if isinstance(each, ApplyObject)]
    masters = [
        each["spec"]["type"]
        for each in sent
        if each["metadata"]["name"] == "orders-0-master" and "spec" in each
    ]
    assert masters == ["ClusterIP", "NodePort"]
    last = [(each["kind"], each["spec"].get("type")) for each in sent[-2:]]
    assert last == [("Service", "NodePort")] * 2


def test_without_the_section_the_way_in_goes(at_rest: Observed) -> None:
    """The Services of their own are deleted while pods are there, the master's is closed; brokers stay."""
    opened = with_services(at_rest, {"type": "NodePort", "perBroker": True})
    shape = Shape(controller_replicas=3, raft_join=True, groups={0: 3}, external=ExternalAddresses())
    there = {
        each["metadata"]["name"]: with_mark(each)
        for each in wanted_objects(opened, shape)
        if each["kind"] == "Service"
    }

    actions = plan(replace(opened, manifest=manifest(None), services=there)).actions

    gone = {e.ref.name for e in actions if isinstance(e, DeleteObject) and e.ref.kind == "Service"}
    assert gone == {"orders-namesrv-external", *(f"orders-0-{n}-external" for n in range(3))}
    sent = {
        each.manifest["metadata"]["name"]: each.manifest["spec"]["type"]
        for each in actions
        if isinstance(each, ApplyObject) and each.manifest["kind"] == "Service"
    }
    assert sent == {"orders-0-master": "ClusterIP", "orders-controller": "ClusterIP"}
