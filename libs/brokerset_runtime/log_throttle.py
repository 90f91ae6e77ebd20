"""Keeps what strangers can cause again and again from filling the log."""

from __future__ import annotations

LINE_SECONDS = 1.0
"""Least time between two lines of one kind."""


class LogThrottle:
    """Decides which lines of one kind are written: at most one in `LINE_SECONDS`, with the number left out.

    What is left out last is told by the next line only; counters in metrics miss nothing.
    """

    __slots__ = ("_next", "_suppressed")

    def __init__(self) -> None:
        self._next = float("-inf")
        self._suppressed = 0

    def admit(self, now: float) -> int | None:
        """Write the line that is due at `now` (monotonic seconds), with so many left out before it; or None:
        leave it out."""
        if now < self._next:
            self._suppressed += 1
            return None
        self._next = now + LINE_SECONDS
        suppressed, self._suppressed = self._suppressed, 0
        return suppressed
