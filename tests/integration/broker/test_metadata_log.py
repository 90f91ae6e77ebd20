"""Metadata on a real store with real files: requests, restarts, deleted topics, large snapshots."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.requests.admission import Admission
from brokerset_broker.requests.groups import GroupProcessor
from brokerset_broker.requests.offsets import OffsetProcessor
from brokerset_broker.requests.send import SendProcessor
from brokerset_broker.requests.statistics import BrokerStats
from brokerset_broker.requests.topics import TopicProcessor
from brokerset_broker.requests.traffic import Traffic
from brokerset_broker.services.delay import DelayService
from brokerset_broker.store.delay_levels import DelayLevels
from brokerset_broker.store.errors import PutStatus
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.store.queries import StoreQueries
from brokerset_broker.tables.consumers import ConsumerTable
from brokerset_broker.tables.groups import GroupManager
from brokerset_broker.tables.locks import QueueLocks
from brokerset_broker.tables.metadata.metadata_log import MetadataLog
from brokerset_broker.tables.metadata.records import METADATA_TOPIC
from brokerset_broker.tables.metadata.stamp import StampFile
from brokerset_broker.tables.metadata.standalone import leave_log
from brokerset_broker.tables.metadata.store_source import StoreSource
from brokerset_broker.tables.metadata.tables import Tables
from brokerset_broker.tables.offsets import OffsetManager
from brokerset_broker.tables.topics import TopicManager
from brokerset_protocol.commands import Command, decode
from brokerset_protocol.errors import Rejected
from brokerset_runtime.clock import SystemClock
from brokerset_runtime.disk import RealDisk
from brokerset_runtime.remoting import DEFERRED
from brokerset_spec.broker_settings import BrokerSettings


class FakeConnection:
    """The part of a connection that the processors use."""

    def __init__(self) -> None:
        self.peer = ("10.0.0.1", 54321)
        self.state: dict[str, Any] = {}
        self.in_flight = 0
        self.answers: asyncio.Queue[Any] = asyncio.Queue()

    def answer(self, data: Any) -> None:
        self.answers.put_nowait(data)


class Parts:
    """A broker's parts around its metadata; one replica, so everything is confirmed soon."""

    def __init__(self, folder: Path) -> None:
        self.settings = BrokerSettings(
            store_path_root_dir=folder, enable_controller_mode=True, controller_addr="127.0.0.1:9878",
            mapped_file_size_commit_log=64 * 1024 * 1024, mapped_file_size_consume_queue=20 * 10_000,
            max_hash_slot_num=1000, max_index_num=4000,
        )  # fmt: skip
        live, clock = LiveSettings(self.settings), SystemClock()
        self.store = MessageStore(self.settings, clock)
        self.topics = TopicManager(live, clock)
        self.groups = GroupManager(live, clock)
        self.offsets = OffsetManager(live, clock)
        admission, levels = Admission("b", 6), DelayLevels.parse(self.settings.message_delay_level)
        self.delay = DelayService(
            store=self.store,
            clock=clock,
            levels=levels,
            config_folder=folder / "config",
            admission=admission,
            is_subject=lambda topic: False,
        )
        for manager in (self.topics, self.groups, self.offsets, self.delay):
            manager.load()
        self.store.load()
        self.store.start()
        source = StoreSource(self.store, clock)
        self.tables = Tables(
            topics=self.topics, groups=self.groups, offsets=self.offsets, delay=self.delay,
            queues=source,
        )  # fmt: skip
        self.log = MetadataLog(
            settings=lambda: self.settings, store=source, tables=self.tables,
            stamp=StampFile(RealDisk(folder / "config")), run_blocking=lambda work: asyncio.to_thread(work),
            when_confirmed=self._when_confirmed,
        )  # fmt: skip
        self.log.load()
        questions, stats = StoreQueries(self.store), BrokerStats(clock)
        consumers, locks = ConsumerTable(clock), QueueLocks(clock)
        self.connection = FakeConnection()
        self.handlers: dict[int, Callable[..., Any]] = {}
        for processor in (
            TopicProcessor(
                live=live, admission=admission, store=questions, topics=self.topics, offsets=self.offsets,
                consumers=consumers, stats=stats, changes=self.log,
            ),
            GroupProcessor(
                live=live, clock=clock, admission=admission, store=questions, topics=self.topics,
                groups=self.groups, offsets=self.offsets, consumers=consumers, locks=locks, stats=stats,
                changes=self.log,
            ),
            OffsetProcessor(
                live=live, admission=admission, store=questions, topics=self.topics, groups=self.groups,
                offsets=self.offsets, consumers=consumers, changes=self.log,
            ),
            SendProcessor(
                live=live, store=self.store, topics=self.topics, groups=self.groups, locks=locks,
                admission=admission, levels=levels, stats=stats, traffic=Traffic(), clock=clock,
                changes=self.log,
            ),
        ):  # fmt: skip
            self.handlers.update(processor.handlers())

    def _when_confirmed(self, end: int, callback: Callable[[PutStatus], None]) -> None:
        asyncio.get_running_loop().call_soon(callback, PutStatus.PUT_OK)

    async def ask(self, code: int, body: bytes = b"", /, **ext: object) -> Command:
        """One request and its answer, whatever it is."""
        command = Command(code, {name: str(value) for name, value in ext.items()}, body, version=479)
        try:
            reply = self.handlers[code](self.connection, command)
            if asyncio.iscoroutine(reply):
                reply = await reply
        except Rejected as refused:
            return command.reply(refused.code, refused.remark)
        if reply is DEFERRED or reply is None:
            async with asyncio.timeout(5):
                reply = await self.connection.answers.get()
        if isinstance(reply, bytes):
            reply = decode(reply, 4, len(reply))
        assert isinstance(reply, Command)
        return reply

    async def send(self, topic: str, queue: int = 0) -> Command:
        return await self.ask(
            310,
            b"body",
            a="pg",
            b=topic,
            c="TBW102",
            d=4,
            e=queue,
            f=0,
            g=1,
            h=0,
            i="",
            j=0,
            k="false",
            m="false",
        )

    async def create(self, topic: str, queues: int = 4) -> Command:
        return await self.ask(
            17, topic=topic, defaultTopic="TBW102", readQueueNums=queues, writeQueueNums=queues, perm=6,
            topicFilterType="SINGLE_TAG", topicSysFlag=0, order="false",
        )  # fmt: skip


