"""Sends transactional messages: half messages, then ends; and answers checks for its group.

Sources: `TransactionMQProducer`, `DefaultMQProducerImpl.sendMessageInTransaction`. Other than Java, an end
waits for the broker's answer and is tried again, at a new master if need be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import structlog

from brokerset_client.compression import COMPRESS_FROM_BYTES
from brokerset_client.errors import (
    AnswerTimeout,
    BrokerUnreachable,
    ClientClosed,
    ClientError,
    NoQueue,
    TransactionNotCommitted,
    TransactionNotPrepared,
    TransactionsFull,
)
from brokerset_client.instance import ClientInstance, give_up_if_silent
from brokerset_client.messages import BODY_SIZE_MAX, Message, SendResult, SendStatus
from brokerset_client.producer import SEND_SECONDS, Producer
from brokerset_client.retry import PASSING_CODES, SendRetry
from brokerset_client.send_window import SendLimits
from brokerset_client.sending import QueueChooser
from brokerset_client.tracing import TraceSettings
from brokerset_client.transaction_checks import TransactionChecks
from brokerset_client.transactions import (
    TRACE_STATES,
    CheckHandler,
    EndStatus,
    HalfMessage,
    HalfPosition,
    LocalWork,
    TransactionResult,
    TransactionState,
    end_command,
    half_message,
    position_of,
)
from brokerset_formats.records import SysFlag
from brokerset_protocol.bodies.queues import MessageQueue
from brokerset_protocol.codes import ResponseCode
from brokerset_runtime.remoting import ConnectionClosed, RequestTimeout

log = structlog.get_logger(__name__)

OPEN_MAX: Final = 10_000
"""Half messages of one producer that are not ended yet."""

ENDS_AT_ONCE: Final = 64
"""Ends of one transaction that wait for their answers at the same time."""

_NOT_SAID: Final = HalfPosition(-1, -1)
"""Place of a half message whose send is not answered yet."""

_PERHAPS_DONE: Final = frozenset(
    {
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    }
)
"""The broker may have stored the end, and does not know (yet) whether it is as safe as it has to be; the same
end again is answered when it is. Java's brokers answer 0 then."""

_TRY_AGAIN: Final = PASSING_CODES | _PERHAPS_DONE | {ResponseCode.SLAVE_NOT_AVAILABLE}
"""Answers of a broker that does not lead now, or cannot say more yet."""

_LATE: Final = ResponseCode.ILLEGAL_OPERATION
"""Answer to an end that comes after the time for which checks were put off: only a check's answer counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """Choices of a transaction producer."""

    confirm_ends: bool = True
    """Wait for the broker's answer to an end; without it ends are one-way, as Java sends them."""

    repeat_ends: bool = True
    """Send an end whose answer was lost again. Brokers of brokerset carry out an end once. A broker of Java's
    delivers the message of a commit once more; turn it off there, and the check decides."""

    end_timeout: float = 3.0
    """Seconds for an end with all its attempts; then it is left to the check."""

    checks_at_once: int = 16
    """Check handlers that run side by side (Java: 1)."""

    check_timeout: float = 15.0
    """Seconds for one call of the check handler; then the answer is unknown, and the broker asks again."""

    check_after_seconds: int | None = None
    """No check before so many seconds (`CHECK_IMMUNITY_TIME_IN_SECONDS`): as long as local work may take.
    None: the broker's `transactionTimeOut`, 6 s by default. An end that comes later is left to the check."""


