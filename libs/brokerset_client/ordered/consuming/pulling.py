"""For applications that ask for messages instead of being called: the same lanes, permission and acks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from brokerset_client.errors import ClientClosed
from brokerset_client.ordered.consuming.handling import HandlingContext, Pending
from brokerset_client.ordered.consuming.ordered_message import OrderedMessage
from brokerset_client.ordered.consuming.slots import WantedSlots


@dataclass(frozen=True, slots=True)
class PulledMessage:
    """A message that the application has until it is done, has failed, or its deadline has passed."""

    message: OrderedMessage
    context: HandlingContext
    """Fencing token, attempt and deadline."""

    pending: Pending

    def done(self) -> None:
        """It is handled: the next one of its lane may come."""
        self.pending.done()

    def failed(self, reason: BaseException | str) -> None:
        """It is not handled, and is treated as a failure of a handler."""
        self.pending.failed(reason)


class PulledBatch:
    """Messages of different lanes, so their order among each other means nothing."""

    def __init__(self, messages: Iterable[PulledMessage]) -> None:
        self.messages = tuple(messages)

    def __len__(self) -> int:
        return len(self.messages)

    def __iter__(self) -> Iterator[PulledMessage]:
        return iter(self.messages)

    def ack(self) -> None:
        """All are handled."""
        for message in self.messages:
            message.done()


class Puller:
    """Gives messages of one subscription when asked; made by `OrderedConsumer.pulling`."""

    def __init__(self, may_begin: Callable[[], bool]) -> None:
        self._may_begin = may_begin
        self._given: list[PulledMessage] = []
        self._out: list[PulledMessage] = []
        self._arrived = asyncio.Event()
        self._asking = asyncio.Lock()
        self._closed = False
        self._slots: WantedSlots | None = None

    def slots(self, wake: Callable[[], None]) -> WantedSlots:
        """For the register: as many handlers start as messages are wanted."""
        self._slots = WantedSlots(wake)
        return self._slots

    async def give(self, message: OrderedMessage, context: HandlingContext) -> Pending:
        """For the register, as the handler."""
        pending = context.defer()
        self._given.append(PulledMessage(message, context, pending))
        self._arrived.set()
        return pending

    async def pull(self, messages_max: int, timeout: float) -> PulledBatch:
        """Up to `messages_max` messages; fewer, or none, if there are no more within `timeout` seconds.

        Of each lane there is one at a time: the next one follows when it is done. Without permission there
        are none. Raises `ClientClosed` after the end, `ValueError` for numbers that cannot be.
        """
        if messages_max < 1 or timeout < 0:
            raise ValueError(f"{messages_max} messages within {timeout} s: ask for 1 or more, from 0 s on")
        if self._closed or self._slots is None:
            raise ClientClosed("the subscription was closed: make another one")
        async with self._asking:
            try:
                self._given = [each for each in self._given if not each.context.cancelled]
                self._slots.want(max(0, messages_max - len(self._given)))
                async with asyncio.timeout(timeout):
                    while not self._given and not self._closed:
                        self._arrived.clear()
                        await self._arrived.wait()
                    await asyncio.sleep(0)  # what is there already comes in the same turn
            except TimeoutError:
                pass
            finally:
                self._slots.want(0)
            return PulledBatch(self._hand_out(messages_max))

    def close(self) -> None:
        """Whoever waits gets an empty batch; messages that nobody took come again elsewhere."""
        self._closed = True
        self._arrived.set()
        for each in [*self._given, *self._out]:
            if not each.pending.is_completed:
                each.context.return_unhandled()

    def _hand_out(self, messages_max: int) -> list[PulledMessage]:
        given, self._given = [each for each in self._given if not each.context.cancelled], []
        if self._closed or not self._may_begin():
            messages_max = 0
        # What came just after a call that had ended is one too many now: its time must not run meanwhile.
        for each in given[messages_max:]:
            each.context.return_unhandled()
        given = given[:messages_max]
        self._out = [
            each for each in self._out if not each.pending.is_completed and not each.context.cancelled
        ]
        self._out += given
        return given
