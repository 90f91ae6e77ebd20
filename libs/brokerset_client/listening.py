"""Hands messages to the application's listener: many at once, or queue by queue in order.

Sources: `ConsumeMessageConcurrentlyService`, `ConsumeMessageOrderlyService`.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Protocol

import structlog

from brokerset_client.assigned_queue import AssignedQueue
from brokerset_client.consume_rates import ConsumerWork
from brokerset_client.errors import ClosedByListener, MessageUnreadable
from brokerset_client.instance import ClientInstance
from brokerset_client.messages import MessageView
from brokerset_client.push_settings import BatchListener, ConsumeStatus, Later, MessageListener, PushSettings
from brokerset_client.redelivery import Redelivery
from brokerset_client.tracing import Tracer
from brokerset_protocol.bodies.traces import ConsumeOutcome, DeliveryTrace

log = structlog.get_logger(__name__)

TURN_MESSAGES = 32
"""Messages after which a worker lets others have the loop, if its listener never waits."""

SUSPEND_MS_MIN = 10
SUSPEND_MS_MAX = 30_000
"""Bounds of an orderly listener's wish when to try again."""

LATER = Later()


class ListenerSettings(Protocol):
    """What a listener needs of the settings of its consumer."""

    @property
    def listener_timeout(self) -> float:
        """Seconds after which it is cancelled."""
        ...

    @property
    def batch_max(self) -> int:
        """Messages that a batch listener gets at once, at most."""
        ...


class Listener:
    """The application's function, and what its answers mean."""

    def __init__(
        self, single: MessageListener | None, batch: BatchListener | None, settings: ListenerSettings
    ) -> None:
        if (single is None) == (batch is None):
            raise ValueError("give either listener (one message) or batch_listener (several)")
        self._single = single
        self._batch = batch
        self._timeout = settings.listener_timeout
        self.batch_max = 1 if batch is None else settings.batch_max
        self.succeeded = 0
        self.failed = 0
        self.work = ConsumerWork(time.monotonic)
        self._running = 0
        self._callers: set[asyncio.Task[object] | None] = set()
        self._waiting: list[asyncio.Future[None]] = []
        self.tracer: Tracer | None = None
        """Gets a trace before and after each call, where its user wants some."""

    def enter(self) -> None:
        """The task that runs now calls the listener from here on: it does not wait for its own end."""
        _caller.set(self)

    def check_close(self) -> None:
        """Raise `ClosedByListener` if the function that runs in this task wants to close its consumer."""
        if asyncio.current_task() in self._callers:
            raise ClosedByListener

    async def quiet(self) -> None:
        """Until it does not run, or `go_on`; who is called by it, or was started by it, does not wait.

        Nothing may be handed to it from now on: else it need never stand still.
        """
        if self._running and _caller.get() is not self:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn

    def go_on(self) -> None:
        """It is handed messages again: let nobody wait until it stands still."""
        for turn in self._waiting:
            if not turn.done():
                turn.set_result(None)
        self._waiting.clear()

    async def call(self, messages: Sequence[MessageView], topic: str) -> Later | None:
        """None if the messages are done, else when to try again. It counts for `topic`."""
        deliveries = [] if self.tracer is None else _deliveries(self.tracer, messages)
        begun = self.work.now()
        later, failure = await self.attempt(messages)
        if later is None:
            self.succeeded += len(messages)
        else:
            self.failed += len(messages)
        self.work.consumed(topic, len(messages), begun, failed=later is not None)
        if self.tracer is not None and deliveries:
            self.tracer.consumed(deliveries, _outcome(later, failure))
        return later

    async def attempt(self, messages: Sequence[MessageView]) -> tuple[Later | None, BaseException | None]:
        """As `call`, uncounted, with the exception by which the listener ended, if it did."""
        self._running += 1
        caller = asyncio.current_task()
        self._callers.add(caller)
        try:
            async with asyncio.timeout(self._timeout):
                if self._single is not None:
                    verdict = await self._single(messages[0])
                else:
                    assert self._batch is not None
                    verdict = await self._batch(messages)
        except asyncio.CancelledError as error:
            if caller is None or caller.cancelling():
                raise
            # Nobody cancels this task: the listener waited for something of its own that was cancelled.
            log.error("listener failed", message=str(messages[0]), exc_info=error)
            return LATER, error
        except TimeoutError as error:
            log.error("listener failed or took too long", message=str(messages[0]), exc_info=error)
            return LATER, error
        except Exception as error:  # the edge of the application: its failures are an expected outcome
            log.error("listener failed", message=str(messages[0]), exc_info=error)
            return LATER, error
        finally:
            self._running -= 1
            self._callers.discard(caller)
            if self._waiting and not self._running:
                self.go_on()
        if verdict is None or verdict is ConsumeStatus.SUCCESS:
            return None, None
        return (verdict if isinstance(verdict, Later) else LATER), None


