"""Sends many messages with many on their way at once, and counts what became of them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

from brokerset_cli.output import CommandFailed, counted
from brokerset_client.errors import ClientError
from brokerset_client.messages import Message, SendResult, SendStatus

READ_AHEAD_MAX: Final = 256
"""Requests' worth of messages that are taken from a pipe before there is room to send them."""

OFFSET_UNKNOWN: Final = -1
"""Queue offset of a message that is stored, where the answer did not say at which place."""


@dataclass(slots=True)
class QueueRange:
    """What one queue got."""

    count: int
    first: int
    """Smallest queue offset, `OFFSET_UNKNOWN` if none was said; so is `last`."""

    last: int
    """Largest queue offset."""


@dataclass(slots=True)
class Sent:
    """What became of the messages."""

    count: int = 0
    """Acknowledged messages."""

    body_bytes: int = 0
    seconds: float = 0.0
    statuses: Counter[str] = field(default_factory=Counter)
    queues: dict[str, QueueRange] = field(default_factory=dict)
    last: SendResult | None = None
    latencies_ms: list[float] = field(default_factory=list)
    """Of each request, when they were asked for."""

    @property
    def per_second(self) -> float:
        """Acknowledged messages per second."""
        return self.count / self.seconds if self.seconds > 0 else 0.0

    def add(self, result: SendResult, messages: int, body_bytes: int) -> None:
        """Count an acknowledged request of so many messages."""
        self.count += messages
        self.body_bytes += body_bytes
        self.statuses[result.status.name] += messages
        name = f"{result.queue.broker_name}/{result.queue.queue_id}"
        first = last = result.queue_offset
        if first != OFFSET_UNKNOWN:
            last += messages - 1
        known = self.queues.get(name)
        if known is None:
            self.queues[name] = QueueRange(messages, first, last)
        else:
            known.count += messages
            if first != OFFSET_UNKNOWN:
                known.first = first if known.first == OFFSET_UNKNOWN else min(known.first, first)
            known.last = max(known.last, last)
        self.last = result

    def to_json(self) -> dict[str, Any]:
        """Return the counts with camelCase names."""
        return {
            "count": self.count,
            "bytes": self.body_bytes,
            "seconds": round(self.seconds, 6),
            "perSecond": round(self.per_second, 1),
            "statuses": dict(self.statuses),
            "queues": {
                name: {"count": r.count, "firstOffset": _said(r.first), "lastOffset": _said(r.last)}
                for name, r in sorted(self.queues.items())
            },
            "lastMessageId": self.last.message_id if self.last else None,
            "lastOffsetMessageId": self.last.offset_message_id if self.last else None,
            "lastRecallHandle": self.last.recall_handle if self.last else None,
        }


def _said(queue_offset: int) -> int | None:
    return None if queue_offset == OFFSET_UNKNOWN else queue_offset


class Sends(Protocol):
    """What is wanted of a producer: take messages in order, and answer later."""

    async def send_async(self, message: Message) -> asyncio.Future[SendResult]:
        """Take one message."""

    async def send_batch_async(self, messages: list[Message]) -> asyncio.Future[SendResult]:
        """Take several, as one request."""


