"""Metadata of a simulated broker: the real tables, log and request handlers, on records of the simulated log.

Files of `config/` lie on the simulated disk. Topics and groups that every broker has are left out, so that
snapshots are as small as the simulated log needs them.
"""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast
from unittest import mock

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.requests.admission import Admission
from brokerset_broker.requests.groups import GroupProcessor
from brokerset_broker.requests.offsets import OffsetProcessor
from brokerset_broker.requests.statistics import BrokerStats
from brokerset_broker.requests.topics import TopicProcessor
from brokerset_broker.store.errors import PutStatus, StoreRefused
from brokerset_broker.store.queries import StoreQueries
from brokerset_broker.tables.config_files import ConfigFile
from brokerset_broker.tables.consumers import ConsumerTable
from brokerset_broker.tables.groups import GroupManager
from brokerset_broker.tables.locks import QueueLocks
from brokerset_broker.tables.metadata import records, snapshot
from brokerset_broker.tables.metadata.metadata_log import KEEP_NOTHING, MetadataLog
from brokerset_broker.tables.metadata.records import Kind
from brokerset_broker.tables.metadata.store_source import Written
from brokerset_broker.tables.metadata.tables import Tables
from brokerset_broker.tables.offsets import OffsetManager
from brokerset_broker.tables.topics import TopicManager
from brokerset_formats.config import ConsumerOffsets, DelayOffsets, GroupTable, TopicTable
from brokerset_formats.hashing import java_hash
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_runtime.clock import Clock
from brokerset_runtime.disk import replace_file
from brokerset_runtime.remoting import Handler
from brokerset_sim.controller_node import SlowDisk
from brokerset_sim.disk import DiskHandle
from brokerset_sim.metadata_checker import Key
from brokerset_sim.network import SimConnection
from brokerset_sim.replica_log import SimReplicaLog

T = TypeVar("T")

PIECE_BYTES = 900
"""Most bytes of changes in one record; a single entry may be larger."""

PIECE_ENTRIES = 3
"""Most entries of a snapshot in one record, so that each has several."""

STAMP_MS = 1_000
"""Between two writes of the files of config/, and of their stamp."""

_KIND_POSITION = 5
"""Of the kind in a record's head."""

_CODES = {int(kind): java_hash(records.tag(kind)) for kind in Kind}


@contextmanager
def small_pieces() -> Iterator[None]:
    """Metadata in records that fit into the small files of simulated logs."""
    with (
        mock.patch.object(records, "RECORD_BYTES_MAX", PIECE_BYTES),
        mock.patch.object(snapshot, "CHUNK_BYTES_MAX", PIECE_BYTES),
        mock.patch.object(snapshot, "CHUNK_ENTRIES_MAX", PIECE_ENTRIES),
    ):
        yield


class _NoQueues:
    """A store without queues: whoever deletes a topic asks it for lite topics."""

    def queues(self) -> dict[str, list[int]]:
        """None."""
        return {}


class SimMetadataSource:
    """Implements `MetadataStore` over a simulated log."""

    def __init__(self, log: SimReplicaLog) -> None:
        self._log = log

    @property
    def min_offset(self) -> int:
        return self._log.min_offset

    @property
    def max_offset(self) -> int:
        return self._log.max_offset

    @property
    def confirmed_offset(self) -> int:
        return self._log.confirmed_offset

    @property
    def queue_min(self) -> int:
        units = self._log.metadata
        return units[0].number if units else self._log.metadata_next

    @property
    def queue_max(self) -> int:
        return self._log.metadata_next

    def units(self, queue_offset: int, count: int) -> Sequence[tuple[int, int, int]]:
        first = queue_offset - self.queue_min
        if first < 0:
            return []
        log = self._log
        return [
            (unit.offset, unit.size, _CODES[log.metadata_byte(unit, _KIND_POSITION)])
            for unit in log.metadata[first : first + count]
        ]

    def read(self, offset: int, size: int) -> bytes | None:
        units = self._log.metadata
        index = bisect.bisect_left(units, offset, key=lambda unit: unit.offset)
        if index == len(units) or (units[index].offset, units[index].size) != (offset, size):
            return None
        return self._log.metadata_bytes(units[index])

    def append(self, kind: Kind, body: bytes) -> Written:
        if not self._log.leads:
            raise StoreRefused(PutStatus.SERVICE_NOT_AVAILABLE, "the log takes no appends")
        made = self._log.append_metadata(body)
        return Written(made.offset, made.offset + made.size, made.number)

    def forget_topic(self, topic: str, before: int) -> None:
        """The only queue has messages of no topic."""

    def resting_queues(self, before: int) -> Iterable[tuple[str, dict[int, int]]]:
        return ()

    def begin_queues(self, topic: str, ends: Mapping[int, int]) -> bool:
        return False

    async def checkpoint(self) -> None:
        """No queue was deleted."""


