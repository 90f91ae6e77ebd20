"""Reading and extending the timer log over the buffers of its files (Java: `TimerLog`).

All units have the same size, so the place of every unit follows from the size of the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

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
