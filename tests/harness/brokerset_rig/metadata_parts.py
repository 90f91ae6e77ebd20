"""A broker's metadata on a log in memory, and groups of such replicas whose logs are copied by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.store.errors import PutStatus, StoreRefused
from brokerset_broker.tables.access import AccessTable
from brokerset_broker.tables.groups import GroupManager
from brokerset_broker.tables.metadata import records
from brokerset_broker.tables.metadata.metadata_log import MetadataLog
from brokerset_broker.tables.metadata.polling import Master
from brokerset_broker.tables.metadata.records import Kind
from brokerset_broker.tables.metadata.snapshot import MetadataState
from brokerset_broker.tables.metadata.stamp import StampFile
from brokerset_broker.tables.metadata.standalone import FileChanges
from brokerset_broker.tables.metadata.store_source import Written
from brokerset_broker.tables.metadata.tables import Tables
from brokerset_broker.tables.offsets import OffsetManager
from brokerset_broker.tables.ordered.ordered_tables import FILE_NAME, OrderedTables
from brokerset_broker.tables.pop.order_table import OrderTable
from brokerset_broker.tables.pop.request_modes import RequestModes
from brokerset_broker.tables.topics import TopicManager
from brokerset_formats.config import DelayOffsets
from brokerset_formats.hashing import java_hash
from brokerset_runtime.clock import ManualClock
from brokerset_runtime.disk import RealDisk
from brokerset_runtime.peer_requests import Asker
from brokerset_spec.broker_settings import BrokerSettings

HEAD_BYTES = 100
"""Of a record next to its body."""


@dataclass(frozen=True)
class Stored:
    """A record; those of other topics have no body."""

    offset: int
    size: int
    queue_offset: int
    code: int
    body: bytes | None

    @property
    def end(self) -> int:
        return self.offset + self.size


class MemoryStore:
    """A log in memory; implements `MetadataStore`."""

    def __init__(self) -> None:
        self.records: list[Stored] = []
        self.start = 0
        self.confirmed_offset = 0
        self.refuses: str | None = None
        self.forgotten: list[tuple[str, int]] = []
        self.checkpoints = 0
        self.resting: dict[str, dict[int, int]] = {}
        """Queues whose messages the log has not: the number of the next one, by topic."""

        self._seen: list[Stored] = []
        self._seen_last: Stored | None = None
        self._count = 0
        self._metadata: list[Stored] = []
        self._by_offset: dict[int, Stored] = {}

    @property
    def metadata(self) -> list[Stored]:
        """Records of the metadata topic; found again when `records` has become others."""
        found, count = self.records, self._count
        grown = found is self._seen and count <= len(found)
        if not grown or (count and found[count - 1] is not self._seen_last):
            self._seen, self._count, self._metadata, self._by_offset = found, 0, [], {}
        for record in found[self._count :]:
            if record.body is not None:
                self._metadata.append(record)
                self._by_offset[record.offset] = record
        self._count = len(found)
        self._seen_last = found[-1] if found else None
        return self._metadata

    @property
    def min_offset(self) -> int:
        return self.records[0].offset if self.records else self.start

    @property
    def max_offset(self) -> int:
        return self.records[-1].end if self.records else self.start

    @property
    def queue_min(self) -> int:
        return self.metadata[0].queue_offset if self.metadata else 0

    @property
    def queue_max(self) -> int:
        return self.metadata[-1].queue_offset + 1 if self.metadata else 0

    def units(self, queue_offset: int, count: int) -> Sequence[tuple[int, int, int]]:
        first = max(0, queue_offset - self.queue_min)
        found = self.metadata[first : first + count]
        return [(record.offset, record.size, record.code) for record in found]

    def read(self, offset: int, size: int) -> bytes | None:
        record = self._by_offset.get(offset) if self.metadata else None
        return record.body if record is not None and record.size == size else None

    def append(self, kind: Kind, body: bytes) -> Written:
        if self.refuses is not None:
            raise StoreRefused(PutStatus.SERVICE_NOT_AVAILABLE, self.refuses)
        record = Stored(
            self.max_offset, HEAD_BYTES + len(body), self.queue_max, java_hash(records.tag(kind)), body
        )
        self.records.append(record)
        return Written(record.offset, record.end, record.queue_offset)

    def append_message(self, size: int = 1_000) -> None:
        """A record of another topic."""
        self.records.append(Stored(self.max_offset, size, -1, 0, None))

    def forget_topic(self, topic: str, before: int) -> None:
        self.forgotten.append((topic, before))

    def resting_queues(self, before: int) -> Iterable[tuple[str, dict[int, int]]]:
        return list(self.resting.items())

    def begin_queues(self, topic: str, ends: Mapping[int, int]) -> bool:
        if self.refuses is not None:
            raise StoreRefused(PutStatus.SERVICE_NOT_AVAILABLE, self.refuses)
        known = self.resting.setdefault(topic, {})
        begun = {queue: end for queue, end in ends.items() if queue not in known}
        known.update(begun)
        return bool(begun)

    async def checkpoint(self) -> None:
        self.checkpoints += 1

    def damage(self, offset: int, body: bytes) -> None:
        """Replace the body of the record at `offset`."""
        self.records = [
            replace(record, body=body) if record.offset == offset else record for record in self.records
        ]


class Delay:
    """Delay progress without deliveries."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.levels: dict[int, int] = (
            dict(DelayOffsets.decode(file.read_bytes()).offsets) if file.exists() else {}
        )

    def offsets(self) -> DelayOffsets:
        return DelayOffsets(offsets={level: offset for level, offset in self.levels.items() if offset})

    def put(self, levels: dict[int, int] | object, *, whole: bool = False) -> bool:
        assert isinstance(levels, dict)
        before = dict(self.levels)
        self.levels = dict(levels) if whole else {**self.levels, **levels}
        return before != self.levels

    async def persist(self) -> None:
        """Write it down."""
        self._file.write_bytes(self.offsets().encode())


