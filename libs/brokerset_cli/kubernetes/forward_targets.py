"""Where local ports lead: brokers, masters and name servers of a set, as Kubernetes knows them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from brokerset_cli.kubernetes import names
from brokerset_cli.kubernetes.sets import Object, SetView, items, part

if TYPE_CHECKING:
    from brokerset_protocol.external_routes import ExternalAddresses

REMOTING_PORT: Final = 10911
NAMESRV_PORT: Final = 9876
LOOPBACK: Final = "127.0.0.1"

PORTS_MAX: Final = 200
"""Most local ports of brokers."""

MASTER_SUFFIX: Final = "-master"
"""A master's EndpointSlice is named after the StatefulSet of its group."""


@dataclass(frozen=True, slots=True)
class BrokerTarget:
    """A broker's pod, and the addresses that it may have registered."""

    pod: str
    uid: str
    registered: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Targets:
    """All that can be forwarded to at one moment."""

    groups: Mapping[str, str] = field(default_factory=dict)
    """StatefulSet by broker name."""

    brokers: Mapping[str, BrokerTarget] = field(default_factory=dict)
    """By pod."""

    masters: Mapping[str, str] = field(default_factory=dict)
    """Pod by StatefulSet, as the EndpointSlices say, which masters write themselves."""

    name_servers: tuple[str, ...] = ()
    """Pods of name servers, those that are ready first."""

    by_tls: Mapping[str, str] = field(default_factory=dict)
    """The set that each pod belongs to which takes TLS alone."""


def read_targets(seen: SetView, pods: Iterable[Object], slices: Iterable[Object]) -> Targets:
    """Read what the API server has; `pods` are the set's, and those of the controllers that it uses."""
    of = seen.controllers.of or seen.name
    brokers: dict[str, BrokerTarget] = {}
    name_servers: list[tuple[bool, str]] = []
    by_tls: dict[str, str] = {}
    for pod in pods:
        meta = part(pod, "metadata")
        labels, name = part(meta, "labels"), str(meta.get("name", ""))
        if part(meta, "annotations").get(names.TLS) in names.TLS_ALONE:
            by_tls[name] = str(labels.get(names.SET_LABEL))
        resource, ip = labels.get(names.GROUP_LABEL), part(pod, "status").get("podIP")
        if labels.get(names.COMPONENT_LABEL) in (names.CONTROLLER, names.NAME_SERVER):
            if labels.get(names.SET_LABEL) == of and not meta.get("deletionTimestamp"):
                name_servers.append((not _is_ready(pod), name))
        elif resource and labels.get(names.SET_LABEL) == seen.name:
            host = f"{name}.{resource}.{meta.get('namespace', '')}.svc"
            addresses = [f"{host}:{REMOTING_PORT}", *([f"{ip}:{REMOTING_PORT}"] if ip else [])]
            brokers[name] = BrokerTarget(name, str(meta.get("uid", "")), tuple(addresses))
    masters = {}
    for each in slices:
        name = str(part(each, "metadata").get("name", ""))
        pod_name = next((part(e, "targetRef").get("name") for e in items(each, "endpoints")), None)
        if name.endswith(MASTER_SUFFIX) and pod_name:
            masters[name.removesuffix(MASTER_SUFFIX)] = str(pod_name)
    return Targets(
        groups={group.name: group.resource for group in seen.groups},
        brokers=brokers,
        masters=masters,
        name_servers=tuple(name for _, name in sorted(name_servers)),
        by_tls=by_tls,
    )


def local_addresses(targets: Targets, ports: Mapping[str, int]) -> ExternalAddresses:
    """The addresses that clients on this machine are told.

    `ports` has the local port of each pod, and of each master under the name of its EndpointSlice. A group
    whose master is not known is left out: its port would lead nowhere.
    """
    from brokerset_protocol.external_routes import ExternalAddresses  # not for what other verbs import

    return ExternalAddresses(
        masters={
            group: f"{LOOPBACK}:{ports[resource + MASTER_SUFFIX]}"
            for group, resource in targets.groups.items()
            if resource in targets.masters and resource + MASTER_SUFFIX in ports
        },
        brokers={
            address: f"{LOOPBACK}:{ports[pod]}"
            for pod, broker in targets.brokers.items()
            if pod in ports
            for address in broker.registered
        },
    )


def changed_masters(before: Targets, after: Targets) -> dict[str, str | None]:
    """Groups, by StatefulSet, whose master is in another pod than before, or a new pod of that name."""
    return {
        resource: after.masters.get(resource)
        for resource in before.masters.keys() | after.masters.keys()
        if _place(before, resource) != _place(after, resource)
    }


def _place(targets: Targets, resource: str) -> tuple[str | None, str | None]:
    pod = targets.masters.get(resource)
    broker = targets.brokers.get(pod) if pod is not None else None
    return pod, broker.uid if broker is not None else None


def _is_ready(pod: Object) -> bool:
    return any(
        each.get("type") == "Ready" and each.get("status") == "True"
        for each in items(part(pod, "status"), "conditions")
    )
