"""Delay levels: which waits there are, and how a message is put aside for one of them (Java: HookUtils)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from brokerset_broker.store.property_edits import edit_properties
from brokerset_formats.names import SCHEDULE_TOPIC
from brokerset_formats.properties import Property

_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

UNKNOWN_LEVEL_MS: Final = 1_000
"""Delay of a level that the setting does not have, as in Java."""

CLOCK_STEP_MS_MAX: Final = 10_000
"""How far the clock may have been set back before delivery times are taken for wrong."""


class DelayLevels:
    """The table of `messageDelayLevel`; levels count from 1, the queue of level n is n - 1."""

    __slots__ = ("_delays_ms",)

    def __init__(self, delays_ms: Sequence[int]) -> None:
        self._delays_ms = tuple(delays_ms)

    @classmethod
    def parse(cls, text: str) -> DelayLevels:
        """Read `1s 5s 10s 1m 2h`. Raises `ValueError` that names the entry."""
        delays = []
        for entry in text.split():
            number, unit = entry[:-1], entry[-1:]
            if unit not in _UNIT_MS or not number.isascii() or not number.isdigit() or int(number) == 0:
                raise ValueError(f"delay level {entry!r} is not a number followed by s, m, h or d")
            delays.append(int(number) * _UNIT_MS[unit])
        if not delays:
            raise ValueError("messageDelayLevel names no level")
        return cls(delays)

    @property
    def highest(self) -> int:
        """The last level; a higher wish gets this one."""
        return len(self._delays_ms)

    def delay_ms(self, level: int) -> int:
        """Milliseconds that a message of `level` waits."""
        return self._delays_ms[level - 1] if 1 <= level <= len(self._delays_ms) else UNKNOWN_LEVEL_MS

    def due_ms(self, level: int, store_timestamp: int, now_ms: int) -> int:
        """When a message stored at `store_timestamp` is to be delivered.

        At once if it was stored well in the future, as Java does: after the clock was set back, messages must
        not wait for years.
        """
        if store_timestamp > now_ms + CLOCK_STEP_MS_MAX:
            return now_ms
        return store_timestamp + self.delay_ms(level)

    def put_aside(self, topic: str, queue_id: int, level: int, properties: bytes) -> tuple[str, int, bytes]:
        """Topic, queue and properties under which a message for `topic` waits. `level` is positive."""
        level = min(level, self.highest)
        changes = {Property.DELAY: str(level), Property.REAL_TOPIC: topic, Property.REAL_QID: str(queue_id)}
        return SCHEDULE_TOPIC, level - 1, edit_properties(properties, changes)
