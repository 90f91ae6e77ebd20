"""The long polls of a POP consumer: one at a time for each topic at each broker.

A long poll is never cancelled while its connection lives: the broker would give its messages to nobody. What
comes after the consumer wants no more, or while it pauses, is given back.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterable
from typing import Any, Final

import structlog

from brokerset_client.consume_rates import ConsumerWork
from brokerset_client.errors import ClientError
from brokerset_client.pop.hand import Hand
from brokerset_client.pop.popped import PoppedMessage
from brokerset_client.pop.requests import PopBroker, Popped, PopWish, Source
from brokerset_client.pop.settings import PopSettings
from brokerset_client.pop.settling import Spawn
from brokerset_client.retry import Backoff
from brokerset_protocol.bodies.heartbeat import SubscriptionData

log = structlog.get_logger(__name__)

TROUBLE: Final = Backoff(first_ms=50, factor=2.0, max_ms=3000)
"""Waits after pops that failed."""

EMPTY_ANSWERS_MAX: Final = 8
"""Empty answers in a row, each at once, after which a loop slows down: the broker waits for nothing."""

EMPTY_PAUSE_SECONDS: Final = 0.2
FULL_PAUSE_SECONDS: Final = 0.5
"""Wait after a broker had no room for one more long poll."""

QUICK_SECONDS: Final = 0.05

SOURCES_MAX: Final = 4096
"""Topics at brokers that one consumer polls."""


class Polls:
    """Keeps the sources of a consumer polled, as far as there is room for what they bring."""

    def __init__(
        self,
        broker: PopBroker,
        spawn: Spawn,
        settings: PopSettings,
        *,
        hand: Hand,
        ordered: bool,
        subscription: Callable[[str], SubscriptionData | None],
        deliver: Callable[[Source, list[PoppedMessage]], None],
        unwanted: Callable[[list[PoppedMessage]], None],
        give_back: Callable[[list[PoppedMessage]], None],
        work: ConsumerWork,
    ) -> None:
        """`deliver` gets what was found, `unwanted` what the subscription does not match, `give_back` what
        came too late."""
        self._broker = broker
        self._spawn = spawn
        self._settings = settings
        self._hand = hand
        self._ordered = ordered
        self._subscription = subscription
        self._deliver = deliver
        self._unwanted = unwanted
        self._give_back = give_back
        self._work = work
        self._tasks: dict[Source, asyncio.Task[Any]] = {}
        self._wanted: dict[Source, None] = {}

    @property
    def sources(self) -> list[Source]:
        """What is polled."""
        return sorted(self._wanted)

    def want(self, sources: Iterable[Source]) -> None:
        """Poll these from now on, and no others."""
        self._wanted = dict.fromkeys(sorted(sources)[:SOURCES_MAX])
        for source in self._wanted:
            if source not in self._tasks:
                task = self._spawn(self._poll(source), f"pop {source.topic} at {source.broker}")
                self._tasks[source] = task
        self._hand.changed()

    async def _poll(self, source: Source) -> None:
        try:
            while source in self._wanted:
                await self._hand.wait_for_room(lambda: source not in self._wanted)
                subscription = self._subscription(source.topic)
                if source not in self._wanted or subscription is None:
                    break
                await self._once(source, subscription)
        finally:
            del self._tasks[source]

    async def _once(self, source: Source, subscription: SubscriptionData) -> None:
        """Long polls until one was answered; then, where nothing came, perhaps a pause."""
        settings, loop = self._settings, asyncio.get_running_loop()
        attempt_id = uuid.uuid4().hex if self._ordered else None
        failures = empty = 0
        while True:
            begun = loop.time()
            wish = PopWish(
                count=settings.pop_batch,
                invisible_ms=round(settings.invisible_seconds * 1000),
                wait_ms=round(settings.wait_seconds * 1000),
                attempt_id=attempt_id,
            )
            try:
                popped = await self._broker.pop(source, subscription, wish)
            except ClientError as error:
                failures += 1
                self._broker.stale(source.topic)
                if failures in (1, 10) or failures % 100 == 0:
                    log.warning("pop failed", source=str(source), failures=failures, reason=str(error))
                await asyncio.sleep(TROUBLE.delay_ms(failures) / 1000)
                if source not in self._wanted:
                    return
                continue
            self._work.pulled(source.topic, len(popped.messages), loop.time() - begun)
            if popped.messages or popped.refused_by_filter or source not in self._wanted:
                self._take(source, popped)
                return
            if popped.waiters_full:
                await asyncio.sleep(FULL_PAUSE_SECONDS)
            elif loop.time() - begun < QUICK_SECONDS:
                empty += 1
                if empty > EMPTY_ANSWERS_MAX:
                    await asyncio.sleep(EMPTY_PAUSE_SECONDS)
            else:
                return

    def _take(self, source: Source, popped: Popped) -> None:
        if popped.refused_by_filter:
            self._unwanted(popped.refused_by_filter)
        if not popped.messages:
            return
        if source in self._wanted and not self._hand.suspended:
            self._deliver(source, popped.messages)
        else:
            self._give_back(popped.messages)
