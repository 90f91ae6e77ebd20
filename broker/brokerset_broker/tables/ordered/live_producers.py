"""Producers of the queues that a master serves, up to the end of its log. Pure.

The replicated table (`state`) is up to a second older. This one is made of it and of the messages behind it
when the master first serves the queue, and goes with the role.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from brokerset_broker.tables.ordered.sequences import Stamps
from brokerset_broker.tables.ordered.state import QueueProducers
from brokerset_broker.tables.ordered.values import ProducersPart, ProducersPut, ProducerState, queue_key
from brokerset_formats.order_stamps import OrderStamp

PRODUCERS_MAX: Final = 1_024
"""Producers of one queue; a new one takes the place of the one that was idle longest, or is refused."""

PRODUCER_KEPT_MS: Final = 6 * 3_600_000
"""A producer that stored something in this time is never forgotten. It is longer than any client repeats a
send: a forgotten producer's first message would be stored again."""

TOTAL_PRODUCERS_MAX: Final = 200_000
"""Producers of all queues that a master has served; then the idle ones of all are forgotten, or a new one is
refused."""

SWEEP_MS: Final = 60_000
"""Time between two searches for idle producers in all queues, each of which takes milliseconds."""

RECORD_MESSAGES: Final = 10_000
"""After so many messages of a queue a record of its producers is written; in any case after a second."""


class LiveQueue:
    """The producers of one queue."""

    __slots__ = ("changed", "complete_to", "gone", "producers", "unwritten")

    def __init__(self, known: QueueProducers | None, begin: int) -> None:
        """`begin` is the first queue offset that is counted next."""
        self.producers: dict[str, ProducerState] = {} if known is None else dict(known.producers)
        self.complete_to = begin
        self.changed: dict[str, None] = {}
        self.gone: dict[str, None] = {}
        self.unwritten = 0
        """Messages since the last record."""

    def count(self, stamp: OrderStamp, queue_offset: int, stored_ms: int) -> None:
        """Count a message that the log has."""
        producer = stamp.producer_id
        known = self.producers.get(producer)
        if known is None or (stamp.producer_epoch, stamp.sequence) >= (known.epoch, known.next_sequence):
            self._put(
                producer, ProducerState(stamp.producer_epoch, stamp.sequence + 1, queue_offset, stored_ms)
            )
        self.complete_to = queue_offset + 1

    def stored(self, stamps: Stamps, last_queue_offset: int, stored_ms: int, count: int) -> None:
        """The last `count` messages of a request were stored."""
        following = stamps.first + stamps.messages
        self._put(stamps.producer_id, ProducerState(stamps.epoch, following, last_queue_offset, stored_ms))
        self.complete_to = last_queue_offset + 1
        self.unwritten += count

    def _put(self, producer: str, state: ProducerState) -> None:
        self.producers.pop(producer, None)  # at the end: the order is that of the last messages
        self.producers[producer] = state
        self.changed[producer] = None
        self.gone.pop(producer, None)

    def make_room(self, now_ms: int) -> bool:
        """Forget who was idle longest if there are too many; whether one more has room."""
        while len(self.producers) >= PRODUCERS_MAX:
            oldest = min(self.producers, key=lambda name: self.producers[name].stored_ms)
            if now_ms - self.producers[oldest].stored_ms < PRODUCER_KEPT_MS:
                return False
            del self.producers[oldest]
            self.changed.pop(oldest, None)
            self.gone[oldest] = None
        return True

    def forget_idle(self, now_ms: int) -> None:
        """Forget all who may be forgotten."""
        for name in [
            name for name, state in self.producers.items() if now_ms - state.stored_ms >= PRODUCER_KEPT_MS
        ]:
            del self.producers[name]
            self.changed.pop(name, None)
            self.gone[name] = None

    def take_part(self) -> ProducersPart | None:
        """What has changed since the last call."""
        if not self.changed and not self.gone:
            return None
        part = ProducersPart(
            self.complete_to, {name: self.producers[name] for name in self.changed}, tuple(self.gone)
        )
        self.changed, self.gone, self.unwritten = {}, {}, 0
        return part


