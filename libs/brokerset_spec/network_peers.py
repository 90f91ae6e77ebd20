"""What a manifest says about who may connect to the pods of a set: `spec.networkPolicy`."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Final

from pydantic import ConfigDict, Field

from brokerset_spec.manifest_parts import Part, page, rule, ruled
from brokerset_spec.pod_template import LabelValue
from brokerset_spec.problems import Problem

PATH: Final = "spec.networkPolicy"

PEERS_MAX: Final = 32
"""Most entries of one list."""

LABELS_MAX: Final = 32
"""Most labels of one selector."""

ONE_KIND: Final = (
    "says nothing, or names both pods and addresses",
    "give podSelector, namespaceSelector or both, or else ipBlock",
)
OUTSIDE_LEFT_OUT: Final = (
    "leaves out clients outside the cluster, and spec.external lets them in",
    "add an ipBlock with their addresses, or leave clients out",
)
"""What is wrong with a part, and what to do about it; for the API server, and for us."""

LABEL_KEY: Final = re.compile(
    r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
"""Name of a label, as Kubernetes allows it."""


class LabelSelector(Part):
    """Which objects, by their labels; nothing said means all."""

    match_labels: Annotated[Mapping[str, LabelValue], Field(max_length=LABELS_MAX)] = {}
    """Labels with their values, all of which an object must have. Every namespace has
    `kubernetes.io/metadata.name`."""


class IpBlock(Part):
    """Addresses outside the cluster."""

    cidr: Annotated[str, Field(max_length=64)]
    """A network, as 203.0.113.0/24."""


class NetworkPeer(Part):
    """Some pods, or some addresses."""

    model_config = ConfigDict(
        json_schema_extra=ruled(
            rule(
                "has(self.ipBlock) != (has(self.podSelector) || has(self.namespaceSelector))",
                "; ".join(ONE_KIND),
            )
        )
    )

    pod_selector: LabelSelector | None = None
    """Which pods; without `namespaceSelector` those of the set's namespace."""

    namespace_selector: LabelSelector | None = None
    """Of which namespaces; without `podSelector` all their pods."""

    ip_block: IpBlock | None = None
    """Addresses, for clients outside the cluster; not next to the others."""


Peers = Annotated[tuple[NetworkPeer, ...], Field(strict=False, max_length=PEERS_MAX)]


class NetworkPolicy(Part):
    """Who may connect to which ports of the set's pods, where the cluster's network enforces NetworkPolicies.

    The set's own pods, those of other sets of the namespace, jobs on store files and the operator always
    reach what they need. Raft, HA and DLedger ports are for the set's own pods. A list names who else is let
    in, and an empty one nobody.
    """

    clients: Annotated[Peers, Field(json_schema_extra=page("everybody"))] | None = None
    """Who may reach name servers and brokers to send and consume (9876, 10911, 10909), administrators too.

    With `spec.external` it needs an `ipBlock`, from which clients outside come.
    """

    ordered_clients: Annotated[Peers, Field(json_schema_extra=page("nobody"))] | None = None
    """Who may reach the controllers (9878): producers and consumers of ordered subjects, and administrators
    of controllers. Whoever does can lead the set, unless controllers check who administers."""

    http: Annotated[Peers, Field(json_schema_extra=page("everybody"))] | None = None
    """Who may reach the HTTP ports (8080): Prometheus, and who reads stores. Probes need no entry."""


def check_network_policy(given: NetworkPolicy, *, has_external: bool) -> list[Problem]:
    """Return what is wrong with `spec.networkPolicy`; `has_external`: clients outside are let in."""
    found = [
        problem
        for name, peers in (
            ("clients", given.clients),
            ("orderedClients", given.ordered_clients),
            ("http", given.http),
        )
        for n, peer in enumerate(peers or ())
        for problem in _peer_problems(peer, f"{PATH}.{name}.{n}")
    ]
    if has_external and given.clients is not None and all(each.ip_block is None for each in given.clients):
        found.append(Problem(f"{PATH}.clients", *OUTSIDE_LEFT_OUT))
    return found


def _peer_problems(peer: NetworkPeer, path: str) -> Iterable[Problem]:
    selectors = {"podSelector": peer.pod_selector, "namespaceSelector": peer.namespace_selector}
    if (peer.ip_block is None) == all(each is None for each in selectors.values()):
        yield Problem(path, *ONE_KIND)
    if peer.ip_block is not None:
        cidr = peer.ip_block.cidr
        try:
            if "/" not in cidr:
                raise ValueError
            ipaddress.ip_network(cidr)
        except ValueError:
            yield Problem(f"{path}.ipBlock.cidr", f"{cidr!r} is no network", "write it as 203.0.113.0/24")
    for name, selector in selectors.items():
        for key in selector.match_labels if selector is not None else ():
            if not LABEL_KEY.fullmatch(key):
                reason, advice = f"{key!r} is not the name of a label", "write it like app or example.com/app"
                yield Problem(f"{path}.{name}.matchLabels", reason, advice)
