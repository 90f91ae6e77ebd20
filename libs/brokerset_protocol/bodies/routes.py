"""Where topics live: routes, clusters, the members of a broker group. Written as standard JSON always."""

from __future__ import annotations

from dataclasses import field
from typing import Final

from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_protocol.bodies.codec import JsonBody, OrEmpty, OrZero

MASTER_ID: Final = 0
"""The broker id under which a group's master is known."""


@dataclass(frozen=True, slots=True)
class QueueData(JsonBody):
    """The queues of a topic at one broker group; `perm` has the bits 4 read, 2 write, 1 inherit."""

    broker_name: str
    read_queue_nums: OrZero
    write_queue_nums: OrZero
    perm: OrZero
    topic_sys_flag: int = 0


@dataclass(frozen=True, slots=True)
class BrokerData(JsonBody):
    """A broker group: its addresses by broker id, 0 being the master."""

    cluster: OrEmpty
    broker_name: str
    broker_addrs: dict[int, str]
    enable_acting_master: bool = False
    zone_name: str | None = None

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


@dataclass(frozen=True, slots=True)
class ClusterInfo(JsonBody):
    """Answer to GET_BROKER_CLUSTER_INFO (106): groups by name, names of groups by cluster."""

    broker_addr_table: dict[str, BrokerData]
    cluster_addr_table: dict[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class BrokerMemberGroup(JsonBody):
    """The registered members of one broker group."""

    cluster: OrEmpty
    broker_name: OrEmpty
    broker_addrs: dict[int, str]


@dataclass(frozen=True, slots=True)
class BrokerMemberGroupResponse(JsonBody):
    """Answer to GET_BROKER_MEMBER_GROUP (901)."""

    broker_member_group: BrokerMemberGroup | None
