"""Acks and changes of the invisible time: repeated until a broker confirms them, or they are pointless.

Acks of one topic at one broker share requests: those of one turn of the loop, and those that come while a
request is under way. Those of another topic do not wait for them: it may be gone, with messages that are ours
for hours. A master that changes meanwhile is found by the route; handles name the broker, not its address.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final

import structlog

from brokerset_client.errors import ClientError, HandleExpired, HandleRefused, RequestRefused
from brokerset_client.instance import CALL_SECONDS
from brokerset_client.pop.batch_acks import fits_batch
from brokerset_client.pop.popped import PoppedMessage
from brokerset_client.pop.requests import PopBroker
from brokerset_client.retry import STALE_ROUTE_CODES, Backoff

log = structlog.get_logger(__name__)

ACKS_MAX: Final = 256
"""Acks in one request."""

TROUBLE: Final = Backoff(first_ms=50, factor=2.0, max_ms=2000)
"""Waits between attempts while a broker does not answer, or has no master."""

LATE_SECONDS: Final = 3.0
"""How long an ack is tried whose message's time is nearly over, or over: perhaps nobody else has it yet."""

_Place = tuple[str, str]
"""Broker and topic of acks that may share a request."""

Spawn = Callable[[Coroutine[Any, Any, Any], str], "asyncio.Task[Any]"]


def passes(error: ClientError) -> bool:
    """Whether the same request may be served a little later, for example by the next master."""
    if isinstance(error, HandleRefused):
        return False
    return not isinstance(error, RequestRefused) or error.code in STALE_ROUTE_CODES


class _Ack:
    """One message on its way to being acknowledged."""

    __slots__ = ("alone", "done", "message", "place", "until")

    def __init__(self, message: PoppedMessage, until: float, done: asyncio.Future[None]) -> None:
        self.message = message
        self.place = message.handle.broker, message.topic
        self.until = until
        self.done = done
        self.alone = not fits_batch(message)


