"""Progress of one queue that is consumed out of order: only what is below the lowest unfinished may be
stored.

Source: `ProcessQueue`. A crash then repeats messages, but never skips one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WindowLimits:
    """Bounds of the messages of one queue that were fetched and are not finished; at one, fetching pauses."""

    messages_max: int = 1000
    """Java's `pullThresholdForQueue`."""

    bytes_max: int = 100 * 1024 * 1024
    """Java's `pullThresholdSizeForQueue`; stored sizes, so compressed bodies count compressed."""

    span_max: int = 2000
    """Highest minus lowest unfinished queue offset (`consumeConcurrentlyMaxSpan`): what a crash would
    repeat."""


class OffsetWindow:
    """The unfinished messages of one queue, in queue-offset order."""

    __slots__ = ("_bytes", "_order", "_sizes", "_top")

    def __init__(self, start: int) -> None:
        self._top = start
        self._order: deque[int] = deque()
        self._sizes: dict[int, int] = {}
        self._bytes = 0

    def add(self, entries: Iterable[tuple[int, int]], next_queue_offset: int) -> None:
        """Take in fetched messages as (queue offset, size), ascending; the queue was scanned up to
        `next_queue_offset`.

        Scanning may go further than the last message, when a filter dropped some.
        """
        for queue_offset, size in entries:
            assert not self._order or queue_offset > self._order[-1], "messages of a queue come in order"
            self._order.append(queue_offset)
            self._sizes[queue_offset] = size
            self._bytes += size
        self._top = max(self._top, next_queue_offset)

    def finish(self, queue_offset: int) -> None:
        """The message needs nothing more of this client. Finishing twice is harmless."""
        size = self._sizes.pop(queue_offset, None)
        if size is None:
            return
        self._bytes -= size
        order = self._order
        while order and order[0] not in self._sizes:
            order.popleft()

    @property
    def commit_offset(self) -> int:
        """The next queue offset to be consumed by whoever takes over."""
        return self._order[0] if self._order else self._top

    @property
    def count(self) -> int:
        """Unfinished messages."""
        return len(self._sizes)

    @property
    def bytes(self) -> int:
        """Stored bytes of the unfinished messages."""
        return self._bytes

    @property
    def span(self) -> int:
        """Distance from the lowest to the highest queue offset that is held back."""
        return self._order[-1] - self._order[0] if self._order else 0

    def is_full(self, limits: WindowLimits, *, by_span: bool = True) -> bool:
        """Whether fetching must pause; an orderly consumer has no span to watch."""
        return (
            len(self._sizes) >= limits.messages_max
            or self._bytes >= limits.bytes_max
            or (by_span and self.span >= limits.span_max)
        )
