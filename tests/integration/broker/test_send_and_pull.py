"""Messages through a real broker: sent, pulled, waited for, filtered, and kept over a restart."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from brokerset_formats.batches import BatchItem, encode_batch
from brokerset_formats.message_ids import decode_offset_id
from brokerset_formats.properties import encode_properties
from brokerset_rig.local_servers import Setup


async def test_a_message_comes_back_as_it_was_sent(setup: Setup) -> None:
    async with setup.pair() as (broker, client):
        await client.create_topic("t")
        sent = await client.send("t", b"hello", properties={"TAGS": "A", "UNIQ_KEY": "K1"}, h=5, f=1)
        pulled = await client.pull("t", 0)

        assert (sent.code, pulled.code, pulled.remark) == (0, 0, "FOUND")
        record = setup.records(pulled)[0]
        assert (record.body, record.flag, record.sys_flag, record.topic) == (b"hello", 5, 1, "t")
        assert (record.born_timestamp, record.born_host.text) == (
            1_700_000_000_000,
            f"127.0.0.1:{client.connection.local[1]}",
        )
        assert record.store_host.port == broker.port
        assert setup.properties(record) == {
            "TAGS": "A", "UNIQ_KEY": "K1", "CLUSTER": "DefaultCluster", "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
        }  # fmt: skip
        host, offset = decode_offset_id(sent.ext["msgId"])
        assert (host.port, offset) == (broker.port, record.offset)
        assert pulled.ext == {
            "suggestWhichBrokerId": "0", "nextBeginOffset": "1", "minOffset": "0", "maxOffset": "1",
            "topicSysFlag": "0", "groupSysFlag": "0",
        }  # fmt: skip


async def test_binary_headers_are_answered_in_binary(setup: Setup) -> None:
    async with setup.pair() as (_, client):
        await client.create_topic("t")
        sent = await client.send("t", properties={"UNIQ_KEY": "K1"}, binary=True)
        pulled = await client.pull("t", 0, binary=True)

        assert sent.binary
        assert pulled.binary
        assert sent.ext["transactionId"] == "K1"
        assert setup.bodies(pulled) == [b"body"]


async def test_queue_offsets_are_dense_and_limits_hold(setup: Setup) -> None:
    async with setup.pair() as (_, client):
        await client.create_topic("t")
        offsets = [int((await client.send("t", b"%d" % n)).ext["queueOffset"]) for n in range(50)]
        assert offsets == list(range(50))

        assert setup.bodies(await client.pull("t", 0)) == [b"%d" % n for n in range(32)]
        assert len(setup.bodies(await client.pull("t", 45))) == 5
        assert len(setup.bodies(await client.pull("t", 0, maxMsgNums=3))) == 3
        assert len(setup.bodies(await client.pull("t", 0, maxMsgNums=-1))) == 1
        assert len(setup.bodies(await client.pull("t", 0, maxMsgBytes=1))) == 1


@pytest.mark.parametrize(
    ("queue_id", "queue_offset", "code", "remark", "following"),
    [
        (0, 2, 19, "OFFSET_OVERFLOW_ONE", "2"),
        (0, 9, 21, "OFFSET_OVERFLOW_BADLY", "2"),
        (0, -1, 21, "OFFSET_TOO_SMALL", "0"),
        (1, 0, 19, "NO_MATCHED_LOGIC_QUEUE", "0"),
        (1, 5, 21, "NO_MATCHED_LOGIC_QUEUE", "0"),
    ],
)
async def test_what_is_not_found_says_where_to_go_on(
    setup: Setup, queue_id: int, queue_offset: int, code: int, remark: str, following: str
) -> None:
    """The four mandatory fields are there whatever the code is."""

    async with setup.pair() as (_, client):
        await client.create_topic("t")
        for _ in range(2):
            await client.send("t")
        reply = await client.pull("t", queue_offset, queue_id=queue_id)

        assert (reply.code, reply.remark, reply.ext["nextBeginOffset"]) == (code, remark, following)
        assert {"suggestWhichBrokerId", "minOffset", "maxOffset"} <= reply.ext.keys()


async def test_a_batch_is_consumed_as_single_messages(setup: Setup) -> None:
    async with setup.pair() as (_, client):
        await client.create_topic("t")
        await client.send("t", b"before")
        sent = await client.send_batch("t", [b"b%d" % n for n in range(5)])
        after = await client.send("t", b"after")

        assert (sent.ext["queueOffset"], after.ext["queueOffset"]) == ("1", "6")
        records = setup.records(await client.pull("t", 0))
        assert [r.body for r in records] == [b"before", b"b0", b"b1", b"b2", b"b3", b"b4", b"after"]
        ids = [decode_offset_id(text)[1] for text in sent.ext["msgId"].split(",")]
        assert ids == [record.offset for record in records[1:6]]


async def test_a_pull_waits_for_the_next_message(setup: Setup) -> None:
    """Sends, heartbeats and other pulls of the same connection go on meanwhile."""

    async with setup.pair() as (broker, client):
        await client.create_topic("t")
        waiting = asyncio.create_task(client.pull("t", 0, suspend_ms=15_000))
        await setup.until(lambda: len(broker.parked_pulls) > 0)
        assert (await client.heartbeat("other", "t")).code == 0
        assert not waiting.done()

        await client.send("t", b"now")

        assert setup.bodies(await waiting) == [b"now"]
        assert len(broker.parked_pulls) == 0


async def test_a_pull_that_waits_in_vain_is_told_so(setup: Setup) -> None:
    async with setup.pair() as (broker, client):
        await client.create_topic("t")
        reply = await client.pull("t", 0, suspend_ms=200)

        assert reply.code == 19
        assert len(broker.parked_pulls) == 0


async def test_a_waiting_pull_with_tags_sleeps_through_other_tags(setup: Setup) -> None:
    async with setup.pair() as (broker, client):
        await client.create_topic("t")
        waiting = asyncio.create_task(client.pull("t", 0, expression="A || B", suspend_ms=15_000))
        await setup.until(lambda: len(broker.parked_pulls) > 0)
        await client.send("t", b"no", properties={"TAGS": "C"})
        await client.call(28)
        assert not waiting.done()

        await client.send("t", b"yes", properties={"TAGS": "B"})

        assert setup.bodies(await waiting) == [b"yes"]


async def test_a_lost_consumer_leaves_no_waiting_pull_behind(setup: Setup) -> None:
    async with setup.pair() as (broker, client):
        await client.create_topic("t")
        async with setup.client(broker) as other:
            lost = asyncio.create_task(other.pull("t", 0, suspend_ms=15_000))
            await setup.until(lambda: len(broker.parked_pulls) > 0)
            other.connection.abort()
            with pytest.raises(ConnectionError):
                await lost
        await setup.until(lambda: broker.connection_count() <= 1)

        assert len(broker.parked_pulls) == 0


async def test_tags_filter_and_the_offset_moves_on(setup: Setup) -> None:
    async with setup.pair() as (_, client):
        await client.create_topic("t")
        for n in range(10):
            await client.send("t", b"%d" % n, properties={"TAGS": "even" if n % 2 == 0 else "odd"})

        even = await client.pull("t", 0, expression="even")
        none = await client.pull("t", 0, expression="other")

        assert setup.bodies(even) == [b"0", b"2", b"4", b"6", b"8"]
        assert even.ext["nextBeginOffset"] == "10"
        assert (none.code, none.remark, none.ext["nextBeginOffset"]) == (20, "NO_MATCHED_MESSAGE", "10")


async def test_a_push_consumer_is_served_by_what_its_heartbeat_says(setup: Setup) -> None:
    async with setup.pair() as (_, client):
        await client.create_topic("t")
        await client.create_topic("other")
        await client.send("t", b"a", properties={"TAGS": "A"})
        await client.send("t", b"b", properties={"TAGS": "B"})

        unknown = await client.pull("t", 0, expression=None, group="g")
        assert unknown.code == 24
        assert "the consumer's group info not exist" in (unknown.remark or "")
        await client.heartbeat("g", "t", "B", version=10)
        assert setup.bodies(await client.pull("t", 0, expression=None, group="g", subVersion=10)) == [b"b"]
        newer = await client.pull("t", 0, expression=None, group="g", subVersion=11)
        assert (newer.code, newer.remark) == (25, "the consumer's subscription not latest")
        other = await client.pull("other", 0, expression=None, group="g")
        assert other.code == 24
        assert "the consumer's subscription not exist" in (other.remark or "")
        await client.heartbeat("g", "t", "A", version=11)
        assert setup.bodies(await client.pull("t", 0, expression=None, group="g", subVersion=11)) == [b"a"]


async def test_a_pull_can_commit_the_offset(setup: Setup) -> None:
    async with setup.pair() as (_, client):
        await client.create_topic("t")
        await client.send("t")
        await client.pull("t", 0, sysFlag=5, commitOffset=1)
        queried = await client.call(14, consumerGroup="cg", topic="t", queueId=0)

        assert queried.ext["offset"] == "1"


async def test_a_reset_offset_is_told_to_the_next_pull_and_to_a_waiting_one(setup: Setup) -> None:
    async with setup.pair() as (broker, client):
        await client.create_topic("t")
        for _ in range(5):
            await client.send("t")
        broker.offsets.reset("cg", "t", 0, 2)
        moved = await client.pull("t", 0)
        assert (moved.code, moved.remark, moved.ext["nextBeginOffset"]) == (21, "OFFSET_RESET", "2")
        assert (await client.pull("t", 0)).code == 0

        waiting = asyncio.create_task(client.pull("t", 5, suspend_ms=15_000))
        await setup.until(lambda: len(broker.parked_pulls) > 0)
        broker.offsets.reset("cg", "t", 0, 1)
        broker.parked_pulls.wake_queue("t", 0)
        moved = await waiting
        assert (moved.code, moved.ext["nextBeginOffset"]) == (21, "1")


@pytest.mark.parametrize(
    ("change", "code", "remark"),
    [
        ({"topic": "none"}, 17, "topic[none] not exist, apply first please!"),
        ({"queue_id": 4}, 29, "queueId[4] is illegal, topic:[t] topicConfig.readQueueNums:[4]"),
        ({"queue_id": -1}, 29, "queueId[-1] is illegal"),
        ({"group": "a b"}, 26, "subscription group [a b] does not exist"),
        ({"expressionType": "SQL92"}, 1, "The broker does not support consumer to filter message by SQL92"),
        ({"expression": "||"}, 23, "parse the consumer's subscription failed"),
        ({"queueOffset": "x"}, 1, "queueOffset"),
        ({"maxMsgNums": ""}, 1, "maxMsgNums"),
    ],
)
async def test_a_wrong_pull_is_refused(setup: Setup, change: dict[str, Any], code: int, remark: str) -> None:
    async with setup.pair() as (_, client):
        await client.create_topic("t")
        pull: dict[str, Any] = {"topic": "t", "queue_offset": 0}
        reply = await client.pull(**(pull | change))

        assert reply.code == code
        assert remark in (reply.remark or "")


async def test_permissions_are_kept(setup: Setup) -> None:
    async with setup.pair() as (broker, client):
        await client.create_topic("blind", perm=2)
        reply = await client.pull("blind", 0)
        assert (reply.code, reply.remark) == (16, "the topic[blind] pulling message is forbidden")

        broker.live.update({"brokerPermission": "2"})
        reply = await client.pull("TBW102", 0)
        assert (reply.code, reply.remark) == (16, "the broker[127.0.0.1] pulling message is forbidden")


async def test_messages_offsets_and_topics_survive_a_restart(setup: Setup) -> None:
    async with setup.pair() as (_, client):
        await client.create_topic("t", queues=2)
        for n in range(100):
            await client.send("t", b"%d" % n, queue_id=n % 2, properties={"KEYS": f"k{n}"})
        await client.pull("t", 0)
        await client.call(15, consumerGroup="cg", topic="t", queueId=1, commitOffset=17)

    async with setup.pair() as (_, client):
        assert (await client.send("t", b"more")).ext["queueOffset"] == "50"
        assert (await client.send("t", queue_id=2)).code == 29
        assert setup.bodies(await client.pull("t", 48)) == [b"96", b"98", b"more"]
        queried = await client.call(14, consumerGroup="cg", topic="t", queueId=1)
        assert queried.ext["offset"] == "17"
        found = await client.call(
            12, topic="t", key="k7", maxNum=10, beginTimestamp=0, endTimestamp=99999999999999
        )
        assert setup.bodies(found) == [b"7"]


async def test_messages_are_found_by_key_unique_key_and_address(setup: Setup) -> None:
    async with setup.pair() as (_, client):
        await client.create_topic("t")
        sent = await client.send("t", b"x", properties={"KEYS": "order-1 customer-2", "UNIQ_KEY": "U1"})
        span: dict[str, Any] = {"topic": "t", "maxNum": 10, "beginTimestamp": 0, "endTimestamp": 10**14}
        for key in ("order-1", "customer-2", "U1"):
            found = await client.call(12, key=key, **span, _UNIQUE_KEY_QUERY=str(key == "U1").lower())
            assert setup.bodies(found) == [b"x"]
            assert found.ext["indexLastUpdatePhyoffset"] == "0"
        missing = await client.call(12, key="none", **span)
        assert (missing.code, missing.remark) == (
            22,
            "can not find message, maybe time range not correct",
        )
        assert "indexLastUpdateTimestamp" in missing.ext

        _, offset = decode_offset_id(sent.ext["msgId"])
        assert setup.bodies(await client.call(33, offset=offset)) == [b"x"]
        beyond = await client.call(33, offset=10**9)
        assert (beyond.code, beyond.remark) == (1, "can not find message by the offset, 1000000000")


async def test_a_synchronous_broker_answers_what_is_on_the_disk(setup: Setup) -> None:
    """Consumers do not see a message before that either; one flush answers many."""

    async with setup.pair(flush_disk_type="SYNC_FLUSH") as (broker, client):
        await client.create_topic("t")

        async def send(n: int) -> None:
            reply = await client.send("t", b"%d" % n, properties={"WAIT": "true"})
            assert reply.code == 0
            assert decode_offset_id(reply.ext["msgId"])[1] < broker.store.flushed_offset

        await asyncio.gather(*(send(n) for n in range(100)))
        assert len(setup.bodies(await client.pull("t", 68))) == 32
        waiting = asyncio.create_task(client.wait_for("t", 100))
        await send(100)
        assert (await waiting)[0].body == b"100"


async def test_bad_input_harms_nobody_else(setup: Setup) -> None:
    async with setup.pair() as (broker, client):
        await client.create_topic("t")
        assert (await client.send("a b")).code == 29
        assert (await client.send("t", bytes(4 * 1024 * 1024 + 1))).code == 13
        unknown = await client.call(9999)
        assert (unknown.code, unknown.remark) == (3, " request type 9999 not supported")
        assert (await client.call(310, b"x", b="t")).code == 1
        reply = await client.call(324)
        assert (reply.code, reply.remark) == (1, "the header field a of SendMessageV2 is missing; send text")

        reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
        writer.write(b"\x00\x00\x10\x00\x00\x00\x01\x00half a frame")
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert await reader.read() == b""
        writer.close()

        assert (await client.send("t")).code == 0


async def test_a_stopping_broker_answers_what_waits(setup: Setup) -> None:
    async with setup.pair() as (broker, client):
        await client.create_topic("t")
        waiting = asyncio.create_task(client.pull("t", 0, suspend_ms=15_000))
        await setup.until(lambda: len(broker.parked_pulls) > 0)
        await broker.close()

        assert (await waiting).code == 19
        await client.connection.wait_closed()


async def test_settings_that_cannot_be_written_do_not_keep_the_store_from_closing(setup: Setup) -> None:
    """A full disk at the end costs the newest offsets at most, not the orderly end of the store."""

    async with setup.pair() as (broker, client):
        await client.create_topic("t")
        config = setup.folder / "config"
        config.rename(setup.folder / "elsewhere")
        config.write_bytes(b"no folder")
        broker.offsets.commit("g", "t", 0, 1)

        await broker.close()

        assert not (setup.folder / "abort").exists()
        assert broker.store.refusal == "the store is closed"


@pytest.mark.parametrize("name", ["TIMER_DELAY_SEC", "DELAY", "TRAN_MSG"])
async def test_a_batch_with_messages_that_are_not_plain_is_refused(setup: Setup, name: str) -> None:
    """A message that must wait is not delivered at once because it came in a batch; bodies do not matter."""

    async with setup.pair() as (broker, client):
        await client.create_topic("t")
        fields: dict[str, Any] = {
            "a": "pg", "b": "t", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "i": "", "j": 0,
            "k": "false", "m": "true",
        }  # fmt: skip
        value = "true" if name == "TRAN_MSG" else "10"
        items = [BatchItem(0, b"x", b""), BatchItem(0, b"y", encode_properties({name: value}))]

        reply = await client.call(320, encode_batch(items), **fields)

        assert reply.code == 13
        assert name in (reply.remark or "")
        assert broker.store.queue_max("t", 0) == 0
        assert (await client.send_batch("t", [name.encode() + b"\x0110\x02"])).code == 0


async def test_a_property_that_ends_like_wait_does_not_skip_the_disk(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only WAIT itself lets a synchronous broker answer before the message is on the disk."""

    waited: list[int] = []

    async with setup.pair(flush_disk_type="SYNC_FLUSH") as (broker, client):
        await client.create_topic("t")
        when_durable = broker.admission.when_durable
        assert when_durable is not None

        def note(end: int, callback: Any) -> None:
            waited.append(end)
            when_durable(end, callback)

        broker.admission.when_durable = note
        assert (await client.send("t", b"1", properties={"AWAIT": "false"})).code == 0
        assert len(waited) == 1
        assert (await client.send("t", b"2", properties={"WAIT": "false"})).code == 0
        assert len(waited) == 1


async def test_times_of_sends_are_sampled(setup: Setup) -> None:
    """Some of the sends are timed, the first among them."""

    async with setup.pair() as (broker, client):
        await client.create_topic("t")
        await client.send("t", b"1")

        table = broker.stats.runtime_table()
        assert sum(int(part.rpartition(":")[2]) for part in table["putMessageDistributeTime"].split()) == 1
