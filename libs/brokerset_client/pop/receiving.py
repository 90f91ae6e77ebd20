"""Popped messages at the application's own pace: `receive` asks brokers, and waits until one has something.

What the application asks for goes through tasks of the client, so that a `receive` that is cancelled loses
nothing: what comes later is kept for the next one.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

import structlog

from brokerset_client.consume_rates import ConsumerWork
from brokerset_client.errors import ClientError, NoQueue
from brokerset_client.pop.popped import PoppedMessage
from brokerset_client.pop.requests import PopBroker, PopWish, Source
from brokerset_client.pop.settling import Settling, Spawn
from brokerset_client.retry import Backoff
from brokerset_protocol.bodies.heartbeat import SubscriptionData

log = structlog.get_logger(__name__)

TROUBLE: Final = Backoff(first_ms=50, factor=2.0, max_ms=3000)
"""Waits until a source that failed is asked again."""

EMPTY_PAUSE_SECONDS: Final = 0.1
"""Least time between two empty answers of one source, and least wait that is worth a long poll."""

FRESH: Final = 0.8
"""Part of the wished invisible time that a message from an earlier poll must have left, or it is renewed."""


class Receiving:
    """What a consumer without a listener has been given and not taken yet."""

    def __init__(
        self,
        broker: PopBroker,
        spawn: Spawn,
        settling: Settling,
        *,
        ordered: bool,
        subscription: Callable[[str], SubscriptionData | None],
        unwanted: Callable[[list[PoppedMessage]], None],
        give_back: Callable[[list[PoppedMessage]], None],
        work: ConsumerWork,
    ) -> None:
        self._broker = broker
        self._spawn = spawn
        self._settling = settling
        self._ordered = ordered
        self._subscription = subscription
        self._unwanted = unwanted
        self._give_back = give_back
        self._work = work
        self._sources: list[Source] = []
        self._buffer: deque[PoppedMessage] = deque()
        self._polling: dict[Source, asyncio.Task[Any]] = {}
        self._attempts: dict[Source, str] = {}
        self._failures: dict[Source, int] = {}
        self._problems: dict[Source, ClientError] = {}
        self._not_before: dict[Source, float] = {}
        self._changed = asyncio.Event()
        self._turn = 0
        self._closed = False

    @property
    def sources(self) -> list[Source]:
        """What is asked."""
        return self._sources

    def want(self, sources: Iterable[Source]) -> None:
        """Ask these from now on, and no others."""
        self._sources = sorted(sources)
        self._changed.set()

    def drop(self, topic: str) -> list[PoppedMessage]:
        """Give out nothing more of `topic`; what was not taken is the caller's to give back."""
        rest = [message for message in self._buffer if message.topic == topic]
        self._buffer = deque(message for message in self._buffer if message.topic != topic)
        return rest

    def close(self) -> list[PoppedMessage]:
        """Give out nothing more; what was not taken is the caller's to give back."""
        self._closed = True
        rest, self._buffer = list(self._buffer), deque()
        self._changed.set()
        return rest

    async def receive(self, count: int, invisible_seconds: float, wait_seconds: float) -> list[PoppedMessage]:
        """Up to `count` messages of one or several sources, none if none came in time.

        If none came because no source could be asked, the error of one of them is raised.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_seconds
        quick = self._in_turn() if len(self._sources) > 1 or wait_seconds <= EMPTY_PAUSE_SECONDS else deque()
        while not self._closed:
            found = await self._take(count, invisible_seconds)
            if found:
                return found
            if quick:
                source = quick.popleft()
                if self._is_free(source):
                    await asyncio.shield(self._ask(source, count, invisible_seconds, 0.0))
                continue
            left = deadline - loop.time()
            if left <= 0:
                break
            self._changed.clear()
            if left > EMPTY_PAUSE_SECONDS:
                for source in self._sources:
                    if self._is_free(source):
                        self._ask(source, count, invisible_seconds, left)
            again = [moment for source in self._sources if (moment := self._not_before.get(source, 0.0))]
            moment = min([deadline, *(moment for moment in again if moment > loop.time())])
            try:
                async with asyncio.timeout_at(moment):
                    await self._changed.wait()
            except TimeoutError:
                pass
        if not self._closed:
            self._raise_problem()
        return []

    # -- inside -------------------------------------------------------------------------------------------

    def _in_turn(self) -> deque[Source]:
        """All sources, beginning with another one each time."""
        sources = deque(self._sources)
        self._turn += 1
        sources.rotate(-self._turn)
        return sources

    def _is_free(self, source: Source) -> bool:
        """Whether it may be asked now."""
        now = asyncio.get_running_loop().time()
        return source not in self._polling and self._not_before.get(source, 0.0) <= now

    def _ask(self, source: Source, count: int, invisible: float, wait: float) -> asyncio.Task[Any]:
        task = self._spawn(
            self._poll(source, count, invisible, wait), f"receive {source.topic} at {source.broker}"
        )
        self._polling[source] = task
        task.add_done_callback(lambda _: self._ended(source))
        return task

    def _ended(self, source: Source) -> None:
        self._polling.pop(source, None)
        self._changed.set()

    async def _poll(self, source: Source, count: int, invisible: float, wait: float) -> None:
        """One request; what it brings is in the buffer afterwards."""
        loop = asyncio.get_running_loop()
        subscription = self._subscription(source.topic)
        if subscription is None:
            return
        attempt_id = self._attempts.setdefault(source, uuid.uuid4().hex) if self._ordered else None
        begun = loop.time()
        wish = PopWish(
            count=count,
            invisible_ms=round(invisible * 1000),
            wait_ms=round(wait * 1000),
            attempt_id=attempt_id,
        )
        try:
            popped = await self._broker.pop(source, subscription, wish)
        except ClientError as error:
            failures = self._failures[source] = self._failures.get(source, 0) + 1
            self._problems[source] = error
            self._not_before[source] = loop.time() + TROUBLE.delay_ms(failures) / 1000
            self._broker.stale(source.topic)
            log.info("pop failed", source=str(source), failures=failures, reason=str(error))
            return
        self._attempts.pop(source, None)
        self._failures.pop(source, None)
        self._problems.pop(source, None)
        self._not_before.pop(source, None)
        self._work.pulled(source.topic, len(popped.messages), loop.time() - begun)
        if popped.refused_by_filter:
            self._unwanted(popped.refused_by_filter)
        if not popped.messages:
            if wait > 0 and loop.time() - begun < EMPTY_PAUSE_SECONDS:
                self._not_before[source] = loop.time() + EMPTY_PAUSE_SECONDS
        elif self._closed or source not in self._sources:
            self._give_back(popped.messages)
        else:
            self._buffer.extend(popped.messages)

    async def _take(self, count: int, invisible_seconds: float) -> list[PoppedMessage]:
        """Messages of the buffer; of those that have waited there the time begins again."""
        found = [self._buffer.popleft() for _ in range(min(count, len(self._buffer)))]
        now = asyncio.get_running_loop().time()
        stale = [m for m in found if m.expires_at - now < FRESH * invisible_seconds]
        if stale:
            changes = (self._settling.change(message, invisible_seconds) for message in stale)
            try:
                await asyncio.gather(*changes, return_exceptions=True)
            except asyncio.CancelledError:
                self._buffer.extendleft(reversed(found))
                raise
        return [message for message in found if not message.lost]

    def _raise_problem(self) -> None:
        if not self._sources:
            raise NoQueue("no broker of a subscribed topic is known: check that the topics exist")
        if all(source in self._problems for source in self._sources):
            raise self._problems[self._sources[0]]
