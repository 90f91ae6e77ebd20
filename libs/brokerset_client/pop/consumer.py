"""The POP consumer: a broker gives it messages for a limited time each, without assigning queues.

Sources: `DefaultMQPushConsumerImpl.popMessage`, and the simple consumer of the 5.x clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, cast

import structlog

from brokerset_client import calls
from brokerset_client.consume_rates import ConsumerWork
from brokerset_client.errors import ClientClosed, ClientError
from brokerset_client.instance import ClientInstance
from brokerset_client.instance_user import InstanceUser
from brokerset_client.listening import Listener
from brokerset_client.messages import MessageView
from brokerset_client.pop.hand import Hand
from brokerset_client.pop.polling import Polls
from brokerset_client.pop.popped import PoppedMessage
from brokerset_client.pop.receiving import Receiving
from brokerset_client.pop.renewals import Renewals
from brokerset_client.pop.requests import INIT_NEWEST, INIT_OLDEST, POP_MAX, PopRequests, Source
from brokerset_client.pop.settings import (
    INVISIBLE_SECONDS_MAX,
    PopBatchListener,
    PopListener,
    PopSettings,
)
from brokerset_client.pop.settling import Settling
from brokerset_client.pop.sources import Sources
from brokerset_client.pop.working import GIVE_BACK_SECONDS, GIVE_BACK_TIMEOUT, PopCounts, Work, wait_or_bury
from brokerset_client.producer import make_tracer
from brokerset_client.push_settings import BatchListener, Later, MessageListener
from brokerset_client.tracing import TraceSettings
from brokerset_formats import names
from brokerset_protocol import subscriptions
from brokerset_protocol.bodies.connections import (
    ConsumeMessageDirectlyResult,
    ConsumeResult,
    ConsumerRunningInfo,
)
from brokerset_protocol.bodies.heartbeat import (
    SUB_ALL,
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    ExpressionType,
    MessageModel,
    SubscriptionData,
)
from brokerset_protocol.bodies.queues import MessageQueue
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.errors import Rejected

log = structlog.get_logger(__name__)

_INIT_MODES: Final = {
    None: INIT_NEWEST,
    ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET: INIT_NEWEST,
    ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET: INIT_OLDEST,
}


class PopConsumer(InstanceUser):
    """One member of a group that consumes by POP; use it with `async with`, or await `start` and `close`.

    With `listener` (called with one message) or `batch_listener` (with several) it asks brokers by itself,
    renews the invisible time of what a listener has, acknowledges what succeeds, and has what fails delivered
    again. Without either, the application calls `receive` and `ack`.

    `ordered`: the messages of a queue are given out one batch after the other, each when the one before is
    acknowledged; every member of the group must be ordered. `consume_from` is where a group begins that has
    no offsets: at the end, or at the first message. `on_lost` hears of each message that others get, too,
    because its time ended before a broker confirmed what was asked; what its listener did is done twice.
    """

    def __init__(
        self,
        group: str,
        *,
        namesrv: str | Sequence[str] | None = None,
        instance: ClientInstance | None = None,
        listener: PopListener | None = None,
        batch_listener: PopBatchListener | None = None,
        ordered: bool = False,
        consume_from: ConsumeFromWhere | None = None,
        settings: PopSettings | None = None,
        on_lost: Callable[[PoppedMessage, ClientError], None] | None = None,
        trace: TraceSettings | None = None,
    ) -> None:
        self._settings = settings or PopSettings()
        problems = [problem for problem in (names.check_group(group), *self._settings.problems()) if problem]
        if consume_from not in _INIT_MODES:
            problems.append(
                f"{consume_from} is not for POP: a group begins at the first message or at the end"
            )
        if problems:
            raise ValueError("; ".join(problems))
        super().__init__(namesrv, instance)
        self._group = group
        self._ordered = ordered
        self._where = consume_from or ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
        self._on_lost = on_lost
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._requests = PopRequests(
            self.instance, group, init_mode=_INIT_MODES[consume_from], ordered=ordered
        )
        self._hand = Hand(self._settings.in_hand_max)
        self.listener: Listener | None = None
        """Counts what the application's function did; None for a consumer that is asked by `receive`."""
        self._work: Work | None = None
        self._polls: Polls | None = None
        self._receiving: Receiving | None = None
        spawn = self.instance.spawn
        if listener is None and batch_listener is None:
            self._rates = ConsumerWork(self.instance.clock.monotonic)
            self._settling = Settling(self._requests, spawn)
            self._renewals = Renewals(self._settling, spawn, self._settings.invisible_seconds, self._lost)
            self._receiving = Receiving(
                self._requests,
                spawn,
                self._settling,
                ordered=ordered,
                subscription=self._subscriptions.get,
                unwanted=self._ack_unwanted,
                give_back=self._give_back_soon,
                work=self._rates,
            )
        else:
            # What it is called with are popped messages, whatever its type says.
            self.listener = Listener(
                cast("MessageListener | None", listener),
                cast("BatchListener | None", batch_listener),
                self._settings,
            )
            if trace is not None:
                self.listener.tracer = make_tracer(self.instance, group, "CONSUME", trace)
            self._rates = self.listener.work
            self._work = Work(
                self._requests,
                spawn,
                self.listener,
                self._settings,
                hand=self._hand,
                ordered=ordered,
                lost=self._lost,
            )
            self._settling, self._renewals = self._work.settling, self._work.renewals
            self._polls = Polls(
                self._requests,
                spawn,
                self._settings,
                hand=self._hand,
                ordered=ordered,
                subscription=self._subscriptions.get,
                deliver=self._work.deliver,
                unwanted=self._work.acknowledge,
                give_back=self._give_back_soon,
                work=self._rates,
            )
        self._sources = Sources(self.instance, self._subscriptions, self._ask)
        self._started_ms = 0
        self._tasks: list[asyncio.Task[object]] = []
        self._given_back: set[asyncio.Task[object]] = set()
        """What comes too late, on its way back."""
        self._running = False
        self._joined = False

    # -- what the application does ------------------------------------------------------------------------

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._group

    @property
    def counts(self) -> PopCounts:
        """What became of messages so far (consumers with a listener)."""
        return PopCounts() if self._work is None else self._work.counts

    @property
    def sources(self) -> list[Source]:
        """The topics at brokers that are asked now."""
        return self._sources.all if self._running else []

    def subscribe(
        self, topic: str, expression: str = SUB_ALL, *, expression_type: str = ExpressionType.TAG
    ) -> None:
        """Want messages of `topic`: all (`*`), those with one of the tags (`A || B`), or by SQL92 expression.

        A topic that is subscribed already gets the new expression. Raises `ValueError` for what cannot be
        read.
        """
        problem = names.check_topic(topic)
        if problem is not None:
            raise ValueError(problem)
        try:
            self._subscriptions[topic] = subscriptions.parse(
                topic, expression, version=self.instance.clock.now_ms(), expression_type=expression_type
            )
        except Rejected as error:
            raise ValueError(error.remark) from error
        self._subscriptions_changed()

    async def unsubscribe(self, topic: str) -> None:
        """Want no more of `topic`, and give back what nobody here has begun with."""
        self._subscriptions.pop(topic, None)
        self._sources.forget(topic)
        self._rates.forget(topic)
        self._subscriptions_changed()
        if self._work is not None:
            await self._work.give_back_waiting(frozenset({topic}))
        elif self._receiving is not None and (rest := self._receiving.drop(topic)):
            await self._give_back(rest)

    @property
    def suspended(self) -> bool:
        """Whether consumption pauses, by `suspend`."""
        return self._hand.suspended

    async def suspend(self) -> None:
        """Pause a consumer with a listener: ask for nothing more, give back what the listener has not begun
        with, and return when it does not run any more. What a waiting poll brings later is given back, too.
        """
        if self._work is None or self.listener is None:
            raise ValueError("a consumer without a listener pauses by calling receive() no more")
        self._hand.suspended = True
        await self._work.give_back_waiting()
        await self.listener.quiet()

    def resume(self) -> None:
        """Go on after `suspend`; without it nothing happens."""
        self._hand.suspended = False
        self._hand.changed()
        if self.listener is not None:
            self.listener.go_on()

    async def receive(
        self,
        messages_max: int = POP_MAX,
        *,
        invisible: float | None = None,
        wait: float | None = None,
    ) -> list[PoppedMessage]:
        """Up to `messages_max` messages (32 at most), each for `invisible` seconds; none if none came within
        `wait` seconds. Without these the settings say how long.

        Raises `ClientError` if nothing came because no broker could be asked.
        """
        receiving = self._check_receiving()
        count = min(messages_max, POP_MAX)
        seconds = self._settings.invisible_seconds if invisible is None else invisible
        if count < 1 or not 0 < seconds <= INVISIBLE_SECONDS_MAX:
            raise ValueError(
                f"messages_max must be at least 1, invisible above 0 and up to {INVISIBLE_SECONDS_MAX:.0f} s"
            )
        return await receiving.receive(count, seconds, self._settings.wait_seconds if wait is None else wait)

    async def ack(self, message: PoppedMessage) -> None:
        """It is done. Returns when a broker has confirmed it.

        Acks that are awaited at the same time share a request. Raises `HandleRefused` if the message is not
        ours any more, and `HandleExpired` if no broker confirmed in time.
        """
        self._check_running()
        self._renewals.end([message])
        await self._settling.ack(message)

    async def change_invisible(self, message: PoppedMessage, seconds: float) -> None:
        """Have the message for so long from now on; 0 gives it back. Raises like `ack`."""
        self._check_running()
        if not 0 <= seconds <= INVISIBLE_SECONDS_MAX:
            raise ValueError(f"an invisible time is between 0 and {INVISIBLE_SECONDS_MAX:.0f} s")
        if not seconds:
            self._renewals.end([message])
        await self._settling.change(message, max(seconds, GIVE_BACK_SECONDS))

    async def nack(self, message: PoppedMessage, seconds: float | None = None) -> None:
        """It failed: have it delivered again after `seconds`, or after the back-off of the settings.

        One that failed too often goes to the dead-letter topic. Raises like `ack`.
        """
        self._check_running()
        self._renewals.end([message])
        later = Later(after_seconds=seconds)
        wait = await wait_or_bury(self._requests, self._settings, message, later, ordered=self._ordered)
        if wait is None:
            await self._settling.ack(message)
        else:
            await self._settling.change(message, max(wait, GIVE_BACK_SECONDS))

    @asynccontextmanager
    async def renewing(self, *messages: PoppedMessage) -> AsyncIterator[None]:
        """Renew the invisible time of these inside of the block, each to `invisible_seconds` of the settings.

        `message.lost` says afterwards whether that failed; acknowledge inside or behind the block.
        """
        self._check_running()
        self._renewals.begin(messages)
        try:
            yield
        finally:
            self._renewals.end(messages)

    async def start(self) -> None:
        """Join the group. Returns before the first message; raises `NameServerUnavailable`.

        For SQL92 subscriptions also raises `RequestRefused` if the broker cannot filter like that.
        """
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Leave the group, give back what no listener has begun with, let running listeners finish, wait for
        the acks. Takes `close_timeout` and a few seconds at most.

        The group is left first: brokers end our long polls by that, so none of them gets what is given back.
        Raises `ClosedByListener` if a listener awaits it, which would wait for itself.
        """
        if self.listener is not None:
            self.listener.check_close()
        self._running = False
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        rest = self._stop_asking()
        if self._joined:
            self._joined = False
            await self.instance.remove_member(self._group)
        if self.instance.is_running:
            await self._settle_rest(rest)
        if self.listener is not None and self.listener.tracer is not None:
            await self.listener.tracer.close()
        await super().close()

    # -- what the instance asks (GroupMember) -------------------------------------------------------------

    def consumer_data(self) -> ConsumerData:
        """What heartbeats say about this consumer."""
        return ConsumerData(
            group_name=self._group,
            consume_type=ConsumeType.CONSUME_POP,
            message_model=MessageModel.CLUSTERING,
            consume_from_where=self._where,
            subscription_data_set=tuple(self._subscriptions.values()),
        )

    def route_changed(self, topic: str) -> None:
        """Work out the brokers to ask again if it is one of our topics."""
        if topic in self._subscriptions:
            self._sources.find_soon()

    def members_changed(self) -> None:
        """Nobody has queues, so nothing moves."""

    def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """The broker gives out messages from the new offsets by itself; what is here already is finished."""

    def positions(self, topic: str) -> Mapping[MessageQueue, int]:
        """None: brokers keep them."""
        return {}

    def running_info(self) -> ConsumerRunningInfo:
        """Our state, for an administrator."""
        return ConsumerRunningInfo(
            properties={
                "PROP_CONSUME_TYPE": ConsumeType.CONSUME_POP.value,
                "PROP_CONSUMEORDERLY": "true" if self._ordered else "false",
                "PROP_NAMESERVER_ADDR": ";".join(self.instance.name_servers) + ";",
                "PROP_THREADPOOL_CORE_SIZE": str(self._settings.workers),
                "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
                "PROP_CLIENT_VERSION": "brokerset",
                "suspended": "true" if self.suspended else "false",
                "consumeFromWhere": self._where.value,
                "messageModel": MessageModel.CLUSTERING.value,
                "consumerGroup": self._group,
                "popInHand": str(self._hand.count),
                "popRenewed": str(self._renewals.renewed),
                **{f"pop{name.title().replace('_', '')}": str(value) for name, value in self._sums().items()},
            },
            subscription_set=tuple(self._subscriptions.values()),
            status_table={topic: self._rates.rates(topic) for topic in self._subscriptions},
        )

    async def consume_directly(self, message: MessageView) -> ConsumeMessageDirectlyResult:
        """Hand one message to the listener; it was not popped, so there is nothing to acknowledge."""
        listener = self.listener
        if listener is None:
            raise Rejected(ResponseCode.SYSTEM_ERROR, f"the consumer of {self._group} here has no listener")
        begun = self.instance.clock.now_ms()
        listener.enter()
        later, failure = await listener.attempt([message])
        result = ConsumeResult.CR_SUCCESS if later is None else ConsumeResult.CR_LATER
        return ConsumeMessageDirectlyResult(
            result if failure is None else ConsumeResult.CR_THROW_EXCEPTION,
            order=self._ordered,
            remark=None if failure is None else f"{type(failure).__name__}: {failure}",
            spent_time_mills=self.instance.clock.now_ms() - begun,
        )

    # -- inside -------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        await super().start()
        self.instance.check_running()
        self._started_ms = self.instance.clock.now_ms()
        if self.listener is not None and self.listener.tracer is not None:
            await self.listener.tracer.start()
        complete = await self._sources.find()
        await self._check_expressions()
        self.instance.add_member(self)
        self._joined = True
        await self.instance.heartbeat()
        self._running = True
        if self._work is not None:
            self._work.start()
        self._ask(self._sources.all)
        self._tasks.append(self.instance.spawn(self._sources.keep(complete), "pop sources"))

    def _stop_asking(self) -> list[PoppedMessage]:
        """What is here and nobody will ask for, without a listener."""
        if self._polls is not None:
            self._polls.want(())
        if self._receiving is None:
            return []
        self._renewals.close()
        return self._receiving.close()

    async def _settle_rest(self, rest: Sequence[PoppedMessage]) -> None:
        if self._work is not None:
            await self._work.stop(self._settings.close_timeout)
        else:
            await self._give_back(rest)
            await self._settling.wait_acks(GIVE_BACK_TIMEOUT)
        if self._given_back:  # polls have brought these meanwhile
            await asyncio.wait(self._given_back, timeout=GIVE_BACK_TIMEOUT)

    def _ask(self, sources: list[Source]) -> None:
        """Ask these and no others, once this consumer runs."""
        if self._running and self._polls is not None:
            self._polls.want(sources)
        if self._running and self._receiving is not None:
            self._receiving.want(sources)

    async def _check_expressions(self) -> None:
        """Let brokers say now, and not at each pop, that they do not understand an expression."""
        for topic, subscription in self._subscriptions.items():
            route = self.instance.cached_route(topic)
            if route is None or subscription.expression_type == ExpressionType.TAG:
                continue
            for broker in route.addresses:
                address = route.reader(broker)
                if address is not None:
                    await calls.check_subscription(self.instance, address, self._group, subscription)

    def _subscriptions_changed(self) -> None:
        if self._running:
            self.instance.heartbeat_soon()
            self._sources.find_soon()

    def _check_running(self) -> None:
        if not self._running:
            raise ClientClosed("the consumer is not running: use `async with`, or await start() first")

    def _check_receiving(self) -> Receiving:
        self._check_running()
        if self._receiving is None:
            raise ValueError(
                "this consumer has a listener, which gets the messages: make one without to receive"
            )
        return self._receiving

    def _lost(self, message: PoppedMessage, error: ClientError) -> None:
        if self._on_lost is not None:
            self._on_lost(message, error)

    def _ack_unwanted(self, messages: Sequence[PoppedMessage]) -> None:
        """The broker compares hashes of tags: what matched by accident is done."""
        for message in messages:
            self._settling.ack(message).add_done_callback(asyncio.Future.exception)

    def _give_back_soon(self, messages: Sequence[PoppedMessage]) -> None:
        task = self.instance.spawn(self._give_back(messages), "give back")
        self._given_back.add(task)
        task.add_done_callback(self._given_back.discard)

    async def _give_back(self, messages: Sequence[PoppedMessage]) -> None:
        changes = (
            self._settling.change(m, GIVE_BACK_SECONDS, uncounted=True) for m in messages if not m.lost
        )
        try:
            async with asyncio.timeout(GIVE_BACK_TIMEOUT):
                await asyncio.gather(*changes, return_exceptions=True)
        except TimeoutError:
            log.warning("messages are not given back yet: they come again", messages=len(messages))

    def _sums(self) -> dict[str, int]:
        counts = self.counts
        return {name: getattr(counts, name) for name in PopCounts.__slots__}
