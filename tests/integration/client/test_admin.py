"""Administrative requests: to whom they go, what they carry, and how their answers are read."""

from __future__ import annotations

import pytest

from brokerset_client import (
    Admin,
    GroupOffline,
    MessageQueue,
    NoQueue,
    RequestRefused,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicNotFound,
)
from brokerset_formats import fastjson
from brokerset_formats.properties import encode_properties
from brokerset_protocol import headers
from brokerset_protocol.bodies.queues import GroupList, KVTable, ResetOffsetBody
from brokerset_protocol.bodies.stats import ConsumeStats, OffsetWrapper, TopicOffset, TopicStats
from brokerset_protocol.codes import RequestCode, ResponseCode

from .fake_broker import FakeBroker, FakeCluster, answer, refuse

QUEUE = MessageQueue("t", "a", 0)


async def cluster_of_three(cluster: FakeCluster) -> tuple[FakeBroker, FakeBroker, FakeBroker]:
    """Masters a and b, and a slave of a; topic t has a queue at each master."""
    a = await cluster.add_broker("a", 0)
    slave = await cluster.add_broker("a", 1)
    b = await cluster.add_broker("b", 0)
    cluster.topics["t"] = {"a": 1, "b": 1}
    return a, slave, b


async def test_a_topic_is_created_at_every_master(cluster: FakeCluster) -> None:
    a, slave, b = await cluster_of_three(cluster)
    for broker in (a, b):
        broker.script(RequestCode.UPDATE_AND_CREATE_TOPIC, answer())
    async with Admin(namesrv=cluster.namesrv) as admin:
        await admin.create_topic(TopicConfig("new", 3, 2, attributes={"+message.type": "DELAY"}), cluster="c")

    for broker in (a, b):
        (command,) = broker.seen(RequestCode.UPDATE_AND_CREATE_TOPIC)
        header = headers.CreateTopic.from_ext(command.ext)
        assert (header.topic, header.read_queue_nums, header.write_queue_nums) == ("new", 3, 2)
        assert (header.perm, header.attributes) == (6, "+message.type=DELAY")
    assert not slave.requests


async def test_a_topic_is_deleted_everywhere(cluster: FakeCluster) -> None:
    brokers = await cluster_of_three(cluster)
    for broker in brokers:
        broker.script(RequestCode.DELETE_TOPIC_IN_BROKER, answer())
    async with Admin(namesrv=cluster.namesrv) as admin:
        await admin.delete_topic("t")
        with pytest.raises(TopicNotFound):
            await admin.topic_route("t")

    assert all(broker.seen(RequestCode.DELETE_TOPIC_IN_BROKER) for broker in brokers)


async def test_what_a_broker_refuses_is_raised_with_its_reason_and_address(cluster: FakeCluster) -> None:
    broker = await cluster.add_broker()
    broker.script(RequestCode.UPDATE_AND_CREATE_TOPIC, refuse(ResponseCode.INVALID_PARAMETER, "bad name"))
    async with Admin(namesrv=cluster.namesrv) as admin:
        with pytest.raises(RequestRefused, match="bad name") as caught:
            await admin.create_topic(TopicConfig("new"))

    assert (caught.value.code, caught.value.address) == (29, broker.address)


async def test_clusters_are_told_apart(cluster: FakeCluster) -> None:
    async with Admin(namesrv=cluster.namesrv) as admin:
        with pytest.raises(NoQueue, match="no master broker"):
            await admin.create_topic(TopicConfig("new"))
        a, _, b = await cluster_of_three(cluster)

        assert await admin.masters("c") == {"a": a.address, "b": b.address}
        with pytest.raises(RequestRefused, match="no cluster 'other', only c"):
            await admin.masters("other")
        assert await admin.topics() == ["t"]


