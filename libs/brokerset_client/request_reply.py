"""Requests that wait for a reply, and the replies to them.

Source: `DefaultMQProducerImpl.request`, `MessageUtil.createReplyMessage`. A broker passes a reply on over
the connection on which it heard of the client. Java's client must hope that the reply comes to such a broker.
This one makes itself known to every master of the cluster before it asks, stays so while it waits, and
replies to the broker that the request came from first.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

from brokerset_client.errors import (
    AnswerTimeout,
    ClientClosed,
    ClientError,
    NoQueue,
    NotARequest,
    ReplyNotTaken,
    ReplyTimeout,
    RequestRefused,
)
from brokerset_client.instance import ClientInstance
from brokerset_client.messages import Message, MessageView, SendResult
from brokerset_client.retry import Backoff
from brokerset_client.sending import REPLY_TYPE, QueueChooser
from brokerset_formats import names
from brokerset_formats.properties import Property
from brokerset_protocol.bodies.queues import MessageQueue
from brokerset_protocol.codes import ResponseCode

WATCH_SECONDS: Final = 0.25
"""How often it is checked, while requests wait, that every master knows this client."""

NOT_FOUND: Final = "not found."
"""End of a broker's remark when the client that waits for a reply is not connected to it."""

REPLY_AGAIN: Final = Backoff(first_ms=50, factor=2.0, max_ms=500)
"""Waits until a reply is tried again at all brokers: after a failover a client shows up again soon."""


class Sends(Protocol):
    """What is wanted of a producer."""

    async def send_async(
        self,
        message: Message,
        timeout: float | None = None,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        choose: QueueChooser | None = None,
    ) -> asyncio.Future[SendResult]:
        """Start to send."""
        ...


def reply_message(
    request: MessageView,
    body: bytes,
    *,
    tags: str | None = None,
    keys: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
) -> Message:
    """The reply to a request, ready to be sent by any producer; `Producer.reply_to` sends it for you.

    Raises `NotARequest` for a message that nobody waits for a reply to.
    """
    asked = request.properties
    missing = [
        name
        for name in (Property.CLUSTER, Property.REPLY_TO_CLIENT, Property.CORRELATION_ID)
        if not asked.get(name)
    ]
    if missing:
        raise NotARequest(
            f"message {request.message_id} of {request.topic!r} is no request, it has no property "
            f"{', '.join(missing)}: send requests with Producer.request"
        )
    own = {
        Property.MSG_TYPE: REPLY_TYPE,
        Property.CORRELATION_ID: asked[Property.CORRELATION_ID],
        Property.REPLY_TO_CLIENT: asked[Property.REPLY_TO_CLIENT],
    }
    if Property.TTL in asked:
        own[Property.TTL] = asked[Property.TTL]
    return Message(
        topic=names.reply_topic(asked[Property.CLUSTER]),
        body=body,
        tags=tags,
        keys=keys,
        properties=properties or {},
        system_properties=own,
    )


