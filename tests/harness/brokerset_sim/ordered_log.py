"""The log of a broker in the world `ordered`: real records in a list, with queues, that can be truncated.

It stands in for `MessageStore`: what is appended is in its queue at once, consumers get what is confirmed.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from brokerset_broker.store.errors import PutStatus, StoreRefused
from brokerset_broker.store.results import Appended, AppendedBatch, Boundary, GetResult, GetStatus
from brokerset_broker.tables.metadata import records
from brokerset_broker.tables.metadata.records import METADATA_QUEUE_ID, METADATA_TOPIC, Kind
from brokerset_broker.tables.metadata.store_source import Written
from brokerset_formats.batches import BatchItem
from brokerset_formats.hashing import crc31, java_hash
from brokerset_formats.hosts import Host
from brokerset_formats.properties import PROPERTIES_SIZE_MAX, Property, decode_properties
from brokerset_formats.records import Record, decode_record, encode_record, magic_for
from brokerset_runtime.clock import Clock

Key = tuple[str, int]
"""Topic and queue id."""


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """One record; the same object on every broker that has it."""

    offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    data: bytes
    tags_code: int
    record: Record
    """What `data` says."""

    @property
    def end(self) -> int:
        """Offset behind it."""
        return self.offset + self.size


class NothingExpires:
    """A retention that removes nothing."""

    waiting_from: Callable[[], int] | None = None


class ModelStore:
    """The log of one broker's folder, and its queues. It outlives processes."""

    properties_size_max = PROPERTIES_SIZE_MAX
    append_age_ms = 0
    min_offset = 0

    def __init__(self, host: Host) -> None:
        self.store_host = host
        self.entries: list[Entry] = []
        self.confirmed_offset = 0
        self.clock: Clock | None = None
        """Of the process that appends."""

        self.refusal: str | None = "this broker does not lead"
        """Why nothing is appended."""

        self.on_append: Callable[[], None] = lambda: None
        self.on_arrival: Callable[[str, int, int, int | None], None] | None = None
        """As `MessageStore.on_arrival`: of what can be read."""

        self._queues: dict[Key, list[Entry]] = {}
        self._bases: dict[Key, int] = {}
        """First numbers of queues whose topic was deleted before."""

        self._timestamp = 0
        self.retention = NothingExpires()

    # -- for the group ------------------------------------------------------------------------------------

    @property
    def max_offset(self) -> int:
        """Where the next record begins."""
        return self.entries[-1].end if self.entries else 0

    @property
    def flushed_offset(self) -> int:
        """Nobody loses power here."""
        return self.max_offset

    def index_of(self, offset: int) -> int:
        """The place in `entries` of the record that begins at an offset, or behind it."""
        return bisect.bisect_left(self.entries, offset, key=lambda entry: entry.offset)

    def take(self, entry: Entry) -> None:
        """Append another broker's record."""
        assert entry.offset == self.max_offset, "records follow each other"
        self.entries.append(entry)
        self._queues.setdefault((entry.topic, entry.queue_id), []).append(entry)
        self._timestamp = max(self._timestamp, entry.record.store_timestamp)

    def truncate(self, offset: int) -> None:
        """Drop everything from an offset on."""
        while self.entries and self.entries[-1].end > offset:
            gone = self.entries.pop()
            queue = self._queues.get((gone.topic, gone.queue_id))
            if queue and queue[-1] is gone:
                queue.pop()
        self.confirmed_offset = min(self.confirmed_offset, offset)

    def confirm(self, offset: int) -> list[Entry]:
        """More may be read; returns what."""
        begin = self.index_of(self.confirmed_offset)
        self.confirmed_offset = max(self.confirmed_offset, offset)
        return self.entries[begin : self.index_of(self.confirmed_offset)]

    def announce(self, confirmed: Iterable[Entry]) -> None:
        """Tell parked pulls of it."""
        if self.on_arrival is None:
            return
        ends: dict[Key, int] = {}
        for entry in confirmed:
            ends[(entry.topic, entry.queue_id)] = entry.queue_offset + 1
        for (topic, queue_id), end in ends.items():
            self.on_arrival(topic, queue_id, end, None)

    # -- appending ----------------------------------------------------------------------------------------

    def append(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: bytes,
        *,
        flag: int,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
        tags_code: int | None = None,
    ) -> Appended:
        """As `MessageStore.append`."""
        if self.refusal is not None:
            raise StoreRefused(PutStatus.SERVICE_NOT_AVAILABLE, self.refusal)
        assert self.clock is not None, "somebody leads"
        key = (topic, queue_id)
        now = self._timestamp = max(self._timestamp, self.clock.now_ms())
        text = topic.encode()
        record = Record(
            magic=magic_for(text),
            body_crc=crc31(body),
            queue_id=queue_id,
            flag=flag,
            queue_offset=self.queue_end(topic, queue_id),
            offset=self.max_offset,
            sys_flag=sys_flag & ~0x30,
            born_timestamp=born_timestamp,
            born_host=Host.decode(born_host),
            store_timestamp=now,
            store_host=self.store_host,
            reconsume_times=reconsume_times,
            prepared_transaction_offset=prepared_transaction_offset,
            body=bytes(body),
            topic=topic,
            properties=bytes(properties),
        )
        data = encode_record(record)
        if tags_code is None:
            tag = decode_properties(bytes(properties)).get(Property.TAGS)
            tags_code = java_hash(tag) if tag else 0
        entry = Entry(record.offset, len(data), topic, queue_id, record.queue_offset, data, tags_code, record)
        self.entries.append(entry)
        self._queues.setdefault(key, []).append(entry)
        self.on_append()
        return Appended(entry.offset, entry.size, entry.queue_offset, now)

    def append_batch(
        self,
        topic: str,
        queue_id: int,
        items: Sequence[BatchItem],
        *,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        reconsume_times: int = 0,
    ) -> AppendedBatch:
        """As `MessageStore.append_batch`."""
        if not items:
            raise StoreRefused(PutStatus.MESSAGE_ILLEGAL, "the batch has no messages")
        made = [
            self.append(
                topic,
                queue_id,
                item.body,
                item.properties,
                flag=item.flag,
                sys_flag=sys_flag,
                born_timestamp=born_timestamp,
                born_host=born_host,
                reconsume_times=reconsume_times,
            )
            for item in items
        ]
        return AppendedBatch(
            [each.offset for each in made], made[0].queue_offset, made[-1].end, made[-1].store_timestamp
        )

    # -- reading ------------------------------------------------------------------------------------------

    def get(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_messages: int,
        max_bytes: int,
        codes: frozenset[int] | None = None,
    ) -> GetResult:
        """As `StoreReads.get`."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return GetResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0, [], 0, 0)
        low, high = self.queue_min(topic, queue_id), self.queue_max(topic, queue_id)
        if high == low:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, low, low, high, [], 0, 0)
        if queue_offset < low:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, low, low, high, [], 0, 0)
        if queue_offset >= high:
            if queue_offset == high or queue_offset <= self.queue_end(topic, queue_id):
                return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, queue_offset, low, high, [], 0, 0)
            return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, high, low, high, [], 0, 0)
        found: list[Entry] = []
        position, size = queue_offset, 0
        while position < high and len(found) < max_messages:
            entry = queue[position - low]
            if codes is None or (entry.tags_code & 0xFFFFFFFF) in {code & 0xFFFFFFFF for code in codes}:
                if found and size + entry.size > max_bytes:
                    break
                found.append(entry)
                size += entry.size
            position += 1
        if not found:
            return GetResult(GetStatus.NO_MATCHED_MESSAGE, position, low, high, [], 0, 0)
        parts = [memoryview(entry.data) for entry in found]
        return GetResult(GetStatus.FOUND, position, low, high, parts, len(found), size)

    def queue_min(self, topic: str, queue_id: int) -> int:
        """As `StoreReads.queue_min`."""
        return self._bases.get((topic, queue_id), 0)

    def queue_max(self, topic: str, queue_id: int) -> int:
        """As `StoreReads.queue_max`: what is confirmed."""
        queue = self._queues.get((topic, queue_id), [])
        base = self.queue_min(topic, queue_id)
        return base + bisect.bisect_right(queue, self.confirmed_offset, key=lambda entry: entry.end)

    def queue_end(self, topic: str, queue_id: int) -> int:
        """As `StoreReads.queue_end`: confirmed or not."""
        return self.queue_min(topic, queue_id) + len(self._queues.get((topic, queue_id), ()))

    def tail(self, topic: str, queue_id: int) -> tuple[int, int]:
        """As `MessageStore.tail`."""
        queue = self._queues.get((topic, queue_id))
        return (self.queue_end(topic, queue_id), queue[-1].end) if queue else (0, 0)

    def unit(self, topic: str, queue_id: int, queue_offset: int) -> tuple[int, int, int] | None:
        """As `StoreReads.unit`."""
        entry = self.entry(topic, queue_id, queue_offset)
        return None if entry is None else (entry.offset, entry.size, entry.tags_code)

    def entry(self, topic: str, queue_id: int, queue_offset: int) -> Entry | None:
        """The record of a message, confirmed or not."""
        queue = self._queues.get((topic, queue_id), [])
        position = queue_offset - self.queue_min(topic, queue_id)
        return queue[position] if 0 <= position < len(queue) else None

    def read(self, offset: int, size: int | None = None) -> memoryview | None:
        """As `StoreReads.read`."""
        index = self.index_of(offset)
        if index == len(self.entries) or self.entries[index].offset != offset:
            return None
        return memoryview(self.entries[index].data)

    def read_announced(self, offset: int) -> memoryview | None:
        """As `StoreReads.read_announced`."""
        found = self.read(offset)
        return found if found is not None and offset + len(found) <= self.confirmed_offset else None

    def queues(self) -> Mapping[str, list[int]]:
        """As `StoreReads.queues`."""
        found: dict[str, list[int]] = {}
        for topic, queue_id in sorted(self._queues):
            found.setdefault(topic, []).append(queue_id)
        return found

    def queue_offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: Boundary = Boundary.LOWER
    ) -> int:
        """Nobody asks."""
        raise NotImplementedError

    def earliest_store_time(self, topic: str, queue_id: int) -> int | None:
        """As `StoreReads.earliest_store_time`."""
        return self.store_time_at(topic, queue_id, self.queue_min(topic, queue_id))

    def store_time_at(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        """As `StoreReads.store_time_at`."""
        entry = self.entry(topic, queue_id, queue_offset)
        return None if entry is None else entry.record.store_timestamp

    # -- topics -------------------------------------------------------------------------------------------

    def forget_queues(self, topic: str, before: int) -> None:
        """As `MessageStore.forget_queues`: a deleted topic's numbers begin again."""
        for key in [key for key in self._queues if key[0] == topic]:
            queue = self._queues[key]
            if not queue or queue[-1].offset < before:
                del self._queues[key]
                self._bases.pop(key, None)

    delete_topic = forget_queues


