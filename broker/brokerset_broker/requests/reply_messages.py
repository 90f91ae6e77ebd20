"""Replies of request-reply (324, 325): passed on to the client that waits for them (326), and stored.

Source: `ReplyMessageProcessor`. Everything that depends on the role is done before the first wait: a reply is
checked and stored at once, and pushed while the store makes it durable. Java pushes first, and then stores,
maybe 10 s later. It also loses the flag that says how a stored body is compressed; that is kept here.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import structlog

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.requests.admission import Admission
from brokerset_broker.requests.request_classes import forwarding_fields, is_forwarded
from brokerset_broker.requests.send import SendProcessor, born_host
from brokerset_broker.requests.send_properties import PLAIN_BITS, waits
from brokerset_broker.requests.send_refusals import STORED, illegal_message, no_topic
from brokerset_broker.requests.send_topics import bad_queue
from brokerset_broker.requests.statistics import BrokerStats
from brokerset_broker.requests.topic_facts import TopicFacts
from brokerset_broker.store.errors import PutStatus, StoreRefused
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.tables.channels import Channel
from brokerset_broker.tables.producers import ProducerTable
from brokerset_formats.hosts import HOST_SIZE_V4, Host
from brokerset_formats.properties import Property, decode_properties, encode_properties
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import LocalProtocolError, Rejected
from brokerset_protocol.headers.send import PushReplyMessageToClient, SendMessageV2, to_letters
from brokerset_runtime.clock import Clock
from brokerset_runtime.remoting import Connection, ConnectionClosed, Handler, RequestTimeout
from brokerset_runtime.remoting.connection import Reply

log = structlog.get_logger(__name__)

PUSH_SECONDS: Final = 10.0
"""How long a client may take to answer that it has a reply (`Broker2Client.callClient`)."""

PUSHES_MAX: Final = 16_384
"""Replies on their way to clients; one more is refused with SYSTEM_BUSY, before it is stored."""

PUSH_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of bodies and properties on their way to clients; the reply that would exceed it is refused so."""

STORED_MAX: Final = 4_096
"""Replies that are remembered, so that one that is sent again, for example since nobody was there who waits
for it, is not stored again; the oldest one is forgotten."""

_AT_ONCE: Final = (
    Property.TIMER_DELAY_SEC,
    Property.TIMER_DELAY_MS,
    Property.TIMER_DELIVER_MS,
    Property.INNER_NUM,
    Property.INNER_MULTI_DISPATCH,
    Property.LITE_TOPIC,
)
"""Properties of messages that are not delivered as they are: no reply has one."""

_HOST_BITS: Final = 0x0030
"""Bits that tell the sizes of the hosts; only the store knows them."""

_Key: TypeAlias = tuple[str, str]
"""Topic and client-made id of a reply."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a reply is stored, or that it is not: id `0`, as Java's clients expect a number."""

    queue_id: int
    queue_offset: int = 0
    end: int = 0
    ids: str = "0"


@dataclass(frozen=True, slots=True)
class _Push:
    """A reply that is on its way to the client that waits for it."""

    client_id: str
    channel: Channel
    command: Command
    size: int


