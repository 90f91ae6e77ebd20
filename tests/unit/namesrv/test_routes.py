"""The routing table of the name server: who is known, who leaves, and what routes show."""

from __future__ import annotations

import gc
import time
from dataclasses import replace

import pytest

from brokerset_formats.config import DataVersion
from brokerset_namesrv import registrations, routes
from brokerset_namesrv.registrations import MinBrokerIdNotice, Refused, Registered, Registration
from brokerset_namesrv.routes import RouteTable, filter_by_zone
from brokerset_protocol.bodies.routes import QueueData
from brokerset_spec.namesrv_settings import NamesrvSettings

MASTER = "10.0.0.1:10911"
SLAVE = "10.0.0.2:10911"
THIRD = "10.0.0.3:10911"
TOPICS = ("TBW102", "orders")


def version(counter: int = 1, state: int = 0) -> DataVersion:
    return DataVersion(counter=counter, state_version=state, timestamp=1_700_000_000_000)


def queues(broker_name: str, sys_flag: int = 0) -> QueueData:
    return QueueData(broker_name, 4, 4, 6, sys_flag)


def registration(
    broker_id: int = 0,
    address: str = MASTER,
    names: tuple[str, ...] = TOPICS,
    *,
    broker_name: str = "broker-a",
    cluster: str = "DefaultCluster",
    data_version: DataVersion | None = None,
    acting_master: bool | None = False,
    filter_servers: tuple[str, ...] | None = (),
    heartbeat_timeout_ms: int | None = None,
    zone: str | None = None,
) -> Registration:
    return Registration(
        cluster=cluster,
        broker_name=broker_name,
        broker_id=broker_id,
        address=address,
        ha_address=address.replace("10911", "10912"),
        topics={name: queues(broker_name) for name in names},
        data_version=data_version or version(),
        acting_master=acting_master,
        filter_servers=filter_servers,
        heartbeat_timeout_ms=heartbeat_timeout_ms,
        zone=zone,
    )


def new_table(**changes: bool | int) -> RouteTable:
    return RouteTable(NamesrvSettings(**changes))  # type: ignore[arg-type]  # names and types of settings


def addresses(table: RouteTable, name: str = "orders") -> dict[str, dict[int, str]]:
    route = table.route(name)
    return {data.broker_name: dict(data.broker_addrs) for data in route.broker_datas} if route else {}


def perms(table: RouteTable, name: str = "orders") -> dict[str, int]:
    route = table.route(name)
    return {data.broker_name: data.perm for data in route.queue_datas} if route else {}


def registered(result: Registered | Refused) -> Registered:
    assert isinstance(result, Registered), result
    return result


def refused(result: Registered | Refused) -> str:
    assert isinstance(result, Refused), result
    return result.reason


# -- registration -------------------------------------------------------------------------------------------


def test_master_and_slave_share_a_route_and_the_slave_learns_the_master() -> None:
    """The route shows every living id; a slave is told the addresses of its master, a master nothing."""
    table = new_table()

    first = registered(table.register(registration(), 0))
    second = registered(table.register(registration(2, SLAVE), 0))

    assert (first.master_address, first.ha_address, first.first) == (None, None, True)
    assert (second.master_address, second.ha_address) == (MASTER, "10.0.0.1:10912")
    assert addresses(table) == {"broker-a": {0: MASTER, 2: SLAVE}}
    assert table.member_addresses("broker-a") == {0: MASTER, 2: SLAVE}
    assert table.member_addresses("nobody") == {}


def test_same_registration_again_changes_no_byte() -> None:
    """A broker that registers every 30 s leaves the encoded routes as they are."""
    table = new_table()
    table.register(registration(), 0)
    body = table.encoded_route("orders")

    result = registered(table.register(registration(), 30_000))

    assert not result.first
    assert table.encoded_route("orders") is body


def test_first_registration_with_one_topic_is_refused_and_leaves_nothing() -> None:
    """An increment that overtakes the first registration must not hide the broker's other topics."""
    table = new_table()

    reason = refused(table.register(registration(names=("orders",)), 0))

    assert "must list all topics" in reason
    assert table.group_count == table.broker_count == table.topic_count == 0


