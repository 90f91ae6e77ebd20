"""The consumer of a failover measurement, and the scan of what is left at the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final, Protocol

from brokerset_bench.writer import QUEUES, Route
from brokerset_client import calls
from brokerset_client.errors import ClientError
from brokerset_client.instance import ClientInstance
from brokerset_protocol import subscriptions
from brokerset_protocol.bodies.queues import MessageQueue

GROUP: Final = "brokerset-bench"
"""Producer and consumer group of all measurements; no offsets are stored for it."""

PULL_MESSAGES: Final = 256
PULL_SECONDS: Final = 1.0
"""Longest time that one pull may take; a broker that hangs is asked again."""

PULL_PAUSE_SECONDS: Final = 0.02
"""Pause of a queue's reader between two pulls: at high rates many messages come with each."""

END_SECONDS_MAX: Final = 30.0
"""Longest time until the consumer has everything after the last send, and for the scan."""


async def pull(
    instance: ClientInstance,
    address: str,
    queue: MessageQueue,
    offset: int,
    messages_max: int,
    seconds_max: float = calls.PULL_SECONDS,
) -> calls.PullResult:
    """Pull whatever a broker has of a queue from an offset on, without waiting and without a trace."""
    return await calls.pull(
        instance,
        address,
        group=GROUP,
        queue=queue,
        queue_offset=offset,
        subscription=subscriptions.parse(queue.topic, "*"),
        messages_max=messages_max,
        suspend_ms=0,
        with_subscription=True,
        timeout=seconds_max,
    )


class NotRead(Exception):
    """The end of the queues was not reached in time; says where it stopped."""


class Sightings(Protocol):
    """Who is to know what was read; `History` has the meaning of each."""

    def consumed(self, queue: int, offset: int, broker: str, body: bytes) -> None:
        """The consumer was given this."""

    def found(self, queue: int, offset: int, broker: str, body: bytes) -> None:
        """The scan at the end met this."""

    def note(self, kind: str, why: str = "", broker: str = "") -> None:
        """Something that the sequence is to be read with."""


class Reader:
    """Pulls every queue of a topic from the master, in order, for as long as it runs."""

    def __init__(
        self, instance: ClientInstance, route: Route, topic: str, group: str, *, queues: int = QUEUES
    ) -> None:
        self._instance = instance
        self._route = route
        self._queues = [MessageQueue(topic, group, number) for number in range(queues)]
        self.next_offsets = dict.fromkeys(range(queues), 0)
        """By queue, where the next pull begins."""

    async def run(self, history: Sightings) -> None:
        """Consume until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for queue in self._queues:
                tasks.create_task(self._consume(queue, history))

    async def _consume(self, queue: MessageQueue, history: Sightings) -> None:
        while True:
            offset = self.next_offsets[queue.queue_id]
            with contextlib.suppress(ClientError):  # between two masters; asked again
                self.next_offsets[queue.queue_id] = await self._pull(queue, offset, history.consumed)
            await asyncio.sleep(PULL_PAUSE_SECONDS)

    async def _pull(
        self, queue: MessageQueue, offset: int, take: Callable[[int, int, str, bytes], None]
    ) -> int:
        master = self._route.master
        if not master:
            return offset
        result = await pull(self._instance, master, queue, offset, PULL_MESSAGES, PULL_SECONDS)
        for message in result.messages:
            take(queue.queue_id, message.queue_offset, master, message.body)
        return result.next_queue_offset

    async def until_end(self) -> None:
        """Wait until `run` has read what is there now. Raises `NotRead`."""
        try:
            async with asyncio.timeout(END_SECONDS_MAX):
                ends = await self._ends()
                while any(self.next_offsets[number] < end for number, end in ends.items()):  # noqa: ASYNC110  # pulls set no event
                    await asyncio.sleep(PULL_PAUSE_SECONDS)
        except TimeoutError:
            raise NotRead(
                f"after {END_SECONDS_MAX:g} s the consumer is at {self.next_offsets} in queues that "
                f"{self._route.master} does not give out to their ends"
            ) from None

    async def scan(self, history: Sightings) -> None:
        """Read every queue from its beginning to its end at the master. Raises `NotRead`."""
        try:
            async with asyncio.timeout(END_SECONDS_MAX):
                for number, end in (await self._ends()).items():
                    offset = 0
                    while offset < end:
                        try:
                            offset = await self._pull(self._queues[number], offset, history.found)
                        except ClientError:
                            await asyncio.sleep(PULL_PAUSE_SECONDS)
        except TimeoutError:
            raise NotRead(f"{self._route.master} was not read to the end in {END_SECONDS_MAX:g} s") from None
        history.note("scanned", broker=self._route.master)

    async def _ends(self) -> dict[int, int]:
        while True:
            try:
                await self._route.read()
                return {
                    queue.queue_id: await calls.max_offset(self._instance, self._route.master, queue)
                    for queue in self._queues
                }
            except ClientError:
                await asyncio.sleep(PULL_PAUSE_SECONDS)