class Requester:
    """Sends the requests of one producer and waits for the replies."""

    def __init__(self, instance: ClientInstance, producer: Sends) -> None:
        self._instance = instance
        self._producer = producer
        self._topics: dict[str, int] = {}
        """Topics of the requests that wait, and how many wait."""
        self._waiting: dict[asyncio.Future[MessageView], None] = {}
        self._watcher: asyncio.Task[object] | None = None

    async def request(
        self,
        message: Message,
        timeout: float,
        *,
        queue: MessageQueue | None,
        key: str | None,
        choose: QueueChooser | None,
    ) -> MessageView:
        """Send a request and wait for the reply; see `Producer.request`."""
        replies = self._instance.replies
        deadline = asyncio.get_running_loop().time() + timeout
        correlation_id = str(uuid.uuid4())
        own = {
            Property.CORRELATION_ID: correlation_id,
            Property.REPLY_TO_CLIENT: self._instance.client_id,
            Property.TTL: str(max(1, round(timeout * 1000))),
        }
        asked = replace(message, system_properties={**message.system_properties, **own})
        sent: asyncio.Future[SendResult] | None = None
        reply = replies.expect(correlation_id)
        self._waiting[reply] = None
        self._topics[message.topic] = self._topics.get(message.topic, 0) + 1
        try:
            async with asyncio.timeout_at(deadline):
                await self._reach(await self._topics_around(message.topic, to_send=True))
                self._watch()
                left = max(0.001, deadline - asyncio.get_running_loop().time())
                sent = await self._producer.send_async(asked, left, queue=queue, key=key, choose=choose)
                await asyncio.wait((sent, reply), return_when=asyncio.FIRST_COMPLETED)
                if not reply.done():
                    sent.result()  # raises what was wrong with the request
                return await reply
        except TimeoutError:
            if sent is None or not sent.done():
                raise AnswerTimeout(
                    f"request to {message.topic!r}: no broker acknowledged it in {timeout:g} s; "
                    "it may be stored"
                ) from None
            raise ReplyTimeout(message.topic, correlation_id, timeout) from None
        finally:
            if sent is not None and not sent.done():
                sent.cancel()
            replies.forget(correlation_id)
            del self._waiting[reply]
            self._topics[message.topic] -= 1
            if not self._topics[message.topic]:
                del self._topics[message.topic]

    def close(self) -> None:
        """Fail what waits, and watch no more."""
        for reply in self._waiting:
            if not reply.done():
                reply.set_exception(ClientClosed("the producer was closed before a reply came"))
                reply.exception()  # it may not be waited for yet, or any more; that is no error
        if self._watcher is not None:
            self._watcher.cancel()

    # -- brokers that know us -----------------------------------------------------------------------------

    async def _topics_around(self, topic: str, *, to_send: bool = False) -> list[str]:
        """A topic, and the reply topics of the clusters that it is in: where its replies may come from."""
        instance = self._instance
        route = await instance.route_to_send(topic) if to_send else instance.cached_route(topic)
        found = [topic]
        for cluster in route.clusters if route is not None else ():
            reply_topic = names.reply_topic(cluster)
            found.append(reply_topic)
            if instance.cached_route(reply_topic) is None:
                try:
                    await instance.route(reply_topic)
                except ClientError:
                    continue  # brokers of the topic itself know us: replies may come from there
        return found

    async def _reach(self, topics: Sequence[str]) -> bool:
        """Let every master of these topics know us; whether all of them do now."""
        addresses: dict[str, None] = {}
        complete = True
        for topic in topics:
            route = self._instance.cached_route(topic)
            if route is None:
                continue
            for broker_name in route.addresses:
                master = route.master(broker_name)
                if master is None:
                    complete = False
                else:
                    addresses[master] = None
        return await self._instance.announce(list(addresses)) and complete

    def _watch(self) -> None:
        if self._watcher is None or self._watcher.done():
            self._watcher = self._instance.spawn(self._keep_known(), "replies")

    async def _keep_known(self) -> None:
        """While requests wait, be known to masters that are new: a reply may come from one."""
        while self._topics:
            await asyncio.sleep(WATCH_SECONDS)
            for topic in list(self._topics):
                around = await self._topics_around(topic)
                if not await self._reach(around):
                    self._instance.refresh_soon(*around)


async def reply_to(
    instance: ClientInstance, producer: Sends, request: MessageView, message: Message, timeout: float
) -> SendResult:
    """Send a reply; see `Producer.reply_to`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    patience = loop.time() + min(timeout, _left_seconds(request, instance.clock.now_ms()))
    passes = 0
    while True:
        queues = _queues_by_preference(
            (await instance.route_to_send(message.topic)).publish_queues, request.broker_name
        )
        if not queues:
            raise NoQueue(f"no broker takes replies in {message.topic!r} now: no master, or no permission")
        attempts: list[str] = []
        for queue in queues:
            left = deadline - loop.time()
            if left <= 0 and attempts:
                break
            try:
                return await (await producer.send_async(message, max(0.001, left), queue=queue))
            except RequestRefused as refused:
                if not is_undelivered(refused.code, refused.remark):
                    raise
                attempts.append(str(refused))
                if not refused.remark.rstrip().endswith(NOT_FOUND):
                    break  # the client is there and does not take it
        else:
            passes += 1
            pause = REPLY_AGAIN.delay_ms(passes) / 1000
            if loop.time() + pause < patience:
                instance.refresh_soon(message.topic)
                await asyncio.sleep(pause)
                continue
        raise ReplyNotTaken(request.message_id, attempts)


def is_undelivered(code: int, remark: str) -> bool:
    """Whether a broker that refused a reply says that it reached no client."""
    return code == ResponseCode.SYSTEM_ERROR and remark.startswith("push reply message")


def _left_seconds(request: MessageView, now_ms: int) -> float:
    """How long the request's sender still waits, as far as clocks agree."""
    ttl = request.properties.get(Property.TTL, "")
    if not ttl.isdecimal() or len(ttl) > 12:
        return 0.0
    return max(0.0, (request.born_timestamp + int(ttl) - now_ms) / 1000)


def _queues_by_preference(queues: Sequence[MessageQueue], broker_name: str) -> list[MessageQueue]:
    """One queue of each broker, first that of the one that the request came from: it knows the client."""
    found: dict[str, MessageQueue] = {}
    for queue in queues:
        found.setdefault(queue.broker_name, queue)
    return sorted(found.values(), key=lambda queue: queue.broker_name != broker_name)
