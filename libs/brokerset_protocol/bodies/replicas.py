"""Bodies about replication: in-sync sets, masters, epochs, the state of HA connections."""

from __future__ import annotations

from dataclasses import field

from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_protocol.bodies.codec import JsonBody, OrEmpty, OrZero
from brokerset_protocol.bodies.routes import BrokerMemberGroup


@dataclass(frozen=True, slots=True)
class SyncStateSet(JsonBody):
    """The broker ids that have everything confirmed, and the epoch of this set."""

    sync_state_set: frozenset[int]
    sync_state_set_epoch: OrZero


@dataclass(frozen=True, slots=True)
class ElectMasterBody(JsonBody):
    """Answer to CONTROLLER_ELECT_MASTER (1002), for the codes 0 and 2011.

    The group's fields are written twice, nested and at the top: brokers read the former, mqadmin the latter.
    """

    broker_member_group: BrokerMemberGroup | None
    sync_state_set: frozenset[int]

    def to_object(self) -> dict[str, object]:
        if self.broker_member_group is None:
            return {"syncStateSet": sorted(self.sync_state_set)}
        group = self.broker_member_group.to_object()
        return {"brokerMemberGroup": group, "syncStateSet": sorted(self.sync_state_set)} | group


@dataclass(frozen=True, slots=True)
class ReplicaIdentity(JsonBody):
    """One replica of a group, and whether its heartbeats arrive."""

    broker_name: OrEmpty
    broker_id: int
    broker_address: OrEmpty
    alive: bool


@dataclass(frozen=True, slots=True)
class ReplicasInfo(JsonBody):
    """A group as its controller sees it; no master: id and address are absent."""

    master_broker_id: int | None
    master_address: str | None
    master_epoch: OrZero
    sync_state_set_epoch: OrZero
    in_sync_replicas: tuple[ReplicaIdentity, ...]
    not_in_sync_replicas: tuple[ReplicaIdentity, ...]


@dataclass(frozen=True, slots=True)
class BrokerReplicasInfo(JsonBody):
    """Answer to CONTROLLER_GET_SYNC_STATE_DATA (1006): by broker name."""

    replicas_info_table: dict[str, ReplicasInfo]


@dataclass(frozen=True, slots=True)
class EpochEntry(JsonBody):
    """The commit log offsets that one master epoch wrote; the last one's end is 2^63 - 1."""

    epoch: int
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class EpochEntryCache(JsonBody):
    """Answer to GET_BROKER_EPOCH_CACHE (1007); `broker_id` is 0 on the master."""

    cluster_name: OrEmpty
    broker_name: OrEmpty
    broker_id: OrZero
    epoch_list: tuple[EpochEntry, ...]
    max_offset: OrZero


@dataclass(frozen=True, slots=True)
class HAClientRuntimeInfo(JsonBody):
    """A slave's connection to its master; offsets, milliseconds, bytes per second."""

    master_addr: str | None = None
    transferred_byte_in_second: int = 0
    max_offset: int = 0
    last_read_timestamp: int = 0
    last_write_timestamp: int = 0
    master_flush_offset: int = 0


@dataclass(frozen=True, slots=True)
class HAConnectionRuntimeInfo(JsonBody):
    """A master's connection to one slave; `diff` is how many bytes the slave is behind."""

    addr: OrEmpty
    slave_ack_offset: OrZero
    diff: OrZero
    in_sync: bool
    transferred_byte_in_second: int = 0
    transfer_from_where: int = 0


_NO_CLIENT = HAClientRuntimeInfo()


@dataclass(frozen=True, slots=True)
class HARuntimeInfo(JsonBody):
    """Answer to GET_BROKER_HA_STATUS (907)."""

    master: bool
    master_commit_log_max_offset: int = 0
    in_sync_slave_nums: int = 0
    ha_connection_info: tuple[HAConnectionRuntimeInfo, ...] = ()
    ha_client_runtime_info: HAClientRuntimeInfo = field(default=_NO_CLIENT)