_caller: ContextVar[Listener | None] = ContextVar("caller", default=None)
"""The listener that the running task calls, or was called by."""


def _deliveries(tracer: Tracer, messages: Sequence[MessageView]) -> list[DeliveryTrace]:
    """Trace that these messages are handed over now."""
    try:
        return tracer.deliveries(messages)
    except MessageUnreadable as error:
        log.debug("unreadable message has no trace", reason=str(error))
        return []


def _outcome(later: Later | None, failure: BaseException | None) -> ConsumeOutcome:
    """What a trace calls the end of a call."""
    if isinstance(failure, TimeoutError):
        return ConsumeOutcome.TIME_OUT
    if failure is not None:
        return ConsumeOutcome.EXCEPTION
    return ConsumeOutcome.SUCCESS if later is None else ConsumeOutcome.FAILED


class ConcurrentWork:
    """Workers that take messages of any queue. A worker that finds more work wakes the next one first, so
    that listeners that wait run side by side, and those that don't cost no switching.
    """

    def __init__(
        self,
        instance: ClientInstance,
        listener: Listener,
        settings: PushSettings,
        redelivery: Redelivery | None,
    ) -> None:
        self._instance = instance
        self._listener = listener
        self._settings = settings
        self._redelivery = redelivery
        self._ready: deque[tuple[AssignedQueue, list[MessageView]]] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._workers: list[asyncio.Task[object]] = []
        self._running = 0
        self._all_quiet = asyncio.Event()
        self._all_quiet.set()
        self._stopping = False

    def start(self) -> None:
        """Start the workers."""
        for number in range(self._settings.workers):
            self._workers.append(self._instance.spawn(self._work(), f"listener {number}"))

    async def deliver(self, assigned: AssignedQueue, messages: list[MessageView]) -> None:
        """Queue messages for the workers; flow control of the queues bounds how many."""
        size = self._listener.batch_max
        if size == 1:
            self._ready.extend([(assigned, [message]) for message in messages])
        else:
            for start in range(0, len(messages), size):
                self._ready.append((assigned, messages[start : start + size]))
        self._wake()

    def resume(self, assigned: AssignedQueue) -> None:
        """Go on with what was set aside while the queue was suspended, in its order."""
        self._ready.extend((assigned, messages) for messages in assigned.set_aside)
        assigned.set_aside.clear()
        self._wake()

    async def stop(self, timeout: float) -> None:
        """Hand out nothing more and wait for the listeners that run; those that take longer are cancelled."""
        self._stopping = True
        self._ready.clear()
        try:
            async with asyncio.timeout(timeout):
                await self._all_quiet.wait()
        except TimeoutError:
            log.warning("listeners were cancelled at close", running=self._running)
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)

    def _wake(self) -> None:
        while self._idle:
            turn = self._idle.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    async def _work(self) -> None:
        self._listener.enter()
        handled = 0
        while True:
            while not self._ready or self._stopping:
                turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._idle.append(turn)
                await turn
            assigned, messages = self._ready.popleft()
            if assigned.stopping:
                continue
            if assigned.suspended:
                assigned.set_aside.append(messages)
                continue
            if self._ready:
                self._wake()
            self._running += 1
            self._all_quiet.clear()
            try:
                await self._consume(assigned, messages)
            finally:
                self._running -= 1
                if not self._running:
                    self._all_quiet.set()
            handled += len(messages)
            if handled >= TURN_MESSAGES:
                handled = 0
                await asyncio.sleep(0)

    async def _consume(self, assigned: AssignedQueue, messages: list[MessageView]) -> None:
        later = await self._listener.call(messages, assigned.queue.topic)
        assigned.last_consume_ms = self._instance.clock.now_ms()
        if not assigned.active:
            return  # someone else has the queue now and gets them again
        if later is None or self._redelivery is None:
            # Broadcasting has nobody to give a message back to.
            assigned.finish(messages)
            return
        kept = []
        for message in messages:
            if await self._give_back(message, later):
                assigned.finish([message])
            else:
                message.failures_here += 1
                kept.append(message)
        if kept and assigned.active and not self._stopping:
            self._instance.spawn(self._again(assigned, kept), "retry here")

    async def _give_back(self, message: MessageView, later: Later) -> bool:
        assert self._redelivery is not None
        try:
            return await self._redelivery.give_back(message, later.delay_level)
        except MessageUnreadable as error:
            log.error("unreadable message stays here", reason=str(error))
            return False

    async def _again(self, assigned: AssignedQueue, messages: list[MessageView]) -> None:
        await asyncio.sleep(self._settings.retry_locally_seconds)
        if not assigned.stopping and not self._stopping:
            self._ready.append((assigned, messages))
            self._wake()


