"""`OrderedConsumer`: consumes ordered subjects for one group.

consumer = OrderedConsumer(transport, group="billing", client_id="host-1")
consumer.subscribe("orders", on_order)
async with consumer: ...
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Self

from brokerset_client.errors import ClientClosed
from brokerset_client.ordered.consuming.handling import Handler
from brokerset_client.ordered.consuming.measurements import SubscriptionMeasurements
from brokerset_client.ordered.consuming.pull_register import CLOSE_SECONDS, PullRegister, SubscriptionTasks
from brokerset_client.ordered.consuming.pulling import Puller
from brokerset_client.ordered.consuming.settings import OrderedConsumerSettings, SubscriptionOptions
from brokerset_client.ordered.transport import OrderedTransport
from brokerset_runtime.clock import Clock, SystemClock


class OrderedConsumer:
    """One member of a group. Whatever a handler does, it is called for one message of a key at a time; in a
    Shared group for many.

    Processes that crash, or are cut off, make messages come again, so a handler has to bear repetitions;
    `HandlingContext.epoch` and `OrderedMessage.sequence` help it to recognise them.
    """

    def __init__(
        self,
        transport: OrderedTransport,
        *,
        group: str,
        client_id: str,
        clock: Clock | None = None,
        settings: OrderedConsumerSettings | None = None,
        random: Random | None = None,
        register: PullRegister | None = None,
        running: set[OrderedConsumer] | None = None,
    ) -> None:
        """`register`: shared by the consumers of a process, so that none subscribes twice; else an own one.
        `running`: the consumer is in it while it has subscriptions that run, so that it is not forgotten.

        `clock.monotonic` must run while the machine sleeps, as `SystemClock` does. Raises `ValueError` for
        settings that cannot be.
        """
        self._group = group
        self._register = register or PullRegister(
            transport,
            client_id=client_id,
            clock=clock or SystemClock(),
            settings=settings or OrderedConsumerSettings(),
            random=random or Random(),
        )
        self._subscriptions: dict[str, SubscriptionTasks] = {}
        self._running: set[OrderedConsumer] = set() if running is None else running
        self._started = False
        self._closed = False

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def subscribe(self, subject: str, handler: Handler, options: SubscriptionOptions | None = None) -> None:
        """Have `handler` called for each message of the subject; before or after `start`.

        A subject that does not exist is waited for, and never created. Raises `AlreadySubscribed`,
        `ClientClosed`, and `ValueError` for names and options that cannot be.
        """
        self._subscribe(subject, handler, options or SubscriptionOptions())

    def start(self) -> None:
        """Begin with everything that is subscribed. Needs a running loop."""
        if self._closed:
            raise ClientClosed("the consumer was closed: make another one")
        if not self._started:
            self._started = True
            for tasks in self._subscriptions.values():
                self._running.add(self)
                tasks.start()

    async def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Stop gracefully: handlers end, acks are confirmed, partitions are released, the group is left.

        After `timeout` seconds coroutines that still run are cancelled, and the others of the group take
        over when the permission of this session has ended. No task of the consumer is left.
        """
        self._closed = True
        subjects = list(self._subscriptions)
        await asyncio.gather(*(self._close(subject, timeout) for subject in subjects))

    def pause(self, subject: str) -> None:
        """Start no handler and pull nothing until `resume`; the partitions stay with this session."""
        self._found(subject).registration.paused = True

    def resume(self, subject: str) -> None:
        """Go on after `pause`."""
        tasks = self._found(subject)
        tasks.registration.paused = False
        tasks.wake()

    def retry_now(self, subject: str) -> None:
        """Try messages that have failed again at once, for example when their cause was mended."""
        self._found(subject).composite.retry_now()

    @asynccontextmanager
    async def pulling(
        self, subject: str, options: SubscriptionOptions | None = None
    ) -> AsyncIterator[Puller]:
        """Ask for messages instead of being called; leaves the group at the end. Raises as `subscribe`."""
        registered: list[SubscriptionTasks] = []
        puller = Puller(lambda: registered[0].registration.may_begin())
        registered.append(self._subscribe(subject, puller.give, options or SubscriptionOptions(), puller))
        self.start()
        try:
            yield puller
        finally:
            puller.close()
            await self._close(subject, CLOSE_SECONDS)

    def measurements(self) -> tuple[SubscriptionMeasurements, ...]:
        """Snapshots, one for each subscription."""
        return tuple(tasks.measurements() for tasks in self._subscriptions.values())

    def _subscribe(
        self, subject: str, handler: Handler, options: SubscriptionOptions, puller: Puller | None = None
    ) -> SubscriptionTasks:
        if self._closed:
            raise ClientClosed("the consumer was closed: make another one")
        slots = None if puller is None else puller.slots
        tasks = self._register.subscribe(subject, self._group, handler, options, slots)
        self._subscriptions[subject] = tasks
        if self._started:
            self._running.add(self)
            tasks.start()
        return tasks

    async def _close(self, subject: str, timeout: float) -> None:
        tasks = self._subscriptions.get(subject)
        if tasks is None:
            return
        try:
            await tasks.close(timeout)
        finally:
            self._subscriptions.pop(subject, None)
            self._register.forget(subject, self._group)
            if not self._subscriptions:
                self._running.discard(self)

    def _found(self, subject: str) -> SubscriptionTasks:
        try:
            return self._subscriptions[subject]
        except KeyError:
            raise ValueError(f"{subject!r} is not subscribed here: subscribe first") from None
