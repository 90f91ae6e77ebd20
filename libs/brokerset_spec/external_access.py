"""What a manifest says about clients outside the Kubernetes cluster: `spec.external`."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field

from brokerset_spec.manifest_parts import BrokerName, ClassName, Part, rule, ruled
from brokerset_spec.problems import SET_NAME_SHAPE, Problem

PATH: Final = "spec.external"

HOST_SHAPE: Final = r"^([a-zA-Z0-9]([-a-zA-Z0-9.]*[a-zA-Z0-9])?|[0-9a-fA-F:.]*:[0-9a-fA-F:.]*)$"
"""A DNS name, or an address of either family, without brackets."""

ANNOTATIONS_MAX: Final = 64
"""Most annotations of one Service that a manifest gives at one place."""

SOURCE_RANGES_MAX: Final = 64
MASTERS_MAX: Final = 256
BROKERS_MAX: Final = 256
"""Most single brokers with settings of their own."""

OWN_ANNOTATIONS: Final = "brokerset.io/"
"""Beginning of annotations that are not for manifests."""

Port = Annotated[int, Field(ge=1, le=65535)]
Host = Annotated[str, Field(pattern=HOST_SHAPE, max_length=253)]
AnnotationText = Annotated[str, Field(max_length=16384)]
NodeAddressType = Literal["ExternalDNS", "ExternalIP", "InternalDNS", "InternalIP", "Hostname"]


class ExternalService(Part):
    """One Service that can be reached from outside, where it differs from the others."""

    advertised_host: Host | None = None
    """Host that clients are told, for the Service's own address."""

    advertised_port: Port | None = None
    """Port that clients are told, for the Service's own."""

    node_port: Port | None = None
    """Port at every node; none lets Kubernetes choose, which then keeps it."""

    annotations: Annotated[Mapping[str, AnnotationText], Field(max_length=ANNOTATIONS_MAX)] = {}
    """Annotations of this Service, on top of those of all."""


class ExternalMaster(ExternalService):
    """One of them."""

    group: BrokerName
    """Broker name of the group."""


class ExternalBroker(ExternalService):
    """One of them."""

    pod: Annotated[str, Field(pattern=SET_NAME_SHAPE, max_length=63)]
    """The broker's pod."""


class External(Part):
    """How clients outside the cluster reach name servers and brokers."""

    model_config = ConfigDict(
        json_schema_extra=ruled(
            rule(
                "self.type == 'LoadBalancer' || !has(self.loadBalancerClass)",
                "has no effect with type NodePort; leave it out",
                "loadBalancerClass",
            ),
            rule(
                "self.type == 'LoadBalancer' || !has(self.loadBalancerSourceRanges) || "
                "size(self.loadBalancerSourceRanges) == 0",
                "has no effect with type NodePort; leave it out",
                "loadBalancerSourceRanges",
            ),
            rule(
                "self.type == 'NodePort' || !has(self.preferredNodeAddressType)",
                "has no effect with type LoadBalancer; leave it out",
                "preferredNodeAddressType",
            ),
            rule(
                "self.type == 'NodePort' || !has(self.advertisedHost)",
                "each load balancer has an address of its own; give advertisedHost under nameServers and "
                "masters "
                "instead",
                "advertisedHost",
            ),
            rule(
                "!has(self.brokers) || size(self.brokers) == 0 || (has(self.perBroker) && self.perBroker)",
                "has no effect without perBroker; set perBroker to true, or leave it out",
                "brokers",
            ),
        )
    )

    type: Literal["NodePort", "LoadBalancer"]
    """Type of the Services that lead in."""

    per_broker: bool = False
    """Whether each single broker can be reached, too, not the masters alone."""

    advertised_host: Host | None = None
    """Host of every address that has none of its own, as a DNS name that leads to all nodes; NodePort
    only."""

    preferred_node_address_type: NodeAddressType | None = None
    """Which of a node's addresses clients are told; without it, the first that the node has of ExternalDNS,
    ExternalIP, InternalDNS, InternalIP, Hostname. NodePort only."""

    annotations: Annotated[Mapping[str, AnnotationText], Field(max_length=ANNOTATIONS_MAX)] = {}
    """Annotations of all these Services."""

    load_balancer_class: ClassName | None = None
    """Which implementation of load balancers serves. Kubernetes allows no change while the Services are
    there."""

    load_balancer_source_ranges: Annotated[
        tuple[Annotated[str, Field(max_length=64)], ...], Field(strict=False, max_length=SOURCE_RANGES_MAX)
    ] = ()
    """Networks that load balancers let in, as 203.0.113.0/24; none means everybody."""

    name_servers: ExternalService = ExternalService()
    """The Service of the name servers, where it differs."""

    masters: Annotated[tuple[ExternalMaster, ...], Field(strict=False, max_length=MASTERS_MAX)] = ()
    """Services of masters that differ."""

    brokers: Annotated[tuple[ExternalBroker, ...], Field(strict=False, max_length=BROKERS_MAX)] = ()
    """Services of single brokers that differ; with perBroker only."""

    def master(self, group: str) -> ExternalService:
        """What is said about the master of a group."""
        return next((each for each in self.masters if each.group == group), _AS_ALL)

    def broker(self, pod: str) -> ExternalService:
        """What is said about a single broker."""
        return next((each for each in self.brokers if each.pod == pod), _AS_ALL)

    def services(self) -> Iterable[tuple[str, ExternalService]]:
        """Everything that is said about single Services, with its place below `spec.external`."""
        yield "nameServers", self.name_servers
        yield from ((f"masters.{n}", each) for n, each in enumerate(self.masters))
        yield from ((f"brokers.{n}", each) for n, each in enumerate(self.brokers))


