"""Records of transactions: half messages and their copies, final records of commits, op records.

Source: `TransactionalMessageBridge`, `TransactionalMessageServiceImpl`, `EndTransactionProcessor`,
`TransactionalMessageUtil` of Java 5.5. What is made here is to be appended (`Message`); the store gives it a
place and a time. Edited properties keep their order, and new ones go behind the others: no reader minds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from brokerset_formats.errors import FormatError
from brokerset_formats.hosts import Host
from brokerset_formats.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from brokerset_formats.properties import NAME_END, VALUE_END, Property, encode_properties, find_property
from brokerset_formats.records import Record, SysFlag, encode_record, magic_for, without_property_crc

HALF_QUEUE_ID: Final = 0
"""The only queue of the half topic, of the op topic and of the topic of messages that were given up."""

OP_TAG: Final = "d"
"""Tag of an op record (`TransactionalMessageUtil.REMOVE_TAG`); others mean nothing."""

OP_PROPERTIES: Final = encode_properties({Property.WAIT: "true", Property.TAGS: OP_TAG})

SUPERSEDED: Final = "BROKERSET_SUPERSEDED"
"""Property of an op record that names halves for which newer copies stand. Java, which knows each copy as a
transaction of its own, is not to check them; the transaction itself is still open."""

SUPERSEDING_PROPERTIES: Final = encode_properties(
    {Property.WAIT: "true", Property.TAGS: OP_TAG, SUPERSEDED: "true"}
)

SUPERSEDING_END: Final = b","
"""One comma more behind the offsets of such a record. Java passes over it. Brokers of ours that do not know
the property cannot read the body then, and take the record for none: else they would forget transactions."""

OP_BODY_SIZE_MAX: Final = 4096
"""Bytes of the body of one op record (`transactionOpMsgMaxSize` of Java)."""

_VALUE_END_BYTE: Final = ord(VALUE_END)

_is_offset = re.compile(rb"[0-9]{1,19}").fullmatch
_is_integer = re.compile(r"-?[0-9]{1,19}").fullmatch

INT64_MAX: Final = 0x7FFFFFFFFFFFFFFF
QUEUE_ID_MAX: Final = 0x7FFFFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What is to be appended to the log."""

    topic: str
    queue_id: int
    body: bytes
    properties: bytes
    """Raw, see `properties`."""
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int
    """Milliseconds since 1970, by the producer's clock."""
    born_host: Host
    store_host: Host | None = None
    """None: the broker that stores it."""
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0


# -- half messages ----------------------------------------------------------------------------------------


def is_half_send(properties: Mapping[str, str], reconsume_times: int) -> bool:
    """Whether a sent message is the half message of a transaction (`SendMessageProcessor` of Java).

    One that a consumer sends back for a later retry has the property, too, and is none.
    """
    if properties.get(Property.TRAN_MSG, "").lower() != "true":
        return False
    return not (reconsume_times > 0 and _integer(properties.get(Property.DELAY), 0) > 0)


_DELAYS: Final = (
    Property.DELAY,
    Property.TIMER_DELAY_SEC,
    Property.TIMER_DELAY_MS,
    Property.TIMER_DELIVER_MS,
)


def half_problem(properties: Mapping[str, str]) -> str | None:
    """Why a half message must not be stored (code 13), or None.

    Java stores one with a delay, and loses it: the schedule topic does not deliver into the half topic.
    """
    for name in _DELAYS:
        if name in properties:
            return f"a transactional message cannot be delayed (property {name})"
    return None


def to_half(message: Message) -> Message:
    """The half record of a message for `message.topic` (`parseHalfMessageInner`).

    What checks write is removed, which Java does not do: an application that passes on the properties of a
    committed message would have its half taken for a copy of another one. FormatError if the message has no
    UNIQ_KEY: brokers give one to messages without.
    """
    unique = find_property(message.properties, Property.UNIQ_KEY.encode())
    if unique is None:
        raise FormatError("a transactional message without the property UNIQ_KEY")
    changes = {
        Property.TRAN_PREPARED_QUEUE_OFFSET: None,
        Property.TRANSACTION_CHECK_TIMES: None,
        Property.TRANSACTION_ID: unique.decode("utf-8", "replace"),
        Property.REAL_TOPIC: message.topic,
        Property.REAL_QID: str(message.queue_id),
    }
    return replace(
        message,
        topic=HALF_TOPIC,
        queue_id=HALF_QUEUE_ID,
        properties=_edit(message.properties, changes),
        sys_flag=message.sys_flag & ~SysFlag.TRANSACTION_MASK,
        prepared_transaction_offset=0,
    )


