"""Traces of what a producer or consumer does with messages, written to the trace topic in the background.

Sources: `AsyncTraceDispatcher`, `SendMessageTraceHookImpl`, `ConsumeMessageTraceHookImpl`,
`EndTransactionTraceHookImpl`, `DefaultRecallMessageTraceHook`. Traces never delay or fail what they are
about: what there is no room for is dropped and counted. Other than Java, each message of a batch has its own
trace, and a message's keys cannot make a trace message too large for a broker.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from brokerset_client.errors import ClientError
from brokerset_client.instance import ClientInstance
from brokerset_client.messages import Message, MessageView, SendResult, SendStatus
from brokerset_formats.hosts import Host
from brokerset_formats.message_ids import UniqueIds
from brokerset_formats.names import TRACE_TOPIC
from brokerset_formats.properties import Property
from brokerset_protocol.bodies.traces import (
    ConsumeOutcome,
    ConsumeTrace,
    DeliveryTrace,
    EndTrace,
    RecallTrace,
    SendTrace,
    Trace,
    TraceMessageType,
    encode_trace,
    index_keys,
)

log = structlog.get_logger(__name__)

GROUP_PREFIX: Final = "_INNER_TRACE_PRODUCER"
"""Begin of the producer groups that send traces, as Java's; clients do not trace these."""

BATCH_MAX: Final = 20
"""Traces in one trace message (Java's bound)."""

BODY_BYTES_MAX: Final = 128_000
"""Bytes of one trace message (Java's `maxMsgSize`)."""

KEYS_CHARACTERS_MAX: Final = 16_000
"""Characters of all keys of a trace message: half of what properties may have."""

FLUSH_SECONDS: Final = 5.0
"""How long a trace waits for others to share its message (Java's `flushTraceInterval`)."""

WAITING_MAX: Final = 2048
"""Traces that wait to be sent; a further one is dropped (Java's bound)."""

CLOSE_SECONDS: Final = 3.0
"""How long the end of a client waits for room to send its last traces."""

