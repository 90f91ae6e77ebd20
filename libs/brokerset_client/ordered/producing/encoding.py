"""Messages of ordered subjects as requests: properties once, order stamps in each batch."""

from __future__ import annotations

from brokerset_client.compression import compress
from brokerset_client.errors import MessageInvalid
from brokerset_client.messages import Message
from brokerset_client.ordered.producing.outgoing import Attempt, Batch, Outgoing
from brokerset_client.ordered.producing.settings import ProducerSettings
from brokerset_formats import names
from brokerset_formats.batches import BatchItem, encode_batch
from brokerset_formats.errors import FormatError
from brokerset_formats.order_keys import logical_partition
from brokerset_formats.order_stamps import OrderStamp
from brokerset_formats.properties import NAME_END, PROPERTIES_SIZE_MAX, VALUE_END, Property, encode_properties
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_protocol.headers.send import SendMessageV2

STAMP_BYTES_MAX = len(Property.ORDER_STAMP) + 2 + 64 + 4 * 19 + 4
"""What an order stamp can take in the properties."""

BROKER_PROPERTIES_MAX = 512
"""What a broker may add to the properties: its region, whether traces are on."""

MESSAGE_OVERHEAD = 256
"""Bytes that a message counts in budgets besides body and properties: its stamp, its objects."""

AUTO_CREATE_TOPIC = "TBW102"
"""Mandatory in the header of sends; the topics of subjects exist, so nothing is created from it."""


def prepare(
    message: Message,
    key: str | None,
    *,
    number: int,
    logical: int | None,
    message_id: str,
    now: float,
    settings: ProducerSettings,
) -> Outgoing:
    """A message that can be sent, or `MessageInvalid` at once, so that a bad one harms no other.

    `logical` is drawn by the caller for a message without a key, and None for one with.
    """
    problem = _problem(message, settings.body_size_max)
    if problem is not None:
        raise MessageInvalid(problem)
    properties = message.to_properties(message_id)
    properties.pop(Property.SHARDING_KEY, None)
    if key is not None:
        # The empty key cannot be written, as no property can be empty: the stamp has its logical partition.
        properties[Property.SHARDING_KEY] = key
        logical = logical_partition(key)
    assert logical is not None
    try:
        encoded = encode_properties(properties)
    except FormatError as error:
        raise MessageInvalid(str(error)) from error
    allowed = PROPERTIES_SIZE_MAX - STAMP_BYTES_MAX - BROKER_PROPERTIES_MAX
    if len(encoded) > allowed:
        raise MessageInvalid(
            f"properties have {len(encoded)} bytes, at most {allowed} are allowed: put some into the body"
        )
    body, sys_flag = compress(message.body, settings.compress_from_bytes)
    return Outgoing(
        number=number,
        logical=logical,
        keyed=key is not None,
        message_id=properties[Property.UNIQ_KEY],
        body=body,
        properties=encoded,
        flag=message.flag,
        sys_flag=sys_flag,
        size=len(body) + len(encoded) + MESSAGE_OVERHEAD,
        accepted_at=now,
    )


def request(attempt: Attempt, producer_id: str, now_ms: int) -> Command:
    """The request of an attempt: each attempt of a batch has the same body, properties and stamps."""
    batch = attempt.batch
    stamped = [
        message.properties + _stamp(attempt, producer_id, at).encode()
        for at, message in enumerate(batch.messages)
    ]
    alone = len(batch.messages) == 1
    first = batch.messages[0]
    if alone:
        code, body, properties = RequestCode.SEND_MESSAGE_V2, first.body, stamped[0].decode()
    else:
        items = [
            BatchItem(message.flag, message.body, raw)
            for message, raw in zip(batch.messages, stamped, strict=True)
        ]
        code, body = RequestCode.SEND_BATCH_MESSAGE, encode_batch(items)
        own = {Property.UNIQ_KEY: _batch_id(batch), Property.WAIT: "true"}
        properties = encode_properties(own).decode()
    header = SendMessageV2(
        producer_group=producer_id,
        topic=attempt.key.subject,
        default_topic=AUTO_CREATE_TOPIC,
        default_topic_queue_nums=1,
        queue_id=attempt.queue_id,
        sys_flag=first.sys_flag if alone else 0,
        born_timestamp=now_ms,
        flag=first.flag if alone else 0,
        properties=properties,
        reconsume_times=0,
        unit_mode=False,
        batch=not alone,
        broker_name=attempt.key.broker_group,
    )
    return Command(code, header.to_ext(), body)


def _stamp(attempt: Attempt, producer_id: str, at: int) -> str:
    batch = attempt.batch
    stamp = OrderStamp(
        attempt.key.partition_id,
        batch.messages[at].logical,
        producer_id,
        batch.epoch,
        batch.first_sequence + at,
    )
    return f"{Property.ORDER_STAMP}{NAME_END}{stamp.encode()}{VALUE_END}"


def _batch_id(batch: Batch) -> str:
    """RocketMQ wants an id for the batch as a whole; nobody reads it."""
    return batch.messages[0].message_id


def _problem(message: Message, body_size_max: int) -> str | None:
    wrong = message.problem(body_size_max)
    if wrong is not None:
        return wrong
    if not message.body:
        return "the body is empty, which brokers refuse: send at least a byte"
    if names.is_retry_topic(message.topic):
        return "a retry topic is no subject"
    if message.delay_level or message.delay_ms is not None or message.deliver_at_ms is not None:
        return "a message of an ordered subject cannot be delayed: the order would be another one"
    if not message.wait_stored:
        return "order needs confirmed messages: keep wait_stored"
    if Property.ORDER_STAMP in message.system_properties:
        return "the order stamp is made by the producer: take it out of system_properties"
    return None