class TransactionProducer(Producer):
    """A producer for transactional messages; it can send ordinary ones, too.

    `check` is asked by brokers about half messages of the group that nobody has ended, also about those of
    processes that are gone: it has to find out from what the local work stores. Name in `topics` where this
    group sends to, so that checks arrive before the first send of this process.
    """

    def __init__(
        self,
        group: str,
        *,
        check: CheckHandler,
        topics: Sequence[str] = (),
        transactions: TransactionSettings | None = None,
        namesrv: str | Sequence[str] | None = None,
        instance: ClientInstance | None = None,
        timeout: float = SEND_SECONDS,
        retry: SendRetry | None = None,
        limits: SendLimits | None = None,
        compress_from_bytes: int = COMPRESS_FROM_BYTES,
        body_size_max: int = BODY_SIZE_MAX,
        create_topics: bool = True,
        trace: TraceSettings | None = None,
    ) -> None:
        super().__init__(
            group,
            namesrv=namesrv,
            instance=instance,
            timeout=timeout,
            retry=retry,
            limits=limits,
            compress_from_bytes=compress_from_bytes,
            body_size_max=body_size_max,
            create_topics=create_topics,
            trace=trace,
        )
        self.transactions = transactions or TransactionSettings()
        self._topics = tuple(topics)
        self._open: dict[str, HalfPosition] = {}
        """Half messages whose end is not decided here yet, by transaction id."""
        self.checks = TransactionChecks(
            self.instance,
            group,
            check,
            self._open,
            at_once=self.transactions.checks_at_once,
            timeout=self.transactions.check_timeout,
            tracer=self._tracer,
        )

    async def start(self) -> None:
        """Reach a name server and be ready for checks.

        Raises `NameServerUnavailable`, and `ValueError` if the instance answers checks for the group already.
        """
        await super().start()
        try:
            self.instance.add_checker(self.checks)
        except ValueError:
            await super().close()
            raise
        self.checks.start()
        for topic in self._topics:
            try:
                await self.instance.route(topic)
            except ClientError as error:
                log.warning("checks of this topic come after its first send", topic=topic, reason=str(error))
        self.instance.heartbeat_soon()

    async def close(self) -> None:
        """Answer no more checks, then close as a producer does."""
        if self._running:
            self.instance.remove_checker(self.checks)
            await self.checks.close()
        await super().close()

    async def send_in_transaction(
        self,
        message: Message,
        local: LocalWork,
        timeout: float | None = None,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        choose: QueueChooser | None = None,
    ) -> TransactionResult:
        """Store a half message, run `local`, and end the message as `local` says.

        A half message that is stored less safely than the broker's settings ask for (any status but
        `SEND_OK`) is rolled back, and `local` does not run. What `local` raises is raised here: the state is
        unknown then, and the check decides. Raises what `send` raises before `local` runs, never after it:
        the result's `end` and `problem` say what is known.
        """
        half = await self._send_half(message, timeout, queue=queue, key=key, choose=choose)
        if half.sent.status is not SendStatus.SEND_OK:
            return await self._end(half, TransactionState.ROLLBACK)
        try:
            state = await local(half)
        except Exception as error:
            remark = f"executeLocalTransactionBranch exception: {error!r}"
            await self._end(half, TransactionState.UNKNOWN, remark)
            raise
        except BaseException:
            self._open.pop(half.transaction_id, None)
            raise
        return await self._end(half, state)

    def transaction(self, *messages: Message) -> Transaction:
        """A block of local work around messages that become visible when it ends well.

            async with producer.transaction(Message(topic="orders", body=b"...")) as transaction:
                await database.commit()

        Entering stores `messages` as half messages; `transaction.send` stores more. Leaving commits them, or
        takes them back if the block raised. See `Transaction` for what it promises.
        """
        return Transaction(self, messages)

    # -- inside -------------------------------------------------------------------------------------------

    async def _send_half(
        self,
        message: Message,
        timeout: float | None,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        choose: QueueChooser | None = None,
    ) -> HalfMessage:
        if len(self._open) >= OPEN_MAX:
            raise TransactionsFull(f"{OPEN_MAX} transactions of group {self.group} are open: end some first")
        half = half_message(message, self.group, self.transactions.check_after_seconds)
        sending = self._prepare(half)
        sending.sys_flag |= SysFlag.TRANSACTION_PREPARED
        self._aim(sending, queue, key if key is not None else message.sharding_key, choose)
        # A check may be read in the same turn as the answer: it must find the transaction open.
        self._open[sending.message_id] = _NOT_SAID
        try:
            sent = await (await self._begin(sending, timeout))
            known = self._open.get(sending.message_id, _NOT_SAID)
            if known is _NOT_SAID or known.is_elsewhere(sent.queue.broker_name):
                self._open[sending.message_id] = position_of(sent)
        except BaseException:
            self._open.pop(sending.message_id, None)
            raise
        return HalfMessage(message, sent)

    async def _end(
        self, half: HalfMessage, state: TransactionState, remark: str | None = None
    ) -> TransactionResult:
        """End a half message as far as that is possible in time; the newest check says where it is."""
        # A check that comes while the end is on its way finds the transaction still open here.
        self._open.setdefault(half.transaction_id, position_of(half.sent))
        try:
            status, problem = await _End(self, half, state, remark).run()
        except ClientError as error:
            status, problem = EndStatus.LEFT_TO_CHECK, str(error)
        finally:
            position = self._open.pop(half.transaction_id, _NOT_SAID)
        if status is not EndStatus.REFUSED and state is not TransactionState.UNKNOWN:
            self.checks.remember(half.transaction_id, state, half.sent.queue.broker_name)
        self._trace_end(half, state, position)
        if problem is not None:
            log.warning("end of a transaction", id=half.transaction_id, end=status.value, reason=problem)
        return TransactionResult(half.sent, state, status, problem)

    def _trace_end(self, half: HalfMessage, state: TransactionState, position: HalfPosition) -> None:
        if self._tracer is None or half.sent.region_id is None or not half.sent.trace_on:
            return
        route = self.instance.cached_route(half.message.topic)
        keys = half.message.keys
        self._tracer.ended(
            topic=half.message.topic,
            message_id=half.transaction_id,
            tags=half.message.tags or "",
            keys=keys if isinstance(keys, str) else " ".join(keys),
            store_host=(route.master(half.sent.queue.broker_name) if route else None) or "",
            state=TRACE_STATES[state],
            from_check=position.connection is not None,
            region=half.sent.region_id,
        )


