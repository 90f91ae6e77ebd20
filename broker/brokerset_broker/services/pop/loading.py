"""What is read of the revive topic.

When a broker begins to lead: all behind the progress. Later: what timers bring there, which are a Java
master's check points and acks.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heapreplace
from typing import Final

import structlog

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.pop.check_points import CheckPoints, EarlyKey
from brokerset_broker.requests.pop.log import EARLY_PROPERTY, LATER_PROPERTY, PopLog
from brokerset_broker.store.errors import PutStatus, StoreRefused
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.tables.groups import GroupManager
from brokerset_broker.tables.offsets import OffsetManager
from brokerset_broker.tables.topics import TopicManager
from brokerset_formats.errors import FormatError
from brokerset_formats.pop.names import REVIVE_GROUP
from brokerset_formats.pop.records import Acks, CheckPoint, decode_revive_record
from brokerset_formats.properties import Property, decode_properties
from brokerset_formats.records import body_and_properties, decode_record
from brokerset_runtime.clock import Clock

log = structlog.get_logger(__name__)

ACK_WAIT_MS: Final = 3_000
"""A check point that comes from the wheel waits so much longer for acks that are behind it, as with Java."""


class PopReader:
    """Feeds records of the revive topic into the open check points."""

    def __init__(
        self,
        *,
        live: LiveSettings,
        store: MessageStore,
        clock: Clock,
        topics: TopicManager,
        groups: GroupManager,
        offsets: OffsetManager,
        pops: PopLog,
    ) -> None:
        self._live = live
        self._store = store
        self._clock = clock
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._pops = pops
        self._ends: dict[tuple[str, str, int], int] = {}

    def load(self, points: CheckPoints) -> Iterator[bool]:
        """Read all behind the progress, some of it with each value that this gives.

        False: the next record was stored and is not in its queue yet, as with DLedger before it is applied.
        Raises `StoreRefused` for a record that cannot be read.
        """
        self._ends = {}
        store, topic = self._store, self._pops.topic
        behind: dict[int, int] = {}
        units: dict[int, tuple[int, int, int] | None] = {}
        heads = []
        for queue_id in self._queue_ids():
            end, _ = store.tail(topic, queue_id)
            saved = self._offsets.query(REVIVE_GROUP, topic, queue_id)
            begin = min(end, max(store.queue_min(topic, queue_id), 0 if saved is None else saved + 1))
            queue = points.queue(queue_id)
            queue.first = queue.end = begin
            behind[queue_id] = end
            heads.append((-1, queue_id, begin - 1))
        heapify(heads)
        while heads:  # in the order of the log: a group that went back may have popped by another queue
            log_offset, queue_id, place = heads[0]
            if log_offset >= 0:
                self._feed(points, queue_id, place, units[queue_id])
                yield True
            place += 1
            if place >= behind[queue_id]:
                heappop(heads)
                continue
            while place >= store.queue_end(topic, queue_id):
                yield False
            unit = units[queue_id] = store.unit(topic, queue_id, place)
            heapreplace(heads, (0 if unit is None else unit[0], queue_id, place))
        for queue_id, end in behind.items():
            points.queue(queue_id).end = self._pops.read_to[queue_id] = end
        self._pops.java_popped = self._is_of_java()
        for (name, group, number), position in self._ends.items():
            if self._topics.get(name) is None or self._groups.items.get(group) is None:
                continue  # deleted: who has the same name begins from the start
            source = points.source(name, group, number)
            source.committed = self._offsets.query(group, name, number)
            if self._offsets.has_reset(group, name, number):
                source.position = source.committed
            else:
                source.position = max(position, source.committed or 0)
                if source.position != source.committed:  # before the progress passes what says so
                    source.position_end = self._pops.end
                    self._pops.commits.moved(source)
        self._ends = {}

    def _is_of_java(self) -> bool:
        """Whether the newest record came by way of timers, as all of a Java master do, or there is none."""
        store, topic = self._store, self._pops.topic
        units = [store.unit(topic, queue_id, store.queue_end(topic, queue_id) - 1)
                 for queue_id in self._queue_ids()]  # fmt: skip
        newest = max([unit for unit in units if unit is not None], default=None)
        data = None if newest is None else store.read(newest[0], newest[1])
        if data is None:
            return True
        try:
            return Property.TIMER_ENQUEUE_MS in decode_properties(decode_record(data).properties)
        except FormatError:
            return True

    def catch_up(self, points: CheckPoints) -> Iterator[None]:
        """Read what has come into the topic and was not appended by this master's pops."""
        store, pops = self._store, self._pops
        for queue_id in self._queue_ids():
            place, end = pops.read_to.get(queue_id, 0), store.queue_end(pops.topic, queue_id)
            while place < end:
                if not pops.is_own_place(queue_id, place):
                    self._feed(points, queue_id, place, self._store.unit(pops.topic, queue_id, place))
                    self._ends.clear()  # where groups are is known since the loading
                points.note_record(queue_id, place)
                pops.was_read(queue_id, place)
                place += 1
                yield

    def _queue_ids(self) -> list[int]:
        """Those of the revive topic, also those of which all records are still to be applied."""
        topic = self._pops.topic
        config = self._topics.get(topic)
        known = self._store.queue_ids(topic)
        return sorted({*known, *range(config.write_queue_nums)}) if config is not None else known

    def _feed(
        self, points: CheckPoints, queue_id: int, place: int, unit: tuple[int, int, int] | None
    ) -> None:
        """`unit`: where the queue says that the record is."""
        store, topic = self._store, self._pops.topic
        data = None if unit is None else store.read(unit[0], unit[1])
        if data is None:
            if place < store.queue_min(topic, queue_id) or (unit is not None and unit[0] < store.min_offset):
                return  # deleted meanwhile
            raise StoreRefused(
                PutStatus.SERVICE_NOT_AVAILABLE, f"{topic}: record {place} of queue {queue_id} is unreadable"
            )
        try:
            body, raw = body_and_properties(data)
            properties = decode_properties(raw)
            record = decode_revive_record(properties.get(Property.TAGS, ""), body)
        except FormatError as error:
            log.error(
                "a record of POP is unreadable", queue_id=queue_id, queue_offset=place, reason=error.reason
            )
            return
        comes_late = Property.TIMER_ENQUEUE_MS in properties
        if isinstance(record, CheckPoint):
            if LATER_PROPERTY not in properties:
                self._note_end(record)
            if record.count:
                self._add(points, record, queue_id, place, comes_late=comes_late)
        elif isinstance(record, Acks):
            self._ack(points, record, properties.get(EARLY_PROPERTY, ""))

    def _add(
        self, points: CheckPoints, record: CheckPoint, queue_id: int, place: int, *, comes_late: bool
    ) -> None:
        wait = ACK_WAIT_MS if comes_late else self._live.current.pop_clock_skew_ms
        left_ms = record.visible_time - self._clock.now_ms() + wait
        left_ms = max(0, min(left_ms, record.invisible_time + wait))
        if comes_late:
            left_ms = max(left_ms, ACK_WAIT_MS)
        points.add(record, queue_id, place, self._clock.monotonic() + left_ms / 1000)

    def _note_end(self, record: CheckPoint) -> None:
        """The group's next pop of the queue begins behind the messages; or where it went back to."""
        key = (record.topic, record.group, record.queue_id)
        offsets = record.offsets
        self._ends[key] = max(self._ends.get(key, 0), max(offsets) + 1) if offsets else record.start_offset

    def _ack(self, points: CheckPoints, acks: Acks, early: str) -> None:
        source = points.source(acks.topic, acks.group, acks.queue_id)
        point = points.find(source, acks.start_offset, acks.pop_time)
        if point is not None:
            bits = 0
            for offset in acks.offsets:
                bits |= point.bit_of(offset)
                points.replace(point, offset)
            self._pops.acked(point, bits)
        elif early.isdecimal():
            key = EarlyKey(acks.topic, acks.group, acks.queue_id, acks.start_offset, acks.pop_time)
            points.ack_early(key, acks.offsets, int(early))