async def test_the_route_of_a_new_topic_can_be_waited_for(cluster: FakeCluster) -> None:
    await cluster_of_three(cluster)
    async with Admin(namesrv=cluster.namesrv) as admin:
        data = await admin.wait_for_route("t", 2)
        with pytest.raises(TopicNotFound):
            await admin.wait_for_route("t", 3, timeout=0.1)

    assert len(data.queue_datas) == 2


async def test_a_brokers_settings_and_figures_are_texts(cluster: FakeCluster) -> None:
    broker = await cluster.add_broker()
    broker.script(RequestCode.GET_BROKER_RUNTIME_INFO, answer(KVTable({"putTps": "1 2 3"}).to_json()))
    broker.script(RequestCode.GET_BROKER_CONFIG, answer(b"brokerName=a\nfileReservedTime=72\n"))
    broker.script(RequestCode.UPDATE_BROKER_CONFIG, answer())
    async with Admin(namesrv=cluster.namesrv) as admin:
        assert await admin.broker_runtime(broker.address) == {"putTps": "1 2 3"}
        assert (await admin.broker_config(broker.address))["fileReservedTime"] == "72"
        await admin.update_broker_config(broker.address, {"fileReservedTime": "48"})

    assert broker.seen(RequestCode.UPDATE_BROKER_CONFIG)[0].body == b"fileReservedTime=48\n"


async def test_topic_status_joins_the_masters_answers(cluster: FakeCluster) -> None:
    a, _, b = await cluster_of_three(cluster)
    for name, broker in (("a", a), ("b", b)):
        table = {MessageQueue("t", name, 0): TopicOffset(0, 7, 99)}
        broker.script(RequestCode.GET_TOPIC_STATS_INFO, answer(TopicStats(table).to_json()))
        broker.script(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, answer(GroupList((name, "g")).to_json()))
    async with Admin(namesrv=cluster.namesrv) as admin:
        stats = await admin.topic_stats("t")
        groups = await admin.groups_of_topic("t")

    assert [(queue.broker_name, ends.max_offset) for queue, ends in stats.items()] == [("a", 7), ("b", 7)]
    assert groups == ["a", "b", "g"]


async def test_progress_tells_how_many_messages_wait(cluster: FakeCluster) -> None:
    a, _, b = await cluster_of_three(cluster)
    cluster.topics["%RETRY%g"] = {"a": 1, "b": 1}
    a.script(RequestCode.GET_CONSUME_STATS, answer(ConsumeStats({QUEUE: OffsetWrapper(9, 4)}).to_json()))
    b.script(RequestCode.GET_CONSUME_STATS, answer(ConsumeStats({}).to_json()))
    async with Admin(namesrv=cluster.namesrv) as admin:
        (queue,) = await admin.consume_progress("g")
        for broker in (a, b):
            broker.script(RequestCode.GET_CONSUME_STATS, answer(ConsumeStats({}).to_json()))
        with pytest.raises(GroupOffline):
            await admin.consume_progress("g")
        for broker in (a, b):
            broker.script(RequestCode.GET_CONSUME_STATS, answer(ConsumeStats({}).to_json()))
        with pytest.raises(TopicNotFound, match="RETRY"):
            await admin.consume_progress("nobody")

    assert (queue.queue, queue.lag) == (QUEUE, 5)


async def test_progress_of_a_group_without_a_retry_topic_is_asked_of_all_masters(
    cluster: FakeCluster,
) -> None:
    """As of a group that pops without heartbeats; what it has in flight is the pull offset less its own."""
    a, _, b = await cluster_of_three(cluster)
    a.script(RequestCode.GET_CONSUME_STATS, answer(ConsumeStats({}).to_json()))
    b.script(RequestCode.GET_CONSUME_STATS, answer(ConsumeStats({QUEUE: OffsetWrapper(9, 4, 6)}).to_json()))
    async with Admin(namesrv=cluster.namesrv) as admin:
        (queue,) = await admin.consume_progress("g")

    assert (queue.queue, queue.lag, queue.in_flight) == (QUEUE, 5, 2)


