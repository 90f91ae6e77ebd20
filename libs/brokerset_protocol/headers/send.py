"""Headers around sending: single, batch and reply messages, send-back, transactions, recall."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from typing import Final

from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_protocol.headers.codec import Header, Int, Long, camel_case, wire


class SendKey:
    """The letters of SEND_MESSAGE_V2, for handlers that read `Command.ext` themselves."""

    PRODUCER_GROUP: Final = "a"
    TOPIC: Final = "b"
    DEFAULT_TOPIC: Final = "c"
    DEFAULT_TOPIC_QUEUE_NUMS: Final = "d"
    QUEUE_ID: Final = "e"
    SYS_FLAG: Final = "f"
    BORN_TIMESTAMP: Final = "g"
    FLAG: Final = "h"
    PROPERTIES: Final = "i"
    RECONSUME_TIMES: Final = "j"
    UNIT_MODE: Final = "k"
    MAX_RECONSUME_TIMES: Final = "l"
    BATCH: Final = "m"
    BROKER_NAME: Final = "n"


class SendResponseKey:
    """Wire names of a send's response, for handlers that write `Command.ext` themselves."""

    MSG_ID: Final = "msgId"
    QUEUE_ID: Final = "queueId"
    QUEUE_OFFSET: Final = "queueOffset"
    TRANSACTION_ID: Final = "transactionId"
    BATCH_UNIQ_ID: Final = "batchUniqId"
    RECALL_HANDLE: Final = "recallHandle"
    REGION: Final = "MSG_REGION"
    TRACE_ON: Final = "TRACE_ON"


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMessage(Header):
    """SEND_MESSAGE (10), SEND_REPLY_MESSAGE (324): long names."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int
    queue_id: Int
    sys_flag: Int
    born_timestamp: Long
    flag: Int
    properties: str | None = None
    reconsume_times: Int | None = None
    unit_mode: bool | None = None
    batch: bool | None = None
    max_reconsume_times: Int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMessageV2(Header):
    """SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320), SEND_REPLY_MESSAGE_V2 (325): single letters."""

    producer_group: str = field(metadata=wire(SendKey.PRODUCER_GROUP))
    topic: str = field(metadata=wire(SendKey.TOPIC))
    default_topic: str = field(metadata=wire(SendKey.DEFAULT_TOPIC))
    default_topic_queue_nums: Int = field(metadata=wire(SendKey.DEFAULT_TOPIC_QUEUE_NUMS))
    queue_id: Int = field(metadata=wire(SendKey.QUEUE_ID))
    sys_flag: Int = field(metadata=wire(SendKey.SYS_FLAG))
    born_timestamp: Long = field(metadata=wire(SendKey.BORN_TIMESTAMP))
    flag: Int = field(metadata=wire(SendKey.FLAG))
    properties: str | None = field(default=None, metadata=wire(SendKey.PROPERTIES))
    reconsume_times: Int | None = field(default=None, metadata=wire(SendKey.RECONSUME_TIMES))
    unit_mode: bool | None = field(default=None, metadata=wire(SendKey.UNIT_MODE))
    max_reconsume_times: Int | None = field(default=None, metadata=wire(SendKey.MAX_RECONSUME_TIMES))
    batch: bool | None = field(default=None, metadata=wire(SendKey.BATCH))
    broker_name: str | None = field(default=None, metadata=wire(SendKey.BROKER_NAME))


LETTER_BY_LONG_NAME: Final[Mapping[str, str]] = {
    "bname" if each.name == "broker_name" else camel_case(each.name): each.metadata["wire"]
    for each in fields(SendMessageV2)
}
"""How the long names of SEND_MESSAGE translate to the letters of SEND_MESSAGE_V2."""


def to_letters(ext: Mapping[str, str]) -> dict[str, str]:
    """The fields of a SEND_MESSAGE under the letters of SEND_MESSAGE_V2, so that one handler serves both.

    The C++ client writes its flags as `0` and `1`; they come out as `false` and `true`.
    """
    letters = {LETTER_BY_LONG_NAME[name]: value for name, value in ext.items() if name in LETTER_BY_LONG_NAME}
    for flag in (SendKey.UNIT_MODE, SendKey.BATCH):
        if letters.get(flag) == "1":
            letters[flag] = "true"
    return letters


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMessageResponse(Header):
    """Answer to every send with code 0, 10, 11 or 12; ids of a batch are joined by commas."""

    msg_id: str
    queue_id: Int
    queue_offset: Long
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None
    region: str | None = field(default=None, metadata=wire(SendResponseKey.REGION))
    trace_on: bool | None = field(default=None, metadata=wire(SendResponseKey.TRACE_ON))


@dataclass(frozen=True, slots=True, kw_only=True)
class PushReplyMessageToClient(Header):
    """PUSH_REPLY_MESSAGE_TO_CLIENT (326), broker to the client that sent a request; the reply is the body.

    The hosts are `ip:port`: whoever sent the reply, and the broker that passes it on.
    """

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int
    queue_id: Int
    sys_flag: Int
    born_timestamp: Long
    flag: Int
    properties: str | None = None
    reconsume_times: Int | None = None
    unit_mode: bool | None = None
    born_host: str
    store_host: str
    store_timestamp: Long


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSendMsgBack(Header):
    """CONSUMER_SEND_MSG_BACK (36): `offset` is the message's address in the commit log."""

    offset: Long
    group: str
    delay_level: Int
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransaction(Header):
    """END_TRANSACTION (37): `commit_or_rollback` is 8, 12 or 0 for unknown; `msg_id` is the UNIQ_KEY."""

    topic: str | None = None
    producer_group: str
    tran_state_table_offset: Long
    commit_log_offset: Long
    commit_or_rollback: Int
    from_transaction_check: bool = False
    msg_id: str
    transaction_id: str | None = None
    broker_name: str | None = field(default=None, metadata=wire("bname"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckTransactionState(Header):
    """CHECK_TRANSACTION_STATE (39), broker to producer, one-way."""

    topic: str | None = None
    tran_state_table_offset: Long
    commit_log_offset: Long
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    broker_name: str | None = field(default=None, metadata=wire("bname"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeCheckHalfMessage(Header):
    """RESUME_CHECK_HALF_MESSAGE (323): check a half message again that was given up.

    `msg_id` is the offsetMsgId of its record in TRANS_CHECK_MAX_TIME_TOPIC or in the half topic.
    """

    topic: str | None = None
    msg_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallMessage(Header):
    """RECALL_MESSAGE (370): take back a delayed message."""

    producer_group: str | None = None
    topic: str
    recall_handle: str
    broker_name: str | None = field(default=None, metadata=wire("bname"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallMessageResponse(Header):
    """Answer to RECALL_MESSAGE."""

    msg_id: str
