"""What a Shared group has acknowledged of a queue: a position, and ranges above it. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from brokerset_broker.tables.ordered.values import Ranges


class AckedRanges:
    """Everything below `position` is acknowledged, and what the ranges have."""

    __slots__ = ("_ends", "_firsts", "position")

    def __init__(self, position: int = 0, ranges: Ranges = ()) -> None:
        """`ranges` may lie below the position, or touch each other."""
        self.position = position
        """The first queue offset that is not acknowledged."""

        self._firsts: list[int] = []
        self._ends: list[int] = []
        for first, end in ranges:
            self.add(first, end)

    def __contains__(self, queue_offset: int) -> bool:
        return self.following(queue_offset) != queue_offset

    def __len__(self) -> int:
        """How many ranges there are above the position."""
        return len(self._firsts)

    @property
    def ranges(self) -> Ranges:
        """The ranges above the position, ascending: first, end (excluded). None touches another."""
        return tuple(zip(self._firsts, self._ends, strict=True))

    def following(self, queue_offset: int) -> int:
        """The first queue offset from this one on that is not acknowledged."""
        if queue_offset < self.position:
            return self.position
        index = bisect_right(self._firsts, queue_offset) - 1
        return max(queue_offset, self._ends[index]) if index >= 0 else queue_offset

    def add(self, first: int, end: int) -> None:
        """Acknowledge what lies from `first` on, below `end`."""
        first = max(first, self.position)
        if first >= end:
            return
        low, high = bisect_left(self._ends, first), bisect_right(self._firsts, end)
        if low < high:
            first, end = min(first, self._firsts[low]), max(end, self._ends[high - 1])
        if first == self.position:
            self.position = end
            del self._firsts[:high], self._ends[:high]
        else:
            self._firsts[low:high], self._ends[low:high] = [first], [end]
