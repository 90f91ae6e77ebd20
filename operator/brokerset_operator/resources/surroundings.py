"""What the pods of a set need around them: rights, and the Service that leads to a master."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from brokerset_operator.model import names
from brokerset_operator.resources import brokers
from brokerset_operator.resources.pod_parts import service_ports
from brokerset_operator.resources.set_facts import NewObject, SetFacts

MASTER_PORTS: Final[Mapping[str, int]] = {"remoting": names.REMOTING_PORT, "fast": names.FAST_PORT}

SLICE_MANAGER: Final = "brokerset-broker"
"""Who keeps the slice, as its label says: Kubernetes' own controller leaves such slices alone."""


def master_objects(facts: SetFacts, index: int) -> tuple[NewObject, ...]:
    """Service and EndpointSlice of group `index`.

    The Service has no selector, and an IP that lasts: a client that keeps the address reconnects to the new
    master. The slice is sent **without `endpoints`**: these belong to the master, which writes them together
    with its epoch, and server-side apply leaves alone what is not sent. An EndpointSlice has addresses of one
    family permanently, hence the Service has that alone as well: the one by which the cluster's pods go.
    """
    name, group = names.master_service(facts.name, index), names.group_set(facts.name, index)
    service = facts.a_service(
        name,
        service_ports(MASTER_PORTS),
        component=brokers.COMPONENT,
        group=group,
        type="ClusterIP",
        ipFamilyPolicy="SingleStack",
        ipFamilies=[facts.ip_family],
    )
    endpoint_slice = facts.an_object(
        "EndpointSlice",
        name,
        component=brokers.COMPONENT,
        group=group,
        labels={
            "kubernetes.io/service-name": name,
            "endpointslice.kubernetes.io/managed-by": SLICE_MANAGER,
        },
        addressType=facts.ip_family,
        ports=[{"name": port, "port": number, "protocol": "TCP"} for port, number in MASTER_PORTS.items()],
    )
    return service, endpoint_slice


def rights_objects(facts: SetFacts, groups: Iterable[int]) -> tuple[NewObject, ...]:
    """ServiceAccount, Role and RoleBinding of the set's brokers: get and patch the named slices.

    All groups of a set share them: they trust each other with everything else, too. Controllers have neither
    an account of their own nor a token.
    """
    name = names.service_account(facts.name)
    slices = [names.master_service(facts.name, index) for index in sorted(groups)]
    return (
        facts.an_object(
            "ServiceAccount", name, component=brokers.COMPONENT, automountServiceAccountToken=False
        ),
        facts.an_object(
            "Role",
            name,
            component=brokers.COMPONENT,
            rules=[
                {
                    "apiGroups": ["discovery.k8s.io"],
                    "resources": ["endpointslices"],
                    "resourceNames": slices,
                    "verbs": ["get", "patch"],
                }
            ]
            if slices  # a rule without names would be one about all slices
            else [],
        ),
        facts.an_object(
            "RoleBinding",
            name,
            component=brokers.COMPONENT,
            roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            subjects=[{"kind": "ServiceAccount", "name": name, "namespace": facts.namespace}],
        ),
    )
