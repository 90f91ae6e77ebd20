"""Sends messages to ordered subjects: per key in the order of the calls, stored once.

The shell of `SubjectSender`: one driver for each subject keeps its route and its producer epoch, and runs at
most one request for each partition. All waits end when the producer is closed.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import Final, Protocol

from brokerset_client.errors import ClientClosed
from brokerset_client.messages import Message
from brokerset_client.ordered.producing.breaker import Breakers
from brokerset_client.ordered.producing.budget import Budget
from brokerset_client.ordered.producing.driver import SubjectDriver
from brokerset_client.ordered.producing.encoding import prepare
from brokerset_client.ordered.producing.errors import (
    ProducerFenced,
    ProducerFull,
    StillQueued,
    TooManySubjects,
)
from brokerset_client.ordered.producing.measurements import ProducerMeasurements
from brokerset_client.ordered.producing.outgoing import Failed, Outgoing, Stored
from brokerset_client.ordered.producing.settings import ProducerSettings
from brokerset_client.ordered.transport import OrderedTransport
from brokerset_formats.message_ids import UniqueIds
from brokerset_formats.order_keys import LOGICAL_PARTITIONS
from brokerset_formats.order_stamps import PRODUCER_ID
from brokerset_protocol.subject_words import OrderStrategy
from brokerset_runtime.clock import Clock, SystemClock

CLOSE_SECONDS: Final = 5.0
"""How long `close` waits for what is on its way, unless the caller says otherwise."""

TURN_MESSAGES: Final = 128
"""Messages after which the loop gets a turn, so that what was accepted can leave: a batch."""

_NOT_IN_IDS: Final = re.compile(r"[^A-Za-z0-9_.-]")


class _Unset:
    """No key was given, which is another thing than `None`: no key is wanted."""


UNSET: Final = _Unset()


class Drawing(Protocol):
    """The part of `random.Random` that is used."""

    def random(self) -> float:
        """Draw from [0, 1)."""

    def getrandbits(self, bits: int, /) -> int:
        """Draw an integer of so many bits."""


EpochGuard = Callable[[str, int], Awaitable[bool]]
"""Gets a subject and a producer epoch: False fences the producer, and nothing is sent with the epoch.