def test_later_registration_with_one_topic_is_an_increment() -> None:
    """Once registered, a broker may send one topic; the others stay."""
    table = new_table()
    table.register(registration(), 0)

    registered(table.register(registration(names=("new",), data_version=version(2)), 1))

    assert table.topics() == ["TBW102", "new", "orders"]


def test_a_slave_promoted_at_its_address_leaves_its_old_id() -> None:
    """An address stands under one id only."""
    table = new_table()
    table.register(registration(), 0)
    table.register(registration(2, SLAVE), 0)
    table.unregister("DefaultCluster", "broker-a", MASTER)

    registered(table.register(registration(0, SLAVE, data_version=version(1, 5)), 1))

    assert addresses(table) == {"broker-a": {0: SLAVE}}
    assert table.broker_count == 1


def test_new_master_displaces_the_old_one_and_nothing_of_it_is_left() -> None:
    """A higher state version takes the id over, although the old master has not left yet."""
    table = new_table()
    table.register(registration(data_version=version(1, 4)), 0, connection="old")
    table.register(registration(2, SLAVE, data_version=version(1, 4)), 0)

    registered(table.register(registration(0, SLAVE, data_version=version(1, 5)), 1))

    assert addresses(table) == {"broker-a": {0: SLAVE}}
    assert table.data_version("DefaultCluster", MASTER) is None
    assert table.connection_closed("old").removed == ()


def test_stale_master_is_ignored() -> None:
    """A master of an older epoch does not take its id back; Java answers it with success."""
    table = new_table()
    table.register(registration(0, SLAVE, data_version=version(1, 5)), 0)

    result = registered(table.register(registration(data_version=version(9, 4)), 1))

    assert result.ignored is not None
    assert SLAVE in result.ignored
    assert result.master_address is None
    assert addresses(table) == {"broker-a": {0: SLAVE}}


def test_stale_claim_also_ends_what_the_broker_had_before() -> None:
    """A broker that says it is no slave any more is none, even if its claim to be master is ignored."""
    table = new_table()
    table.register(registration(0, MASTER, data_version=version(1, 5)), 0)
    table.register(registration(2, SLAVE, data_version=version(1, 5)), 0)

    table.register(registration(0, SLAVE, data_version=version(1, 4)), 1)

    assert addresses(table) == {"broker-a": {0: MASTER}}


def test_equal_state_version_takes_the_id_over() -> None:
    """A replaced broker with a new address and no epochs (state version 0) gets its id."""
    table = new_table()
    table.register(registration(), 0)

    registered(table.register(registration(0, THIRD), 1))

    assert addresses(table) == {"broker-a": {0: THIRD}}


def test_an_address_that_another_name_used_before_moves() -> None:
    """A pod address that is given to another group does not stay in the old group's routes permanently."""
    table = new_table()
    table.register(registration(), 0)

    table.register(registration(broker_name="broker-b", names=("other", "TBW102")), 1)

    assert table.route("orders") is None
    assert addresses(table, "other") == {"broker-b": {0: MASTER}}
    assert table.group_count == 1


def test_a_broker_name_belongs_to_one_cluster() -> None:
    """The same name in two clusters would mix their routes."""
    table = new_table()
    table.register(registration(), 0)

    reason = refused(table.register(registration(0, SLAVE, cluster="other"), 0))

    assert "belongs to cluster DefaultCluster" in reason


def test_slave_topics_do_not_count_while_there_is_a_master() -> None:
    """Only id 0 decides the topics of a group that has a master."""
    table = new_table()
    table.register(registration(), 0)

    table.register(registration(2, SLAVE, names=("orders", "only-on-slave")), 0)

    assert table.topics() == ["TBW102", "orders"]


def test_unchanged_data_version_does_not_bring_wiped_permissions_back() -> None:
    """A wiped write permission lasts until the broker's topics change."""
    table = new_table()
    table.register(registration(), 0)

    assert table.wipe_write_permission("broker-a") == 2
    table.register(registration(), 30_000)
    assert perms(table) == {"broker-a": 4}

    table.register(registration(data_version=version(2)), 60_000)
    assert perms(table) == {"broker-a": 6}


