"""The one place where the rest of the code gets the time from."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks in one: the wall for timestamps, a monotonic one for waits and leases."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970, as written into messages and files; may jump."""
        ...

    def monotonic(self) -> float:
        """Return seconds that only grow; the origin means nothing."""
        ...


class SystemClock:
    """The machine's own clocks."""

    __slots__ = ()

    def now_ms(self) -> int:
        """Return milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Return seconds since some start; it runs on while the machine sleeps, as leases need it."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)


class ManualClock:
    """A clock that stands still until a test moves it."""

    __slots__ = ("_monotonic_ns", "_now_ms")

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ns = 0

    def now_ms(self) -> int:
        """Return milliseconds since 1970."""
        return self._now_ms

    def monotonic(self) -> float:
        """Return the seconds that `advance` was called for."""
        return self._monotonic_ns / 1e9

    def advance(self, ms: int) -> None:
        """Let `ms` milliseconds pass on both clocks."""
        if ms < 0:
            raise ValueError("time does not run backwards; use jump for the wall clock")
        self._now_ms += ms
        self._monotonic_ns += ms * 1_000_000

    def jump(self, ms: int) -> None:
        """Move the wall clock alone, also backwards, as an administrator or NTP does."""
        self._now_ms += ms
