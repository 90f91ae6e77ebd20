"""From messages to requests: checks, properties, compression, and the header of a send.

Source: `DefaultMQProducerImpl.sendKernelImpl`, `MessageBatch`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from brokerset_client.compression import compress
from brokerset_client.errors import MessageInvalid
from brokerset_client.messages import Message, SendResult
from brokerset_client.routes import AUTO_CREATE_QUEUES, AUTO_CREATE_TOPIC
from brokerset_client.tracing import TracedSend
from brokerset_formats import names
from brokerset_formats.batches import BatchItem, encode_batch
from brokerset_formats.errors import FormatError
from brokerset_formats.message_ids import UniqueIds
from brokerset_formats.properties import Property, encode_properties
from brokerset_protocol.bodies.queues import MessageQueue
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_protocol.headers.send import SendKey
from brokerset_runtime.remoting import Connection

BATCH_ITEM_OVERHEAD = 26
"""Bytes that a message of a batch takes besides body and properties, with some room."""

REPLY_TYPE = "reply"
"""Property `MSG_TYPE` of replies: they are sent as SEND_REPLY_MESSAGE_V2."""

QueueChooser = Callable[[Sequence[MessageQueue]], MessageQueue]
"""Picks one of the queues that a message can be sent to."""


class Sending:
    """One message (or batch) on its way: what to send, whereto, what was tried, and who waits for it."""

    __slots__ = (
        "asked_at",
        "attempts",
        "begun_ms",
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
        "traced",
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
        self.asked_at = 0.0
        self.traced: tuple[TracedSend, ...] = ()
        """The messages, where traces are wanted; `begun_ms` is set with it."""
        self.begun_ms = 0


def prepare(
    message: Message, ids: UniqueIds, now_ms: int, *, body_size_max: int, compress_from_bytes: int
) -> Sending:
    """One message, ready for its first attempt. Raises `MessageInvalid`."""
    problem = message.problem(body_size_max)
    if problem is not None:
        raise MessageInvalid(problem)
    properties = message.to_properties(ids.next_id(now_ms))
    body, sys_flag = compress(message.body, compress_from_bytes)
    # These two travel in the header, as a client that resends a consumed message wants it.
    reconsume_times = properties.pop(Property.RECONSUME_TIME, None)
    max_reconsume_times = properties.pop(Property.MAX_RECONSUME_TIMES, None)
    # A reply that a consumer gives back goes to a retry topic, and is no reply there.
    is_reply = properties.get(Property.MSG_TYPE) == REPLY_TYPE and not names.is_retry_topic(message.topic)
    if is_reply and message.wait_stored:
        del properties[Property.WAIT]  # Java's clients do not send it with a reply
    sending = Sending(
        message.topic,
        RequestCode.SEND_REPLY_MESSAGE_V2 if is_reply else RequestCode.SEND_MESSAGE_V2,
        body,
        _encoded(properties).decode(),
        properties[Property.UNIQ_KEY],
        message.flag,
    )
    sending.sys_flag = sys_flag
    sending.reconsume_times = reconsume_times
    sending.max_reconsume_times = max_reconsume_times
    return sending


def prepare_batch(messages: Sequence[Message], ids: UniqueIds, now_ms: int, *, body_size_max: int) -> Sending:
    """Several messages as one request. Raises `MessageInvalid` if they do not belong together."""
    if not messages:
        raise MessageInvalid("the batch is empty")
    topic = messages[0].topic
    wait_stored = messages[0].wait_stored
    items: list[BatchItem] = []
    unique_ids = []
    size = 0
    for message in messages:
        problem = message.problem(body_size_max)
        if message.topic != topic or message.wait_stored != wait_stored:
            problem = "messages of a batch have one topic and one wait_stored"
        elif message.delay_level or message.delay_ms is not None or message.deliver_at_ms is not None:
            problem = "a batch cannot be delayed: send its messages one by one"
        elif names.is_retry_topic(topic):
            problem = "a batch cannot go to a retry topic"
        if problem is not None:
            raise MessageInvalid(problem)
        properties = message.to_properties(ids.next_id(now_ms))
        unique_ids.append(properties[Property.UNIQ_KEY])
        items.append(BatchItem(message.flag, message.body, _encoded(properties)))
        size += BATCH_ITEM_OVERHEAD + len(message.body) + len(items[-1].properties)
        if size > body_size_max:
            raise MessageInvalid(
                f"batch exceeds {body_size_max} bytes with message {len(items)} of {len(messages)}: split it"
            )
    own = {Property.UNIQ_KEY: ids.next_id(now_ms), Property.WAIT: "true" if wait_stored else "false"}
    return Sending(
        topic,
        RequestCode.SEND_BATCH_MESSAGE,
        encode_batch(items),
        encode_properties(own).decode(),
        ",".join(unique_ids),
    )


def request_of(sending: Sending, group: str, queue: MessageQueue, now_ms: int) -> Command:
    """The request that sends it to `queue`.

    It holds the letters of SEND_MESSAGE_V2 as `headers.SendMessageV2` writes them, without making one for
    each message.
    """
    ext = {
        SendKey.PRODUCER_GROUP: group,
        SendKey.TOPIC: sending.topic,
        SendKey.DEFAULT_TOPIC: AUTO_CREATE_TOPIC,
        SendKey.DEFAULT_TOPIC_QUEUE_NUMS: str(AUTO_CREATE_QUEUES),
        SendKey.QUEUE_ID: str(queue.queue_id),
        SendKey.SYS_FLAG: str(sending.sys_flag),
        SendKey.BORN_TIMESTAMP: str(now_ms),
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


def _encoded(properties: dict[str, str]) -> bytes:
    try:
        return encode_properties(properties)
    except FormatError as error:
        raise MessageInvalid(str(error)) from error
