"""What the settings of a broker mean for timer messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from brokerset_formats.timer_files import SLOT_SIZE, WHEEL_SLOTS, floor_time, valid_precision

BLANK_SLOTS: Final = 60
"""Slots that stay between a roll window and half the wheel (`TIMER_BLANK_SLOTS`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerSettings:
    """Settings with RocketMQ's defaults (`MessageStoreConfig`), and what follows from them."""

    enabled: bool = True
    """`timerWheelEnable`: messages with a timer are accepted."""

    precision_ms: int = 1000
    """`timerPrecisionMs`: width of a slot; rounded down to 100, 200, 500 or 1000."""

    max_delay_ms: int = 259_200_000
    """`timerMaxDelaySec` in milliseconds: longest wait that is accepted."""

    roll_window_slots: int = 172_800
    """`timerRollWindowSlot`: what waits for so many slots or more is put aside again in between."""

    slot_count_max: int = 2**31 - 1
    """`timerCongestNumEachSlot`: above it some messages are refused, from twice of it on all."""

    topic_in_delete_key: bool = False
    """`appendTopicForTimerDeleteKey`: recalls name the topic, too."""

    wheel_slots: int = WHEEL_SLOTS
    """Slots of half the wheel. Only tests have another number."""

    slot_ms: int = field(init=False)
    """Milliseconds of a slot; follows from the precision."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "slot_ms", valid_precision(self.precision_ms))

    @property
    def wheel_bytes(self) -> int:
        """Bytes of the file `timerwheel`."""
        return 2 * self.wheel_slots * SLOT_SIZE

    @property
    def wheel_ms(self) -> int:
        """Times that the wheel can hold at once: fourteen days at a precision of a second."""
        return 2 * self.wheel_slots * self.slot_ms

    @property
    def window_slots(self) -> int:
        """The roll window in use: a value that does not fit the wheel is replaced by the largest."""
        largest = self.wheel_slots - min(BLANK_SLOTS, self.wheel_slots // 4)
        return self.roll_window_slots if 2 <= self.roll_window_slots <= largest else largest

    def floor(self, time_ms: int) -> int:
        """Beginning of the slot of a time."""
        return floor_time(time_ms, self.slot_ms)

    def problems(self) -> list[str]:
        """Settings that cannot be used."""
        found = []
        if self.max_delay_ms <= 0:
            found.append("timerMaxDelaySec must be positive")
        if self.slot_count_max <= 0:
            found.append("timerCongestNumEachSlot must be positive")
        return found