class SimConfigFile(ConfigFile):
    """A manager's file on a simulated disk."""

    def __init__(self, disk: DiskHandle, slow: SlowDisk, inner: ConfigFile) -> None:
        super().__init__(Path(inner.path.name), inner._snapshot)
        self._disk = disk
        self._slow = slow

    def load(self, decode: Callable[[bytes], T]) -> T | None:
        try:
            return decode(self._disk.read(self.path.name))
        except FileNotFoundError:
            return None

    async def saved(self) -> None:
        wanted = self._changes
        async with self._lock:
            if self._written >= wanted:
                return
            changes, encode = self._changes, self._snapshot()
            await self._slow(lambda: replace_file(self._disk, self.path.name, encode()))
            self._written = changes


class SimDelay:
    """Progress of delayed messages, which are delivered nowhere. Implements `DelayProgress`."""

    FILE = "delayOffset.json"

    def __init__(self, disk: DiskHandle, slow: SlowDisk) -> None:
        self._disk = disk
        self._slow = slow
        self._levels: dict[int, int] = {}
        self._written: dict[int, int] = {}
        if self.FILE in disk.names():
            self._levels = dict(DelayOffsets.decode(disk.read(self.FILE)).offsets)

    def offsets(self) -> DelayOffsets:
        return DelayOffsets(offsets=dict(self._levels))

    def put(self, levels: Mapping[int, int], *, whole: bool = False) -> bool:
        before = self._levels
        self._levels = dict(levels) if whole else {**before, **levels}
        return self._levels != before

    def delivered(self, level: int) -> None:
        """One more message of a level is done."""
        self._levels[level] = self._levels.get(level, 0) + 1

    async def persist(self) -> None:
        if self._levels != self._written:
            levels = dict(self._levels)
            data = DelayOffsets(offsets=levels).encode()
            await self._slow(lambda: replace_file(self._disk, self.FILE, data))
            self._written = levels


