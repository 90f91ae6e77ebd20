"""Keeps up which brokers have the subscribed topics: what a POP consumer asks.

Only a route says so; there is nothing to divide with the rest of the group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from brokerset_client.errors import ClientError
from brokerset_client.instance import ClientInstance
from brokerset_client.pop.requests import Source
from brokerset_client.retry import Backoff
from brokerset_protocol.bodies.heartbeat import SubscriptionData

log = structlog.get_logger(__name__)

REFRESH_SECONDS: Final = 20.0
"""How often the brokers of the subscribed topics are worked out again without an occasion."""

RETRY: Final = Backoff(first_ms=50, factor=1.6, max_ms=2000)
"""Waits until a topic without a route is asked for again."""


class Sources:
    """The topics at brokers of one consumer."""

    def __init__(
        self,
        instance: ClientInstance,
        subscriptions: Mapping[str, SubscriptionData],
        want: Callable[[list[Source]], None],
    ) -> None:
        """`want` is called with all of them when they may have changed."""
        self._instance = instance
        self._subscriptions = subscriptions
        self._want = want
        self._by_topic: dict[str, list[Source]] = {}
        self._wanted = asyncio.Event()

    @property
    def all(self) -> list[Source]:
        """Those that are known, sorted."""
        return sorted(source for some in self._by_topic.values() for source in some)

    def find_soon(self) -> None:
        """Work them out again, in the background."""
        self._wanted.set()

    def forget(self, topic: str) -> None:
        """Ask for this topic no more."""
        self._by_topic.pop(topic, None)
        self._want(self.all)

    async def find(self) -> bool:
        """Ask for what is not known. False if a topic has no broker yet: ask again soon."""
        complete = True
        for topic in list(self._subscriptions):
            try:
                route = await self._instance.route(topic)
            except ClientError as error:
                log.debug("topic has no route yet", topic=topic, reason=str(error))
                complete = False
                continue
            if topic in self._subscriptions:
                brokers = {queue.broker_name for queue in route.subscribe_queues}
                self._by_topic[topic] = [Source(topic, broker) for broker in sorted(brokers)]
                complete &= bool(brokers)
        return complete

    async def keep(self, complete: bool) -> None:
        """Follow the routes without end; `complete` is what the last `find` said."""
        failures = 0
        self._want(self.all)
        while True:
            failures = 0 if complete else failures + 1
            wait = RETRY.delay_ms(failures) / 1000 if failures else REFRESH_SECONDS
            try:
                async with asyncio.timeout(wait):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            self._wanted.clear()
            complete = await self.find()
            self._want(self.all)
