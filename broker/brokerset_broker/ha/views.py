"""What replication shows, and what it asks of the membership."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from brokerset_broker.membership.role import Role, RoleChange
from brokerset_broker.store.errors import PutStatus

WhenDurable = Callable[[PutStatus], None]


@dataclass(frozen=True, slots=True)
class MasterTarget:
    """Where the master's HA port is, and who it must be."""

    ha_address: str
    is_ours: bool
    """Whether it is one of our brokers, so that the extended handshake is used."""


class ProposalEnd(Enum):
    """How a proposal of an in-sync set ended."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    """A controller that leads refused it; whether an earlier try was carried out is not known."""

    UNKNOWN = "unknown"
    """No answer, or one that says nothing."""


@dataclass(frozen=True, slots=True)
class ProposalResult:
    """The answer to 1001. `sync_state_set` and `set_epoch` are what is in force now, if that was told."""

    end: ProposalEnd
    sync_state_set: frozenset[int] = frozenset()
    set_epoch: int = 0
    remark: str = ""


class GroupLink(Protocol):
    """What replication asks of the membership."""

    async def find_master(self, change: RoleChange) -> MasterTarget:
        """Ask the master who it is. Raises `brokerset_broker.ha.links.LinkClosed` with the reason."""

    async def propose(
        self, sync_state_set: frozenset[int], set_epoch: int, master_epoch: int, nonces: Mapping[int, str]
    ) -> ProposalResult:
        """Ask the controllers for another in-sync set (1001), based on the one with `set_epoch`.

        `nonces` are the starts of our own brokers whose acknowledgements it rests on, by id.
        """

    def relieve(self, epoch: int, needed: int, *, begin: bool) -> bool:
        """As master of `epoch` that hears no replica, have another one lead, who needs `needed` replicas.

        Returns whether that is being tried; without `begin` it is not begun. The set must stay as it is
        meanwhile, for the successor must be in it.
        """

    def ask_soon(self) -> None:
        """Ask the controllers soon what is in force (1004)."""


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One connected slave, as its master sees it."""

    broker_id: int
    address: str
    acknowledged: int
    lag_bytes: int
    in_sync: bool
    learner: bool
    is_ours: bool
    caught_up_ms_ago: int
    """Since it last had everything; -1 if it never had."""

    transferred_bytes_per_second: int


@dataclass(frozen=True, slots=True)
class FollowerView:
    """A slave's connection to its master."""

    state: str
    """`off`, `looking` (for the master), `connecting`, `handshake`, `transfer`, `refused`."""

    master_address: str = ""
    """Of the master's HA port."""

    problem: str = ""
    """Why it does not follow, or why the last try failed while the next one goes on; empty when it does."""

    advice: str = ""
    received_bytes_per_second: int = 0
    last_heard_ms_ago: int = -1


@dataclass(frozen=True, slots=True)
class ReplicationStatus:
    """Everything that status, metrics and 907 show."""

    role: Role
    epoch: int
    sync_state_set: frozenset[int]
    set_epoch: int
    pending_sets: tuple[frozenset[int], ...]
    min_in_sync: int
    enough_in_sync: bool
    confirmed_offset: int
    max_offset: int
    replicas: tuple[ReplicaView, ...]
    follower: FollowerView
    waiting: int
    """Sends that wait for replicas."""

    truncated_bytes: int
    """Bytes cut from the log since the start of the process."""

    incomplete: str
    """What is or was wrong with the log of a replica that lacks something; empty when it has everything."""

    repairs: int
    """How often the log was cut because it was damaged, since the start of the process."""

    expansions: int
    shrinks: int
    connections_refused: int
