"""What the operator sees of one BrokerSet in one reconcile; values only.

Objects of the API are kept as the dictionaries that the API server sends: the plan reads few fields of them,
and builders compare nothing (server-side apply does). What controllers and brokers say is typed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from brokerset_operator.model import names
from brokerset_operator.model.certificates import IssuedCertificate, OwnCertificates
from brokerset_operator.model.peers import PeerSet
from brokerset_protocol.bodies.controllers import ControllerStatus, GroupState
from brokerset_spec.manifest import BrokerSet, Problem

Object = Mapping[str, Any]
"""An object of the API as it came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """What the API server says of the BrokerSet itself."""

    name: str
    namespace: str
    uid: str
    generation: int
    annotations: Mapping[str, str] = field(default_factory=dict)
    deleting: bool = False
    created: float | None = None
    """When it was made, in seconds since 1970; None when that does not matter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Controllers:
    """What the controllers say. Everything is empty while none answers."""

    answers: Mapping[int, ControllerStatus] = field(default_factory=dict)
    """By node number (the pod's ordinal), for those that answered in time."""

    waiting_to_join: frozenset[int] = frozenset()
    """Those that answered that they have no data and wait to be added."""

    leader: int | None = None
    """Who leads, when it was confirmed by a majority."""

    members: Mapping[int, bool] = field(default_factory=dict)
    """Members of the raft group by number, with whether they vote; as the leader says."""

    caught_up: frozenset[int] = frozenset()
    """Members that have all but the leader's last few entries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """What is left to be read in a group that is to go."""

    unread: int
    """Messages that some consumer group has not consumed."""

    permission: int | None
    """`brokerPermission` of the master; None when it did not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorPods:
    """By what NetworkPolicies know the operator's pods."""

    namespace: str
    labels: Mapping[str, str]
    """Not empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """What the operator's own installation says."""

    image: str
    """Image of controllers and brokers when the manifest names none."""

    installation: str = ""
    """What a set that it looks after is marked with, see `plan/owner`."""

    runbooks: str = names.RUNBOOKS
    """Where the page of each alert is."""

    ip_family: str = "IPv4"
    """`IPv4` or `IPv6`: of the addresses by which pods know each other, the first one where they have two."""

    trust_spread_seconds: float = 300.0
    """How long it takes at most until pods have read a Secret or ConfigMap that was changed."""

    pods: OperatorPods | None = None
    """None where the operator does not run in pods, or was not given their labels."""

    api_kinds: frozenset[str] = frozenset()
    """`<group>/<kind>` of optional kinds that the API server has: `monitoring.coreos.com/PodMonitor`, …"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberPasswords:
    """What servers say of the two users of the manifest's Secret; no password is in this value."""

    changed: bool = False
    """Whether the controllers have the passwords of this Secret as the newest ones."""

    everywhere: bool = False
    """Whether each broker of the set has, too."""

    former: bool = False
    """Whether the controllers accept former passwords as well."""

    problem: str = ""
    """Why the users are not those of the Secret that pods have, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """All of it."""

    meta: Meta
    manifest: BrokerSet | None
    """None when it is invalid."""

    problems: tuple[Problem, ...] = ()
    """What is wrong with the manifest."""

    status: Mapping[str, Any] = field(default_factory=dict)
    """As it was written in an earlier reconcile."""

    operator: Operator
    stateful_sets: Mapping[str, Object] = field(default_factory=dict)
    pods: Mapping[str, Object] = field(default_factory=dict)
    claims: Mapping[str, Object] = field(default_factory=dict)
    services: Mapping[str, Object] = field(default_factory=dict)
    endpoint_slices: Mapping[str, Object] = field(default_factory=dict)
    config_maps: Mapping[str, Object] = field(default_factory=dict)
    other: Mapping[str, Object] = field(default_factory=dict)
    """Further objects that carry the set's label, by `<kind>/<name>`."""

    storage_classes: Mapping[str, Object] = field(default_factory=dict)
    nodes: Mapping[str, Object] = field(default_factory=dict)
    """Nodes of pods that are stuck, if they may be read; empty otherwise."""

    node_addresses: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    """By node: type and address, when clients outside are told addresses of nodes and nodes may be read."""

    missing_nodes: frozenset[str] = frozenset()
    """Names of nodes of stuck pods that the API server was asked for and does not have."""

    controllers: Controllers = field(default_factory=Controllers)
    groups: Mapping[str, GroupState] = field(default_factory=dict)
    """By broker name, as the leading controller says."""

    conflicts: Mapping[str, str] = field(default_factory=dict)
    """By pod name: why its broker may not register (a copied volume, another owner)."""

    troubles: Mapping[str, str] = field(default_factory=dict)
    """By pod name: what a broker that runs and is not ready says is wrong, and what to do; those too."""

    drains: Mapping[str, Drain] = field(default_factory=dict)
    """By broker name, for groups that the manifest no longer has."""

    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By pod name: settings that a broker which answered runs with, those that can be changed meanwhile, and
    its `brokerName` and `ownerUid`."""

    tls_trust_problem: str | None = None
    """What is wrong with the ConfigMap of `spec.tls.trustConfigMap`, and what to do."""

    certificates: OwnCertificates | IssuedCertificate | None = None
    """Of a set whose certificates the operator keeps, or has cert-manager keep."""

    access_problem: str | None = None
    """Why the operator cannot sign as the administrator of `spec.acl`, and what to do."""

    passwords: MemberPasswords | None = None
    """While they change (`model/password_rotation`), if who was asked has answered."""

    authorities: str = ""
    """In PEM: whom the ConfigMap of the set's authorities names."""

    peers: tuple[PeerSet, ...] = ()
    """The sets with which this one shares controllers, by name, as far as that matters to TLS and users."""

    now: float
    """Seconds since 1970."""
