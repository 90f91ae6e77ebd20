"""Counts what waits in the timer log, by topic, in small steps next to other work."""

from __future__ import annotations

from typing import Final

from brokerset_broker.services.timers.counts import TimerCounts
from brokerset_broker.services.timers.work import TimerReader, TimerWork
from brokerset_broker.timers.timer_log import TimerLog
from brokerset_formats.errors import FormatError
from brokerset_formats.properties import Property, find_property

UNITS_AT_ONCE: Final = 512
"""Units counted in one step: a millisecond."""


class Recount:
    """Counts the units that were there when it was made; what comes and goes since is counted as it happens.

    So the sums are right at its end, and may be negative on the way.
    """

    def __init__(self, counts: TimerCounts, log: TimerLog, work: TimerWork, reader: TimerReader) -> None:
        counts.forget_waiting()
        self._counts = counts
        self._log = log
        self._reader = reader
        self._position = max(work.oldest, log.begin)
        self._end = work.state.log_position
        self._read_ms = work.state.progress.read_ms
        self._topics: dict[int, str] = {}

    def go_on(self) -> bool:
        """Count some more; whether there are more."""
        for _ in range(UNITS_AT_ONCE):
            if self._position >= self._end:
                return False
            try:
                unit = self._log.unit(self._position)
            except FormatError:
                return False
            self._position = self._log.after(self._position)
            if unit.slot_ms < self._read_ms:
                continue
            topic = self._topics.get(unit.topic_hash)
            if topic is None:
                record = self._reader.head(unit.offset)
                found = record and find_property(record.properties, Property.REAL_TOPIC.encode())
                if not found:
                    continue
                topic = self._topics[unit.topic_hash] = found.decode()
            self._counts.found(unit, topic)
        return self._position < self._end
