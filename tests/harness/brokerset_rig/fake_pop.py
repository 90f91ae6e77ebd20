"""A broker in memory for the parts of a POP consumer, on the clock of the loop; its faults are switched on."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, cast

from brokerset_client.consume_rates import ConsumerWork
from brokerset_client.errors import BrokerUnreachable, ClientError, HandleRefused, RequestRefused
from brokerset_client.listening import Listener
from brokerset_client.pop.hand import Hand
from brokerset_client.pop.polling import Polls
from brokerset_client.pop.popped import PoppedMessage
from brokerset_client.pop.receiving import Receiving
from brokerset_client.pop.renewals import Renewals
from brokerset_client.pop.requests import PopBroker, Popped, PopWish, Source
from brokerset_client.pop.settings import PopBatchListener, PopListener, PopSettings
from brokerset_client.pop.settling import Settling
from brokerset_client.pop.working import Work
from brokerset_formats.hosts import Host
from brokerset_formats.pop.handles import Handle
from brokerset_formats.properties import encode_properties
from brokerset_formats.records import Record, encode_record
from brokerset_protocol import subscriptions
from brokerset_protocol.bodies.heartbeat import SubscriptionData
from brokerset_protocol.codes import ResponseCode

GROUP = "g"
SOURCE = Source("t", "broker-a")


@dataclass(slots=True)
class Kept:
    """One message at the broker."""

    offset: int
    body: bytes
    tag: str
    queue_id: int
    due: float = 0.0
    """When it may be given out (again); seconds of the loop's clock."""
    serial: int = 0
    """Which delivery is valid."""
    times: int = 0
    """Deliveries without an ack before."""
    out: bool = False
    done: bool = False
    dead: bool = False


class FakePopBroker(PopBroker):
    """Gives out what is due, takes back what is not acknowledged in time, and refuses old handles."""

    def __init__(self, *, ordered: bool = False) -> None:
        self.messages: list[Kept] = []
        self.down = False
        """Nothing is answered."""
        self.gone: set[str] = set()
        """Topics that have no master here any more."""
        self.dead_letters_refused = False
        self.batches_refused = False
        """A batch of acks is refused as a whole, whatever is in it."""
        self.full = False
        """There is no room for one more long poll."""
        self.pops = 0
        self.waiting = 0
        self.attempts: list[str | None] = []
        self.ack_sizes: list[int] = []
        self.changes: list[tuple[int, int, bool]] = []
        """Queue offset, milliseconds, and whether it was uncounted."""
        self.stales = 0
        self._ordered = ordered
        self._serial = 0
        self._news = asyncio.Event()

    def put(self, *bodies: bytes, tag: str = "a", queue_id: int = 0) -> None:
        """New messages, due at once."""
        for body in bodies:
            self.messages.append(Kept(len(self.messages), body, tag, queue_id))
        self._news.set()

    def undone(self) -> list[bytes]:
        """Bodies of what nobody has acknowledged."""
        return [kept.body for kept in self.messages if not kept.done]

    def free(self) -> list[bytes]:
        """Bodies of what the next pop would get."""
        return [kept.body for kept in self._due()]

    async def pop(self, source: Source, subscription: SubscriptionData, wish: PopWish) -> Popped:
        """Wait until something is due, or the time is over."""
        self.pops += 1
        self.attempts.append(wish.attempt_id)
        self._check_up()
        loop = asyncio.get_running_loop()
        end = loop.time() + wish.wait_ms / 1000
        self.waiting += 1
        try:
            while not (found := self._due()[: wish.count]):
                if self.full or loop.time() >= end:
                    return Popped([], [], waiters_full=self.full)
                self._news.clear()
                moment = min([end, *(kept.due for kept in self.messages if not kept.done)], default=end)
                try:
                    async with asyncio.timeout_at(max(moment, loop.time() + 0.001)):
                        await self._news.wait()
                except TimeoutError:
                    pass
                self._check_up()
        finally:
            self.waiting -= 1
        given = [self._give(kept, source, wish.invisible_ms) for kept in found]
        tags = subscription.tags_set
        return Popped(
            [message for message in given if not tags or message.tags in tags],
            [message for message in given if tags and message.tags not in tags],
        )

    async def ack(self, broker: str, messages: Sequence[PoppedMessage], timeout: float) -> None:
        """All of them, or a refusal."""
        self._check_up()
        await asyncio.sleep(0.001)
        self._check_up()
        if messages[0].topic in self.gone:
            raise BrokerUnreachable("broker-a", "it has no master for the topic")
        self.ack_sizes.append(len(messages))
        if len(messages) > 1 and self.batches_refused:
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, "a batch", "there")
        bad = [message for message in messages if not self._is_valid(message)]
        for message in messages:
            if message not in bad:
                self._of(message).done = True
                self._news.set()
        if bad and len(messages) == 1:
            raise HandleRefused(bad[0].message_id, ResponseCode.NO_MESSAGE, "not out", "there")
        if bad:
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, "some are not out", "there")

    async def change(
        self, message: PoppedMessage, invisible_ms: int, timeout: float, *, uncounted: bool = False
    ) -> None:
        """The message gets another handle."""
        self._check_up()
        await asyncio.sleep(0.001)
        self._check_up()
        kept = self._of(message)
        self.changes.append((kept.offset, invisible_ms, uncounted))
        if not self._is_valid(message) or kept.done:
            raise HandleRefused(message.message_id, ResponseCode.NO_MESSAGE, "not out", "there")
        loop = asyncio.get_running_loop()
        kept.due = loop.time() + invisible_ms / 1000
        kept.serial = self._next()
        if uncounted:
            kept.times -= 1
        message.handle = self._handle(kept, invisible_ms)
        message.expires_at = kept.due
        self._news.set()

    async def dead_letter(self, message: PoppedMessage) -> None:
        """It is not acknowledged by this."""
        self._check_up()
        if self.dead_letters_refused:
            raise RequestRefused(ResponseCode.NO_PERMISSION, "no dead letters", "there")
        self._of(message).dead = True

    def stale(self, topic: str) -> None:
        """Counts how often the client thought that a broker has moved."""
        self.stales += 1

    # -- inside -------------------------------------------------------------------------------------------

    def _check_up(self) -> None:
        if self.down:
            raise BrokerUnreachable("broker-a", "it is down")

    def _due(self) -> list[Kept]:
        now = asyncio.get_running_loop().time()
        open_ones = [kept for kept in self.messages if not kept.done]
        blocked = {kept.queue_id for kept in open_ones if self._ordered and kept.serial and kept.due > now}
        return [kept for kept in open_ones if kept.due <= now and kept.queue_id not in blocked]

    def _next(self) -> int:
        self._serial += 1
        return self._serial

    def _give(self, kept: Kept, source: Source, invisible_ms: int) -> PoppedMessage:
        loop = asyncio.get_running_loop()
        kept.due = loop.time() + invisible_ms / 1000
        kept.serial = self._next()
        times, kept.times = kept.times, kept.times + 1
        record = Record(
            queue_id=kept.queue_id, queue_offset=kept.offset, offset=300, born_timestamp=4,
            born_host=Host(bytes(4), 5), store_timestamp=6, store_host=Host(bytes((127, 0, 0, 1)), 10911),
            body=kept.body, topic=source.topic,
            properties=encode_properties({"TAGS": kept.tag, "UNIQ_KEY": f"id{kept.offset}"}),
        )  # fmt: skip
        return PoppedMessage(
            encode_record(record), 0, source.broker, GROUP, topic=source.topic,
            handle=self._handle(kept, invisible_ms), expires_at=kept.due, times_before=times,
        )  # fmt: skip

    def _handle(self, kept: Kept, invisible_ms: int) -> Handle:
        return Handle(
            start_offset=kept.offset, pop_time=kept.serial, invisible_time=invisible_ms, revive_queue=0,
            retry_flag=0, broker="broker-a", queue_id=kept.queue_id, queue_offset=kept.offset,
        )  # fmt: skip

    def _of(self, message: PoppedMessage) -> Kept:
        return self.messages[message.handle.queue_offset]

    def _is_valid(self, message: PoppedMessage) -> bool:
        kept = self._of(message)
        now = asyncio.get_running_loop().time()
        return kept.serial == message.handle.pop_time and (kept.done or kept.due > now)


