"""Sends rows to topics: batches for each queue, several on their way, again until each is acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from brokerset_client.errors import ClientError
from brokerset_client.instance import ClientInstance
from brokerset_client.messages import Message, SendStatus
from brokerset_client.producer import Producer
from brokerset_client.routes import queue_of_key
from brokerset_client.send_window import SendLimits
from brokerset_protocol.bodies.queues import MessageQueue
from brokerset_spark.topics.sink.options import SinkOptions
from brokerset_spark.topics.sink.rows import Row

PENDING_BYTES_MAX: Final = 32 * 1024 * 1024
"""Rows that wait for their request to be full; at so many bytes all leave as they are."""

AGAIN_SECONDS: Final = 0.2
"""Pause before what was stored, but not safely, is sent again."""

Lane = tuple[str, MessageQueue | None, bool]
"""Topic, queue (None: any), and whether its requests must leave one after the other."""


class SinkFailed(RuntimeError):
    """Rows could not be sent; the text says which and why. Spark runs the task again."""


class PlainSender:
    """Rows of one task to topics. Not safe for several event loops.

    At least once: `finish` returns when every row that was added is acknowledged, with the status that
    outlives the master. What is sent again, by this or by another attempt of the task, may be stored twice.
    """

    def __init__(self, instance: ClientInstance, options: SinkOptions) -> None:
        self._options = options
        self._seconds = options.send_timeout / 1000
        self._producer = Producer(
            options.producer_group,
            instance=instance,
            timeout=self._seconds,
            limits=SendLimits(messages_max=options.in_flight),
            create_topics=False,
        )
        self._lanes: dict[Lane, list[Row]] = {}
        self._lane_bytes: dict[Lane, int] = {}
        self._pending_bytes = 0
        self._room = asyncio.Semaphore(options.in_flight)
        self._tasks: set[asyncio.Task[None]] = set()
        self._last: dict[Lane, asyncio.Task[None]] = {}
        self._problem: BaseException | None = None
        self._queues: dict[str, list[MessageQueue]] = {}
        self.rows = 0
        """Rows that are acknowledged."""
        self.bytes = 0
        """Their bodies."""
        self.sent_again = 0
        """Rows of requests that were stored, but not safely, and sent once more."""

    async def start(self) -> None:
        """Reach a name server."""
        await self._producer.start()

    async def add(self, rows: Iterable[Row]) -> None:
        """Take rows; waits while as many requests as allowed are on their way. Raises `SinkFailed`."""
        for row in rows:
            if row.message.delay_ms is not None:
                await self._begin((row.message.topic, self._named(row), False), [row])
                continue
            lane = await self._lane_of(row)
            waiting = self._lanes.setdefault(lane, [])
            full = self._lane_bytes.get(lane, 0) + row.size > self._options.batch_bytes
            if waiting and (full or len(waiting) >= self._options.batch_messages):
                await self._flush(lane)
                waiting = self._lanes.setdefault(lane, [])
            waiting.append(row)
            self._lane_bytes[lane] = self._lane_bytes.get(lane, 0) + row.size
            self._pending_bytes += row.size
            if self._pending_bytes > PENDING_BYTES_MAX:
                await self._flush_all()

    async def finish(self) -> None:
        """Wait until each row is acknowledged. Raises `SinkFailed`."""
        await self._flush_all()
        while self._tasks:
            await asyncio.wait(list(self._tasks))
        self._check()

    async def close(self) -> None:
        """Give up what is on its way, and leave the brokers."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))
        await self._producer.close()

    # -- inside -------------------------------------------------------------------------------------------

    def _named(self, row: Row) -> MessageQueue | None:
        return None if row.queue is None else MessageQueue(row.message.topic, *row.queue)

    async def _lane_of(self, row: Row) -> Lane:
        topic = row.message.topic
        if row.queue is not None:
            return topic, self._named(row), row.order_key is not None
        if row.order_key is None:
            return topic, None, False
        queues = self._queues.get(topic)
        if queues is None:
            # Read once: a queue that comes later must not move the keys of a task that is under way.
            try:
                queues = await self._producer.queues(topic)
            except ClientError as error:
                raise SinkFailed(f"topic {topic}: {error}") from error
            if not queues:
                raise SinkFailed(f"topic {topic} has no queue that takes messages now")
            self._queues[topic] = queues
        return topic, queue_of_key(queues, row.order_key), True

    async def _flush_all(self) -> None:
        for lane in list(self._lanes):
            await self._flush(lane)

    async def _flush(self, lane: Lane) -> None:
        rows = self._lanes.pop(lane)
        self._pending_bytes -= self._lane_bytes.pop(lane)
        await self._begin(lane, rows)

    async def _begin(self, lane: Lane, rows: list[Row]) -> None:
        self._check()
        await self._room.acquire()
        before = self._last.get(lane) if lane[2] else None
        task = asyncio.get_running_loop().create_task(self._run(lane, rows, before))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if lane[2]:
            self._last[lane] = task

    async def _run(self, lane: Lane, rows: list[Row], before: asyncio.Task[None] | None) -> None:
        try:
            if before is not None and not before.done():
                await asyncio.wait([before])
            if self._problem is None:
                await self._send(lane, [row.message for row in rows])
                self.rows += len(rows)
                self.bytes += sum(len(row.message.body) for row in rows)
        except BaseException as error:  # whatever it is, these rows have no answer: `finish` must not pass
            self._problem = self._problem or error
            if not isinstance(error, Exception):
                raise
        finally:
            self._room.release()

    async def _send(self, lane: Lane, messages: list[Message]) -> None:
        """Until the answer says that it outlives the master, or the time is over."""
        topic, queue, _ = lane
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._seconds
        while True:
            remaining = max(0.001, deadline - loop.time())
            if len(messages) == 1:
                result = await self._producer.send(messages[0], remaining, queue=queue)
            else:
                result = await self._producer.send_batch(messages, remaining, queue=queue)
            if result.status is SendStatus.SEND_OK:
                return
            if loop.time() + AGAIN_SECONDS >= deadline:
                raise SinkFailed(
                    f"topic {topic}: broker {result.queue.broker_name} answers {result.status.name} for "
                    f"{self._seconds:g} s: messages are stored, but would not outlive their master"
                )
            self.sent_again += len(messages)
            await asyncio.sleep(AGAIN_SECONDS)

    def _check(self) -> None:
        if self._problem is not None:
            said = str(self._problem) or type(self._problem).__name__
            raise SinkFailed(f"rows could not be sent: {said}") from self._problem
