"""What is agreed on: each event carries the guards that are checked again when it is applied.

Between a decision and its commit other events may be applied. An event whose guard no longer holds
changes nothing, on every controller alike; the leader then decides again.
"""

from __future__ import annotations

from dataclasses import dataclass

from brokerset_controller.replicas.state import Group, PossibleLoss


@dataclass(frozen=True, slots=True)
class BrokerIdApplied:
    """A new broker claims an id (Java: ApplyBrokerIdEvent). Guard: the id is the next, or has this code."""

    cluster_name: str
    broker_name: str
    owner: str | None
    expected_replicas: int
    broker_id: int
    address: str
    check_code: str


@dataclass(frozen=True, slots=True)
class ReplicaAdopted:
    """A volume that already carries an id joins. Guards: the id was never given here; unless nobody is in
    sync, the volume's epoch is not above the group's."""

    cluster_name: str
    broker_name: str
    owner: str | None
    expected_replicas: int
    broker_id: int
    address: str
    nonce: str
    log_epoch: int
    """Highest epoch in the volume's epoch file; the group's epoch is raised to it."""


@dataclass(frozen=True, slots=True)
class ReplicaStarted:
    """A process of a known replica started. Guard: the replica's nonce is `expected_nonce`.

    The master's new process has no mastership: the group has none until the next election. A replica that
    lost its page cache leaves the in-sync set, unless it is the last in it, and becomes a suspect; one that
    was not in sync has nothing to lose.
    """

    broker_name: str
    broker_id: int
    expected_nonce: str | None
    nonce: str
    address: str
    lost_cache: bool
    expected_replicas: int
    owner: str | None = None
    """The BrokerSet that runs the process: it takes a group over that has no owner yet."""

    unclean: bool = False
    """Whether the process before was not closed in order: the volume may be an older copy of that process's.
    Nothing is lost if it is not, so this is said of page caches that were kept only."""


@dataclass(frozen=True, slots=True)
class MastershipEnded:
    """The master's process was replaced by a Java process, which has no nonce: the group has no master until
    the next election. Guards: master and master epoch."""

    broker_name: str
    master_id: int
    expected_master_epoch: int
    address: str
    """Where the new process is."""


@dataclass(frozen=True, slots=True)
class ReplicaMoved:
    """A replica has another address (Java: UpdateBrokerAddressEvent). Guard: the replica exists."""

    broker_name: str
    broker_id: int
    address: str


@dataclass(frozen=True, slots=True)
class SyncStateSetAltered:
    """The master changed its in-sync set. Guards: master, master epoch, set epoch, all ids registered and
    none fenced."""

    broker_name: str
    master_id: int
    master_epoch: int
    sync_state_set_epoch: int
    new_set: frozenset[int]


@dataclass(frozen=True, slots=True)
class MasterElected:
    """A master was chosen; the in-sync set becomes that one. Guards: master epoch, set epoch, id registered
    with that nonce and not fenced, and, unless `unclean` or the group is virgin, in the in-sync set or a
    suspect.

    `unclean` is also the best log of all when everybody in sync lost its page cache, if a replica has it that
    was not in sync. The epochs guard that state: no set epoch has a replica in sync that is a suspect first
    and sound later."""

    broker_name: str
    master_id: int
    new_epoch: int
    expected_master_epoch: int
    expected_set_epoch: int
    unclean: bool
    reason: str
    loss: PossibleLoss | None = None
    expected_nonce: str | None = None
    """The start that was chosen: were another process of the replica started meanwhile, both would take the
    mastership for theirs. None for a Java process."""


@dataclass(frozen=True, slots=True)
class ReplicasCleaned:
    """Replicas were forgotten; next id and epochs stay. Guards: set epoch and master epoch."""

    broker_name: str
    broker_ids: frozenset[int]
    expected_master_epoch: int
    expected_set_epoch: int


@dataclass(frozen=True, slots=True)
class FencingChanged:
    """An administrator took a replica out of service, or back. A fenced one leaves the in-sync set.

    Guards: master epoch, set epoch, id registered; who is to be fenced is not master, nor alone in sync.
    """

    broker_name: str
    broker_id: int
    fenced: bool
    expected_master_epoch: int
    expected_set_epoch: int


@dataclass(frozen=True, slots=True)
class GroupRebuilt:
    """A group was put together from what its brokers hold. Guard: the group has no replicas."""

    group: Group


Event = (
    BrokerIdApplied
    | ReplicaAdopted
    | ReplicaStarted
    | MastershipEnded
    | ReplicaMoved
    | SyncStateSetAltered
    | MasterElected
    | ReplicasCleaned
    | FencingChanged
    | GroupRebuilt
)


@dataclass(frozen=True, slots=True)
class Applied:
    """The event took effect, or had taken effect before: its decision's reply is true."""


@dataclass(frozen=True, slots=True)
class Superseded:
    """A guard did not hold any more; nothing changed."""

    reason: str


Outcome = Applied | Superseded
