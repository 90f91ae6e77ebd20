"""Reads queues at the application's own pace: assign, seek, poll, commit; or single pulls.

Sources: `DefaultLitePullConsumerImpl`, `DefaultMQPullConsumerImpl`. There is no rebalance here: the
application says which queues it reads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence

import structlog

from brokerset_client import calls
from brokerset_client.calls import PullResult, PullStatus
from brokerset_client.errors import ClientClosed, ClientError
from brokerset_client.instance import ClientInstance
from brokerset_client.instance_user import InstanceUser
from brokerset_client.messages import MessageView
from brokerset_client.positions import BrokerPositions, first_offset, reader_address
from brokerset_client.retry import Backoff
from brokerset_formats import names
from brokerset_protocol import subscriptions
from brokerset_protocol.bodies.heartbeat import SUB_ALL, ConsumeFromWhere, SubscriptionData
from brokerset_protocol.bodies.queues import MessageQueue
from brokerset_protocol.errors import Rejected
from brokerset_protocol.queue_allocation import sorted_queues

log = structlog.get_logger(__name__)

PREFETCH_MESSAGES_MAX = 1000
"""Messages of one queue that are fetched ahead; then fetching pauses until `poll` takes some."""

PREFETCH_BYTES_MAX = 64 * 1024 * 1024
"""Stored bytes of one queue that are fetched ahead."""

PREFETCH_TOTAL_BYTES_MAX = 256 * 1024 * 1024
"""Stored bytes of all queues of one consumer that are fetched ahead; each may exceed it by one answer."""

QUEUES_MAX = 4096
"""Queues of one consumer."""

COMMIT_SECONDS = 5.0

TROUBLE = Backoff(first_ms=50, factor=2.0, max_ms=3000)


class _Reading:
    """One assigned queue: where it is, and what was fetched ahead."""

    def __init__(self, queue: MessageQueue, start: int) -> None:
        self.queue = queue
        self.position = start
        """Queue offset of the next message for the application."""
        self.done = start
        """What it had been given before the last `poll` ends here."""
        self.next_queue_offset = start
        self.buffer: deque[MessageView] = deque()
        self.bytes = 0
        self.committed: int | None = None
        self.room = asyncio.Event()
        self.paused = False
        """`poll` gives none of its messages, and no more are fetched."""
        self.task: asyncio.Task[object] | None = None

    def go_back(self, queue_offset: int) -> None:
        """An administrator has reset the group, or the queue ends earlier than it did: all from there comes
        again. So what was fetched is dropped, and what is stored goes back, too."""
        self.buffer.clear()
        self.bytes = 0
        self.position = self.done = queue_offset
        self.committed = None

    @property
    def is_full(self) -> bool:
        return len(self.buffer) >= PREFETCH_MESSAGES_MAX or self.bytes >= PREFETCH_BYTES_MAX


class PullConsumer(InstanceUser):
    """Reads queues for a group, whose offsets it may use and store.

    `expression` filters by tags. With `auto_commit` what `poll` has returned counts as done at the next
    `poll`, and is stored every 5 s and at close.
    """

    def __init__(
        self,
        group: str,
        *,
        namesrv: str | Sequence[str] | None = None,
        instance: ClientInstance | None = None,
        expression: str = SUB_ALL,
        auto_commit: bool = True,
        consume_from: ConsumeFromWhere | None = None,
        from_timestamp_ms: int = 0,
        pull_batch: int = 32,
    ) -> None:
        problem = names.check_group(group)
        if problem is not None:
            raise ValueError(problem)
        super().__init__(namesrv, instance)
        self.group = group
        self._expression = expression
        subscription_of("any", expression)  # refuses a bad expression now, not at the first pull
        self._auto_commit = auto_commit
        self._where = consume_from or ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
        self._where_is_wished = consume_from is not None
        self._from_timestamp_ms = from_timestamp_ms
        self._pull_batch = pull_batch
        self._positions = BrokerPositions(self.instance, group)
        self._readings: dict[MessageQueue, _Reading] = {}
        self._arrived = asyncio.Event()
        self._saver: asyncio.Task[object] | None = None
        self._problem: ClientError | None = None
        self._running = False

    async def start(self) -> None:
        """Reach a name server. Raises `NameServerUnavailable`."""
        await super().start()
        self.instance.check_running()
        self._running = True
        if self._auto_commit:
            self._saver = self.instance.spawn(self._keep_saved(), "offsets")

    async def close(self) -> None:
        """Stop fetching; with `auto_commit` store what was read."""
        if self._running:
            self._running = False
            if self._saver is not None:
                self._saver.cancel()
            if self._auto_commit:
                try:
                    await self.commit()
                except ClientError as error:
                    log.warning("offsets are not stored: their messages will come again", reason=str(error))
            for reading in self._readings.values():
                _stop(reading)
            self._readings.clear()
            self._arrived.set()
        await super().close()

    # -- queues and their offsets -------------------------------------------------------------------------

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of `topic` that can be read now. Raises `TopicNotFound`."""
        return sorted_queues((await self.instance.route(topic, fresh=True)).subscribe_queues)

    async def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Read these queues from now on, each from where the group goes on, else from `consume_from`, else
        by RocketMQ's rule: from the end, or from the first message of a queue that is still young.

        Queues that were assigned before and are named again keep their place; the others are given up.
        """
        self._check_running()
        wanted = set(queues)
        if len(wanted) > QUEUES_MAX:
            raise ValueError(f"{len(wanted)} queues, at most {QUEUES_MAX} are allowed")
        for queue in [queue for queue in self._readings if queue not in wanted]:
            _stop(self._readings.pop(queue))
        self._wake()
        for queue in sorted(wanted):
            if queue in self._readings:
                continue
            start = await self._positions.load(queue, strict=self._where_is_wished)
            if start is None:
                start = await first_offset(self.instance, queue, self._where, self._from_timestamp_ms)
            self._begin(_Reading(queue, start))

    async def assign_topic(self, topic: str) -> list[MessageQueue]:
        """Read all queues of `topic`; its other queues are given up."""
        queues = await self.queues(topic)
        await self.assign(queues)
        return queues

    def assigned(self) -> list[MessageQueue]:
        """The queues that are read now."""
        return sorted(self._readings)

    def seek(self, queue: MessageQueue, queue_offset: int) -> None:
        """Let the next `poll` go on at `queue_offset`. Raises `ValueError` for a queue that is not
        assigned. A queue that is paused stays so."""
        before = self._reading(queue)
        _stop(before)
        reading = _Reading(queue, queue_offset)
        reading.paused = before.paused
        self._begin(reading)
        self._wake()

    def pause(self, *queues: MessageQueue) -> None:
        """Let `poll` give nothing of these queues, or of all that are assigned, until `resume`; they keep
        their place, and nothing is fetched. Raises `ValueError` for a queue that is not assigned."""
        for queue in queues or self.assigned():
            self._reading(queue).paused = True

    def resume(self, *queues: MessageQueue) -> None:
        """Undo `pause` for these queues, or for all. Raises `ValueError` for a queue that is not assigned."""
        for queue in queues or self.assigned():
            self._reading(queue).paused = False
        self._wake()
        self._arrived.set()

    def paused(self) -> list[MessageQueue]:
        """The queues that are paused."""
        return sorted(queue for queue, reading in self._readings.items() if reading.paused)

    async def seek_to_begin(self, *queues: MessageQueue) -> None:
        """Go to the oldest message of these queues, or of all."""
        for queue in queues or self.assigned():
            self.seek(queue, await self.min_offset(queue))

    async def seek_to_end(self, *queues: MessageQueue) -> None:
        """Go behind the newest message of these queues, or of all."""
        for queue in queues or self.assigned():
            self.seek(queue, await self.max_offset(queue))

    async def seek_to_time(self, timestamp_ms: int, *queues: MessageQueue) -> None:
        """Go to the first message stored at that time or later."""
        for queue in queues or self.assigned():
            self.seek(queue, await self.offset_at(queue, timestamp_ms))

    def position(self, queue: MessageQueue) -> int:
        """Queue offset of the next message that `poll` gives of `queue`."""
        return self._reading(queue).position

    async def max_offset(self, queue: MessageQueue) -> int:
        """What the next message of `queue` will get."""
        return await calls.max_offset(self.instance, await reader_address(self.instance, queue), queue)

    async def min_offset(self, queue: MessageQueue) -> int:
        """The oldest queue offset that is still there."""
        return await calls.min_offset(self.instance, await reader_address(self.instance, queue), queue)

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first message of `queue` that was stored at that time or later."""
        address = await reader_address(self.instance, queue)
        return await calls.offset_at(self.instance, address, queue, timestamp_ms)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Where the group goes on in `queue`; None if nothing is stored."""
        return await self._positions.load(queue, strict=True)

    async def commit(self, offsets: dict[MessageQueue, int] | None = None) -> None:
        """Store these offsets, or those of all queues up to what `poll` has returned. Raises
        `ClientError`."""
        if offsets is None:
            offsets = {}
            for queue, reading in self._readings.items():
                if reading.committed != reading.position:
                    offsets[queue] = reading.position
        if offsets:
            await self._positions.save(offsets, surely=True)
        for queue, queue_offset in offsets.items():
            if queue in self._readings:
                self._readings[queue].committed = queue_offset

    # -- messages -----------------------------------------------------------------------------------------

    async def poll(self, messages_max: int = 32, timeout: float = 5.0) -> list[MessageView]:
        """The next messages of the assigned queues, in order within each; empty if none came in `timeout`
        seconds.

        Trouble with a queue is mended in the background; if nothing came because of it, its error is raised.
        """
        self._check_running()
        for reading in self._readings.values():
            reading.done = reading.position
        found: list[MessageView] = []
        try:
            async with asyncio.timeout(timeout):
                while not self._take(found, messages_max) and self._running:
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            problem, self._problem = self._problem, None
            if problem is not None:
                raise problem from None
        self._check_running()
        return found

    async def __aiter__(self) -> AsyncIterator[MessageView]:
        while self._running:
            for message in await self.poll(timeout=1.0):
                yield message

    async def pull(
        self,
        queue: MessageQueue,
        queue_offset: int,
        *,
        expression: str | None = None,
        messages_max: int = 32,
        suspend_ms: int = 0,
    ) -> PullResult:
        """One pull from a queue that need not be assigned. With `suspend_ms` the broker waits for a
        message."""
        wanted = subscription_of(queue.topic, self._expression if expression is None else expression)
        return await calls.pull(
            self.instance,
            await reader_address(self.instance, queue),
            group=self.group,
            queue=queue,
            queue_offset=queue_offset,
            subscription=wanted,
            messages_max=messages_max,
            suspend_ms=suspend_ms,
            with_subscription=True,
            timeout=suspend_ms / 1000 + calls.PULL_SECONDS / 2,
        )

    # -- inside -------------------------------------------------------------------------------------------

    def _check_running(self) -> None:
        if not self._running:
            raise ClientClosed("the consumer is not running: use `async with`, or await start() first")

    def _reading(self, queue: MessageQueue) -> _Reading:
        reading = self._readings.get(queue)
        if reading is None:
            raise ValueError(f"{queue} is not assigned: call assign() with it first")
        return reading

    def _begin(self, reading: _Reading) -> None:
        queue = reading.queue
        self._readings[queue] = reading
        reading.task = self.instance.spawn(self._fetch(reading), f"pull {queue.topic}/{queue.queue_id}")

    def _take(self, found: list[MessageView], messages_max: int) -> bool:
        """Move messages from the buffers to `found`; a queue that gave some goes to the end of the turn."""
        for queue, reading in list(self._readings.items()):
            if not reading.buffer or reading.paused or len(found) >= messages_max:
                continue
            while reading.buffer and len(found) < messages_max:
                message = reading.buffer.popleft()
                reading.bytes -= message.size
                reading.position = message.queue_offset + 1
                found.append(message)
            if not reading.buffer:
                reading.position = reading.next_queue_offset
            del self._readings[queue]
            self._readings[queue] = reading
        if found:
            self._wake()
        return bool(found)

    @property
    def _is_full(self) -> bool:
        """Whether so much was fetched ahead of all queues that none may fetch."""
        return sum(reading.bytes for reading in self._readings.values()) >= PREFETCH_TOTAL_BYTES_MAX

    def _wake(self) -> None:
        """There may be room again."""
        for reading in self._readings.values():
            reading.room.set()

    async def _fetch(self, reading: _Reading) -> None:
        failures = 0
        wanted = subscription_of(reading.queue.topic, self._expression)
        broker_id = 0
        while True:
            if reading.paused or reading.is_full or self._is_full:
                reading.room.clear()
                await reading.room.wait()
                continue
            try:
                result = await calls.pull(
                    self.instance,
                    await reader_address(self.instance, reading.queue, broker_id),
                    group=self.group,
                    queue=reading.queue,
                    queue_offset=reading.next_queue_offset,
                    subscription=wanted,
                    messages_max=self._pull_batch,
                    with_subscription=True,
                )
            except ClientError as error:
                failures += 1
                self._problem = error
                broker_id = 0
                self.instance.refresh_soon(reading.queue.topic)
                await asyncio.sleep(TROUBLE.delay_ms(failures) / 1000)
                continue
            failures = 0
            broker_id = result.suggested_broker_id
            if (
                result.status is PullStatus.OFFSET_ILLEGAL
                and result.next_queue_offset < reading.next_queue_offset
            ):
                reading.go_back(result.next_queue_offset)
            reading.next_queue_offset = result.next_queue_offset
            reading.buffer.extend(result.messages)
            reading.bytes += sum(message.size for message in result.messages)
            if not reading.buffer:
                reading.position = result.next_queue_offset
            if result.status is PullStatus.OFFSET_ILLEGAL:
                log.warning("queue offset moved", queue=str(reading.queue), next=result.next_queue_offset)
            if result.messages:
                self._problem = None
                self._arrived.set()

    async def _keep_saved(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_SECONDS)
            try:
                await self.commit(
                    {
                        queue: reading.done
                        for queue, reading in self._readings.items()
                        if reading.committed is None or reading.done > reading.committed
                    }
                )
            except ClientError as error:
                log.warning("offsets are not stored, next try soon", reason=str(error))


def subscription_of(topic: str, expression: str) -> SubscriptionData:
    """The subscription for a tag expression. Raises `ValueError`."""
    try:
        return subscriptions.parse(topic, expression)
    except Rejected as error:
        raise ValueError(error.remark) from error


def _stop(reading: _Reading) -> None:
    if reading.task is not None:
        reading.task.cancel()
