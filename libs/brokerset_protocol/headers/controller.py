"""Headers of requests to and from controllers. Java declares most of their fields as nullable."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterSyncStateSet(Header):
    """CONTROLLER_ALTER_SYNC_STATE_SET (1001); `invoke_time` is the sender's clock in milliseconds."""

    broker_name: str | None = None
    master_broker_id: Long | None = None
    master_epoch: Int | None = None
    invoke_time: Long = 0


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectMasterResponse(Header):
    """Answer to CONTROLLER_ELECT_MASTER; filled for the codes 0 and 2011 only."""

    master_broker_id: Long | None = None
    master_address: str | None = None
    master_epoch: Int | None = None
    sync_state_set_epoch: Int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerToController(Header):
    """CONTROLLER_REGISTER_BROKER (1003)."""

    cluster_name: str | None = None
    broker_name: str | None = None
    broker_id: Long | None = None
    broker_address: str | None = None
    invoke_time: Long = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerToControllerResponse(Header):
    """Answer to CONTROLLER_REGISTER_BROKER; a master that is not alive is not named."""

    cluster_name: str | None = None
    broker_name: str | None = None
    master_broker_id: Long | None = None
    master_address: str | None = None
    master_epoch: Int | None = None
    sync_state_set_epoch: Int | None = None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyBrokerIdResponse(Header):
    """Answer to CONTROLLER_APPLY_BROKER_ID."""

    cluster_name: str | None = None
    broker_name: str | None = None
