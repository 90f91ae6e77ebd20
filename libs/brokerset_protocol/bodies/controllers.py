"""Bodies between parts of brokerset: a controller's state, and broker groups as controllers see them."""

from __future__ import annotations

from typing import Annotated

from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_protocol.bodies.codec import Absent, JsonBody, OrEmpty, OrZero


@dataclass(frozen=True, slots=True)
class ControllerMember(JsonBody):
    """One member of the controllers' raft group."""

    node_id: int
    raft_address: OrEmpty
    service_address: OrEmpty
    voter: bool
    match_index: int | None = None
    """Last entry that the leader knows it has synced; only the leader says it."""

    heard: bool | None = None
    """Whether the leader has heard it lately; None from others, and from those of before it was said."""


@dataclass(frozen=True, slots=True)
class ControllerStatus(JsonBody):
    """Answer to BROKERSET_CONTROLLER_STATUS (21001), given by every controller for itself."""

    node_id: int
    role: str
    term: int
    leader_id: int | None
    leading: bool
    last_index: int
    commit_index: int
    applied_index: int
    snapshot_index: int
    members: tuple[ControllerMember, ...]
    log_format: int = 0
    """The newest format of the controllers' log that it reads; 0 from those of before it was said."""


@dataclass(frozen=True, slots=True)
class ReplicaState(JsonBody):
    """One replica as agreed, with what the answering controller heard of it."""

    broker_id: int
    address: OrEmpty
    check_code: OrEmpty
    incarnation: OrZero
    nonce: str | None
    standing: Annotated[str, Absent("unknown")]
    """`alive`, `dead` or `unknown`."""

    log_epoch: int | None = None
    max_offset: int | None = None
    confirm_offset: int | None = None
    heard_ms_ago: int | None = None
    stuck: bool = False
    """Whether its log takes nothing any more: it is alive, but not elected."""


@dataclass(frozen=True, slots=True)
class LossRecord(JsonBody):
    """An election that may have lost acknowledged messages."""

    master_epoch: int
    broker_id: int
    from_offset: int
    reason: OrEmpty


@dataclass(frozen=True, slots=True)
class GroupState(JsonBody):
    """One broker group as agreed."""

    cluster_name: OrEmpty
    broker_name: str
    owner: str | None
    expected_replicas: OrZero
    next_broker_id: Annotated[int, Absent(1)]
    master_id: int | None
    master_epoch: OrZero
    sync_state_set: tuple[int, ...]
    sync_state_set_epoch: OrZero
    suspects: tuple[int, ...]
    losses: tuple[LossRecord, ...]
    replicas: tuple[ReplicaState, ...]
    advice: str | None = None
    """Why there is no master and what to do about it; None when there is one."""

    fenced: tuple[int, ...] = ()
    """Replicas that an administrator took out of service."""


@dataclass(frozen=True, slots=True)
class GroupStates(JsonBody):
    """Answer to BROKERSET_GROUP_STATES (21005): the groups asked for, or all."""

    groups: tuple[GroupState, ...]
