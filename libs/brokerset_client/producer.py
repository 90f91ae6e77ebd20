"""Sends messages: awaited, many at once, one-way, in batches, to chosen queues; tries again where that may
help.

Source: `DefaultMQProducerImpl`. Every way of sending goes through `_Sending`, which makes one attempt after
the other until an answer is good, the rules of `retry` give up, or the time is over. An attempt over an open
connection needs no task and no timer of its own; one sweeper watches all deadlines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from brokerset_client.compression import COMPRESS_FROM_BYTES, compress
from brokerset_client.errors import (
    AnswerTimeout,
    BrokerUnreachable,
    ClientClosed,
    ClientError,
    MessageInvalid,
    NoQueue,
    RequestRefused,
    SendFailed,
)
from brokerset_client.instance import ClientInstance
from brokerset_client.messages import BODY_SIZE_MAX, Message, SendResult, SendStatus
from brokerset_client.retry import STALE_ROUTE_CODES, SendRetry
from brokerset_client.routes import (
    AUTO_CREATE_QUEUES,
    AUTO_CREATE_TOPIC,
    Quarantine,
    QueueRing,
    Route,
    queue_of_key,
)
from brokerset_client.send_window import SendLimits, SendWindow
from brokerset_formats import names
from brokerset_formats.batches import BatchItem, encode_batch
from brokerset_formats.hosts import Host
from brokerset_formats.message_ids import UniqueIds
from brokerset_formats.properties import Property, encode_properties
from brokerset_protocol.bodies.queues import MessageQueue
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import LocalProtocolError, Rejected
from brokerset_protocol.headers.send import SendKey, SendMessageResponse
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
"""Topics for which the producer remembers whose turn it is; then it forgets them all and starts anew."""

BATCH_ITEM_OVERHEAD = 26
"""Bytes that a message of a batch takes besides body and properties, with room for the record's own
header."""

QueueChooser = Callable[[Sequence[MessageQueue]], MessageQueue]

_STATUS: Final = {int(status.value): status for status in SendStatus}


class _Sending:
    """One message (or batch) on its way: what to send, whereto, what was tried, and who waits for it."""

    __slots__ = (
        "attempts",
        "body",
        "choose",
        "code",
        "command",
        "connection",
        "deadline",
        "failed_brokers",
        "flag",
        "future",
        "max_reconsume_times",
        "message_id",
        "properties",
        "queue",
        "reconsume_times",
        "size",
        "sys_flag",
        "topic",
    )

    def __init__(
        self, topic: str, code: RequestCode, body: bytes, properties: str, message_id: str, flag: int = 0
    ) -> None:
        self.topic = topic
        self.code = code
        self.body = body
        self.properties = properties
        self.message_id = message_id
        self.flag = flag
        self.sys_flag = 0
        self.size = len(body) + len(properties)
        self.reconsume_times: str | None = None
        self.max_reconsume_times: str | None = None
        self.queue: MessageQueue | None = None
        self.choose: QueueChooser | None = None
        self.deadline = 0.0
        self.future: asyncio.Future[SendResult]
        self.attempts: list[str] = []
        self.failed_brokers: frozenset[str] = frozenset()
        self.command: Command | None = None
        self.connection: Connection | None = None


class Producer:
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
    ) -> None:
        problem = names.check_group(group)
        if problem is not None:
            raise ValueError(problem)
        if instance is None and namesrv is None:
            raise ValueError("give namesrv or instance")
        self.group = group
        self.timeout = timeout
        self.retry = retry or SendRetry()
        self.body_size_max = body_size_max
        self.compress_from_bytes = compress_from_bytes
        self._create_topics = create_topics
        self._owns_instance = instance is None
        self.instance = instance or ClientInstance(namesrv or ())
        self._window = SendWindow(limits or SendLimits())
        self._in_flight: dict[_Sending, None] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._rings: dict[str, QueueRing] = {}
        self._quarantine = Quarantine()
        self._ids: UniqueIds | None = None
        self._oneway_count = 0
        self._running = False
        self._sweeper: asyncio.Task[object] | None = None

    async def __aenter__(self) -> Producer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Reach a name server. Raises `NameServerUnavailable`."""
        if self._owns_instance:
            await self.instance.start()
        self.instance.check_running()
        host = Host.from_text(self.instance.local_ip, 0)
        self._ids = UniqueIds(host.address, self.instance.process_id, self.instance.next_maker())
        self.instance.add_producer(self.group)
        self._running = True
        self._sweeper = self.instance.spawn(self._sweep(), "send time-outs")

    async def close(self) -> None:
        """Wait a while for what is on its way, fail the rest with `ClientClosed`, leave the brokers."""
        if not self._running:
            return
        self._running = False
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._idle.wait()
        except TimeoutError:
            pass
        for sending in list(self._in_flight):
            self._fail(sending, ClientClosed("the producer was closed before the broker answered"))
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self.instance.remove_producer(self.group)
        if self._owns_instance:
            await self.instance.close()

    # -- sending ------------------------------------------------------------------------------------------

    async def send(
        self,
        message: Message,
        timeout: float | None = None,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        choose: QueueChooser | None = None,
    ) -> SendResult:
        """Send one message and wait until the broker has stored it.

        The queue is the next in turn, unless `queue` names it, `key` (or the message's `sharding_key`) hashes
        to it, or `choose` picks it. Raises `MessageInvalid`, `TopicNotFound`, `NameServerUnavailable`,
        `RequestRefused` for an answer that no retry can mend, and `SendFailed` after the last attempt.
        """
        return await (await self.send_async(message, timeout, queue=queue, key=key, choose=choose))

    async def send_async(
        self,
        message: Message,
        timeout: float | None = None,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        choose: QueueChooser | None = None,
    ) -> asyncio.Future[SendResult]:
        """Start to send; the future gets what `send` returns or raises.

        Waits only while the window of `SendLimits` is full. Messages to one queue leave in the order of the
        calls; only a retry can change it.
        """
        sending = self._prepare(message)
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
        connection.notify(self._request(sending, target))
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
        sending = self._prepare_batch(messages)
        self._aim(sending, queue, key, None)
        return await self._begin(sending, timeout)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues that messages of `topic` can be sent to now."""
        return list((await self.instance.route_to_send(topic)).publish_queues)

    # -- from messages to requests ------------------------------------------------------------------------

    def _prepare(self, message: Message) -> _Sending:
        problem = message.problem(self.body_size_max)
        if problem is not None:
            raise MessageInvalid(problem)
        if self._ids is None:
            raise ClientClosed("the producer was not started: use `async with`, or await start() first")
        properties = message.to_properties(self._ids.next_id(self.instance.clock.now_ms()))
        body, sys_flag = compress(message.body, self.compress_from_bytes)
        # These two travel in the header, as a client that resends a consumed message wants it.
        reconsume_times = properties.pop(Property.RECONSUME_TIME, None)
        max_reconsume_times = properties.pop(Property.MAX_RECONSUME_TIMES, None)
        sending = _Sending(
            message.topic,
            RequestCode.SEND_MESSAGE_V2,
            body,
            encode_properties(properties).decode(),
            properties[Property.UNIQ_KEY],
            message.flag,
        )
        sending.sys_flag = sys_flag
        sending.reconsume_times = reconsume_times
        sending.max_reconsume_times = max_reconsume_times
        return sending

    def _prepare_batch(self, messages: Sequence[Message]) -> _Sending:
        if not messages:
            raise MessageInvalid("the batch is empty")
        if self._ids is None:
            raise ClientClosed("the producer was not started: use `async with`, or await start() first")
        topic = messages[0].topic
        wait_stored = messages[0].wait_stored
        now_ms = self.instance.clock.now_ms()
        items = []
        ids = []
        size = 0
        for message in messages:
            problem = message.problem(self.body_size_max)
            if message.topic != topic or message.wait_stored != wait_stored:
                problem = "messages of a batch have one topic and one wait_stored"
            elif message.delay_level or message.delay_ms is not None or message.deliver_at_ms is not None:
                problem = "a batch cannot be delayed: send its messages one by one"
            elif names.is_retry_topic(topic):
                problem = "a batch cannot go to a retry topic"
            if problem is not None:
                raise MessageInvalid(problem)
            properties = message.to_properties(self._ids.next_id(now_ms))
            ids.append(properties[Property.UNIQ_KEY])
            items.append(BatchItem(message.flag, message.body, encode_properties(properties)))
            size += BATCH_ITEM_OVERHEAD + len(message.body) + len(items[-1].properties)
            if size > self.body_size_max:
                raise MessageInvalid(
                    f"the batch exceeds {self.body_size_max} bytes with message {len(items)} of {len(messages)}"
                    ": split it"
                )
        own = {
            Property.UNIQ_KEY: self._ids.next_id(now_ms),
            Property.WAIT: "true" if wait_stored else "false",
        }
        return _Sending(
            topic,
            RequestCode.SEND_BATCH_MESSAGE,
            encode_batch(items),
            encode_properties(own).decode(),
            ",".join(ids),
        )

    def _aim(
        self, sending: _Sending, queue: MessageQueue | None, key: str | None, choose: QueueChooser | None
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

    def _request(self, sending: _Sending, queue: MessageQueue) -> Command:
        # The letters of SEND_MESSAGE_V2 as `headers.SendMessageV2` writes them, without making one for each
        # message.
        ext = {
            SendKey.PRODUCER_GROUP: self.group,
            SendKey.TOPIC: sending.topic,
            SendKey.DEFAULT_TOPIC: AUTO_CREATE_TOPIC,
            SendKey.DEFAULT_TOPIC_QUEUE_NUMS: str(AUTO_CREATE_QUEUES),
            SendKey.QUEUE_ID: str(queue.queue_id),
            SendKey.SYS_FLAG: str(sending.sys_flag),
            SendKey.BORN_TIMESTAMP: str(self.instance.clock.now_ms()),
            SendKey.FLAG: str(sending.flag),
            SendKey.PROPERTIES: sending.properties,
            SendKey.RECONSUME_TIMES: sending.reconsume_times or "0",
            SendKey.UNIT_MODE: "false",
            SendKey.BATCH: "true" if sending.code == RequestCode.SEND_BATCH_MESSAGE else "false",
            SendKey.BROKER_NAME: queue.broker_name,
        }
        if sending.max_reconsume_times is not None:
            ext[SendKey.MAX_RECONSUME_TIMES] = sending.max_reconsume_times
        return Command(sending.code, ext, sending.body)

    def _choose_queue(self, sending: _Sending, route: Route) -> MessageQueue:
        if sending.queue is not None:
            return sending.queue
        queues = route.publish_queues
        if not queues:
            raise NoQueue(
                f"no broker takes messages of topic {route.topic!r} now: no master, or no write permission"
            )
        if sending.choose is not None:
            return sending.choose(queues)
        ring = self._rings.get(route.topic)
        if ring is None:
            if len(self._rings) >= TOPIC_RINGS_MAX:
                self._rings.clear()
            ring = self._rings[route.topic] = QueueRing(hash(self.instance.client_id) & 0xFFFF)
        avoid = self._quarantine.members(asyncio.get_running_loop().time()) | sending.failed_brokers
        queue = ring.choose(queues, avoid)
        assert queue is not None
        return queue

    # -- attempts -----------------------------------------------------------------------------------------

    async def _begin(self, sending: _Sending, timeout: float | None) -> asyncio.Future[SendResult]:
        self.instance.check_running()
        if not self._running:
            raise ClientClosed("the producer was closed: make a new one")
        loop = asyncio.get_running_loop()
        if not self._window.try_enter(sending.size):
            await self._window.enter(sending.size)
        sending.future = loop.create_future()
        sending.deadline = loop.time() + (self.timeout if timeout is None else timeout)
        self._in_flight[sending] = None
        self._idle.clear()
        self._attempt(sending)
        return sending.future

    def _attempt(self, sending: _Sending) -> None:
        """Send at once if route and connection are there; else let a task find them first."""
        route = self.instance.cached_route(sending.topic)
        if route is None or (route.created_on_send and not self._create_topics):
            self._spawn_attempt(sending, 0, fresh=False)
            return
        try:
            queue = self._choose_queue(sending, route)
        except NoQueue as error:
            self._attempt_failed(sending, error, None, None)
            return
        address = route.master(queue.broker_name)
        if address is None:
            self._attempt_failed(
                sending, NoQueue(f"broker {queue.broker_name} has no master now"), queue.broker_name, None
            )
            return
        connection = self.instance.peek(address)
        if connection is None:
            self._spawn_attempt(sending, 0, fresh=False, address=address)
            return
        command = self._request(sending, queue)
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
        answer.add_done_callback(lambda done: self._answered(sending, queue, address, done))

    def _spawn_attempt(
        self, sending: _Sending, delay_ms: int, *, fresh: bool, address: str | None = None
    ) -> None:
        if sending in self._in_flight:
            self.instance.spawn(self._attempt_later(sending, delay_ms, fresh, address), "send")

    async def _attempt_later(
        self, sending: _Sending, delay_ms: int, fresh: bool, address: str | None
    ) -> None:
        try:
            if delay_ms:
                await asyncio.sleep(delay_ms / 1000)
            if address is not None:
                try:
                    await self.instance.connect(address)
                except BrokerUnreachable as error:
                    broker = self._broker_of(sending.topic, address)
                    self._attempt_failed(sending, error, broker, None)
                    return
            elif self._create_topics:
                await self.instance.route_to_send(sending.topic, fresh=fresh)
            else:
                await self.instance.route(sending.topic, fresh=fresh)
        except ClientError as error:
            self._fail(sending, error)
            return
        if sending in self._in_flight:
            self._attempt(sending)

    def _answered(
        self, sending: _Sending, queue: MessageQueue, address: str, done: asyncio.Future[Command]
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
            self._attempt_failed(sending, refused, queue.broker_name, answer.code)
            return
        try:
            header = SendMessageResponse.from_ext(answer.ext)
        except Rejected as error:
            self._fail(sending, RequestRefused(answer.code, f"unreadable answer: {error.remark}", address))
            return
        self._quarantine.absolve(queue.broker_name)
        self._leave(sending)
        if not sending.future.done():
            sending.future.set_result(
                SendResult(
                    status,
                    sending.message_id,
                    header.msg_id,
                    queue
                    if header.queue_id == queue.queue_id
                    else MessageQueue(queue.topic, queue.broker_name, header.queue_id),
                    header.queue_offset,
                    header.transaction_id,
                    header.region,
                    header.trace_on is not False,
                    header.recall_handle,
                )
            )
        route = self.instance.cached_route(sending.topic)
        if route is not None and route.created_on_send:
            self.instance.refresh_soon(sending.topic)

    def _attempt_failed(
        self, sending: _Sending, error: ClientError, broker_name: str | None, code: int | None
    ) -> None:
        """Decide between another attempt and giving up."""
        if sending not in self._in_flight:
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
        self._spawn_attempt(sending, delay_ms, fresh=stale)

    def _broker_of(self, topic: str, address: str) -> str | None:
        route = self.instance.cached_route(topic)
        if route is not None:
            for broker_name, replicas in route.addresses.items():
                if address in replicas.values():
                    return broker_name
        return None

    def _leave(self, sending: _Sending) -> None:
        if sending in self._in_flight:
            del self._in_flight[sending]
            self._window.leave(sending.size)
            if not self._in_flight:
                self._idle.set()

    def _fail(self, sending: _Sending, error: ClientError) -> None:
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
                    address = "{}:{}".format(*sending.connection.peer)
                    text = f"no answer from {address} in time"
                else:
                    text = "no broker could be reached in time"
                if sending.attempts:
                    text += " (before: " + "; ".join(sending.attempts) + ")"
                self._fail(sending, AnswerTimeout(f"message to {sending.topic!r}: {text}; it may be stored"))
