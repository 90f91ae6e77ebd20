"""What one pop takes of several queues: messages from each position on, within the limits of one answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.pop.choice import Source
from brokerset_broker.pop.order_locks import room
from brokerset_broker.pop.retry_records import as_original, queue_offsets, split_records
from brokerset_broker.requests.pop.log import PopLog
from brokerset_broker.requests.pop.positions import PopPositions
from brokerset_broker.requests.pull import pull_bytes_max
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.store.reading import PropertyFilter
from brokerset_broker.store.results import GetResult, GetStatus
from brokerset_formats.pop.names import NORMAL, retry_flag_of
from brokerset_formats.pop.offset_infos import encode_message_offsets, encode_start_offsets
from brokerset_runtime.clock import Clock
from brokerset_spec.broker_settings import BrokerSettings

ANSWER_BYTES_MAX: Final = 15 * 1024 * 1024
"""Bytes of the records of an answer with messages of several queues: a frame is limited to 16 MiB."""

READS_MAX: Final = 4
"""Reads of one queue in one go, while none of its messages is wanted; each examines 800 units or more."""

READ_SECONDS: Final = 0.001
"""How long one turn of the loop reads what is not wanted, which takes long with SQL filters: a later one goes
on."""

POSITIONS_MAX: Final = 256
"""Queues of a topic in which one turn of the loop finds where a group begins; about a millisecond."""

_PASSED_BY: Final = frozenset(
    {
        GetStatus.NO_MATCHED_MESSAGE,
        GetStatus.MESSAGE_WAS_REMOVING,
        GetStatus.OFFSET_TOO_SMALL,
        GetStatus.OFFSET_OVERFLOW_BADLY,
        GetStatus.OFFSET_FOUND_NULL,
        GetStatus.NO_MESSAGE_IN_QUEUE,
        GetStatus.NO_MATCHED_LOGIC_QUEUE,
    }
)
"""There is nothing for the group before the offset that the store names, or its position was wrong."""


class Taken(NamedTuple):
    """Messages of one queue."""

    topic: str
    flag: int
    """Retry flag of the topic."""
    queue_id: int
    start: int
    """Queue offset at which the pop began."""
    queue_offsets: Sequence[int]
    next_offset: int
    size: int
    """Bytes of the records in the answer."""


class Batch:
    """What one pop wants, and what it has got so far."""

    __slots__ = (
        "broker", "bytes_max", "codes", "from_newest", "group", "invisible_ms", "is_late", "is_new",
        "is_unfinished", "left", "parts", "pop_time", "queues", "rest", "revive_queue", "size", "topic",
        "until", "wanted_only",
    )  # fmt: skip

    def __init__(
        self,
        *,
        topic: str,
        group: str,
        messages_max: int,
        bytes_max: int,
        codes: frozenset[int] | None,
        wanted_only: PropertyFilter | None,
        from_newest: bool,
        pop_time: int,
        invisible_ms: int,
        revive_queue: int,
        broker: str,
        until: float,
    ) -> None:
        self.topic = topic
        self.group = group
        self.left = messages_max
        """Messages that there is room for."""
        self.bytes_max = bytes_max
        self.codes = codes
        self.wanted_only = wanted_only
        self.from_newest = from_newest
        self.pop_time = pop_time
        self.invisible_ms = invisible_ms
        self.revive_queue = revive_queue
        self.broker = broker
        self.queues: list[Taken] = []
        self.parts: list[bytes | memoryview] = []
        self.size = 0
        """Bytes of all parts."""
        self.rest = 0
        """Messages that the queues still have, wanted or not."""
        self.until = until
        """Monotonic seconds; the first read in vain after that makes it late."""
        self.is_late = False
        """Whether messages that are not wanted have taken the time of this turn."""
        self.is_unfinished = False
        """Whether messages of a queue were left that nobody has compared with what is wanted."""
        self.is_new = False
        """Whether the group's position is not known yet in some queue."""

    @property
    def is_full(self) -> bool:
        """Whether nothing more goes into the answer."""
        return self.left <= 0 or self.size >= self.bytes_max

    def starts(self) -> str:
        """`startOffsetInfo`."""
        return encode_start_offsets([(taken.flag, taken.queue_id, taken.start) for taken in self.queues])

    def offsets(self) -> str:
        """`msgOffsetInfo`."""
        return encode_message_offsets(
            [(taken.flag, taken.queue_id, taken.queue_offsets) for taken in self.queues]
        )