async def run_now(work: Callable[[], object]) -> object:
    """Carries blocking work out at once."""
    return work()


class Replica:
    """One broker's metadata."""

    def __init__(
        self,
        folder: Path,
        store: MemoryStore | None = None,
        *,
        asker: Asker | None = None,
        master: Callable[[], Master | None] = lambda: None,
        **settings: object,
    ) -> None:
        self.folder = folder
        (folder / "config").mkdir(parents=True, exist_ok=True)
        self.settings = BrokerSettings(
            store_path_root_dir=folder,
            enable_controller_mode=True,
            controller_addr="127.0.0.1:9878",
            **settings,  # type: ignore[arg-type]  # by name
        )
        live, clock = LiveSettings(self.settings), ManualClock()
        self.store = store or MemoryStore()
        self.topics = TopicManager(live, clock)
        self.groups = GroupManager(live, clock)
        self.offsets = OffsetManager(live, clock)
        self.delay = Delay(folder / "config" / "delayOffset.json")
        self.ordered = OrderedTables(folder / "config" / FILE_NAME)
        self.request_modes = RequestModes(folder / "config")
        self.order_locks = OrderTable(folder / "config")
        self.access = AccessTable(folder / "config")
        self.tables = Tables(
            topics=self.topics,
            groups=self.groups,
            offsets=self.offsets,
            delay=self.delay,
            queues=self.store,
            ordered=self.ordered,
            request_modes=self.request_modes,
            order_locks=self.order_locks,
            access=self.access,
        )
        self.waiting: list[tuple[int, Callable[[PutStatus], None]]] = []
        self.log = MetadataLog(
            settings=lambda: self.settings,
            store=self.store,
            tables=self.tables,
            stamp=StampFile(RealDisk(folder / "config")),
            run_blocking=run_now,  # type: ignore[arg-type]  # carries everything out
            when_confirmed=lambda end, callback: self.waiting.append((end, callback)),
            asker=asker,
            master=master,
        )
        for manager in (
            self.topics,
            self.groups,
            self.offsets,
            self.ordered,
            self.request_modes,
            self.order_locks,
            self.access,
        ):
            manager.load()
        self.log.load()

    def confirm(self, offset: int | None = None) -> None:
        """Everything below `offset`, or all, is confirmed from now on."""
        limit = self.store.max_offset if offset is None else min(offset, self.store.max_offset)
        self.store.confirmed_offset = max(self.store.confirmed_offset, limit)
        self.log.confirmed(self.store.confirmed_offset)

    def end_waiting(self, status: PutStatus) -> None:
        """Tell who waits what became of the log."""
        waiting, self.waiting = self.waiting, []
        for _, callback in waiting:
            callback(status)

    def state(self) -> MetadataState:
        return self.tables.state()


async def settle(turns: int = 12) -> None:
    """Let what is ready on the loop run."""
    for _ in range(turns):
        await asyncio.sleep(0)


def copy_records(source: MemoryStore, target: MemoryStore, count: int | None = None) -> None:
    """Let `target`, whose log is a part of the beginning of `source`'s, have `count` more records of it."""
    missing = [record for record in source.records if record.offset >= target.max_offset]
    target.records += missing if count is None else missing[:count]


def common_end(one: Iterable[Stored], other: Iterable[Stored]) -> int:
    """Where two logs begin to differ."""
    end = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        end = left.end
    return end


def file_changes(
    topics: TopicManager, groups: GroupManager, offsets: OffsetManager, access: AccessTable | None = None
) -> FileChanges:
    """The changes of a broker without controllers, whose queues nobody deletes."""
    delay: Any = None
    tables = Tables(
        topics=topics, groups=groups, offsets=offsets, delay=delay, queues=MemoryStore(), access=access
    )
    return FileChanges(tables, lambda: 0)