def origin_of(half: Record) -> int:
    """Queue offset of the first copy of a half: all copies of one transaction have the same.

    It is the value of TRAN_PREPARED_QUEUE_OFFSET. Java gives it only to copies made while a half is immune:
    others of its copies are transactions of their own, as they are for Java.
    """
    value = _text(half, Property.TRAN_PREPARED_QUEUE_OFFSET)
    origin = _integer(value, -1)
    return origin if 0 <= origin < half.queue_offset else half.queue_offset


def check_times_of(half: Record) -> int:
    """How often the producer was asked about the transaction; 0 if the half does not say so."""
    return max(0, _integer(_text(half, Property.TRANSACTION_CHECK_TIMES), 0))


def immunity_ms_of(half: Record) -> int | None:
    """Milliseconds for which the producer wants no check; None if it says nothing that is a number."""
    seconds = _integer(_text(half, Property.CHECK_IMMUNITY_TIME_IN_SECONDS), -1)
    return None if seconds < 0 else seconds * 1000


def copy_of_half(half: Record, check_times: int) -> Message:
    """The copy that is appended to the half topic when a check leaves a half open (`renewHalfMessageInner`).

    Java's copies lose flag and reconsumeTimes, and know their origin only while immune; these do not.
    """
    changes = {Property.TRAN_PREPARED_QUEUE_OFFSET: str(origin_of(half))}
    if check_times:
        changes[Property.TRANSACTION_CHECK_TIMES] = str(check_times)
    return _again(half, HALF_TOPIC, HALF_QUEUE_ID, _edit(half.properties, changes))


def to_given_up(half: Record, topic: str = CHECK_MAX_TIME_TOPIC) -> Message:
    """A half without an answer, for the topic of those that are given up (`resolveDiscardMsg`)."""
    return _again(half, topic, HALF_QUEUE_ID, half.properties)


def to_resumed(record: Record) -> Message:
    """A half that is to be checked again from the first time on (RESUME_CHECK_HALF_MESSAGE).

    `record` is from the topic of those that were given up, or from the half topic; FormatError for others.
    One of the half topic stays the same transaction, so that it is not committed a second time.
    """
    changes = {Property.TRANSACTION_CHECK_TIMES: "0"}
    if record.topic == HALF_TOPIC:
        changes[Property.TRAN_PREPARED_QUEUE_OFFSET] = str(origin_of(record))
    elif record.topic != CHECK_MAX_TIME_TOPIC:
        raise FormatError(f"a record of topic {record.topic!r} is no half message")
    target_of(record)
    return _again(record, HALF_TOPIC, HALF_QUEUE_ID, _edit(record.properties, changes))


# -- ends -------------------------------------------------------------------------------------------------


def target_of(half: Record) -> tuple[str, int]:
    """Topic and queue id that a half is for; FormatError if it does not say so."""
    topic, queue_id = _text(half, Property.REAL_TOPIC), _text(half, Property.REAL_QID)
    if not topic:
        raise FormatError(f"the half message at {half.offset} has no property REAL_TOPIC")
    number = _integer(queue_id, -1)
    if not 0 <= number <= QUEUE_ID_MAX:
        raise FormatError(f"the half message at {half.offset} has {queue_id!r} as its property REAL_QID")
    return topic, number


def final_of(half: Record, prepared_transaction_offset: int) -> Message:
    """What consumers get after a commit (`endMessageTransaction`); FormatError if the half names no target.

    Without the property that tells copies of one transaction: Java writes it for immune halves only.
    `prepared_transaction_offset`: commit log offset of the half that the commit ends.
    """
    topic, queue_id = target_of(half)
    changes = {
        Property.REAL_TOPIC: None,
        Property.REAL_QID: None,
        Property.TRAN_PREPARED_QUEUE_OFFSET: None,
    }
    properties = _edit(half.properties, changes)
    sys_flag = half.sys_flag & ~SysFlag.TRANSACTION_MASK | SysFlag.TRANSACTION_COMMIT
    return replace(
        _again(half, topic, queue_id, properties),
        sys_flag=sys_flag,
        prepared_transaction_offset=prepared_transaction_offset,
    )


def is_final(sys_flag: int) -> bool:
    """Whether a record is what a commit appended: its `prepared_transaction_offset` then names the half."""
    return sys_flag & SysFlag.TRANSACTION_MASK == SysFlag.TRANSACTION_COMMIT


def encode_op_offsets(offsets: Iterable[int]) -> bytes:
    """The body of an op record: queue offsets of halves, each followed by a comma."""
    return b"".join(b"%d," % offset for offset in offsets)


