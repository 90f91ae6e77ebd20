"""Reads a group that an administrator put together from what its brokers hold (21006)."""

from __future__ import annotations

from types import MappingProxyType

from brokerset_controller.replicas.state import Group, PossibleLoss, Replica
from brokerset_controller.request_limits import check_body, refuse
from brokerset_protocol.bodies.controllers import GroupState


def wanted_group(body: bytes) -> Group:
    """The group that a `GroupState` describes. Raises `Rejected` saying what is malformed.

    Who is alive, and what was heard, is not part of it: that is for each controller to see. Whether the group
    may be made from it is for `decide_rebuild` to say.
    """
    state = GroupState.from_json(check_body(body))
    replicas: dict[int, Replica] = {}
    for item in state.replicas:
        if item.broker_id in replicas:
            raise refuse(
                f"replica {item.broker_id} is listed twice: two brokers claim the id; keep one of them"
            )
        replicas[item.broker_id] = Replica(
            item.broker_id, item.address, item.check_code, item.nonce, item.incarnation
        )
    return Group(
        cluster_name=state.cluster_name,
        broker_name=state.broker_name,
        owner=state.owner,
        expected_replicas=state.expected_replicas,
        next_broker_id=state.next_broker_id,
        replicas=MappingProxyType(dict(sorted(replicas.items()))),
        master_id=state.master_id,
        master_epoch=state.master_epoch,
        sync_state_set=frozenset(state.sync_state_set),
        sync_state_set_epoch=state.sync_state_set_epoch,
        suspects=frozenset(state.suspects),
        losses=tuple(
            PossibleLoss(loss.master_epoch, loss.broker_id, loss.from_offset, loss.reason)
            for loss in state.losses
        ),
    )