def counted_from(known: QueueProducers | None, queue_min: int, end: int) -> LiveQueue:
    """A queue's producers as `known`, from where on messages are to be counted up to `end`.

    What counts messages behind `end` is about a log that was truncated, and not to be believed: then the
    queue is counted from its oldest message, and only producers without a later one stay as they are known.
    """
    if known is None or known.complete_to <= end:
        return LiveQueue(known, max(queue_min, 0 if known is None else known.complete_to))
    older = {name: state for name, state in known.producers.items() if state.queue_offset < queue_min}
    queue = LiveQueue(QueueProducers(queue_min, older), queue_min)
    queue.gone = dict.fromkeys(name for name in known.producers if name not in older)
    return queue


class LiveProducers:
    """The queues that this master serves."""

    __slots__ = ("_dirty", "_queues", "_sizes", "_swept_ms", "generation", "total")

    def __init__(self) -> None:
        self._queues: dict[tuple[str, int], LiveQueue] = {}
        self._dirty: dict[tuple[str, int], None] = {}
        self._sizes: dict[tuple[str, int], int] = {}
        self._swept_ms: int | None = None
        self.total = 0
        """Producers of all queues."""

        self.generation = 0
        """Grows whenever some are forgotten: what was read before then is not to be put in."""

    def get(self, topic: str, queue_id: int) -> LiveQueue | None:
        """The producers of a queue; None before they were read."""
        return self._queues.get((topic, queue_id))

    def put(self, topic: str, queue_id: int, queue: LiveQueue) -> None:
        """The producers of a queue were read up to its end."""
        self._queues[topic, queue_id] = queue
        self.note(topic, queue_id)

    def note(self, topic: str, queue_id: int) -> None:
        """A queue has changed."""
        key = topic, queue_id
        self._dirty[key] = None
        size = len(self._queues[key].producers)
        self.total += size - self._sizes.get(key, 0)
        self._sizes[key] = size

    def has_room(self, now_ms: int) -> bool:
        """Whether there may be one more; if there are too many, those that are idle are forgotten first."""
        if self.total < TOTAL_PRODUCERS_MAX:
            return True
        if self._swept_ms is None or now_ms - self._swept_ms >= SWEEP_MS:
            self._swept_ms = now_ms
            for (topic, queue_id), queue in self._queues.items():
                before = len(queue.producers)
                queue.forget_idle(now_ms)
                if len(queue.producers) != before:
                    self.note(topic, queue_id)
        return self.total < TOTAL_PRODUCERS_MAX

    def take_changes(self) -> ProducersPut | None:
        """What has changed since the last call."""
        dirty, self._dirty = self._dirty, {}
        found = {}
        for topic, queue_id in dirty:
            queue = self._queues.get((topic, queue_id))
            part = None if queue is None else queue.take_part()
            if part is not None:
                found[queue_key(topic, queue_id)] = part
        return ProducersPut(found) if found else None

    def not_written(self, change: ProducersPut) -> None:
        """What `take_changes` gave got no record: it comes with the next one."""
        for (topic, queue_id), queue in self._queues.items():
            part = change.queues.get(queue_key(topic, queue_id))
            if part is not None:
                queue.changed = {**dict.fromkeys(part.put), **queue.changed}
                queue.gone = {**dict.fromkeys(part.gone), **queue.gone}
                self.note(topic, queue_id)

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted."""
        for key in [key for key in self._queues if key[0] == topic]:
            del self._queues[key]
            self._dirty.pop(key, None)
            self.total -= self._sizes.pop(key, 0)
        self.generation += 1

    def clear(self) -> None:
        """This broker leads no more, or begins to lead."""
        self._queues.clear()
        self._dirty.clear()
        self._sizes.clear()
        self._swept_ms, self.total = None, 0
        self.generation += 1

    def sizes(self) -> Mapping[tuple[str, int], int]:
        """Producers by queue, for metrics."""
        return {key: len(queue.producers) for key, queue in self._queues.items()}
