"""What a member of a DLedger group tells about itself and the others."""

from __future__ import annotations

from enum import StrEnum

import orjson

from brokerset_broker.member.dledger.news import broker_id_of, in_sync
from brokerset_broker.member.ha.views import ReplicaView
from brokerset_broker.member.role import Role, RoleState
from brokerset_broker.store.ledger import FileLedger
from brokerset_broker.store.ledger_store import LedgerStore
from brokerset_dledger.driver import MemberStatus
from brokerset_dledger.ledger import LedgerRefused
from brokerset_spec.broker_settings import BrokerSettings


class LedgerProblem(StrEnum):
    """What keeps a member out of service; also the label of the metric."""

    NO_LEADER = "no_leader"
    OLD_LOG = "old_log_differs"
    SWITCH = "role_change_failed"


def replica_views(
    status: MemberStatus, ledger: FileLedger, settings: BrokerSettings
) -> tuple[ReplicaView, ...]:
    """The other members as the leader knows them; none for who does not lead."""
    members_in_sync = in_sync(status)
    addresses = settings.dledger_addresses()
    return tuple(
        ReplicaView(
            broker_id=broker_id_of(member),
            address=addresses.get(member, ""),
            acknowledged=(end := _end_of(ledger, index)),
            lag_bytes=max(0, ledger.write_position - end),
            in_sync=member in members_in_sync,
            learner=False,
            is_ours=settings.dledger_brokerset_only,
            caught_up_ms_ago=-1,
            transferred_bytes_per_second=0,
        )
        for member, index in sorted(status.watermarks.items())
        if member != settings.dledger_self_id and members_in_sync
    )


def _end_of(ledger: FileLedger, index: int) -> int:
    """Where the entry at an index ends; the beginning of the log for one that is not there."""
    try:
        return ledger.end_of(index)
    except LedgerRefused:
        return ledger.files.start


def ledger_table(
    role: RoleState,
    status: MemberStatus,
    store: LedgerStore,
    replicas: tuple[ReplicaView, ...],
    settings: BrokerSettings,
    *,
    own_id: int,
    lease_seconds: float,
    problem: str,
    lack: str,
    metadata_applied: int,
) -> dict[str, str]:
    """Facts for GET_BROKER_RUNTIME_INFO (28), as texts; under the names of controller mode where they mean
    the same."""
    leads = role.role is Role.MASTER
    shown = [
        {
            "id": each.broker_id,
            "address": each.address,
            "acknowledged": each.acknowledged,
            "lagBytes": each.lag_bytes,
            "inSync": each.in_sync,
            "ours": each.is_ours,
        }
        for each in replicas
    ]
    return {
        "brokersetRole": role.role.value,
        "brokersetReplicaId": str(own_id),
        "brokersetMasterEpoch": str(role.epoch),
        "brokersetMasterAddress": role.master_address or "",
        "brokersetProblem": problem,
        "brokersetFollowProblem": lack,
        "brokersetMaxOffset": str(store.ledger.write_position),
        "brokersetConfirmedOffset": str(store.max_offset),
        "brokersetInSync": ",".join(str(broker_id_of(each)) for each in in_sync(status)),
        "brokersetLeaseMs": str(int(1000 * lease_seconds)) if leads else "-1",
        "brokersetReplicas": orjson.dumps(shown).decode(),
        "brokersetMetadataApplied": str(metadata_applied),
        "brokersetDLedgerSelfId": settings.dledger_self_id,
        "brokersetDLedgerPeers": settings.dledger_peers,
        "brokersetDLedgerRole": status.role.value,
        "brokersetDLedgerTerm": str(status.term),
        "brokersetDLedgerLeader": status.leader_id or "",
        "brokersetDLedgerBeginIndex": str(status.begin_index),
        "brokersetDLedgerEndIndex": str(status.end_index),
        "brokersetDLedgerCommittedIndex": str(status.committed_index),
        "brokersetDLedgerRecovering": str(status.recovering).lower(),
    }
