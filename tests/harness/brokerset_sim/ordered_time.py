"""Time of the world `ordered`: each host's clock has an own rate, and timers of its processes go by it.

In reality the loop of a process and its monotonic clock are one clock. A process that believes that 30 s are
over, while 33 have passed, has both its deadlines and its timers wrong by the same factor; so it is here.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, TypeVar, cast

from brokerset_sim.loop import OWNER, VirtualLoop, without_collector
from brokerset_sim.process import Host, Process

T = TypeVar("T")

WALL_BEGIN_MS = 1_700_000_000_000

EARLY = 2e-9
"""A timer fires so much behind its time, in seconds: what rounding takes must not let it fire before it."""


class RatedHost(Host):
    """A machine whose clock runs faster or slower than the world's."""

    def __init__(self, name: str, rate: float = 1.0, start: float = 0.0) -> None:
        super().__init__(name)
        self.rate = rate
        """Its seconds for each second of the world."""

        self.start = start
        """What its monotonic clock says at the world's beginning."""

    def own_time(self, true: float) -> float:
        """What its monotonic clock says at a time of the world."""
        return self.start + true * self.rate

    def true_time(self, own: float) -> float:
        """When its monotonic clock says so."""
        return (own - self.start) / self.rate


class RatedClock:
    """Implements `brokerset_runtime.clock.Clock`; the wall jumps by `clock_error_ms` of the host."""

    def __init__(self, loop: DriftingLoop, host: RatedHost) -> None:
        self._loop = loop
        self._host = host

    def now_ms(self) -> int:
        return WALL_BEGIN_MS + int(self.monotonic() * 1_000) + self._host.clock_error_ms

    def monotonic(self) -> float:
        return self._host.own_time(self._loop.true_time())


class DriftingLoop(VirtualLoop):
    """A virtual loop whose `time` is that of the running process; it knows every task of each process."""

    def __init__(self) -> None:
        super().__init__()
        self._owned: dict[object, dict[asyncio.Task[Any], None]] = {}

    def true_time(self) -> float:
        """The world's time in seconds."""
        return self._jump.now

    def time(self) -> float:
        owner = OWNER.get()
        return self._jump.now if owner is None else cast(RatedProcess, owner).host.own_time(self._jump.now)

    def call_at(  # type: ignore[override]  # typeshed spells the arguments as a TypeVarTuple
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        owner = OWNER.get()
        if owner is not None:
            when = cast(RatedProcess, owner).host.true_time(when) + EARLY
        return super().call_at(when, callback, *args, context=context)

    def call_at_true(
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context
    ) -> asyncio.TimerHandle:
        """As `call_at`, by the world's time, in a context of nobody."""
        return self._schedule(when, callback, args, context)

    def _due(
        self,
        own: list[asyncio.TimerHandle],
        owner: Hashable,
        callback: Callable[..., object],
        args: tuple[Any, ...],
    ) -> None:
        if cast(RatedProcess, owner).alive:  # a process that was killed has no timers
            super()._due(own, owner, callback, args)

    def cancel_owned(self, owner: object) -> None:
        """Cancel every task that a process has begun, directly or not: it was killed."""
        for task in list(self._owned.pop(owner, ())):
            task.cancel()

    def _make_task(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Coroutine[Any, Any, Any],
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[Any]:
        task = super()._make_task(loop, work, context)
        owner = OWNER.get() if context is None else context.get(OWNER)
        if owner is not None:
            owned = self._owned.setdefault(owner, {})
            owned[task] = None
            task.add_done_callback(lambda done: owned.pop(done, None))
        return task


class Wire:
    """The loop as the network sees it: what is on its way is no process's, and goes by the world's time.

    So what a process sent before it was stopped arrives all the same.
    """

    def __init__(self, loop: DriftingLoop) -> None:
        self._loop = loop
        self._nobody = contextvars.Context()

    def time(self) -> float:
        """The world's time."""
        return self._loop.true_time()

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        """As the loop's."""
        return self._loop.call_at_true(when, callback, *args, context=self._nobody)

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        """As the loop's."""
        return self.call_at(self.time() + delay, callback, *args)

    def call_soon(self, callback: Callable[..., object], *args: Any) -> asyncio.Handle:
        """As the loop's."""
        return self._loop.call_soon(callback, *args, context=self._nobody)

    def create_future(self) -> asyncio.Future[Any]:
        """As the loop's."""
        return self._loop.create_future()


class RatedProcess(Process):
    """A process with the clock of its host; killing it ends every task that it has begun."""

    loop: DriftingLoop
    host: RatedHost

    @property
    def clock(self) -> RatedClock:
        """Of its host."""
        return RatedClock(self.loop, self.host)

    def kill(self) -> None:
        super().kill()
        self.loop.cancel_owned(self)


def run_drifting(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a fresh loop of this kind."""
    with without_collector(), asyncio.Runner(loop_factory=DriftingLoop) as runner:
        return runner.run(main)