class QueueReader:
    """Reads one queue after the other into a batch; positions move past what is not wanted."""

    def __init__(
        self,
        *,
        live: LiveSettings,
        clock: Clock,
        store: MessageStore,
        positions: PopPositions,
        log: PopLog,
    ) -> None:
        self._clock = clock
        self._store = store
        self._positions = positions
        self._log = log
        self._use(live.current)
        live.on_change(lambda settings, _changed: self._use(settings))

    def _use(self, settings: BrokerSettings) -> None:
        self.bytes_max = pull_bytes_max(settings)
        """Bytes of an answer, after its first message."""
        self._as_stored = settings.pop_response_return_actual_retry_topic

    def read_all(self, batch: Batch, source: Source) -> None:
        """Take what there is room for of the queues of a topic, in their order.

        A group that is new to thousands of queues finds its positions in several turns of the loop: what was
        found stays, so the next turn goes on from there.
        """
        positions_left = POSITIONS_MAX
        for queue_id, left in self._positions.unread(source.topic, batch.group, source.queue_ids):
            if left is None:
                if not positions_left:
                    batch.is_unfinished = batch.is_new = True
                    continue
                positions_left -= 1
            elif left and (batch.is_full or batch.is_late):
                batch.rest += left
                batch.is_unfinished |= batch.is_late
                continue
            self.read(batch, source, queue_id)

    def read(self, batch: Batch, source: Source, queue_id: int) -> None:
        """Take what there is room for; count what is left."""
        topic, group, store = source.topic, batch.group, self._store
        position = self._positions.start(
            topic, group, queue_id, from_newest=batch.from_newest and not source.is_retry
        )
        if batch.is_full or batch.is_late or self._log.is_crowded(topic, group, queue_id):
            self._leave(batch, topic, queue_id, position)
            return
        bytes_left = batch.bytes_max - batch.size
        for _ in range(READS_MAX):
            result = store.get(
                topic, queue_id, position, batch.left, bytes_left, batch.codes, batch.wanted_only
            )
            if result.status is GetStatus.FOUND:
                self._add(batch, source, queue_id, position, result)
                return
            following = result.next_queue_offset
            if result.status not in _PASSED_BY or following == position:
                batch.rest += max(0, result.max_queue_offset - position)
                return
            self._log.move(topic, group, queue_id, following)
            position = following
            batch.is_late = self._clock.monotonic() >= batch.until
            if position >= result.max_queue_offset:
                return
            if batch.is_late:
                break
        batch.rest += max(0, result.max_queue_offset - position)
        batch.is_unfinished = True

    def read_in_order(
        self, batch: Batch, source: Source, queue_id: int, passed_by: Callable[[int], frozenset[int]]
    ) -> None:
        """Take what there is room for, in the answer and in a lock, and leave the group's position before it.

        `passed_by`: messages from a position on that the group has acknowledged.
        """
        topic, group, store = source.topic, batch.group, self._store
        position = self._positions.start(topic, group, queue_id, from_newest=batch.from_newest)
        if batch.is_full or batch.is_late:
            self._leave(batch, topic, queue_id, position)
            return
        done = passed_by(position)
        count_max = min(batch.left, room(done))
        bytes_left = batch.bytes_max - batch.size
        for _ in range(READS_MAX):
            result = store.get(
                topic, queue_id, position, count_max + len(done), bytes_left, batch.codes, batch.wanted_only
            )
            following = result.next_queue_offset
            if result.status is GetStatus.FOUND:
                offsets = queue_offsets(result.parts)
                open_ones = [place for place, offset in enumerate(offsets) if offset not in done][:count_max]
                if open_ones:
                    records = list(split_records(result.parts))
                    self._add_in_order(
                        batch, source, queue_id, position, result.max_queue_offset,
                        [offsets[place] for place in open_ones], [records[place] for place in open_ones],
                    )  # fmt: skip
                    return
            elif result.status not in _PASSED_BY or following == position:
                batch.rest += max(0, result.max_queue_offset - position)
                return
            self._log.move(topic, group, queue_id, following)  # all before is acknowledged, or not wanted
            position = following
            batch.is_late = self._clock.monotonic() >= batch.until
            if position >= result.max_queue_offset:
                return
            if batch.is_late:
                break
        batch.rest += max(0, result.max_queue_offset - position)
        batch.is_unfinished = True

    def _leave(self, batch: Batch, topic: str, queue_id: int, position: int) -> None:
        """Count what a queue has for others, or for a later turn."""
        left = max(0, self._store.queue_max(topic, queue_id) - position)
        batch.rest += left
        batch.is_unfinished |= batch.is_late and left > 0

    @staticmethod
    def _add_in_order(
        batch: Batch,
        source: Source,
        queue_id: int,
        start: int,
        end: int,
        offsets: Sequence[int],
        records: Sequence[memoryview],
    ) -> None:
        size = sum(map(len, records))
        if batch.size and batch.size + size > ANSWER_BYTES_MAX:
            batch.rest += end - start
            return
        following = offsets[-1] + 1
        batch.queues.append(Taken(source.topic, NORMAL, queue_id, start, offsets, following, size))
        batch.parts += records
        batch.size += size
        batch.left -= len(offsets)
        batch.rest += max(0, end - following)

    def _add(self, batch: Batch, source: Source, queue_id: int, start: int, result: GetResult) -> None:
        if batch.size and batch.size + result.size > ANSWER_BYTES_MAX:
            batch.rest += result.max_queue_offset - start
            return
        count, following = result.message_count, result.next_queue_offset
        offsets: Sequence[int] = range(start, following)
        if len(offsets) != count:
            offsets = queue_offsets(result.parts)
        size = result.size
        flag = NORMAL
        if not source.is_retry:
            batch.parts += result.parts
        else:
            flag = retry_flag_of(source.topic)
            if self._as_stored:
                batch.parts += result.parts
            else:
                records = self._renamed(batch, flag, queue_id, start, offsets, result)
                size = sum(map(len, records))
                batch.parts += records
        batch.queues.append(Taken(source.topic, flag, queue_id, start, offsets, following, size))
        batch.size += size
        batch.left -= count
        batch.rest += max(0, result.max_queue_offset - following)

    @staticmethod
    def _renamed(
        batch: Batch, flag: int, queue_id: int, start: int, offsets: Sequence[int], result: GetResult
    ) -> list[bytes | memoryview]:
        """Records of a retry topic under the topic that was asked for, each with its handle."""
        topic = batch.topic.encode()
        who = f"{batch.pop_time} {batch.invisible_ms} {batch.revive_queue} {flag} {batch.broker}"
        handle = f"{start} {who} {queue_id}".encode()
        return [
            as_original(record, topic, b"%s %d" % (handle, offset)) or record
            for record, offset in zip(split_records(result.parts), offsets, strict=True)
        ]
