"""POP_MESSAGE (200050): messages of any queue, for a limited time.

Reading, moving the position and writing the check points happen in one step of the loop, so no two pops get
the same message, and no queue has to be locked. The answer waits until the check points are as safe as a
message. Who finds nothing waits in `Polls`, and is served again when something comes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import getrandbits
from typing import Final

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.pop.choice import ANY_QUEUE, DRAWN_BITS, Chances, Source, choose
from brokerset_broker.pop.waiting import Waiter, wait_ms
from brokerset_broker.requests.admission import Admission
from brokerset_broker.requests.message_types import MessageType
from brokerset_broker.requests.pop.answers import pop_answer
from brokerset_broker.requests.pop.checks import PopChecks, Subscribed
from brokerset_broker.requests.pop.log import PopLog, Popped
from brokerset_broker.requests.pop.ordered_pops import OrderedPops
from brokerset_broker.requests.pop.polls import Parked, Polls, retry_topics
from brokerset_broker.requests.pop.positions import PopPositions
from brokerset_broker.requests.pop.reading import READ_SECONDS, Batch, QueueReader, Taken
from brokerset_broker.requests.request_classes import is_forwarded
from brokerset_broker.requests.send_refusals import CODES, refusal
from brokerset_broker.requests.statistics import BrokerStats
from brokerset_broker.store.errors import PutStatus, StoreRefused
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.tables.consumer_filters import CompiledFilter
from brokerset_broker.tables.consumers import ConsumerTable
from brokerset_broker.tables.pop.order_lock import ATTEMPT_ID_MAX
from brokerset_formats.config import SubscriptionGroupConfig, TopicConfig
from brokerset_formats.pop.names import ORDER_REVIVE_QUEUE
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers.pop import PopMessage
from brokerset_protocol.subscriptions import parse
from brokerset_runtime.clock import Clock
from brokerset_runtime.remoting import DEFERRED, Connection, Handler
from brokerset_runtime.remoting.connection import Reply
from brokerset_spec.broker_settings import BrokerSettings

MESSAGES_MAX: Final = 32
"""Messages of one pop, as in Java: bits of a check point."""

FORWARDED_WAIT_MS_MAX: Final = 3_000
"""Longest wait of a pop that another broker passes on: that one waits 5 s for the answer."""

NOTHING: Final = "NO_MESSAGE_IN_QUEUE"


def _draw() -> int:
    return getrandbits(DRAWN_BITS)


class _Pop(Waiter):
    """A checked pop, which may have to be run again when messages come."""

    __slots__ = (
        "attempt_id", "connection", "from_newest", "invisible_ms", "is_new", "is_unfinished", "messages_max",
        "opaque", "priority_factor", "retry_topics", "wanted_only",
    )  # fmt: skip

    connection: Connection
    opaque: int
    messages_max: int
    invisible_ms: int
    from_newest: bool
    attempt_id: str | None
    priority_factor: int | None
    retry_topics: tuple[str, ...]
    wanted_only: CompiledFilter | None
    is_unfinished: bool
    is_new: bool


class PopProcessor:
    """Gives consumers messages of any queue."""

    def __init__(
        self,
        *,
        live: LiveSettings,
        clock: Clock,
        store: MessageStore,
        checks: PopChecks,
        positions: PopPositions,
        log: PopLog,
        consumers: ConsumerTable,
        admission: Admission,
        stats: BrokerStats,
        polls: Callable[[Callable[[Waiter], None], Callable[[Waiter], None]], Polls],
        ordered_pops: OrderedPops,
        draw: Callable[[], int] = _draw,
    ) -> None:
        """`polls` makes what pops wait in, of how they go on and how they end. `draw` makes random numbers
        of `DRAWN_BITS` bits."""
        self._live = live
        self._clock = clock
        self._store = store
        self._checks = checks
        self._positions = positions
        self._log = log
        self._consumers = consumers
        self._admission = admission
        self._stats = stats
        self._ordered_pops = ordered_pops
        self._draw = draw
        self._reader = QueueReader(live=live, clock=clock, store=store, positions=positions, log=log)
        self.polls = polls(self._resume, self._expire)
        self.is_open: Callable[[], bool] = lambda: True
        """Whether this broker would serve a pop that came now; asked before one that has waited is served."""
        self._use(live.current)
        live.on_change(lambda settings, _changed: self._use(settings))

    def _use(self, settings: BrokerSettings) -> None:
        self._chances = Chances(
            settings.pop_from_retry_probability,
            settings.pop_from_retry_probability_for_priority,
            settings.priority_order_asc,
        )
        self._broker = settings.broker_name
        self._has_v1 = not settings.enable_retry_topic_v2 or settings.retrieve_message_from_pop_retry_topic_v1
        self._has_v2 = settings.enable_retry_topic_v2
        self._invisible_ms_max = settings.timer_max_delay_sec * 1000

    def handlers(self) -> dict[int, Handler]:
        """The request codes that are served here."""
        return {RequestCode.POP_MESSAGE: self.pop, RequestCode.POP_ROLLBACK: self.roll_back}

    def roll_back(self, _connection: Connection, command: Command) -> Command:
        """It moves check points from RocksDB into the revive topic: here they are there already."""
        return command.reply()

    def pop(self, connection: Connection, command: Command) -> Reply:
        """Messages of any queue, for a limited time; without any the request waits."""
        if command.is_oneway:
            return None  # nobody would get the messages
        self._admission.check_writes()
        log = self._log
        if not log.is_known:
            log.wait_for_known(partial(connection.serve_deferred, [command]))
            return DEFERRED
        pop = self._checked(connection, command)
        reply = self._take(pop)
        return self._wait(pop) if reply is None else reply

    # -- checks -------------------------------------------------------------------------------------------

    def _checked(self, connection: Connection, command: Command) -> _Pop:
        """The request, as far as it can be served. Raises `Rejected`."""
        ext = command.ext
        pop = _Pop()
        try:
            group, topic = ext["consumerGroup"], ext["topic"]
            queue_id = int(ext["queueId"])
            messages_max = int(ext["maxMsgNums"])
            invisible_ms = int(ext["invisibleTime"])
            poll_ms = int(ext["pollTime"])
            pop.from_newest = int(ext["initMode"]) != 0
            born_ms = int(ext.get("bornTime") or 0)
            if type(group) is not str or type(topic) is not str:
                raise TypeError
        except (KeyError, ValueError, TypeError):
            PopMessage.from_ext({"bornTime": "0"} | ext)  # names the field
            raise
        forwarded = is_forwarded(ext)
        wait = wait_ms(poll_ms, 0 if forwarded else born_ms, self._clock.now_ms())
        name = self._admission.name
        if wait is None:
            raise Rejected(
                ResponseCode.POLLING_TIMEOUT, f"the broker[{name}] pop message is timeout too much"
            )
        self._checks.check_broker("pop")
        if not 0 < messages_max <= MESSAGES_MAX:
            reason = f"greater than {MESSAGES_MAX}" if messages_max > 0 else "not positive"
            raise Rejected(
                ResponseCode.INVALID_PARAMETER, f"the broker[{name}] pop message's num is {reason}"
            )
        if not 0 < invisible_ms <= self._invisible_ms_max:
            raise Rejected(
                ResponseCode.INVALID_PARAMETER,
                f"invisibleTime[{invisible_ms}] is illegal: 1 to {self._invisible_ms_max} ms are allowed",
            )
        config, group_config = self._checks.check(connection, group, topic, queue_id)
        pop.owner = pop.connection = connection
        pop.opaque = command.opaque
        pop.topic = topic = config.topic_name  # one object for all that wait for it
        pop.group = group = group_config.group_name
        pop.queue_id = queue_id if queue_id >= 0 else ANY_QUEUE
        pop.messages_max = messages_max
        pop.invisible_ms = invisible_ms
        pop.deadline_ms = self.polls.deadline_ms(min(wait, FORWARDED_WAIT_MS_MAX) if forwarded else wait)
        pop.ordered = ext.get("order") == "true"
        pop.attempt_id = ext.get("attemptId")
        if pop.attempt_id and len(pop.attempt_id) > ATTEMPT_ID_MAX:
            raise Rejected(
                ResponseCode.INVALID_PARAMETER,
                f"attemptId has {len(pop.attempt_id)} characters, at most {ATTEMPT_ID_MAX} are allowed",
            )
        pop.line = None
        pop.priority_factor = _priority_factor(config, group_config)
        subscribed = self._checks.subscription(topic, ext)
        pop.codes = subscribed.codes
        pop.wanted_only = subscribed.wanted_only
        v1, v2 = retry_topics(topic, group)
        pop.retry_topics = (*((v2,) if self._has_v2 else ()), *((v1,) if self._has_v1 else ()))
        self._register(pop, subscribed)
        return pop

    def _register(self, pop: _Pop, subscribed: Subscribed) -> None:
        """Note the group and what it wants, also without a heartbeat."""
        if self._consumers.popped(pop.group, pop.topic, subscribed.data):
            return
        for retry in pop.retry_topics[:1]:
            self._consumers.popped(pop.group, retry, parse(retry, "*"))

    # -- taking messages ----------------------------------------------------------------------------------

    def _take(self, pop: _Pop) -> Reply:
        """Take messages, if there are any, and answer; None if nothing was found. Raises `Rejected`."""
        batch = Batch(
            topic=pop.topic,
            group=pop.group,
            messages_max=pop.messages_max,
            bytes_max=self._reader.bytes_max,
            codes=pop.codes,
            wanted_only=pop.wanted_only,
            from_newest=pop.from_newest,
            pop_time=self._clock.now_ms(),
            invisible_ms=pop.invisible_ms,
            revive_queue=ORDER_REVIVE_QUEUE if pop.ordered else self._log.next_revive_queue(),
            broker=self._broker,
            until=self._clock.monotonic() + READ_SECONDS,
        )
        if pop.ordered:
            self._read_in_order(pop, batch)
        else:
            read_all = self._reader.read_all
            for source in self._sources(pop):
                if not (source.is_retry and batch.is_full):
                    read_all(batch, source)
        pop.is_unfinished, pop.is_new = batch.is_unfinished, batch.is_new
        if not batch.queues:
            return None
        if pop.ordered:
            return self._give_in_order(pop, batch)
        try:
            end = self._log.pop([self._popped(pop, batch, taken) for taken in batch.queues])
        except StoreRefused as refused:
            raise refusal(refused, self._live.current.max_message_size) from None
        answer = self._found(pop, batch)
        when_durable = self._admission.when_durable
        if when_durable is None:
            return answer
        when_durable(end, partial(self._finish, pop, answer))
        return DEFERRED

    def _sources(self, pop: _Pop) -> list[Source]:
        read_queues = self._checks.read_queues
        retries = [(name, queues) for name in pop.retry_topics if (queues := read_queues(name))]
        return choose(
            pop.topic,
            pop.queue_id,
            read_queues(pop.topic),
            retries,
            self._chances,
            drawn=self._draw(),
            priority_factor=pop.priority_factor,
            ordered=pop.ordered,
        )

    @staticmethod
    def _popped(pop: _Pop, batch: Batch, taken: Taken) -> Popped:
        return Popped(
            topic=taken.topic,
            group=pop.group,
            queue_id=taken.queue_id,
            start_offset=taken.start,
            queue_offsets=tuple(taken.queue_offsets),
            next_offset=taken.next_offset,
            pop_time=batch.pop_time,
            invisible_ms=pop.invisible_ms,
            revive_queue=batch.revive_queue,
            broker=batch.broker,
        )

    def _read_in_order(self, pop: _Pop, batch: Batch) -> None:
        """Take messages of queues that nobody of the group has, or this attempt; never of retry topics."""
        ordered_pops = self._ordered_pops
        topic, group = pop.topic, pop.group
        for source in self._sources(pop):
            for queue_id in source.queue_ids:
                if ordered_pops.admit(topic, group, queue_id, pop.attempt_id):
                    passed_by = partial(ordered_pops.passed_by, topic, group, queue_id)
                    self._reader.read_in_order(batch, source, queue_id, passed_by)

    def _give_in_order(self, pop: _Pop, batch: Batch) -> Reply:
        ordered_pops = self._ordered_pops
        counts = [
            ordered_pops.give(
                taken.topic,
                pop.group,
                taken.queue_id,
                attempt_id=pop.attempt_id,
                pop_time=batch.pop_time,
                invisible_ms=pop.invisible_ms,
                start=taken.start,
                queue_offsets=taken.queue_offsets,
            )
            for taken in batch.queues
        ]
        answer = self._found(pop, batch, order_counts=";".join(filter(None, counts)))
        ordered_pops.when_stored(partial(self._finish, pop, answer))
        return DEFERRED

    # -- waiting ------------------------------------------------------------------------------------------

    def _wait(self, pop: _Pop) -> Reply:
        """Let a pop wait that has found nothing; the answer if it may not."""
        if pop.is_unfinished and (pop.is_new or self.polls.has_time(pop)):
            self.polls.serve_soon((pop,))  # there is more that may be wanted
            return DEFERRED
        match self.polls.park(pop):
            case Parked.WAITS:
                return DEFERRED
            case Parked.FULL:
                return self._nothing(pop, ResponseCode.POLLING_FULL)
            case Parked.OVER:
                return self._nothing(pop, ResponseCode.POLLING_TIMEOUT)

    def _resume(self, waiter: Waiter) -> None:
        """Serve a pop that was woken; one that finds nothing waits on."""
        assert isinstance(waiter, _Pop), "only pops wait here"
        connection = waiter.connection
        if not connection.is_open:
            self.polls.wake_next(
                waiter.topic, waiter.group, waiter.queue_id
            )  # what woke it is for somebody else
            return
        if not self.is_open() or self._admission.refuses_writes or not self._log.is_known:
            connection.answer_at_once(self._nothing(waiter, ResponseCode.POLLING_TIMEOUT))
            return
        reply: Reply
        try:
            if not self._checks.still_exists(waiter.group, waiter.topic, waiter.queue_id):
                self._checks.check(connection, waiter.group, waiter.topic, waiter.queue_id)
            reply = self._take(waiter)
            if reply is None:
                reply = self._wait(waiter)
        except Rejected as rejected:
            request = Command(RequestCode.POP_MESSAGE, opaque=waiter.opaque)
            reply = request.reply(rejected.code, rejected.remark)
        if isinstance(reply, bytes | Command):
            connection.answer_at_once(reply)

    def _expire(self, waiter: Waiter) -> None:
        """Answer a pop whose time is over: what came meanwhile has woken it, so there is nothing."""
        assert isinstance(waiter, _Pop), "only pops wait here"
        waiter.connection.answer(self._nothing(waiter, ResponseCode.POLLING_TIMEOUT))

    # -- answers ------------------------------------------------------------------------------------------

    def _found(self, pop: _Pop, batch: Batch, order_counts: str | None = None) -> bytes:
        for taken in batch.queues:
            self._stats.got(pop.group, taken.topic, len(taken.queue_offsets), taken.size)
        if batch.rest > 0 or batch.is_unfinished:
            self.polls.wake_next(pop.topic, pop.group, pop.queue_id)
        return pop_answer(
            pop.opaque,
            code=ResponseCode.SUCCESS,
            remark="FOUND",
            pop_time=batch.pop_time,
            invisible_ms=pop.invisible_ms,
            revive_queue=batch.revive_queue,
            rest=batch.rest,
            starts=batch.starts(),
            offsets=batch.offsets(),
            order_counts=order_counts,
            parts=batch.parts,
            size=batch.size,
        )

    def _nothing(self, pop: _Pop, code: ResponseCode) -> bytes:
        self._stats.missed()
        return pop_answer(
            pop.opaque,
            code=code,
            remark=NOTHING,
            pop_time=self._clock.now_ms(),
            invisible_ms=pop.invisible_ms,
            revive_queue=ORDER_REVIVE_QUEUE if pop.ordered else 0,
            rest=0,
        )

    @staticmethod
    def _finish(pop: _Pop, answer: bytes, status: PutStatus) -> None:
        """Give the messages when nobody else gets them after a failover, too."""
        if status is PutStatus.PUT_OK:
            pop.connection.answer(answer)
            return
        request = Command(RequestCode.POP_MESSAGE, opaque=pop.opaque)
        code = CODES.get(status, ResponseCode.SYSTEM_ERROR)
        pop.connection.answer(
            request.reply(
                code, f"{status.value}: the messages come again when {pop.invisible_ms} ms are over"
            )
        )


def _priority_factor(config: TopicConfig, group_config: SubscriptionGroupConfig) -> int | None:
    """Pops of a hundred that read the highest priority first; None for a topic without priorities."""
    if config.attributes.get("message.type") != MessageType.PRIORITY.value:
        return None
    factor = group_config.attributes.get("priority.factor", "100")
    return int(factor) if factor.isdigit() else 100