ALL = subscriptions.parse("t", "*", version=1)
"""The subscription to all messages."""


class Listening:
    """A consumer with a listener that has `FakePopBroker` for its broker; use it with `async with`."""

    def __init__(
        self,
        broker: FakePopBroker,
        listener: PopListener | None = None,
        batch: PopBatchListener | None = None,
        *,
        ordered: bool = False,
        subscription: SubscriptionData = ALL,
        **settings: Any,
    ) -> None:
        self.settings = PopSettings(**settings)
        self.lost: list[tuple[bytes, str]] = []
        """Bodies of what was reported as lost, and the name of the error."""
        self.hand = Hand(self.settings.in_hand_max)
        self._tasks: set[asyncio.Task[Any]] = set()
        self.listener = Listener(cast("Any", listener), cast("Any", batch), self.settings)
        self.work = Work(
            broker, self.spawn, self.listener, self.settings, hand=self.hand, ordered=ordered, lost=self._lost
        )
        self.polls = Polls(
            broker,
            self.spawn,
            self.settings,
            hand=self.hand,
            ordered=ordered,
            subscription=lambda _: subscription,
            deliver=self.work.deliver,
            unwanted=self.work.acknowledge,
            give_back=self._give_back,
            work=self.listener.work,
        )

    async def __aenter__(self) -> Listening:
        self.work.start()
        self.polls.want([SOURCE])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def stop(self) -> None:
        """What `PopConsumer.close` does."""
        self.polls.want(())
        await self.work.stop(self.settings.close_timeout)

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run something until the end of the consumer."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _give_back(self, messages: Sequence[PoppedMessage]) -> None:
        for message in messages:
            self.spawn(self.work.settling.change(message, 0.001, uncounted=True), "give back")

    def _lost(self, message: PoppedMessage, error: ClientError) -> None:
        self.lost.append((message.body, type(error).__name__))


class Asking:
    """A consumer without a listener that has `FakePopBroker` for its broker; use it with `async with`."""

    def __init__(self, broker: FakePopBroker, *, ordered: bool = False, sources: int = 1) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self.settling = Settling(broker, self.spawn)
        self.lost: list[bytes] = []
        self.renewals = Renewals(self.settling, self.spawn, 10.0, lambda m, _: self.lost.append(m.body))
        self.receiving = Receiving(
            broker,
            self.spawn,
            self.settling,
            ordered=ordered,
            subscription=lambda _: ALL,
            unwanted=lambda _: None,
            give_back=self.give_back,
            work=ConsumerWork(lambda: 0.0),
        )
        self.receiving.want([SOURCE, *(Source(f"t{number}", "broker-a") for number in range(1, sources))])

    async def __aenter__(self) -> Asking:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.give_back(self.receiving.close())
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def give_back(self, messages: Sequence[PoppedMessage]) -> None:
        """Let others have these."""
        for message in messages:
            self.spawn(self.settling.change(message, 0.001, uncounted=True), "give back")

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run something until the end of the consumer."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