def test_unchanged_data_version_brings_a_deleted_topic_back() -> None:
    """A topic that the table lacks is taken from any registration."""
    table = new_table()
    table.register(registration(), 0)
    table.delete_topic("orders")

    table.register(registration(), 30_000)

    assert table.topics() == ["TBW102", "orders"]


def test_add_write_permission_makes_topics_readable_and_writable() -> None:
    """The counterpart of wiping sets 6, whatever was there; an unknown name counts no topic."""
    table = new_table()
    table.register(registration(), 0)
    table.wipe_write_permission("broker-a")

    assert table.add_write_permission("broker-a") == 2
    assert table.add_write_permission("nobody") == 0
    assert perms(table) == {"broker-a": 6}


def test_topics_missing_in_a_registration_go_only_if_the_settings_say_so() -> None:
    """By default a registration adds; with deleteTopicWithBrokerRegistration it replaces."""
    kept, replaced = new_table(), new_table(delete_topic_with_broker_registration=True)
    for table in (kept, replaced):
        table.register(registration(names=("a", "b", "c")), 0)
        table.register(registration(names=("a", "b"), data_version=version(2)), 1)

    assert kept.topics() == ["a", "b", "c"]
    assert replaced.topics() == ["a", "b"]


@pytest.mark.parametrize(
    ("wrong", "part"),
    [
        (registration(address="nowhere"), "not host:port"),
        (registration(address="host:0"), "not host:port"),
        (registration(address="host:99999"), "not host:port"),
        (registration(broker_name=""), "brokerName has 0"),
        (registration(cluster="c" * 256), "clusterName has 256"),
        (registration(-1), "negative"),
        (registration(names=("ok", "t" * 256)), "topic name has 256"),
        (registration(filter_servers=("f",) * 65), "filter servers"),
    ],
)
def test_nonsense_is_refused_and_leaves_nothing(wrong: Registration, part: str) -> None:
    """What a registration may not contain is named in the refusal."""
    table = new_table()

    reason = refused(table.register(wrong, 0))

    assert part in reason
    assert table.group_count == 0


def test_limits_refuse_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups, members and topics are bounded; what is known already stays welcome."""
    monkeypatch.setattr(routes, "GROUPS_MAX", 1)
    monkeypatch.setattr(routes, "MEMBERS_PER_GROUP_MAX", 2)
    table = new_table()
    table.register(registration(), 0)
    table.register(registration(1, SLAVE), 0)

    assert "broker names" in refused(table.register(registration(broker_name="b", address=THIRD), 0))
    assert "brokers already" in refused(table.register(registration(2, THIRD), 0))
    registered(table.register(registration(), 1))

    monkeypatch.setattr(routes, "TOPICS_PER_GROUP_MAX", 2)
    assert "at most 2" in refused(table.register(registration(names=("x", "y")), 2))
    monkeypatch.setattr(routes, "TOPICS_PER_GROUP_MAX", 100)
    monkeypatch.setattr(routes, "TOPIC_ENTRIES_MAX", 3)
    assert "at most 3" in refused(table.register(registration(names=("x", "y")), 2))
    registered(table.register(registration(), 3))


# -- leaving ------------------------------------------------------------------------------------------------


def test_a_closed_connection_takes_its_brokers_away_at_once() -> None:
    """All brokers whose last registration came over it, and no others."""
    table = new_table()
    table.register(registration(), 0, connection="one")
    table.register(registration(broker_name="broker-b", address=THIRD), 0, connection="one")
    table.register(registration(2, SLAVE), 0, connection="two")

    removals = table.connection_closed("one")

    assert [removal.address for removal in removals.removed] == [MASTER, THIRD]
    assert addresses(table) == {"broker-a": {2: SLAVE}}
    assert table.connection_closed("one").removed == ()


def test_the_old_connection_of_a_broker_that_registered_anew_counts_no_more() -> None:
    """A restarted broker is not removed when its former connection is noticed to be dead."""
    table = new_table()
    table.register(registration(), 0, connection="old")
    table.register(registration(), 1, connection="new")

    assert table.connection_closed("old").removed == ()
    assert addresses(table) == {"broker-a": {0: MASTER}}


def test_silence_ends_at_the_default_or_the_asked_timeout() -> None:
    """A broker goes after its time-out has passed, not at it; signs of life and registrations count."""
    table = new_table(default_broker_timeout=1_000)
    table.register(registration(), 0, connection="c")
    table.register(registration(2, SLAVE, heartbeat_timeout_ms=100), 0)

    assert table.expire(100).removed == ()
    assert [removal.address for removal in table.expire(101).removed] == [SLAVE]
    table.touch("DefaultCluster", MASTER, 900)
    table.touch("DefaultCluster", "unknown:1", 900)
    assert table.expire(1_900).removed == ()
    (removal,) = table.expire(1_901).removed
    assert (removal.broker_name, removal.broker_id, removal.connection) == ("broker-a", 0, "c")
    assert table.route("orders") is None
    assert table.group_count == table.topic_count == 0


def test_a_broker_cannot_ask_to_be_kept_for_ever() -> None:
    """An absurd time-out is cut, zero and less mean the default."""
    table = new_table()
    table.register(registration(heartbeat_timeout_ms=2**62), 0)
    table.register(registration(2, SLAVE, heartbeat_timeout_ms=0), 0)

    assert [r.address for r in table.expire(120_001).removed] == [SLAVE]
    assert [r.address for r in table.expire(registrations.HEARTBEAT_TIMEOUT_MS_MAX + 1).removed] == [MASTER]


def test_an_old_master_does_not_unregister_the_new_one_at_its_address() -> None:
    """Both are reached by one Service: the new one registers, and then the old one unregisters."""
    table = new_table()
    table.register(registration(), 0, "old")
    table.register(registration(), 1, "new")

    assert table.unregister("DefaultCluster", "broker-a", MASTER, "old").removed == ()
    assert addresses(table) == {"broker-a": {0: MASTER}}
    assert table.unregister("DefaultCluster", "broker-a", MASTER, "new").removed[0].address == MASTER


def test_unregister_needs_the_right_name_and_cluster() -> None:
    """Somebody else's goodbye changes nothing."""
    table = new_table()
    table.register(registration(), 0)

    assert table.unregister("DefaultCluster", "broker-b", MASTER).removed == ()
    assert table.unregister("other", "broker-a", MASTER).removed == ()
    assert table.unregister("DefaultCluster", "broker-a", MASTER).removed[0].address == MASTER
    assert table.cluster_info().broker_addr_table == {}