Who shares a producer id with other processes, one after the other, checks here that it is still its turn. An
epoch that is given to a process whose turn is over would fence the one that has it now.
"""


@dataclass(frozen=True, slots=True)
class OrderedSendResult:
    """Where a confirmed message is."""

    message_id: str
    subject: str
    partition_id: int
    logical_partition: int
    broker_group: str
    queue_id: int
    queue_offset: int | None
    """None if it was stored by an attempt whose answer was lost."""

    producer_epoch: int
    sequence: int


class OrderedProducer:
    """A producer of ordered subjects; `Message.topic` is the subject.

    Messages of one key are stored in the order in which `send` or `send_async` was called. What that takes
    depends on the subject's order strategy:

    * **Strict**: a message stays where it is until its partition's broker has confirmed it, however long that
      takes, and those of its partition wait behind it. It is stored once, also over lost answers, failovers
      and new partitions. It fails only if it is illegal, if the producer is closed or fenced, if the subject
      is deleted, or with `OutcomeLost`.
    * **BestTried**: after a failed try it goes to a partition of another broker group, if there is one, and
      fails after `tries_max` tries. A message whose outcome was unknown may be stored twice, and messages of
      a key may pass each other.

    A failed message is not in the way of those behind it. Who cannot have a gap awaits each send of a key
    before the next one, or uses the outbox. Each call sends a message of its own, also for the same object.

    `producer_id` may be given to be the same after a restart: then the process that ran before is fenced. Two
    processes must not have the same at the same time. Without one a new one is drawn. Use it with
    `async with`, or await `start` and `close`. Not safe for several event loops.
    """

    def __init__(
        self,
        transport: OrderedTransport,
        *,
        clock: Clock | None = None,
        producer_id: str | None = None,
        client_id: str = "producer",
        settings: ProducerSettings | None = None,
        random: Drawing | None = None,
        may_use_epoch: EpochGuard | None = None,
    ) -> None:
        """`may_use_epoch` is awaited after an epoch was given, and before the first send with it."""
        self._may_use_epoch = may_use_epoch
        self.settings = settings or ProducerSettings()
        problems = self.settings.problems()
        drawing = random or Random()
        if producer_id is None:
            prefix = _NOT_IN_IDS.sub("-", client_id)[:40]
            producer_id = f"{prefix}-{drawing.getrandbits(80):020x}"
        if PRODUCER_ID.fullmatch(producer_id) is None:
            problems.append(f"producer id {producer_id[:80]!r}: 1 to 64 of letters, digits, '_', '-', '.'")
        if problems:
            raise ValueError("; ".join(problems))
        self.producer_id = producer_id
        self._transport = transport
        self._clock = clock or SystemClock()
        self._roll: Callable[[], float] = drawing.random
        address = drawing.getrandbits(32).to_bytes(4, "big")
        self._ids = UniqueIds(address, drawing.getrandbits(16), drawing.getrandbits(32))
        self._budget = Budget(self.settings.messages_max, self.settings.bytes_max)
        self._breakers = Breakers(self.settings)
        self._drivers: dict[str, SubjectDriver] = {}
        self._futures: dict[int, asyncio.Future[OrderedSendResult]] = {}
        self._accepted = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._running = False
        self._closed = False
        self._fenced: str | None = None
        self._closing: list[SubjectDriver] = []

    async def __aenter__(self) -> OrderedProducer:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Be ready to send. Routes and epochs are asked for with the first message of each subject."""
        if self._closed:
            raise ClientClosed("the producer was closed: make a new one")
        self._running = True

    async def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Take nothing more, wait `timeout` seconds for what is on its way, fail the rest (`ClientClosed`).

        No task is left behind. What failed so may be stored, if its attempt had no answer yet.
        """
        if not self._running:
            return
        self._running = False
        self._closed = True
        self._budget.close(lambda: ClientClosed("the producer was closed while the message waited for room"))
        try:
            async with asyncio.timeout(timeout):
                await self._idle.wait()
        except TimeoutError:
            pass
        finally:
            self._stop_drivers(self._closed_error)
            for driver in self._closing:
                await driver.ended()
            self._closing.clear()

    async def flush(self) -> None:
        """Wait until everything that was accepted is confirmed or has failed."""
        await self._idle.wait()

    def measurements(self) -> tuple[ProducerMeasurements, ...]:
        """Snapshots, one for each subject that messages were sent to; none after `close`, or when fenced."""
        now = self._clock.monotonic()
        return tuple(driver.sender.measure(self.producer_id, now) for driver in self._drivers.values())

    # -- sending ------------------------------------------------------------------------------------------

    async def send(
        self,
        message: Message,
        *,
        key: str | _Unset | None = UNSET,
        timeout: float | None = None,
        order: OrderStrategy | None = None,
    ) -> OrderedSendResult:
        """Send a message and wait until it is confirmed.

        `key` is the order key; without the argument it is the message's `sharding_key`, and `None` is none.
        `order` is what the caller expects of the subject: another one is refused, and a subject that does not
        exist is created with it.

        Raises `MessageInvalid`, `TooManySubjects` at once; `ProducerFull` if there is no room for `timeout`
        seconds: nothing was accepted then. `StillQueued` if it is not confirmed by then: **it keeps its place
        and goes on**. Then what `send_async`'s future raises. Without `timeout` it waits as long as it takes.
        Cancelling the caller does not take the message back.
        """
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        future = await self.send_async(message, key=key, timeout=timeout, order=order)
        try:
            async with asyncio.timeout_at(deadline):
                return await asyncio.shield(future)
        except TimeoutError:
            future.add_done_callback(_retrieve)
            raise StillQueued(
                f"message to {message.topic!r} is not confirmed after {timeout} s: it stays queued in its "
                "place and is sent as soon as its partition's broker answers"
            ) from None
        except asyncio.CancelledError:
            future.add_done_callback(_retrieve)
            raise

    async def send_async(
        self,
        message: Message,
        *,
        key: str | _Unset | None = UNSET,
        timeout: float | None = None,
        order: OrderStrategy | None = None,
    ) -> asyncio.Future[OrderedSendResult]:
        """Accept a message, after waiting for room only; the order of a key is that of the calls.

        The future gets the result, or raises `OrderedSendFailed` (one of its kinds), `ProducerFenced`,
        `SubjectRefused`, or `ClientClosed`. It raises `MessageInvalid`, `TooManySubjects` and
        `ProducerFull` itself, see `send`.
        """
        self._check_running()
        chosen = message.sharding_key if isinstance(key, _Unset) else key
        if message.topic not in self._drivers and len(self._drivers) >= self.settings.subjects_max:
            raise TooManySubjects(
                f"this producer sends to {len(self._drivers)} subjects already: use another for "
                f"{message.topic!r}, or a higher subjects_max"
            )
        outgoing = prepare(
            message,
            chosen,
            number=0,
            logical=int(self._roll() * LOGICAL_PARTITIONS) if chosen is None else None,
            message_id=self._ids.next_id(self._clock.now_ms()),
            now=self._clock.monotonic(),
            settings=self.settings,
        )
        future: asyncio.Future[OrderedSendResult] = asyncio.get_running_loop().create_future()
        budget = self._budget
        try:
            await budget.enter(
                outgoing.size, lambda: self._accept(message.topic, outgoing, order, future), timeout
            )
        except TimeoutError:
            raise ProducerFull(
                f"{budget.messages} messages ({budget.bytes} bytes) are unconfirmed, no room for one more "
                f"in {timeout} s: nothing was accepted, try again later"
            ) from None
        if self._accepted % TURN_MESSAGES == 0:
            await asyncio.sleep(0)
        return future

    # -- inside -------------------------------------------------------------------------------------------

    def _check_running(self) -> None:
        if self._fenced is not None:
            raise ProducerFenced(self._fenced)
        if not self._running:
            raise ClientClosed("the producer was closed, or not started: use `async with`, or await start()")

    def _accept(
        self,
        subject: str,
        outgoing: Outgoing,
        order: OrderStrategy | None,
        future: asyncio.Future[OrderedSendResult],
    ) -> None:
        self._accepted += 1
        outgoing.number = self._accepted
        outgoing.accepted_at = self._clock.monotonic()
        self._futures[outgoing.number] = future
        self._idle.clear()
        driver = self._drivers.get(subject)
        if driver is None:
            driver = self._drivers[subject] = SubjectDriver(
                subject,
                self.producer_id,
                self._transport,
                self._clock,
                self.settings,
                self._breakers,
                self._roll,
                self,
            )
        driver.accept(outgoing, order)

    def stored(self, stored: Stored) -> None:
        """A driver's messages are confirmed."""
        offsets = stored.queue_offsets
        for at, message in enumerate(stored.messages):
            future = self._leave(message)
            if not future.done():
                future.set_result(
                    OrderedSendResult(
                        message.message_id,
                        stored.key.subject,
                        stored.key.partition_id,
                        message.logical,
                        stored.key.broker_group,
                        stored.queue_id,
                        None if offsets is None else offsets[at],
                        stored.epoch,
                        stored.sequences[at],
                    )
                )

    def failed(self, failed: Failed) -> None:
        """A driver has given up a message."""
        future = self._leave(failed.message)
        if not future.done():
            future.set_exception(failed.error)

    def fenced(self, reason: str) -> None:
        """A broker has heard of a later start of this producer id: everything ends."""
        if self._fenced is not None:
            return
        self._fenced = (
            f"producer {self.producer_id!r} was started again by another process ({reason}): end this one"
        )
        text = self._fenced
        self._budget.close(lambda: ProducerFenced(text))
        self._stop_drivers(lambda message, unknown: ProducerFenced(_with_doubt(text, unknown)))

    async def may_use_epoch(self, subject: str, epoch: int) -> bool:
        """Whether a driver may send with an epoch that it was given."""
        return self._may_use_epoch is None or await self._may_use_epoch(subject, epoch)

    def forget(self, driver: SubjectDriver) -> None:
        """A driver's subject is refused or deleted; the next message to it starts another one."""
        if self._drivers.get(driver.subject) is driver:
            del self._drivers[driver.subject]
        driver.stop()
        self._closing = [each for each in self._closing if not each.has_ended]
        self._closing.append(driver)

    def _leave(self, message: Outgoing) -> asyncio.Future[OrderedSendResult]:
        future = self._futures.pop(message.number)
        self._budget.leave(message.size)
        if not self._futures:
            self._idle.set()
        return future

    def _stop_drivers(self, error: Callable[[Outgoing, bool], Exception]) -> None:
        for driver in list(self._drivers.values()):
            driver.abort(error)
            self.forget(driver)

    def _closed_error(self, message: Outgoing, unknown: bool) -> Exception:
        return ClientClosed(_with_doubt("the producer was closed before the message was confirmed", unknown))


def _with_doubt(text: str, unknown: bool) -> str:
    return text + ("; it may be stored" if unknown else "; it is not stored")


def _retrieve(future: asyncio.Future[OrderedSendResult]) -> None:
    """Nobody waits any more, so nobody is to be warned about an exception that was never retrieved."""
    if not future.cancelled():
        future.exception()


__all__ = ["CLOSE_SECONDS", "UNSET", "Drawing", "OrderedProducer", "OrderedSendResult"]
