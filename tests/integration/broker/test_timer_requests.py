"""What clients are answered around timer messages: what cannot wait, recalls, and what Java's slaves ask."""

from __future__ import annotations

import time
from typing import Any

import orjson
import pytest

from brokerset_broker.requests import send
from brokerset_broker.requests.plain_timers import plain_timer
from brokerset_formats.batches import BatchItem, encode_batch
from brokerset_formats.names import TIMER_TOPIC
from brokerset_formats.properties import decode_properties, encode_properties
from brokerset_formats.recall_handles import RecallHandle, decode_recall_handle
from brokerset_formats.records import decode_record
from brokerset_formats.timer_files import decode_timer_checkpoint
from brokerset_protocol.commands import Command
from brokerset_rig.local_servers import Client, Setup
from brokerset_rig.moved_clock import MovedClock

TOO_FAR = (
    "timer message illegal, the delay time should not be bigger than the max delay 259200000ms; "
    "or if set del msg, the delay time should be bigger than the current time"
)


@pytest.mark.parametrize(
    ("settings", "properties", "answer"),
    [
        ({"timer_wheel_enable": False}, {"TIMER_DELAY_SEC": "1"},
         (1, "accurate timer message is not enabled, timerWheelEnable is false")),
        ({}, {"TIMER_DELAY_SEC": "259201"}, (13, TOO_FAR)),
        ({}, {"TIMER_DELAY_MS": "soon"}, (13, TOO_FAR)),
        ({}, {"TIMER_DELIVER_MS": "99999999999999999999"}, (13, TOO_FAR)),
        ({}, {"TIMER_DELIVER_MS": "1", "TIMER_DEL_UNIQKEY": "U"}, (13, TOO_FAR)),
    ],
)  # fmt: skip
async def test_what_cannot_wait_is_refused_in_javas_words_and_not_stored(
    setup: Setup, settings: dict[str, Any], properties: dict[str, str], answer: tuple[int, str]
) -> None:
    async with setup.pair(**settings) as (broker, client):
        await client.create_topic("t")
        before = broker.store.max_offset
        sent = await client.send("t", properties=properties)

        assert (sent.code, sent.remark) == answer
        assert broker.store.max_offset == before


async def test_a_time_in_the_past_is_no_wait(setup: Setup) -> None:
    """The message is stored at once, with its wish and without anything of the wheel."""
    async with setup.pair() as (_, client):
        await client.create_topic("t")
        sent = await client.send("t", b"now", properties={"TIMER_DELIVER_MS": "1700000000000"})
        record = setup.records(await client.pull("t", 0))[0]

        assert (sent.code, "recallHandle" in sent.ext) == (0, False)
        assert setup.properties(record)["TIMER_DELIVER_MS"] == "1700000000000"
        assert "TIMER_OUT_MS" not in setup.properties(record)


async def test_a_delay_level_wins_over_a_time(setup: Setup) -> None:
    """As in Java: the times are taken away, and nothing comes into the wheel."""
    async with setup.pair() as (broker, client):
        await client.create_topic("t")
        sent = await client.send("t", b"x", properties={"DELAY": "1", "TIMER_DELAY_SEC": "7200"})
        record = (await client.wait_for("t"))[0]

        assert (sent.code, "recallHandle" in sent.ext) == (0, False)
        assert setup.properties(record)["DELAY"] == "1"
        assert not any(name.startswith("TIMER_") for name in setup.properties(record))
        assert broker.store.queue_end("rmq_sys_wheel_timer", 0) == 0


