"""Hosts and processes of the simulation: started, stopped, continued, killed."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar

from brokerset_runtime.disk import RunBlocking
from brokerset_sim.disk import ProcessGone
from brokerset_sim.loop import OWNER, VirtualLoop

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class Host:
    """One machine: its clock's error, its boots, and whether it is switched on."""

    name: str
    on: bool = True
    boots: int = 1
    clock_error_ms: int = 0
    boot_at: float = 0.0

    @property
    def boot_id(self) -> str:
        """Changes with each boot; without dots, as real ones."""
        return f"boot-{self.name.replace('.', '-')}-{self.boots}"


class HostClock:
    """Implements `brokerset_runtime.clock.Clock` on virtual time; the wall may be wrong and jump."""

    def __init__(self, loop: VirtualLoop, host: Host) -> None:
        self._loop = loop
        self._host = host

    def now_ms(self) -> int:
        return 1_700_000_000_000 + round(self._loop.time() * 1000) + self._host.clock_error_ms

    def monotonic(self) -> float:
        return self._loop.time() - self._host.boot_at


class Process:
    """Something that runs on a host. Everything it starts carries it as `OWNER`."""

    def __init__(
        self, loop: VirtualLoop, name: str, host: Host, on_death: Callable[[Process, BaseException], None]
    ):
        self.loop = loop
        self.name = name
        self.host = host
        self.alive = True
        self.paused = False
        self.node: Any = None
        """What of the world it is a process of."""

        self.threads: RunBlocking | None = None
        """Carries out what would run in threads; None for processes that have none."""

        self._on_death = on_death
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._context = contextvars.copy_context()
        self._context.run(OWNER.set, self)

    def __repr__(self) -> str:
        return self.name

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a plain function as this process."""
        return self._context.copy().run(function, *args, **kwargs)

    def soon(self, function: Callable[..., object], *args: object) -> None:
        """Run a plain function as this process, once it is not stopped any more, unless it is dead."""
        self.loop.call_soon(self._if_alive, function, args, context=self._context.copy())

    def _if_alive(self, function: Callable[..., object], args: tuple[object, ...]) -> None:
        if self.alive:
            function(*args)

    def spawn(self, work: Coroutine[Any, Any, Any], *, vital: bool = False) -> asyncio.Task[Any]:
        """Run a coroutine as this process. The end of a vital one by an error ends the process."""
        task = self.loop.create_task(work, context=self._context.copy())
        self._tasks[task] = None
        task.add_done_callback(self._vital_done if vital else self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None and self.alive:
            self._on_death(self, error)

    def _vital_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not self.alive:
            if not task.cancelled():
                task.exception()
            return
        if not task.cancelled():
            self._on_death(self, task.exception() or RuntimeError("a task of the process ended"))

    @property
    def in_thread(self) -> Callable[[Callable[[], Any]], asyncio.Future[Any]] | None:
        """Starts work in a thread, as `run_in_executor` does: it goes on when whoever waits is cancelled."""
        return None if self.threads is None else self._in_thread

    def _in_thread(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self.loop.create_future()
        task = self.spawn(self._work(work, future))
        # Killed before its first step, it never comes to the end of `_work`: who waits would do so forever.
        task.add_done_callback(lambda _: future.done() or future.cancel())
        return future

    async def _work(self, work: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        assert self.threads is not None, "work was taken"
        result: Any = None
        failure: Exception | None = None
        try:
            result = await self.threads(partial(self._unless_dead, work))
        except Exception as error:  # the edge of a thread
            failure = error
        if future.done():
            return
        if failure is None:
            future.set_result(result)
        else:
            future.set_exception(failure)

    def _unless_dead(self, work: Callable[[], T]) -> T:
        if not self.alive:
            raise ProcessGone
        return work()

    def pause(self) -> None:
        """SIGSTOP."""
        if self.alive and not self.paused:
            self.paused = True
            self.loop.stop_owner(self)

    def unpause(self) -> None:
        """SIGCONT."""
        if self.paused:
            self.paused = False
            self.loop.continue_owner(self)

    def kill(self) -> None:
        """SIGKILL. What its tasks still do on their way out reaches nobody: disk and network are gone."""
        self.alive = False
        self.unpause()
        for task in list(self._tasks):
            task.cancel()

    def tasks(self) -> list[str]:
        """What of it has not ended."""
        return [str(task) for task in self._tasks]

    async def ended(self) -> None:
        """Wait until all tasks of a killed process are gone."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))


def real_error(error: BaseException) -> BaseException:
    """The first error inside groups of errors that is not merely a consequence of the process's death."""
    while isinstance(error, BaseExceptionGroup):
        inner = [each for each in error.exceptions if not isinstance(each, ProcessGone)]
        error = (inner or list(error.exceptions))[0]
    return error
