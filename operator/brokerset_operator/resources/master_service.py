"""The Service that always leads to a group's master, and the EndpointSlice that makes it so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from brokerset_operator.model import names
from brokerset_operator.resources.brokers import COMPONENT
from brokerset_operator.resources.pod_template import service_ports
from brokerset_operator.resources.set_facts import NewObject, SetFacts

PORTS: Final[Mapping[str, int]] = {"remoting": names.REMOTING_PORT, "fast": names.FAST_PORT}

SLICE_MANAGER: Final = "brokerset-broker"
"""Who keeps the slice, as its label says: Kubernetes' own controller leaves such slices alone."""


def master_objects(facts: SetFacts, index: int) -> tuple[NewObject, ...]:
    """Service and EndpointSlice of group `index`.

    The Service has no selector, and an IP that lasts: a client that keeps the address reconnects to the new
    master. The slice is sent **without `endpoints`**: these belong to the master, which writes them together
    with its epoch, and server-side apply leaves alone what is not sent. An EndpointSlice has addresses of one
    family for ever, hence the Service has that alone as well: the one by which the cluster's pods go.
    """
    name, group = names.master_service(facts.name, index), names.group_set(facts.name, index)
    service = facts.an_object(
        "v1",
        "Service",
        name,
        component=COMPONENT,
        group=group,
        spec={
            "type": "ClusterIP",
            "ipFamilyPolicy": "SingleStack",
            "ipFamilies": [facts.ip_family],
            "ports": service_ports(PORTS),
        },
    )
    endpoint_slice = facts.an_object(
        "discovery.k8s.io/v1",
        "EndpointSlice",
        name,
        component=COMPONENT,
        group=group,
        labels={
            "kubernetes.io/service-name": name,
            "endpointslice.kubernetes.io/managed-by": SLICE_MANAGER,
        },
        addressType=facts.ip_family,
        ports=[{"name": port, "port": number, "protocol": "TCP"} for port, number in PORTS.items()],
    )
    return service, endpoint_slice
