"""Timer messages of a broker without a group: put, wait, deliver, restart, crash, and clocks that jump."""

from __future__ import annotations

import errno
import time
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from brokerset_broker.services.timers import files, service
from brokerset_broker.store.segments import MappedFile, SegmentSequence
from brokerset_formats.timer_files import decode_timer_checkpoint
from brokerset_rig.local_servers import Setup
from brokerset_rig.moved_clock import MovedClock

HOUR_MS = 3_600_000


async def test_a_timer_message_comes_in_its_second_in_javas_form(setup: Setup) -> None:
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


async def test_a_clock_that_is_set_back_delivers_nothing_twice(setup: Setup) -> None:
    """Slots to come are read once more; what was delivered out of them is known."""
    clock = MovedClock()
    async with setup.broker(clock=clock) as broker, setup.client(broker) as client:
        await client.create_topic("t")
        await client.send("t", b"a", properties={"TIMER_DELAY_SEC": "60"})
        clock.moved_ms += 65_000
        assert [record.body for record in await client.wait_for("t")] == [b"a"]
        clock.moved_ms -= 65_000
        await client.send("t", b"b", properties={"TIMER_DELAY_SEC": "61"})
        await setup.until(lambda: broker.timers.counts.waiting() == {"t": 1})
        clock.moved_ms += 65_000
        assert [record.body for record in await client.wait_for("t", 1)] == [b"b"]
        assert (await client.pull("t", 2)).code == 19


async def test_messages_wait_while_the_disk_is_full_and_come_then(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A timer log that cannot grow is an error that passes: sends are answered, and nothing is lost."""
    full = True
    reserve = SegmentSequence.reserve

    def refusing(self: SegmentSequence, file: MappedFile, end: int) -> None:
        if full and self.folder.name == "timerlog":
            raise OSError(errno.ENOSPC, "No space left on device")
        reserve(self, file, end)

    monkeypatch.setattr(SegmentSequence, "reserve", refusing)
    monkeypatch.setattr(service, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(files, "RESERVE_STEP_BYTES", 64)
    async with setup.pair() as (broker, client):
        await client.create_topic("t")
        for number in range(4):
            assert (await client.send("t", b"%d" % number, properties={"TIMER_DELAY_MS": "900"})).code == 0
        await setup.until(lambda: broker.timers.work is not None)
        full = False
        found: list[bytes] = []
        while len(found) < 4:
            found += [record.body for record in await client.wait_for("t", len(found))]
        assert sorted(found) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize(
    "changes", [{"timer_precision_ms": 100}, {"mapped_file_size_timer_log": 8192}], ids=["precision", "size"]
)
async def test_files_of_another_size_or_precision_are_made_again(
    setup: Setup, changes: dict[str, int]
) -> None:
    """What waits is taken again from its topic; what was delivered is not delivered again."""
    clock = MovedClock()
    async with setup.broker(clock=clock) as broker, setup.client(broker) as client:
        await client.create_topic("t")
        await client.send("t", b"0", properties={"TIMER_DELAY_MS": "1"})
        await client.wait_for("t")
        for number in range(1, 4):
            await client.send("t", b"%d" % number, properties={"TIMER_DELAY_SEC": "3600"})
        await setup.until(lambda: broker.timers.counts.waiting() == {"t": 3})

    async with setup.broker(clock=clock, **changes) as broker, setup.client(broker) as client:
        await setup.until(lambda: broker.timers.counts.waiting() == {"t": 3})
        clock.moved_ms += 3_601_000
        found: list[bytes] = []
        while len(found) < 3:
            found += [record.body for record in await client.wait_for("t", 1 + len(found))]
        assert sorted(found) == [b"1", b"2", b"3"]
        assert (await client.pull("t", 4)).code == 19


async def test_enqueue_and_dequeue_can_be_stopped_for_a_while(setup: Setup) -> None:
    """`timerStopEnqueue` and `timerStopDequeue` at run time, as operators of RocketMQ know them."""
    async with setup.pair(timer_stop_enqueue=True) as (broker, client):
        await client.create_topic("t")
        await client.send("t", b"x", properties={"TIMER_DELAY_MS": "1"})
        await setup.until(lambda: broker.timers.work is not None)
        assert broker.timers.enqueue_lag() == 1
        assert (await client.call(25, b"timerStopDequeue=true\ntimerStopEnqueue=false")).code == 0
        await setup.until(lambda: broker.timers.enqueue_lag() == 0)
        assert (await client.call(25, b"timerStopDequeue=false")).code == 0
        assert [record.body for record in await client.wait_for("t")] == [b"x"]


async def test_retention_keeps_what_waits(setup: Setup) -> None:
    """The oldest record that waits is where the log is needed from; without one it is needed from nowhere."""
    clock = MovedClock()
    async with setup.broker(clock=clock) as broker, setup.client(broker) as client:
        await client.create_topic("t")
        needed = broker.timers.needed_from
        assert needed() > broker.store.max_offset
        await client.send("t", b"plain")
        begin = broker.store.max_offset
        await client.send("t", b"waits", properties={"TIMER_DELAY_SEC": "3600"})
        await client.send("t", b"short", properties={"TIMER_DELAY_MS": "1"})
        await client.wait_for("t", 1)
        assert needed() == begin
        clock.moved_ms += 3_610_000
        await client.wait_for("t", 2)
        await setup.until(lambda: needed() > broker.store.max_offset)


async def test_a_wheel_of_a_java_broker_with_another_precision_is_made_again(setup: Setup) -> None:
    """Its checkpoint does not say so; that the wheel lacks the newest unit of the log does."""
    clock = MovedClock()
    async with setup.broker(clock=clock, timer_precision_ms=100) as broker, setup.client(broker) as client:
        await client.create_topic("t")
        for number in range(3):
            await client.send("t", b"%d" % number, properties={"TIMER_DELAY_SEC": "3600"})
        await setup.until(lambda: broker.timers.counts.waiting() == {"t": 3})
    path = setup.folder / "config" / "timercheck"
    path.write_bytes(replace(decode_timer_checkpoint(path.read_bytes()), own=b"").encode())

    async with setup.broker(clock=clock) as broker, setup.client(broker) as client:
        clock.moved_ms += 3_602_000
        found: list[bytes] = []
        while len(found) < 3:
            found += [record.body for record in await client.wait_for("t", len(found))]
        assert sorted(found) == [b"0", b"1", b"2"]
