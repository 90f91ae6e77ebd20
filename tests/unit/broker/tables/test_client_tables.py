"""Tables of consumers and producers: who is a member, what it wants, who must be told."""

from __future__ import annotations

import pytest

from brokerset_broker.tables.consumers import Change, ConsumerTable
from brokerset_broker.tables.producers import ProducerTable
from brokerset_formats.hashing import java_hash
from brokerset_protocol.bodies.heartbeat import (
    ConsumeFromWhere,
    ConsumeType,
    MessageModel,
    SubscriptionData,
)
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_runtime.clock import ManualClock


class Channel:
    """A channel that remembers what it was told."""

    def __init__(self, port: int) -> None:
        self.peer = ("127.0.0.1", port)
        self.told: list[Command] = []

    @property
    def unsent_bytes(self) -> int:
        return 0

    def notify(self, command: Command) -> None:
        self.told.append(command)

    async def call(self, command: Command, timeout: float) -> Command:
        raise NotImplementedError


def register(
    table: ConsumerTable,
    channel: Channel,
    *subscriptions: SubscriptionData,
    group: str = "g",
    client_id: str | None = None,
    model: MessageModel = MessageModel.CLUSTERING,
    without_subscriptions: bool = False,
) -> Change:
    return table.register(
        group,
        channel,
        client_id or f"client-{channel.peer[1]}",
        language=0,
        version=513,
        consume_type=ConsumeType.CONSUME_PASSIVELY,
        message_model=model,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
        subscriptions=None if without_subscriptions else subscriptions,
    )


def test_a_join_and_a_leave_are_told_to_all_members() -> None:
    """Whoever is in the group after the change rebalances, the newcomer included."""
    table = ConsumerTable(ManualClock())
    one, two = Channel(1), Channel(2)
    data = SubscriptionData("t")

    assert register(table, one, data) == Change("g", True, (one,))
    assert register(table, two, data) == Change("g", True, (one, two))
    assert register(table, two, data) == Change("g", False)
    assert table.unregister("g", one) == Change("g", True, (two,))
    assert table.unregister("g", one) == Change("g", False)
    assert table.closed(two) == [Change("g", True, ended=True)]
    assert table.group("g") is None


def test_a_broadcasting_group_is_told_nothing() -> None:
    """Its members do not share queues, so there is nothing to rebalance."""
    table = ConsumerTable(ManualClock())

    assert register(table, Channel(1), model=MessageModel.BROADCASTING).notify == ()
    assert register(table, Channel(2), model=MessageModel.BROADCASTING) == Change("g", True)


def test_a_newer_subscription_replaces_an_older_one() -> None:
    """A late heartbeat with an old version changes nothing; topics that are left out go."""
    table = ConsumerTable(ManualClock())
    channel = Channel(1)
    old = SubscriptionData("t", "a", frozenset({"a"}), frozenset({java_hash("a")}), 5)
    new = SubscriptionData("t", "b", frozenset({"b"}), frozenset({java_hash("b")}), 6)

    register(table, channel, old, SubscriptionData("other"))
    assert not register(table, channel, new, SubscriptionData("other")).changed
    assert not register(table, channel, old, SubscriptionData("other")).changed

    found = table.subscription("g", "t")
    assert found is not None
    assert (found.version, found.codes) == (6, frozenset({java_hash("b")}))
    assert register(table, channel, new) == Change("g", True, (channel,))
    assert table.subscription("g", "other") is None
    assert table.groups_of_topic("t") == ["g"]


def test_codes_are_made_when_a_client_sends_none() -> None:
    """`*` wants everything; a bare expression is hashed here; SQL is not decided by codes."""
    table = ConsumerTable(ManualClock())
    register(
        table,
        Channel(1),
        SubscriptionData("all"),
        SubscriptionData("bare", "a || b"),
        SubscriptionData("sql", "a > 1", expression_type="SQL92"),
    )

    codes = {topic: table.subscription("g", topic) for topic in ("all", "bare", "sql")}

    assert {topic: found.codes for topic, found in codes.items() if found is not None} == {
        "all": None,
        "bare": frozenset({java_hash("a"), java_hash("b")}),
        "sql": None,
    }


def test_a_heartbeat_without_subscriptions_keeps_them() -> None:
    """Version 2 of the heartbeat leaves them out when nothing has changed."""
    table = ConsumerTable(ManualClock())
    register(table, Channel(1), SubscriptionData("t"))

    change = register(table, Channel(2), without_subscriptions=True)

    assert change.changed
    assert table.subscription_count("g") == 1


def test_silent_members_expire() -> None:
    """Without a heartbeat a member goes, though its connection lives; the others are told."""
    clock = ManualClock()
    table = ConsumerTable(clock)
    one, two = Channel(1), Channel(2)
    register(table, one, SubscriptionData("t"))
    register(table, two, SubscriptionData("t"))
    clock.advance(100_000)
    register(table, two, SubscriptionData("t"))
    clock.advance(30_000)

    assert table.expire(120) == [Change("g", True, (two,))]
    assert table.expire(120) == []


