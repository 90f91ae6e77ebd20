"""Bodies between parts of brokerset: a controller's state, and broker groups as controllers see them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from brokerset_protocol.bodies.json_objects import JsonBody, JsonObject, compact


@dataclass(frozen=True, slots=True)
class ControllerMember(JsonBody):
    """One member of the controllers' raft group."""

    node_id: int
    raft_address: str
    service_address: str
    voter: bool
    match_index: int | None = None
    """Last entry that the leader knows it has synced; only the leader says it."""

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        return cls(
            value.integer("nodeId"),
            value.text("raftAddress", ""),
            value.text("serviceAddress", ""),
            value.flag("voter"),
            value.optional_integer("matchIndex"),
        )

    def to_object(self) -> dict[str, object]:
        return compact(
            matchIndex=self.match_index,
            nodeId=self.node_id,
            raftAddress=self.raft_address,
            serviceAddress=self.service_address,
            voter=self.voter,
        )


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

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        return cls(
            value.integer("nodeId"),
            value.text("role"),
            value.integer("term"),
            value.optional_integer("leaderId"),
            value.flag("leading"),
            value.integer("lastIndex"),
            value.integer("commitIndex"),
            value.integer("appliedIndex"),
            value.integer("snapshotIndex"),
            tuple(map(ControllerMember.from_object, value.objects("members"))),
        )

    def to_object(self) -> dict[str, object]:
        return compact(
            appliedIndex=self.applied_index,
            commitIndex=self.commit_index,
            lastIndex=self.last_index,
            leaderId=self.leader_id,
            leading=self.leading,
            members=[member.to_object() for member in self.members],
            nodeId=self.node_id,
            role=self.role,
            snapshotIndex=self.snapshot_index,
            term=self.term,
        )


@dataclass(frozen=True, slots=True)
class ReplicaState(JsonBody):
    """One replica as agreed, with what the answering controller heard of it."""

    broker_id: int
    address: str
    check_code: str
    incarnation: int
    nonce: str | None
    standing: str
    """`alive`, `dead` or `unknown`."""

    log_epoch: int | None = None
    max_offset: int | None = None
    confirm_offset: int | None = None
    heard_ms_ago: int | None = None
    stuck: bool = False
    """Whether its log takes nothing any more: it is alive, but not elected."""

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        return cls(
            value.integer("brokerId"),
            value.text("address", ""),
            value.text("checkCode", ""),
            value.integer("incarnation", 0),
            value.optional_text("nonce"),
            value.text("standing", "unknown"),
            value.optional_integer("logEpoch"),
            value.optional_integer("maxOffset"),
            value.optional_integer("confirmOffset"),
            value.optional_integer("heardMsAgo"),
            value.flag("stuck", False),
        )

    def to_object(self) -> dict[str, object]:
        return compact(
            address=self.address,
            brokerId=self.broker_id,
            checkCode=self.check_code,
            confirmOffset=self.confirm_offset,
            heardMsAgo=self.heard_ms_ago,
            incarnation=self.incarnation,
            logEpoch=self.log_epoch,
            maxOffset=self.max_offset,
            nonce=self.nonce,
            standing=self.standing,
            stuck=self.stuck,
        )


@dataclass(frozen=True, slots=True)
class LossRecord(JsonBody):
    """An election that may have lost acknowledged messages."""

    master_epoch: int
    broker_id: int
    from_offset: int
    reason: str

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        return cls(
            value.integer("masterEpoch"),
            value.integer("brokerId"),
            value.integer("fromOffset"),
            value.text("reason", ""),
        )

    def to_object(self) -> dict[str, object]:
        return {
            "brokerId": self.broker_id,
            "fromOffset": self.from_offset,
            "masterEpoch": self.master_epoch,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class GroupState(JsonBody):
    """One broker group as agreed."""

    cluster_name: str
    broker_name: str
    owner: str | None
    expected_replicas: int
    next_broker_id: int
    master_id: int | None
    master_epoch: int
    sync_state_set: tuple[int, ...]
    sync_state_set_epoch: int
    suspects: tuple[int, ...]
    losses: tuple[LossRecord, ...]
    replicas: tuple[ReplicaState, ...]
    advice: str | None = None
    """Why there is no master and what to do about it; None when there is one."""

    fenced: tuple[int, ...] = ()
    """Replicas that an administrator took out of service."""

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        return cls(
            value.text("clusterName", ""),
            value.text("brokerName"),
            value.optional_text("owner"),
            value.integer("expectedReplicas", 0),
            value.integer("nextBrokerId", 1),
            value.optional_integer("masterId"),
            value.integer("masterEpoch", 0),
            tuple(value.integers("syncStateSet")),
            value.integer("syncStateSetEpoch", 0),
            tuple(value.integers("suspects")),
            tuple(map(LossRecord.from_object, value.objects("losses"))),
            tuple(map(ReplicaState.from_object, value.objects("replicas"))),
            value.optional_text("advice"),
            tuple(value.integers("fenced")),
        )

    def to_object(self) -> dict[str, object]:
        return compact(
            advice=self.advice,
            brokerName=self.broker_name,
            clusterName=self.cluster_name,
            expectedReplicas=self.expected_replicas,
            fenced=list(self.fenced),
            losses=[loss.to_object() for loss in self.losses],
            masterEpoch=self.master_epoch,
            masterId=self.master_id,
            nextBrokerId=self.next_broker_id,
            owner=self.owner,
            replicas=[replica.to_object() for replica in self.replicas],
            suspects=list(self.suspects),
            syncStateSet=list(self.sync_state_set),
            syncStateSetEpoch=self.sync_state_set_epoch,
        )


@dataclass(frozen=True, slots=True)
class GroupStates(JsonBody):
    """Answer to BROKERSET_GROUP_STATES (21005): the groups asked for, or all."""

    groups: tuple[GroupState, ...]

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        return cls(tuple(map(GroupState.from_object, value.objects("groups"))))

    def to_object(self) -> dict[str, object]:
        return {"groups": [group.to_object() for group in self.groups]}
