"""What replication shows, and what it asks of the membership."""

from __future__ import annotations

from collections.abc import Callable

from brokerset_broker.member.role import Role
from brokerset_broker.store.errors import PutStatus
from brokerset_formats.lazy_dataclasses import dataclass

WhenDurable = Callable[[PutStatus], None]


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
    """Bytes truncated from the log since the start of the process."""

    incomplete: str
    """What is or was wrong with the log of a replica that lacks something; empty when it has everything."""

    repairs: int
    """How often the log was truncated because it was damaged, since the start of the process."""

    expansions: int
    shrinks: int
    connections_refused: int
