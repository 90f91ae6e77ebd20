"""Hands popped messages to the listener, and settles them by its verdict.

Sources: `ConsumeMessagePopConcurrentlyService`, `ConsumeMessagePopOrderlyService`. What fails for too long
goes to the dead-letter topic; Java's client acknowledges it, and it is gone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import structlog

from brokerset_client.errors import ClientError
from brokerset_client.listening import TURN_MESSAGES, Listener
from brokerset_client.pop.hand import Hand
from brokerset_client.pop.popped import PoppedMessage
from brokerset_client.pop.renewals import Renewals
from brokerset_client.pop.requests import PopBroker, Source
from brokerset_client.pop.settings import PopSettings, decide_wait
from brokerset_client.pop.settling import Settling, Spawn
from brokerset_client.push_settings import Later

log = structlog.get_logger(__name__)

GIVE_BACK_SECONDS: Final = 0.001
"""Invisible time of a message that is given back: the broker hands it out again as soon as it can."""

GIVE_BACK_TIMEOUT: Final = 3.0
"""How long the end of a consumer waits until brokers have taken back what it had."""

BURY_AGAIN_SECONDS: Final = 10.0
"""Wait until a message is delivered again that could not be brought to the dead-letter topic."""

Lost = Callable[[PoppedMessage, ClientError], None]


@dataclass(slots=True)
class PopCounts:
    """What became of popped messages; each is in one of the sums below `popped`, or still here."""

    popped: int = 0
    """Messages that brokers gave to this consumer and its listener was to get."""
    acked: int = 0
    """Done, and confirmed."""
    failed: int = 0
    """The listener failed; they come again later."""
    dead: int = 0
    """Failed too often: in the dead-letter topic, and confirmed."""
    given_back: int = 0
    """Not worked on to an end, and free for others at once."""
    lost: int = 0
    """Their time was over before a broker confirmed what was asked; others get them, too."""


@dataclass(slots=True)
class _Batch:
    """Messages of one source; ordered: of one queue, of which no other batch is worked on."""

    source: Source
    queue_id: int
    messages: deque[PoppedMessage] = field(default_factory=deque)


class Work:
    """Workers for the messages of one consumer. A worker that finds more work wakes the next one first."""

    def __init__(
        self,
        broker: PopBroker,
        spawn: Spawn,
        listener: Listener,
        settings: PopSettings,
        *,
        hand: Hand,
        ordered: bool,
        lost: Lost,
    ) -> None:
        """`lost` hears of messages that others get, too: see `PopCounts.lost`."""
        self._broker = broker
        self._spawn = spawn
        self._listener = listener
        self._settings = settings
        self._hand = hand
        self._ordered = ordered
        self._lost = lost
        self.settling = Settling(broker, spawn)
        self.renewals = Renewals(self.settling, spawn, settings.invisible_seconds, self._report)
        self.counts = PopCounts()
        self._ready: deque[_Batch] = deque()
        self._lanes: dict[tuple[Source, int], deque[_Batch]] = {}
        """Ordered: queues with a batch that is ready or worked on, and the batches that wait for it."""
        self._idle: deque[asyncio.Future[None]] = deque()
        self._workers: list[asyncio.Task[Any]] = []
        self._stopping = False

    def start(self) -> None:
        """Start the workers."""
        for number in range(self._settings.workers):
            self._workers.append(self._spawn(self._work(), f"pop listener {number}"))

    def deliver(self, source: Source, messages: Sequence[PoppedMessage]) -> None:
        """Take what a pop brought."""
        self.counts.popped += len(messages)
        self._hand.take(len(messages))
        if self._stopping:
            self._spawn(self.give_back(messages), "give back")
            return
        if self._settings.renew:
            self.renewals.begin(messages)
        if self._ordered:
            batches: dict[int, _Batch] = {}
            for message in messages:
                queue_id = message.handle.queue_id
                batches.setdefault(queue_id, _Batch(source, queue_id)).messages.append(message)
            for queue_id, batch in batches.items():
                lane = self._lanes.get((source, queue_id))
                if lane is None:
                    self._lanes[source, queue_id] = deque()
                    self._ready.append(batch)
                else:
                    lane.append(batch)
        else:
            size = self._listener.batch_max
            for start in range(0, len(messages), size):
                self._ready.append(_Batch(source, -1, deque(messages[start : start + size])))
        self._wake()

    def acknowledge(self, messages: Sequence[PoppedMessage]) -> None:
        """Acknowledge what nobody is to work on."""
        self._hand.take(len(messages))
        for message in messages:
            self.settling.ack(message).add_done_callback(partial(self._settled, message, ""))

    async def give_back(self, messages: Sequence[PoppedMessage]) -> None:
        """Let others have these at once; their number of deliveries does not grow by it."""
        self.renewals.end(messages)
        self.counts.lost += sum(message.lost for message in messages)
        changes = [
            self.settling.change(message, GIVE_BACK_SECONDS, uncounted=True)
            for message in messages
            if not message.lost
        ]
        try:
            async with asyncio.timeout(GIVE_BACK_TIMEOUT):
                results = await asyncio.gather(*changes, return_exceptions=True)
            self.counts.given_back += sum(result is None for result in results)
            problems = [str(result) for result in results if isinstance(result, ClientError)]
        except TimeoutError:
            problems = [f"no answer in {GIVE_BACK_TIMEOUT} s"]
        finally:
            self._hand.give(len(messages))
        if problems:
            log.warning(
                "messages are not given back: they come again when their invisible time ends",
                messages=len(messages),
                reason=problems[0],
            )

    async def give_back_waiting(self, topics: frozenset[str] | None = None) -> None:
        """Give back what no listener has begun with, of these topics or of all."""
        waiting: list[PoppedMessage] = []
        for batch in [*self._ready, *(batch for lane in self._lanes.values() for batch in lane)]:
            if topics is None or batch.source.topic in topics:
                waiting += batch.messages
                batch.messages.clear()
        if waiting:
            await self.give_back(waiting)

    async def stop(self, timeout: float) -> None:
        """Give back what waits; wait for listeners that run, and their acks; cancel what takes longer."""
        self._stopping = True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        await self.give_back_waiting()
        self._wake_all()
        workers = [worker for worker in self._workers if worker is not asyncio.current_task()]
        if workers:
            _, late = await asyncio.wait(workers, timeout=max(0.0, deadline - loop.time()))
            if late:
                log.warning("listeners were cancelled at close", running=len(late))
            for worker in late:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        try:
            async with asyncio.timeout_at(max(deadline, loop.time() + GIVE_BACK_TIMEOUT)):
                await self._hand.wait_empty()
        except TimeoutError:
            log.warning("messages are not settled: they come again", messages=self._hand.count)
        self.renewals.close()

    # -- inside -------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        while self._idle:
            turn = self._idle.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def _wake_all(self) -> None:
        for turn in self._idle:
            if not turn.done():
                turn.set_result(None)
        self._idle.clear()

    async def _work(self) -> None:
        self._listener.enter()
        handled = 0
        while not self._stopping:
            if not self._ready:
                turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._idle.append(turn)
                await turn
                continue
            batch = self._ready.popleft()
            if self._ready:
                self._wake()
            handled += len(batch.messages)
            await (self._in_order(batch) if self._ordered else self._at_once(batch))
            if handled >= TURN_MESSAGES:
                handled = 0
                await asyncio.sleep(0)

    async def _at_once(self, batch: _Batch) -> None:
        messages = self._still_ours(batch.messages)
        batch.messages.clear()
        if not messages:
            return
        later = await self._call(messages, batch.source.topic)
        for message in messages:
            if later is None:
                self._ack(message)
            else:
                self._spawn(self._failed(message, later), f"failure of {message.message_id}")

    async def _in_order(self, batch: _Batch) -> None:
        """One message of a queue after the other. When one is to come again, so are those behind it."""
        lane = self._lanes[batch.source, batch.queue_id]
        try:
            while batch.messages:
                count = min(self._listener.batch_max, len(batch.messages))
                messages = [batch.messages.popleft() for _ in range(count)]
                if any(message.lost for message in messages) or self._stopping or self._hand.suspended:
                    batch.messages.extendleft(reversed(messages))
                    break
                later = await self._call(messages, batch.source.topic)
                if later is None:
                    for message in messages:
                        self._ack(message)
                elif not await self._failed_in_order(messages, later):
                    break
            rest = self._still_ours(batch.messages)
            batch.messages.clear()
            if rest:
                await self.give_back(rest)
        except asyncio.CancelledError:  # the consumer ends: what is behind the cancelled call is free, too
            if batch.messages:
                self._spawn(self.give_back(list(batch.messages)), "give back")
                batch.messages.clear()
            raise
        finally:
            if lane:
                self._ready.append(lane.popleft())
                self._wake()
            else:
                del self._lanes[batch.source, batch.queue_id]

    async def _call(self, messages: list[PoppedMessage], topic: str) -> Later | None:
        try:
            return await self._listener.call(messages, topic)
        except asyncio.CancelledError:  # the consumer ends, and its listener took too long
            self._spawn(self.give_back(messages), "give back")
            raise

    def _still_ours(self, messages: Sequence[PoppedMessage]) -> list[PoppedMessage]:
        """Those that a listener may begin with; the others are somebody else's by now."""
        gone = [message for message in messages if message.lost]
        if gone:
            self.renewals.end(gone)
            self.counts.lost += len(gone)
            self._hand.give(len(gone))
        return [message for message in messages if not message.lost]

    def _ack(self, message: PoppedMessage) -> None:
        self.renewals.end([message])
        self.settling.ack(message).add_done_callback(partial(self._settled, message, "acked"))

    def _settled(self, message: PoppedMessage, count: str, done: asyncio.Future[None]) -> None:
        self._hand.give()
        error = None if done.cancelled() else done.exception()
        if isinstance(error, ClientError):
            log.warning("ack is not taken", message=str(message), reason=str(error))
            if count:
                self.counts.lost += 1
                self._report(message, error)
        elif count == "acked":
            self.counts.acked += 1
        elif count == "dead":
            self.counts.dead += 1

    async def _failed(self, message: PoppedMessage, later: Later) -> bool:
        """See to it that the message comes again in time; whether it is done instead, as a dead letter."""
        wait = await wait_or_bury(self._broker, self._settings, message, later, ordered=self._ordered)
        self.renewals.end([message])
        if wait is None:
            self.settling.ack(message).add_done_callback(partial(self._settled, message, "dead"))
            return True
        try:
            await self.settling.change(message, wait)
        except ClientError as error:
            log.warning(
                "message comes again when its invisible time ends", message=str(message), reason=str(error)
            )
            self.counts.lost += 1
            self._report(message, error)
        else:
            self.counts.failed += 1
        finally:
            self._hand.give()
        return False

    async def _failed_in_order(self, messages: list[PoppedMessage], later: Later) -> bool:
        """Whether the queue goes on: all of these are dead letters."""
        for index, message in enumerate(messages):
            if not await self._failed(message, later):
                await self.give_back(messages[index + 1 :])
                return False
        return True

    def _report(self, message: PoppedMessage, error: ClientError) -> None:
        """Say that others get the message, too; once, however often brokers say so."""
        if not message.reported:
            message.reported = True
            self._lost(message, error)


async def wait_or_bury(
    broker: PopBroker, settings: PopSettings, message: PoppedMessage, later: Later, *, ordered: bool
) -> float | None:
    """Seconds until a failed message is to come again; None: acknowledge it, it is in the dead-letter topic.

    One that cannot get there now comes again, and is tried again then.
    """
    wait = decide_wait(settings, later, message.reconsume_times, ordered=ordered)
    if wait is None:
        try:
            await broker.dead_letter(message)
        except ClientError as error:
            log.warning("message is no dead letter yet", message=str(message), reason=str(error))
            return decide_wait(settings, Later(), 0, ordered=ordered) or BURY_AGAIN_SECONDS
    return wait
