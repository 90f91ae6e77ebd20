"""Time that a busy machine does not take: what a process cannot use does not count, for the loop nor for leases.

A machine with neighbours stops a process for seconds. Servers whose leases and time-outs are shorter rightly end them
then; a test that has all of them in its own process did not want to see that, and its own waits end as well. On these
loops a stop of the process, or a callback that takes long, counts as `STEP_SECONDS_MAX`, for `loop.time`, for all
timers, and for `SystemClock.monotonic` while `counting` is in force. All parts of a test share this time, so what they
promise each other holds. The wall clock is the machine's.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any, Final

import uvloop

from brokerset_runtime.clock import SystemClock

TICK_SECONDS: Final = 0.01
"""How often a loop sees that it still gets its turn."""

STEP_SECONDS_MAX: Final = 0.025
"""What counts at most from one observation to the next: less than the shortest interval of heartbeats."""


class _Stops:
    """The seconds that have not counted so far, of all loops of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loops = 0
        self._seen = 0.0
        self._seconds = 0.0

    def seconds(self) -> float:
        """What has not counted until now; grows only while a loop runs."""
        if self._loops:
            now = time.monotonic()
            with self._lock:
                self._seconds += max(0.0, now - self._seen - STEP_SECONDS_MAX)
                self._seen = max(now, self._seen)
        return self._seconds

    def begin(self) -> None:
        """One more loop runs."""
        with self._lock:
            if not self._loops:
                self._seen = time.monotonic()
            self._loops += 1

    def end(self) -> None:
        """One loop fewer runs."""
        with self._lock:
            self._loops -= 1


_stops = _Stops()


class _Ticks:
    """Observes the time as long as a loop runs."""

    def __init__(self, call_later: Callable[..., asyncio.TimerHandle]) -> None:
        self._call_later = call_later
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        _stops.begin()
        self._tick()

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        _stops.end()

    def _tick(self) -> None:
        _stops.seconds()
        self._timer = self._call_later(TICK_SECONDS, self._tick)


class SteadyLoop(asyncio.SelectorEventLoop):
    """asyncio's loop on steady time."""

    def time(self) -> float:
        return time.monotonic() - _stops.seconds()

    def run_forever(self) -> None:
        with _Ticks(self.call_later):
            super().run_forever()


class _Timer(asyncio.TimerHandle):
    """Calls back when its steady time has come, which may be later than the real one."""

    def __init__(
        self,
        loop: SteadyUvloop,
        when: float,
        callback: Callable[..., object],
        args: Any,
        context: Context | None,
    ) -> None:
        super().__init__(when, callback, args, loop, context)
        self._steady = loop
        self._real: asyncio.Handle | None = None
        self.begin()

    def begin(self) -> None:
        """Wait for what is left."""
        self._real = self._steady.call_really_later(self.when() - self._steady.time(), self._due)

    def cancel(self) -> None:
        if self._real is not None:
            self._real.cancel()
        super().cancel()

    def _due(self) -> None:
        if self.when() - self._steady.time() > 0.0005:  # uvloop's timers count in milliseconds
            self.begin()
        else:
            self._real = None
            self._run()


class SteadyUvloop(uvloop.Loop):
    """uvloop's loop on steady time."""

    def time(self) -> float:
        return time.monotonic() - _stops.seconds()

    def run_forever(self) -> None:
        with _Ticks(self.call_really_later):
            super().run_forever()

    def call_really_later(self, delay: float, callback: Callable[..., object]) -> asyncio.TimerHandle:
        """A timer of the real loop."""
        return super().call_later(delay, callback)

    def call_later(  # type: ignore[override]  # typeshed spells the arguments as a TypeVarTuple
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """`call_at` of uvloop calls it, too."""
        return _Timer(self, self.time() + delay, callback, args, context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Called by asyncio's timers; nothing counts them here."""


@contextmanager
def counting() -> Iterator[None]:
    """`SystemClock.monotonic` is steady as well."""
    real = SystemClock.monotonic

    def monotonic(self: SystemClock) -> float:
        return real(self) - _stops.seconds()

    SystemClock.monotonic = monotonic  # type: ignore[method-assign]
    try:
        yield
    finally:
        SystemClock.monotonic = real  # type: ignore[method-assign]
