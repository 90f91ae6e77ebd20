"""Which brokers live, and which topics they hold: the routing table of a name server; pure.

Source: RocketMQ's `RouteInfoManager`. Unlike there, what is known of a broker (address, data version,
connection, filter servers) hangs on its group, so a broker that goes away leaves nothing behind. Times are
milliseconds of one monotonic clock; a connection is any hashable token.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from typing import Final

from brokerset_formats.config import DataVersion, Permission
from brokerset_namesrv.groups import Group, Member
from brokerset_namesrv.registrations import (
    HEARTBEAT_TIMEOUT_MS_MAX,
    NAME_LENGTH_MAX,
    MinBrokerIdNotice,
    Refused,
    Registered,
    Registration,
    Removal,
    Removals,
)
from brokerset_protocol.bodies.routes import MASTER_ID, BrokerData, ClusterInfo, QueueData, TopicRouteData
from brokerset_spec.namesrv_settings import NamesrvSettings

GROUPS_MAX: Final = 10_000
"""Broker names known at once; a registration of one more is refused."""

MEMBERS_PER_GROUP_MAX: Final = 64
"""Broker ids under one name; a registration of one more is refused."""

TOPICS_PER_GROUP_MAX: Final = 100_000
"""Topics of one broker name; a registration that would exceed it is refused as a whole."""

TOPIC_ENTRIES_MAX: Final = 2_000_000
"""Pairs of topic and broker name in the whole table; a registration that would exceed it is refused."""

SYNC_MEMBER_TOPIC_PREFIX: Final = "rmq_sys_SYNC_BROKER_MEMBER_"
"""Topics by which the brokers of a group find each other: their routes never show an acting master."""

_FLAG_UNIT = 1
_FLAG_UNIT_SUB = 2


class RouteTable:
    """Brokers, topics and their liveness. Not safe for threads; every method leaves the table consistent."""

    def __init__(self, settings: NamesrvSettings) -> None:
        self._settings = settings
        self._groups: dict[str, Group] = {}
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._places: dict[tuple[str, str], tuple[str, int]] = {}
        self._of_connection: dict[Hashable, set[tuple[str, str]]] = {}
        self._encoded: dict[str, bytes] = {}

    def use_settings(self, settings: NamesrvSettings) -> None:
        """Go on with changed settings."""
        self._settings = settings
        self._encoded.clear()

    # -- sizes, for metrics -------------------------------------------------------------------------------

    @property
    def group_count(self) -> int:
        """Number of broker names."""
        return len(self._groups)

    @property
    def broker_count(self) -> int:
        """Number of living brokers."""
        return len(self._places)

    @property
    def topic_count(self) -> int:
        """Number of topics with at least one broker."""
        return len(self._topics)

    # -- registration -------------------------------------------------------------------------------------

    def register(
        self, registration: Registration, now_ms: int, connection: Hashable | None = None
    ) -> Registered | Refused:
        """Take what a broker says of itself, or say why not.

        Guards: an address stands under one id only (role switch); a newcomer does not displace a holder of
        its id with a higher state version (the epoch of the master: a stale one must not come back); an
        unknown id must not begin with one topic (that is an increment which overtook the first registration).
        """
        problem = self._problem(registration)
        if problem is not None:
            return Refused(problem)
        group = self._groups.get(registration.broker_name)
        holder = group.members.get(registration.broker_id) if group is not None else None
        if holder is not None and holder.address != registration.address:
            held = holder.data_version.state_version
            if held > registration.data_version.state_version:
                return self._ignore(registration, holder)
        if holder is None and len(registration.topics) == 1:
            return Refused(
                f"{registration.broker_name} has not registered id {registration.broker_id} yet: "
                "its first registration must list all topics, not one"
            )
        return self._store(registration, now_ms, connection)

    def _problem(self, registration: Registration) -> str | None:
        problem = registration.problem()
        if problem is not None:
            return problem
        name = registration.broker_name
        group = self._groups.get(name)
        if group is None:
            if len(self._groups) >= GROUPS_MAX:
                return f"{GROUPS_MAX} broker names are known already, no room for {name}"
        elif group.cluster != registration.cluster:
            return (
                f"{name} belongs to cluster {group.cluster}: choose another brokerName in "
                f"{registration.cluster}, or stop the brokers of the other cluster"
            )
        elif registration.broker_id not in group.members and len(group.members) >= MEMBERS_PER_GROUP_MAX:
            return f"{name} has {MEMBERS_PER_GROUP_MAX} brokers already"
        return self._topics_problem(registration, group)

    def _topics_problem(self, registration: Registration, group: Group | None) -> str | None:
        added = registration.topics.keys() - group.topics if group is not None else registration.topics.keys()
        if not added:
            return None
        held = len(group.topics) if group is not None else 0
        if held + len(added) > TOPICS_PER_GROUP_MAX:
            name = registration.broker_name
            return f"{held + len(added)} topics of {name}, at most {TOPICS_PER_GROUP_MAX} allowed"
        entries = sum(len(other.topics) for other in self._groups.values())
        if entries + len(added) > TOPIC_ENTRIES_MAX:
            return f"the table has {entries} topic entries already, at most {TOPIC_ENTRIES_MAX} allowed"
        return None

    def _ignore(self, registration: Registration, holder: Member) -> Registered:
        """The newcomer is out of date; what it had registered under another id ends, too."""
        removals = self._remove_all([(registration.cluster, registration.address)])
        reason = (
            f"ignored: id {registration.broker_id} of {registration.broker_name} is held by {holder.address} "
            f"with state version {holder.data_version.state_version}, "
            f"above {registration.data_version.state_version}"
        )
        return Registered(ignored=reason, notices=removals.notices)

    def _store(self, registration: Registration, now_ms: int, connection: Hashable | None) -> Registered:
        notices: tuple[MinBrokerIdNotice, ...] = ()
        key = (registration.cluster, registration.address)
        place = self._places.get(key)
        if place is not None and place[0] != registration.broker_name:
            notices = self._remove_all([key]).notices
            place = None
        before = self._member_at(place)
        group = self._groups.get(registration.broker_name)
        if group is None:
            group = Group(registration.broker_name, registration.cluster)
            self._groups[group.name] = group
        face = group.face()
        min_before = min(group.members, default=MASTER_ID)
        group.acting_master = registration.acting_master is True
        group.zone = registration.zone
        first = registration.broker_id not in group.members
        self._place_member(group, registration, now_ms, connection)
        changed = first or before is None or before.data_version != registration.data_version
        self._take_topics(group, registration, changed)
        if group.face() != face:
            self._forget_encoded(group.topics)
        if registration.broker_id < min_before and self._settings.notify_min_broker_id_changed:
            notices += (group.notice(ha_address=registration.ha_address),)
        master = group.members.get(MASTER_ID) if registration.broker_id != MASTER_ID else None
        return Registered(
            ha_address=master.ha_address if master is not None else None,
            master_address=master.address if master is not None else None,
            first=first,
            notices=notices,
        )

    def _place_member(
        self, group: Group, registration: Registration, now_ms: int, connection: Hashable | None
    ) -> None:
        """Put the broker under its id; it leaves its former id, and a former holder of its id leaves."""
        key = (registration.cluster, registration.address)
        place = self._places.get(key)
        old = self._member_at(place)
        if place is not None and place[1] != registration.broker_id:
            del group.members[place[1]]
        if old is not None:
            self._unbind(old.connection, key)
        holder = group.members.get(registration.broker_id)
        if holder is not None and holder.address != registration.address:
            displaced = (group.cluster, holder.address)
            del self._places[displaced]
            self._unbind(holder.connection, displaced)
        servers = registration.filter_servers
        if servers is None:
            servers = old.filter_servers if old is not None else ()
        wish = registration.heartbeat_timeout_ms
        group.members[registration.broker_id] = Member(
            address=registration.address,
            ha_address=registration.ha_address,
            timeout_ms=min(wish, HEARTBEAT_TIMEOUT_MS_MAX)
            if wish is not None and wish > 0
            else self._settings.default_broker_timeout,
            data_version=registration.data_version,
            updated_ms=now_ms,
            connection=connection,
            filter_servers=servers,
        )
        self._places[key] = (group.name, registration.broker_id)
        if connection is not None:
            self._of_connection.setdefault(connection, set()).add(key)

    def _take_topics(self, group: Group, registration: Registration, changed: bool) -> None:
        """Store the topics of a master, or of the smallest id of a group without one."""
        is_master = registration.broker_id == MASTER_ID
        is_prime_slave = (
            registration.acting_master is not None
            and not is_master
            and registration.broker_id == min(group.members)
        )
        if not is_master and not is_prime_slave:
            return
        topics = registration.topics
        if self._settings.delete_topic_with_broker_registration:
            for topic in group.topics - topics.keys():
                self._drop_queues(group, topic)
        read_only = is_prime_slave and group.acting_master
        for topic, data in topics.items():
            if changed or topic not in group.topics:
                if read_only:
                    data = replace(data, perm=data.perm & ~Permission.WRITE)
                self._put_queues(group, topic, data)

    # -- leaving ------------------------------------------------------------------------------------------

    def unregister(
        self, cluster: str, broker_name: str, address: str, connection: Hashable | None = None
    ) -> Removals:
        """A broker says that it goes away; one that is not known changes nothing.

        Nor one that has registered over another connection since: masters of a group may have one address
        (a Service), and the old one unregisters it when the new one is there. Java removes the new one.
        """
        place = self._places.get((cluster, address))
        if place is None or place[0] != broker_name:
            return Removals()
        holder = self._groups[place[0]].members[place[1]].connection
        if connection is not None and holder is not None and holder != connection:
            return Removals()
        return self._remove_all([(cluster, address)])

    def connection_closed(self, connection: Hashable) -> Removals:
        """Every broker whose last registration came over this connection goes away at once."""
        return self._remove_all(sorted(self._of_connection.get(connection, ())))

    def expire(self, now_ms: int) -> Removals:
        """Every broker that was silent for longer than its time-out goes away."""
        silent = []
        for group in self._groups.values():
            for member in group.members.values():
                if member.updated_ms + member.timeout_ms < now_ms:
                    silent.append((group.cluster, member.address))
        return self._remove_all(silent)

    def _remove_all(self, keys: Iterable[tuple[str, str]]) -> Removals:
        """Remove brokers; whoever is left hears once, of the state after all of them went."""
        removed: list[Removal] = []
        lost_minimum: dict[str, str] = {}
        for key in keys:
            place = self._places.get(key)
            if place is None:
                continue
            if place[1] == min(self._groups[place[0]].members):
                lost_minimum[place[0]] = key[1]
            removed.append(self._remove(key, place))
        if not self._settings.notify_min_broker_id_changed:
            return Removals(tuple(removed))
        groups = ((self._groups.get(name), address) for name, address in lost_minimum.items())
        notices = [
            group.notice(offline_address=address)
            for group, address in groups
            if group is not None and group.acting_master
        ]
        return Removals(tuple(removed), tuple(notices))

    def _remove(self, key: tuple[str, str], place: tuple[str, int]) -> Removal:
        name, broker_id = place
        del self._places[key]
        group = self._groups[name]
        member = group.members.pop(broker_id)
        self._unbind(member.connection, key)
        self._forget_encoded(group.topics)
        if not group.members:
            for topic in list(group.topics):
                self._drop_queues(group, topic)
            del self._groups[name]
        elif group.acting_master and MASTER_ID not in group.members:
            for topic in group.topics:
                queues = self._topics[topic]
                queues[name] = replace(queues[name], perm=queues[name].perm & ~Permission.WRITE)
        return Removal(group.cluster, name, broker_id, member.address, member.connection)

    # -- liveness -----------------------------------------------------------------------------------------

    def touch(self, cluster: str, address: str, now_ms: int) -> None:
        """A sign of life of a broker; one that is not known changes nothing."""
        member = self._member_at(self._places.get((cluster, address)))
        if member is not None:
            member.updated_ms = now_ms

    def data_version(self, cluster: str, address: str) -> DataVersion | None:
        """The version of the topics that this broker registered last."""
        member = self._member_at(self._places.get((cluster, address)))
        return member.data_version if member is not None else None

    # -- topics -------------------------------------------------------------------------------------------

    def register_topic(self, topic: str, queues: Iterable[QueueData]) -> str | None:
        """Merge the queues of one topic, or change nothing and return why: a broker is not known."""
        queues = list(queues)
        for data in queues:
            group = self._groups.get(data.broker_name)
            if group is None:
                return f"ignored: broker {data.broker_name} is not registered"
            if topic not in group.topics and len(group.topics) >= TOPICS_PER_GROUP_MAX:
                return f"ignored: {data.broker_name} has {TOPICS_PER_GROUP_MAX} topics already"
        if not topic or len(topic) > NAME_LENGTH_MAX:
            return f"ignored: a topic name has 1 to {NAME_LENGTH_MAX} characters"
        for data in queues:
            self._put_queues(self._groups[data.broker_name], topic, data)
        return None

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget a topic, of one cluster or of all."""
        for name in list(self._topics.get(topic, ())):
            group = self._groups[name]
            if not cluster or group.cluster == cluster:
                self._drop_queues(group, topic)

    def wipe_write_permission(self, broker_name: str) -> int:
        """Make all topics of a broker name read-only until its data version changes; return their number."""
        return self._set_permissions(broker_name, lambda perm: perm & ~Permission.WRITE)

    def add_write_permission(self, broker_name: str) -> int:
        """Make all topics of a broker name readable and writable; return their number."""
        return self._set_permissions(broker_name, lambda perm: Permission.READ | Permission.WRITE)

    def topics(self) -> list[str]:
        """All topics, sorted."""
        return sorted(self._topics)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """All topics that a broker of this cluster holds, sorted."""
        found: set[str] = set()
        for group in self._groups.values():
            if group.cluster == cluster:
                found |= group.topics
        return sorted(found)

    def unit_topics(self, *, unit: bool | None = None, unit_sub: bool | None = None) -> list[str]:
        """Topics whose unit flags are as asked for (`None`: either), by their first broker name; sorted."""
        found = []
        for topic, queues in self._topics.items():
            flag = queues[min(queues)].topic_sys_flag
            if unit is not None and bool(flag & _FLAG_UNIT) != unit:
                continue
            if unit_sub is not None and bool(flag & _FLAG_UNIT_SUB) != unit_sub:
                continue
            found.append(topic)
        return sorted(found)

    # -- answers ------------------------------------------------------------------------------------------

    def system_topics(self) -> tuple[list[str], str | None]:
        """The names of clusters and brokers, which are topics too, and a broker's address to ask for more."""
        names = sorted({group.cluster for group in self._groups.values()} | self._groups.keys())
        if not self._groups:
            return names, None
        group = self._groups[min(self._groups)]
        return names, group.members[min(group.members)].address

    def member_addresses(self, broker_name: str) -> dict[int, str]:
        """The living brokers of a name, by id."""
        group = self._groups.get(broker_name)
        return group.addresses() if group is not None else {}

    def master_ha_addresses(self) -> dict[str, str]:
        """Broker name -> HA address of its master, for groups that have one."""
        masters = ((group.name, group.members.get(MASTER_ID)) for group in self._groups.values())
        return {name: member.ha_address for name, member in masters if member is not None}

    def clusters(self) -> set[str]:
        """Names of all clusters."""
        return {group.cluster for group in self._groups.values()}

    def cluster_info(self) -> ClusterInfo:
        """All clusters and brokers."""
        clusters: dict[str, list[str]] = {}
        for name in sorted(self._groups):
            clusters.setdefault(self._groups[name].cluster, []).append(name)
        return ClusterInfo(
            broker_addr_table={name: self._broker_data(self._groups[name]) for name in sorted(self._groups)},
            cluster_addr_table={name: tuple(groups) for name, groups in clusters.items()},
        )

    def route(self, topic: str, order_topic_conf: str | None = None) -> TopicRouteData | None:
        """Where a topic lives, as of now; brokers sorted by name, so that all name servers answer alike."""
        queues = self._topics.get(topic)
        if not queues:
            return None
        brokers = []
        servers: dict[str, tuple[str, ...]] = {}
        for name in sorted(queues):
            group = self._groups[name]
            data = self._broker_data(group)
            if self._needs_acting_master(topic, group, queues[name]):
                addresses = dict(data.broker_addrs)
                addresses[MASTER_ID] = addresses.pop(min(addresses))
                data = replace(data, broker_addrs=dict(sorted(addresses.items())))
            brokers.append(data)
            for member in group.members.values():
                if member.filter_servers:
                    servers[member.address] = member.filter_servers
        return TopicRouteData(
            queue_datas=tuple(queues[name] for name in sorted(queues)),
            broker_datas=tuple(brokers),
            filter_server_table=servers,
            order_topic_conf=order_topic_conf,
        )

    def encoded_route(
        self, topic: str, order_topic_conf: str | None = None, zone: str | None = None
    ) -> bytes | None:
        """`route` as standard JSON; without a zone it is kept until something in it changes.

        Who changes an order configuration has to call `forget_route`.
        """
        if zone is None:
            body = self._encoded.get(topic)
            if body is not None:
                return body
        route = self.route(topic, order_topic_conf)
        if route is None:
            return None
        if zone is not None:
            route = filter_by_zone(route, zone)
        body = route.to_json()
        if zone is None:
            self._encoded[topic] = body
        return body

    def forget_route(self, topic: str) -> None:
        """Encode this topic's route afresh when it is asked for next."""
        self._encoded.pop(topic, None)

    # -- inner parts --------------------------------------------------------------------------------------

    def _needs_acting_master(self, topic: str, group: Group, queues: QueueData) -> bool:
        return (
            self._settings.support_acting_master
            and group.acting_master
            and MASTER_ID not in group.members
            and not queues.perm & Permission.WRITE
            and not topic.startswith(SYNC_MEMBER_TOPIC_PREFIX)
        )

    def _broker_data(self, group: Group) -> BrokerData:
        return BrokerData(
            cluster=group.cluster,
            broker_name=group.name,
            broker_addrs=group.addresses(),
            enable_acting_master=group.acting_master,
            zone_name=group.zone,
        )

    def _member_at(self, place: tuple[str, int] | None) -> Member | None:
        return self._groups[place[0]].members[place[1]] if place is not None else None

    def _unbind(self, connection: Hashable | None, key: tuple[str, str]) -> None:
        keys = self._of_connection.get(connection) if connection is not None else None
        if keys is not None:
            keys.discard(key)
            if not keys:
                del self._of_connection[connection]

    def _put_queues(self, group: Group, topic: str, data: QueueData) -> None:
        queues = self._topics.get(topic)
        if queues is None:
            self._topics[topic] = {group.name: data}
        elif queues.get(group.name) == data:
            return
        else:
            queues[group.name] = data
        group.topics.add(topic)
        self._encoded.pop(topic, None)

    def _drop_queues(self, group: Group, topic: str) -> None:
        queues = self._topics[topic]
        del queues[group.name]
        if not queues:
            del self._topics[topic]
        group.topics.discard(topic)
        self._encoded.pop(topic, None)

    def _forget_encoded(self, topics: Iterable[str]) -> None:
        if self._encoded:
            for topic in topics:
                self._encoded.pop(topic, None)

    def _set_permissions(self, broker_name: str, change: Callable[[int], int]) -> int:
        group = self._groups.get(broker_name)
        if group is None:
            return 0
        for topic in group.topics:
            queues = self._topics[topic]
            queues[broker_name] = replace(queues[broker_name], perm=change(queues[broker_name].perm))
        self._forget_encoded(group.topics)
        return len(group.topics)


def filter_by_zone(route: TopicRouteData, zone: str) -> TopicRouteData:
    """Only the brokers of one zone, and groups without a master (Java: `ZoneRouteRPCHook`)."""
    kept = tuple(
        data
        for data in route.broker_datas
        if MASTER_ID not in data.broker_addrs or (data.zone_name or "").lower() == zone.lower()
    )
    names = {data.broker_name for data in kept}
    addresses = {address for data in kept for address in data.broker_addrs.values()}
    return replace(
        route,
        broker_datas=kept,
        queue_datas=tuple(data for data in route.queue_datas if data.broker_name in names),
        filter_server_table={
            address: servers for address, servers in route.filter_server_table.items() if address in addresses
        },
    )
