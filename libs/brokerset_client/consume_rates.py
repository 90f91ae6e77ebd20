"""What a consumer did of late, topic by topic: pulls, listeners, failures; for its running info.

Source: `ConsumerStatsManager`, which samples on a timer. Here sums are kept in slots of time, so that
nothing runs while nothing happens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from brokerset_protocol.bodies.connections import ConsumeRates

MINUTE: Final = 60.0
HOUR: Final = 3600.0
SLOTS: Final = 6
"""Slots of one window: the oldest part of a sixth is left out or in."""

TOPICS_MAX: Final = 1_000
"""Topics with rates; what a consumer reads of further ones is not counted."""


class Window:
    """How often something happened in the last `seconds`, and the sum of what was measured."""

    __slots__ = ("_seconds", "_slots", "_step")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._step = seconds / SLOTS
        self._slots: dict[int, list[float]] = {}

    def add(self, now: float, value: float, times: int = 1) -> None:
        """It happened `times` times just now; `value` in sum."""
        number = int(now / self._step)
        slot = self._slots.get(number)
        if slot is None:
            self._drop(number)
            slot = self._slots[number] = [0, 0.0]
        slot[0] += times
        slot[1] += value

    def totals(self, now: float) -> tuple[int, float]:
        """How often, and the sum of values."""
        self._drop(int(now / self._step))
        return int(sum(slot[0] for slot in self._slots.values())), sum(s[1] for s in self._slots.values())

    def rate(self, now: float) -> float:
        """Values in a second."""
        return self.totals(now)[1] / self._seconds

    def mean(self, now: float) -> float:
        """The mean value; 0 without any."""
        count, total = self.totals(now)
        return total / count if count else 0.0

    def _drop(self, number: int) -> None:
        for old in [old for old in self._slots if old <= number - SLOTS]:
            del self._slots[old]


class TopicWork:
    """The windows of one topic."""

    __slots__ = ("consume_ms", "done", "failed", "failed_hour", "pull_ms", "pulled")

    def __init__(self) -> None:
        self.pull_ms = Window(MINUTE)
        self.pulled = Window(MINUTE)
        self.consume_ms = Window(MINUTE)
        self.done = Window(MINUTE)
        self.failed = Window(MINUTE)
        self.failed_hour = Window(HOUR)


class ConsumerWork:
    """The windows of one consumer, by topic."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now` gives seconds of a clock that does not jump."""
        self._now = now
        self._topics: dict[str, TopicWork] = {}

    def pulled(self, topic: str, messages: int, seconds: float) -> None:
        """A pull was answered after `seconds`."""
        work = self._of(topic)
        if work is not None:
            now = self._now()
            work.pull_ms.add(now, seconds * 1000)
            work.pulled.add(now, messages)

    def consumed(self, topic: str, messages: int, seconds: float, *, failed: bool) -> None:
        """A listener ended with `messages` of `topic` after `seconds`."""
        work = self._of(topic)
        if work is None:
            return
        now = self._now()
        work.consume_ms.add(now, seconds * 1000)
        if failed:
            work.failed.add(now, messages)
            work.failed_hour.add(now, messages)
        else:
            work.done.add(now, messages)

    def rates(self, topic: str) -> ConsumeRates:
        """What an administrator sees of the topic."""
        work = self._topics.get(topic)
        if work is None:
            return ConsumeRates()
        now = self._now()
        return ConsumeRates(
            pull_rt=work.pull_ms.mean(now),
            pull_tps=work.pulled.rate(now),
            consume_rt=work.consume_ms.mean(now),
            consume_ok_tps=work.done.rate(now),
            consume_failed_tps=work.failed.rate(now),
            consume_failed_msgs=round(work.failed_hour.totals(now)[1]),
        )

    def forget(self, topic: str) -> None:
        """The consumer reads the topic no more."""
        self._topics.pop(topic, None)

    def _of(self, topic: str) -> TopicWork | None:
        work = self._topics.get(topic)
        if work is None and len(self._topics) < TOPICS_MAX:
            work = self._topics[topic] = TopicWork()
        return work
