"""Runs the handlers of one partition, and does what their results ask for."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final

import structlog

from brokerset_client.errors import ClientError, RequestRefused
from brokerset_client.ordered.consuming.failures import (
    RetryHere,
    SendBack,
    Skip,
    decide_after_failure,
)
from brokerset_client.ordered.consuming.handling import HandlingContext
from brokerset_client.ordered.consuming.lanes import Lanes, Taken
from brokerset_client.ordered.consuming.ordered_message import OrderedMessage
from brokerset_client.ordered.consuming.queue_requests import OwnedQueue
from brokerset_client.ordered.consuming.registration import Registration

log = structlog.get_logger(__name__)

MessageLanes = Lanes[OrderedMessage]

TURN_MESSAGES: Final = 32
"""Messages after which a worker lets others have the loop, if its handler never waits."""

KILL_SECONDS: Final = 2.0
"""Time for coroutines that are cancelled at the end."""

LOGGED_ATTEMPTS: Final = frozenset({1, 2, 4, 8, 16, 32, 64, 128, 256, 512})
"""Failures of one message that are logged in full; all are counted."""


class PartitionHandlers:
    """Starts a handler for each lane that is ready, as long as the permission and the slots allow it.

    `progressed` is called after each message that is done, `blocked` after each one that stays the first of
    its lane, `refused` with what a broker says to a copy for retry. `may_start` says whether what was pulled
    is the session's still.
    """

    def __init__(
        self,
        registration: Registration,
        queue: OwnedQueue,
        *,
        progressed: Callable[[], None],
        blocked: Callable[[], None],
        refused: Callable[[ClientError], None],
        may_start: Callable[[], bool],
    ) -> None:
        self._registration = registration
        self._queue = queue
        self._progressed = progressed
        self._blocked = blocked
        self._refused = refused
        self._may_start = may_start
        self._lanes: MessageLanes | None = None
        self._workers: dict[asyncio.Task[None], None] = {}
        self._contexts: dict[HandlingContext, OrderedMessage] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._stopping = False
        self._dropped = False
        self.sent_back_at = -math.inf
        """When the last copy for retry was made, by the consumer's clock."""

        self.last_error: dict[int, str] = {}
        """Of each lane that is blocked."""

    @property
    def running(self) -> int:
        """Handlers that have not ended."""
        return len(self._contexts)

    def use(self, lanes: MessageLanes | None) -> None:
        """Handle these messages from now on; results for others do not count any more."""
        self._lanes = lanes
        self.last_error.clear()

    def stop(self) -> None:
        """Start no handler any more; those that run go on, and count."""
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def drop(self) -> None:
        """Somebody else owns the partition: start nothing, and let nothing that runs count."""
        self.stop()
        self._dropped = True
        for context in list(self._contexts):
            context.cancel()

    async def kill(self) -> None:
        """End what runs, and do not wait for threads; a coroutine that will not end is left behind."""
        self.drop()
        for worker in self._workers:
            worker.cancel()
        if self._workers:
            await asyncio.wait(list(self._workers), timeout=KILL_SECONDS)

    async def quiet(self) -> None:
        """Until no handler runs."""
        await self._quiet.wait()

    def dispatch(self) -> None:
        """Start what may start. Called after every change that may allow more."""
        while (found := self._take()) is not None:
            task = asyncio.get_running_loop().create_task(self._work(*found))
            self._workers[task] = None
            self._quiet.clear()
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._workers.pop(task, None)
        if not self._workers:
            self._quiet.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("handling of a partition broke", queue=str(self._queue.queue_id), exc_info=error)

    def _take(self) -> tuple[MessageLanes, Taken[OrderedMessage]] | None:
        registration, lanes = self._registration, self._lanes
        if lanes is None or self._stopping or registration.paused:
            return None
        now = registration.clock.monotonic()
        if not registration.permission.may_begin(now) or not self._may_start():
            return None
        if not lanes.has_ready(now):
            self._set_timer(lanes.next_retry, now)
            return None
        if not registration.slots.take():
            return None
        taken = lanes.take(now)
        assert taken is not None
        return lanes, taken

    def _set_timer(self, at: float | None, now: float) -> None:
        if at is None or self._stopping or (self._timer is not None and self._timer_at <= at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = asyncio.get_running_loop().call_later(max(0.001, at - now), self._timer_is_due)

    def _timer_is_due(self) -> None:
        self._timer = None
        self.dispatch()

    async def _work(self, lanes: MessageLanes, taken: Taken[OrderedMessage]) -> None:
        handled = 0
        while True:
            try:
                await self._handle(lanes, taken)
            except Exception as error:  # the edge of a supervised task; a bug here must not stop a key
                log.error(
                    "handling of a message broke",
                    queue=str(self._queue.queue_id),
                    queue_offset=taken.item.queue_offset,
                    exc_info=error,
                )
                self._after_break(lanes, taken, error)
            finally:
                self._registration.slots.give_back()
            handled += 1
            if handled >= TURN_MESSAGES:
                handled = 0
                await asyncio.sleep(0)
            found = self._take()
            if found is None:
                return
            lanes, taken = found

    async def _handle(self, lanes: MessageLanes, taken: Taken[OrderedMessage]) -> None:
        registration = self._registration
        if not registration.may_begin() or self._stopping:  # time has passed since it was taken
            lanes.put_back(taken.pull_sequence)
            return
        context = HandlingContext(
            epoch=self._queue.epoch,
            attempt=taken.attempt,
            clock=registration.clock,
            permission=lambda: registration.permission,
            handling_seconds=registration.settings.handling_seconds,
        )
        error = await self._call(taken.item, context)
        if self._dropped or lanes is not self._lanes or not registration.may_go_on():
            registration.counters.too_late += 1
            lanes.put_back(taken.pull_sequence)
            return
        if context.is_returned:
            lanes.put_back(taken.pull_sequence)
            return
        if error is None and context.cancelled:
            error = TimeoutError(f"took longer than {registration.settings.handling_seconds:g} s")
        if error is None:
            registration.counters.handled += 1
            self._done(lanes, taken)
        else:
            await self._after_failure(lanes, taken, error)

    async def _call(self, message: OrderedMessage, context: HandlingContext) -> BaseException | None:
        task = asyncio.current_task()
        assert task is not None
        context.task = task
        self._contexts[context] = message
        self._registration.begin(message, context)
        try:
            await self._registration.caller.call(message, context)
        except asyncio.CancelledError as error:
            if not context.cancelled and task.cancelling():
                raise
            # The deadline, or the handler waited for something of its own that was cancelled.
            return TimeoutError("its deadline has passed") if context.cancelled else error
        except Exception as error:  # the edge of the application: its failures are an expected outcome
            return error
        finally:
            del self._contexts[context]
            self._registration.end(context)
            if context.cancelled and task.cancelling():
                task.uncancel()
        return None

    def _done(self, lanes: MessageLanes, taken: Taken[OrderedMessage]) -> None:
        lanes.done(taken.pull_sequence)
        self.last_error.pop(taken.lane, None)
        self._progressed()

    async def _after_failure(
        self, lanes: MessageLanes, taken: Taken[OrderedMessage], error: BaseException
    ) -> None:
        registration, message = self._registration, taken.item
        registration.counters.failed += 1
        self.last_error[taken.lane] = _reason(error)
        next_step = decide_after_failure(
            registration.sends_back,
            registration.options.failures,
            attempt=taken.attempt,
            reconsume_times=message.reconsume_times,
            chance=registration.random.random(),
        )
        if taken.attempt in LOGGED_ATTEMPTS:
            log.warning(
                "handler failed",
                subject=registration.subject,
                group=registration.group,
                partition=message.partition_id,
                queue_offset=message.queue_offset,
                key=message.key,
                attempt=taken.attempt,
                next=type(next_step).__name__,
                reason=self.last_error[taken.lane],
            )
        match next_step:
            case RetryHere(delay_seconds=delay):
                self._retry_later(lanes, taken, delay)
            case Skip():
                registration.counters.skipped += 1
                self._done(lanes, taken)
            case SendBack(dead=dead):
                if await self._send_back(lanes, taken, dead):
                    self._done(lanes, taken)
                else:
                    lanes.put_back(taken.pull_sequence)

    def _after_break(self, lanes: MessageLanes, taken: Taken[OrderedMessage], error: Exception) -> None:
        """Something between the call of the handler and its result went wrong: the message is tried again."""
        if not lanes.is_running(taken.pull_sequence):
            return
        if lanes is self._lanes:
            self.last_error[taken.lane] = _reason(error)
        self._retry_later(lanes, taken, self._registration.trouble_seconds(taken.attempt))

    def _retry_later(self, lanes: MessageLanes, taken: Taken[OrderedMessage], delay: float) -> None:
        now = self._registration.clock.monotonic()
        lanes.failed(taken.pull_sequence, now, now + delay)
        if lanes is self._lanes:
            self._set_timer(lanes.next_retry, now)
            self._blocked()

    async def _send_back(self, lanes: MessageLanes, taken: Taken[OrderedMessage], dead: bool) -> bool:
        """Until a copy is stored; False: it is not, and the partition is being stopped."""
        registration = self._registration
        failures = 0
        while not self._dropped and lanes is self._lanes:
            if registration.may_go_on():
                try:
                    await self._queue.send_back(
                        taken.item.queue_offset,
                        dead=dead,
                        reconsume_max=registration.options.failures.reconsume_max,
                    )
                except ClientError as error:
                    self._refused(error)
                    if failures in (0, 9):
                        log.warning(
                            "message is not sent back yet",
                            subject=registration.subject,
                            queue_offset=taken.item.queue_offset,
                            reason=str(error),
                        )
                    if isinstance(error, RequestRefused) and self._stopping:
                        return False
                else:
                    if dead:
                        registration.counters.dead += 1
                    else:
                        registration.counters.sent_back += 1
                        self.sent_back_at = registration.clock.monotonic()
                    return not self._dropped and lanes is self._lanes
            if self._stopping:
                return False
            failures += 1
            await asyncio.sleep(registration.trouble_seconds(failures))
        return False


def _reason(error: BaseException) -> str:
    """An error of the application as a short text, also if it cannot say what it is."""
    try:
        text = str(error)
    except Exception:  # the edge of the application: its `__str__` may do anything
        text = "(no text: its __str__ raises)"
    return f"{type(error).__name__}: {text}"[:200]
