"""A consumer of a failover measurement that pops messages and acks them one by one, as applications do."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from brokerset_bench.pop_history import PopHistory
from brokerset_bench.reader import Reader, Sightings
from brokerset_bench.writer import Route
from brokerset_client.errors import ClientError
from brokerset_client.instance import ClientInstance
from brokerset_client.pop.consumer import PopConsumer
from brokerset_client.pop.popped import PoppedMessage
from brokerset_client.pop.settings import PopSettings
from brokerset_protocol.bodies.heartbeat import ConsumeFromWhere

INVISIBLE_SECONDS: Final = 5.0
"""What is not acked in time, because its broker died, comes again in the same run."""

WAIT_SECONDS: Final = 1.0
PAUSE_SECONDS: Final = 0.05
"""Between two tries while no broker can be asked."""


class PopReader:
    """Pops every message of a topic, for as long as it runs."""

    def __init__(
        self,
        instance: ClientInstance,
        route: Route,
        topic: str,
        group: str,
        history: PopHistory,
        *,
        queues: int,
    ) -> None:
        """`group` is the brokers'."""
        self._instance = instance
        self._topic = topic
        self._history = history
        self._scanner = Reader(instance, route, topic, group, queues=queues)

    async def run(self, _history: object) -> None:
        """Consume until cancelled."""
        consumer = PopConsumer(
            f"pops-{self._topic}",
            instance=self._instance,
            consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            settings=PopSettings(
                invisible_seconds=INVISIBLE_SECONDS, wait_seconds=WAIT_SECONDS, close_timeout=1.0
            ),
        )
        consumer.subscribe(self._topic)
        await self._start(consumer)
        try:
            async with asyncio.TaskGroup() as acks:
                while True:
                    try:
                        messages = await consumer.receive()
                    except ClientError:  # between two masters; asked again
                        await asyncio.sleep(PAUSE_SECONDS)
                        continue
                    for message in messages:
                        number = self._history.given(bytes(message.body), message.handle.broker)
                        acks.create_task(self._ack(consumer, message, number))
        finally:
            await consumer.close()

    @staticmethod
    async def _start(consumer: PopConsumer) -> None:
        while True:
            with contextlib.suppress(ClientError):
                await consumer.start()
                return
            await asyncio.sleep(PAUSE_SECONDS)

    async def _ack(self, consumer: PopConsumer, message: PoppedMessage, number: int | None) -> None:
        try:
            await consumer.ack(message)
        except ClientError as error:
            self._history.undone(number, f"{type(error).__name__}: {error}"[:100])
        else:
            self._history.done(number, message.handle.broker)

    async def until_end(self) -> None:
        """Everything that is owed was waited for: nothing is left to be read."""

    async def scan(self, history: Sightings) -> None:
        """Read every queue from its beginning to its end at the master. Raises `NotRead`."""
        await self._scanner.scan(history)