class _End:
    """One end on its way: one attempt after the other until something certain is known."""

    def __init__(
        self,
        producer: TransactionProducer,
        half: HalfMessage,
        state: TransactionState,
        remark: str | None,
    ) -> None:
        self._producer = producer
        self._settings = producer.transactions
        self._half = half
        self._state = state
        self._remark = remark
        self._in_doubt = False
        """An attempt may have been carried out."""

    async def run(self) -> tuple[EndStatus, str | None]:
        """Returns what is known, and why it is no more. Raises `ClientError` if no attempt was possible."""
        instance, queue = self._producer.instance, self._half.sent.queue
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.end_timeout
        failures = 0
        fresh = False
        while True:
            stop, problem = await self._attempt(fresh, deadline - loop.time())
            if stop is not None:
                return stop, problem
            if self._state is TransactionState.UNKNOWN:  # the broker asks anyway
                return EndStatus.LEFT_TO_CHECK, problem
            failures += 1
            delay = self._producer.retry.backoff.delay_ms(failures) / 1000
            if loop.time() + delay >= deadline or not instance.is_running:
                return EndStatus.LEFT_TO_CHECK, f"broker {queue.broker_name}: {problem}"
            fresh = True
            await asyncio.sleep(delay)

    async def _attempt(self, fresh: bool, seconds: float) -> tuple[EndStatus | None, str | None]:
        """One attempt. None as status: another one may do better."""
        instance, queue = self._producer.instance, self._half.sent.queue
        try:
            route = await instance.route_to_send(queue.topic, fresh=fresh)
            address = route.master(queue.broker_name)
            if address is None:
                raise NoQueue("it has no master now")
            connection = instance.peek(address) or await instance.connect(address, max(0.001, seconds))
        except ClientClosed:
            raise
        except ClientError as error:
            return None, str(error)
        position = self._producer._open.get(self._half.transaction_id) or position_of(self._half.sent)
        command = end_command(
            group=self._producer.group,
            topic=queue.topic,
            broker_name=queue.broker_name,
            transaction_id=self._half.transaction_id,
            position=position,
            state=self._state,
            from_check=position.connection is not None,
            remark=self._remark,
        )
        if self._state is TransactionState.UNKNOWN:  # no broker answers that
            connection.notify(command)
            return EndStatus.LEFT_TO_CHECK, self._remark
        if not self._settings.confirm_ends:
            connection.notify(command)
            return EndStatus.SENT, None
        asked_at = asyncio.get_running_loop().time()
        try:
            answer = await connection.call(command, max(0.001, seconds))
        except RequestTimeout as error:
            give_up_if_silent(connection, asked_at)
            return self._lost(str(AnswerTimeout(str(error))))
        except ConnectionClosed as error:
            return self._lost(str(BrokerUnreachable(address, str(error))))
        remark = answer.remark or "no reason given"
        if answer.code == ResponseCode.SUCCESS:
            return EndStatus.CONFIRMED, None
        problem = f"refused by {address} with code {answer.code}: {remark}"
        if answer.code in _TRY_AGAIN:
            self._in_doubt |= answer.code in _PERHAPS_DONE
            return None, problem
        if answer.code == _LATE or self._in_doubt:
            return EndStatus.LEFT_TO_CHECK, problem
        return EndStatus.REFUSED, problem

    def _lost(self, problem: str) -> tuple[EndStatus | None, str | None]:
        self._in_doubt = True
        if self._settings.repeat_ends or self._state is TransactionState.ROLLBACK:
            return None, problem
        return EndStatus.LEFT_TO_CHECK, problem


