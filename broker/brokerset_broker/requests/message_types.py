"""What type a message has, and what priority, lite topic and light queues make of it before it is stored.

Source: `TopicMessageType`, `SendMessageProcessor`, `HookUtils.handleLmqQuota` and
`DefaultTopicMessageTypeValidator` of 5.5.0. Java's broker refuses no type; its proxies do, and so does this
broker with `refuseOtherMessageTypes`.
"""

from __future__ import annotations

import resource
from collections.abc import Mapping
from enum import Enum
from typing import Final

import structlog

from brokerset_broker.store.message_store import MessageStore
from brokerset_formats import light_queues
from brokerset_formats.config import TopicConfig
from brokerset_formats.properties import Property
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.errors import Rejected
from brokerset_spec.broker_settings import BrokerSettings

log = structlog.get_logger(__name__)

ATTRIBUTE: Final = "message.type"
"""Attribute of a topic with the type of its messages."""

EXPIRATION: Final = "lite.topic.expiration"
"""Attribute of a topic with the minutes after which a lite topic without messages goes."""

DESCRIPTORS_SHARE: Final = 2
"""One of so many file descriptors that the process may have is for a light queue."""

INT32_MAX: Final = 2**31 - 1

_TIMED: Final = (
    Property.DELAY,
    Property.TIMER_DELIVER_MS,
    Property.TIMER_DELAY_SEC,
    Property.TIMER_DELAY_MS,
)

_SWITCHES: Final = "set enableLmq=true and enableMultiDispatch=true on the broker"


class MessageType(Enum):
    """The type of a message, or of the messages of a topic."""

    UNSPECIFIED = "UNSPECIFIED"
    NORMAL = "NORMAL"
    FIFO = "FIFO"
    DELAY = "DELAY"
    TRANSACTION = "TRANSACTION"
    PRIORITY = "PRIORITY"
    LITE = "LITE"
    MIXED = "MIXED"


def type_of_message(properties: Mapping[str, str]) -> MessageType:
    """The type that a message has by its properties; the first that fits, in Java's order."""
    if properties.get(Property.TRAN_MSG, "").lower() == "true":
        return MessageType.TRANSACTION
    if any(name in properties for name in _TIMED):
        return MessageType.DELAY
    if Property.SHARDING_KEY in properties:
        return MessageType.FIFO
    if Property.PRIORITY in properties:
        return MessageType.PRIORITY
    if Property.LITE_TOPIC in properties:
        return MessageType.LITE
    return MessageType.NORMAL


def type_of_topic(config: TopicConfig) -> MessageType:
    """The type that a topic's messages have; NORMAL where nobody has said it, as for Java's proxies."""
    try:
        return MessageType(config.attributes.get(ATTRIBUTE, "NORMAL"))
    except ValueError:
        return MessageType.NORMAL


def check_type(config: TopicConfig, properties: Mapping[str, str]) -> None:
    """Raise `Rejected` for a message whose type is not that of its topic."""
    expected, actual = type_of_topic(config), type_of_message(properties)
    if expected not in (actual, MessageType.MIXED):
        raise Rejected(
            ResponseCode.MESSAGE_ILLEGAL,
            f"TopicMessageType validate failed, the expected type is {expected.value}, but actual type is "
            f"{actual.value}: send it to a topic with the attribute {ATTRIBUTE}={actual.value}",
        )


def apply_priority(properties: dict[str, str], write_queues: int, queue_id: int) -> int:
    """The queue of a message: its priority, if it has one, but at most the last queue.

    A message of another type loses its priority.
    """
    text = properties.get(Property.PRIORITY)
    if text is None:
        return queue_id
    priority = _int32(text)
    if priority < 0:
        return queue_id
    if type_of_message(properties) is not MessageType.PRIORITY:
        del properties[Property.PRIORITY]
        return queue_id
    return max(0, min(priority, write_queues - 1))


def _int32(text: str) -> int:
    """`NumberUtils.toInt(text, -1)`."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 32):
        return -1
    number = int(text)
    return number if -INT32_MAX - 1 <= number <= INT32_MAX else -1


class LightQueues:
    """Names the light queues of a message, and refuses those that cannot be."""

    def __init__(self, store: MessageStore, settings: BrokerSettings) -> None:
        self._store = store
        self.use(settings)

    def use(self, settings: BrokerSettings) -> None:
        """Go by these settings from now on."""
        self._serves = settings.serves_light_queues
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        wanted = settings.max_lmq_consume_queue_num
        self._queues_max = self._store.light_queues_max = min(wanted, descriptors // DESCRIPTORS_SHARE)
        if self._serves and self._queues_max < wanted:
            log.warning(
                "fewer light queues than maxLmqConsumeQueueNum says: each has a file descriptor",
                light_queues_max=self._queues_max,
                descriptors=descriptors,
            )

    def assign(self, config: TopicConfig, properties: dict[str, str]) -> None:
        """Put the queue of a lite topic among the properties, and check the queues that are there.

        Raises `Rejected` for a message that would be stored, but not be where its sender wants it.
        """
        child = properties.get(Property.LITE_TOPIC)
        value = properties.get(Property.INNER_MULTI_DISPATCH)
        properties.pop(Property.INNER_MULTI_QUEUE_OFFSET, None)
        if child is None and value is None:
            return
        topic = config.topic_name
        if child is not None:
            self._check_lite(config, child)
            value = light_queues.lite_queue(topic, child)
            properties[Property.INNER_MULTI_DISPATCH] = value
        assert value is not None, "one of the two is there"
        if not self._serves:
            raise _illegal(
                f"light queues (property {Property.INNER_MULTI_DISPATCH}) are not served by this broker: "
                f"{_SWITCHES}, or send one message to each topic"
            )
        if not light_queues.takes_light_queues(topic):
            raise _illegal(f"messages of the topic {topic} are put into no light queues")
        problem = light_queues.check_dispatch(value)
        if problem is None and child is None and light_queues.LITE_PREFIX in value:
            problem = f"a lite topic is named by the property {Property.LITE_TOPIC}"
        if problem is not None:
            raise _illegal(f"property {Property.INNER_MULTI_DISPATCH}: {problem}")
        self.check_room([name for name in value.split(",") if name])

    def check_room(self, queues: list[str]) -> None:
        """Raise `Rejected` if some of these are new, and there would be too many light queues."""
        if self._store.light_queues_with(queues) > self._queues_max:
            raise Rejected(
                ResponseCode.LMQ_QUOTA_EXCEEDED,
                "[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]lmq consume queue num exceeded.",
            )

    def _check_lite(self, config: TopicConfig, child: str) -> None:
        if not self._serves:
            raise _illegal(
                f"lite topics (property {Property.LITE_TOPIC}) are not served by this broker: {_SWITCHES}, "
                "or send to a topic of its own, or set a tag"
            )
        if type_of_topic(config) is not MessageType.LITE:
            raise _illegal(
                f"the topic {config.topic_name} has no lite topics (property {Property.LITE_TOPIC}): give it "
                f"the attribute {ATTRIBUTE}=LITE"
            )
        problem = light_queues.check_child(child)
        if problem is not None:
            raise _illegal(problem)


def _illegal(remark: str) -> Rejected:
    return Rejected(ResponseCode.MESSAGE_ILLEGAL, remark)
