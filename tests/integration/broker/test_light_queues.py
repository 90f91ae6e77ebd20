"""Light queues, lite topics and priorities through a real broker: sent, pulled, counted, kept and deleted."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from brokerset_formats.message_ids import decode_offset_id
from brokerset_protocol.codes import RequestCode
from brokerset_rig.local_servers import Setup
from brokerset_rig.transaction_client import COMMIT, ROLLBACK, Half, transaction_client
from brokerset_rig.waiting import until

LMQ: dict[str, Any] = {"enable_lmq": True, "enable_multi_dispatch": True}


async def test_a_message_is_in_each_light_queue_that_it_names(setup: Setup) -> None:
    """Its record is the same one, and says its number in each; their ends are those of queues."""
    async with setup.pair(**LMQ) as (_, client):
        await client.create_topic("t")
        await client.send("t", b"one", properties={"INNER_MULTI_DISPATCH": "%LMQ%a", "TAGS": "A"})
        await client.send("t", b"two")
        sent = await client.send("t", b"three", properties={"INNER_MULTI_DISPATCH": "%LMQ%b,%LMQ%a"})

        in_a, in_b = await client.pull("%LMQ%a", 0), await client.pull("%LMQ%b", 0)
        tagged = await client.pull("%LMQ%a", 0, expression="A")

        assert (sent.code, sent.ext["queueOffset"]) == (0, "2")
        assert (setup.bodies(in_a), setup.bodies(in_b)) == ([b"one", b"three"], [b"three"])
        assert setup.bodies(tagged) == [b"one"]
        record = setup.records(in_b)[0]
        assert (record.topic, record.queue_offset) == ("t", 2)
        assert setup.properties(record)["INNER_MULTI_QUEUE_OFFSET"] == "0,1"
        assert in_a.ext["maxOffset"] == "2"
        for code, expected in ((RequestCode.GET_MAX_OFFSET, "2"), (RequestCode.GET_MIN_OFFSET, "0")):
            answer = await client.call(code, topic="%LMQ%a", queueId=0)
            assert answer.ext["offset"] == expected


async def test_a_pull_of_a_light_queue_waits_for_its_messages_alone(setup: Setup) -> None:
    async with setup.pair(**LMQ) as (broker, client):
        await client.create_topic("t")
        waiting = asyncio.ensure_future(client.pull("%LMQ%a", 0, suspend_ms=20_000))
        await until(lambda: len(broker.parked_pulls) == 1)
        await client.send("t", b"other", properties={"INNER_MULTI_DISPATCH": "%LMQ%b"})
        assert not waiting.done()
        await client.send("t", b"mine", properties={"INNER_MULTI_DISPATCH": "%LMQ%a"})

        assert setup.bodies(await waiting) == [b"mine"]


async def test_light_queues_and_their_progress_survive_a_restart(setup: Setup) -> None:
    """Numbers go on, and a group that nobody made goes on where it was."""
    offset: dict[str, Any] = {"consumerGroup": "%LMQ%g", "topic": "%LMQ%a", "queueId": "0"}
    async with setup.pair(**LMQ) as (_, client):
        await client.create_topic("t")
        for n in range(3):
            await client.send("t", b"%d" % n, properties={"INNER_MULTI_DISPATCH": "%LMQ%a"})
        committed = await client.call(RequestCode.UPDATE_CONSUMER_OFFSET, **offset, commitOffset=2)
        assert committed.code == 0

    async with setup.pair(**LMQ) as (broker, client):
        await client.send("t", b"3", properties={"INNER_MULTI_DISPATCH": "%LMQ%a"})
        assert setup.bodies(await client.pull("%LMQ%a", 2)) == [b"2", b"3"]
        assert (await client.call(RequestCode.QUERY_CONSUMER_OFFSET, **offset)).ext["offset"] == "2"
        assert "%LMQ%a" not in broker.topics.items
        assert "%LMQ%g" not in broker.groups.items


async def test_a_lite_topic_is_read_by_the_name_of_its_parent(setup: Setup) -> None:
    """The field liteTopic of a pull, and of a search by time, as Java's proxies send it."""
    async with setup.pair(**LMQ) as (broker, client):
        await client.create_topic("parent", attributes="+message.type=LITE,+lite.topic.expiration=60")
        for child in ("x", "y", "x"):
            await client.send("parent", child.encode(), properties={"__LITE_TOPIC": child})
        waiting = asyncio.ensure_future(client.pull("parent", 2, liteTopic="x", suspend_ms=20_000))
        await until(lambda: len(broker.parked_pulls) == 1)
        await client.send("parent", b"third", properties={"__LITE_TOPIC": "x"})

        assert setup.bodies(await client.pull("parent", 0, liteTopic="x")) == [b"x", b"x", b"third"]
        assert setup.bodies(await client.pull("parent", 0, liteTopic="y")) == [b"y"]
        assert setup.bodies(await waiting) == [b"third"]
        search: dict[str, Any] = {
            "topic": "parent",
            "queueId": "0",
            "timestamp": str(2**41),
            "liteTopic": "x",
        }
        assert (await client.call(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, **search)).ext["offset"] == "3"
        assert (await client.send("plain", b"-", properties={"__LITE_TOPIC": "x"})).code == 13


