"""Traces of messages: what clients write to the trace topic about sends, deliveries, ends and recalls.

Source: `TraceDataEncoder`, `TraceView`. The body of a trace message is text: records that end with U+0002, of
fields with U+0001 between them. Fields that are missing are the word `null`, because Java's reader fails over
a record that ends with an empty one, and shows nothing then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

FIELD: Final = "\x01"
RECORD: Final = "\x02"
MISSING: Final = "null"

_SPLITTERS: Final = str.maketrans({FIELD: " ", RECORD: " "})


class TraceMessageType(IntEnum):
    """Kind of a sent message (ordinals of `org.apache.rocketmq.common.message.MessageType`)."""

    NORMAL = 0
    TRANSACTION_HALF = 1
    TRANSACTION_COMMIT = 2
    DELAY = 3
    ORDER = 4


class ConsumeOutcome(IntEnum):
    """How a listener ended (ordinals of `ConsumeReturnType`)."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURNED_NOTHING = 3
    FAILED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SendTrace:
    """A message was sent (`Pub`)."""

    time_ms: int
    """When the send began, in milliseconds of the client's clock; so are the other times here."""
    region: str
    group: str
    topic: str
    message_id: str
    tags: str = ""
    keys: str = ""
    """Business keys, with spaces between them."""
    store_host: str = ""
    """`host:port` of the broker."""
    body_length: int = 0
    cost_ms: int = 0
    message_type: TraceMessageType = TraceMessageType.NORMAL
    offset_message_id: str = ""
    success: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryTrace:
    """A listener is about to get a message (`SubBefore`)."""

    time_ms: int
    region: str
    group: str
    request_id: str
    """Of the call of the listener; the same in its `ConsumeTrace`."""
    message_id: str
    retry_times: int = 0
    keys: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeTrace:
    """A listener has ended (`SubAfter`)."""

    request_id: str
    message_id: str
    cost_ms: int = 0
    """Of one message: the time of the call by the number of its messages."""
    success: bool = True
    keys: str = ""
    outcome: int = ConsumeOutcome.SUCCESS
    time_ms: int | None = None
    """None, like the group, from clients of the cloud and of old releases."""
    group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTrace:
    """A transaction was ended by its producer (`EndTransaction`)."""

    time_ms: int
    region: str
    group: str
    topic: str
    message_id: str
    tags: str = ""
    keys: str = ""
    store_host: str = ""
    message_type: TraceMessageType = TraceMessageType.TRANSACTION_COMMIT
    transaction_id: str = ""
    state: str = "UNKNOW"
    """`COMMIT_MESSAGE`, `ROLLBACK_MESSAGE`, or Java's `UNKNOW`."""
    from_check: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallTrace:
    """A timer message was taken back (`Recall`)."""

    time_ms: int
    region: str
    group: str
    topic: str
    message_id: str
    success: bool = True
    keys: str = ""
    """Always empty: a recall knows no keys."""


Trace = SendTrace | DeliveryTrace | ConsumeTrace | EndTrace | RecallTrace


def encode_trace(trace: Trace) -> str:
    """One record with its end, as Java's clients write it."""
    match trace:
        case SendTrace():
            fields: Sequence[str | int | bool | None] = (
                "Pub", trace.time_ms, trace.region, trace.group, trace.topic, trace.message_id, trace.tags,
                trace.keys, trace.store_host, trace.body_length, trace.cost_ms, int(trace.message_type),
                trace.offset_message_id, trace.success,
            )  # fmt: skip
        case DeliveryTrace():
            fields = (
                "SubBefore", trace.time_ms, trace.region, trace.group, trace.request_id, trace.message_id,
                trace.retry_times, trace.keys,
            )  # fmt: skip
        case ConsumeTrace():
            fields = (
                "SubAfter", trace.request_id, trace.message_id, trace.cost_ms, trace.success, trace.keys,
                int(trace.outcome),
            )  # fmt: skip
            if trace.time_ms is not None:
                fields = (*fields, trace.time_ms, trace.group)
        case EndTrace():
            fields = (
                "EndTransaction", trace.time_ms, trace.region, trace.group, trace.topic, trace.message_id,
                trace.tags, trace.keys, trace.store_host, int(trace.message_type), trace.transaction_id,
                trace.state, trace.from_check,
            )  # fmt: skip
        case RecallTrace():
            fields = (
                "Recall", trace.time_ms, trace.region, trace.group, trace.topic, trace.message_id,
                trace.success,
            )  # fmt: skip
    return FIELD.join(map(_text, fields)) + RECORD


