"""`spec.external`: what contradicts itself is refused, with the field and what to do."""

from __future__ import annotations

from typing import Any

import pytest

from brokerset_spec.external_access import External
from brokerset_spec.manifest import ManifestError, read_manifest


def read(external: object, **spec: Any) -> External:
    """Read a set `orders` of one group with this section."""
    document = {"apiVersion": "brokerset.io/v1alpha1", "kind": "BrokerSet", "metadata": {"name": "orders"}}
    found = read_manifest({**document, "spec": {**spec, "external": external}}).spec.external
    assert found is not None
    return found


def test_a_type_is_enough() -> None:
    """Everything else has a default."""
    found = read({"type": "NodePort"})

    assert not found.per_broker
    assert found.master("orders-0") == found.broker("orders-0-1") == found.name_servers


def test_every_service_can_have_settings_of_its_own() -> None:
    """Entries are found by the name of their group or pod; those that scaling took away are left alone."""
    found = read(
        {
            "type": "NodePort",
            "perBroker": True,
            "nameServers": {"nodePort": 30876},
            "masters": [{"group": "orders-0", "nodePort": 30911}, {"group": "orders-7", "nodePort": 30912}],
            "brokers": [{"pod": "orders-0-8", "advertisedHost": "b8.example.com", "advertisedPort": 9}],
        }
    )

    assert found.name_servers.node_port == 30876
    assert found.master("orders-0").node_port == 30911
    assert found.broker("orders-0-8").advertised_host == "b8.example.com"


@pytest.mark.parametrize(
    ("external", "problem"),
    [
        ({}, "spec.external.type: is missing"),
        ({"type": "Ingress"}, "spec.external.type:"),
        ({"type": "NodePort", "advertisedHost": "http://mq"}, "spec.external.advertisedHost:"),
        ({"type": "NodePort", "loadBalancerClass": "x"}, "spec.external.loadBalancerClass: has no effect"),
        (
            {"type": "NodePort", "loadBalancerSourceRanges": ["10.0.0.0/8"]},
            "spec.external.loadBalancerSourceRanges: has no effect",
        ),
        (
            {"type": "LoadBalancer", "preferredNodeAddressType": "Hostname"},
            "spec.external.preferredNodeAddressType: has no effect",
        ),
        (
            {"type": "LoadBalancer", "advertisedHost": "mq.example.com"},
            "spec.external.advertisedHost: each load balancer has an address of its own",
        ),
        (
            {"type": "LoadBalancer", "loadBalancerSourceRanges": ["office"]},
            "spec.external.loadBalancerSourceRanges.0: 'office' is no network",
        ),
        (
            {"type": "NodePort", "brokers": [{"pod": "orders-0-0"}]},
            "spec.external.brokers: has no effect without perBroker",
        ),
        (
            {"type": "NodePort", "masters": [{"group": "order-0"}]},
            "spec.external.masters.0.group: the set has no group order-0",
        ),
        (
            {"type": "NodePort", "perBroker": True, "brokers": [{"pod": "orders-0"}]},
            "spec.external.brokers.0.pod: the set has no pod orders-0",
        ),
        (
            {"type": "NodePort", "masters": [{"group": "orders-0"}, {"group": "orders-0"}]},
            "spec.external.masters.1.group: orders-0 is listed twice",
        ),
        (
            {
                "type": "NodePort",
                "nameServers": {"nodePort": 30911},
                "masters": [{"group": "orders-0", "nodePort": 30911}],
            },
            "spec.external.masters.0.nodePort: nameServers has it already",
        ),
        (
            {
                "type": "NodePort",
                "advertisedHost": "mq.example.com",
                "nameServers": {"advertisedPort": 443},
                "masters": [{"group": "orders-0", "advertisedPort": 443}],
            },
            "spec.external.masters.0.advertisedPort: mq.example.com:443 is the address of nameServers",
        ),
        (
            {"type": "NodePort", "nameServers": {"annotations": {"brokerset.io/sent": "x"}}},
            "spec.external.nameServers.annotations.brokerset.io/sent: is brokerset's own",
        ),
    ],
)
def test_what_cannot_work_is_refused(external: object, problem: str) -> None:
    """Each with its field."""
    with pytest.raises(ManifestError) as caught:
        read(external)

    assert problem in str(caught.value)


def test_single_brokers_need_names() -> None:
    """An IP that a route still has may be a broker of another group by then."""
    with pytest.raises(
        ManifestError, match=r"spec\.external\.perBroker: needs brokers that register by names"
    ):
        read({"type": "NodePort", "perBroker": True}, advertise="podIP")


def test_a_set_without_name_servers_of_its_own_cannot_be_reached() -> None:
    """Its name servers are another set's, and do not know its addresses."""
    with pytest.raises(ManifestError, match="needs name servers of this set's own"):
        read({"type": "NodePort"}, controllers={"ref": {"name": "main"}})
