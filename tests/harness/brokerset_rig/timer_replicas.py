"""Brokers of one group with timer messages: real stores, metadata and files; replication by hand.

Nothing is confirmed, copied or due before a test says so.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.requests.admission import Admission
from brokerset_broker.requests.timer_puts import TimerPuts
from brokerset_broker.services.delay import DelayService
from brokerset_broker.services.timers.service import TimerService
from brokerset_broker.store.delay_levels import DelayLevels
from brokerset_broker.store.errors import PutStatus
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.store.replica import StoreReplicaLog
from brokerset_broker.tables.groups import GroupManager
from brokerset_broker.tables.metadata.metadata_log import MetadataLog
from brokerset_broker.tables.metadata.stamp import StampFile
from brokerset_broker.tables.metadata.store_source import StoreSource
from brokerset_broker.tables.metadata.tables import Tables
from brokerset_broker.tables.offsets import OffsetManager
from brokerset_broker.tables.topics import TopicManager
from brokerset_broker.timers.put_decision import PutAside
from brokerset_formats.names import TIMER_TOPIC
from brokerset_formats.properties import encode_properties
from brokerset_formats.records import decode_record
from brokerset_rig.waiting import until
from brokerset_runtime.clock import ManualClock
from brokerset_runtime.disk import RealDisk
from brokerset_spec.broker_settings import BrokerSettings

TOPIC = "later"
FILE_BYTES = 1 << 20


class TimerReplica:
    """One replica of a group; `lead` makes it the master."""

    def __init__(self, folder: Path, clock: ManualClock, **settings: Any) -> None:
        self.clock = clock
        self.settings = BrokerSettings(
            store_path_root_dir=folder, enable_controller_mode=True, controller_addr="127.0.0.1:9878",
            mapped_file_size_commit_log=FILE_BYTES, mapped_file_size_consume_queue=20 * 1_000,
            max_hash_slot_num=100, max_index_num=400, max_message_size=100_000,
            mapped_file_size_timer_log=4096, **settings,
        )  # fmt: skip
        live = LiveSettings(self.settings)
        self.store = MessageStore(self.settings, clock)
        self.log = StoreReplicaLog(self.store)
        admission = Admission("b", 6)
        delay = DelayService(
            store=self.store, clock=clock, levels=DelayLevels.parse("1s"), config_folder=folder / "config",
            admission=admission, is_subject=lambda topic: False,
        )  # fmt: skip
        self.timers = TimerService(
            store=self.store, live=live, clock=clock, admission=admission, is_subject=lambda topic: False
        )
        self.timers.load()
        self.store.load()
        self.store.start()
        source = StoreSource(self.store, clock)
        topics, groups = TopicManager(live, clock), GroupManager(live, clock)
        topics.load()
        groups.load()
        self.tables = Tables(
            topics=topics, groups=groups, offsets=OffsetManager(live, clock), delay=delay, queues=source,
            timers=self.timers,
        )  # fmt: skip
        self.metadata = MetadataLog(
            settings=lambda: self.settings, store=source, tables=self.tables,
            stamp=StampFile(RealDisk(folder / "config")), run_blocking=_run_now,
            when_confirmed=self._when_confirmed,
        )  # fmt: skip
        self.metadata.load()
        self.puts = TimerPuts(lambda: self.timers.settings, self.timers.slot_count, clock.now_ms)
        self.store.on_arrival = self._arrived
        self.log.on_confirmed(self.metadata.confirmed)
        self.log.follow()
        self._running = asyncio.get_running_loop().create_task(self.timers.run())

    def _arrived(self, topic: str, queue_id: int, next_queue_offset: int, tags_code: int | None) -> None:
        if topic == TIMER_TOPIC:
            self.timers.arrived()

    def _when_confirmed(self, end: int, callback: Callable[[PutStatus], None]) -> None:
        raise AssertionError("nobody waits here")

    # -- roles and replication ----------------------------------------------------------------------------

    async def lead(self, epoch: int) -> None:
        """Become master."""
        await self.log.finish_received()
        self.log.lead()
        await self.metadata.lead(epoch)
        self.timers.start()

    async def stop_leading(self) -> None:
        """Be no master any more, as far as that goes without another one."""
        await self.timers.drain()
        self.timers.stop()
        self.metadata.stop_leading()
        self.log.follow()

    async def truncate(self, offset: int) -> None:
        """Lose what the next master does not have, then follow."""
        await self.log.truncate(offset, keep_copy=False)
        self.metadata.truncated(offset)
        await self.metadata.start_following()

    def confirm(self) -> None:
        """All in-sync replicas have the whole log."""
        self.log.confirm(self.log.max_offset)

    def record(self) -> None:
        """Write the progress, as happens once a second."""
        self.metadata.flush()

    async def copy_to(self, other: TimerReplica) -> None:
        """Let another replica have the log, all of it confirmed."""
        end = self.log.max_offset
        while other.log.received_end < end:
            begin = other.log.received_end
            data = bytes(self.log.view(begin, min(end - begin, FILE_BYTES - begin % FILE_BYTES)))
            other.log.room(len(data))[: len(data)] = data
            other.log.received(len(data))
        await other.log.finish_received()
        for each in (self, other):
            each.confirm()

    def crash(self) -> None:
        """Let go of the folder; nothing is written any more."""
        self._running.cancel()
        self.timers.stop()
        self.store.abandon()

    # -- messages -----------------------------------------------------------------------------------------

    def put(self, body: str, seconds: int, *, key: str = "") -> None:
        """Store a message that waits; the timers hear of it before it is confirmed."""
        properties = {"TIMER_DELAY_SEC": str(seconds), "UNIQ_KEY": key or body}
        place = self.puts.put_aside(TOPIC, 0, properties)
        assert isinstance(place, PutAside), place
        self.store.append(
            place.topic, place.queue_id, body.encode(), encode_properties(properties), flag=0, sys_flag=0,
            born_timestamp=self.clock.now_ms(), born_host=bytes(8),
        )  # fmt: skip
        self.timers.arrived()

    def delivered(self) -> Counter[str]:
        """How often each message is in its topic."""
        found: Counter[str] = Counter()
        for number in range(self.store.queue_end(TOPIC, 0)):
            unit = self.store.unit(TOPIC, 0, number)
            record = self.store.read(unit[0]) if unit is not None else None
            assert record is not None, "the topic has no gaps"
            found[decode_record(record).body.decode()] += 1
        return found

    async def settled(self) -> None:
        """Everything that can be done by now is done."""
        await until(lambda: self.timers.work is not None)
        work = self.timers.work
        assert work is not None
        while work.take_back() or work.turn(1.0):
            pass

    @property
    def taken(self) -> int:
        """Messages that are in this replica's wheel or done."""
        work = self.timers.work
        return 0 if work is None else work.state.queue_offset


async def _run_now(work: Callable[[], Any]) -> Any:
    return work()