# -- acting master ------------------------------------------------------------------------------------------


def test_without_support_a_masterless_route_shows_ids_as_they_are() -> None:
    """Consumers still find the slave; nobody stands under id 0."""
    table = new_table()
    table.register(registration(acting_master=True), 0)
    table.register(registration(2, SLAVE, acting_master=True), 0)

    table.unregister("DefaultCluster", "broker-a", MASTER)

    assert addresses(table) == {"broker-a": {2: SLAVE}}
    assert perms(table) == {"broker-a": 4}


def test_with_support_the_smallest_slave_is_shown_as_master_without_write_permission() -> None:
    """Consumers can continue where only masters are asked; producers see a topic that takes no writes."""
    table = new_table(support_acting_master=True)
    for number, address in ((0, MASTER), (2, SLAVE), (3, THIRD)):
        table.register(registration(number, address, acting_master=True), 0)

    table.unregister("DefaultCluster", "broker-a", MASTER)

    assert addresses(table) == {"broker-a": {0: SLAVE, 3: THIRD}}
    assert perms(table) == {"broker-a": 4}
    table.register(registration(acting_master=True), 1)
    assert addresses(table) == {"broker-a": {0: MASTER, 2: SLAVE, 3: THIRD}}
    assert perms(table) == {"broker-a": 6}


def test_acting_master_is_not_shown_in_the_member_topic_nor_for_groups_that_do_not_want_it() -> None:
    """The topic by which a group finds its members shows real ids."""
    name = "rmq_sys_SYNC_BROKER_MEMBER_broker-a"
    table = new_table(support_acting_master=True)
    table.register(registration(2, SLAVE, names=(name, "orders"), acting_master=True), 0)
    table.register(
        registration(2, THIRD, broker_name="broker-b", names=(name, "orders"), acting_master=False), 0
    )

    assert addresses(table, name) == {"broker-a": {2: SLAVE}, "broker-b": {2: THIRD}}
    assert addresses(table) == {"broker-a": {0: SLAVE}, "broker-b": {2: THIRD}}


