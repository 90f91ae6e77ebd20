"""Timer messages of a producer: when a message shall be delivered, and taking one back before that.

Sources: `Message.setDelayTimeMs`, `setDeliverTimeMs`; `DefaultMQProducerImpl.recallMessage`.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from datetime import datetime, timedelta

from brokerset_client.errors import (
    AnswerTimeout,
    BrokerUnreachable,
    ClientError,
    MessageInvalid,
    NoQueue,
    RequestRefused,
)
from brokerset_client.instance import ClientInstance
from brokerset_client.messages import Message
from brokerset_client.retry import PASSING_CODES, Backoff
from brokerset_formats.errors import FormatError
from brokerset_formats.recall_handles import RecallHandle, decode_recall_handle
from brokerset_protocol import headers
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.headers.send import SendResponseKey

Delay = timedelta | float
"""How long a message waits; a number means seconds."""

_TRY_AGAIN = PASSING_CODES | {ResponseCode.SLAVE_NOT_AVAILABLE}
"""Answers of a broker that does not lead now."""


def timed(message: Message, delay: Delay | None, deliver_at: datetime | None) -> Message:
    """`message` with its time of delivery; unchanged without one.

    The broker counts `delay` from when it gets the message. A `deliver_at` that is over means now; one
    without time zone is local time. Fractions of a millisecond are rounded up: nothing comes early. Raises
    `MessageInvalid` for a negative delay, and for a second one next to that of the message itself.
    """
    if delay is None and deliver_at is None:
        return message
    own = message.delay_level or message.delay_ms is not None or message.deliver_at_ms is not None
    if own or (delay is not None and deliver_at is not None):
        raise MessageInvalid("a message has one delay: give delay or deliver_at, or that of Message")
    if deliver_at is not None:
        return replace(message, deliver_at_ms=math.ceil(deliver_at.timestamp() * 1000))
    assert delay is not None
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
    if not 0 <= seconds < math.inf:
        raise MessageInvalid(f"delay {delay!r} is no time from now on: give seconds or a timedelta")
    return replace(message, delay_ms=math.ceil(round(seconds * 1000, 3)))


def read_handle(topic: str, text: str) -> RecallHandle:
    """What a recall handle names. Raises `MessageInvalid` if it is none, or one of another topic."""
    try:
        handle = decode_recall_handle(text)
    except FormatError as error:
        raise MessageInvalid(
            f"{error.reason}: take `SendResult.recall_handle` of the message as it is"
        ) from error
    if handle.topic != topic:
        raise MessageInvalid(f"the recall handle is of topic {handle.topic!r}, not {topic!r}")
    return handle


async def recall(
    instance: ClientInstance, group: str, topic: str, text: str, *, timeout: float, backoff: Backoff
) -> tuple[str, str | None]:
    """RECALL_MESSAGE (370) to the master of the broker that has the message; its id and the broker's region.

    A recall that was lost is repeated, also at a new master, until `timeout` seconds are over: twice is as
    good as once. Raises `MessageInvalid` for a bad handle, and what ended the last attempt.
    """
    handle = read_handle(topic, text)
    header = headers.RecallMessage(
        producer_group=group, topic=topic, recall_handle=text, broker_name=handle.broker_name
    )
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    failures = 0
    while True:
        instance.check_running()
        try:
            route = await instance.route_to_send(topic, fresh=failures > 0)
            address = route.master(handle.broker_name)
            if address is None:
                raise NoQueue(f"broker {handle.broker_name}, which has the message, has no master now")
            seconds = max(0.001, deadline - loop.time())
            answer = await instance.request(address, RequestCode.RECALL_MESSAGE, header, timeout=seconds)
        except ClientError as error:
            failures += 1
            delay = backoff.delay_ms(failures) / 1000
            if not _may_pass(error) or loop.time() + delay >= deadline:
                raise
            await asyncio.sleep(delay)
        else:
            made = headers.RecallMessageResponse.from_ext(answer.ext)
            return made.msg_id, answer.ext.get(SendResponseKey.REGION)


def _may_pass(error: ClientError) -> bool:
    if isinstance(error, RequestRefused):
        return error.code in _TRY_AGAIN
    return isinstance(error, AnswerTimeout | BrokerUnreachable | NoQueue)
