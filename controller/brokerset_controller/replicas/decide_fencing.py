"""Taking replicas out of service, and back (21007)."""

from __future__ import annotations

from brokerset_controller.replicas.decisions import Decision, invalid, refused
from brokerset_controller.replicas.events import FencingChanged
from brokerset_controller.replicas.state import Group
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.headers.controller import FenceReplica


def decide_fence(group: Group | None, header: FenceReplica) -> Decision:
    """Answer 21007; a repetition is granted without an event.

    The master is not fenced: a switchover comes first. Without `force` another replica than the master must
    stay in sync, if there was one; the last in-sync replica is never fenced, for nobody could be elected.
    """
    name, broker_id = header.broker_name, header.broker_id
    if group is None or not group.known:
        return refused(
            ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST,
            f"the group {name} is unknown to the controllers",
        )
    if broker_id not in group.replicas:
        return refused(
            ResponseCode.CONTROLLER_INVALID_REPLICAS,
            f"replica {broker_id} of {name} is not registered; registered are"
            f" {', '.join(map(str, group.replicas))}",
        )
    if (broker_id in group.fenced) == header.fenced:
        state = "fenced" if header.fenced else "not fenced"
        return Decision(int(ResponseCode.SUCCESS), f"replica {broker_id} of {name} is {state} already")
    problem = _problem(group, broker_id, force=bool(header.force)) if header.fenced else None
    if problem is not None:
        return invalid(problem)
    return Decision(
        int(ResponseCode.SUCCESS),
        event=FencingChanged(name, broker_id, header.fenced, group.master_epoch, group.sync_state_set_epoch),
    )


def _problem(group: Group, broker_id: int, *, force: bool) -> str | None:
    name = group.broker_name
    if broker_id == group.master_id:
        return (
            f"replica {broker_id} is the master of {name}: move the mastership first"
            f" (`brokerset switchover {name}`), then fence it"
        )
    left = group.sync_state_set - {broker_id}
    if left == group.sync_state_set:
        return None
    if not left:
        return (
            f"replica {broker_id} alone is in sync in {name}: without it nobody could become master. Elect"
            f" it, or wait until another one is in sync"
        )
    if left == {group.master_id} and not force:
        return (
            f"only the master of {name}, replica {group.master_id}, would stay in sync, and sends might be"
            f" refused: start another replica first, or use force"
        )
    return None
