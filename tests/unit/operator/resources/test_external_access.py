"""Objects of sets that clients outside the cluster reach."""

from __future__ import annotations

from tests.unit.operator.resources.sets import Objects, build

from brokerset_operator.resources.external_access import closed, is_open
from brokerset_protocol.external_routes import ExternalAddresses
from brokerset_spec.controller_settings import ControllerSettings
from brokerset_spec.setting_fields import setting_fields

OUTSIDE = ExternalAddresses({"orders-0": "mq.example.com:30911"})


def changed(before: Objects, after: Objects) -> set[str]:
    """Names of objects that differ, or are in one of both alone."""
    return {
        f"{kind}/{name}"
        for kind, name in before.keys() | after.keys()
        if before.get((kind, name)) != after.get((kind, name))
    }


def test_without_the_section_nothing_leads_in() -> None:
    """No Service has a node port or a load balancer, and name servers have one port alone."""
    objects = build()

    assert not any(is_open(each) for each in objects.values())
    settings = objects["ConfigMap", "orders-controller"]["data"]["controller.properties"]
    assert "external" not in settings


def test_opening_a_set_leaves_its_brokers_alone() -> None:
    """Name servers restart with another port; brokers' StatefulSets and settings stay to the letter."""
    different = changed(build(), build({"external": {"type": "NodePort"}}, shape={"external": OUTSIDE}))

    assert different == {
        "Service/orders-0-master",
        "Service/orders-namesrv-external",
        "ConfigMap/orders-controller",
        "Service/orders-controller",
        "StatefulSet/orders-controller",
        "NetworkPolicy/orders-controller",
    }


def test_new_addresses_restart_nobody() -> None:
    """They are in a file that name servers read again; no pod template has them in its hash."""
    spec = {"external": {"type": "LoadBalancer"}}

    before, after = (
        build(spec, shape={"external": ExternalAddresses()}),
        build(spec, shape={"external": OUTSIDE}),
    )

    assert changed(before, after) == {"ConfigMap/orders-controller"}
    text = after["ConfigMap", "orders-controller"]["data"]["external-addresses.json"]
    assert ExternalAddresses.from_json(text.encode()) == OUTSIDE


def test_name_servers_find_the_file_where_it_is_mounted() -> None:
    """Port and path are settings that they know, the container and the NetworkPolicy have the port."""
    objects = build({"external": {"type": "NodePort"}}, shape={"external": OUTSIDE})
    data = objects["ConfigMap", "orders-controller"]["data"]
    settings = dict(line.split("=", 1) for line in data["controller.properties"].splitlines()[1:])
    template = objects["StatefulSet", "orders-controller"]["spec"]["template"]["spec"]
    (container,) = template["containers"]

    mount = next(each["mountPath"] for each in container["volumeMounts"] if each["name"] == "settings")
    assert settings["externalAddressesPath"] == f"{mount}/external-addresses.json"
    assert {"externalListenPort", "externalAddressesPath"} <= setting_fields(ControllerSettings).keys()
    port = int(settings["externalListenPort"])
    assert port in [each["containerPort"] for each in container["ports"]]
    service = objects["Service", "orders-namesrv-external"]["spec"]
    assert [(each["port"], each["targetPort"]) for each in service["ports"]] == [(9876, port)]
    assert service["selector"] == objects["Service", "orders-namesrv"]["spec"]["selector"]
    policy = objects["NetworkPolicy", "orders-controller"]["spec"]["ingress"]
    assert port in [each["port"] for rule in policy if "from" not in rule for each in rule["ports"]]


def test_the_master_service_keeps_what_clients_inside_know() -> None:
    """It only becomes of another type: no selector, the same ports, its node port where the manifest says."""
    inside = build()["Service", "orders-0-master"]
    external = {
        "type": "NodePort",
        "annotations": {"a": "all", "b": "all"},
        "masters": [{"group": "orders-0", "nodePort": 30911, "annotations": {"b": "own"}}],
    }

    outside = build({"external": external})["Service", "orders-0-master"]

    assert outside["spec"]["type"] == "NodePort"
    assert outside["metadata"]["annotations"] == {"a": "all", "b": "own"}
    assert [port.get("nodePort") for port in outside["spec"]["ports"]] == [30911, None]
    assert "selector" not in outside["spec"]
    assert closed(outside) == inside


def test_load_balancers_let_in_whom_the_manifest_names() -> None:
    """Every Service that leads in has the ranges and the class."""
    external = {
        "type": "LoadBalancer",
        "perBroker": True,
        "loadBalancerSourceRanges": ["203.0.113.0/24"],
        "loadBalancerClass": "example.com/lb",
    }

    objects = build({"external": external})

    services = [each for each in objects.values() if is_open(each)]
    assert len(services) == 5
    for each in services:
        assert each["spec"]["loadBalancerSourceRanges"] == ["203.0.113.0/24"]
        assert each["spec"]["loadBalancerClass"] == "example.com/lb"


def test_each_broker_gets_a_service_of_its_own_if_asked() -> None:
    """It selects one pod; it has no labels of pods' own objects, so that it goes while pods are there."""
    objects = build({"replicas": 2, "external": {"type": "NodePort", "perBroker": True}})

    for pod in ("orders-0-0", "orders-0-1"):
        service = objects["Service", f"{pod}-external"]
        assert service["spec"]["selector"]["statefulset.kubernetes.io/pod-name"] == pod
        assert [port["port"] for port in service["spec"]["ports"]] == [10911]
        assert "brokerset.io/group" not in service["metadata"]["labels"]
        assert service["metadata"]["labels"]["app.kubernetes.io/component"] == "external"
        assert closed(service) is None
    assert ("Service", "orders-0-2-external") not in objects