class ModelSource:
    """Implements `MetadataStore` over such a log."""

    def __init__(self, store: ModelStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    @property
    def min_offset(self) -> int:
        return 0

    @property
    def max_offset(self) -> int:
        return self._store.max_offset

    @property
    def confirmed_offset(self) -> int:
        return self._store.confirmed_offset

    @property
    def queue_min(self) -> int:
        return 0

    @property
    def queue_max(self) -> int:
        return self._store.queue_end(METADATA_TOPIC, METADATA_QUEUE_ID)

    def units(self, queue_offset: int, count: int) -> Sequence[tuple[int, int, int]]:
        found: list[tuple[int, int, int]] = []
        for number in range(queue_offset, queue_offset + count):
            unit = self._store.unit(METADATA_TOPIC, METADATA_QUEUE_ID, number)
            if unit is None:
                break
            found.append(unit)
        return found

    def read(self, offset: int, size: int) -> bytes | None:
        data = self._store.read(offset)
        if data is None or len(data) != size:
            return None
        record = decode_record(data)
        return record.body if record.topic == METADATA_TOPIC else None

    def append(self, kind: Kind, body: bytes) -> Written:
        appended = self._store.append(
            METADATA_TOPIC,
            METADATA_QUEUE_ID,
            body,
            records.properties(kind),
            flag=0,
            sys_flag=0,
            born_timestamp=self._clock.now_ms(),
            born_host=self._store.store_host.encode(),
        )
        return Written(appended.offset, appended.end, appended.queue_offset)

    def forget_topic(self, topic: str, before: int) -> None:
        self._store.forget_queues(topic, before)

    def resting_queues(self, before: int) -> Iterator[tuple[str, dict[int, int]]]:
        return iter(())

    def begin_queues(self, topic: str, ends: Mapping[int, int]) -> bool:
        return False

    async def checkpoint(self) -> None:
        """There are no files."""
