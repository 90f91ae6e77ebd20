"""Services that lead in from outside the cluster: the `-master` ones, opened, and those of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from brokerset_operator.model import names
from brokerset_operator.resources.pod_parts import service_ports
from brokerset_operator.resources.set_facts import NewObject, SetFacts
from brokerset_operator.resources.settings_files import broker_name
from brokerset_protocol.external_routes import ExternalAddresses
from brokerset_spec.external_access import External, ExternalService

COMPONENT: Final = "external"
"""Of Services that are for clients outside alone; unlike those of pods they go whatever pods are there."""

ADDRESSES_FILE: Final = "external-addresses.json"
"""In the ConfigMap of the controllers, whose name servers read it again when it changes."""

NAMESRV: Final = "namesrv"
REMOTING: Final = "remoting"
"""Names of the ports that clients connect to."""

POD_NAME_LABEL: Final = "statefulset.kubernetes.io/pod-name"


def opened(facts: SetFacts, index: int, service: NewObject) -> NewObject:
    """The `-master` Service of group `index`, open to clients outside if the manifest says so.

    It keeps its cluster IP and the EndpointSlice that masters write: clients outside follow a failover by the
    same write as those inside.
    """
    external = facts.manifest.spec.external
    if external is None:
        return service
    return _open(service, external, external.master(broker_name(facts, index)), REMOTING)


def is_open(manifest: Mapping[str, Any]) -> bool:
    """Whether an object is a Service that leads in from outside."""
    kinds = ("NodePort", "LoadBalancer")
    return manifest["kind"] == "Service" and manifest["spec"].get("type") in kinds


def closed(service: Mapping[str, Any]) -> NewObject | None:
    """A Service without its way in from outside; None for one that is for nothing else.

    What is special about an open one may be refused (a port that is taken), what brokers and clients inside
    need must not wait for it.
    """
    meta, spec = service["metadata"], service["spec"]
    if meta["labels"].get(names.COMPONENT_LABEL) == COMPONENT:
        return None
    inner = {key: value for key, value in spec.items() if not key.startswith("loadBalancer")}
    ports = [{key: value for key, value in port.items() if key != "nodePort"} for port in spec["ports"]]
    return {
        **service,
        "metadata": {key: value for key, value in meta.items() if key != "annotations"},
        "spec": {**inner, "type": "ClusterIP", "ports": ports},
    }


def external_objects(facts: SetFacts, groups: Mapping[int, int]) -> tuple[NewObject, ...]:
    """The Service of the name servers, and one for each single broker if that is asked for."""
    external = facts.manifest.spec.external
    if external is None:
        return ()
    (port,) = service_ports({NAMESRV: names.NAMESRV_PORT})
    name_servers = facts.a_service(
        names.namesrv_external_service(facts.name),
        [{**port, "targetPort": names.NAMESRV_EXTERNAL_PORT}],
        component=COMPONENT,
        selector=names.selector(facts.name, facts.name_servers_component),
    )
    found = [_open(name_servers, external, external.name_servers, NAMESRV)]
    if external.per_broker:
        found += [
            _open(_broker_service(facts, pod), external, external.broker(pod), REMOTING)
            for index, replicas in sorted(groups.items())
            for pod in (names.broker_pod(facts.name, index, ordinal) for ordinal in range(replicas))
        ]
    return tuple(found)


def name_server_settings(facts: SetFacts, folder: str) -> dict[str, str]:
    """Settings of name servers that listen for clients outside; they restart when these come or go."""
    if facts.manifest.spec.external is None:
        return {}
    return {
        "externalListenPort": str(names.NAMESRV_EXTERNAL_PORT),
        "externalAddressesPath": f"{folder}/{ADDRESSES_FILE}",
    }


def name_server_ports(facts: SetFacts) -> dict[str, int]:
    """Further ports of name servers that listen for clients outside."""
    return {COMPONENT: names.NAMESRV_EXTERNAL_PORT} if facts.manifest.spec.external is not None else {}


def addresses_file(addresses: ExternalAddresses | None) -> dict[str, str]:
    """What the ConfigMap of the controllers has besides their settings; a change of it restarts nobody."""
    return {ADDRESSES_FILE: addresses.to_json().decode()} if addresses is not None else {}


def _broker_service(facts: SetFacts, pod: str) -> NewObject:
    return facts.a_service(
        names.broker_external_service(pod),
        service_ports({REMOTING: names.REMOTING_PORT}),
        component=COMPONENT,
        selector={**names.selector(facts.name, "broker"), POD_NAME_LABEL: pod},
    )


def _open(service: NewObject, external: External, own: ExternalService, port_name: str) -> NewObject:
    spec: NewObject = {**service["spec"], "type": external.type}
    spec["ports"] = [
        {**port, "nodePort": own.node_port}
        if port["name"] == port_name and own.node_port is not None
        else port
        for port in spec["ports"]
    ]
    if external.load_balancer_class is not None:
        spec["loadBalancerClass"] = external.load_balancer_class
    if external.load_balancer_source_ranges:
        spec["loadBalancerSourceRanges"] = list(external.load_balancer_source_ranges)
    meta = dict(service["metadata"])
    if annotations := {**external.annotations, **own.annotations}:
        meta["annotations"] = annotations
    return {**service, "metadata": meta, "spec": spec}