def op_bodies(offsets: Iterable[int], size_max: int = OP_BODY_SIZE_MAX) -> Iterator[bytes]:
    """Bodies of as many op records as are needed, none larger than `size_max` bytes (at least 20)."""
    parts: list[bytes] = []
    size = 0
    for offset in offsets:
        part = b"%d," % offset
        if parts and size + len(part) > size_max:
            yield b"".join(parts)
            parts, size = [], 0
        parts.append(part)
        size += len(part)
    if parts:
        yield b"".join(parts)


def decode_op_offsets(body: bytes) -> tuple[int, ...]:
    """The halves that an op record names; those of releases before 5.0 name one, without a comma.

    FormatError for anything but decimal numbers, with the position of what is none.
    """
    if not body:
        return ()
    found = []
    position = 0
    for part in body.removesuffix(b",").split(b","):
        if not _is_offset(part) or int(part) > INT64_MAX:
            raise FormatError(f"{part[:40]!r} in an op record is no queue offset", position)
        found.append(int(part))
        position += len(part) + 1
    return tuple(found)


def op_message(body: bytes, broker_host: Host, now_ms: int, *, superseded: bool = False) -> Message:
    """The op record with `body`, as `makeOpMessageInner` has it.

    `superseded`: of halves that have newer copies; `superseded_offsets` reads its body.
    """
    return Message(
        topic=OP_HALF_TOPIC,
        queue_id=HALF_QUEUE_ID,
        body=body + SUPERSEDING_END if superseded else body,
        properties=SUPERSEDING_PROPERTIES if superseded else OP_PROPERTIES,
        born_timestamp=now_ms,
        born_host=broker_host,
    )


def superseded_offsets(body: bytes) -> tuple[int, ...]:
    """The halves that a record names of which `is_superseding` is true; raises `FormatError`."""
    return decode_op_offsets(body.removesuffix(SUPERSEDING_END))


def is_op(properties: bytes) -> bool:
    """Whether a record of the op topic says which halves are resolved; Java skips others."""
    return find_property(properties, b"TAGS") == OP_TAG.encode()


def is_superseding(properties: bytes) -> bool:
    """Whether an op record names halves that have newer copies, and so says nothing of an end."""
    return find_property(properties, SUPERSEDED.encode()) is not None


def check_body(half: Record) -> bytes:
    """The body of CHECK_TRANSACTION_STATE: the half as a record of its real topic and queue.

    `half` has the offsets of the copy that the producer's answer shall name. FormatError if it names no
    target.
    """
    topic, queue_id = target_of(half)
    shown = replace(
        half,
        magic=magic_for(topic.encode()),
        topic=topic,
        queue_id=queue_id,
        properties=_edit(without_property_crc(half.properties), {Property.TRAN_PREPARED_QUEUE_OFFSET: None}),
    )
    return encode_record(shown)


def _again(record: Record, topic: str, queue_id: int, properties: bytes) -> Message:
    return Message(
        topic=topic,
        queue_id=queue_id,
        body=record.body,
        properties=without_property_crc(properties),
        flag=record.flag,
        sys_flag=record.sys_flag & ~(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6),
        born_timestamp=record.born_timestamp,
        born_host=record.born_host,
        store_host=record.store_host,
        reconsume_times=record.reconsume_times,
        prepared_transaction_offset=record.prepared_transaction_offset,
    )


def unique_key_of(half: Record) -> bytes:
    """The key that the producer gave the message; empty if there is none."""
    return find_property(half.properties, Property.UNIQ_KEY.encode()) or b""


def _edit(raw: bytes, changes: Mapping[str, str | None]) -> bytes:
    """`raw` without the named properties, and those with a value behind the others."""
    if raw and raw[-1] != _VALUE_END_BYTE:
        raw += VALUE_END.encode()
    for name in changes:
        needle = name.encode() + NAME_END.encode()
        start = raw.find(needle)
        while start >= 0:
            if start == 0 or raw[start - 1] == _VALUE_END_BYTE:
                raw = raw[:start] + raw[raw.index(VALUE_END.encode(), start) + 1 :]
            else:
                start += 1
            start = raw.find(needle, start)
    return raw + encode_properties({name: value for name, value in changes.items() if value})


def _text(record: Record, name: str) -> str | None:
    value = find_property(record.properties, name.encode())
    return None if value is None else value.decode("utf-8", "replace")


def _integer(text: str | None, default: int) -> int:
    return int(text) if text is not None and _is_integer(text) else default
