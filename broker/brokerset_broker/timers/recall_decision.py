"""Whether a producer may take back a message that waits, and how (Java: `RecallMessageProcessor`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from brokerset_broker.timers.messages import delete_key
from brokerset_broker.timers.settings import TimerSettings
from brokerset_formats.errors import FormatError
from brokerset_formats.properties import Property, encode_properties
from brokerset_formats.recall_handles import RECALL_TAG, RecallHandle, decode_recall_handle
from brokerset_protocol.codes import ResponseCode

RECALL_QUEUE_ID: Final = 0
"""A recall is stored as if for this queue of the topic; it never gets there."""


@dataclass(frozen=True, slots=True)
class RecallRefused:
    """The answer, in Java's words."""

    code: ResponseCode
    remark: str


@dataclass(frozen=True, slots=True)
class RecallAccepted:
    """The message that recalls is to be stored."""

    handle: RecallHandle


RecallDecision = RecallRefused | RecallAccepted


def decide_recall(
    topic: str,
    handle_text: str,
    *,
    enabled: bool,
    writable: bool,
    topic_exists: bool,
    broker_name: str,
    settings: TimerSettings,
    now_ms: int,
) -> RecallDecision:
    """What becomes of RECALL_MESSAGE, checked in Java's order.

    A handle is no secret: whoever knows topic, broker, time and id of a message can make one.
    """
    if not enabled:
        return RecallRefused(ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden")
    if not writable:
        return RecallRefused(
            ResponseCode.SERVICE_NOT_AVAILABLE, "recall failed, broker service not available"
        )
    if not topic_exists:
        return RecallRefused(ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{topic}] not exist")
    illegal = ResponseCode.ILLEGAL_OPERATION
    try:
        handle = decode_recall_handle(handle_text)
    except FormatError as error:
        return RecallRefused(illegal, error.reason)
    if handle.topic != topic:
        return RecallRefused(illegal, "recall failed, topic not match")
    if handle.broker_name != broker_name:
        return RecallRefused(illegal, "recall failed, broker service not available")
    left_ms = handle.timestamp_ms - now_ms
    if left_ms <= 0 or left_ms >= settings.max_delay_ms:
        return RecallRefused(illegal, "recall failed, timestamp invalid")
    return RecallAccepted(handle)


def recall_properties(
    handle: RecallHandle, producer_group: str | None, *, settings: TimerSettings, now_ms: int
) -> dict[str, str]:
    """Properties of the message that recalls; FormatError if the handle's id cannot be one."""
    properties = {
        Property.TIMER_DEL_UNIQKEY: delete_key(
            handle.topic, handle.message_id, with_topic=settings.topic_in_delete_key
        ),
        Property.UNIQ_KEY: handle.message_id,
        Property.TIMER_DELIVER_MS: str(handle.timestamp_ms),
        Property.BORN_TIMESTAMP: str(now_ms),
        Property.TRACE_CONTEXT: "",
        Property.TAGS: RECALL_TAG,
    }
    if producer_group is not None:
        properties[Property.PGROUP] = producer_group
    encode_properties(properties)
    return {str(name): value for name, value in properties.items()}
