"""Routes as clients outside a cluster need them: the same groups and queues at other addresses. Pure.

Clients outside ask another port of the name servers, or a local forwarder; both answer what comes out here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Final

from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_protocol.bodies.codec import JsonBody
from brokerset_protocol.bodies.routes import MASTER_ID, BrokerData, ClusterInfo, TopicRouteData
from brokerset_protocol.codes import RequestCode

SERVED: Final = frozenset(
    {
        RequestCode.GET_KV_CONFIG,
        RequestCode.GET_KVLIST_BY_NAMESPACE,
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        RequestCode.GET_TOPICS_BY_CLUSTER,
        RequestCode.GET_UNIT_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
    }
)
"""What a name server answers to clients outside: reads that name no inner address, or are rewritten."""


@dataclass(frozen=True, slots=True)
class ExternalAddresses(JsonBody):
    """Which address a broker has outside; brokers without one are left out of routes."""

    masters: Mapping[str, str] = field(default_factory=dict)
    """By broker name: an address that always leads to the master of that group."""

    brokers: Mapping[str, str] = field(default_factory=dict)
    """By the address that a broker has registered."""

    hosts: Mapping[str, str] = field(default_factory=dict)
    """By `place_of` a broker: where its group's master is reached as long as it is that broker."""

    def following(self, ha_addresses: Mapping[str, str]) -> ExternalAddresses:
        """The same for masters as they are now: `ha_addresses` has each group's, which names the broker's IP.

        At node ports a master is reached at its own node: a failover changes that before anybody can write a
        file again.
        """
        now = {
            group: outside
            for group, address in ha_addresses.items()
            if (outside := self.hosts.get(place_of(group, address.rpartition(":")[0].strip("[]"))))
            is not None
        }
        return replace(self, masters={**self.masters, **now}) if now else self

    def of(self, group: BrokerData) -> BrokerData | None:
        """The group at its addresses outside; None if it has none."""
        found = {}
        for broker_id, address in group.broker_addrs.items():
            outside = self.masters.get(group.broker_name) if broker_id == MASTER_ID else None
            outside = outside or self.brokers.get(address)
            if outside is not None:
                found[broker_id] = outside
        return replace(group, broker_addrs=found) if found else None


def place_of(group: str, ip: str) -> str:
    """The key of `hosts` for a broker of a group.

    An IP alone may be another group's broker a moment later, and clients would read and write the wrong log.
    """
    return f"{group}/{ip}"


def external_route(route: TopicRouteData, addresses: ExternalAddresses) -> TopicRouteData | None:
    """The route of a topic as outside clients need it; None if none of its brokers can be reached from there.

    Queues of a group without any address go, too: a consumer would be given queues that it cannot read.
    """
    groups = [found for each in route.broker_datas if (found := addresses.of(each)) is not None]
    if not groups:
        return None
    names = {each.broker_name for each in groups}
    filters = {
        addresses.brokers[address]: servers
        for address, servers in route.filter_server_table.items()
        if address in addresses.brokers
    }
    return replace(
        route,
        broker_datas=tuple(groups),
        queue_datas=tuple(each for each in route.queue_datas if each.broker_name in names),
        filter_server_table=filters,
    )


def external_cluster_info(info: ClusterInfo, addresses: ExternalAddresses) -> ClusterInfo:
    """Clusters and groups as outside clients need them; groups without an address are left out."""
    groups = {
        name: found
        for name, group in info.broker_addr_table.items()
        if (found := addresses.of(group)) is not None
    }
    clusters = {
        cluster: kept
        for cluster, members in info.cluster_addr_table.items()
        if (kept := tuple(each for each in members if each in groups))
    }
    return ClusterInfo(groups, clusters)


def external_body(code: int, body: bytes, addresses: ExternalAddresses) -> bytes | None:
    """The body of a successful answer to `code`, rewritten; None for a route that leads nowhere.

    Answers to other requests are left as they are. Raises `FormatError` on a body that cannot be read.
    """
    if code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
        route = external_route(TopicRouteData.from_json(body), addresses)
        return route.to_json() if route is not None else None
    if code == RequestCode.GET_BROKER_CLUSTER_INFO:
        return external_cluster_info(ClusterInfo.from_json(body), addresses).to_json()
    return body