def decode_traces(text: str) -> tuple[list[Trace], int]:
    """The records of a trace message, and how many there were that nobody can read.

    Takes what Java's reader takes: fields that older or newer clients add at the end are passed over.
    """
    found: list[Trace] = []
    unreadable = 0
    for line in text.split(RECORD):
        if not line:
            continue
        fields = line.split(FIELD)
        read = _READERS.get(fields[0])
        try:
            if read is None:
                raise ValueError(f"unknown kind {fields[0]!r}")
            found.append(read(iter(fields[1:]), len(fields)))
        except (ValueError, StopIteration):
            unreadable += 1
    return found, unreadable


def index_keys(trace: Trace) -> tuple[str, ...]:
    """The keys under which the record shall be found: the message's id, and its business keys."""
    return (*trace.message_id.split(), *trace.keys.split())


def _text(value: str | int | bool | None) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    return value.translate(_SPLITTERS) if value else MISSING


def _value(text: str) -> str:
    return "" if text == MISSING else text


def _read_send(fields: Iterator[str], count: int) -> Trace:
    time_ms, region, group = int(next(fields)), _value(next(fields)), _value(next(fields))
    topic, message_id = _value(next(fields)), _value(next(fields))
    tags, keys, store_host = _value(next(fields)), _value(next(fields)), _value(next(fields))
    body_length, cost_ms = int(next(fields)), int(next(fields))
    message_type = TraceMessageType(int(next(fields)))
    # Clients before 4.4 did not write the broker's id.
    offset_message_id = _value(next(fields)) if count >= 14 else ""
    return SendTrace(
        time_ms=time_ms,
        region=region,
        group=group,
        topic=topic,
        message_id=message_id,
        tags=tags,
        keys=keys,
        store_host=store_host,
        body_length=body_length,
        cost_ms=cost_ms,
        message_type=message_type,
        offset_message_id=offset_message_id,
        success=next(fields) == "true",
    )


def _read_delivery(fields: Iterator[str], count: int) -> Trace:
    return DeliveryTrace(
        time_ms=int(next(fields)),
        region=_value(next(fields)),
        group=_value(next(fields)),
        request_id=_value(next(fields)),
        message_id=_value(next(fields)),
        retry_times=int(next(fields)),
        keys=_value(next(fields, "")),
    )


def _read_consume(fields: Iterator[str], count: int) -> Trace:
    request_id, message_id, cost_ms = _value(next(fields)), _value(next(fields)), int(next(fields))
    success, keys = next(fields) == "true", _value(next(fields, ""))
    outcome = int(next(fields, "0"))
    time_text = next(fields, "")  # the cloud's clients leave it empty
    return ConsumeTrace(
        request_id=request_id,
        message_id=message_id,
        cost_ms=cost_ms,
        success=success,
        keys=keys,
        outcome=outcome,
        time_ms=int(time_text) if time_text else None,
        group=_value(next(fields)) if count >= 9 else None,
    )


def _read_end(fields: Iterator[str], count: int) -> Trace:
    return EndTrace(
        time_ms=int(next(fields)),
        region=_value(next(fields)),
        group=_value(next(fields)),
        topic=_value(next(fields)),
        message_id=_value(next(fields)),
        tags=_value(next(fields)),
        keys=_value(next(fields)),
        store_host=_value(next(fields)),
        message_type=TraceMessageType(int(next(fields))),
        transaction_id=_value(next(fields)),
        state=_value(next(fields)),
        from_check=next(fields) == "true",
    )


def _read_recall(fields: Iterator[str], count: int) -> Trace:
    return RecallTrace(
        time_ms=int(next(fields)),
        region=_value(next(fields)),
        group=_value(next(fields)),
        topic=_value(next(fields)),
        message_id=_value(next(fields)),
        success=next(fields) == "true",
    )


_READERS: Final = {
    "Pub": _read_send,
    "SubBefore": _read_delivery,
    "SubAfter": _read_consume,
    "EndTransaction": _read_end,
    "Recall": _read_recall,
}