@dataclass(frozen=True, slots=True)
class SimTables:
    """The tables of one process, loaded from its disk."""

    tables: Tables
    delay: SimDelay

    @classmethod
    def load(
        cls, live: LiveSettings, clock: Clock, disk: DiskHandle, slow: SlowDisk, source: SimMetadataSource
    ) -> SimTables:
        """Read what the files have."""
        topics = TopicManager(live, clock)
        groups = GroupManager(live, clock)
        offsets = OffsetManager(live, clock)
        # Managers have no other way to another disk.
        topics._file = SimConfigFile(disk, slow, topics._file)
        groups._file = SimConfigFile(disk, slow, groups._file)
        offsets._file = SimConfigFile(disk, slow, offsets._file)
        if (table := topics._file.load(TopicTable.decode)) is not None:
            topics.take_over(table.topics)
        if (found := groups._file.load(GroupTable.decode)) is not None:
            groups.take_over(found.groups, found.forbidden)
        if (progress := offsets._file.load(ConsumerOffsets.decode)) is not None:
            offsets.replace_all(progress)
        delay = SimDelay(disk, slow)
        tables = Tables(topics=topics, groups=groups, offsets=offsets, delay=delay, queues=source)
        return cls(tables, delay)

    def value(self, key: Key) -> int | None:
        """What is there, for checkers."""
        tables = self.tables
        match key:
            case ("topic", name):
                topic = tables.topics.get(name)
                return None if topic is None else topic.read_queue_nums
            case ("group", name):
                group = tables.groups.get(name)
                return None if group is None else group.retry_max_times
            case ("offset", topic_name, group_name, queue):
                return tables.offsets.replicated.get(f"{topic_name}@{group_name}", {}).get(int(queue))
        raise AssertionError(f"no such key: {key}")

    def everything(self) -> dict[str, object]:
        """All that is replicated, for comparison with other replicas."""
        state = self.tables.state()
        return {
            "topics": state.topics,
            "groups": state.groups,
            "forbidden": state.forbidden,
            "offsets": {key: queues for key, queues in state.offsets.items() if queues},
            "resets": state.resets,
            "delay": state.delay,
        }

    def handlers(
        self, live: LiveSettings, clock: Clock, admission: Admission, metadata: MetadataLog
    ) -> dict[int, Handler]:
        """What changes metadata and tells it, by request code: the real processors do it."""
        tables = self.tables
        store = cast(StoreQueries, _NoQueues())  # by way of the log they need no more
        stats, consumers = BrokerStats(clock), ConsumerTable(clock)
        topics = TopicProcessor(
            live=live,
            admission=admission,
            store=store,
            topics=tables.topics,
            offsets=tables.offsets,
            consumers=consumers,
            stats=stats,
            changes=metadata,
        )
        groups = GroupProcessor(
            live=live,
            clock=clock,
            admission=admission,
            store=store,
            topics=tables.topics,
            groups=tables.groups,
            offsets=tables.offsets,
            consumers=consumers,
            locks=QueueLocks(clock),
            stats=stats,
            changes=metadata,
        )
        offsets = OffsetProcessor(
            live=live,
            admission=admission,
            store=store,
            topics=tables.topics,
            groups=tables.groups,
            offsets=tables.offsets,
            consumers=consumers,
            memory_bytes=1,
            changes=metadata,
        )

        def delay(_connection: SimConnection, command: Command) -> Command:
            return command.reply(ext=metadata.answer_ext(), body=self.delay.offsets().encode())

        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: topics.update,
            RequestCode.DELETE_TOPIC_IN_BROKER: topics.delete,
            RequestCode.GET_ALL_TOPIC_CONFIG: topics.all_topics,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: groups.update,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: groups.delete,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: groups.all_groups,
            RequestCode.UPDATE_CONSUMER_OFFSET: offsets.update,
            RequestCode.GET_ALL_CONSUMER_OFFSET: offsets.all_offsets,
            RequestCode.GET_ALL_DELAY_OFFSET: cast(Handler, delay),
        }


class NoMetadata:
    """Implements `MemberMetadata` for a world without: something is written first in each epoch, no more."""

    covers_log = True

    def __init__(self, mark: Callable[[], object]) -> None:
        """`mark` writes the first record of an epoch."""
        self._mark = mark

    async def run(self) -> None:
        await asyncio.get_running_loop().create_future()

    async def lead(self, epoch: int) -> None:
        """There is nothing to apply."""

    async def write_snapshot(self) -> bool:
        self._mark()
        return True

    def stop_leading(self) -> None:
        """Nothing was led."""

    async def start_following(self) -> None:
        """There is nothing to apply."""

    def confirmed(self, offset: int) -> None:
        """There is nothing to apply."""

    def flush(self) -> None:
        """There is nothing to write."""

    def trouble(self) -> tuple[str, str] | None:
        """Nobody is asked for anything."""
        return None

    def keep_from(self) -> int:
        """Retention may delete whatever it wants."""
        return KEEP_NOTHING