async def test_lite_topics_go_with_their_parent_and_after_their_time(setup: Setup) -> None:
    """Expired ones are deleted with their files and offsets; others stay, and plain light queues, too."""
    async with setup.pair(**LMQ, min_lite_ttl=0) as (broker, client):
        await client.create_topic("parent", attributes="+message.type=LITE,+lite.topic.expiration=1")
        await client.create_topic("lasting", attributes="+message.type=LITE")
        for parent in ("parent", "lasting"):
            await client.send(parent, b"-", properties={"__LITE_TOPIC": "x"})
        await client.send("parent", b"-", properties={"INNER_MULTI_DISPATCH": "%LMQ%a"})
        queues = setup.folder / "consumequeue"
        assert await broker.light_queue_expiry.expire() == 0
        broker.light_queue_expiry._last["%LMQ%$parent$x"] = (1, 0)

        assert await broker.light_queue_expiry.expire() == 1
        assert sorted(path.name for path in queues.glob("%LMQ%*")) == ["%LMQ%$lasting$x", "%LMQ%a"]
        again = await client.send("parent", b"new", properties={"__LITE_TOPIC": "x"})
        assert again.code == 0
        assert setup.bodies(await client.pull("parent", 0, liteTopic="x")) == [b"new"]

        deleted = await client.call(RequestCode.DELETE_TOPIC_IN_BROKER, topic="lasting")
        assert deleted.code == 0
        assert not (queues / "%LMQ%$lasting$x").exists()
        assert "%LMQ%$lasting$x" not in broker.store.queues_table.light


async def test_administrators_see_lite_topics(setup: Setup) -> None:
    """200074 to 200076, with Java's refusals; subscriptions need POP, so there are none."""
    async with setup.pair(**LMQ) as (_, client):
        await client.create_topic("plain")
        await client.create_topic("p", attributes="+message.type=LITE,+lite.topic.expiration=60")
        for child in ("x", "y", "x"):
            await client.send("p", b"-", properties={"__LITE_TOPIC": child})

        broker = orjson.loads((await client.call(RequestCode.GET_BROKER_LITE_INFO)).body)
        parent = orjson.loads((await client.call(RequestCode.GET_PARENT_TOPIC_INFO, topic="p")).body)
        answer = await client.call(RequestCode.GET_LITE_TOPIC_INFO, parentTopic="p", liteTopic="x")
        lite = orjson.loads(answer.body)

        assert (broker["currentLmqNum"], broker["maxLmqNum"], broker["topicMeta"]) == (2, 20_000, {"p": 60})
        assert (parent["ttl"], parent["lmqNum"], parent["liteTopicCount"]) == (60, 2, 2)
        assert (lite["topicOffset"]["minOffset"], lite["topicOffset"]["maxOffset"]) == (0, 2)
        assert lite["topicOffset"]["lastUpdateTimestamp"] > 1_600_000_000_000
        for topic, code, remark in (("plain", 29, "type not match"), ("none", 17, "not exist")):
            refused = await client.call(RequestCode.GET_PARENT_TOPIC_INFO, topic=topic)
            assert (refused.code, remark in (refused.remark or "")) == (code, True)


