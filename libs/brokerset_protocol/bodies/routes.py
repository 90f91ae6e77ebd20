"""Where topics live: routes, clusters, the members of a broker group. Written as standard JSON always."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Self

from brokerset_protocol.bodies.json_objects import JsonBody, JsonObject, compact, integer, text

MASTER_ID: Final = 0
"""The broker id under which a group's master is known."""


def _addresses(value: JsonObject) -> dict[int, str]:
    return {
        integer(key, "a broker id of brokerAddrs"): text(address, "an address of brokerAddrs")
        for key, address in value.items("brokerAddrs")
    }


@dataclass(frozen=True, slots=True)
class QueueData(JsonBody):
    """The queues of a topic at one broker group; `perm` has the bits 4 read, 2 write, 1 inherit."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        return cls(
            value.text("brokerName"),
            value.integer("readQueueNums", 0),
            value.integer("writeQueueNums", 0),
            value.integer("perm", 0),
            value.integer("topicSysFlag", 0),
        )

    def to_object(self) -> dict[str, object]:
        return {
            "brokerName": self.broker_name,
            "perm": self.perm,
            "readQueueNums": self.read_queue_nums,
            "topicSysFlag": self.topic_sys_flag,
            "writeQueueNums": self.write_queue_nums,
        }


@dataclass(frozen=True, slots=True)
class BrokerData(JsonBody):
    """A broker group: its addresses by broker id, 0 being the master."""

    cluster: str
    broker_name: str
    broker_addrs: dict[int, str]
    enable_acting_master: bool = False
    zone_name: str | None = None

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        return cls(
            value.text("cluster", ""),
            value.text("brokerName"),
            _addresses(value),
            value.flag("enableActingMaster"),
            value.optional_text("zoneName"),
        )

    def to_object(self) -> dict[str, object]:
        return compact(
            brokerAddrs=self.broker_addrs,
            brokerName=self.broker_name,
            cluster=self.cluster,
            enableActingMaster=self.enable_acting_master,
            zoneName=self.zone_name,
        )

    def master_address(self) -> str | None:
        """The address of the group's master, if it has one."""
        return self.broker_addrs.get(MASTER_ID)


@dataclass(frozen=True, slots=True)
class TopicRouteData(JsonBody):
    """Answer to GET_ROUTEINFO_BY_TOPIC (105)."""

    queue_datas: tuple[QueueData, ...]
    broker_datas: tuple[BrokerData, ...] = ()
    filter_server_table: dict[str, tuple[str, ...]] = field(default_factory=dict)
    order_topic_conf: str | None = None

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        filters = value.inner("filterServerTable")
        return cls(
            tuple(map(QueueData.from_object, value.objects("queueDatas"))),
            tuple(map(BrokerData.from_object, value.objects("brokerDatas"))),
            {name: filters.texts(name) for name in filters.names()} if filters else {},
            value.optional_text("orderTopicConf"),
        )

    def to_object(self) -> dict[str, object]:
        return compact(
            brokerDatas=[data.to_object() for data in self.broker_datas],
            filterServerTable=self.filter_server_table,
            orderTopicConf=self.order_topic_conf,
            queueDatas=[data.to_object() for data in self.queue_datas],
        )


@dataclass(frozen=True, slots=True)
class ClusterInfo(JsonBody):
    """Answer to GET_BROKER_CLUSTER_INFO (106): groups by name, names of groups by cluster."""

    broker_addr_table: dict[str, BrokerData]
    cluster_addr_table: dict[str, tuple[str, ...]]

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        clusters = value.inner("clusterAddrTable")
        return cls(
            {name: BrokerData.from_object(data) for name, data in value.object_items("brokerAddrTable")},
            {name: clusters.texts(name) for name in clusters.names()} if clusters else {},
        )

    def to_object(self) -> dict[str, object]:
        return {
            "brokerAddrTable": {name: data.to_object() for name, data in self.broker_addr_table.items()},
            "clusterAddrTable": self.cluster_addr_table,
        }


@dataclass(frozen=True, slots=True)
class BrokerMemberGroup(JsonBody):
    """The registered members of one broker group."""

    cluster: str
    broker_name: str
    broker_addrs: dict[int, str]

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        return cls(value.text("cluster", ""), value.text("brokerName", ""), _addresses(value))

    def to_object(self) -> dict[str, object]:
        return {
            "brokerAddrs": self.broker_addrs,
            "brokerName": self.broker_name,
            "cluster": self.cluster,
        }


@dataclass(frozen=True, slots=True)
class BrokerMemberGroupResponse(JsonBody):
    """Answer to GET_BROKER_MEMBER_GROUP (901)."""

    broker_member_group: BrokerMemberGroup | None

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        group = value.inner("brokerMemberGroup")
        return cls(BrokerMemberGroup.from_object(group) if group else None)

    def to_object(self) -> dict[str, object]:
        group = self.broker_member_group
        return compact(brokerMemberGroup=group.to_object() if group else None)
