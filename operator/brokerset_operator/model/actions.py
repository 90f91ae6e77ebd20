"""What the operator can do, as values; `apply` carries them out in the order of the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """One object of the API, in the set's namespace."""

    api_version: str
    kind: str
    name: str
    uid: str | None = None
    """Only this very object is meant, not a later one of the same name."""


@dataclass(frozen=True, slots=True)
class ApplyObject:
    """Make an object what `manifest` says, by server-side apply."""

    manifest: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DeleteObject:
    """Delete an object that is no longer wanted."""

    ref: ObjectRef
    why: str
    orphan: bool = False
    """Whether what it owns stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteAuthority:
    """Change the Secret of the set's own authority; no key is in this value."""

    change: Literal["make", "prepare", "promote", "retire"]
    """See `plan/certificates`."""

    version: str | None
    """Resource version of the Secret that this was decided on; None: there is none."""

    days: int
    """How long a new authority is good."""

    trusted: tuple[str, ...] = ()
    """Certificates, in PEM, of those that are trusted besides the one that signs then."""

    renewal: str = ""
    """The request that is done with this."""

    why: str


@dataclass(frozen=True, slots=True)
class ChangePasswords:
    """Give the two users of a Secret its passwords, at the controllers, and keep the former ones."""

    secret: str
    kept_seconds: int


@dataclass(frozen=True, slots=True)
class EndFormerPasswords:
    """Let the controllers forget what they have stored of the two users, so that settings of pods count."""

    secret: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IssueCertificate:
    """Put a new certificate, with a new key, into the Secret that the set's pods mount."""

    version: str | None
    """Resource version of the Secret that this was decided on; None: there is none."""

    authority: str
    """Fingerprint of the authority that signs it; nothing is done if another one does by now."""

    hosts: tuple[str, ...]
    days: int
    renewal: str = ""
    """The request that is done with this."""

    why: str


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Let the StatefulSet make a pod again."""

    name: str
    uid: str
    why: str
    force: bool = False
    """Without waiting for the kubelet: only for nodes that are known to be gone."""

    group: str | None = None
    """Broker name of the group that the pod belongs to, when it matters who is master meanwhile."""

    epoch: int | None = None
    """The master epoch that this was decided on; nothing happens in another one."""


@dataclass(frozen=True, slots=True)
class ResizeClaim:
    """Ask for a larger volume."""

    name: str
    size: str


@dataclass(frozen=True, slots=True)
class SwitchOver:
    """A planned switchover: the master hands over."""

    group: str
    """Broker name."""

    to_broker_id: int | None
    """None: to the replica that is furthest."""

    epoch: int
    """The master epoch that this was decided on; nothing happens in another one."""

    why: str


@dataclass(frozen=True, slots=True)
class Fence:
    """Take a replica out of service, or back in."""

    group: str
    broker_id: int
    fenced: bool
    why: str
    force: bool = False
    """Whether it may leave the master alone in sync: the plan has checked that this is wanted."""


@dataclass(frozen=True, slots=True)
class CleanBroker:
    """Let the controllers forget the id of a broker that is gone for good."""

    group: str
    broker_id: int
    why: str


@dataclass(frozen=True, slots=True)
class SetPermission:
    """Let all living brokers of a group be read-only (4) or read-write (6)."""

    group: str
    permission: int
    why: str


@dataclass(frozen=True, slots=True)
class TellSettings:
    """Change settings of one running broker; they hold until its process ends."""

    group: str
    """Broker name; nothing is told to a broker of another group that has the address by now."""

    pod: str
    address: str
    owner_uid: str
    """As for `group`: what the broker says its `ownerUid` is."""

    settings: Mapping[str, str]
    """By RocketMQ's names."""

    why: str


@dataclass(frozen=True, slots=True)
class AddController:
    """Take a controller into the raft group as a learner."""

    node_id: int
    raft_address: str
    service_address: str


@dataclass(frozen=True, slots=True)
class PromoteController:
    """Give a learner its vote."""

    node_id: int


@dataclass(frozen=True, slots=True)
class RemoveController:
    """Take a controller out of the raft group; leadership is given away first."""

    node_id: int
    why: str


@dataclass(frozen=True, slots=True)
class MoveLeadership:
    """Let another controller lead."""

    to_node_id: int
    why: str


@dataclass(frozen=True, slots=True)
class PointMasterService:
    """Correct where a group's `-master` Service leads to."""

    service: str
    pod: str
    pod_ip: str
    epoch: int


@dataclass(frozen=True, slots=True)
class EmitEvent:
    """Tell people, as an Event of the BrokerSet."""

    reason: str
    message: str
    warning: bool = False


Action = (
    ApplyObject
    | DeleteObject
    | WriteAuthority
    | ChangePasswords
    | EndFormerPasswords
    | IssueCertificate
    | DeletePod
    | ResizeClaim
    | SwitchOver
    | Fence
    | CleanBroker
    | SetPermission
    | TellSettings
    | AddController
    | PromoteController
    | RemoveController
    | MoveLeadership
    | PointMasterService
    | EmitEvent
)


@dataclass(frozen=True, slots=True)
class Plan:
    """One reconcile's decision."""

    actions: tuple[Action, ...]
    status: Mapping[str, Any]
    """The whole `status` of the BrokerSet."""

    requeue_seconds: float
    """When to reconcile again without an event."""

    notes: tuple[str, ...] = field(default=())
    """Why something that is wanted is not done now; for the log."""
