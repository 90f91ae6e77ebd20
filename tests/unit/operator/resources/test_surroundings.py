"""Services, rights, policies and monitoring of a set."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.operator.resources.sets import KINDS, build, observe, wanted

from brokerset_operator.resources.alerts import (
    BROKER_ALERTS,
    CONDITION_ALERTS,
    CONTROLLER_ALERTS,
    DLEDGER_ALERTS,
    SET_ALERTS,
)
from brokerset_operator.resources.message_alerts import MESSAGE_ALERTS
from brokerset_operator.resources.ordered_alerts import ORDERED_BROKER_ALERTS, ORDERED_CONTROLLER_ALERTS
from brokerset_operator.resources.pop_alerts import POP_ALERTS


def test_pods_have_names_before_they_are_ready() -> None:
    """Controllers must find each other to become ready, so headless Services publish everybody."""
    objects = build()

    for name in ("orders-controller", "orders-0"):
        spec = objects["Service", name]["spec"]
        assert spec["clusterIP"] == "None"
        assert spec["publishNotReadyAddresses"] is True
        assert spec["selector"] == objects["StatefulSet", name]["spec"]["selector"]["matchLabels"]
        assert objects["StatefulSet", name]["spec"]["serviceName"] == name


def test_clients_reach_ready_name_servers_at_one_address() -> None:
    """The name servers' Service selects the controllers and leaves out those that are not ready."""
    spec = build()["Service", "orders-namesrv"]["spec"]

    assert "publishNotReadyAddresses" not in spec
    assert "clusterIP" not in spec
    assert [port["port"] for port in spec["ports"]] == [9876]


def test_the_master_service_leads_where_the_master_says() -> None:
    """The Service selects nothing, and its slice is sent without the endpoints: they are the master's."""
    objects = build()
    service, found = objects["Service", "orders-0-master"], objects["EndpointSlice", "orders-0-master"]

    assert "selector" not in service["spec"]
    assert "clusterIP" not in service["spec"]
    assert "endpoints" not in found
    assert found["metadata"]["labels"]["kubernetes.io/service-name"] == "orders-0-master"
    assert found["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"] == "brokerset-broker"
    assert {port["name"]: port["port"] for port in found["ports"]} == {
        port["name"]: port["targetPort"] for port in service["spec"]["ports"]
    }
    assert [port["port"] for port in service["spec"]["ports"]] == [10911, 10909]


@pytest.mark.parametrize("family", ["IPv4", "IPv6"])
def test_master_services_have_the_family_of_the_cluster(
    family: str,
) -> None:
    """A slice has addresses of one family, and its Service no other; the others have the default."""
    found = observe()
    objects = wanted(replace(found, operator=replace(found.operator, ip_family=family)))

    services = {each["metadata"]["name"]: each["spec"] for each in objects if each["kind"] == "Service"}
    (endpoint_slice,) = (each for each in objects if each["kind"] == "EndpointSlice")
    assert services["orders-0-master"]["ipFamilies"] == [endpoint_slice["addressType"]] == [family]
    assert services["orders-0-master"]["ipFamilyPolicy"] == "SingleStack"
    assert not any("ipFamilies" in services[name] for name in services if name != "orders-0-master")


def test_brokers_may_move_the_services_of_their_set_and_nothing_else() -> None:
    """The Role names each slice, also that of a group on its way out, and allows to read and patch it."""
    objects = build({"groups": 2}, shape={"groups": {0: 3, 1: 3, 2: 3}})

    (rule,) = objects["Role", "orders-broker"]["rules"]
    assert rule == {
        "apiGroups": ["discovery.k8s.io"],
        "resources": ["endpointslices"],
        "resourceNames": ["orders-0-master", "orders-1-master", "orders-2-master"],
        "verbs": ["get", "patch"],
    }
    assert objects["RoleBinding", "orders-broker"]["roleRef"]["name"] == "orders-broker"
    assert objects["ServiceAccount", "orders-broker"]["automountServiceAccountToken"] is False


def test_a_set_without_groups_gives_no_right_at_all() -> None:
    """A rule without names would allow to change every slice of the namespace."""
    assert build(shape={"groups": {}})["Role", "orders-broker"]["rules"] == []


