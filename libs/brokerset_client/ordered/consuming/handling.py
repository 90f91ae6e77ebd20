"""Calls an application's handler: a coroutine or a plain function, with a deadline, answered now or later."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from brokerset_client.ordered.consuming.ordered_message import OrderedMessage
from brokerset_client.ordered.consuming.permission import Permission
from brokerset_runtime.clock import Clock

TOO_LATE: Final = "the deadline had passed before the handler returned"


class HandlingFailed(Exception):
    """What a handler's deferred answer said; `Pending.failed` with a text raises it here."""


class Pending:
    """The answer of a handler that returned before it was finished.

    Complete it from any thread, once; what comes after the deadline does not count.
    """

    __slots__ = ("_future", "_loop", "is_completed")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._future: asyncio.Future[None] = loop.create_future()
        self.is_completed = False
        """Whether `done` or `failed` was called."""

    def done(self) -> None:
        """The message is handled."""
        self.is_completed = True
        self._loop.call_soon_threadsafe(self._complete, None)

    def failed(self, reason: BaseException | str) -> None:
        """The message is not handled: it is treated as if the handler had raised this."""
        error = HandlingFailed(reason) if isinstance(reason, str) else reason
        self.is_completed = True
        self._loop.call_soon_threadsafe(self._complete, error)

    async def wait(self) -> None:
        """Until it is completed. Raises what it failed with."""
        await self._future

    def _complete(self, error: BaseException | None) -> None:
        if self._future.done():
            return
        if error is None:
            self._future.set_result(None)
        else:
            self._future.set_exception(error)


class HandlingContext:
    """What a handler may know about its attempt."""

    __slots__ = (
        "_cancelled",
        "_clock",
        "_loop",
        "_permission",
        "_time_limit",
        "attempt",
        "begun_at",
        "epoch",
        "in_thread",
        "is_returned",
        "task",
    )

    def __init__(
        self,
        *,
        epoch: int,
        attempt: int,
        clock: Clock,
        permission: Callable[[], Permission],
        handling_seconds: float,
    ) -> None:
        self.epoch = epoch
        """Fencing token: grows with each owner of the partition. What is written elsewhere on behalf of a
        message can be refused if a higher one was seen there. In a Shared group it is the group's, and the
        same for all members, so it fences none of them from another."""

        self.attempt = attempt
        """From 1; attempts of this process since it got the partition."""

        self._clock = clock
        self._permission = permission
        self.begun_at = clock.monotonic()
        self._time_limit = self.begun_at + handling_seconds
        self._cancelled = False
        self._loop = asyncio.get_running_loop()
        self.task: asyncio.Task[object] | None = None
        self.in_thread = False
        self.is_returned = False

    @property
    def deadline(self) -> float:
        """When the result stops to count, in seconds of the consumer's monotonic clock.

        The end of the permission moves on with each heartbeat; the time for one attempt does not.
        """
        return min(self._time_limit, self._permission().ends_at)

    def remaining(self) -> float:
        """Seconds until the deadline, 0.0 if it has passed, or if the partition is somebody else's now."""
        return 0.0 if self._cancelled else max(0.0, self.deadline - self._clock.monotonic())

    @property
    def cancelled(self) -> bool:
        """Whether the handler shall stop, as its result does not count any more.

        A coroutine is cancelled as well; a plain function in a thread has to check this.
        """
        return self._cancelled

    def defer(self) -> Pending:
        """For a handler that finishes later: keep this, return it, and complete it before the deadline."""
        return Pending(self._loop)

    def cancel(self) -> None:
        """For the consumer: the result does not count any more."""
        if self._cancelled:
            return
        self._cancelled = True
        if self.task is not None and not self.in_thread:
            self.task.cancel()

    def return_unhandled(self) -> None:
        """For the consumer: nobody has handled the message, and that is no failure."""
        self.is_returned = True
        self.cancel()


AsyncHandler = Callable[[OrderedMessage, HandlingContext], Awaitable[object]]
PlainHandler = Callable[[OrderedMessage, HandlingContext], object]
Handler = AsyncHandler | PlainHandler
"""What an application gives: it returns when the message is handled, or raises. A plain function runs in a
thread.

The message is handled later if the handler returns a `Pending`, or something that can be awaited, as a lambda
does that calls a coroutine function. Any other value means nothing, and is dropped."""


class HandlerCaller:
    """Calls one subscription's handler."""

    def __init__(self, handler: Handler, threads_max: int) -> None:
        self.is_plain = not is_coroutine_function(handler)
        self._handler = handler
        self._threads = (
            ThreadPoolExecutor(threads_max, thread_name_prefix="ordered-handler") if self.is_plain else None
        )

    async def call(self, message: OrderedMessage, context: HandlingContext) -> None:
        """Until the message is handled. Raises what the handler raised.

        Runs in a task of the caller's, which `context.cancel` cancels; a thread cannot be, so it is waited
        for.
        """
        if self._threads is None:
            answer = self._handler(message, context)
        else:
            context.in_thread = True
            loop = asyncio.get_running_loop()
            answer = await loop.run_in_executor(self._threads, self._handler, message, context)
            context.in_thread = False
            if context.cancelled and (isinstance(answer, Pending) or inspect.isawaitable(answer)):
                if inspect.iscoroutine(answer):
                    answer.close()  # it has not begun, and must not
                raise HandlingFailed(TOO_LATE)
        if inspect.isawaitable(answer):
            answer = await answer
        if isinstance(answer, Pending):
            if context.cancelled:
                raise HandlingFailed(TOO_LATE)
            await answer.wait()

    def close(self) -> None:
        """Start no threads any more; those that run are not waited for."""
        if self._threads is not None:
            self._threads.shutdown(wait=False)


def is_coroutine_function(handler: Callable[..., object]) -> bool:
    """Whether calling it gives a coroutine; an object with an `async def __call__` does, too."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004  # its kind is wanted, not whether there is one
    )
