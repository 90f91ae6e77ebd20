"""Sends rows to ordered subjects; with `idempotence` a task that is run again stores nothing twice.

A producer's stamps are (producer id, epoch, sequence), and a queue stores each of them once. So a task that
is run again must make the same stamps for the same rows:

* The *producer id* belongs to the query (or the write), the partition, and the partitions of the subject.
* The *epoch* is not asked for at the controllers, for each attempt would get another one. It is the number
  of the micro-batch in its upper 31 bits, so it grows with each batch, and a digest of the task's rows in the
  lower 32. Other rows, or another order of them, are therefore another epoch: they are stored as well, or
  the broker refuses them as fenced, and the task fails. They are never taken for what is stored already.
* *Sequences* count from 0, since each attempt sends all rows of the task in one order.

If the partitions of the subject change during a task, it ends, and the next attempt is another producer.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass
from functools import partial
from typing import Final

from brokerset_client.errors import ClientError
from brokerset_client.ordered.client import OrderedClient
from brokerset_client.ordered.producing.producer import OrderedProducer, OrderedSendResult
from brokerset_client.ordered.producing.routing import TAKING
from brokerset_client.ordered.producing.settings import ProducerSettings
from brokerset_client.ordered.transport import OrderedTransport
from brokerset_protocol.bodies.ordered import SubjectRoute
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers.ordered import GetSubjectRoute, StartProducerResponse
from brokerset_protocol.subject_words import OrderStrategy
from brokerset_spark.topics.sink.options import SinkOptions
from brokerset_spark.topics.sink.plain import SinkFailed
from brokerset_spark.topics.sink.rows import Row, digest_of_all

BATCH_NUMBER_MAX: Final = 2**31 - 2
MESSAGES_MAX: Final = 10_000
"""Rows of a task that are on their way."""


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """What is the same in each attempt of a task."""

    write: str
    """The query's id, or one that is drawn for a write."""
    partition: int
    batch: int
    """Number of the micro-batch, from 0; 0 for a write."""

    def epoch(self, digest: int) -> int:
        """The producer epoch: it grows with the batch; `digest` has 32 bits."""
        if not 0 <= self.batch <= BATCH_NUMBER_MAX:
            raise ValueError(f"micro-batch {self.batch} is out of range")
        return (self.batch + 1) << 32 | digest

    def producer_id(self, partitions: str) -> str:
        """At most 64 characters; `partitions` tells one partitioning of the subject from others."""
        query = hashlib.blake2b(self.write.encode(), digest_size=12).hexdigest()
        return f"spark-{query}-{self.partition}-{partitions}"


def partitions_digest(route: SubjectRoute) -> str:
    """Who takes which keys: 12 digits that change only when that does, not with a new master."""
    taking = sorted(
        (each.partition_id, each.first, each.end) for each in route.partitions if each.status in TAKING
    )
    return hashlib.blake2b(repr(taking).encode(), digest_size=6).hexdigest()


class PinnedTransport:
    """A transport on which one subject has the partitions that a task began with, and one epoch."""

    def __init__(self, inner: OrderedTransport, epoch: int, partitions: str) -> None:
        self._inner = inner
        self._epoch = epoch
        self._partitions = partitions
        self._given = False

    async def ask_controllers(self, command: Command, timeout: float) -> Command:
        """Gives the epoch itself, once; refuses another partitioning."""
        if command.code == RequestCode.BROKERSET_START_PRODUCER:
            if self._given:
                return _refusal("a broker has lost what it had confirmed of this task")
            self._given = True
            return Command(
                ResponseCode.SUCCESS, StartProducerResponse(producer_epoch=self._epoch).to_ext(), b""
            )
        answer = await self._inner.ask_controllers(command, timeout)
        if command.code != RequestCode.BROKERSET_SUBJECT_ROUTE or not answer.body:
            return answer
        if answer.code == ResponseCode.SUCCESS:
            try:
                now = partitions_digest(SubjectRoute.from_json(answer.body))
            except Rejected:
                return answer
            if now != self._partitions:
                return _refusal("the subject's partitions changed while the task was sending")
        return answer

    async def ask_master(self, topic: str, broker_group: str, command: Command, timeout: float) -> Command:
        """As the inner one."""
        return await self._inner.ask_master(topic, broker_group, command, timeout)

    def route_is_stale(self, topic: str) -> None:
        """As the inner one."""
        self._inner.route_is_stale(topic)


