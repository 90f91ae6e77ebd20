"""Bodies about replication: in-sync sets, masters, epochs, the state of HA connections."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from brokerset_protocol.bodies.json_objects import JsonBody, JsonObject, compact
from brokerset_protocol.bodies.routes import BrokerMemberGroup


@dataclass(frozen=True, slots=True)
class SyncStateSet(JsonBody):
    """The broker ids that have everything confirmed, and the epoch of this set."""

    sync_state_set: frozenset[int]
    sync_state_set_epoch: int

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        return cls(frozenset(value.integers("syncStateSet")), value.integer("syncStateSetEpoch", 0))

    def to_object(self) -> dict[str, object]:
        return {
            "syncStateSet": sorted(self.sync_state_set),
            "syncStateSetEpoch": self.sync_state_set_epoch,
        }


@dataclass(frozen=True, slots=True)
class ElectMasterBody(JsonBody):
    """Answer to CONTROLLER_ELECT_MASTER (1002), for the codes 0 and 2011.

    The group's fields are written twice, nested and at the top: brokers read the former, mqadmin the latter.
    """

    broker_member_group: BrokerMemberGroup | None
    sync_state_set: frozenset[int]

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        group = value.inner("brokerMemberGroup")
        return cls(
            BrokerMemberGroup.from_object(group) if group else None,
            frozenset(value.integers("syncStateSet")),
        )

    def to_object(self) -> dict[str, object]:
        if self.broker_member_group is None:
            return {"syncStateSet": sorted(self.sync_state_set)}
        group = self.broker_member_group.to_object()
        return {"brokerMemberGroup": group, "syncStateSet": sorted(self.sync_state_set)} | group


@dataclass(frozen=True, slots=True)
class ReplicaIdentity(JsonBody):
    """One replica of a group, and whether its heartbeats arrive."""

    broker_name: str
    broker_id: int
    broker_address: str
    alive: bool

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        return cls(
            value.text("brokerName", ""),
            value.integer("brokerId"),
            value.text("brokerAddress", ""),
            value.flag("alive"),
        )

    def to_object(self) -> dict[str, object]:
        return {
            "alive": self.alive,
            "brokerAddress": self.broker_address,
            "brokerId": self.broker_id,
            "brokerName": self.broker_name,
        }


@dataclass(frozen=True, slots=True)
class ReplicasInfo(JsonBody):
    """A group as its controller sees it; no master: id and address are absent."""

    master_broker_id: int | None
    master_address: str | None
    master_epoch: int
    sync_state_set_epoch: int
    in_sync_replicas: tuple[ReplicaIdentity, ...]
    not_in_sync_replicas: tuple[ReplicaIdentity, ...]

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        return cls(
            value.optional_integer("masterBrokerId"),
            value.optional_text("masterAddress"),
            value.integer("masterEpoch", 0),
            value.integer("syncStateSetEpoch", 0),
            tuple(map(ReplicaIdentity.from_object, value.objects("inSyncReplicas"))),
            tuple(map(ReplicaIdentity.from_object, value.objects("notInSyncReplicas"))),
        )

    def to_object(self) -> dict[str, object]:
        return compact(
            inSyncReplicas=[replica.to_object() for replica in self.in_sync_replicas],
            masterAddress=self.master_address,
            masterBrokerId=self.master_broker_id,
            masterEpoch=self.master_epoch,
            notInSyncReplicas=[replica.to_object() for replica in self.not_in_sync_replicas],
            syncStateSetEpoch=self.sync_state_set_epoch,
        )


@dataclass(frozen=True, slots=True)
class BrokerReplicasInfo(JsonBody):
    """Answer to CONTROLLER_GET_SYNC_STATE_DATA (1006): by broker name."""

    replicas_info_table: dict[str, ReplicasInfo]

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        table = value.object_items("replicasInfoTable")
        return cls({name: ReplicasInfo.from_object(info) for name, info in table})

    def to_object(self) -> dict[str, object]:
        return {
            "replicasInfoTable": {name: info.to_object() for name, info in self.replicas_info_table.items()}
        }


@dataclass(frozen=True, slots=True)
class EpochEntry(JsonBody):
    """The commit log offsets that one master epoch wrote; the last one's end is 2^63 - 1."""

    epoch: int
    start_offset: int
    end_offset: int

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        return cls(value.integer("epoch"), value.integer("startOffset"), value.integer("endOffset"))

    def to_object(self) -> dict[str, object]:
        return {"endOffset": self.end_offset, "epoch": self.epoch, "startOffset": self.start_offset}