def test_one_client_id_counts_once() -> None:
    """A client that reconnected before its old channel was noticed is one member for others."""
    table = ConsumerTable(ManualClock())
    register(table, Channel(1), client_id="same")
    register(table, Channel(2), client_id="same")
    group = table.group("g")

    assert group is not None
    assert group.client_ids() == ["same"]
    found = table.find("g", "same")
    assert found is not None
    assert found.address == "127.0.0.1:1"


def test_limits_refuse_and_change_nothing() -> None:
    """Each limit has a refusal, after which the table is what it was."""
    table = ConsumerTable(ManualClock())
    table.groups_max, table.members_max, table.subscriptions_max = 1, 1, 1
    register(table, Channel(1))

    for channel, group, topics, code in (
        (Channel(2), "g", 1, ResponseCode.SYSTEM_BUSY),
        (Channel(2), "other", 1, ResponseCode.SYSTEM_BUSY),
        (Channel(2), "g", 2, ResponseCode.SYSTEM_ERROR),
    ):
        data = [SubscriptionData(f"t{number}") for number in range(topics)]
        with pytest.raises(Rejected) as refused:
            register(table, channel, *data, group=group)
        assert refused.value.code == code
    assert [entry.name for entry in table.groups()] == ["g"]
    assert table.closed(Channel(2)) == []


def test_an_unreadable_expression_registers_nobody() -> None:
    """A subscription of separators alone is refused before anything is noted."""
    table = ConsumerTable(ManualClock())

    with pytest.raises(Rejected) as refused:
        register(table, Channel(1), SubscriptionData("t", "||"))

    assert refused.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert table.group("g") is None


def test_producers_come_and_go() -> None:
    """A producer is found by group and by client id until it leaves every group."""
    table = ProducerTable(ManualClock())
    channel = Channel(1)

    assert table.register("a", channel, "id", 0, 1)
    assert not table.register("a", channel, "id", 0, 1)
    table.register("b", channel, "id", 0, 1)
    assert table.unregister("a", channel)
    assert not table.unregister("a", channel)
    assert table.clients("a") is None
    assert table.channel_of("id") is channel
    table.closed(channel)

    assert table.channel_of("id") is None
    assert dict(table.groups()) == {}


def test_a_client_with_two_channels_is_found_by_the_one_that_lives() -> None:
    """The younger one is used; when it closes, the older one is at its next heartbeat."""
    table = ProducerTable(ManualClock())
    old, young = Channel(1), Channel(2)
    table.register("g", old, "a", 0, 0)
    table.register("g", young, "a", 0, 0)
    assert table.channel_of("a") is young

    table.closed(young)
    table.register("g", old, "a", 0, 0)

    assert table.channel_of("a") is old


def test_a_channel_that_changes_its_client_id_leaves_nothing_behind() -> None:
    """Nobody can fill the table with ids; with two groups each id is known as long as its group is."""
    table = ProducerTable(ManualClock())
    channel = Channel(1)
    for number in range(3):
        table.register("g", channel, f"a{number}", 0, 0)
    table.register("h", channel, "b", 0, 0)

    found = [table.channel_of(each) for each in ("a0", "a1", "a2", "b")]
    table.unregister("g", channel)

    assert found == [None, None, channel, channel]
    assert (table.channel_of("a2"), table.channel_of("b")) == (None, channel)
    table.closed(channel)
    assert table.channel_of("b") is None


def test_a_producer_is_picked_in_turn() -> None:
    """Probes about transactions are spread over the group."""
    table = ProducerTable(ManualClock())
    channels = [Channel(number) for number in range(3)]
    for channel in channels:
        table.register("a", channel, str(channel.peer[1]), 0, 1)

    picked = [table.pick("a") for _ in range(6)]

    assert sorted(map(channels.index, picked)) == [0, 0, 1, 1, 2, 2]  # type: ignore[arg-type]  # none is None
    assert table.pick("unknown") is None


def test_silent_producers_expire_and_limits_hold() -> None:
    """Producers are forgotten without heartbeats; more groups or clients than allowed are refused."""
    clock = ManualClock()
    table = ProducerTable(clock)
    table.groups_max, table.clients_max = 1, 1
    table.register("a", Channel(1), "one", 0, 1)

    for group, port in (("a", 2), ("b", 1)):
        with pytest.raises(Rejected) as refused:
            table.register(group, Channel(port), "two", 0, 1)
        assert refused.value.code == ResponseCode.SYSTEM_BUSY
    clock.advance(121_000)

    assert [client.client_id for client in table.expire(120)] == ["one"]
    assert table.clients("a") is None
