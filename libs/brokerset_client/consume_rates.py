"""What a consumer did of late, topic by topic: pulls, listeners, failures; for its running info.

Source: `ConsumerStatsManager`, which samples on a timer. Here sums are kept by slots of ten seconds, so
that nothing runs while nothing happens, and a message costs a few additions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from brokerset_protocol.bodies.connections import ConsumeRates

SLOT_SECONDS: Final = 10.0
MINUTE_SLOTS: Final = 6
"""Slots of the rates: the current one, which has only begun, and the five before it."""

HOUR_SLOTS: Final = 360

TOPICS_MAX: Final = 1_000
"""Topics with rates; what a consumer reads of further ones is not counted."""


class Slot:
    """Sums of one slot of time; times in seconds."""

    __slots__ = ("done", "failed", "number", "pull_time", "pulled", "pulls", "run_time", "runs")

    def __init__(self, number: int) -> None:
        self.number = number
        self.pulls = self.pulled = self.runs = self.done = self.failed = 0
        self.pull_time = self.run_time = 0.0


class TopicWork:
    """The slots of one topic: those of the last minute, and the failures of the last hour."""

    __slots__ = ("_failed", "_slots", "current")

    def __init__(self, number: int) -> None:
        self.current = Slot(number)
        self._slots: deque[Slot] = deque([self.current])
        self._failed: deque[tuple[int, int]] = deque()

    def slot(self, number: int) -> Slot:
        """The slot of that number, the current one from now on."""
        if self.current.failed:
            self._failed.append((self.current.number, self.current.failed))
        self.current = Slot(number)
        self._slots.append(self.current)
        self.drop(number)
        return self.current

    def drop(self, number: int) -> None:
        """Forget what is too old when `number` is the current slot."""
        while self._slots and self._slots[0].number <= number - MINUTE_SLOTS:
            self._slots.popleft()
        while self._failed and self._failed[0][0] <= number - HOUR_SLOTS:
            self._failed.popleft()

    def rates(self, number: int) -> ConsumeRates:
        """What an administrator sees when `number` is the current slot."""
        self.drop(number)
        slots = self._slots
        pulls, runs = sum(slot.pulls for slot in slots), sum(slot.runs for slot in slots)
        minute = SLOT_SECONDS * MINUTE_SLOTS
        failed_before = sum(failed for _, failed in self._failed)
        failed_now = self.current.failed if self.current.number > number - HOUR_SLOTS else 0
        return ConsumeRates(
            pull_rt=sum(slot.pull_time for slot in slots) * 1000 / pulls if pulls else 0.0,
            pull_tps=sum(slot.pulled for slot in slots) / minute,
            consume_rt=sum(slot.run_time for slot in slots) * 1000 / runs if runs else 0.0,
            consume_ok_tps=sum(slot.done for slot in slots) / minute,
            consume_failed_tps=sum(slot.failed for slot in slots) / minute,
            consume_failed_msgs=failed_before + failed_now,
        )


class ConsumerWork:
    """The work of one consumer, by topic."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now` gives seconds of a clock that does not jump."""
        self.now = now
        self._topics: dict[str, TopicWork] = {}

    def pulled(self, topic: str, messages: int, seconds: float) -> None:
        """A pull was answered after `seconds`."""
        slot = self._slot(topic, self.now())
        if slot is not None:
            slot.pulls += 1
            slot.pulled += messages
            slot.pull_time += seconds

    def consumed(self, topic: str, messages: int, begun: float, *, failed: bool) -> None:
        """A listener that began at `begun` ended with `messages` of `topic` now."""
        now = self.now()
        slot = self._slot(topic, now)
        if slot is not None:
            slot.runs += 1
            slot.run_time += now - begun
            if failed:
                slot.failed += messages
            else:
                slot.done += messages

    def rates(self, topic: str) -> ConsumeRates:
        """What an administrator sees of the topic."""
        work = self._topics.get(topic)
        return ConsumeRates() if work is None else work.rates(int(self.now() / SLOT_SECONDS))

    def forget(self, topic: str) -> None:
        """The consumer reads the topic no more."""
        self._topics.pop(topic, None)

    def _slot(self, topic: str, now: float) -> Slot | None:
        number = int(now / SLOT_SECONDS)
        work = self._topics.get(topic)
        if work is None:
            if len(self._topics) >= TOPICS_MAX:
                return None
            work = self._topics[topic] = TopicWork(number)
        slot = work.current
        return slot if slot.number == number else work.slot(number)
