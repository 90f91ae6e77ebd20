"""Reading and extending the timer log over the buffers of its files (Java: `TimerLog`).

All units have the same size, so the place of every unit follows from the size of the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from brokerset_formats import native
from brokerset_formats.errors import FormatError
from brokerset_formats.timer_files import (
    TIMER_UNIT_SIZE,
    Buffer,
    TimerUnit,
    decode_timer_unit,
    encode_timer_blank,
    fits_in_file,
    last_unit_position,
)

FileAt = Callable[[int], Buffer | None]
"""Gives the whole file that begins at a position of the log, `None` if there is none."""


_CORE: Final = native.core


class Stretch(NamedTuple):
    """A part of the chain of a slot."""

    positions: list[int]
    """Of its units, newest first."""

    following: int
    """Position of the unit before them in the slot."""

    has_recalls: bool
    """Whether one of them deletes a message."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the next unit goes, and what has to be written before it at the log's end."""

    position: int
    blank: bytes
    """Of the file that has no room left; empty if there is room."""


class TimerLog:
    """Units by their position in the log. Holds nothing besides how to find the files."""

    __slots__ = ("_file_at", "begin", "file_bytes")

    def __init__(self, file_bytes: int, file_at: FileAt, begin: int = 0) -> None:
        """`file_bytes` is the size of each file, `begin` the position of the first one that exists."""
        self.file_bytes = file_bytes
        self.begin = begin
        self._file_at = file_at

    def place(self, end: int) -> Place:
        """Where a unit is appended to a log that ends at `end`."""
        inside = end % self.file_bytes
        if fits_in_file(inside, self.file_bytes):
            return Place(end, b"")
        return Place(end - inside + self.file_bytes, encode_timer_blank(self.file_bytes - inside))

    def after(self, position: int) -> int:
        """Position of the unit behind the one at `position`, whether it was written or not."""
        return self.place(position + TIMER_UNIT_SIZE).position

    def before(self, position: int) -> int | None:
        """Position of the unit before `position`, which may be the log's end; `None` at the log's begin."""
        inside = position % self.file_bytes
        if inside:
            found = position - TIMER_UNIT_SIZE
        else:
            found = position - self.file_bytes + last_unit_position(self.file_bytes)
        return found if found >= self.begin else None

    def file_before(self, position: int) -> int:
        """Beginning of the file before the one that has `position`, or of the log."""
        return max(self.begin, position - position % self.file_bytes - self.file_bytes)

    def unit(self, position: int) -> TimerUnit:
        """The unit at `position`; FormatError, with the position in the log, if there is none."""
        inside = position % self.file_bytes
        buffer = self._file_at(position - inside) if position >= self.begin else None
        if buffer is None:
            raise FormatError("the timer log has no file here", position)
        try:
            unit = decode_timer_unit(buffer, inside)
        except FormatError as error:
            raise FormatError(error.reason, position) from error
        if unit.previous_position >= position:
            raise FormatError("a unit of the timer log follows one behind it", position)
        return unit

    def file_at(self, position: int) -> tuple[Buffer, int] | None:
        """The file that has a position of the log, and where it begins; None if there is none."""
        inside = position % self.file_bytes
        buffer = self._file_at(position - inside) if position >= self.begin else None
        return None if buffer is None else (buffer, position - inside)

    def chain(self, position: int, slot_ms: int, *, stop: int, begin: int, count_max: int) -> Stretch:
        """The chain of a slot from `position` back: some units, at most `count_max`, none before `begin` and
        none from `stop` on. FormatError if the first one is damaged, or of another slot."""
        file = None if _CORE is None else self.file_at(position)
        if _CORE is not None and file is not None:
            found = _CORE.timer_chain(*file, position, stop, begin, slot_ms, count_max)
            if found[0]:
                return Stretch(*found)
        return chain_of(self.unit, position, slot_ms, stop=stop, begin=begin, count_max=count_max)

    def passed(self, position: int, end: int, read_ms: int, count_max: int) -> tuple[int, bool]:
        """Go on from `position` over at most so many units that are in slots before `read_ms`: where that
        ends, and whether nothing more is to be passed: another unit is there, a damaged one, or `end`."""
        left = count_max
        while left > 0:
            file = None if _CORE is None else self.file_at(position)
            if _CORE is not None and file is not None:
                count = _CORE.timer_passed(*file, position, end, read_ms, left)
                left -= count
                position = self.place(position + count * TIMER_UNIT_SIZE).position
            if position >= end:
                return end, True
            if left <= 0:
                break
            try:
                if self.unit(position).slot_ms >= read_ms:
                    return position, True
            except FormatError:
                return position, True
            position = self.after(position)
            left -= 1
        return min(position, end), position >= end

    def units(self, start: int, end: int) -> Iterator[tuple[int, TimerUnit]]:
        """The units of [start, end) with their positions; FormatError at one that is damaged."""
        position = start
        while position < end:
            yield position, self.unit(position)
            position = self.after(position)

    def valid_end(self, start: int) -> int:
        """Position of the first unit from `start` on that is damaged or was never written."""
        position = self.place(start).position
        while True:
            try:
                self.unit(position)
            except FormatError:
                return position
            position = self.after(position)


def chain_of(
    unit_at: Callable[[int], TimerUnit], position: int, slot_ms: int, *, stop: int, begin: int, count_max: int
) -> Stretch:
    """`TimerLog.chain`, unit by unit."""
    positions: list[int] = []
    has_recalls = False
    while len(positions) < count_max and position != stop and position >= begin:
        try:
            unit = unit_at(position)
            if unit.slot_ms != slot_ms or unit.previous_position >= position:
                raise FormatError(f"the unit does not belong to the slot of {slot_ms}", position)
        except FormatError:
            if positions:
                break
            raise
        positions.append(position)
        has_recalls = has_recalls or unit.deletes
        position = unit.previous_position
    return Stretch(positions, position, has_recalls)