class Settling:
    """Settles the messages of one consumer: acknowledged, or due again at another time."""

    def __init__(self, broker: PopBroker, spawn: Spawn) -> None:
        self._broker = broker
        self._spawn = spawn
        self._waiting: dict[_Place, deque[_Ack]] = {}
        self._senders: dict[_Place, asyncio.Task[Any]] = {}
        self._changing: dict[PoppedMessage, asyncio.Task[Any]] = {}
        self._acks: set[asyncio.Future[None]] = set()
        self.acked = 0
        """Messages whose ack a broker confirmed."""
        self.changed = 0
        """Changes of an invisible time that a broker confirmed."""

    @property
    def pending(self) -> int:
        """Acks that are not confirmed yet."""
        return len(self._acks)

    def ack(self, message: PoppedMessage) -> asyncio.Future[None]:
        """Acknowledge; the future is done when a broker has confirmed it.

        It fails with `HandleRefused` or `HandleExpired`; the message is lost then, in the sense of `lost`.
        """
        loop = asyncio.get_running_loop()
        item = _Ack(message, max(message.expires_at, loop.time() + LATE_SECONDS), loop.create_future())
        self._acks.add(item.done)
        item.done.add_done_callback(self._acks.discard)
        change = self._changing.get(message)
        if change is None:
            self._add(item)
        else:  # the handle that the ack needs is the one that comes with the answer
            change.add_done_callback(lambda _: self._add(item))
        return item.done

    async def change(self, message: PoppedMessage, seconds: float, *, uncounted: bool = False) -> None:
        """Let the message be due again so long after now. Raises like `ack`.

        Changes of one message follow each other, and its ack follows them.
        """
        while (before := self._changing.get(message)) is not None:
            await asyncio.wait([before])
        task = self._spawn(self._change(message, seconds, uncounted), f"change of {message.message_id}")
        self._changing[message] = task
        task.add_done_callback(lambda _: self._changing.pop(message, None))
        await asyncio.shield(task)

    async def wait_acks(self, timeout: float) -> None:
        """Until no ack is under way, or for so many seconds; then the rest is logged."""
        open_acks = list(self._acks)
        if open_acks and (await asyncio.wait(open_acks, timeout=timeout))[1]:
            log.warning("messages are not acknowledged yet: they come again", messages=self.pending)

    # -- inside -------------------------------------------------------------------------------------------

    def _add(self, item: _Ack) -> None:
        place = item.place
        self._waiting.setdefault(place, deque()).append(item)
        if place not in self._senders:
            broker, topic = place
            self._senders[place] = self._spawn(self._send(place), f"acks of {topic} to {broker}")

    async def _send(self, place: _Place) -> None:
        """Send until nothing waits. The first step of a task is a turn later: what is acknowledged in the
        same turn is there by then."""
        waiting = self._waiting[place]
        items: list[_Ack] = []
        failures = 0
        try:
            while waiting:
                items = self._next(waiting)
                failures = 0 if await self._attempt(place, items) else failures + 1
                if failures:
                    waiting.extendleft(reversed([item for item in items if not item.done.done()]))
                    await asyncio.sleep(TROUBLE.delay_ms(failures) / 1000)
        finally:
            for item in (*items, *waiting):  # where the client was closed: nobody shall wait without end
                if not item.done.done():
                    _fail(item, HandleExpired(item.message.message_id, "the ack", "the client was closed"))
            del self._senders[place], self._waiting[place]

    @staticmethod
    def _next(waiting: deque[_Ack]) -> list[_Ack]:
        items = [waiting.popleft()]
        while waiting and len(items) < ACKS_MAX and not (items[0].alone or waiting[0].alone):
            items.append(waiting.popleft())
        return items

    async def _attempt(self, place: _Place, items: list[_Ack]) -> bool:
        """One request. False if it failed in a way that may pass; what has time left is to be tried again."""
        broker, topic = place
        now = asyncio.get_running_loop().time()
        seconds = max(0.1, min(CALL_SECONDS, max(item.until for item in items) - now))
        try:
            await self._broker.ack(broker, [item.message for item in items], seconds)
        except ClientError as error:
            if not passes(error):
                return self._refused(items, error)
            self._broker.stale(topic)
            now = asyncio.get_running_loop().time()
            for item in items:
                if item.until <= now:
                    _fail(item, HandleExpired(item.message.message_id, "the ack", str(error)))
            log.info(
                "acks are not confirmed yet", broker=broker, topic=topic, acks=len(items), reason=str(error)
            )
            return False
        self.acked += len(items)
        for item in items:
            if not item.done.done():
                item.done.set_result(None)
        return True

    def _refused(self, items: list[_Ack], error: ClientError) -> bool:
        """A batch that is refused says nothing about its messages: they are asked for one by one."""
        if len(items) == 1:
            _fail(items[0], error)
            return True
        for item in items:
            item.alone = True
        self._waiting[items[0].place].extendleft(reversed(items))
        return True

    async def _change(self, message: PoppedMessage, seconds: float, uncounted: bool) -> None:
        loop = asyncio.get_running_loop()
        until = max(message.expires_at, loop.time() + min(LATE_SECONDS, max(seconds, 1.0)))
        failures = 0
        while True:
            left = max(0.1, min(CALL_SECONDS, until - loop.time()))
            try:
                await self._broker.change(message, round(seconds * 1000), left, uncounted=uncounted)
            except ClientError as error:
                failures += 1
                pause = TROUBLE.delay_ms(failures) / 1000
                if not passes(error):
                    message.lost = True
                    raise
                self._broker.stale(message.topic)
                if loop.time() + pause >= until:
                    message.lost = True
                    raise HandleExpired(
                        message.message_id, "the change of the invisible time", str(error)
                    ) from error
                await asyncio.sleep(pause)
            else:
                self.changed += 1
                return


def _fail(item: _Ack, error: ClientError) -> None:
    item.message.lost = True
    if not item.done.done():
        item.done.set_exception(error)
