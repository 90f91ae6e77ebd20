"""Answers that only read the agreed state: 1004, 1006, and the whole state of a group for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from brokerset_controller.liveness import LiveView
from brokerset_controller.replicas.decisions import Decision, refused
from brokerset_controller.replicas.election import Choice, choose_master
from brokerset_controller.replicas.state import Group, Replica
from brokerset_protocol.bodies.controllers import GroupState, LossRecord, ReplicaState
from brokerset_protocol.bodies.replicas import (
    BrokerReplicasInfo,
    ReplicaIdentity,
    ReplicasInfo,
    SyncStateSet,
)
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.headers.controller import GetReplicaInfo, GetReplicaInfoResponse


def decide_replica_info(group: Group | None, header: GetReplicaInfo) -> Decision:
    """Answer 1004: the master, alive or not, its epoch, and the in-sync set; 2008 for an unknown group."""
    if group is None or not group.known:
        return refused(
            ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST,
            "Broker metadata is not existed",
            GetReplicaInfoResponse(),
        )
    master = None if group.master_id is None else group.replicas[group.master_id]
    return Decision(
        int(ResponseCode.SUCCESS),
        None,
        GetReplicaInfoResponse(
            master_broker_id=None if master is None else master.broker_id,
            master_address=None if master is None else master.address,
            master_epoch=group.master_epoch,
            master_nonce=None if master is None else master.nonce,
        ),
        SyncStateSet(group.sync_state_set, group.sync_state_set_epoch),
    )


def describe_sync_states(groups: Iterable[Group], view_of: Callable[[str], LiveView]) -> BrokerReplicasInfo:
    """The body of 1006: who is in sync, and who is alive, in each of the groups that has replicas."""
    return BrokerReplicasInfo(
        {
            group.broker_name: _replicas_info(group, view_of(group.broker_name))
            for group in groups
            if group.known
        }
    )


def _replicas_info(group: Group, view: LiveView) -> ReplicasInfo:
    identities = [
        ReplicaIdentity(group.broker_name, broker_id, replica.address, view.alive(broker_id))
        for broker_id, replica in sorted(group.replicas.items())
    ]
    return ReplicasInfo(
        group.master_id,
        None if group.master_id is None else group.replicas[group.master_id].address,
        group.master_epoch,
        group.sync_state_set_epoch,
        tuple(identity for identity in identities if identity.broker_id in group.sync_state_set),
        tuple(identity for identity in identities if identity.broker_id not in group.sync_state_set),
    )


def describe_group(group: Group, view: LiveView, now: float) -> GroupState:
    """Everything that is agreed about a group, and what this controller heard of its replicas."""
    return GroupState(
        group.cluster_name,
        group.broker_name,
        group.owner,
        group.expected_replicas,
        group.next_broker_id,
        group.master_id,
        group.master_epoch,
        tuple(sorted(group.sync_state_set)),
        group.sync_state_set_epoch,
        tuple(sorted(group.suspects)),
        tuple(
            LossRecord(loss.master_epoch, loss.broker_id, loss.from_offset, loss.reason)
            for loss in group.losses
        ),
        tuple(_replica_state(replica, view, now) for _, replica in sorted(group.replicas.items())),
        advice(group, view),
        tuple(sorted(group.fenced)),
    )


def _replica_state(replica: Replica, view: LiveView, now: float) -> ReplicaState:
    live = view.lives.get(replica.broker_id)
    return ReplicaState(
        replica.broker_id,
        replica.address,
        replica.check_code,
        replica.incarnation,
        replica.nonce,
        view.standing(replica.broker_id).value,
        None if live is None else live.epoch,
        None if live is None else live.max_offset,
        None if live is None else live.confirm_offset,
        None if live is None else max(0, int((now - live.heard_at) * 1_000)),
        view.stuck(replica.broker_id),
    )


def advice(group: Group | None, view: LiveView) -> str | None:
    """Why a group has no living master, and what to do; None when it has one."""
    if group is None or not group.known:
        return "the group has no replicas: start a broker, or `brokerset controller rebuild` if it had some"
    if group.master_id is not None and view.fit(group.master_id):
        return None
    found = choose_master(group, view, unclean_allowed=False)
    if isinstance(found, Choice):
        return f"replica {found.broker_id} is about to be elected: wait a moment"
    return found.advice
