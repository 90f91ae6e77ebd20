"""Timer messages of a broker without a group: put, wait, deliver, restart, crash, and clocks that jump."""

from __future__ import annotations

import time
from pathlib import Path

import orjson

from brokerset_formats.timer_files import decode_timer_checkpoint
from brokerset_rig.local_servers import Setup
from brokerset_rig.moved_clock import MovedClock

HOUR_MS = 3_600_000


async def test_a_timer_message_comes_in_its_second_and_looks_as_javas_does(setup: Setup) -> None:
    """It keeps its wish, its slot and where it goes; it gets the times of its way through the wheel."""

    async with setup.pair() as (_, client):
        await client.create_topic("t")
        deliver_ms = time.time_ns() // 1_000_000 + 1_200
        sent = await client.send(
            "t",
            b"later",
            queue_id=3,
            properties={"TIMER_DELIVER_MS": str(deliver_ms), "TAGS": "A", "UNIQ_KEY": "U"},
        )
        assert (sent.code, sent.ext["queueId"], sent.ext["queueOffset"]) == (0, "3", "0")
        assert (await client.pull("t", 0, queue_id=3)).code == 19

        record = (await client.wait_for("t", 0, queue_id=3, expression="A"))[0]

        now_ms = time.time_ns() // 1_000_000
        assert deliver_ms <= now_ms < deliver_ms + 1_500
        assert (record.body, record.queue_id, record.queue_offset) == (b"later", 3, 0)
        found = setup.properties(record)
        out_ms = (deliver_ms - 1) // 1000 * 1000
        assert deliver_ms <= int(found.pop("TIMER_DEQUEUE_MS")) <= now_ms
        assert int(found.pop("TIMER_ENQUEUE_MS")) <= deliver_ms
        assert found == {
            "CLUSTER": "DefaultCluster", "MSG_REGION": "DefaultRegion", "REAL_QID": "3", "REAL_TOPIC": "t",
            "TAGS": "A", "TIMER_DELIVER_MS": str(deliver_ms), "TIMER_OUT_MS": str(out_ms),
            "TRACE_ON": "true", "UNIQ_KEY": "U",
        }  # fmt: skip


async def test_a_broker_without_timer_messages_has_no_files_of_them(setup: Setup) -> None:
    async with setup.pair() as (_, client):
        await client.create_topic("t")
        await client.send("t", b"plain")

    assert not (setup.folder / "timerwheel").exists()
    assert not (setup.folder / "timerlog").exists()
    assert not (setup.folder / "config" / "timercheck").exists()


async def test_messages_wait_over_a_restart_and_come_once(setup: Setup) -> None:
    clock = MovedClock()
    async with setup.broker(clock=clock) as broker, setup.client(broker) as client:
        await client.create_topic("t")
        for n in range(100):
            await client.send("t", b"%d" % n, properties={"TIMER_DELAY_SEC": str(3600 + n % 7)})
        await client.send("t", b"first", properties={"TIMER_DELAY_MS": "1"})
        assert [record.body for record in await client.wait_for("t")] == [b"first"]

    async with setup.broker(clock=clock) as broker, setup.client(broker) as client:
        assert (await client.pull("t", 1)).code == 19
        clock.moved_ms += HOUR_MS + 10_000
        found: list[bytes] = []
        while len(found) < 100:
            found += [record.body for record in await client.wait_for("t", 1 + len(found))]
        assert sorted(found) == sorted(b"%d" % n for n in range(100))
        await setup.until(lambda: broker.timers.work is not None and not broker.timers.work.waits)
        assert (await client.pull("t", 101)).code == 19

    async with setup.broker(clock=clock) as broker, setup.client(broker) as client:
        await setup.until(lambda: broker.timers.work is not None)
        assert (await client.pull("t", 101)).code == 19
        assert broker.timers.counts.dequeued == {}


async def test_the_checkpoint_says_what_java_reads(setup: Setup) -> None:
    """Times, positions and offsets are where a Java broker goes on; the counts are by topic."""
    async with setup.pair() as (broker, client):
        await client.create_topic("t")
        for _ in range(3):
            await client.send("t", properties={"TIMER_DELAY_SEC": "7200"})
        await setup.until(lambda: broker.timers.counts.waiting() == {"t": 3})

    config: Path = setup.folder / "config"
    found = decode_timer_checkpoint((config / "timercheck").read_bytes())
    assert (found.queue_offset, found.master_queue_offset, found.log_flush_position) == (3, 3, 3 * 52)
    assert abs(found.last_read_ms - time.time_ns() // 1_000_000) < 5_000
    saved = orjson.loads((config / "timermetrics").read_bytes())
    assert saved["timingCount"]["t"]["count"] == 3
