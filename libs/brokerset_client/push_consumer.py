"""Consumes topics for a group: fetches ahead, calls the listener, keeps offsets, shares queues with the
group.

Source: `DefaultMQPushConsumerImpl`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import structlog

from brokerset_client import calls
from brokerset_client.assigned_queue import AssignedQueue
from brokerset_client.assignment import Assignment
from brokerset_client.errors import ClientClosed, ClientError
from brokerset_client.fetching import fetch
from brokerset_client.instance import ClientInstance
from brokerset_client.instance_user import InstanceUser
from brokerset_client.listening import ConcurrentWork, Listener, OrderlyWork
from brokerset_client.messages import MessageView
from brokerset_client.positions import BrokerPositions, LocalPositions, Positions
from brokerset_client.producer import make_tracer
from brokerset_client.push_settings import BatchListener, MessageListener, PushSettings
from brokerset_client.redelivery import Redelivery
from brokerset_client.retry import Backoff
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
from brokerset_protocol.errors import Rejected

log = structlog.get_logger(__name__)

REBALANCE_RETRY = Backoff(first_ms=50, factor=1.6, max_ms=2000)
"""Waits until an incomplete rebalance (topic not created yet, lock held by another member) is tried again."""

LOCK_RETRY_SECONDS = 2.0


class PushConsumer(InstanceUser):
    """One member of a consumer group.

    Give `listener` (called with one message) or `batch_listener` (with several of one queue); `orderly` calls
    it for one message of a queue after the other, under a lock of the broker. Use it with `async with`, or
    await `start` and `close`; call `subscribe` before or after.

    `consume_from` is where a group begins in queues that it has no offset of. Without it that is RocketMQ's
    rule: at the end, but at the first message of a queue that is so young that its broker has all of it in
    memory. Queues that are added later begin by this rule whatever is given.
    """

    def __init__(
        self,
        group: str,
        *,
        namesrv: str | Sequence[str] | None = None,
        instance: ClientInstance | None = None,
        listener: MessageListener | None = None,
        batch_listener: BatchListener | None = None,
        orderly: bool = False,
        model: MessageModel = MessageModel.CLUSTERING,
        consume_from: ConsumeFromWhere | None = None,
        from_timestamp_ms: int | None = None,
        settings: PushSettings | None = None,
        trace: TraceSettings | None = None,
    ) -> None:
        problem = names.check_group(group)
        if problem is not None:
            raise ValueError(problem)
        super().__init__(namesrv, instance)
        self._group = group
        self._settings = settings or PushSettings()
        self._model = model
        self._where = consume_from
        self._orderly = orderly
        self._from_timestamp_ms = (
            self.instance.clock.now_ms() - 1_800_000 if from_timestamp_ms is None else from_timestamp_ms
        )
        self.listener = Listener(listener, batch_listener, self._settings)
        self._suspended = False
        if trace is not None:
            self.listener.tracer = make_tracer(self.instance, group, "CONSUME", trace)
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._redelivery: Redelivery | None = None
        self._assignment: Assignment | None = None
        self._concurrent: ConcurrentWork | None = None
        self._in_order: OrderlyWork | None = None
        self._joined = False
        self._started_ms = 0
        self._tasks: list[asyncio.Task[object]] = []

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._group

    @property
    def assigned(self) -> list[MessageQueue]:
        """The queues of this consumer now, those of its retry topic among them."""
        return [] if self._assignment is None else sorted(self._assignment.queues)

    def subscribe(
        self, topic: str, expression: str = SUB_ALL, *, expression_type: str = ExpressionType.TAG
    ) -> None:
        """Want messages of `topic`: all (`*`), or those with one of the tags (`A || B`), or by SQL92
        expression.

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

    def unsubscribe(self, topic: str) -> None:
        """Want no more of `topic`; its queues go to the rest of the group."""
        self._subscriptions.pop(topic, None)
        self.listener.work.forget(topic)
        self._subscriptions_changed()

    @property
    def suspended(self) -> bool:
        """Whether consumption pauses, by `suspend`."""
        return self._suspended

    async def suspend(self) -> None:
        """Pause: fetch nothing, and hand the listener nothing more. Returns when the listener does not run
        any more.

        The consumer stays in its group and keeps its queues, their locks and what it has fetched; nobody else
        gets them. An orderly consumer that fails with a message does not try it again meanwhile. Offsets
        can be reset, and messages consumed directly. It may be called before `start`. When somebody calls
        `resume` meanwhile it returns at once.
        """
        self._suspended = True
        if self._assignment is not None:
            for assigned in self._assignment.queues.values():
                assigned.suspend()
        await self.listener.quiet()

    def resume(self) -> None:
        """Go on where `suspend` stopped; without it nothing happens."""
        self._suspended = False
        self.listener.go_on()
        if self._assignment is None:
            return
        for assigned in self._assignment.queues.values():
            assigned.resume()
            if self._concurrent is not None:
                self._concurrent.resume(assigned)
        self._assignment.wanted.set()

    async def start(self) -> None:
        """Join the group. Returns before the first message; raises `NameServerUnavailable`.

        For SQL92 subscriptions also raises `RequestRefused` if the broker cannot filter like that.
        """
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise

    async def _start(self) -> None:
        await super().start()
        self.instance.check_running()
        self._started_ms = self.instance.clock.now_ms()
        if self.listener.tracer is not None:
            await self.listener.tracer.start()
        shared = self._model is MessageModel.CLUSTERING
        positions: Positions
        if shared:
            retry_topic = names.retry_topic(self._group)
            self._subscriptions[retry_topic] = subscriptions.parse(
                retry_topic, SUB_ALL, version=self._started_ms
            )
            positions = BrokerPositions(self.instance, self._group)
            self._redelivery = Redelivery(
                self.instance, self._group, self._settings.reconsume_max(orderly=self._orderly)
            )
            await self._redelivery.start()
        else:
            positions = LocalPositions(self._settings.offsets_folder, self.instance.client_id, self._group)
        self._assignment = Assignment(
            self.instance,
            self._group,
            settings=self._settings,
            subscriptions=self._subscriptions,
            positions=positions,
            where=self._where,
            from_timestamp_ms=self._from_timestamp_ms,
            shared=shared,
            orderly=self._orderly,
            opened=self._open,
        )
        if self._orderly:
            self._in_order = OrderlyWork(
                self.instance, self.listener, self._settings, self._redelivery, self._assignment.lock_lost
            )
        else:
            self._concurrent = ConcurrentWork(self.instance, self.listener, self._settings, self._redelivery)
            self._concurrent.start()
        await self._learn_routes()
        self.instance.add_member(self)
        self._joined = True
        await self.instance.heartbeat()
        self._tasks = [
            self.instance.spawn(self._keep_balanced(self._assignment), "rebalance"),
            self.instance.spawn(self._keep_saved(self._assignment), "offsets"),
        ]
        if self._assignment.needs_locks:
            self._tasks.append(self.instance.spawn(self._keep_locked(self._assignment), "locks"))

    async def close(self) -> None:
        """Stop fetching, let running listeners finish, store offsets, unlock, leave the group.

        Raises `ClosedByListener` if a listener awaits it, which would wait for itself.
        """
        self.listener.check_close()
        assignment = self._assignment
        if assignment is None:
            await self._close_tracer()
            await super().close()
            return
        self._assignment = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for assigned in assignment.queues.values():
            assigned.stop()
        if self._concurrent is not None:
            await self._concurrent.stop(self._settings.close_timeout)
        await assignment.close()
        if self._joined:
            await self.instance.remove_member(self._group)
        if self._redelivery is not None:
            await self._redelivery.close()
        await self._close_tracer()
        await super().close()

    async def wait_assigned(self, timeout: float = 30.0) -> list[MessageQueue]:
        """Wait until this consumer has a queue of a subscribed topic (not only of its retry topic).

        Raises `TimeoutError`; a member of a group that is larger than the number of queues never gets one.
        """
        async with asyncio.timeout(timeout):
            while True:
                mine = [queue for queue in self.assigned if not names.is_retry_topic(queue.topic)]
                if mine:
                    return mine
                await asyncio.sleep(0.01)

    # -- what the instance asks (GroupMember)
    # -----------------------------------------------------------------

    def consumer_data(self) -> ConsumerData:
        """What heartbeats say about this consumer."""
        return ConsumerData(
            group_name=self._group,
            consume_type=ConsumeType.CONSUME_PASSIVELY,
            message_model=self._model,
            consume_from_where=self._where or ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
            subscription_data_set=tuple(self._subscriptions.values()),
        )

    def route_changed(self, topic: str) -> None:
        """Divide again if it is one of our topics."""
        if topic in self._subscriptions and self._assignment is not None:
            self._assignment.wanted.set()

    def members_changed(self) -> None:
        """Divide again."""
        if self._assignment is not None:
            self._assignment.wanted.set()

    def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on from other offsets in those queues that are ours."""
        if self._assignment is None:
            return
        for queue, queue_offset in offsets.items():
            assigned = self._assignment.queues.get(queue)
            if assigned is not None and queue.topic == topic:
                self._assignment.move(assigned, queue_offset)

    def positions(self, topic: str) -> Mapping[MessageQueue, int]:
        """To where our queues of `topic` are consumed."""
        if self._assignment is None:
            return {}
        return {
            queue: assigned.window.commit_offset
            for queue, assigned in self._assignment.queues.items()
            if queue.topic == topic
        }

    def running_info(self) -> ConsumerRunningInfo:
        """Our state, for an administrator."""
        queues = {} if self._assignment is None else self._assignment.queues
        return ConsumerRunningInfo(
            properties={
                "PROP_CONSUME_TYPE": ConsumeType.CONSUME_PASSIVELY.value,
                "PROP_CONSUMEORDERLY": "true" if self._orderly else "false",
                "PROP_NAMESERVER_ADDR": ";".join(self.instance.name_servers) + ";",
                "PROP_THREADPOOL_CORE_SIZE": str(self._settings.workers),
                "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
                "PROP_CLIENT_VERSION": "brokerset",
                "suspended": "true" if self._suspended else "false",
                "consumeFromWhere": self.consumer_data().consume_from_where.value,
                "messageModel": self._model.value,
                "consumerGroup": self._group,
            },
            subscription_set=tuple(self._subscriptions.values()),
            mq_table={queue: assigned.info() for queue, assigned in queues.items()},
            status_table={topic: self.listener.work.rates(topic) for topic in self._subscriptions},
        )

    async def consume_directly(self, message: MessageView) -> ConsumeMessageDirectlyResult:
        """Hand one message to the listener, outside of any queue."""
        begun = self.instance.clock.now_ms()
        self.listener.enter()
        later, failure = await self.listener.attempt([message])
        result = ConsumeResult.CR_SUCCESS if later is None else ConsumeResult.CR_LATER
        return ConsumeMessageDirectlyResult(
            result if failure is None else ConsumeResult.CR_THROW_EXCEPTION,
            order=self._orderly,
            remark=None if failure is None else f"{type(failure).__name__}: {failure}",
            spent_time_mills=self.instance.clock.now_ms() - begun,
        )

    # -- tasks
    # ------------------------------------------------------------------------------------------------

    def _open(self, assigned: AssignedQueue) -> None:
        name = f"{assigned.queue.topic}/{assigned.queue.queue_id}"
        if self._suspended:
            assigned.suspend()
        if self._in_order is not None:
            assigned.handler = self.instance.spawn(self._in_order.handle(assigned), f"handle {name}")
        assigned.fetcher = self.instance.spawn(self._fetch(assigned), f"fetch {name}")

    async def _fetch(self, assigned: AssignedQueue) -> None:
        topic = assigned.queue.topic
        await fetch(
            self.instance,
            self._group,
            assigned,
            subscription=lambda: self._subscriptions.get(topic),
            deliver=self._deliver,
            moved=self._moved,
            commits=self._model is MessageModel.CLUSTERING,
            batch=self._settings.pull_batch,
            work=self.listener.work,
        )

    async def _deliver(self, assigned: AssignedQueue, messages: list[MessageView]) -> None:
        if self._concurrent is not None:
            await self._concurrent.deliver(assigned, messages)

    def _moved(self, assigned: AssignedQueue, queue_offset: int) -> None:
        if self._assignment is not None:
            self._assignment.move(assigned, queue_offset)

    async def _keep_balanced(self, assignment: Assignment) -> None:
        failures = 0
        while True:
            assignment.wanted.clear()
            if await assignment.rebalance():
                failures = 0
                wait = self._settings.rebalance_seconds
            else:
                failures += 1
                wait = REBALANCE_RETRY.delay_ms(failures) / 1000
            try:
                async with asyncio.timeout(wait):
                    await assignment.wanted.wait()
            except TimeoutError:
                pass

    async def _keep_saved(self, assignment: Assignment) -> None:
        while True:
            await asyncio.sleep(self._settings.commit_seconds)
            try:
                await assignment.save()
            except (ClientError, OSError) as error:
                log.warning("offsets are not stored, next try soon", reason=str(error))

    async def _keep_locked(self, assignment: Assignment) -> None:
        wait = self._settings.lock_seconds
        while True:
            await asyncio.sleep(wait)
            renewed = await assignment.renew_locks()
            wait = self._settings.lock_seconds if renewed else LOCK_RETRY_SECONDS

    async def _close_tracer(self) -> None:
        if self.listener.tracer is not None:
            await self.listener.tracer.close()

    async def _learn_routes(self) -> None:
        """Know the brokers before the first heartbeat, and let them check expressions that they must
        understand."""
        for topic, subscription in list(self._subscriptions.items()):
            try:
                route = await self.instance.route(topic)
            except ClientError as error:
                log.debug("topic has no route yet", topic=topic, reason=str(error))
                continue
            if subscription.expression_type == ExpressionType.TAG:
                continue
            for broker_name in route.addresses:
                address = route.reader(broker_name)
                if address is not None:
                    await calls.check_subscription(self.instance, address, self._group, subscription)

    def _subscriptions_changed(self) -> None:
        if self._assignment is not None:
            self.instance.heartbeat_soon()
            self._assignment.wanted.set()

    def check_open(self) -> None:
        """Raises `ClientClosed` unless this consumer was started and not closed."""
        if self._assignment is None:
            raise ClientClosed("the consumer is not running: use `async with`, or await start() first")
