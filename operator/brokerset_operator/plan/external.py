"""Where clients outside the cluster reach name servers and brokers: read off Services, nodes and masters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from brokerset_operator.model import names
from brokerset_operator.plan import steps
from brokerset_operator.plan.facts import Broker, Facts, GroupFacts
from brokerset_operator.plan.objects import items, part, text
from brokerset_operator.plan.pods import Pod
from brokerset_operator.plan.steps import Steps
from brokerset_operator.resources.external_access import ADDRESSES_FILE, NAMESRV, REMOTING
from brokerset_protocol.errors import Rejected
from brokerset_protocol.external_routes import ExternalAddresses, place_of
from brokerset_spec.external_access import External, ExternalService

NODE_ADDRESS_TYPES: Final = ("ExternalDNS", "ExternalIP", "InternalDNS", "InternalIP", "Hostname")
"""Which of a node's addresses is taken, if the manifest prefers none; the order is Strimzi's."""


@dataclass(frozen=True, slots=True)
class ExternalAccess:
    """All addresses outside, as far as there are any."""

    name_servers: tuple[str, ...] = ()
    masters: tuple[tuple[str, str], ...] = ()
    """Broker name of a group, and where its master is."""

    brokers: tuple[tuple[str, str], ...] = ()
    """Pod, and where it is."""

    addresses: ExternalAddresses = field(default_factory=ExternalAddresses)
    """The same, as name servers need it."""

    missing: tuple[str, ...] = ()
    """What has no address yet, and why."""


def external_access(facts: Facts) -> ExternalAccess | None:
    """Return where clients outside get in; None when the manifest does not let them."""
    external = facts.manifest.spec.external
    if external is None:
        return None
    return _Reading(facts, external).everything()


def report_addresses(facts: Facts) -> Steps:
    """Reconcile again soon while addresses are missing; a load balancer that comes is told by its Service."""
    access = external_access(facts)
    if access is not None and access.missing:
        yield steps.Waits(f"clients outside: {'; '.join(access.missing)}", steps.WAIT_SECONDS)


def external_status(access: ExternalAccess) -> dict[str, Any]:
    """Return `status.external`."""
    found: dict[str, Any] = {
        "nameServers": ";".join(access.name_servers),
        "masters": [{"group": group, "address": address} for group, address in access.masters],
    }
    if access.brokers:
        found["brokers"] = [{"pod": pod, "address": address} for pod, address in access.brokers]
    if access.missing:
        found["waiting"] = "; ".join(access.missing)
    return found


@dataclass(slots=True)
class _Reading:
    """One reading of all addresses."""

    facts: Facts
    external: External
    missing: list[str] = field(default_factory=list)

    def everything(self) -> ExternalAccess:
        groups = [group for group in self.facts.groups.values() if group.wanted or group.keeper is not None]
        before = self._published()
        name_servers = self._name_servers()
        masters = {
            group.name: address for group in groups if (address := self._master(group, before)) is not None
        }
        hosts = {place: address for group in groups for place, address in self._nodes_of(group)}
        brokers: dict[str, str] = {}
        registered: dict[str, str] = {}
        for group, broker in self._single_brokers(groups):
            assert broker.pod is not None, "it is listed by its pod"
            if (address := self._broker(broker.pod)) is not None:
                brokers[broker.pod.name] = address
                registered[self._registered(group, broker.pod)] = address
        return ExternalAccess(
            name_servers=name_servers,
            masters=tuple(sorted(masters.items())),
            brokers=tuple(sorted(brokers.items())),
            addresses=ExternalAddresses(
                dict(sorted(masters.items())), dict(sorted(registered.items())), dict(sorted(hosts.items()))
            ),
            missing=tuple(self.missing),
        )

    def _name_servers(self) -> tuple[str, ...]:
        pods = self.facts.name_servers.values()
        service = names.namesrv_external_service(self.facts.meta.name)
        own = self.external.name_servers
        port = self._port(service, own, NAMESRV, names.NAMESRV_PORT)
        if self.external.type == "LoadBalancer" or self._given_host(own) is not None:
            found = [self._host(service, own, None)]
        else:
            found = [self._node_host(pod) for pod in pods if not pod.terminating]
            if not any(found):
                self.missing.append("no controller is on a node yet")
        if port is None:
            return ()
        return tuple(dict.fromkeys(_address(host, port) for host in found if host is not None))

    def _master(self, group: GroupFacts, before: ExternalAddresses) -> str | None:
        """An address at the master's node; it stays while no master is known."""
        own = self.external.master(group.name)
        service = names.master_service(self.facts.meta.name, group.index)
        port = self._port(service, own, REMOTING, names.REMOTING_PORT)
        pod = group.master.pod if group.master is not None else None
        published = before.masters.get(group.name)
        if pod is None and published is not None and self.external.type == "NodePort":
            return published
        host = self._host(service, own, pod)
        return _address(host, port) if host is not None and port is not None else None

    def _nodes_of(self, group: GroupFacts) -> Iterable[tuple[str, str]]:
        """Where the master is reached at node ports, for each pod that may be it.

        Name servers know at once who is master, long before a file with its address can be written again.
        """
        own = self.external.master(group.name)
        if self.external.type == "LoadBalancer" or self._given_host(own) is not None:
            return
        service = names.master_service(self.facts.meta.name, group.index)
        port = own.advertised_port or self._node_port(service, REMOTING)
        for broker in group.brokers.values():
            pod = broker.pod
            host = self._node_host(pod) if pod is not None else None
            if pod is not None and pod.ip is not None and host is not None and port is not None:
                yield place_of(group.name, pod.ip), _address(host, port)

    def _broker(self, pod: Pod) -> str | None:
        own = self.external.broker(pod.name)
        service = names.broker_external_service(pod.name)
        port = self._port(service, own, REMOTING, names.REMOTING_PORT)
        host = self._host(service, own, pod)
        return _address(host, port) if host is not None and port is not None else None

    def _single_brokers(self, groups: Iterable[GroupFacts]) -> Iterable[tuple[GroupFacts, Broker]]:
        if self.external.per_broker:
            for group in groups:
                for broker in group.brokers.values():
                    if broker.pod is not None and not broker.pod.terminating:
                        yield group, broker

    def _registered(self, group: GroupFacts, pod: Pod) -> str:
        """The address under which name servers know a broker that is no master."""
        meta = self.facts.meta
        host = names.broker_host(meta.name, meta.namespace, group.index, pod.ordinal)
        return _address(host, names.REMOTING_PORT)

    def _port(self, service: str, own: ExternalService, name: str, balanced: int) -> int | None:
        if own.advertised_port is not None:
            return own.advertised_port
        if self.external.type == "LoadBalancer":
            return balanced
        found = self._node_port(service, name)
        if found is None:
            self.missing.append(f"Service {service} has no node port yet")
        return found

    def _node_port(self, service: str, name: str) -> int | None:
        found = self.facts.observed.services.get(service, {})
        for port in items(part(found, "spec"), "ports"):
            if port.get("name") == name and isinstance(port.get("nodePort"), int):
                return int(port["nodePort"])
        return None

    def _host(self, service: str, own: ExternalService, pod: Pod | None) -> str | None:
        """Where a Service is reached; at a node port, where the pod is that it leads to now."""
        given = self._given_host(own)
        if given is not None:
            return given
        if self.external.type == "LoadBalancer":
            return self._balancer(service)
        host = self._node_host(pod) if pod is not None else None
        if host is None:
            self.missing.append(f"Service {service} leads to no pod on a node yet")
        return host

    def _given_host(self, own: ExternalService) -> str | None:
        return own.advertised_host or self.external.advertised_host

    def _balancer(self, service: str) -> str | None:
        found = self.facts.observed.services.get(service, {})
        for entry in items(part(part(found, "status"), "loadBalancer"), "ingress"):
            if (host := text(entry.get("hostname")) or text(entry.get("ip"))) is not None:
                return host
        self.missing.append(f"Service {service} has no address of a load balancer yet")
        return None

    def _node_host(self, pod: Pod) -> str | None:
        """The node's address; what the pod itself says of it, where nodes may not be read."""
        observed, preferred = self.facts.observed, self.external.preferred_node_address_type
        known = dict(reversed(observed.node_addresses.get(pod.node or "", ())))
        order = NODE_ADDRESS_TYPES if preferred is None else (preferred, *NODE_ADDRESS_TYPES)
        found = next((known[each] for each in order if each in known), None)
        return found or text(part(observed.pods.get(pod.name, {}), "status").get("hostIP"))

    def _published(self) -> ExternalAddresses:
        name, config_maps = self.facts.meta.name, self.facts.observed.config_maps
        settings = config_maps.get(names.namesrv_set(name)) or config_maps.get(names.controller_set(name), {})
        data = part(settings, "data")
        try:
            return ExternalAddresses.from_json(str(data.get(ADDRESSES_FILE, "{}")).encode())
        except Rejected:
            return ExternalAddresses()


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