async def test_there_are_as_many_light_queues_as_are_allowed(setup: Setup) -> None:
    async with setup.pair(**LMQ, max_lmq_consume_queue_num=2) as (_, client):
        await client.create_topic("t")
        assert (await client.send("t", properties={"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b"})).code == 0
        refused = await client.send("t", properties={"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%c"})
        assert (refused.code, refused.remark) == (
            2017,
            "[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]lmq consume queue num exceeded.",
        )
        assert (await client.send("t", properties={"INNER_MULTI_DISPATCH": "%LMQ%a"})).code == 0
        assert (await client.send("%LMQ%c")).code == 2017


async def test_a_delayed_message_begins_no_light_queue_beyond_the_limit(setup: Setup) -> None:
    """At its send there was room. It comes into its topic, and into those queues that are there."""
    async with setup.pair(**LMQ, message_delay_level="1s", max_lmq_consume_queue_num=3) as (broker, client):
        await client.create_topic("t")
        for names in ("%LMQ%a,%LMQ%b", "%LMQ%c,%LMQ%d", "%LMQ%a,%LMQ%e,%LMQ%f"):
            properties = {"INNER_MULTI_DISPATCH": names, "DELAY": "1"}
            assert (await client.send("t", names.encode(), properties=properties)).code == 0

        await until(lambda: broker.delay.delivered == 3)

        assert sorted(broker.store.queues_table.light) == ["%LMQ%a", "%LMQ%b"]
        assert len(setup.bodies(await client.pull("t", 0))) == 3
        pulled = await client.pull("%LMQ%a", 0)
        assert setup.bodies(pulled) == [b"%LMQ%a,%LMQ%b", b"%LMQ%a,%LMQ%e,%LMQ%f"]
        last = setup.properties(setup.records(pulled)[-1])
        assert (last["INNER_MULTI_DISPATCH"], last["INNER_MULTI_QUEUE_OFFSET"]) == ("%LMQ%a", "1")


@pytest.mark.parametrize("later", [{"DELAY": "1"}, {"TIMER_DELAY_MS": "1000"}], ids=["level", "timer"])
async def test_what_is_taken_for_later_has_room_for_its_numbers_in_light_queues(
    setup: Setup, later: dict[str, str]
) -> None:
    """Properties that are too long with them are refused at once, not when the message is due."""
    names = ",".join(f"%LMQ%{number}" for number in range(10))
    async with setup.pair(**LMQ, message_delay_level="1s") as (_, client):
        await client.create_topic("t")
        taken = []
        for size in range(31_800, 32_700, 50):
            properties = {"INNER_MULTI_DISPATCH": names, "K": "x" * size, **later}
            sent = await client.send("t", b"%d" % size, properties=properties)
            assert sent.code in (0, 13)
            if sent.code == 0:
                taken.append(b"%d" % size)
        assert taken

        delivered = [(await client.wait_for("%LMQ%9", number))[0].body for number in range(len(taken))]

        assert sorted(delivered) == taken


async def test_what_is_committed_has_room_for_its_numbers_in_light_queues(setup: Setup) -> None:
    """A half message that is taken can be committed."""
    names = ",".join(f"%LMQ%{number}" for number in range(10))
    async with setup.broker(**LMQ) as broker, transaction_client(broker.port) as client:
        await client.create_topic("t")
        taken = 0
        for size in range(31_800, 32_700, 50):
            properties = {"INNER_MULTI_DISPATCH": names, "K": "x" * size}
            reply = await client.half_reply("t", b"paid", f"K{size}", properties=properties)
            if reply.code == 0:
                _, offset = decode_offset_id(reply.ext["msgId"])
                half = Half(f"K{size}", int(reply.ext["queueOffset"]), offset, reply.ext["msgId"])
                assert (await client.end(half, COMMIT)).code == 0
                taken += 1

        assert taken
        assert broker.store.queue_max("%LMQ%9", 0) == taken


async def test_a_topic_that_is_named_like_a_light_queue_is_deleted_by_nobody(setup: Setup) -> None:
    """An administrator made it, with more queues than the light one; its messages go with their records."""
    async with setup.pair(**LMQ) as (broker, client):
        await client.create_topic("%LMQ%a")
        for queue_id in (3, 0):
            await client.send("%LMQ%a", b"%d" % queue_id, queue_id=queue_id)
        light = broker.store.queues_table.light["%LMQ%a"]
        assert light.queue_id == 0
        light.min_offset = light.next_offset

        assert await broker.light_queue_expiry.expire() == 0
        assert "%LMQ%a" in broker.topics.items
        assert setup.bodies(await client.pull("%LMQ%a", 0, queue_id=3)) == [b"3"]


