"""The reading half of the message store: by queue, by offset of the log, by time and by key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from brokerset_broker.store.commit_log import CommitLog
from brokerset_broker.store.confirmation import Confirmation
from brokerset_broker.store.consume_queue import ConsumeQueue
from brokerset_broker.store.consume_queues import ConsumeQueues
from brokerset_broker.store.index import IndexService
from brokerset_broker.store.reading import (
    PlainSource,
    PropertyFilter,
    ReadLimits,
    no_queue,
    not_yet_readable,
    plain_source,
    read_messages,
)
from brokerset_broker.store.results import Boundary, GetResult, QueryResult
from brokerset_broker.store.search import queue_offset_by_time, store_time_at
from brokerset_spec.broker_settings import BrokerSettings


class StoreReads:
    """What `MessageStore` answers; it makes and keeps what is declared here."""

    log: CommitLog
    queues_table: ConsumeQueues
    index: IndexService | None
    confirmation: Confirmation
    _settings: BrokerSettings
    _table: dict[tuple[str, int], ConsumeQueue]
    _readable_end: int
    """Consumers get what lies below."""

    _announced_end: int
    """Below it lies what clients are told of."""

    @property
    def flushed_offset(self) -> int:
        """Everything below is on disk."""
        return self.log.flushed_offset

    @property
    def max_offset(self) -> int:
        """Where the next record begins."""
        return self.log.max_offset

    @property
    def min_offset(self) -> int:
        """Offset of the oldest record."""
        return self.log.min_offset

    @property
    def confirmed_offset(self) -> int:
        """All in-sync replicas have what lies below; the end of the log when nothing is replicated."""
        return self.confirmation.offset

    def get(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_messages: int,
        max_bytes: int,
        codes: frozenset[int] | None = None,
        wanted_only: PropertyFilter | None = None,
    ) -> GetResult:
        """Messages of a queue from `queue_offset` on, in whole records.

        At most `max_messages` and, after the first, `max_bytes`; with `codes` those with such a tags code,
        and of these the ones that `wanted_only` matches.
        """
        queue = self._table.get((topic, queue_id))
        if queue is None:
            return no_queue()
        maximum = queue.next_offset
        if queue.last_end > self._readable_end:
            maximum = queue.end_below(self._readable_end)
            if maximum < queue_offset <= queue.next_offset:  # there, but not on disk yet: no wrong offset
                return not_yet_readable(queue, queue_offset, maximum)
        return read_messages(
            self.log, queue, queue_offset, maximum, ReadLimits(max_messages, max_bytes), codes, wanted_only
        )

    def is_next(self, topic: str, queue_id: int, queue_offset: int) -> bool:
        """Whether `get` would say OFFSET_OVERFLOW_ONE: this number comes next, or is not readable yet."""
        queue = self._table.get((topic, queue_id))
        if queue is None or queue_offset <= 0:
            return False
        maximum = end = queue.next_offset
        if queue.last_end > self._readable_end:
            maximum = queue.end_below(self._readable_end)
        return maximum <= queue_offset <= end

    def unread(self, topic: str, places: Iterable[tuple[int, int | None]]) -> list[tuple[int, int | None]]:
        """Queues that have more than what lies before a queue offset, each with how many messages: 0 if that
        is not simple to say, so that `get` has to be asked.

        `places` are queue ids with queue offsets; those with None are in the list with None.
        """
        table, end = self._table, min(self._readable_end, self._announced_end)
        found: list[tuple[int, int | None]] = []
        for place in places:
            queue_id, queue_offset = place
            queue = table.get((topic, queue_id))
            following = queue.next_offset if queue is not None else 0
            if queue_offset is None:
                found.append(place)
            elif queue is not None and queue.last_end > end:
                found.append((queue_id, 0))
            elif queue_offset != following:
                is_there = queue is not None and queue.min_offset <= queue_offset < following
                found.append((queue_id, following - queue_offset if is_there else 0))
        return found

    def plain_source(
        self, topic: str, queue_id: int, queue_offset: int, messages_max: int
    ) -> PlainSource | None:
        """Where `get` finds messages with any tag, if that is simple to say; see `reading.plain_source`."""
        queue = self._table.get((topic, queue_id))
        if queue is None:
            return None
        maximum = queue.next_offset
        if queue.last_end > self._readable_end:
            maximum = queue.end_below(self._readable_end)
        return plain_source(self.log, queue, queue_offset, maximum, messages_max)

    def queue_max(self, topic: str, queue_id: int) -> int:
        """The number that the next message of a queue gets, as consumers are told; 0 for an unknown queue.

        With replication messages that cannot be read yet do not count.
        """
        queue = self._table.get((topic, queue_id))
        if queue is None:
            return 0
        end = self._announced_end
        return queue.next_offset if queue.last_end <= end else queue.end_below(end)

    def queue_end(self, topic: str, queue_id: int) -> int:
        """The number that the next message of a queue gets, readable or not; 0 for an unknown queue."""
        queue = self._table.get((topic, queue_id))
        return queue.next_offset if queue is not None else 0

    def queue_min(self, topic: str, queue_id: int) -> int:
        """The number of the oldest message of a queue that is still there; 0 for an unknown queue."""
        queue = self._table.get((topic, queue_id))
        return queue.min_offset if queue is not None else 0

    def queue_offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: Boundary = Boundary.LOWER
    ) -> int:
        """The message stored at a time, see `Boundary`; within the queue's bounds, 0 for an unknown queue."""
        queue = self._table.get((topic, queue_id))
        if queue is None:
            return 0
        maximum = self.queue_max(topic, queue_id)
        return queue_offset_by_time(self.log, queue, maximum, timestamp_ms, boundary)

    def earliest_store_time(self, topic: str, queue_id: int) -> int | None:
        """Store time (ms) of the oldest message of a queue; None if it has none that can be read."""
        oldest = self.queue_min(topic, queue_id)
        return (
            self.store_time_at(topic, queue_id, oldest) if oldest < self.queue_max(topic, queue_id) else None
        )

    def store_time_at(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        """Store time (ms) of one message; None if it is not there."""
        queue = self._table.get((topic, queue_id))
        return store_time_at(self.log, queue, queue_offset) if queue is not None else None

    def unit(self, topic: str, queue_id: int, queue_offset: int) -> tuple[int, int, int] | None:
        """Offset, size and tags code that the queue has for one message; None if it is not there."""
        queue = self._table.get((topic, queue_id))
        if queue is None or not queue.min_offset <= queue_offset < queue.next_offset:
            return None
        return queue.unit(queue_offset)

    def read(self, offset: int, size: int | None = None) -> memoryview | None:
        """The record at a commit log offset, or `size` bytes from there; None if the log has no such."""
        return self.log.read_record(offset) if size is None else self.log.read(offset, size)

    def read_announced(self, offset: int) -> memoryview | None:
        """The record at a commit log offset, if clients may see it: with replication, if it is confirmed."""
        record = self.log.read_record(offset)
        return record if record is not None and offset + len(record) <= self._announced_end else None

    def query(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> QueryResult:
        """Messages of a topic that have a key (or client-made id), stored in a span of time, oldest first.

        Others with the same hash may be among them; the asker compares the keys.
        """
        if self.index is None:
            return QueryResult([], 0, 0)
        count_max = min(max_count, self._settings.max_msgs_num_batch)
        answer = self.index.query(topic, key, count_max, begin_ms, end_ms)
        found = (self.read_announced(offset) for offset in sorted(answer.offsets))
        records = [record for record in found if record is not None]
        return QueryResult(records, answer.last_timestamp, answer.last_offset)

    def queue_ids(self, topic: str) -> list[int]:
        """Ids of the queues of a topic, sorted."""
        return self.queues_table.queue_ids(topic)

    def queues(self) -> Mapping[str, list[int]]:
        """Topic -> ids of its queues, sorted."""
        return self.queues_table.topics()