def test_prime_slave_stores_topics_without_write_permission_if_acting_master_is_on() -> None:
    """The smallest id of a group without a master decides the topics; one before 5.0 never does."""
    table = new_table()
    table.register(registration(2, SLAVE, acting_master=True), 0)
    assert perms(table) == {"broker-a": 4}

    table = new_table()
    table.register(registration(2, SLAVE, acting_master=False), 0)
    assert perms(table) == {"broker-a": 6}

    table = new_table()
    table.register(registration(2, SLAVE, acting_master=None), 0)
    assert table.route("orders") is None


# -- notices ------------------------------------------------------------------------------------------------


def test_a_new_smallest_id_is_told_to_the_others() -> None:
    """The former members learn who the new master is."""
    table = new_table(notify_min_broker_id_changed=True)
    table.register(registration(2, SLAVE, acting_master=True), 0)
    assert registered(table.register(registration(3, THIRD, acting_master=True), 0)).notices == ()

    result = registered(table.register(registration(acting_master=True), 0))

    assert result.notices == (
        MinBrokerIdNotice("broker-a", 0, MASTER, None, "10.0.0.1:10912", (SLAVE, THIRD)),
    )


def test_a_lost_smallest_id_is_told_to_who_is_left_once() -> None:
    """Two brokers that leave in one look give one notice, of the state after both."""
    table = new_table(notify_min_broker_id_changed=True)
    for number, address in ((0, MASTER), (2, SLAVE), (3, THIRD)):
        connection = "gone" if number != 3 else "stays"
        table.register(registration(number, address, acting_master=True), 0, connection=connection)

    removals = table.connection_closed("gone")

    assert removals.notices == (MinBrokerIdNotice("broker-a", 3, THIRD, SLAVE, None, (THIRD,)),)


def test_a_lost_larger_id_after_the_smallest_does_not_swallow_the_notice() -> None:
    """The order in which brokers of one look are removed does not matter."""
    table = new_table(notify_min_broker_id_changed=True)
    for number, address in ((0, MASTER), (2, SLAVE), (3, THIRD)):
        wish = 10_000 if number == 2 else 10
        table.register(registration(number, address, acting_master=True, heartbeat_timeout_ms=wish), 0)

    removals = table.expire(11)

    assert len(removals.removed) == 2
    assert removals.notices == (MinBrokerIdNotice("broker-a", 2, SLAVE, MASTER, None, (SLAVE,)),)


def test_nobody_is_told_by_default_or_without_acting_master() -> None:
    """Notices are for groups that use the acting master, and only if the settings ask for them."""
    silent, wrong_group = new_table(), new_table(notify_min_broker_id_changed=True)
    for table, acting in ((silent, True), (wrong_group, False)):
        table.register(registration(acting_master=acting), 0)
        table.register(registration(2, SLAVE, acting_master=acting), 0)

        assert table.unregister("DefaultCluster", "broker-a", MASTER).notices == ()


# -- topics and lists ---------------------------------------------------------------------------------------


def test_register_topic_merges_queues_of_known_brokers_only() -> None:
    """One unknown broker name leaves everything as it was."""
    table = new_table()
    table.register(registration(), 0)

    assert "not registered" in str(table.register_topic("t", [queues("broker-a"), queues("x")]))
    assert table.route("t") is None
    assert table.register_topic("t", [queues("broker-a")]) is None
    assert addresses(table, "t") == {"broker-a": {0: MASTER}}
    assert table.register_topic("t", []) is None


def test_delete_topic_of_one_cluster_or_of_all() -> None:
    """A topic goes where it is deleted, and with its last broker altogether."""
    table = new_table()
    table.register(registration(), 0)
    table.register(registration(0, SLAVE, broker_name="broker-b", cluster="second"), 0)

    table.delete_topic("orders", "second")
    assert addresses(table) == {"broker-a": {0: MASTER}}
    table.delete_topic("orders", "third")
    table.delete_topic("nothing")
    table.delete_topic("orders")
    assert table.topics() == ["TBW102"]
    assert table.topics_of_cluster("second") == ["TBW102"]
    assert table.topics_of_cluster("third") == []


