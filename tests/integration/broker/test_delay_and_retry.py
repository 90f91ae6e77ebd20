"""Delayed messages, messages that a consumer sends back, and what becomes of them after a restart."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import orjson
import pytest
import uvloop

from brokerset_broker.tables.config_files import ConfigDamaged
from brokerset_formats.message_ids import decode_offset_id
from brokerset_rig.local_servers import Setup

LEVELS = "1s 2s 3s 1s 1h"


async def test_a_delayed_message_comes_after_its_delay_and_looks_as_javas_does(setup: Setup) -> None:
    """Golden 23: the delivered record still has DELAY, REAL_TOPIC and REAL_QID."""

    async with setup.pair() as (_, client):
        await client.create_topic("t")
        real, started = time.monotonic(), asyncio.get_running_loop().time()
        sent = await client.send(
            "t",
            b"later",
            queue_id=3,
            properties={"DELAY": "1", "KEYS": "k", "TAGS": "A", "UNIQ_KEY": "U"},
        )
        assert (sent.code, sent.ext["queueId"]) == (0, "3")
        assert (await client.pull("t", 0, queue_id=3)).code == 19

        record = (await client.wait_for("t", 0, queue_id=3, expression="A"))[0]

        assert time.monotonic() - real >= 0.95
        assert asyncio.get_running_loop().time() - started < 1.5
        assert (record.body, record.queue_id, record.queue_offset, record.reconsume_times) == (
            b"later",
            3,
            0,
            0,
        )
        assert record.born_timestamp == 1_700_000_000_000
        assert setup.properties(record) == {
            "CLUSTER": "DefaultCluster", "DELAY": "1", "KEYS": "k", "MSG_REGION": "DefaultRegion",
            "REAL_QID": "3", "REAL_TOPIC": "t", "TAGS": "A", "TRACE_ON": "true", "UNIQ_KEY": "U",
        }  # fmt: skip


async def test_many_delayed_messages_come_once_each_and_in_order(setup: Setup) -> None:
    async with setup.pair() as (broker, client):
        await client.create_topic("t")
        for n in range(200):
            await client.send("t", b"%d" % n, properties={"DELAY": "1"})
        found: list[bytes] = []
        while len(found) < 200:
            found += [record.body for record in await client.wait_for("t", len(found))]

        assert found == [b"%d" % n for n in range(200)]
        assert broker.delay.progress()[1] == (200, 200)


async def test_levels_do_not_wait_for_each_other(setup: Setup) -> None:
    async with setup.pair(message_delay_level=LEVELS) as (_, client):
        await client.create_topic("t")
        await client.send("t", b"in an hour", properties={"DELAY": "5"})
        await client.send("t", b"in two", properties={"DELAY": "2"})
        await client.send("t", b"in one", properties={"DELAY": "1"})

        first = await client.wait_for("t", 0)
        second = await client.wait_for("t", 1)

        assert [first[0].body, second[0].body] == [b"in one", b"in two"]


async def test_a_delay_goes_on_over_a_restart(setup: Setup) -> None:
    """What was delivered before is not delivered again, what was due meanwhile comes at once."""

    async with setup.pair() as (_, client):
        await client.create_topic("t")
        await client.send("t", b"before", properties={"DELAY": "1"})
        await client.wait_for("t", 0)
        await client.send("t", b"during", properties={"DELAY": "1"})
    saved = orjson.loads((setup.folder / "config" / "delayOffset.json").read_bytes())
    assert saved["offsetTable"] == {"1": 1}
    await asyncio.sleep(1.0)

    async with setup.pair() as (broker, client):
        started = asyncio.get_running_loop().time()
        assert (await client.wait_for("t", 1))[0].body == b"during"
        assert asyncio.get_running_loop().time() - started < 0.8
        assert broker.delay.delivered == 1
        assert (await client.pull("t", 2)).code == 19


def test_a_damaged_progress_file_is_named_and_stops_the_start(setup: Setup) -> None:
    path: Path = setup.folder / "config" / "delayOffset.json"

    async def main() -> None:
        async with setup.broker():
            pass

    path.parent.mkdir(parents=True)
    path.write_text("{half")
    with pytest.raises(ConfigDamaged, match=r"delayOffset\.json"):
        uvloop.run(main())
    path.unlink()
    uvloop.run(main())


async def _send_back(client: Any, record: Any, group: str = "g", level: int = 0, **ext: Any) -> Any:
    return await client.call(
        36,
        offset=record.offset,
        group=group,
        delayLevel=level,
        originTopic=record.topic,
        unitMode="false",
        **ext,
    )


async def test_a_message_sent_back_comes_again_later(setup: Setup) -> None:
    """Golden 20: which properties a retried message has."""

    async with setup.pair(message_delay_level=LEVELS) as (_, client):
        await client.create_topic("t")
        sent = await client.send("t", b"x", properties={"UNIQ_KEY": "U", "TAGS": "A", "WAIT": "true"})
        first = setup.records(await client.pull("t", 0, group="g"))[0]

        assert (await _send_back(client, first, level=1)).code == 0
        second = (await client.wait_for("%RETRY%g", 0, group="g"))[0]
        assert (second.body, second.topic, second.reconsume_times) == (b"x", "%RETRY%g", 1)
        assert setup.properties(second) == {
            "CLUSTER": "DefaultCluster", "DELAY": "1", "MSG_REGION": "DefaultRegion",
            "ORIGIN_MESSAGE_ID": sent.ext["msgId"], "REAL_QID": "0", "REAL_TOPIC": "%RETRY%g",
            "RETRY_TOPIC": "t", "TAGS": "A", "TRACE_ON": "true", "UNIQ_KEY": "U", "WAIT": "false",
        }  # fmt: skip

        assert (await _send_back(client, second)).code == 0
        third = (await client.wait_for("%RETRY%g", 1, group="g"))[0]
        assert third.reconsume_times == 2
        assert setup.properties(third)["DELAY"] == "4"
        assert setup.properties(third)["RETRY_TOPIC"] == "t"
        assert setup.properties(third)["ORIGIN_MESSAGE_ID"] == sent.ext["msgId"]
        assert decode_offset_id(sent.ext["msgId"])[1] == first.offset


@pytest.mark.parametrize("ext", [{"maxReconsumeTimes": 0}, {"level": -1}])
async def test_a_message_tried_too_often_becomes_a_dead_letter_at_once(
    setup: Setup, ext: dict[str, Any]
) -> None:
    async with setup.pair() as (broker, client):
        await client.create_topic("t")
        await client.send("t", b"x", properties={"UNIQ_KEY": "U"})
        record = setup.records(await client.pull("t", 0, group="g"))[0]

        assert (await _send_back(client, record, **ext)).code == 0

        dead = setup.records(await client.pull("%DLQ%g", 0))[0]
        assert (dead.topic, dead.body, dead.reconsume_times) == ("%DLQ%g", b"x", 1)
        assert setup.properties(dead)["RETRY_TOPIC"] == "t"
        topic = broker.topics.get("%DLQ%g")
        assert topic is not None
        assert (topic.perm, topic.read_queue_nums, topic.write_queue_nums) == (6, 1, 1)
        assert broker.traffic.dead_lettered == {("g", "t"): 1}


async def test_a_delayed_message_that_cannot_be_stored_any_more_lets_later_ones_pass(setup: Setup) -> None:
    """A smaller maxMessageSize after a restart must not stop a level permanently."""

    async with setup.pair(message_delay_level="1s") as (_, client):
        await client.create_topic("t")
        await client.send("t", b"x" * 3000, properties={"DELAY": "1"})
        await client.send("t", b"small", properties={"DELAY": "1"})
    async with setup.pair(message_delay_level="1s", max_message_size=2048) as (_, client):
        assert setup.bodies(await client.pull("t", 0, suspend_ms=5_000)) == [b"small"]


async def test_a_send_back_of_something_inside_a_message_is_refused(setup: Setup) -> None:
    """A record that somebody put into a body is no message."""

    async with setup.pair() as (_, client):
        await client.create_topic("t")
        await client.send("t", b"inner")
        inner = (await client.pull("t", 0)).body
        await client.send("t", inner)
        outer = setup.records(await client.pull("t", 1))[0]
        offset = outer.offset + (await client.pull("t", 1)).body.index(inner)

        reply = await client.call(36, offset=offset, group="g", delayLevel=0)

        assert (reply.code, reply.remark) == (1, f"look message by offset failed, {offset}")


async def test_a_wrong_send_back_is_refused(setup: Setup) -> None:
    async with setup.pair(auto_create_subscription_group=False) as (_, client):
        missing = await client.call(36, offset=0, group="unknown", delayLevel=0)
        assert missing.code == 26
        nothing = await client.call(36, offset=12345, group="TOOLS_CONSUMER", delayLevel=0)
        assert (nothing.code, nothing.remark) == (1, "look message by offset failed, 12345")
        incomplete = await client.call(36, group="TOOLS_CONSUMER")
        assert incomplete.code == 1
        assert "offset" in (incomplete.remark or "")
