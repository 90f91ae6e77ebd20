"""Sends messages: awaited, many at once, one-way, in batches, to chosen queues; tries again where that may
help.

Source: `DefaultMQProducerImpl`. Every way of sending goes through `Sending`, which makes one attempt after
the other until an answer is good, the rules of `retry` give up, or the time is over. An attempt over an open
connection needs no task and no timer of its own; one sweeper watches all deadlines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from brokerset_client import timers
from brokerset_client.compression import COMPRESS_FROM_BYTES
from brokerset_client.errors import (
    AnswerTimeout,
    BrokerUnreachable,
    ClientClosed,
    ClientError,
    MessageInvalid,
    NoQueue,
    RequestRefused,
    SendFailed,
    attempts_text,
)
from brokerset_client.instance import ClientInstance, give_up_if_silent
from brokerset_client.instance_user import InstanceUser
from brokerset_client.messages import BODY_SIZE_MAX, Message, MessageView, SendResult, SendStatus
from brokerset_client.request_reply import Requester, is_undelivered, reply_message, reply_to
from brokerset_client.retry import STALE_ROUTE_CODES, SendRetry
from brokerset_client.routes import (
    Quarantine,
    QueueRing,
    Route,
    queue_of_key,
)
from brokerset_client.send_window import SendLimits, SendWindow
from brokerset_client.sending import QueueChooser, Sending, prepare, prepare_batch, request_of
from brokerset_client.timers import Delay, timed
from brokerset_client.tracing import GROUP_PREFIX, Tracer, TraceSettings, traced_send
from brokerset_formats import names
from brokerset_formats.hashing import java_hash
from brokerset_formats.hosts import Host
from brokerset_formats.message_ids import UniqueIds
from brokerset_formats.properties import Property
from brokerset_protocol.bodies.queues import MessageQueue
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import LocalProtocolError
from brokerset_protocol.headers.send import SendResponseKey
from brokerset_runtime.remoting import Connection, ConnectionClosed

SEND_SECONDS = 3.0
"""Time-out of a send with all its attempts, unless the caller gives one (`sendMsgTimeout`)."""

SWEEP_SECONDS = 0.02
"""How exactly time-outs of sends are kept."""

CLOSE_SECONDS = 5.0
"""How long `close` waits for what is on its way."""

TURN_MESSAGES = 64
"""One-way sends after which the loop gets a turn, so that what was queued can leave."""

TOPIC_RINGS_MAX = 10_000
"""Topics for which the producer remembers whose turn it is; then it forgets them all."""

TRACE_SEND_SECONDS = 5.0
"""Time-out of a trace message (Java's)."""

TRACE_MESSAGES_MAX = 16
"""Trace messages of one producer or consumer that are on their way."""

_STATUS: Final = {int(status.value): status for status in SendStatus}


def make_tracer(instance: ClientInstance, group: str, kind: str, settings: TraceSettings) -> Tracer:
    """A tracer with a producer of its own, which is not traced; `kind` is `PRODUCE` or `CONSUME`, as Java's.

    The route of the trace topic is its own business: without it traces are lost, and nothing else.
    """
    tail = f"-{kind}-{instance.next_maker()}"
    sender = Producer(
        f"{GROUP_PREFIX}-{group}"[: names.GROUP_SIZE_MAX - len(tail)] + tail,
        instance=instance,
        timeout=TRACE_SEND_SECONDS,
        limits=SendLimits(TRACE_MESSAGES_MAX),
        create_topics=False,
    )
    return Tracer(instance, group, settings, sender)


class Producer(InstanceUser):
    """Sends messages for one producer group.

    `namesrv` is `host:port`, several joined by `;`; or give an `instance` to share. Use it with `async with`,
    or await `start` and `close`. Not safe for several event loops.
    """

    def __init__(
        self,
        group: str,
        *,
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
        problem = names.check_group(group)
        if problem is not None:
            raise ValueError(problem)
        super().__init__(namesrv, instance)
        self.group = group
        self.timeout = timeout
        self.retry = retry or SendRetry()
        self.body_size_max = body_size_max
        self.compress_from_bytes = compress_from_bytes
        self._create_topics = create_topics
        self._window = SendWindow(limits or SendLimits())
        self._in_flight: dict[Sending, None] = {}
        self._need_route: dict[str, list[Sending]] = {}
        """Who waits for a topic's route, bounded like everything in flight by the window."""
        self._need_connection: dict[str, list[tuple[Sending, MessageQueue]]] = {}
        """Who waits for a connection, by address."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._rings: dict[str, QueueRing] = {}
        self._quarantine = Quarantine()
        self._ids: UniqueIds | None = None
        self._oneway_count = 0
        self._running = False
        self._sweeper: asyncio.Task[object] | None = None
        self._requester = Requester(self.instance, self)
        self._tracer = None if trace is None else make_tracer(self.instance, group, "PRODUCE", trace)

    async def start(self) -> None:
        """Reach a name server. Raises `NameServerUnavailable`."""
        await super().start()
        self.instance.check_running()
        host = Host.from_text(self.instance.local_ip, 0)
        self._ids = UniqueIds(host.address, self.instance.process_id, self.instance.next_maker())
        self.instance.add_producer(self.group)
        self._running = True
        self._sweeper = self.instance.spawn(self._sweep(), "send time-outs")
        if self._tracer is not None:
            await self._tracer.start()

    async def close(self) -> None:
        """Wait a while for what is on its way, fail the rest with `ClientClosed`, leave the brokers."""
        if not self._running:
            return
        self._running = False
        self._requester.close()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._idle.wait()
        except TimeoutError:
            pass
        for sending in list(self._in_flight):
            self._fail(sending, ClientClosed("the producer was closed before the broker answered"))
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._tracer is not None:
            await self._tracer.close()
        await self.instance.remove_producer(self.group)
        await super().close()

    # -- sending ------------------------------------------------------------------------------------------

    async def send(
        self,
        message: Message,
        timeout: float | None = None,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        choose: QueueChooser | None = None,
        delay: Delay | None = None,
        deliver_at: datetime | None = None,
    ) -> SendResult:
        """Send one message and wait until the broker has stored it.

        The queue is the next in turn, unless `queue` names it, `key` (or the message's `sharding_key`) hashes
        to it, or `choose` picks it. `SendRetry` says what is tried again: by default a lost connection and a
        broker that cannot serve at the moment until the time-out, so that a failover fails no send. A message
        that is tried again may be stored twice; its id is the same.

        With `delay` (seconds or a `timedelta`) or `deliver_at` consumers get it later; the result's
        `recall_handle` takes it back until then. Raises `MessageInvalid`, `TopicNotFound`,
        `NameServerUnavailable`, `RequestRefused` for an answer that no retry can mend, `AnswerTimeout`, and
        `SendFailed` after the last attempt.
        """
        message = timed(message, delay, deliver_at)
        return await (await self.send_async(message, timeout, queue=queue, key=key, choose=choose))

    async def send_async(
        self,
        message: Message,
        timeout: float | None = None,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        choose: QueueChooser | None = None,
        delay: Delay | None = None,
        deliver_at: datetime | None = None,
    ) -> asyncio.Future[SendResult]:
        """Start to send; the future gets what `send` returns or raises.

        Waits only while the window of `SendLimits` is full. Messages to one queue leave in the order of the
        calls; only a retry can change it.
        """
        sending = self._prepare(timed(message, delay, deliver_at))
        self._aim(sending, queue, key if key is not None else message.sharding_key, choose)
        return await self._begin(sending, timeout)

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        choose: QueueChooser | None = None,
    ) -> None:
        """Send without an answer: nothing tells whether it arrived.

        Raises `MessageInvalid`, `TopicNotFound`, `NoQueue`, `BrokerUnreachable` before anything leaves.
        """
        sending = self._prepare(message)
        self._aim(sending, queue, key if key is not None else message.sharding_key, choose)
        route = await self.instance.route_to_send(message.topic)
        target = self._choose_queue(sending, route)
        address = route.master(target.broker_name)
        if address is None:
            raise NoQueue(f"broker {target.broker_name} of topic {message.topic!r} has no master now")
        connection = self.instance.peek(address) or await self.instance.connect(address)
        try:
            connection.notify(request_of(sending, self.group, target, self.instance.clock.now_ms()))
        except LocalProtocolError as error:
            raise MessageInvalid(str(error)) from error
        self._oneway_count += 1
        if self._oneway_count % TURN_MESSAGES == 0:
            await asyncio.sleep(0)

    async def send_batch(
        self,
        messages: Sequence[Message],
        timeout: float | None = None,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
    ) -> SendResult:
        """Send several messages of one topic to one queue in one request; they get consecutive queue offsets.

        Raises `MessageInvalid` if they do not belong together, ask for a delay, or are larger than the
        broker's limit for one message in sum (4 MiB): split them then.
        """
        return await (await self.send_batch_async(messages, timeout, queue=queue, key=key))

    async def send_batch_async(
        self,
        messages: Sequence[Message],
        timeout: float | None = None,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
    ) -> asyncio.Future[SendResult]:
        """Start to send a batch; the future gets what `send_batch` returns or raises. Waits for the window
        only."""
        sending = prepare_batch(
            messages,
            self._unique_ids(),
            self.instance.clock.now_ms(),
            body_size_max=self.body_size_max,
        )
        if self._tracer is not None:
            ids = sending.message_id.split(",")
            sending.traced = tuple(map(traced_send, messages, ids))
            sending.begun_ms = self.instance.clock.now_ms()
        self._aim(sending, queue, key, None)
        return await self._begin(sending, timeout)

    async def request(
        self,
        message: Message,
        timeout: float | None = None,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        choose: QueueChooser | None = None,
    ) -> MessageView:
        """Send a message and wait for the reply of whoever consumes it, `timeout` seconds in all.

        Many may wait at once; to cancel one is safe. The request is an ordinary message: consumers get it
        also when nobody waits for the reply any more. Raises what `send` raises if the request cannot be
        stored, and `ReplyTimeout` if it was and no reply came.
        """
        self._unique_ids()
        seconds = self.timeout if timeout is None else timeout
        return await self._requester.request(message, seconds, queue=queue, key=key, choose=choose)

    async def reply_to(
        self,
        request: MessageView,
        body: bytes,
        timeout: float | None = None,
        *,
        tags: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
    ) -> SendResult:
        """Reply to a request that a consumer got; returns when its sender has the reply.

        The broker that the request came from is asked first, then the others of its cluster, again until
        the time is over or the request's sender waits no more. Raises `NotARequest`, `ReplyNotTaken` if
        the sender has gone, and what `send` raises.
        """
        ids = self._unique_ids()
        made = reply_message(request, body, tags=tags, keys=keys, properties=properties)
        # One id for all attempts: a broker that has stored the reply does not store it again.
        own = {**made.system_properties, Property.UNIQ_KEY: ids.next_id(self.instance.clock.now_ms())}
        seconds = self.timeout if timeout is None else timeout
        return await reply_to(self.instance, self, request, replace(made, system_properties=own), seconds)

    async def recall(self, topic: str, handle: str, timeout: float | None = None) -> str:
        """Take back a timer message that waits: nobody gets it. Returns its message id.

        `handle` is the `recall_handle` of its send. The broker does not say whether the message was
        delivered already: a recall right before the time of delivery may come too late. Raises
        `MessageInvalid` for what is no handle of `topic`, `RequestRefused` where brokers do not allow it
        (`recallMessageEnable`) or the time is over, and what ended the last attempt.
        """
        self._unique_ids()  # started, and not closed
        message_id, region = await timers.recall(
            self.instance,
            self.group,
            topic,
            handle,
            timeout=self.timeout if timeout is None else timeout,
            backoff=self.retry.backoff,
        )
        if self._tracer is not None:
            self._tracer.recalled(topic, message_id, region)
        return message_id

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues that messages of `topic` can be sent to now."""
        return list((await self.instance.route_to_send(topic)).publish_queues)

    # -- inside -------------------------------------------------------------------------------------------

    def _prepare(self, message: Message) -> Sending:
        now_ms = self.instance.clock.now_ms()
        sending = prepare(
            message,
            self._unique_ids(),
            now_ms,
            body_size_max=self.body_size_max,
            compress_from_bytes=self.compress_from_bytes,
        )
        if self._tracer is not None:
            sending.traced = (traced_send(message, sending.message_id),)
            sending.begun_ms = now_ms
        return sending

    def _unique_ids(self) -> UniqueIds:
        if self._ids is None:
            raise ClientClosed("the producer was not started: use `async with`, or await start() first")
        if not self._running:
            raise ClientClosed("the producer was closed: make a new one")
        return self._ids

    def _aim(
        self, sending: Sending, queue: MessageQueue | None, key: str | None, choose: QueueChooser | None
    ) -> None:
        if queue is not None:
            if queue.topic != sending.topic:
                raise MessageInvalid(
                    f"queue of topic {queue.topic!r} given for a message to {sending.topic!r}"
                )
            sending.queue = queue
        elif choose is not None:
            sending.choose = choose
        elif key is not None:
            sending.choose = lambda queues: queue_of_key(queues, key)

    def _choose_queue(self, sending: Sending, route: Route) -> MessageQueue:
        if sending.queue is not None:
            return sending.queue
        queues = route.publish_queues
        if not queues:
            raise NoQueue(
                f"no broker takes messages of topic {route.topic!r} now: no master, or no write permission"
            )
        if sending.choose is not None:
            try:
                return sending.choose(queues)
            except Exception as error:  # the edge of the application: no other message suffers from it
                raise MessageInvalid(f"choosing a queue failed: {error!r}") from error
        ring = self._rings.get(route.topic)
        if ring is None:
            if len(self._rings) >= TOPIC_RINGS_MAX:
                self._rings.clear()
            ring = self._rings[route.topic] = QueueRing(java_hash(self.instance.client_id) & 0xFFFF)
        avoid = self._quarantine.members(asyncio.get_running_loop().time()) | sending.failed_brokers
        queue = ring.choose(queues, avoid)
        assert queue is not None
        return queue

    # -- attempts -----------------------------------------------------------------------------------------

    async def _begin(self, sending: Sending, timeout: float | None) -> asyncio.Future[SendResult]:
        self.instance.check_running()
        loop = asyncio.get_running_loop()
        if not self._window.try_enter(sending.size):
            await self._window.enter(sending.size)
            if not self._running:
                self._window.leave(sending.size)
                raise ClientClosed("the producer was closed while the message waited for room")
        sending.future = loop.create_future()
        sending.deadline = loop.time() + (self.timeout if timeout is None else timeout)
        self._in_flight[sending] = None
        self._idle.clear()
        self._attempt(sending)
        return sending.future

    def _attempt(self, sending: Sending) -> None:
        """Send at once if route and connection are there; else stand in line with those that wait for the
        same.

        The lines keep messages of one queue in the order of the calls.
        """
        line = self._need_route.get(sending.topic)
        if line is not None:
            line.append(sending)
            return
        route = self.instance.cached_route(sending.topic)
        if route is None or (route.created_on_send and not self._create_topics):
            self._need_route[sending.topic] = [sending]
            self.instance.spawn(self._find_route(sending.topic), "route to send")
            return
        try:
            queue = self._choose_queue(sending, route)
        except NoQueue as error:
            self._attempt_failed(sending, error, None, None)
            return
        except MessageInvalid as error:
            self._fail(sending, error)
            return
        address = route.master(queue.broker_name)
        if address is None:
            no_master = NoQueue(f"broker {queue.broker_name} has no master now")
            self._attempt_failed(sending, no_master, queue.broker_name, None)
            return
        waiting = self._need_connection.get(address)
        if waiting is not None:
            waiting.append((sending, queue))
            return
        connection = self.instance.peek(address)
        if connection is None:
            self._need_connection[address] = [(sending, queue)]
            self.instance.spawn(self._find_connection(address), "connection to send")
            return
        self._send_over(connection, sending, queue, address)

    async def _find_route(self, topic: str) -> None:
        problem: ClientError | None = ClientClosed("the client was closed while the message waited")
        try:
            if self._create_topics:
                await self.instance.route_to_send(topic)
            else:
                await self.instance.route(topic)
            problem = None
        except ClientError as error:
            problem = error
        finally:
            for sending in self._need_route.pop(topic):
                if problem is not None:
                    self._fail(sending, problem)
                elif sending in self._in_flight:
                    self._attempt(sending)

    async def _find_connection(self, address: str) -> None:
        problem: BrokerUnreachable | None = None
        connection: Connection | None = None
        try:
            connection = await self.instance.connect(address)
        except BrokerUnreachable as error:
            problem = error
        for sending, queue in self._need_connection.pop(address):
            if sending not in self._in_flight:
                continue
            if connection is not None:
                self._send_over(connection, sending, queue, address)
            else:
                assert problem is not None
                self._attempt_failed(sending, problem, queue.broker_name, None)

    def _send_over(self, connection: Connection, sending: Sending, queue: MessageQueue, address: str) -> None:
        command = request_of(sending, self.group, queue, self.instance.clock.now_ms())
        try:
            answer = connection.start_call(command)
        except ConnectionClosed as error:
            self._attempt_failed(sending, BrokerUnreachable(address, str(error)), queue.broker_name, None)
            return
        except LocalProtocolError as error:
            self._fail(sending, MessageInvalid(str(error)))
            return
        sending.command = command
        sending.connection = connection
        sending.asked_at = asyncio.get_running_loop().time()
        answer.add_done_callback(lambda done: self._answered(sending, queue, address, done))

    async def _attempt_later(self, sending: Sending, delay_ms: int, fresh: bool) -> None:
        if delay_ms:
            await asyncio.sleep(delay_ms / 1000)
        try:
            await self.instance.route_to_send(sending.topic, fresh=fresh)
        except ClientError as error:
            # A name server that cannot answer in the middle of a failover ends no send: the old route serves.
            if isinstance(error, ClientClosed) or self.instance.cached_route(sending.topic) is None:
                self._fail(sending, error)
                return
        if sending in self._in_flight:
            self._attempt(sending)

    def _answered(
        self, sending: Sending, queue: MessageQueue, address: str, done: asyncio.Future[Command]
    ) -> None:
        sending.command = None
        if sending not in self._in_flight or done.cancelled():
            return
        lost = done.exception()
        if lost is not None:
            self._attempt_failed(sending, BrokerUnreachable(address, str(lost)), queue.broker_name, None)
            return
        answer = done.result()
        status = _STATUS.get(answer.code)
        if status is None:
            refused = RequestRefused(answer.code, answer.remark or "no reason given", address)
            if is_undelivered(refused.code, refused.remark):  # to be tried at another broker, if at all
                self._fail(sending, refused)
                return
            self._attempt_failed(sending, refused, queue.broker_name, answer.code)
            return
        ext = answer.ext
        try:
            # As `headers.SendMessageResponse` reads it, without making one for each message.
            offset_message_id = ext[SendResponseKey.MSG_ID]
            queue_id = int(ext[SendResponseKey.QUEUE_ID])
            queue_offset = int(ext[SendResponseKey.QUEUE_OFFSET])
        except (KeyError, ValueError) as error:
            self._fail(sending, RequestRefused(answer.code, f"unreadable answer: {error!r}", address))
            return
        self._quarantine.absolve(queue.broker_name)
        self._leave(sending)
        if queue_id != queue.queue_id:
            queue = MessageQueue(queue.topic, queue.broker_name, queue_id)
        result = SendResult(
            status,
            sending.message_id,
            offset_message_id,
            queue,
            queue_offset,
            ext.get(SendResponseKey.TRANSACTION_ID),
            ext.get(SendResponseKey.REGION),
            ext.get(SendResponseKey.TRACE_ON) != "false",
            ext.get(SendResponseKey.RECALL_HANDLE),
        )
        if not sending.future.done():
            sending.future.set_result(result)
        if self._tracer is not None:
            self._tracer.sent(sending.traced, result, address, sending.begun_ms)
        route = self.instance.cached_route(sending.topic)
        if route is not None and route.created_on_send:
            self.instance.refresh_soon(sending.topic)

    def _attempt_failed(
        self, sending: Sending, error: ClientError, broker_name: str | None, code: int | None
    ) -> None:
        """Decide between another attempt and giving up."""
        if sending not in self._in_flight:
            return
        if not self.instance.is_running:
            self._fail(sending, ClientClosed(f"the client was closed before the broker answered: {error}"))
            return
        now = asyncio.get_running_loop().time()
        sending.attempts.append(str(error))
        if broker_name is not None:
            sending.failed_brokers |= {broker_name}
            if code is None:
                self._quarantine.report(broker_name, now)
        stale = code is None or code in STALE_ROUTE_CODES
        remaining_ms = int((sending.deadline - now) * 1000)
        delay_ms = self.retry.decide_delay_ms(len(sending.attempts), code, remaining_ms)
        if delay_ms is None:
            if stale:
                self.instance.refresh_soon(sending.topic)
            if len(sending.attempts) == 1:
                self._fail(sending, error)
            else:
                failed = SendFailed(sending.topic, sending.attempts)
                failed.__cause__ = error
                self._fail(sending, failed)
            return
        self.instance.spawn(self._attempt_later(sending, delay_ms, stale), "send again")

    def _leave(self, sending: Sending) -> None:
        if sending in self._in_flight:
            del self._in_flight[sending]
            self._window.leave(sending.size)
            if not self._in_flight:
                self._idle.set()

    def _fail(self, sending: Sending, error: ClientError) -> None:
        self._leave(sending)
        if not sending.future.done():
            sending.future.set_exception(error)

    async def _sweep(self) -> None:
        """Fail what is overdue, and give back the room of what its caller has given up."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = loop.time()
            for sending in [s for s in self._in_flight if s.deadline <= now or s.future.done()]:
                if sending.command is not None and sending.connection is not None:
                    sending.connection.forget_call(sending.command)
                    give_up_if_silent(sending.connection, sending.asked_at)
                    address = "{}:{}".format(*sending.connection.peer)
                    text = f"no answer from {address} in time"
                else:
                    text = "no broker could be reached in time"
                if sending.attempts:
                    text += f" (before: {attempts_text(sending.attempts)})"
                self._fail(sending, AnswerTimeout(f"message to {sending.topic!r}: {text}; it may be stored"))