@asynccontextmanager
async def parts(folder: Path, *, crash: bool = False, epoch: int = 1) -> AsyncIterator[Parts]:
    """A leading broker; `crash`: nothing is written at the end."""
    found = Parts(folder)
    await found.log.start_following()
    await found.log.lead(epoch)
    await found.log.write_snapshot()
    try:
        yield found
    finally:
        if crash:
            found.store.abandon()
        else:
            await found.log.close()
            await found.store.close()


async def test_what_was_answered_is_there_after_a_crash(tmp_path: Path) -> None:
    """Nothing but the log was written: topics, groups, masks, offsets and resets come from it."""

    async with parts(tmp_path, crash=True) as first:
        assert (await first.create("orders")).code == 0
        assert (await first.send("by-send")).code == 0
        group = b'{"groupName":"g","retryMaxTimes":3}'
        assert (await first.ask(200, group)).code == 0
        assert (await first.ask(353, group="g", topic="orders", readable="false")).code == 0
        commit = {"consumerGroup": "g", "topic": "by-send", "queueId": 0, "commitOffset": 1}
        assert (await first.ask(15, b"", **commit)).code == 0
        reset = {"topic": "orders", "group": "g", "timestamp": -1, "isForce": "true", "queueId": 1}
        assert (await first.ask(222, b"", **reset)).code == 0
        refused = await first.send(METADATA_TOPIC)
        assert refused.code == 16
        expected = first.tables.state()
    for name in ("topics.json", "subscriptionGroup.json", "consumerOffset.json"):
        assert not (tmp_path / "config" / name).exists()

    async with parts(tmp_path, epoch=2) as second:
        assert second.tables.state() == expected
        assert second.topics.get("by-send") is not None
        assert second.groups.is_read_forbidden("g", "orders")
        assert second.offsets.query("g", "by-send", 0) == 1
        assert second.offsets.has_reset("g", "orders", 1)

    async with parts(tmp_path, epoch=3) as third:
        assert third.offsets.has_reset("g", "orders", 1)
        assert third.tables.state() == expected