REGION_DEFAULT: Final = "DefaultRegion"
"""Region of an end, where the message does not name one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSettings:
    """Choices for traces of one producer or consumer."""

    topic: str = TRACE_TOPIC
    """Where to: brokers make the default one with `traceTopicEnable=true`; another must exist."""

    flush_seconds: float = FLUSH_SECONDS
    """How long a trace may wait for others."""


class TraceSender(Protocol):
    """What is wanted of the producer that sends traces."""

    async def start(self) -> None:
        """Be ready."""

    async def close(self) -> None:
        """Wait for answers, then end."""

    async def send_async(self, message: Message) -> asyncio.Future[SendResult]:
        """Send when there is room."""


@dataclass(frozen=True, slots=True)
class TracedSend:
    """What a trace says of a message that is about to be sent."""

    message_id: str
    tags: str
    keys: str
    body_length: int
    message_type: TraceMessageType


def traced_send(message: Message, message_id: str) -> TracedSend:
    """Note what the trace needs, while the message is there."""
    return TracedSend(
        message_id,
        message.tags or "",
        message.keys if isinstance(message.keys, str) else " ".join(message.keys),
        len(message.body),
        _type_of(message),
    )


def _type_of(message: Message) -> TraceMessageType:
    if message.system_properties.get(Property.TRAN_MSG) == "true":
        return TraceMessageType.TRANSACTION_HALF
    if message.delay_level or message.delay_ms is not None or message.deliver_at_ms is not None:
        return TraceMessageType.DELAY
    return TraceMessageType.NORMAL if message.sharding_key is None else TraceMessageType.ORDER


def plan_messages(traces: Iterable[Trace], topic: str) -> Iterator[Message]:
    """Trace messages for `traces`, in their order, each within the bounds of one message."""
    texts: list[str] = []
    keys: dict[str, None] = {}
    body_bytes = key_characters = 0
    for trace in traces:
        text = encode_trace(trace)
        size = len(text.encode())
        own = dict.fromkeys(index_keys(trace))
        if sum(len(key) + 1 for key in own) > KEYS_CHARACTERS_MAX:
            own = dict.fromkeys((trace.message_id,))
        more = sum(len(key) + 1 for key in own if key not in keys)
        full = len(texts) >= BATCH_MAX or body_bytes + size > BODY_BYTES_MAX
        if texts and (full or key_characters + more > KEYS_CHARACTERS_MAX):
            yield _message(topic, texts, keys)
            texts, keys, body_bytes, key_characters = [], {}, 0, 0
            more = sum(len(key) + 1 for key in own)
        texts.append(text)
        keys.update(own)
        body_bytes += size
        key_characters += more
    if texts:
        yield _message(topic, texts, keys)


def _message(topic: str, texts: Sequence[str], keys: Iterable[str]) -> Message:
    return Message(topic=topic, body="".join(texts).encode(), keys=tuple(keys))


class Tracer:
    """The traces of one producer or consumer."""

    def __init__(
        self, instance: ClientInstance, group: str, settings: TraceSettings, sender: TraceSender
    ) -> None:
        self._instance = instance
        self._group = group
        self._settings = settings
        self._sender = sender
        self._waiting: deque[Trace] = deque()
        self._arrived = asyncio.Event()
        self._full = asyncio.Event()
        self._flusher: asyncio.Task[object] | None = None
        self._ids: UniqueIds | None = None
        self.dropped = 0
        """Traces for which there was no room."""
        self.failed = 0
        """Trace messages that no broker took."""

    async def start(self) -> None:
        """Be able to send. Raises `NameServerUnavailable`."""
        await self._sender.start()
        host = Host.from_text(self._instance.local_ip, 0)
        self._ids = UniqueIds(host.address, self._instance.process_id, self._instance.next_maker())
        self._flusher = self._instance.spawn(self._flush(), f"traces of {self._group}")

    async def close(self) -> None:
        """Send what waits, and wait a while for the answers."""
        if self._flusher is None:
            return
        self._flusher.cancel()
        await asyncio.gather(self._flusher, return_exceptions=True)
        self._flusher = None
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                while self._waiting:
                    await self._send_some()
        except TimeoutError:
            self.dropped += len(self._waiting)
            self._waiting.clear()
        await self._sender.close()

    def add(self, trace: Trace) -> None:
        """Take a trace; never waits."""
        if len(self._waiting) >= WAITING_MAX or self._flusher is None:
            self.dropped += 1
            if self.dropped == 1:
                log.warning("traces are dropped: they come faster than brokers take them", group=self._group)
            return
        self._waiting.append(trace)
        self._arrived.set()
        if len(self._waiting) >= BATCH_MAX:
            self._full.set()

    # -- what happened ------------------------------------------------------------------------------------

    def sent(self, traced: Sequence[TracedSend], result: SendResult, address: str, begun_ms: int) -> None:
        """A send was answered; brokers say in their answer whether they want traces."""
        if result.region_id is None or not result.trace_on:
            return
        cost_ms = max(0, self._instance.clock.now_ms() - begun_ms)
        offset_ids = result.offset_message_id.split(",")
        for index, message in enumerate(traced):
            self.add(
                SendTrace(
                    time_ms=begun_ms,
                    region=result.region_id,
                    group=self._group,
                    topic=result.queue.topic,
                    message_id=message.message_id,
                    tags=message.tags,
                    keys=message.keys,
                    store_host=address,
                    body_length=message.body_length,
                    cost_ms=cost_ms,
                    message_type=message.message_type,
                    offset_message_id=offset_ids[index] if index < len(offset_ids) else offset_ids[0],
                    success=result.status is SendStatus.SEND_OK,
                )
            )

    def deliveries(self, messages: Sequence[MessageView]) -> list[DeliveryTrace]:
        """A listener is about to get `messages`; what is given back belongs to `consumed`."""
        ids = self._ids
        if ids is None:
            return []
        now_ms = self._instance.clock.now_ms()
        request_id = ids.next_id(now_ms)
        made = [
            DeliveryTrace(
                time_ms=now_ms,
                region=region,
                group=self._group,
                request_id=request_id,
                message_id=message.message_id,
                retry_times=message.reconsume_times,
                keys=" ".join(message.keys),
            )
            for message in messages
            if (region := message.property_text(Property.MSG_REGION)) is not None
            and message.property_text(Property.TRACE_ON) != "false"
        ]
        for trace in made:
            self.add(trace)
        return made

    def consumed(self, deliveries: Sequence[DeliveryTrace], outcome: ConsumeOutcome) -> None:
        """The listener that got them has ended."""
        now_ms = self._instance.clock.now_ms()
        for delivery in deliveries:
            self.add(
                ConsumeTrace(
                    request_id=delivery.request_id,
                    message_id=delivery.message_id,
                    cost_ms=max(0, now_ms - delivery.time_ms) // len(deliveries),
                    success=outcome is ConsumeOutcome.SUCCESS,
                    keys=delivery.keys,
                    outcome=outcome,
                    time_ms=now_ms,
                    group=self._group,
                )
            )

    def ended(
        self,
        *,
        topic: str,
        message_id: str,
        tags: str,
        keys: str,
        store_host: str,
        state: str,
        from_check: bool,
        region: str | None,
    ) -> None:
        """An end of a transaction was sent; `state` in Java's words."""
        self.add(
            EndTrace(
                time_ms=self._instance.clock.now_ms(),
                region=region or REGION_DEFAULT,
                group=self._group,
                topic=topic,
                message_id=message_id,
                tags=tags,
                keys=keys,
                store_host=store_host,
                transaction_id=message_id,
                state=state,
                from_check=from_check,
            )
        )

    def recalled(self, topic: str, message_id: str, region: str | None) -> None:
        """A timer message was taken back."""
        if region is not None:
            self.add(
                RecallTrace(
                    time_ms=self._instance.clock.now_ms(),
                    region=region,
                    group=self._group,
                    topic=topic,
                    message_id=message_id,
                )
            )

    # -- inside -------------------------------------------------------------------------------------------

    async def _flush(self) -> None:
        while True:
            await self._arrived.wait()
            try:
                async with asyncio.timeout(self._settings.flush_seconds):
                    await self._full.wait()
            except TimeoutError:
                pass
            while self._waiting:
                await self._send_some()
            self._arrived.clear()
            self._full.clear()

    async def _send_some(self) -> None:
        """Send the oldest traces; waits only for room in the sender's window."""
        traces = [self._waiting.popleft() for _ in range(min(BATCH_MAX, len(self._waiting)))]
        for message in plan_messages(traces, self._settings.topic):
            try:
                answer = await self._sender.send_async(message)
            except ClientError as error:
                self._lost(error)
            else:
                answer.add_done_callback(self._answered)

    def _answered(self, answer: asyncio.Future[SendResult]) -> None:
        if not answer.cancelled() and (error := answer.exception()) is not None:
            self._lost(error)

    def _lost(self, error: BaseException) -> None:
        self.failed += 1
        if self.failed == 1:
            log.warning("traces are lost", group=self._group, topic=self._settings.topic, reason=str(error))
        else:
            log.debug("traces are lost", group=self._group, reason=str(error))