def _refusal(text: str) -> Command:
    return Command(
        ResponseCode.BROKERSET_SUBJECT_REFUSED,
        {},
        b"",
        remark=f"{text}: it is to be run again from its start",
    )


class OrderedSender:
    """Rows of one task to ordered subjects. Not safe for several event loops."""

    def __init__(self, client: OrderedClient, options: SinkOptions) -> None:
        self._client = client
        self._options = options
        self._seconds = options.send_timeout / 1000
        self._settings = ProducerSettings(
            messages_max=MESSAGES_MAX,
            batch_messages_max=options.batch_messages,
            batch_bytes_max=options.batch_bytes,
        )
        self._producers: dict[str, OrderedProducer] = {}
        self._unconfirmed = 0
        self._problem: Exception | None = None
        self._moved = asyncio.Event()
        self.rows = 0
        self.bytes = 0
        self.sent_again = 0

    async def start(self) -> None:
        """Nothing to do: routes are asked for with the first row of each subject."""

    async def add(self, rows: list[Row]) -> None:
        """Take rows as they come, at least once each."""
        producer = self._producers.get("")
        if producer is None:
            producer = self._producers[""] = self._client.producer(settings=self._settings)
            await producer.start()
        await self._send(producer, rows)

    async def add_once(self, rows: list[Row], task: TaskIdentity) -> None:
        """Take all rows of a task, in an order that is the same in each attempt."""
        subjects: dict[str, list[Row]] = {}
        for row in rows:
            subjects.setdefault(row.message.topic, []).append(row)
        for subject, own in subjects.items():
            partitions = partitions_digest(await self._route(subject))
            epoch = task.epoch(digest_of_all(own))
            producer = OrderedProducer(
                PinnedTransport(self._client.transport, epoch, partitions),
                producer_id=task.producer_id(partitions),
                settings=self._settings,
            )
            self._producers[subject] = producer
            await producer.start()
            await self._send(producer, own)

    async def finish(self) -> None:
        """Wait until each row is confirmed. Raises `SinkFailed`; so it does when none is for long."""
        while self._unconfirmed and self._problem is None:
            self._moved.clear()
            try:
                async with asyncio.timeout(self._seconds):
                    await self._moved.wait()
            except TimeoutError:
                raise SinkFailed(
                    f"no row was confirmed for {self._seconds:g} s, {self._unconfirmed} are on their way: is "
                    "a broker group without a master? See `brokerset status`"
                ) from None
        self._check()

    async def close(self) -> None:
        """Fail what is on its way."""
        for producer in self._producers.values():
            await producer.close(0.0 if self._problem is not None or self._unconfirmed else 5.0)

    # -- inside -------------------------------------------------------------------------------------------

    async def _route(self, subject: str) -> SubjectRoute:
        header = GetSubjectRoute(subject=subject, order_strategy=OrderStrategy.STRICT)
        try:
            answer = await self._client.transport.ask_controllers(
                Command(RequestCode.BROKERSET_SUBJECT_ROUTE, header.to_ext(), b""), self._seconds
            )
        except ClientError as error:
            raise SinkFailed(f"subject {subject}: {error}") from error
        if answer.code != ResponseCode.SUCCESS or not answer.body:
            raise SinkFailed(
                f"subject {subject}: the controllers answer {answer.code}: {answer.remark or 'no route'}; "
                "idempotence needs a Strict subject that exists"
            )
        return SubjectRoute.from_json(answer.body)

    async def _send(self, producer: OrderedProducer, rows: list[Row]) -> None:
        for row in rows:
            self._check()
            self._unconfirmed += 1
            size = len(row.message.body)
            try:
                future = await producer.send_async(row.message, key=row.order_key, timeout=self._seconds)
            except ClientError as error:
                self._unconfirmed -= 1
                raise SinkFailed(f"subject {row.message.topic}: {error}") from error
            future.add_done_callback(partial(self._ended, size))

    def _ended(self, size: int, done: asyncio.Future[OrderedSendResult]) -> None:
        self._unconfirmed -= 1
        self._moved.set()
        if done.cancelled():  # it has no answer: `finish` must not pass
            self._problem = self._problem or SinkFailed("a send was cancelled before its broker answered")
            return
        error = done.exception()
        if error is None:
            self.rows += 1
            self.bytes += size
        elif isinstance(error, Exception):
            self._problem = self._problem or error

    def _check(self) -> None:
        if self._problem is not None:
            raise SinkFailed(f"rows could not be sent: {self._problem}") from self._problem
