"""The wheel of timer messages over any writable buffer, usually a mapped file (Java: `TimerWheel`).

Two times seven days of slots of a second each. A slot is the end of a chain of units in the timer log. A slot
counts only if it holds the very time that is asked for; otherwise it has an older one, which is over.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace

from brokerset_broker.timers.settings import TimerSettings
from brokerset_formats.errors import FormatError
from brokerset_formats.timer_files import NO_POSITION, SLOT, SLOT_SIZE, Slot, TimerUnit, decode_slot

_NUMBER = struct.Struct(">q24x")
_COUNTED = struct.Struct(">q16xi4x")

WritableBuffer = bytearray | memoryview


class TimerWheel:
    """Slots by time. Nothing is held besides the buffer, however many messages wait."""

    __slots__ = ("_buffer", "_precision_ms", "_total")

    def __init__(self, buffer: WritableBuffer, settings: TimerSettings) -> None:
        """`buffer` is the whole file; FormatError if its size is another than the settings ask for."""
        if len(buffer) != settings.wheel_bytes:
            raise FormatError(f"a timer wheel has {settings.wheel_bytes} bytes, not {len(buffer)}")
        self._buffer = memoryview(buffer)
        self._precision_ms = settings.slot_ms
        self._total = 2 * settings.wheel_slots

    @property
    def buffer(self) -> memoryview:
        """The whole file."""
        return self._buffer

    def slot(self, time_ms: int) -> Slot | None:
        """The slot of a time, `None` if no unit is linked to it."""
        number = time_ms // self._precision_ms
        found = decode_slot(self._buffer, number % self._total * SLOT_SIZE)
        return found if found.number == number > 0 and found.last_position != NO_POSITION else None

    def count(self, time_ms: int) -> int:
        """Messages that wait in the slot of a time."""
        found = self.slot(time_ms)
        return 0 if found is None else found.count

    def last_position(self, time_ms: int) -> int:
        """Of the newest unit in the slot of a time, `NO_POSITION` if it is empty."""
        found = self.slot(time_ms)
        return NO_POSITION if found is None else found.last_position

    def is_over(self, time_ms: int) -> bool:
        """Whether the slot of a time holds a later one already."""
        number = time_ms // self._precision_ms
        return decode_slot(self._buffer, number % self._total * SLOT_SIZE).number > number

    def link(self, unit: TimerUnit, position: int) -> None:
        """Make the unit at `position` of the log the newest of its slot."""
        number = unit.slot_ms // self._precision_ms
        found = self.slot(unit.slot_ms) or Slot(number, position, position)  # an older time ends here
        change = -1 if unit.deletes else 1
        self._put(replace(found, last_position=position, count=found.count + change))

    def unlink(self, unit: TimerUnit, position: int) -> bool:
        """Take the newest unit of its slot away again; whether it was the newest."""
        found = self.slot(unit.slot_ms)
        if found is None or found.last_position != position:
            return False
        first = NO_POSITION if unit.previous_position == NO_POSITION else found.first_position
        change = 1 if unit.deletes else -1
        self._put(
            replace(
                found,
                first_position=first,
                last_position=unit.previous_position,
                count=0 if first == NO_POSITION else found.count + change,
            )
        )
        return True

    def _put(self, slot: Slot) -> None:
        position = slot.number % self._total * SLOT_SIZE
        self._buffer[position : position + SLOT_SIZE] = slot.encode()

    def holds(self, time_ms: int, read_ms: int) -> bool:
        """Whether a slot for the time is free of messages of other times, if all before `read_ms` is done."""
        return time_ms < read_ms + self._total * self._precision_ms

    def next_used(self, from_ms: int, until_ms: int) -> int:
        """Time of the first slot in [from, until) that has units; `until_ms` if there is none.

        However far apart both are, each slot is inspected once at most.
        """
        number = from_ms // self._precision_ms
        for piece in self._pieces(number, -(-until_ms // self._precision_ms)):
            for (found,) in _NUMBER.iter_unpack(piece):
                if found == number and self.slot(number * self._precision_ms) is not None:
                    return number * self._precision_ms
                number += 1
        return until_ms

    def waiting(self, from_ms: int, until_ms: int | None = None) -> int:
        """Messages in all slots of [from, until), by default in a whole turn of the wheel."""
        first = from_ms // self._precision_ms
        last = first + self._total if until_ms is None else -(-until_ms // self._precision_ms)
        return sum(
            count
            for piece in self._pieces(first, last)
            for number, count in _COUNTED.iter_unpack(piece)
            if first <= number < last
        )

    def distribution(self, from_ms: int, bounds_s: Sequence[int]) -> dict[int, int]:
        """Waiting messages by the time left: for each bound in seconds those due after the one before it.

        Java exports them as `rocketmq_timer_message_snapshot`.
        """
        first = from_ms // self._precision_ms
        ends = [-(-(from_ms + bound * 1000) // self._precision_ms) for bound in bounds_s]
        counts = [0] * (len(ends) + 1)
        for piece in self._pieces(first, ends[-1] if ends else first):
            for number, count in _COUNTED.iter_unpack(piece):
                if count and first <= number < first + self._total:
                    counts[bisect_right(ends, number)] += count
        return dict(zip(bounds_s, counts, strict=False))

    def _pieces(self, first: int, last: int) -> Iterator[memoryview]:
        """The bytes of the slots with numbers in [first, last), each slot once, in order."""
        number, last = first, min(last, first + self._total)
        while number < last:
            index = number % self._total
            run = min(last - number, self._total - index)
            yield self._buffer[index * SLOT_SIZE : (index + run) * SLOT_SIZE]
            number += run

    # -- recovery -----------------------------------------------------------------------------------------

    def reset_beyond(self, log_end: int) -> int | None:
        """Empty every slot that names a unit at `log_end` or behind it; where to link again from.

        That is the lowest first position of those slots, `log_end` if none of them had an older unit, and
        `None` if there was no such slot. Their numbers are kept, so that nothing has to be remembered.
        """
        lowest: int | None = None
        for index, (number, first, last, _, magic) in enumerate(SLOT.iter_unpack(self._buffer)):
            if number > 0 and last >= log_end:
                lowest = min(log_end if lowest is None else lowest, first if first >= 0 else 0)
                empty = Slot(number, NO_POSITION, NO_POSITION, 0, magic)
                self._buffer[index * SLOT_SIZE : (index + 1) * SLOT_SIZE] = empty.encode()
        return lowest

    def clear(self) -> None:
        """Empty all slots."""
        self._buffer[:] = bytes(len(self._buffer))
