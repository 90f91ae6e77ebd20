"""Consumers of subjects in memory, and a handler that writes down what it gets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from brokerset_client.ordered.consuming import (
    HandlingContext,
    OrderedConsumer,
    OrderedConsumerSettings,
    OrderedMessage,
    SubscriptionOptions,
)
from brokerset_client.ordered.consuming.handling import Handler
from brokerset_rig.fake_subject import GROUP, FakeSubject, FakeTransport


class LoopClock:
    """Implements `brokerset_runtime.clock.Clock` on the running loop's time, at a rate of its own."""

    def __init__(self, rate: float = 1.0) -> None:
        self._rate = rate

    def now_ms(self) -> int:
        """The wall clock means nothing here."""
        return 1_700_000_000_000 + int(self.monotonic() * 1000)

    def monotonic(self) -> float:
        """Seconds by this clock."""
        return asyncio.get_running_loop().time() * self._rate


class Recorder:
    """A handler that takes the time it is given, and notes when two of one key run together."""

    def __init__(self, seconds: Callable[[OrderedMessage], float] = lambda _: 0.0) -> None:
        self._seconds = seconds
        self._running: dict[str | None, int] = {}
        self.begun: list[tuple[float, OrderedMessage]] = []
        self.handled: list[OrderedMessage] = []
        self.contexts: list[HandlingContext] = []
        self.overlaps: list[str | None] = []
        self.failing: dict[str | None, int] = {}
        """Failures that are left for a key; -1: always."""

    async def handle(self, message: OrderedMessage, context: HandlingContext) -> None:
        """The handler."""
        if self._running.get(message.key):
            self.overlaps.append(message.key)
        self._running[message.key] = self._running.get(message.key, 0) + 1
        self.begun.append((asyncio.get_running_loop().time(), message))
        self.contexts.append(context)
        try:
            seconds = self._seconds(message)
            if seconds:
                await asyncio.sleep(seconds)
            failures = self.failing.get(message.key, 0)
            if failures:
                self.failing[message.key] = failures - 1 if failures > 0 else failures
                raise RuntimeError(f"{message.key} fails")
            self.handled.append(message)
        finally:
            self._running[message.key] -= 1

    def by_key(self) -> dict[str | None, list[bytes]]:
        """Bodies in the order they were handled."""
        found: dict[str | None, list[bytes]] = {}
        for message in self.handled:
            found.setdefault(message.key, []).append(message.body)
        return found


def consumer_of(
    subject: FakeSubject,
    handler: Handler,
    *,
    name: str = "process",
    transport: FakeTransport | None = None,
    settings: OrderedConsumerSettings | None = None,
    options: SubscriptionOptions | None = None,
    rate: float = 1.0,
    clock: LoopClock | None = None,
    seed: str | None = None,
) -> OrderedConsumer:
    """A consumer of one subject, not started yet; `rate`: of its clock."""
    consumer = OrderedConsumer(
        transport or FakeTransport(subject),
        group=GROUP,
        client_id=name,
        clock=clock or LoopClock(rate),
        settings=settings,
        random=Random(seed or name),
    )
    consumer.subscribe(subject.name, handler, options)
    return consumer
