"""How sends are refused: codes and remarks of Java."""

from __future__ import annotations

from typing import Final

from brokerset_broker.requests.admission import PERM_INHERIT, PERM_READ, PERM_WRITE
from brokerset_broker.store.errors import PutStatus, StoreRefused
from brokerset_formats.config import TopicConfig
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.errors import Rejected

CODES: Final = {
    PutStatus.PUT_OK: ResponseCode.SUCCESS,
    PutStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    PutStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    PutStatus.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
    PutStatus.SERVICE_NOT_AVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
    PutStatus.MESSAGE_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.PROPERTIES_SIZE_EXCEEDED: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.OS_PAGE_CACHE_BUSY: ResponseCode.SYSTEM_BUSY,
    PutStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED: ResponseCode.LMQ_QUOTA_EXCEEDED,
}
"""The code of an answer, by what became of the message."""

STORED: Final = frozenset(
    {
        PutStatus.PUT_OK,
        PutStatus.FLUSH_DISK_TIMEOUT,
        PutStatus.FLUSH_SLAVE_TIMEOUT,
        PutStatus.SLAVE_NOT_AVAILABLE,
    }
)
"""The message is stored, though it may not be as safe as was asked for; the answer names its place."""

_BUSY_REMARK: Final = "[PC_SYNCHRONIZED]broker busy, start flow control for a while"


def refusal(refused: StoreRefused, size_max: int) -> Rejected:
    """The answer to a message that the store did not take."""
    code = CODES.get(refused.status, ResponseCode.SYSTEM_ERROR)
    if code == ResponseCode.MESSAGE_ILLEGAL:
        return illegal_message(size_max)
    if code == ResponseCode.SYSTEM_BUSY:
        return Rejected(code, _BUSY_REMARK)
    return Rejected(code, f"{refused.status.value}: {refused.reason}")


def illegal_message(size_max: int) -> Rejected:
    """The answer to a message with too large a body or properties, in Java's words."""
    return Rejected(
        ResponseCode.MESSAGE_ILLEGAL,
        "the message is illegal, maybe msg body or properties length not matched. "
        f"msg body length limit {size_max}B, msg properties length limit 32KB.",
    )


def topic_text(config: TopicConfig) -> str:
    """A topic's configuration as Java's remarks show it."""
    letters = ((PERM_READ, "R"), (PERM_WRITE, "W"), (PERM_INHERIT, "X"))
    perm = "".join(letter if config.perm & bit else "-" for bit, letter in letters)
    attributes = ", ".join(f"{name}={value}" for name, value in config.attributes.items())
    return (
        f"TopicConfig [topicName={config.topic_name}, readQueueNums={config.read_queue_nums}, "
        f"writeQueueNums={config.write_queue_nums}, perm={perm}, topicFilterType={config.topic_filter_type}, "
        f"topicSysFlag={config.topic_sys_flag}, order={str(config.order).lower()}, "
        f"attributes={{{attributes}}}]"
    )


def no_topic(topic: str) -> Rejected:
    """The answer to a message for a topic that is not there and may not be made."""
    return Rejected(
        ResponseCode.TOPIC_NOT_EXIST,
        f"topic[{topic}] not exist, apply first please! "
        "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details.",
    )
