"""A wall clock that a test moves while the broker's own work goes on in real time."""

from __future__ import annotations

from brokerset_runtime.clock import SystemClock


class MovedClock(SystemClock):
    """The machine's clocks; the wall's is `moved_ms` ahead of the machine's."""

    __slots__ = ("moved_ms",)

    def __init__(self) -> None:
        self.moved_ms = 0

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        return super().now_ms() + self.moved_ms
