"""The agreed state of one broker group (Java: BrokerReplicaInfo and SyncStateInfo). Plain values.

A controller keeps a group for each broker name. Nothing here is a matter of opinion: who is alive is known by
each controller for itself (`brokerset_controller.liveness`), and only decisions made from it reach the state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

LOSSES_KEPT_MAX = 16
"""Records of possibly lost ranges that a group keeps; the oldest goes first."""

GROUPS_MAX = 10_000
"""Broker groups of one set of controllers, cleaned ones included."""

REPLICAS_MAX = 64
"""Replicas of a group."""

NAME_SIZE_MAX = 255
"""Bytes of a cluster's, a group's or an owner's name."""

ADDRESS_SIZE_MAX = 255
"""Bytes of a `host:port`."""

CHECK_CODE_SIZE_MAX = 255
"""Bytes of a register check code."""

NONCE_SIZE_MAX = 255
"""Bytes of a start nonce."""

TRIED_NONCES_MAX = 64
"""Tried nonces of one registration; as many as a broker keeps."""

NAMES_ASKED_MAX = 1_000
"""Groups that one request may ask for."""

BROKER_ID_MAX = 1_000_000_000
"""Highest broker id."""

ADOPTION_GAP_MAX = 1_000
"""How far above the group's next id a volume's own id may be."""

EPOCH_MAX = 0x7FFF_FFFF
"""Highest epoch: Java keeps it in 32 bits."""

NO_REPLICAS: Mapping[int, Replica] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Replica:
    """One broker of a group: its id permanently, and where it is now."""

    broker_id: int
    address: str
    """`host:port` of its remoting port, as it registered last."""

    check_code: str
    """The register check code that claimed the id; `adopted;…` for a volume that came with an id."""

    nonce: str | None = None
    """Nonce of its latest committed start; None while only Java processes have run with this id."""

    incarnation: int = 0
    """How many starts were committed."""


@dataclass(frozen=True, slots=True)
class PossibleLoss:
    """An election that may have lost acknowledged messages, kept for people to see."""

    master_epoch: int
    broker_id: int
    from_offset: int
    """Messages at and above this commit log offset may be gone; -1 when nothing is known."""

    reason: str


@dataclass(frozen=True, slots=True)
class Group:
    """Everything that is agreed about the brokers with one name."""

    cluster_name: str
    broker_name: str
    owner: str | None = None
    """UID of the BrokerSet that the group belongs to; None for groups of Java brokers."""

    expected_replicas: int = 0
    """How many brokers the owner runs in the group; 0 when nobody said."""

    next_broker_id: int = 1
    """The id that the next new broker gets. Never falls, whatever is cleaned."""

    replicas: Mapping[int, Replica] = field(default_factory=lambda: NO_REPLICAS)
    master_id: int | None = None
    master_epoch: int = 0
    """Grows with every master, and with the loss of one; never falls."""

    sync_state_set: frozenset[int] = frozenset()
    sync_state_set_epoch: int = 0
    suspects: frozenset[int] = frozenset()
    """Replicas that since the last election lost, or may have lost, what they had acknowledged: they were not
    closed in order. Ends with an election, or when the master takes the replica into its set again."""

    losses: tuple[PossibleLoss, ...] = ()
    unclaimed: frozenset[int] = frozenset()
    """Ids below the next one that were never given: an adopted volume's id was above them. Volumes with these
    ids may still be adopted, so that the brokers of a group can be migrated in any order."""

    fenced: frozenset[int] = frozenset()
    """Replicas that an administrator took out of service: never in sync, never master, until that ends."""

    unproven: frozenset[int] = frozenset()
    """Suspects that say they kept their page cache: the process before was not closed in order, so the volume
    may have been rolled back to a copy made while that process ran."""

    @property
    def known(self) -> bool:
        """Whether RocketMQ would know the group: a cleaned one only keeps its ids and epochs."""
        return bool(self.replicas)

    @property
    def virgin(self) -> bool:
        """Whether no set of in-sync replicas exists that a master could be taken from."""
        return not self.sync_state_set
