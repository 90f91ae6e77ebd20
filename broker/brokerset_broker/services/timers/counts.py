"""Counters of timer messages: how many wait for which topic, how many came and went."""

from __future__ import annotations

from collections import Counter
from typing import Final

from brokerset_broker.store.releases import ReleasedTimers
from brokerset_broker.timers.dequeue import DropReason
from brokerset_broker.timers.messages import NEVER_ENQUEUED_MS, TimedMessage
from brokerset_formats.config import DataVersion
from brokerset_formats.hashing import java_hash
from brokerset_formats.timer_files import TimerCount, TimerMetrics, TimerUnit

TOPICS_MAX: Final = 100_000
"""Topics that are counted; messages of further ones wait uncounted."""


class TimerCounts:
    """Since the start of the process; what waits is counted from the log at each start and promotion."""

    def __init__(self) -> None:
        self._waiting: Counter[int] = Counter()
        self._names: dict[int, str] = {}
        self._changed: dict[int, int] = {}
        self.enqueued: Counter[str] = Counter()
        """Messages that were linked into the wheel, by the topic that they are for."""
        self.dequeued: Counter[str] = Counter()
        """Messages that were delivered, by topic."""
        self.last_delay_ms = 0
        """How late the newest delivered message was."""
        self.drops: Counter[DropReason] = Counter()

    def linked(self, message: TimedMessage) -> None:
        """A message got a unit."""
        if message.delete_key:
            return
        key = java_hash(message.topic)
        if key in self._names or len(self._names) < TOPICS_MAX:
            self.enqueued[message.topic] += 1
            self._names[key] = message.topic
            self._waiting[key] += 1
            self._changed[key] = message.store_ms

    def linked_many(self, topic: str, topic_hash: int, count: int, store_ms: int) -> None:
        """Messages of one topic that recall nothing got units; the last one was stored at `store_ms`."""
        if topic_hash in self._names or len(self._names) < TOPICS_MAX:
            self.enqueued[topic] += count
            self._names[topic_hash] = topic
            self._waiting[topic_hash] += count
            self._changed[topic_hash] = store_ms

    def found(self, unit: TimerUnit, topic: str) -> None:
        """A unit that waits was found in the log."""
        if not unit.deletes:
            self._names[unit.topic_hash] = topic
            self._waiting[unit.topic_hash] += 1

    def done(self, unit: TimerUnit) -> None:
        """A unit waits no more."""
        if not unit.deletes:
            self._waiting[unit.topic_hash] -= 1

    def dropped(self, reason: DropReason) -> None:
        """A message needed nothing when its slot was read."""
        self.drops[reason] += 1

    def delivered(self, message: TimedMessage, now_ms: int, enqueued_ms: int) -> None:
        """A message was delivered; `enqueued_ms` tells one that came without a unit."""
        if message.topic in self.dequeued or len(self.dequeued) < TOPICS_MAX:
            self.dequeued[message.topic] += 1
        self.last_delay_ms = max(0, now_ms - message.out_ms)
        if enqueued_ms != NEVER_ENQUEUED_MS:
            self._changed[java_hash(message.topic)] = now_ms

    def released(self, found: ReleasedTimers, now_ms: int) -> None:
        """Messages with units were delivered, many at once: `done` and `delivered` of each."""
        for topic_hash, count in found.hashes:
            self._waiting[topic_hash] -= count
        for topic, count in found.topics:
            if topic in self.dequeued or len(self.dequeued) < TOPICS_MAX:
                self.dequeued[topic] += count
            self._changed[java_hash(topic)] = now_ms
        self.last_delay_ms = max(0, now_ms - found.last_out_ms)

    def forget_waiting(self) -> None:
        """Count what waits from zero."""
        self._waiting.clear()
        self._changed.clear()

    @property
    def total(self) -> int:
        """Messages that wait."""
        return max(0, sum(self._waiting.values()))

    def waiting(self) -> dict[str, int]:
        """Messages that wait, by the topic that they are for."""
        return {self._names[key]: count for key, count in self._waiting.items() if count > 0}

    def metrics(self, version: DataVersion) -> TimerMetrics:
        """`config/timermetrics`, and the body of GET_TIMER_METRICS."""
        counts = {
            self._names[key]: TimerCount(count, self._changed.get(key, 0))
            for key, count in self._waiting.items()
            if count > 0
        }
        return TimerMetrics(version, counts)
