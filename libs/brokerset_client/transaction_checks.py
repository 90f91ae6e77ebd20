"""Answers brokers that ask what became of a transaction: a bounded queue, and workers that call the handler.

Source: `DefaultMQProducerImpl.checkTransactionState`. Other than Java:

* A broker that asks again, while an answer is being found, gets one answer, for the newest copy of the half
  message. Java answers for each copy, and a broker may then deliver two messages.
* While the transaction's own work still runs in this process, the handler is not asked: it would find nothing
  stored yet and roll back what is about to be committed. The end of that work is the answer. What was decided
  here is remembered: its end may be lost, or have crossed the check.
* A half message whose answer was lost, and which was then sent to another broker, is taken back when its
  broker asks. Java commits both.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from brokerset_client.errors import BrokerUnreachable
from brokerset_client.messages import MessageView
from brokerset_client.tracing import Tracer
from brokerset_client.transactions import (
    TRACE_STATES,
    CheckHandler,
    HalfPosition,
    TransactionState,
    check_position,
    end_command,
)
from brokerset_formats.properties import Property
from brokerset_protocol.headers.send import CheckTransactionState
from brokerset_runtime.remoting import Connection

if TYPE_CHECKING:
    from brokerset_client.instance import ClientInstance

log = structlog.get_logger(__name__)

CHECKS_WAITING_MAX: Final = 2000
"""Checks that wait for a worker; a further one is dropped, because the broker asks again (Java's bound)."""


DECIDED_MAX: Final = 10_000
"""Decisions that are remembered for checks."""


_Key = tuple[str, str | None]
"""Transaction id, and the name of the broker that asks."""


@dataclass(slots=True)
class _Check:
    """A transaction that a broker asks about."""

    topic: str | None
    broker_name: str | None
    message: MessageView
    position: HalfPosition
    """That of the newest check."""


class TransactionChecks:
    """The checks of one producer group.

    `running` has the transactions whose local work runs in this process: a check only notes there where the
    newest copy of the half message is.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        handler: CheckHandler,
        running: MutableMapping[str, HalfPosition],
        *,
        at_once: int,
        timeout: float,
        tracer: Tracer | None = None,
    ) -> None:
        """`at_once` handlers run side by side, each for at most `timeout` seconds."""
        self._instance = instance
        self._group = group
        self._handler = handler
        self._running = running
        self._at_once = at_once
        self._timeout = timeout
        self._tracer = tracer
        self._known: dict[_Key, _Check] = {}
        """Checks that wait or run."""
        self._decided: dict[str, tuple[TransactionState, str]] = {}
        """What was decided here, about the half message of which broker."""
        self._waiting: deque[_Key] = deque()
        self._arrived = asyncio.Event()
        self._workers: list[asyncio.Task[object]] = []
        self.answered = 0
        """Answers that were sent."""
        self.failed = 0
        """Calls of the handler that raised, or took too long; the answer was unknown."""
        self.dropped = 0
        """Checks for which there was no room."""

    @property
    def group(self) -> str:
        """The producer group."""
        return self._group

    def start(self) -> None:
        """Start the workers."""
        for number in range(self._at_once):
            self._workers.append(self._instance.spawn(self._work(), f"check {number} of {self._group}"))

    async def close(self) -> None:
        """Cancel what runs: the broker asks another producer of the group, or this one when it is back."""
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)

    def remember(self, transaction_id: str, state: TransactionState, broker_name: str) -> None:
        """Answer checks of this transaction with `state`: its end may be lost, or a check be on its way that
        was sent before. Another broker than this one has a half message too many. The oldest is forgotten."""
        while len(self._decided) >= DECIDED_MAX:
            del self._decided[next(iter(self._decided))]
        self._decided[transaction_id] = state, broker_name

    def check(self, connection: Connection, header: CheckTransactionState, message: MessageView) -> None:
        """Note what the broker asks; never waits."""
        position = check_position(header, connection)
        transaction_id = header.transaction_id or header.msg_id or message.message_id
        running = self._running.get(transaction_id)
        if running is not None:
            if not running.is_elsewhere(position.broker_name):  # else it asks again when all is decided
                self._running[transaction_id] = position
            return
        key = transaction_id, header.broker_name
        known = self._known.get(key)
        if known is not None:
            known.position = position
            return
        if len(self._known) >= CHECKS_WAITING_MAX:
            self.dropped += 1
            log.warning("check of a transaction is left to the next time", group=self._group)
            return
        self._known[key] = _Check(header.topic, header.broker_name, message, position)
        self._waiting.append(key)
        self._arrived.set()

    async def _work(self) -> None:
        while True:
            while not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
            key = self._waiting.popleft()
            transaction_id, check = key[0], self._known[key]
            decided, owner = self._decided.get(transaction_id, (None, None))
            if decided is None:
                state, remark = await self._ask(check.message)
            elif check.position.is_elsewhere(owner):
                state, remark = TransactionState.ROLLBACK, None
            else:
                state, remark = decided, None
            del self._known[key]
            await self._answer(transaction_id, check, state, remark)

    async def _ask(self, message: MessageView) -> tuple[TransactionState, str | None]:
        try:
            async with asyncio.timeout(self._timeout):
                state = await self._handler(message)
            if not isinstance(state, TransactionState):
                raise TypeError(f"the check handler returned {state!r} instead of a TransactionState")
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return self._no_answer(message, error)
        except Exception as error:  # the edge of the application: its failures are an expected outcome
            return self._no_answer(message, error)
        return state, None

    def _no_answer(self, message: MessageView, error: BaseException) -> tuple[TransactionState, str]:
        self.failed += 1
        log.error("check handler failed", message=message.message_id, exc_info=error)
        text = f"no answer in {self._timeout} s" if isinstance(error, TimeoutError) else repr(error)
        return TransactionState.UNKNOWN, f"checkLocalTransactionState Exception: {text}"

    async def _answer(
        self, transaction_id: str, check: _Check, state: TransactionState, remark: str | None
    ) -> None:
        connection = check.position.connection
        assert connection is not None
        command = end_command(
            group=self._group,
            topic=check.topic or check.message.topic,
            broker_name=check.broker_name,
            transaction_id=transaction_id,
            position=check.position,
            state=state,
            from_check=True,
            remark=remark,
        )
        try:
            if not connection.is_open:
                connection = await self._instance.connect("{}:{}".format(*connection.peer))
        except BrokerUnreachable as error:
            log.info("answer to a check found no broker, which asks again", reason=str(error))
            return
        connection.notify(command)
        self.answered += 1
        message = check.message
        if self._tracer is not None and message.property_text(Property.TRACE_ON) != "false":
            self._tracer.ended(
                topic=message.topic,
                message_id=transaction_id,
                tags=message.tags or "",
                keys=" ".join(message.keys),
                store_host="{}:{}".format(*connection.peer),
                state=TRACE_STATES[state],
                from_check=True,
                region=message.property_text(Property.MSG_REGION),
            )