async def send_all(
    producer: Sends,
    messages: Iterable[Message],
    *,
    done: Callable[[int], None],
    in_flight_max: int,
    batch: int = 1,
    measure: bool = False,
    stop: asyncio.Event | None = None,
    waits: bool = False,
) -> Sent:
    """Send `messages` in order with at most `in_flight_max` requests unanswered; `done` hears of successes.

    With `batch` > 1 so many messages share a request. `waits` says that the next message may be long in
    coming (a pipe, a terminal): a thread then waits for it, because answers go on coming. Ends the command at
    the first failure, or when `stop` is set, after the answers of what was on its way, and says how many were
    acknowledged; to stop what waits is no failure.
    """
    sent = Sent()
    failures: list[BaseException] = []
    room = asyncio.Semaphore(in_flight_max)
    source = iter(messages)
    ahead = _ReadAhead(source, batch) if waits else None
    over = stop or asyncio.Event()
    started = time.perf_counter()

    def ended(group: list[Message], began: float, future: asyncio.Future[SendResult]) -> None:
        room.release()
        if future.cancelled():
            failures.append(asyncio.CancelledError())
            over.set()
        elif (error := future.exception()) is not None:
            failures.append(error)
            over.set()
        else:
            if measure:
                sent.latencies_ms.append((time.perf_counter() - began) * 1000)
            sent.add(future.result(), len(group), sum(len(message.body) for message in group))
            done(len(group))

    try:
        while not over.is_set():
            group = await ahead.next(over) if ahead is not None else _take(source, batch)
            if not group:
                break
            await room.acquire()
            began = time.perf_counter()
            try:
                if batch == 1:
                    future = await producer.send_async(group[0])
                else:
                    future = await producer.send_batch_async(group)
            except ClientError as error:
                room.release()
                failures.append(error)
                break
            future.add_done_callback(partial(ended, group, began))
    finally:
        for _ in range(in_flight_max):  # the last answers
            await room.acquire()
    sent.seconds = time.perf_counter() - started
    if failures:
        raise _failed(failures[0], sent)
    if over.is_set() and not waits and next(source, None) is not None:
        raise CommandFailed(
            f"stopped before everything was sent: {counted(sent.count, 'message')} acknowledged",
            "these are stored; the others were not sent",
        )
    return sent


def _take(source: Iterator[Message], count: int) -> list[Message]:
    """The next messages, fewer at the end."""
    return [message for _, message in zip(range(count), source, strict=False)]


class _ReadAhead:
    """Takes messages from what waits, in a thread of its own and a little ahead.

    When nobody takes them any more, the thread waits on, until the process ends: a line that has been asked
    for cannot be given back.
    """

    def __init__(self, source: Iterator[Message], count: int) -> None:
        self._source = source
        self._count = count
        self._loop = asyncio.get_running_loop()
        self._groups: asyncio.Queue[list[Message] | BaseException] = asyncio.Queue()
        self._room = threading.Semaphore(READ_AHEAD_MAX)
        threading.Thread(target=self._read, daemon=True).start()

    async def next(self, over: asyncio.Event) -> list[Message]:
        """The next messages; none at the end, or when `over` is set first."""
        if self._groups.empty():
            arrived = asyncio.create_task(self._groups.get())
            ended = asyncio.create_task(over.wait())
            await asyncio.wait((arrived, ended), return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
            if not arrived.done():
                arrived.cancel()
                return []
            group = arrived.result()
        else:
            group = self._groups.get_nowait()
        self._room.release()
        if isinstance(group, BaseException):
            raise group
        return group

    def _read(self) -> None:
        group: list[Message] | BaseException = []
        while True:
            self._room.acquire()
            try:
                group = _take(self._source, self._count)
            except BaseException as error:  # whatever it is, it belongs to the one who asks
                group = error
            try:
                self._loop.call_soon_threadsafe(self._groups.put_nowait, group)
            except RuntimeError:  # the loop is closed: nobody asks any more
                return
            if not group or isinstance(group, BaseException):
                return


def _failed(error: BaseException, sent: Sent) -> BaseException:
    if not isinstance(error, ClientError):
        return error
    from brokerset_cli.client_session import advice_for

    before = f"after {counted(sent.count, 'acknowledged message')}: " if sent.count else ""
    return CommandFailed(f"{before}{error}", advice_for(error, "the name server"))


def check_statuses(sent: Sent) -> None:
    """End the command when messages are stored less safely than the broker's settings ask for."""
    weak = {name: count for name, count in sent.statuses.items() if name != SendStatus.SEND_OK.name}
    if weak:
        counts = ", ".join(f"{count:,} x {name}" for name, count in sorted(weak.items()))
        raise CommandFailed(
            f"all messages are stored, but not as safely as asked for: {counts}",
            "look at the brokers' disks and replicas with `brokerset status`",
        )
