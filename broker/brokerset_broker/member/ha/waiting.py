"""Sends that wait for replicas: thousands a second, so without a future or a task for each."""

from __future__ import annotations

import asyncio
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final

from brokerset_broker.store import answers
from brokerset_broker.store.errors import PutStatus

WAITERS_MAX: Final = 65_536
"""Sends that wait at a time; further ones are told at once that it takes too long."""

WhenDone = Callable[[PutStatus], None]


class Waiters:
    """Callbacks in the order of appends, answered in one pass; one timer for all."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, WhenDone, float]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, end: int, callback: WhenDone, timeout_seconds: float) -> None:
        """Have `callback` called when `answer_up_to` reaches `end`, or with FLUSH_SLAVE_TIMEOUT."""
        if len(self._waiting) >= WAITERS_MAX:
            callback(PutStatus.FLUSH_SLAVE_TIMEOUT)
            return
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        self._waiting.append((end, callback, deadline))
        if self._timer is None:
            self._timer = loop.call_at(deadline, self._expire)

    def answer_up_to(self, offset: int) -> None:
        """Everybody whose end is not behind `offset` is done."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= offset:
            answers.give(waiting.popleft()[1], PutStatus.PUT_OK)

    def answer_all(self, status: PutStatus) -> None:
        """Everybody gets `status`."""
        waiting, self._waiting = self._waiting, deque()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for _, callback, _ in waiting:
            answers.give(callback, status)

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        now = loop.time()
        waiting = self._waiting
        while waiting and waiting[0][2] <= now:
            answers.give(waiting.popleft()[1], PutStatus.FLUSH_SLAVE_TIMEOUT)
        if waiting and self._timer is None:
            self._timer = loop.call_at(waiting[0][2], self._expire)


class BothDone:
    """Joins the answers of the disk and of the replicas; theirs counts when both fail, as in Java."""

    __slots__ = ("_callback", "_flushed", "_replicated")

    def __init__(self, callback: WhenDone) -> None:
        self._callback = callback
        self._flushed: bool | None = None
        self._replicated: PutStatus | None = None

    def flushed(self, done: bool) -> None:
        """The flusher's answer."""
        self._flushed = done
        self._answer()

    def replicated(self, status: PutStatus) -> None:
        """The replicas' answer."""
        self._replicated = status
        self._answer()

    def _answer(self) -> None:
        if self._replicated is None or self._flushed is None:
            return
        if self._replicated is PutStatus.PUT_OK and not self._flushed:
            self._callback(PutStatus.FLUSH_DISK_TIMEOUT)
        else:
            self._callback(self._replicated)


class Bell:
    """Wakes one task, cheaper than an event with a time-out. A ring counts for the next wait as well."""

    __slots__ = ("_loop", "_rung", "_waiter")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._rung = False
        self._waiter: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """Wake the task, now or as soon as it waits."""
        self._rung = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, seconds: float) -> None:
        """Wait for a ring, at most so long."""
        if not self._rung:
            self._waiter = self._loop.create_future()
            timer = self._loop.call_later(max(0.0, seconds), self.ring)
            try:
                await self._waiter
            finally:
                self._waiter = None
                timer.cancel()
        self._rung = False


class Begun:
    """A coroutine that was begun outside of any task: most sends need not wait, and then they need none.

    Its first step is done at once. If it waits in there, a task carries out the rest with `finish`.
    """

    __slots__ = ("_awaited", "_coroutine", "_error", "done")

    def __init__(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._coroutine = coroutine
        self._awaited: Any = None
        self._error: Exception | None = None
        self.done = False
        """Whether it has returned, so that there is nothing to finish."""
        try:
            self._awaited = coroutine.send(None)
        except StopIteration:
            self.done = True
        except Exception as error:
            self._error = error

    async def finish(self) -> None:
        """Carry out the rest; raises what the coroutine raised."""
        if self._error is not None:
            raise self._error
        if not self.done:
            await self._rest()

    def close(self) -> None:
        """Give up what is not finished."""
        self._coroutine.close()

    @types.coroutine
    def _rest(self) -> Generator[Any, Any, None]:
        awaited = self._awaited
        thrown: BaseException | None = None
        while True:
            try:
                yield awaited
            except BaseException as error:
                thrown = error
            try:
                awaited = self._coroutine.send(None) if thrown is None else self._coroutine.throw(thrown)
            except StopIteration:
                return
            thrown = None


class Rate:
    """Bytes in a second, as of the last whole one."""

    __slots__ = ("_began", "_bytes", "_last", "total")

    def __init__(self, now: float) -> None:
        self.total = 0
        """Bytes counted so far."""
        self._began = now
        self._bytes = 0
        self._last = 0

    def add(self, size: int, now: float) -> None:
        """Count `size` bytes."""
        self._roll(now)
        self._bytes += size
        self.total += size

    def per_second(self, now: float) -> int:
        """Bytes of the last second."""
        self._roll(now)
        return self._last

    def _roll(self, now: float) -> None:
        passed = now - self._began
        if passed >= 1.0:
            self._last = int(self._bytes / passed)
            self._began, self._bytes = now, 0
