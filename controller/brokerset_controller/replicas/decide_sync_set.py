"""Changes of the in-sync set, which only the master of the current epoch asks for (1001)."""

from __future__ import annotations

from brokerset_controller.liveness import LiveView
from brokerset_controller.replicas.decisions import Decision, refused
from brokerset_controller.replicas.events import SyncStateSetAltered
from brokerset_controller.replicas.state import Group
from brokerset_protocol.bodies.replicas import SyncStateSet
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.headers.controller import AlterSyncStateSet, AlterSyncStateSetResponse


def decide_alter_sync_state_set(
    group: Group | None, header: AlterSyncStateSet, body: SyncStateSet, view: LiveView
) -> Decision:
    """Answer 1001 in RocketMQ's order of checks; success carries the new set and its epoch.

    A repetition of a change that was carried out is refused with 2013, as by RocketMQ: the set is the same.
    But a master of ours may propose the set that is in force: the new set epoch tells it that no other
    proposal of its is on its way. Who is in the set already need not be heard by this controller to stay.
    """
    wanted = body.sync_state_set
    is_ours = _is_ours(group)
    nonces = _nonces(header.member_nonces)
    if group is None or not group.known:
        return _refused(
            ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
            f"Broker metadata is not existed: the group {header.broker_name} is unknown here",
        )
    if wanted == group.sync_state_set and not is_ours:
        return _refused(
            ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
            f"The sync state set of {group.broker_name} is {sorted(wanted)} already",
        )
    if group.master_id is None or header.master_broker_id != group.master_id:
        now = "nobody is" if group.master_id is None else f"replica {group.master_id} is"
        return _refused(
            ResponseCode.CONTROLLER_INVALID_MASTER,
            f"replica {header.master_broker_id} of {group.broker_name} is not the master, {now}",
        )
    if header.master_epoch != group.master_epoch:
        return _refused(
            ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
            f"the master epoch of {group.broker_name} is {group.master_epoch}, not {header.master_epoch}",
        )
    if body.sync_state_set_epoch != group.sync_state_set_epoch:
        return _refused(
            ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
            f"the set epoch of {group.broker_name} is {group.sync_state_set_epoch},"
            f" not {body.sync_state_set_epoch}",
        )
    for broker_id in sorted(wanted):
        if broker_id not in group.replicas:
            return _refused(
                ResponseCode.CONTROLLER_INVALID_REPLICAS,
                f"replica {broker_id} of {group.broker_name} is not registered",
            )
        if broker_id in group.fenced:
            return _refused(
                ResponseCode.CONTROLLER_INVALID_REPLICAS,
                f"replica {broker_id} of {group.broker_name} is fenced: it cannot be in sync until"
                f" `brokerset unfence {group.broker_name} {broker_id}`",
            )
        if broker_id in nonces and broker_id not in group.sync_state_set:
            replica = group.replicas[broker_id]
            if replica.nonce is not None and nonces[broker_id] != replica.nonce:
                return _refused(
                    ResponseCode.CONTROLLER_INVALID_REPLICAS,
                    f"another process of replica {broker_id} of {group.broker_name} has been started than the"
                    " one that acknowledges to the master",
                )
        if not view.alive(broker_id) and not (is_ours and broker_id in group.sync_state_set):
            return _refused(
                ResponseCode.CONTROLLER_BROKER_NOT_ALIVE,
                f"replica {broker_id} of {group.broker_name} is {view.standing(broker_id).value}, not alive",
            )
    if group.master_id not in wanted:
        return _refused(
            ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
            f"the set {sorted(wanted)} lacks the master of {group.broker_name}, replica {group.master_id}",
        )
    epoch = group.sync_state_set_epoch + 1
    return Decision(
        int(ResponseCode.SUCCESS),
        None,
        AlterSyncStateSetResponse(new_sync_state_set_epoch=epoch),
        SyncStateSet(wanted, epoch),
        SyncStateSetAltered(
            group.broker_name, group.master_id, group.master_epoch, group.sync_state_set_epoch, wanted
        ),
    )


def _nonces(text: str | None) -> dict[int, str]:
    """The starts that a proposal names, by id; what cannot be read is left out."""
    found = (part.partition(":") for part in (text or "").split(";"))
    return {int(key): nonce for key, _, nonce in found if key.isascii() and key.isdigit() and len(key) < 19}


def _is_ours(group: Group | None) -> bool:
    """Whether the master is one of our brokers."""
    if group is None or group.master_id is None or group.master_id not in group.replicas:
        return False
    return group.replicas[group.master_id].nonce is not None


def _refused(code: ResponseCode, remark: str) -> Decision:
    return refused(code, remark, AlterSyncStateSetResponse())
