"""Message properties: `name 0x01 value 0x02`, repeated; and the names that RocketMQ reserves."""

from __future__ import annotations

from collections.abc import Mapping

from brokerset_formats.errors import FormatError

NAME_END = "\x01"
VALUE_END = "\x02"

PROPERTIES_SIZE_MAX = 32_767
"""Bytes of all properties of a message: their length is an i16."""


class Property:
    """Names of the properties with a meaning to the system (`MessageConst`)."""

    KEYS = "KEYS"
    TAGS = "TAGS"
    WAIT = "WAIT"
    DELAY = "DELAY"
    RETRY_TOPIC = "RETRY_TOPIC"
    REAL_TOPIC = "REAL_TOPIC"
    REAL_QID = "REAL_QID"
    TRAN_MSG = "TRAN_MSG"
    PGROUP = "PGROUP"
    MIN_OFFSET = "MIN_OFFSET"
    MAX_OFFSET = "MAX_OFFSET"
    BUYER_ID = "BUYER_ID"
    ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
    TRANSFER_FLAG = "TRANSFER_FLAG"
    CORRECTION_FLAG = "CORRECTION_FLAG"
    MQ2_FLAG = "MQ2_FLAG"
    RECONSUME_TIME = "RECONSUME_TIME"
    MSG_REGION = "MSG_REGION"
    TRACE_ON = "TRACE_ON"
    UNIQ_KEY = "UNIQ_KEY"
    EXTEND_UNIQ_INFO = "EXTEND_UNIQ_INFO"
    MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
    CONSUME_START_TIME = "CONSUME_START_TIME"
    INNER_NUM = "INNER_NUM"
    INNER_BASE = "INNER_BASE"
    DUP_INFO = "DUP_INFO"
    CHECK_IMMUNITY_TIME_IN_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
    TRAN_PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
    TRANSACTION_ID = "__transactionId__"
    TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
    INSTANCE_ID = "INSTANCE_ID"
    CORRELATION_ID = "CORRELATION_ID"
    REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
    TTL = "TTL"
    ARRIVE_TIME = "ARRIVE_TIME"
    PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
    CLUSTER = "CLUSTER"
    MSG_TYPE = "MSG_TYPE"
    POP_CK = "POP_CK"
    POP_CK_OFFSET = "POP_CK_OFFSET"
    FIRST_POP_TIME = "1ST_POP_TIME"
    ORIGIN_GROUP = "ORIGIN_GROUP"
    SHARDING_KEY = "__SHARDINGKEY"
    FORWARD_QUEUE_ID = "PROPERTY_FORWARD_QUEUE_ID"
    REDIRECT = "REDIRECT"
    INNER_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
    LITE_TOPIC = "__LITE_TOPIC"
    PRIORITY = "_SYS_MSG_PRIORITY_"
    INNER_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
    TRACE_CONTEXT = "TRACE_CONTEXT"
    TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
    TIMER_DELAY_MS = "TIMER_DELAY_MS"
    TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
    TIMER_OUT_MS = "TIMER_OUT_MS"
    TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
    TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
    TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
    TIMER_DEL_UNIQKEY = "TIMER_DEL_UNIQKEY"
    TIMER_DELAY_LEVEL = "TIMER_DELAY_LEVEL"
    BORN_HOST = "__BORNHOST"
    BORN_TIMESTAMP = "BORN_TIMESTAMP"
    CRC32 = "__CRC32#"
    DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
    DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"
    ORDER_STAMP = "ORDER_STAMP"
    """Not RocketMQ's: of messages of ordered subjects (`order_stamps`)."""
    TRANSIENT_PREFIX = "__RMQ.TRANSIENT."


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """The bytes of a record or request, in the mapping's order.

    Empty values are left out, because no reader takes them. FormatError for an empty name, or a name or value
    that holds one of the two separators.
    """
    parts = []
    for name, value in properties.items():
        if not value:
            continue
        text = f"{name}\x01{value}\x02"
        if not name or text.count(NAME_END) != 1 or text.count(VALUE_END) != 1:
            raise FormatError(f"property {name!r} cannot be written: empty name or separator inside")
        parts.append(text)
    return "".join(parts).encode("utf-8", "replace")


def decode_properties(raw: bytes) -> dict[str, str]:
    """All properties; of a repeated name the last value. Incomplete pairs are skipped, as Java does."""
    found: dict[str, str] = {}
    for pair in raw.decode("utf-8", "replace").split(VALUE_END):
        name, _, value = pair.partition(NAME_END)
        if name and value:
            found[name] = value
    return found


def find_property(raw: bytes, name: bytes) -> bytes | None:
    """The value of one property without decoding the others; the same answer as `decode_properties` gives."""
    needle = name + b"\x01"
    start = raw.rfind(needle)
    while start >= 0:
        if start == 0 or raw[start - 1] == 2:
            value_start = start + len(needle)
            value_end = raw.find(b"\x02", value_start)
            value = raw[value_start:] if value_end < 0 else raw[value_start:value_end]
            if value:
                return value
        start = raw.rfind(needle, 0, start)
    return None