async def test_a_delayed_message_is_in_its_light_queue_when_it_is_due(setup: Setup) -> None:
    """Not before: what waits is in the delay topic alone."""
    async with setup.pair(**LMQ, message_delay_level="1s") as (_, client):
        await client.create_topic("t")
        await client.send("t", b"later", properties={"INNER_MULTI_DISPATCH": "%LMQ%a", "DELAY": "1"})
        assert (await client.pull("%LMQ%a", 0)).code == 19

        pulled = await client.pull("%LMQ%a", 0, suspend_ms=20_000)

        assert setup.bodies(pulled) == [b"later"]
        assert setup.properties(setup.records(pulled)[0])["INNER_MULTI_QUEUE_OFFSET"] == "0"


async def test_a_message_of_a_transaction_is_in_its_lite_topic_with_its_commit(setup: Setup) -> None:
    """Java puts the half message there, before anybody knows what becomes of it."""
    async with setup.broker(**LMQ) as broker, transaction_client(broker.port) as client:
        await client.create_topic("t", attributes="+message.type=LITE")
        half = await client.send_half("t", b"paid", "K0", properties={"__LITE_TOPIC": "x"})
        undone = await client.send_half("t", b"no", "K1", properties={"__LITE_TOPIC": "x"})
        assert (await client.pull("t", 0, liteTopic="x")).code == 19

        assert (await client.end(half, COMMIT)).code == 0
        assert (await client.end(undone, ROLLBACK)).code == 0

        pulled = await client.pull("t", 0, liteTopic="x")
        assert setup.bodies(pulled) == [b"paid"]
        assert setup.properties(setup.records(pulled)[0])["INNER_MULTI_QUEUE_OFFSET"] == "0"
        assert pulled.ext["maxOffset"] == "1"


async def test_a_timer_message_is_in_its_light_queue_when_it_is_due(setup: Setup) -> None:
    async with setup.pair(**LMQ) as (_, client):
        await client.create_topic("t")
        sent = await client.send(
            "t", b"later", properties={"INNER_MULTI_DISPATCH": "%LMQ%a", "TIMER_DELAY_MS": "1500"}
        )
        assert sent.code == 0
        assert (await client.pull("%LMQ%a", 0)).code == 19

        assert setup.bodies(await client.pull("%LMQ%a", 0, suspend_ms=20_000)) == [b"later"]


async def test_a_priority_is_the_queue_of_a_message(setup: Setup) -> None:
    """The answer says so; a batch and a message of another type know no priorities."""
    async with setup.pair() as (_, client):
        await client.create_topic("t", attributes="+message.type=PRIORITY")
        found = []
        for priority in ("0", "2", "99", "x"):
            sent = await client.send("t", b"-", queue_id=1, properties={"_SYS_MSG_PRIORITY_": priority})
            found.append(sent.ext["queueId"])
        ordered = await client.send(
            "t", b"-", queue_id=1, properties={"_SYS_MSG_PRIORITY_": "3", "__SHARDINGKEY": "k"}
        )

        assert found == ["0", "2", "3", "1"]
        assert ordered.ext["queueId"] == "1"
        record = setup.records(await client.pull("t", 1, queue_id=1))[0]
        assert "_SYS_MSG_PRIORITY_" not in setup.properties(record)


@pytest.mark.parametrize("kind", ["NORMAL", "FIFO", "DELAY", "PRIORITY", "MIXED"])
async def test_a_broker_may_refuse_messages_of_other_types(setup: Setup, kind: str) -> None:
    """With refuseOtherMessageTypes, also those that would have gone the native way; MIXED takes them all."""
    messages: dict[str, dict[str, str]] = {
        "NORMAL": {},
        "FIFO": {"__SHARDINGKEY": "k"},
        "DELAY": {"DELAY": "1"},
        "PRIORITY": {"_SYS_MSG_PRIORITY_": "1"},
    }
    async with setup.pair(refuse_other_message_types=True, enable_mixed_message_type=True) as (_, client):
        await client.create_topic("t", attributes=f"+message.type={kind}")
        for name, properties in messages.items():
            for _ in range(2):
                code = (await client.send("t", b"-", properties=properties)).code
                assert code == (0 if kind in (name, "MIXED") else 13), name
