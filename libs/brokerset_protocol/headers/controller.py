"""Headers of requests to and from controllers. Java declares most of their fields as nullable.

Fields under the line `brokerset` are not RocketMQ's: Java ignores keys that it does not know, and does not
send them.
"""

from __future__ import annotations

from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_protocol.headers.codec import Header, Int, Long


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerHeartbeat(Header):
    """BROKER_HEARTBEAT (904), one-way; name servers get the first three fields only."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: Long | None = None
    epoch: Int | None = None
    max_offset: Long | None = None
    confirm_offset: Long | None = None
    heartbeat_timeout_mills: Long | None = None
    election_priority: Int | None = None
    # brokerset
    nonce: str | None = None
    """Start nonce of the process; a beat of an older process is refused."""

    append_age_ms: Long | None = None
    """Milliseconds since the log last took an append that was asked for; None when nothing waits."""

    all_ack: bool | None = None
    """Whether sends are answered only when all in-sync replicas have them; elections that go by silence wait
    for the end of the old master's lease when they are not."""

    lost_cache: bool | None = None
    """True from the registration on that says so, and in later processes, too, until a master is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerHeartbeatAnswer(Header):
    """What our controllers answer to a heartbeat of a broker that has a nonce (904); Java's send nothing."""

    lease_ms: Long | None = None
    """The broker is master, and may serve for so long, counted from when it sent the heartbeat."""

    lease_epoch: Int | None = None
    """The master epoch that the lease is for."""

    master_epoch: Int | None = None
    """Without a lease: the newest one of the group that this node knows. Leases of older ones are over."""

    fenced: bool | None = None
    """An administrator wants this broker to serve nobody."""

    access_version: Long | None = None
    """Version of the users and policies, of a leader that has any; 0 while there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterSyncStateSet(Header):
    """CONTROLLER_ALTER_SYNC_STATE_SET (1001); `invoke_time` is the sender's clock in milliseconds."""

    broker_name: str | None = None
    master_broker_id: Long | None = None
    master_epoch: Int | None = None
    invoke_time: Long = 0
    # brokerset
    member_nonces: str | None = None
    """Start nonces of the processes whose acknowledgements the set rests on, as `id:nonce;id:nonce`. A
    process that was replaced meanwhile must not bring its successor into the set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterSyncStateSetResponse(Header):
    """Answer to CONTROLLER_ALTER_SYNC_STATE_SET; brokers read the body instead."""

    new_sync_state_set_epoch: Int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectMaster(Header):
    """CONTROLLER_ELECT_MASTER (1002)."""

    cluster_name: str = ""
    broker_name: str = ""
    broker_id: Long = -1
    designate_elect: bool = False
    invoke_time: Long | None = None
    # brokerset
    unclean: bool | None = None
    """An administrator accepts that acknowledged messages may be lost."""

    handover_epoch: Int | None = None
    """The living master of this epoch asks for its successor itself, and has stopped serving."""

    nonce: str | None = None
    """Start nonce of the process that hands over."""

    relief: Int | None = None
    """The master hands over because it hears no replica: whoever leads then needs so many living replicas,
    itself included, to confirm anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectMasterResponse(Header):
    """Answer to CONTROLLER_ELECT_MASTER; filled for the codes 0 and 2011 only."""

    master_broker_id: Long | None = None
    master_address: str | None = None
    master_epoch: Int | None = None
    sync_state_set_epoch: Int | None = None
    # brokerset
    master_nonce: str | None = None
    """Start nonce of the process that is master; None for a Java process. The id alone does not tell a
    process from one that was started later with a copy of its store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerToController(Header):
    """CONTROLLER_REGISTER_BROKER (1003)."""

    cluster_name: str | None = None
    broker_name: str | None = None
    broker_id: Long | None = None
    broker_address: str | None = None
    invoke_time: Long = 0
    # brokerset
    last_nonce: str | None = None
    """Nonce of the last start that the broker knows to be committed; absent if there was none."""

    tried_nonces: str | None = None
    """Nonces of later starts whose fate the broker never learned, joined by semicolons."""

    next_nonce: str | None = None
    """Nonce of this start; its presence marks one of our brokers."""

    owner_uid: str | None = None
    """UID of the BrokerSet that runs the broker."""

    expected_replicas: Int | None = None
    """How many brokers that BrokerSet runs in the group."""

    log_epoch: Int | None = None
    """Last epoch in the epoch file, -1 without any."""

    log_offset: Long | None = None
    """End of the commit log."""

    lost_cache: bool | None = None
    """Whether the log was not closed and the host has been booted since: what was not synced is gone."""

    adopt: bool | None = None
    """Whether the identity file was not made by one of our brokers, so that the id may be new here."""

    append_age_ms: Long | None = None
    """As in heartbeats: who cannot lead is not elected before the first of them."""

    unclean_stop: bool | None = None
    """Whether the process before did not close its log in order: the volume may have been rolled back to a
    copy that was made while it ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerToControllerResponse(Header):
    """Answer to CONTROLLER_REGISTER_BROKER; a master that is not alive is not named."""

    cluster_name: str | None = None
    broker_name: str | None = None
    master_broker_id: Long | None = None
    master_address: str | None = None
    master_epoch: Int | None = None
    sync_state_set_epoch: Int | None = None
    # brokerset
    incarnation: Int | None = None
    """How many starts of this replica were committed, this one included."""

    next_broker_id: Long | None = None
    """Kept by brokers, so that no id is given twice after a rebuild of lost controllers."""

    group_epoch: Int | None = None
    """The group's master epoch, also when there is no master; kept for the same reason."""

    master_nonce: str | None = None
    """Start nonce of the process that is master; None for a Java process. The id alone does not tell a
    process from one that was started later with a copy of its store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GetReplicaInfo(Header):
    """CONTROLLER_GET_REPLICA_INFO (1004)."""

    broker_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetReplicaInfoResponse(Header):
    """Answer to CONTROLLER_GET_REPLICA_INFO; a success must carry `master_epoch`."""

    master_broker_id: Long | None = None
    master_address: str | None = None
    master_epoch: Int | None = None
    # brokerset
    master_nonce: str | None = None
    """Start nonce of the process that is master; None for a Java process. The id alone does not tell a
    process from one that was started later with a copy of its store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GetMetaDataResponse(Header):
    """Answer to CONTROLLER_GET_METADATA_INFO (1005); `peers` is `id:host:port;` for each."""

    group: str | None = None
    controller_leader_id: str | None = None
    controller_leader_address: str | None = None
    is_leader: bool = False
    peers: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyBrokerRoleChanged(Header):
    """NOTIFY_BROKER_ROLE_CHANGED (1008), controller to broker, one-way."""

    master_address: str | None = None
    master_epoch: Int | None = None
    sync_state_set_epoch: Int | None = None
    master_broker_id: Long | None = None
    # brokerset
    master_nonce: str | None = None
    """Start nonce of the process that is master; None for a Java process. The id alone does not tell a
    process from one that was started later with a copy of its store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanControllerBrokerData(Header):
    """CLEAN_BROKER_DATA (1011); `broker_controller_ids_to_clean` are joined by semicolons."""

    cluster_name: str | None = None
    broker_name: str
    broker_controller_ids_to_clean: str | None = None
    is_clean_living_broker: bool = False
    invoke_time: Long = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GetNextBrokerId(Header):
    """CONTROLLER_GET_NEXT_BROKER_ID (1012)."""

    cluster_name: str | None = None
    broker_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetNextBrokerIdResponse(Header):
    """Answer to CONTROLLER_GET_NEXT_BROKER_ID; nothing is reserved by it."""

    cluster_name: str | None = None
    broker_name: str | None = None
    next_broker_id: Long | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyBrokerId(Header):
    """CONTROLLER_APPLY_BROKER_ID (1013); `register_check_code` is `address;milliseconds`."""

    cluster_name: str | None = None
    broker_name: str | None = None
    applied_broker_id: Long | None = None
    register_check_code: str | None = None
    # brokerset
    owner_uid: str | None = None
    expected_replicas: Int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyBrokerIdResponse(Header):
    """Answer to CONTROLLER_APPLY_BROKER_ID."""

    cluster_name: str | None = None
    broker_name: str | None = None
    # brokerset
    next_broker_id: Long | None = None
    """With BROKER_ID_INVALID: the id to apply for instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerIdentityAnswer(Header):
    """Extra fields of our brokers' answer to GET_BROKER_EPOCH_CACHE (1007): who really answers."""

    replica_id: Long | None = None
    """The persistent id; None while the broker has none."""

    nonce: str | None = None
    incarnation: Int | None = None
    check_code: str | None = None
    owner_uid: str | None = None
    expected_replicas: Int | None = None
    next_broker_id: Long | None = None
    """Highest value that a controller ever told this broker."""

    group_epoch: Int | None = None
    """Highest master epoch that a controller ever told this broker."""

    log_epoch: Int | None = None
    log_offset: Long | None = None
    registration: str | None = None
    """What the broker's registration is doing, for people."""

    problem: str | None = None
    """What keeps the broker out of service, in one word, as in the metric `membership_problem`."""

    ha_address: str | None = None
    """`host:port` where slaves connect."""

    master_epoch: Int | None = None
    """The master epoch that this broker serves in; None when it is not master."""

    fenced: bool | None = None
    append_age_ms: Long | None = None
    """As in heartbeats."""

    lost_cache: bool | None = None
    """As in heartbeats; told before the registration, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeMembers(Header):
    """BROKERSET_CHANGE_MEMBERS (21002); `action` is `add` (as learner), `promote` or `remove`."""

    action: str
    node_id: Int
    raft_address: str | None = None
    service_address: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferLeader(Header):
    """BROKERSET_TRANSFER_LEADER (21003)."""

    node_id: Int


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceReplica(Header):
    """BROKERSET_FENCE_REPLICA (21007): a fenced broker serves nobody and is not elected, but follows."""

    broker_name: str
    broker_id: Long
    fenced: bool = True
    force: bool | None = None
    """Fence although fewer than `minInSyncReplicas` stay in sync."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAccess(Header):
    """BROKERSET_GET_ACCESS (21008): users and policies of the cluster, with passwords, for a broker."""

    broker_name: str
    """Empty for a name server, which has no group."""

    known_version: Long = 0
    """What the sender has: the answer has a body only if there is another version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAccessResponse(Header):
    """Answer to BROKERSET_GET_ACCESS; the body is `{"users":{…},"acls":{…}}`."""

    access_version: Long
    adopted: bool
    """Whether what the sender's group had was taken over; without that there is no body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptAccess(Header):
    """BROKERSET_ADOPT_ACCESS (21009): a master says which users and policies its group has, in the body."""

    broker_name: str
    broker_id: Long
    master_epoch: Int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeAccess(Header):
    """What a broker adds to AUTH_CREATE_USER (3001) and the like when it passes them on to controllers."""

    # brokerset
    by_super: bool | None = None
    """Whether a Super user sent it; None: whoever signed it did."""

    sent_by: str | None = None
    """Who sent it, for the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeAccessResponse(Header):
    """Answer of a controller to AUTH_CREATE_USER (3001) and the like."""

    access_version: Long
    """Of users and policies with the change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchOver(Header):
    """BROKERSET_SWITCH_OVER (21011), to a master: hand over to another in-sync replica."""

    broker_name: str
    to_broker_id: Long | None = None
    """None: whoever is the furthest."""

    timeout_ms: Long | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchOverResponse(Header):
    """Answer to BROKERSET_SWITCH_OVER."""

    master_broker_id: Long | None = None
    master_address: str | None = None
    master_epoch: Int | None = None
    pause_ms: Long | None = None
    """How long sends were held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeSnapshotResponse(Header):
    """Answer to BROKERSET_TAKE_SNAPSHOT (21004): everything up to this index is in the snapshot."""

    snapshot_index: Long