@dataclass(frozen=True, slots=True)
class EpochEntryCache(JsonBody):
    """Answer to GET_BROKER_EPOCH_CACHE (1007); `broker_id` is 0 on the master."""

    cluster_name: str
    broker_name: str
    broker_id: int
    epoch_list: tuple[EpochEntry, ...]
    max_offset: int

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        return cls(
            value.text("clusterName", ""),
            value.text("brokerName", ""),
            value.integer("brokerId", 0),
            tuple(map(EpochEntry.from_object, value.objects("epochList"))),
            value.integer("maxOffset", 0),
        )

    def to_object(self) -> dict[str, object]:
        return {
            "brokerId": self.broker_id,
            "brokerName": self.broker_name,
            "clusterName": self.cluster_name,
            "epochList": [entry.to_object() for entry in self.epoch_list],
            "maxOffset": self.max_offset,
        }


@dataclass(frozen=True, slots=True)
class HAClientRuntimeInfo(JsonBody):
    """A slave's connection to its master; offsets, milliseconds, bytes per second."""

    master_addr: str | None = None
    transferred_byte_in_second: int = 0
    max_offset: int = 0
    last_read_timestamp: int = 0
    last_write_timestamp: int = 0
    master_flush_offset: int = 0

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        return cls(
            value.optional_text("masterAddr"),
            value.integer("transferredByteInSecond", 0),
            value.integer("maxOffset", 0),
            value.integer("lastReadTimestamp", 0),
            value.integer("lastWriteTimestamp", 0),
            value.integer("masterFlushOffset", 0),
        )

    def to_object(self) -> dict[str, object]:
        return compact(
            lastReadTimestamp=self.last_read_timestamp,
            lastWriteTimestamp=self.last_write_timestamp,
            masterAddr=self.master_addr,
            masterFlushOffset=self.master_flush_offset,
            maxOffset=self.max_offset,
            transferredByteInSecond=self.transferred_byte_in_second,
        )


@dataclass(frozen=True, slots=True)
class HAConnectionRuntimeInfo(JsonBody):
    """A master's connection to one slave; `diff` is how many bytes the slave is behind."""

    addr: str
    slave_ack_offset: int
    diff: int
    in_sync: bool
    transferred_byte_in_second: int = 0
    transfer_from_where: int = 0

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        return cls(
            value.text("addr", ""),
            value.integer("slaveAckOffset", 0),
            value.integer("diff", 0),
            value.flag("inSync"),
            value.integer("transferredByteInSecond", 0),
            value.integer("transferFromWhere", 0),
        )

    def to_object(self) -> dict[str, object]:
        return {
            "addr": self.addr,
            "diff": self.diff,
            "inSync": self.in_sync,
            "slaveAckOffset": self.slave_ack_offset,
            "transferFromWhere": self.transfer_from_where,
            "transferredByteInSecond": self.transferred_byte_in_second,
        }


_NO_CLIENT = HAClientRuntimeInfo()


@dataclass(frozen=True, slots=True)
class HARuntimeInfo(JsonBody):
    """Answer to GET_BROKER_HA_STATUS (907)."""

    master: bool
    master_commit_log_max_offset: int = 0
    in_sync_slave_nums: int = 0
    ha_connection_info: tuple[HAConnectionRuntimeInfo, ...] = ()
    ha_client_runtime_info: HAClientRuntimeInfo = field(default=_NO_CLIENT)

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        client = value.inner("haClientRuntimeInfo")
        return cls(
            value.flag("master"),
            value.integer("masterCommitLogMaxOffset", 0),
            value.integer("inSyncSlaveNums", 0),
            tuple(map(HAConnectionRuntimeInfo.from_object, value.objects("haConnectionInfo"))),
            HAClientRuntimeInfo.from_object(client) if client else _NO_CLIENT,
        )

    def to_object(self) -> dict[str, object]:
        return {
            "haClientRuntimeInfo": self.ha_client_runtime_info.to_object(),
            "haConnectionInfo": [connection.to_object() for connection in self.ha_connection_info],
            "inSyncSlaveNums": self.in_sync_slave_nums,
            "master": self.master,
            "masterCommitLogMaxOffset": self.master_commit_log_max_offset,
        }
