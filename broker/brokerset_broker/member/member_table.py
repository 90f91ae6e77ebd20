"""What a member of a group tells about itself: role, epochs, lease, replicas."""

from __future__ import annotations

import orjson

from brokerset_broker.member.ha.views import ReplicationStatus
from brokerset_broker.member.membership.membership import Membership


def member_table(
    membership: Membership,
    status: ReplicationStatus,
    *,
    lease_seconds: float | None,
    lease_required: bool,
    max_offset: int,
    ha_address: str,
    metadata_applied: int,
) -> dict[str, str]:
    """Facts for GET_BROKER_RUNTIME_INFO (28), as texts."""
    found = membership.diagnosis()
    now = membership.now
    sets = (
        (status.sync_state_set, status.set_epoch)
        if status.sync_state_set
        else (
            now.sync_state_set,
            now.set_epoch,
        )
    )
    lease_ms = str(int(1000 * (lease_seconds or 0)) or -1) if lease_required else ""
    follower = status.follower
    replicas = [
        {
            "id": each.broker_id,
            "address": each.address,
            "acknowledged": each.acknowledged,
            "lagBytes": each.lag_bytes,
            "inSync": each.in_sync,
            "learner": each.learner,
            "ours": each.is_ours,
            "caughtUpMsAgo": each.caught_up_ms_ago,
            "bytesPerSecond": each.transferred_bytes_per_second,
        }
        for each in status.replicas
    ]
    return {
        "brokersetRole": membership.role.value,
        "brokersetReplicaId": str(membership.broker_id or ""),
        "brokersetIncarnation": str(membership.incarnation or ""),
        "brokersetMasterEpoch": str(now.epoch),
        "brokersetMasterAddress": now.master_address or "",
        "brokersetController": membership.controllers.leader or "",
        "brokersetProblem": found.problem or "",
        "brokersetAdvice": found.advice or "",
        "brokersetMaxOffset": str(max_offset),
        "brokersetConfirmedOffset": str(status.confirmed_offset),
        "brokersetInSync": ",".join(map(str, sorted(sets[0]))),
        "brokersetSetEpoch": str(sets[1]),
        "brokersetMinInSync": str(status.min_in_sync),
        "brokersetLeaseMs": lease_ms,
        "brokersetFenced": str(membership.fenced).lower(),
        "brokersetFollowing": follower.state,
        "brokersetFollowProblem": follower.problem,
        "brokersetFollowAdvice": follower.advice,
        "brokersetReplicas": orjson.dumps(replicas).decode(),
        "brokersetHaAddress": ha_address,
        "brokersetMetadataApplied": str(metadata_applied),
        "brokersetTruncatedBytes": str(status.truncated_bytes),
    }