async def test_offsets_can_be_reset_by_time_and_by_queue(cluster: FakeCluster) -> None:
    a, _, b = await cluster_of_three(cluster)
    table = ResetOffsetBody({QUEUE: 3}).to_json()
    a.script(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, answer(table), answer(table))
    b.script(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, answer(ResetOffsetBody({}).to_json()))
    async with Admin(namesrv=cluster.namesrv) as admin:
        assert await admin.reset_offsets("g", "t", 5) == {QUEUE: 3}
        assert await admin.reset_queue_offset("g", QUEUE, 3) == {QUEUE: 3}

    by_time, by_queue = (
        headers.ResetOffset.from_ext(command.ext)
        for command in a.seen(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)
    )
    assert (by_time.timestamp, by_time.queue_id, by_time.is_force) == (5, -1, True)
    assert (by_queue.queue_id, by_queue.offset) == (0, 3)


async def test_groups_are_created_read_and_deleted(cluster: FakeCluster) -> None:
    broker = await cluster.add_broker()
    config = SubscriptionGroupConfig("g", retry_max_times=3)
    broker.script(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, answer())
    broker.script(
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, answer(fastjson.dumps(config.to_json())), answer(b"[]")
    )
    broker.script(
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        answer(b'{"subscriptionGroupTable":{"g":{}}}'),
        answer(b"{}"),
    )
    broker.script(RequestCode.DELETE_SUBSCRIPTIONGROUP, answer())
    async with Admin(namesrv=cluster.namesrv) as admin:
        await admin.create_group(config)
        read = await admin.group_config("g", broker.address)
        with pytest.raises(RequestRefused, match="unreadable"):
            await admin.group_config("g", broker.address)
        groups = await admin.groups()
        with pytest.raises(RequestRefused, match="no JSON object"):
            await admin.groups()
        await admin.delete_group("g")

    assert read.retry_max_times == 3
    assert groups == ["g"]
    assert b'"retryMaxTimes":3' in broker.seen(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)[0].body


async def test_a_query_by_key_drops_what_only_has_the_same_hash(cluster: FakeCluster) -> None:
    """The index knows hashes; the keys in the records decide."""

    broker = await cluster.add_broker()
    cluster.topics["t"] = {"a": 1}
    for keys in ("k other", "collision"):
        broker.put("t", 0, keys.encode(), encode_properties({"KEYS": keys, "UNIQ_KEY": f"ID-{keys[0]}"}))
    records = b"".join(broker.log["t", 0])
    broker.script(RequestCode.QUERY_MESSAGE, *[answer(records)] * 2, refuse(ResponseCode.QUERY_NOT_FOUND))
    async with Admin(namesrv=cluster.namesrv) as admin:
        by_key = await admin.query_by_key("t", "k")
        by_id = await admin.message_by_id("t", "ID-c")
        with pytest.raises(RequestRefused, match="check id and topic"):
            await admin.message_by_id("t", "missing")

    assert [message.body for message in by_key] == [b"k other"]
    assert by_id.body == b"collision"


async def test_a_brokers_id_is_looked_up_at_the_broker_that_it_names(cluster: FakeCluster) -> None:
    broker = await cluster.add_broker()
    cluster.topics["t"] = {"a": 1}
    broker.put("t", 0, b"x")
    broker.script(RequestCode.VIEW_MESSAGE_BY_ID, answer(broker.log["t", 0][0]))
    async with Admin(namesrv=cluster.namesrv) as admin:
        message = await admin.message_by_id("t", f"7F000001{broker.port:08X}0000000000000000")

    assert message.body == b"x"


async def test_the_name_servers_own_values(cluster: FakeCluster) -> None:
    async with Admin(namesrv=cluster.namesrv) as admin:
        await admin.kv_put("n", "k", "v")
        stored = await admin.kv_get("n", "k")
        await admin.kv_delete("n", "k")
        gone = await admin.kv_get("n", "k")

    assert (stored, gone) == ("v", None)