class Transaction:
    """Messages that become visible together with the end of a block, each by an end of its own.

    * The block ends: every message is committed.
    * It raises an exception: every message is rolled back, and the exception goes on.
    * It is cancelled: nothing is decided, because nobody knows how far it came; the check handler decides.

    An exception that leaves open whether the local work is done (the time-out of a database's commit) should
    not roll back: say `leave_to_check()` before that work, and `commit()` after it.

    There is one half message for each message, and each is ended by itself: consumers can see the first
    before the last is committed. After a crash in between the check handler is asked for the others.
    """

    def __init__(self, producer: TransactionProducer, messages: Sequence[Message]) -> None:
        self._producer = producer
        self._messages = messages
        self._halves: list[HalfMessage] = []
        self._decided: TransactionState | None = None
        self._entered = False
        self.results: tuple[TransactionResult, ...] = ()
        """What became of each message, in the order of sending; known when the block was left."""

    @property
    def halves(self) -> tuple[HalfMessage, ...]:
        """The half messages so far; their `transaction_id` is what the check handler will be asked for."""
        return tuple(self._halves)

    def commit(self) -> None:
        """Commit when the block is left, even by an exception or cancellation."""
        self._decided = TransactionState.COMMIT

    def rollback(self) -> None:
        """Take all messages back when the block is left."""
        self._decided = TransactionState.ROLLBACK

    def leave_to_check(self) -> None:
        """Decide nothing when the block is left: the broker asks the check handler."""
        self._decided = TransactionState.UNKNOWN

    async def send(
        self,
        message: Message,
        timeout: float | None = None,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        choose: QueueChooser | None = None,
    ) -> SendResult:
        """Store one more half message. Raises as `Producer.send` does, and `TransactionNotPrepared`."""
        if not self._entered:
            raise ClientClosed("the transaction is not open: send inside of its `async with` block")
        half = await self._producer._send_half(message, timeout, queue=queue, key=key, choose=choose)
        self._halves.append(half)
        if half.sent.status is not SendStatus.SEND_OK:
            raise TransactionNotPrepared(
                f"half message {half.transaction_id} is stored, but not as safely as asked for "
                f"({half.sent.status.name}): it is taken back"
            )
        return half.sent

    async def __aenter__(self) -> Self:
        """Store the messages as half messages; if one cannot be, those before are taken back."""
        self._entered = True
        try:
            for message in self._messages:
                await self.send(message)
        except BaseException:
            self._entered = False
            await self._end_all(TransactionState.ROLLBACK)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End all messages. Raises `TransactionNotCommitted` if the broker refuses a commit."""
        self._entered = False
        state = self._decided or _state_after(error)
        await self._end_all(state)
        refused = [
            f"{result.transaction_id}: {result.problem}"
            for result in self.results
            if result.end is EndStatus.REFUSED
        ]
        if refused and state is TransactionState.COMMIT:
            raise TransactionNotCommitted(refused)

    async def _end_all(self, state: TransactionState) -> None:
        room = asyncio.Semaphore(ENDS_AT_ONCE)

        async def end(half: HalfMessage) -> TransactionResult:
            async with room:
                return await self._producer._end(half, state)

        try:
            self.results = tuple(await asyncio.gather(*(end(half) for half in self._halves)))
        finally:
            for half in self._halves:  # if this was cancelled, some had no turn: their checks are answered
                self._producer._open.pop(half.transaction_id, None)


def _state_after(error: BaseException | None) -> TransactionState:
    """What becomes of the messages when the block ended with `error`, and has decided nothing itself."""
    if error is None:
        return TransactionState.COMMIT
    return TransactionState.ROLLBACK if isinstance(error, Exception) else TransactionState.UNKNOWN