def test_clusters_and_system_topics() -> None:
    """Names of clusters and brokers are topics, too; a broker that knows more is named."""
    table = new_table()
    assert table.system_topics() == ([], None)
    table.register(registration(2, SLAVE), 0)
    table.register(registration(0, THIRD, broker_name="broker-b", cluster="second"), 0)

    info = table.cluster_info()

    assert table.system_topics() == (["DefaultCluster", "broker-a", "broker-b", "second"], SLAVE)
    assert info.cluster_addr_table == {"DefaultCluster": ("broker-a",), "second": ("broker-b",)}
    assert dict(info.broker_addr_table["broker-b"].broker_addrs) == {0: THIRD}


def test_unit_topics_by_flags() -> None:
    """Bit 0 is the unit flag, bit 1 that of unit subscriptions."""
    table = new_table()
    entry = replace(
        registration(),
        topics={name: queues("broker-a", flag) for name, flag in (("n", 0), ("u", 1), ("s", 2), ("us", 3))},
    )
    table.register(entry, 0)

    assert table.unit_topics(unit=True) == ["u", "us"]
    assert table.unit_topics(unit_sub=True) == ["s", "us"]
    assert table.unit_topics(unit=False, unit_sub=True) == ["s"]


# -- what routes show ---------------------------------------------------------------------------------------


def test_encoded_route_is_kept_until_something_in_it_changes() -> None:
    """The same bytes object answers again; each kind of change makes new ones."""
    table = new_table()
    table.register(registration(), 0)

    def fresh() -> bool:
        before = seen[-1]
        seen.append(table.encoded_route("orders") or b"")
        assert table.encoded_route("orders") is seen[-1]
        return seen[-1] != before

    seen = [table.encoded_route("orders") or b""]
    assert table.encoded_route("nothing") is None
    assert not fresh()
    table.register(registration(2, SLAVE), 0)
    assert fresh()
    table.touch("DefaultCluster", SLAVE, 5)
    assert not fresh()
    table.register(registration(2, SLAVE, filter_servers=("f:1",)), 0)
    assert fresh()
    assert b'"10.0.0.2:10911":["f:1"]' in seen[-1]
    table.register(registration(2, SLAVE, filter_servers=None), 0)
    assert not fresh()
    table.wipe_write_permission("broker-a")
    assert fresh()
    table.register(registration(acting_master=True), 0)
    assert fresh()
    table.unregister("DefaultCluster", "broker-a", SLAVE)
    assert fresh()
    table.forget_route("orders")
    assert b'"orderTopicConf":"broker-a:4"' in (table.encoded_route("orders", "broker-a:4") or b"")


def test_zone_filter_keeps_the_own_zone_and_groups_without_master() -> None:
    """A group whose master is away is shown everywhere, so that its messages can still be read."""
    table = new_table()
    table.register(registration(zone="east"), 0)
    table.register(registration(0, SLAVE, broker_name="broker-b", zone="west", filter_servers=("f:1",)), 0)
    table.register(registration(2, THIRD, broker_name="broker-c", zone="west"), 0)
    route = table.route("orders")
    assert route is not None

    filtered = filter_by_zone(route, "East")

    assert [data.broker_name for data in filtered.broker_datas] == ["broker-a", "broker-c"]
    assert [data.broker_name for data in filtered.queue_datas] == ["broker-a", "broker-c"]
    assert filtered.filter_server_table == {}
    assert b"broker-b" not in (table.encoded_route("orders", zone="east") or b"")
    assert b"broker-b" in (table.encoded_route("orders") or b"")


def test_ten_thousand_topics_of_three_brokers_register_quickly() -> None:
    """The table takes three full registrations of 10,000 topics in well under a second."""
    table = new_table()
    names = tuple(f"topic-{number}" for number in range(10_000))
    entries = [registration(0, f"10.0.0.{n}:10911", names, broker_name=f"broker-{n}") for n in (1, 2, 3)]
    gc.collect()  # the garbage of other tests does not count
    start = time.process_time()

    for entry in entries:
        registered(table.register(entry, 0))

    spent = time.process_time() - start
    assert table.topic_count == 10_000
    assert spent < 0.5, f"{spent * 1000:.0f} ms of processor time; about 50 ms expected"