class OrderlyWork:
    """One handler for each queue: the next message follows only when the one before is done."""

    def __init__(
        self,
        instance: ClientInstance,
        listener: Listener,
        settings: PushSettings,
        redelivery: Redelivery | None,
        lock_lost: Callable[[AssignedQueue], None],
    ) -> None:
        self._instance = instance
        self._listener = listener
        self._redelivery = redelivery
        self._lock_lost = lock_lost
        self._max_reconsume_times = settings.reconsume_max(orderly=True)

    async def handle(self, assigned: AssignedQueue) -> None:
        """Handle one queue until it is stopped. The message that runs then is finished first."""
        self._listener.enter()
        handled = 0
        while not assigned.stopping:
            if assigned.suspended:
                await assigned.wait_resumed()
                continue
            if not assigned.buffer:
                assigned.arrived.clear()
                await assigned.arrived.wait()
                continue
            count = min(self._listener.batch_max, len(assigned.buffer))
            messages = [assigned.buffer.popleft() for _ in range(count)]
            await self._until_done(assigned, messages)
            handled += count
            if handled >= TURN_MESSAGES:
                handled = 0
                await asyncio.sleep(0)

    async def _until_done(self, assigned: AssignedQueue, messages: list[MessageView]) -> None:
        loop = asyncio.get_running_loop()
        while not assigned.stopping:
            if assigned.suspended:
                await assigned.wait_resumed()
                continue
            # Broadcasting needs no lock: nobody else handles this client's copy.
            if self._redelivery is not None and assigned.locked_until <= loop.time():
                self._lock_lost(assigned)
                return
            later = await self._listener.call(messages, assigned.queue.topic)
            assigned.last_consume_ms = self._instance.clock.now_ms()
            if not assigned.active:
                return
            if later is None:
                assigned.finish(messages)
                return
            messages = await self._after_failure(assigned, messages)
            if not messages:
                return
            pause = min(max(later.suspend_ms, SUSPEND_MS_MIN), SUSPEND_MS_MAX) / 1000
            try:
                async with asyncio.timeout(pause):
                    await assigned.stopped.wait()
            except TimeoutError:
                pass

    async def _after_failure(self, assigned: AssignedQueue, messages: list[MessageView]) -> list[MessageView]:
        """Count the failure; those that failed too often go to the dead-letter topic. What is left comes
        again."""
        kept = []
        for message in messages:
            if self._redelivery is not None and message.reconsume_times >= self._max_reconsume_times:
                try:
                    gone = await self._redelivery.send_again(message, message.reconsume_times)
                except MessageUnreadable as error:
                    log.error("unreadable message stays here", reason=str(error))
                    gone = False
                if gone:
                    assigned.finish([message])
                    continue
            message.failures_here += 1
            kept.append(message)
        return kept