def test_whoever_drains_nodes_takes_one_pod_of_a_group_at_a_time() -> None:
    """Controllers and each group have a disruption budget of one."""
    objects = build({"groups": 2})

    for name in ("orders-controller", "orders-0", "orders-1"):
        spec = objects["PodDisruptionBudget", name]["spec"]
        assert spec["maxUnavailable"] == 1
        assert spec["selector"] == objects["StatefulSet", name]["spec"]["selector"]


def test_monitoring_is_made_where_it_is_asked_for_and_known() -> None:
    """Without the kinds of the Prometheus operator nothing is sent that the API server would refuse."""
    asked = {"monitoring": {"podMonitor": True}}

    assert not [kind for kind, _ in build(asked) if kind in ("PodMonitor", "PrometheusRule")]
    assert ("PodMonitor", "orders") in build(asked, api_kinds=KINDS)
    assert ("PodMonitor", "orders") not in build(api_kinds=KINDS)
    assert ("PrometheusRule", "orders") in build(api_kinds=KINDS)
    assert ("PrometheusRule", "orders") not in build({"monitoring": {"rules": False}}, api_kinds=KINDS)


@pytest.mark.parametrize(
    ("remembered", "left_out"),
    [
        ({"replicas": 3}, False),
        ({"replicas": 3, "drainSince": 1.0}, False),
        ({"replicas": 3, "drainSince": 1.0, "emptySince": 2.0}, True),
        ({"replicas": 0}, True),
    ],
)
def test_alerts_leave_out_a_group_when_nobody_has_anything_left_to_read_in_it(
    remembered: dict[str, Any], left_out: bool
) -> None:
    """That is a minute before its brokers end, and from then on; a group with unread messages is watched."""
    workflow = {"groups": [{"index": 1, "name": "a|b", **remembered}]}
    groups = build(api_kinds=KINDS, status={"workflow": workflow})["PrometheusRule", "orders"]["spec"][
        "groups"
    ]

    found = {rule["alert"] for group in groups for rule in group["rules"] if "broker_set!~" in rule["expr"]}

    assert found == ({"BrokersetGroupDown", "BrokersetBrokerMissing"} if left_out else set())


def test_every_alert_looks_at_one_set_and_has_a_runbook() -> None:
    """Expressions select by namespace and pod, or the set, throughout; each alert says where to read on."""
    groups = build(api_kinds=KINDS)["PrometheusRule", "orders"]["spec"]["groups"]

    rules = [rule for group in groups for rule in group["rules"]]
    alerts = (
        *CONTROLLER_ALERTS,
        *ORDERED_CONTROLLER_ALERTS,
        *BROKER_ALERTS,
        *MESSAGE_ALERTS,
        *POP_ALERTS,
        *ORDERED_BROKER_ALERTS,
        *DLEDGER_ALERTS,
        *SET_ALERTS,
        *CONDITION_ALERTS,
    )
    assert [rule["alert"] for rule in rules] == [alert.name for alert in alerts]
    for rule in rules:
        assert "<" not in re.sub(r" < ", "", rule["expr"])
        for selector in re.findall(r"\{(.*?)\}", rule["expr"]):
            assert selector.startswith(
                (
                    'namespace="shop",pod=~"orders-',
                    'kind="BrokerSet",exported_namespace="shop",name="orders",',
                    'exported_namespace="shop",brokerset_io_set="orders"',
                )
            )
        assert rule["annotations"]["runbook_url"].endswith(f"/{rule['alert']}")
        assert rule["labels"]["severity"] in ("critical", "warning")


def test_pods_are_made_after_what_they_need() -> None:
    """Accounts, settings and Services come before the StatefulSet that uses them."""
    order = [(each["kind"], each["metadata"]["name"]) for each in wanted(observe())]

    for name in ("orders-controller", "orders-0"):
        at = order.index(("StatefulSet", name))
        assert at > order.index(("ConfigMap", name))
        assert at > order.index(("Service", name))
        assert at > order.index(("ServiceAccount", "orders-broker"))
        assert at > order.index(("RoleBinding", "orders-broker"))


def test_everything_is_owned_by_its_set() -> None:
    """All objects go when the BrokerSet goes, and carry its label."""
    for each in wanted(observe(api_kinds=KINDS)):
        (owner,) = each["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["controller"]) == ("BrokerSet", "orders", True)
        assert each["metadata"]["namespace"] == "shop"
        assert each["metadata"]["labels"]["brokerset.io/set"] == "orders"
