"""A change of role as an ordered list of steps. Pure."""

from __future__ import annotations

from enum import StrEnum

from brokerset_broker.membership.role import Role, RoleChange


class Step(StrEnum):
    """What is done, one after the other; `DESIGN.md` says why in this order."""

    HOLD_WRITES = "HoldWrites"
    STOP_SERVICES = "StopServices"
    CLOSE_REPLICAS = "CloseReplicas"
    ANSWER_WAITERS = "AnswerWaiters"
    STOP_FOLLOWING = "StopFollowing"
    FINISH_RECEIVED = "FinishReceived"
    BEGIN_EPOCH = "BeginEpoch"
    APPLY_METADATA = "ApplyMetadata"
    TAKE_ROLE = "TakeRole"
    TAKE_IN_SYNC = "TakeInSync"
    ACCEPT_REPLICAS = "AcceptReplicas"
    WRITE_SNAPSHOT = "WriteSnapshot"
    START_SERVICES = "StartServices"
    FOLLOW = "Follow"
    SERVE = "Serve"
    TELL_NAME_SERVERS = "TellNameServers"


def plan_switch(before: RoleChange, after: RoleChange) -> tuple[Step, ...]:
    """The steps from one role to another; few when only what belongs to the role changes."""
    if after.role is Role.MASTER:
        if before.role is Role.MASTER and before.epoch == after.epoch:
            return (Step.TAKE_ROLE, Step.TAKE_IN_SYNC)
        return (
            Step.HOLD_WRITES,
            *_leave_mastership(before),
            Step.STOP_FOLLOWING,
            Step.FINISH_RECEIVED,
            Step.BEGIN_EPOCH,
            Step.APPLY_METADATA,
            Step.TAKE_ROLE,
            Step.TAKE_IN_SYNC,
            Step.ACCEPT_REPLICAS,
            Step.WRITE_SNAPSHOT,
            Step.START_SERVICES,
            Step.SERVE,
            Step.TELL_NAME_SERVERS,
        )
    follows = after.role is Role.SLAVE and after.master_id is not None
    if follows and _same_master(before, after):
        return (Step.TAKE_ROLE, Step.FOLLOW, Step.SERVE)
    was_master = before.role is Role.MASTER
    return (
        Step.HOLD_WRITES,
        *_leave_mastership(before),
        *((Step.ANSWER_WAITERS,) if was_master else ()),
        Step.STOP_FOLLOWING,
        *(() if was_master else (Step.FINISH_RECEIVED,)),
        Step.TAKE_ROLE,
        *((Step.FOLLOW,) if follows else ()),
        Step.SERVE,
        Step.TELL_NAME_SERVERS,
    )


def _leave_mastership(before: RoleChange) -> tuple[Step, ...]:
    return (Step.STOP_SERVICES, Step.CLOSE_REPLICAS) if before.role is Role.MASTER else ()


def _same_master(before: RoleChange, after: RoleChange) -> bool:
    return (before.role, before.epoch, before.master_id) == (after.role, after.epoch, after.master_id)