class ReplyProcessor:
    """Passes replies on to the clients that wait for them, and stores them."""

    def __init__(
        self,
        *,
        live: LiveSettings,
        sends: SendProcessor,
        store: MessageStore,
        producers: ProducerTable,
        admission: Admission,
        stats: BrokerStats,
        clock: Clock,
    ) -> None:
        """`sends` checks a reply as it checks any message."""
        self._live = live
        self._sends = sends
        self._store = store
        self._producers = producers
        self._admission = admission
        self._stats = stats
        self._clock = clock
        self._in_group = live.current.enable_controller_mode
        self._store_host = Host.from_text(live.current.broker_ip1, live.current.listen_port).text
        self._stored: dict[_Key, _Place] = {}
        self.pushes = 0
        """Replies on their way to clients."""
        self.push_bytes = 0

    def handlers(self) -> dict[int, Handler]:
        """The request codes that are served here."""
        return {
            RequestCode.SEND_REPLY_MESSAGE: self.reply_long_names,
            RequestCode.SEND_REPLY_MESSAGE_V2: self.reply,
        }

    def reply_long_names(self, connection: Connection, command: Command) -> Reply:
        """Pass a reply on to the client that waits for it; field names as old clients spell them."""
        ext = command.ext
        command.ext = to_letters(ext)
        if is_forwarded(ext):
            command.ext |= forwarding_fields(ext)
        return self.reply(connection, command)

    def reply(self, connection: Connection, command: Command) -> Coroutine[Any, Any, Command]:
        """Pass a reply on to the client that waits for it; field names are single letters."""
        self._admission.check_writes()
        topic, facts, *_ = self._sends.read(command.ext)
        if facts is None:
            facts = self._sends.topics.known(topic)
            if facts is None:
                return self._reply_when_created(connection, command, topic)
        return self._reply(connection, command, facts)

    async def _reply_when_created(self, connection: Connection, command: Command, topic: str) -> Command:
        await self._sends.topics.create(connection, command, topic)
        self._admission.check_writes()
        facts = self._sends.topics.known(topic)
        if facts is None:
            raise no_topic(topic)
        return await self._reply(connection, command, facts)

    def _reply(
        self, connection: Connection, command: Command, facts: TopicFacts
    ) -> Coroutine[Any, Any, Command]:
        """Check and store a reply now; returns what remains to be waited for."""
        header = SendMessageV2.from_ext(command.ext)
        if header.queue_id >= facts.queues:
            raise bad_queue(connection, facts.config, header.queue_id)
        properties = decode_properties((header.properties or "").encode())
        self._check(properties, header.sys_flag, facts)
        settings = self._live.current
        properties[Property.MSG_REGION] = settings.region_id
        properties[Property.TRACE_ON] = "true" if settings.trace_on else "false"
        raw = encode_properties(properties)
        if not 0 < len(command.body) <= self._sends.body_max or len(raw) > self._sends.properties_max:
            raise illegal_message(self._sends.body_max)
        host = born_host(connection, command.ext, in_group=self._in_group)
        push = self._prepare_push(command.body, header, properties, host)
        key = header.topic, properties.get(Property.UNIQ_KEY, "")
        place = self._stored.get(key)
        durable: asyncio.Future[PutStatus] | None = None
        if place is None:
            place = self._put(command.body, header, raw, facts, host)
        if place.end and waits(header.properties or ""):
            self._remember(key, place)
            durable = self._when_durable(key, place)
        return self._finish(command, place, push, durable)

    def _check(self, properties: Mapping[str, str], sys_flag: int, facts: TopicFacts) -> None:
        """Raise `Rejected` for a message that would have to be something else than a reply."""
        found = [name for name in _AT_ONCE if name in properties]
        if properties.get(Property.TRAN_MSG, "").lower() == "true":
            found.append(Property.TRAN_MSG)
        if properties.get(Property.DELAY, "0").strip() not in ("", "0"):
            found.append(Property.DELAY)
        if found:
            raise Rejected(
                ResponseCode.MESSAGE_ILLEGAL,
                f"a reply is delivered at once: send it without the property {found[0]}",
            )
        if sys_flag & ~PLAIN_BITS & ~_HOST_BITS:
            raise Rejected(ResponseCode.MESSAGE_ILLEGAL, f"a reply cannot have the sysFlag {sys_flag:#x}")
        if facts.is_ordered:
            raise Rejected(
                ResponseCode.MESSAGE_ILLEGAL,
                f"{facts.config.topic_name} is an ordered subject, which takes no replies:"
                " send it to the reply topic of the request's cluster",
            )

    # -- the client that waits ----------------------------------------------------------------------------

    def _prepare_push(
        self, body: bytes, header: SendMessageV2, properties: Mapping[str, str], host: bytes
    ) -> _Push | str:
        """What is sent to the client that waits, or why there is none. Raises `Rejected` at a limit."""
        client_id = properties.get(Property.REPLY_TO_CLIENT)
        if client_id is None:
            return f"reply message properties[{Property.REPLY_TO_CLIENT}] is null"
        channel = self._producers.channel_of(client_id)
        if channel is None:
            return _not_found(client_id)
        now_ms = self._clock.now_ms()
        pushed = encode_properties({**properties, Property.PUSH_REPLY_TIME: str(now_ms)}).decode()
        size = len(body) + len(pushed)
        if self.pushes >= PUSHES_MAX or self.push_bytes + size > PUSH_BYTES_MAX:
            raise Rejected(
                ResponseCode.SYSTEM_BUSY,
                f"{self.pushes} replies of {self.push_bytes} bytes are on their way to clients that do not"
                " take them; try again",
            )
        ext = PushReplyMessageToClient(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=header.queue_id,
            sys_flag=header.sys_flag & PLAIN_BITS,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            properties=pushed,
            reconsume_times=header.reconsume_times,
            unit_mode=bool(header.unit_mode),
            born_host=Host.decode(host, v6=len(host) > HOST_SIZE_V4).text,
            store_host=self._store_host,
            store_timestamp=now_ms,
        ).to_ext()
        return _Push(client_id, channel, Command(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, ext, body), size)

    async def _push(self, push: _Push) -> str | None:
        """Give a reply to its client; why that failed, or None."""
        self.pushes += 1
        self.push_bytes += push.size
        try:
            answer = await push.channel.call(push.command, PUSH_SECONDS)
        except ConnectionClosed:
            return _not_found(push.client_id)  # it may be back soon, here or at another broker
        except (RequestTimeout, LocalProtocolError) as error:
            reason = str(error)
        else:
            if answer.code == ResponseCode.SUCCESS:
                return None
            reason = f"code {answer.code}: {answer.remark}"
        finally:
            self.pushes -= 1
            self.push_bytes -= push.size
        log.debug("reply not taken", client=push.client_id, reason=reason)
        return f"push reply message to {push.client_id}fail. {reason}"

    # -- the store ----------------------------------------------------------------------------------------

    def _put(self, body: bytes, header: SendMessageV2, raw: bytes, facts: TopicFacts, host: bytes) -> _Place:
        """Store a reply; one that cannot be stored is passed on all the same."""
        queue_id = header.queue_id
        if queue_id < 0:
            queue_id = random.randrange(facts.write_queues) if facts.write_queues > 0 else 0
        if not self._live.current.store_reply_message_enable:
            return _Place(queue_id)
        try:
            appended = self._store.append(
                header.topic,
                queue_id,
                body,
                raw,
                flag=header.flag,
                sys_flag=header.sys_flag & PLAIN_BITS,
                born_timestamp=header.born_timestamp,
                born_host=host,
                reconsume_times=header.reconsume_times or 0,
            )
        except StoreRefused as refused:
            self._stats.put_failed += 1
            log.warning("reply not stored", topic=header.topic, reason=refused.reason)
            return _Place(queue_id)
        self._stats.put(header.topic, 1, appended.size)
        facts.traffic.add(1, appended.size)
        return _Place(
            queue_id,
            appended.queue_offset,
            appended.offset + appended.size,
            self._sends.replies.message_id(appended.offset),
        )

    def _remember(self, key: _Key, place: _Place) -> None:
        if not key[1] or key in self._stored:
            return
        if len(self._stored) >= STORED_MAX:
            del self._stored[next(iter(self._stored))]
        self._stored[key] = place

    def _when_durable(self, key: _Key, place: _Place) -> asyncio.Future[PutStatus] | None:
        """What the store says about a reply, if that is waited for; one that is lost may be stored again."""
        if self._admission.when_durable is None:
            return None
        future: asyncio.Future[PutStatus] = asyncio.get_running_loop().create_future()

        def resolved(status: PutStatus) -> None:
            if status not in STORED:
                log.warning("reply not stored", topic=key[0], reason=status.value)
                self._stored.pop(key, None)
            if not future.done():
                future.set_result(status)

        self._admission.when_durable(place.end, resolved)
        return future

    async def _finish(
        self,
        command: Command,
        place: _Place,
        push: _Push | str,
        durable: asyncio.Future[PutStatus] | None,
    ) -> Command:
        """Wait for client and store. The code says whether the client has the reply, whatever the store
        did; the answer names a place only where the reply is stored."""
        failure = push if isinstance(push, str) else await self._push(push)
        if durable is not None and await durable not in STORED:
            place = _Place(place.queue_id)
        code = ResponseCode.SUCCESS if failure is None else ResponseCode.SYSTEM_ERROR
        return self._sends.replies.reply(
            command, code, failure, place.queue_id, place.queue_offset, place.ids, ""
        )


def _not_found(client_id: str) -> str:
    """Java's remark about a client that is not connected to this broker."""
    return f"push reply message fail, channel of <{client_id}> not found."