_AS_ALL: Final = ExternalService()


def check_external(
    external: External | None, *, set_name: str, groups: Sequence[str], own_controllers: bool, names: bool
) -> list[Problem]:
    """Return what contradicts itself, or the rest of the manifest.

    `names`: whether brokers register by names, and not by IPs, which may be another broker's a moment later.
    """
    if external is None:
        return []
    found = [] if own_controllers else [_foreign_name_servers()]
    if external.per_broker and not names:
        reason = "needs brokers that register by names, and spec.advertise is podIP"
        found.append(Problem(f"{PATH}.perBroker", reason, "leave it out, or advertise another way"))
    return [
        *found,
        *_of_other_type(external),
        *_unknown(external, set_name, groups),
        *_taken_twice(external),
        *_annotations(external),
        *_source_ranges(external),
    ]


def _foreign_name_servers() -> Problem:
    reason = "needs name servers of this set's own, and spec.controllers.ref has those of another one"
    return Problem(PATH, reason, "leave one of them out")


def _of_other_type(external: External) -> Iterable[Problem]:
    balanced = external.type == "LoadBalancer"
    for name, given, fits in (
        ("loadBalancerClass", external.load_balancer_class is not None, balanced),
        ("loadBalancerSourceRanges", bool(external.load_balancer_source_ranges), balanced),
        ("preferredNodeAddressType", external.preferred_node_address_type is not None, not balanced),
    ):
        if given and not fits:
            yield Problem(f"{PATH}.{name}", f"has no effect with type: {external.type}", "leave it out")
    if balanced and external.advertised_host is not None:
        reason = "each load balancer has an address of its own"
        advice = "give advertisedHost under nameServers and masters instead"
        yield Problem(f"{PATH}.advertisedHost", reason, advice)
    if external.brokers and not external.per_broker:
        yield Problem(
            f"{PATH}.brokers", "has no effect without perBroker", "set perBroker: true, or leave it out"
        )


def _unknown(external: External, set_name: str, groups: Sequence[str]) -> Iterable[Problem]:
    """Names that never belong to the set; those that scaling took away, or is to bring, are left alone."""
    own_group = re.compile(rf"{re.escape(set_name)}-[0-9]{{1,3}}")
    own_pod = re.compile(rf"{re.escape(set_name)}-[0-9]{{1,3}}-[0-9]")
    by_number = groups[0] == f"{set_name}-0"
    listed = (
        (
            "masters",
            "group",
            [each.group for each in external.masters],
            lambda name: name in groups or (by_number and own_group.fullmatch(name)),
        ),
        ("brokers", "pod", [each.pod for each in external.brokers], own_pod.fullmatch),
    )
    for part, key, given, known in listed:
        for n, name in enumerate(given):
            path = f"{PATH}.{part}.{n}.{key}"
            if not known(name):
                example = groups[0] if key == "group" else f"{set_name}-0-0"
                yield Problem(path, f"the set has no {key} {name}", f"use a name like {example}")
            elif name in given[:n]:
                yield Problem(path, f"{name} is listed twice", "write everything about it into one entry")


def _taken_twice(external: External) -> Iterable[Problem]:
    """Two Services at one place: the second one would never be reached."""
    ports: dict[int, str] = {}
    addresses: dict[tuple[str, int], str] = {}
    for place, each in external.services():
        if each.node_port is not None and (other := ports.setdefault(each.node_port, place)) != place:
            yield Problem(
                f"{PATH}.{place}.nodePort", f"{other} has it already", "give each a port of its own"
            )
        host = each.advertised_host or external.advertised_host
        if host is not None and each.advertised_port is not None:
            other = addresses.setdefault((host, each.advertised_port), place)
            if other != place:
                reason = f"{host}:{each.advertised_port} is the address of {other} already"
                yield Problem(f"{PATH}.{place}.advertisedPort", reason, "give each an address of its own")


def _annotations(external: External) -> Iterable[Problem]:
    places = (("", external.annotations), *((f".{p}", s.annotations) for p, s in external.services()))
    for place, given in places:
        for key in sorted(given):
            if key.startswith(OWN_ANNOTATIONS):
                yield Problem(f"{PATH}{place}.annotations.{key}", "is brokerset's own", "leave it out")


def _source_ranges(external: External) -> Iterable[Problem]:
    for n, given in enumerate(external.load_balancer_source_ranges):
        try:
            ipaddress.ip_network(given, strict=False)
        except ValueError:
            path = f"{PATH}.loadBalancerSourceRanges.{n}"
            yield Problem(path, f"{given!r} is no network", "write it as 203.0.113.0/24")