async def test_a_full_slot_refuses(setup: Setup) -> None:
    """From twice `timerCongestNumEachSlot` on, always."""
    async with setup.pair(timer_congest_num_each_slot=1) as (broker, client):
        await client.create_topic("t")
        deliver = {"TIMER_DELIVER_MS": str(time.time_ns() // 1_000_000 + 3_600_000)}
        first = [(await client.send("t", properties=deliver)).code for _ in range(2)]
        await setup.until(lambda: broker.timers.counts.waiting() == {"t": 2})
        refused = await client.send("t", properties=deliver)

        assert first == [0, 0]
        assert refused.code == 1
        assert (refused.remark or "").startswith("timer message is under flow control")


async def test_batches_and_ordered_subjects_have_no_times(setup: Setup) -> None:
    """A batch is delivered as one, so a message of it with a time is refused by name."""
    async with setup.pair() as (_, client):
        await client.create_topic("t")
        properties = encode_properties({"TIMER_DELAY_SEC": "5"})
        body = encode_batch([BatchItem(0, b"a", b""), BatchItem(0, b"b", properties)])
        answer = await client.call(
            320, body, a="pg", b="t", c="TBW102", d=4, e=0, f=0, g=1, h=0, i="", j=0, k="false", m="true"
        )

        assert answer.code == 13
        assert "TIMER_DELAY_SEC" in (answer.remark or "")


async def test_a_message_whose_delivery_would_not_fit_is_refused_when_it_is_sent(setup: Setup) -> None:
    """Delivery adds properties; a message that leaves no room for them could never be delivered."""
    async with setup.pair() as (_, client):
        await client.create_topic("t")
        long = {"TIMER_DELAY_SEC": "5", "x": "y" * 32_500}
        assert (await client.send("t", properties=long)).code == 13
        assert (await client.send("t", properties={"x": "y" * 32_500})).code == 0


async def test_a_timer_that_takes_the_short_way_is_stored_and_answered_as_by_the_long_one(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record of the wheel's topic is the same but for its place and times, and so is the answer."""
    deliver = str(time.time_ns() // 1_000_000 + 3_600_000)
    taken: list[str] = []

    def plain(text: str) -> dict[str, str] | None:
        wish = plain_timer(text)
        taken.append(str(wish))
        return wish

    async with setup.pair() as (broker, client):
        await client.create_topic("t")
        found: list[tuple[Any, ...]] = []
        for short in (plain, lambda _text: None):
            monkeypatch.setattr(send, "plain_timer", short)
            sent = await client.send(
                "t", b"x", properties={"UNIQ_KEY": "U", "TIMER_DELIVER_MS": deliver, "a": "b", "WAIT": "true"}
            )
            unit = broker.store.unit("rmq_sys_wheel_timer", 0, len(found))
            assert unit is not None
            data = broker.store.read(unit[0])
            assert data is not None
            record = decode_record(data)
            answer = {name: value for name, value in sent.ext.items() if name not in ("msgId", "queueOffset")}
            found.append((
                sent.code, answer, record.topic, record.queue_id, record.body, record.sys_flag, record.flag,
                decode_properties(record.properties), unit[2],
            ))  # fmt: skip

        assert taken == [str({"TIMER_DELIVER_MS": deliver})]
        assert found[0] == found[1]
        assert found[0][7]["REAL_TOPIC"] == "t"


async def recall(client: Client, handle: str, topic: str = "t") -> Command:
    return await client.call(370, producerGroup="pg", topic=topic, recallHandle=handle)


async def test_a_recalled_message_never_comes_and_others_do(setup: Setup) -> None:
    clock = MovedClock()
    async with (
        setup.broker(clock=clock, recall_message_enable=True) as broker,
        setup.client(broker) as client,
    ):
        await client.create_topic("t")
        sent = [
            await client.send("t", b"%d" % n, properties={"TIMER_DELAY_SEC": "3600", "UNIQ_KEY": f"U{n}"})
            for n in range(3)
        ]
        handles = [reply.ext["recallHandle"] for reply in sent]
        assert decode_recall_handle(handles[1]).message_id == "U1"
        answer = await recall(client, handles[1])
        assert (answer.code, answer.ext["msgId"], answer.ext["MSG_REGION"]) == (0, "U1", "DefaultRegion")
        clock.moved_ms += 3_610_000
        found: list[bytes] = []
        while len(found) < 2:
            found += [record.body for record in await client.wait_for("t", len(found))]
        work = broker.timers.work
        await setup.until(lambda: work is not None and not work.waits)

        assert sorted(found) == [b"0", b"2"]
        assert (await client.pull("t", 2)).code == 19
        assert (await recall(client, handles[0])).code == 604, "its time is over"


async def test_a_recall_counts_though_nothing_says_what_was_done(setup: Setup) -> None:
    """Without a progress the slot of a message is read before it is delivered, and its recall is in it."""
    clock = MovedClock()
    files = [setup.folder / name for name in ("timerwheel", "config/timercheck")]
    async with (
        setup.broker(clock=clock, recall_message_enable=True) as broker,
        setup.client(broker) as client,
    ):
        await client.create_topic("t")
        for n in range(2):
            sent = await client.send(
                "t", b"%d" % n, properties={"TIMER_DELAY_SEC": "3600", "UNIQ_KEY": f"U{n}"}
            )
        assert (await recall(client, sent.ext["recallHandle"])).code == 0
        await setup.until(lambda: all(file.exists() for file in files))
    for file in files:
        file.unlink()
    clock.moved_ms += 3_610_000

    async with setup.broker(clock=clock) as broker, setup.client(broker) as client:
        assert [record.body for record in await client.wait_for("t")] == [b"0"]
        work = broker.timers.work
        await setup.until(lambda: work is not None and not work.waits)
        assert (await client.pull("t", 1)).code == 19


async def test_recalls_need_a_switch_and_a_handle_of_this_broker(setup: Setup) -> None:
    """Off by default as in Java; a forged handle has a defined answer, and stores nothing."""
    async with setup.pair() as (broker, client):
        await client.create_topic("t")
        sent = await client.send("t", properties={"TIMER_DELAY_SEC": "3600"})
        handle = sent.ext["recallHandle"]
        assert (await recall(client, handle)).code == 16
        assert (await client.call(25, b"recallMessageEnable=true")).code == 0
        end = broker.store.max_offset
        late = RecallHandle("t", "broker-a", 1_700_000_000_000, "U").encode()
        other = RecallHandle("t", "other", 4_000_000_000_000, "U").encode()

        for forged in ("", "x", "djEg", late, other, handle[:-3] + "!!!"):
            assert (await recall(client, forged)).code in (1, 604), forged
        assert (await recall(client, handle, topic="nowhere")).code == 17
        assert broker.store.max_offset == end
        assert (await recall(client, handle)).code == 0


async def test_slaves_of_java_learn_how_far_the_timers_are(setup: Setup) -> None:
    """60: seven numbers; 61: the counts by topic."""
    async with setup.pair() as (broker, client):
        await client.create_topic("t")
        empty = decode_timer_checkpoint((await client.call(60)).body)
        for _ in range(2):
            await client.send("t", properties={"TIMER_DELAY_SEC": "3600"})
        await setup.until(lambda: broker.timers.counts.waiting() == {"t": 2})
        found = await client.call(60)
        counts = orjson.loads((await client.call(61)).body)
        checkpoint = decode_timer_checkpoint(found.body)

        assert (len(found.body), empty.master_queue_offset) == (56, 0)
        assert (checkpoint.queue_offset, checkpoint.master_queue_offset) == (2, 2)
        assert abs(checkpoint.last_read_ms - time.time_ns() // 1_000_000) < 5_000
        assert counts["timingCount"]["t"]["count"] == 2


async def test_what_a_client_says_of_rolls_is_not_believed(setup: Setup) -> None:
    """`TIMER_ROLL_TIMES` that is no number, or too large to count on, costs no message."""
    async with setup.pair() as (_, client):
        await client.create_topic("t")
        for number, times in enumerate(("often", "999999999999999999", "-1")):
            sent = await client.send(
                "t", b"%d" % number, properties={"TIMER_DELAY_MS": "1", "TIMER_ROLL_TIMES": times}
            )
            assert sent.code == 0
        found: list[bytes] = []
        while len(found) < 3:
            found += [record.body for record in await client.wait_for("t", len(found))]
        assert sorted(found) == [b"0", b"1", b"2"]


async def test_a_message_for_light_queues_leaves_room_for_its_numbers_in_them(setup: Setup) -> None:
    """Each light queue adds a number when the message is delivered. One that could not be stored then is
    refused when it is sent, whether it waits for a time or a level."""
    queues = ",".join(f"%LMQ%q{number}" for number in range(100))
    async with setup.pair(enable_lmq=True, enable_multi_dispatch=True) as (broker, client):
        await client.create_topic("t")
        for wish in ({"TIMER_DELAY_MS": "1"}, {"DELAY": "1"}):
            begin = broker.store.queue_end("t", 0)
            codes: list[int] = []
            for size in range(28_500, 32_500, 80):
                properties = {"INNER_MULTI_DISPATCH": queues, "X": "x" * size, **wish}
                codes.append((await client.send("t", b"x", properties=properties)).code)
            assert set(codes) == {0, 13}
            end = begin + codes.count(0)
            await setup.until(lambda end=end: broker.store.queue_end("t", 0) == end)  # type: ignore[misc]


async def test_nobody_sends_to_the_wheels_topic(setup: Setup) -> None:
    """Its messages name the topic that they are delivered to: also those that only brokers may write."""
    async with setup.pair() as (broker, client):
        await client.create_topic("t")
        forged = {"TIMER_OUT_MS": "5", "REAL_TOPIC": "rmq_sys_BROKERSET_METADATA", "REAL_QID": "0"}
        for properties in ({}, forged):
            sent = await client.send(TIMER_TOPIC, properties=properties)
            assert (sent.code, sent.remark) == (16, f"Sending message to topic[{TIMER_TOPIC}] is forbidden.")
        assert (await client.send_batch(TIMER_TOPIC, [b"x"])).code == 16
        assert broker.store.queue_end(TIMER_TOPIC, 0) == 0


@pytest.mark.parametrize("topic", [TIMER_TOPIC, "rmq_sys_BROKERSET_METADATA", "RMQ_SYS_TRANS_HALF_TOPIC"])
async def test_a_forged_message_in_a_store_of_java_is_not_delivered(setup: Setup, topic: str) -> None:
    """Into the wheel's own topic it would be delivered again and again; others are read by brokers alone."""
    async with setup.pair() as (broker, client):
        await client.create_topic("t")
        forged = {"TIMER_OUT_MS": "5", "REAL_TOPIC": topic, "REAL_QID": "0"}
        before = broker.store.queue_end(topic, 0)
        broker.store.append(
            TIMER_TOPIC, 0, b"x", encode_properties(forged),
            flag=0, sys_flag=0, born_timestamp=1, born_host=bytes(8),
        )  # fmt: skip
        await client.send("t", b"y", properties={"TIMER_DELAY_MS": "1"})
        assert [record.body for record in await client.wait_for("t")] == [b"y"]
        assert broker.store.queue_end(topic, 0) == (2 if topic == TIMER_TOPIC else before)


async def test_what_a_java_broker_popped_comes_through_the_wheel(setup: Setup) -> None:
    """Its check points are timer messages: without them what nobody acked would never be delivered again."""
    topic = "rmq_sys_REVIVE_LOG_DefaultCluster"
    async with setup.pair() as (broker, _):
        before = broker.store.queue_end(topic, 0)
        popped = {"TIMER_OUT_MS": "5", "REAL_TOPIC": topic, "REAL_QID": "0"}
        broker.store.append(
            TIMER_TOPIC, 0, b"{}", encode_properties(popped),
            flag=0, sys_flag=0, born_timestamp=1, born_host=bytes(8),
        )  # fmt: skip
        await setup.until(lambda: broker.store.queue_end(topic, 0) == before + 1)