@pytest.mark.parametrize("stamped", [False, True])
async def test_a_broker_that_leaves_its_controllers_has_what_only_the_log_had(
    tmp_path: Path, stamped: bool
) -> None:
    """It was killed as a member of a group and is started without controllers: all topics are there. What is
    changed then stays changed when there are controllers again."""

    async with parts(tmp_path, crash=True) as member:
        if stamped:
            await member.log.write_stamp()
        assert (await member.create("kept")).code == 0
        assert (await member.create("given-up")).code == 0
        expected = member.tables.state()

    alone = Parts(tmp_path)
    alone.tables.freeze(False)
    disk = StampFile(RealDisk(tmp_path / "config"))
    source = StoreSource(alone.store, SystemClock())
    assert await leave_log(source, alone.tables, disk, asyncio.to_thread)
    assert alone.tables.state() == expected
    alone.topics.delete("given-up")
    await alone.tables.saved()
    await alone.store.close()

    async with parts(tmp_path, epoch=2) as again:
        assert again.topics.get("kept") is not None
        assert again.topics.get("given-up") is None


async def test_a_broker_that_was_in_no_group_has_nothing_to_leave(tmp_path: Path) -> None:
    """No stamp is written for it, so that with controllers its files are what everything begins with."""

    alone = Parts(tmp_path)
    disk = StampFile(RealDisk(tmp_path / "config"))
    assert not await leave_log(StoreSource(alone.store, SystemClock()), alone.tables, disk, asyncio.to_thread)
    assert disk.load() is None
    await alone.store.close()


async def test_a_topic_that_was_made_again_keeps_its_messages(tmp_path: Path) -> None:
    """Applying the old deletion again after a crash takes nothing of the new topic."""

    async with parts(tmp_path, crash=True) as first:
        await first.create("t")
        for queue in range(3):
            await first.send("t", queue)
        assert (await first.ask(215, topic="t")).code == 0
        assert first.store.queues().get("t") is None
        assert (await first.create("t", 2)).code == 0
        assert (await first.send("t", 1)).code == 0
    async with parts(tmp_path, epoch=2) as second:
        ends = [second.store.queue_end("t", queue) for queue in range(3)]
        assert ends == [0, 1, 0]
        config = second.topics.get("t")
        assert config is not None
        assert config.write_queue_nums == 2


async def test_a_snapshot_of_many_offsets_leaves_the_loop_free(tmp_path: Path) -> None:
    """100,000 keys are written over many turns, none of which takes long, and read again."""

    async with parts(tmp_path) as first:
        table = {f"topic-{n % 1000}@group-{n // 1000}": {q: n for q in range(4)} for n in range(100_000)}
        first.offsets.take_over(table, {})
        turns: list[float] = []
        snapshot = asyncio.create_task(first.log.write_snapshot())
        while not snapshot.done():
            before = time.thread_time()
            await asyncio.sleep(0)
            turns.append(time.thread_time() - before)
        turns.sort()
        assert len(turns) > 150
        # Seconds of this thread: other work on the machine does not count.
        assert turns[len(turns) * 9 // 10] < 0.02
        (tmp_path / "config/brokersetMetadata.json").unlink(missing_ok=True)
        expected = first.tables.state()
    (tmp_path / "config/brokersetMetadata.json").unlink()
    second = Parts(tmp_path)
    await second.log.start_following()
    assert second.tables.state() == expected
    await second.store.close()
