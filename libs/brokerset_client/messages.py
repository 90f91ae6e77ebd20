"""Messages as applications see them: what is sent, what the broker says about it, what is received."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from brokerset_client.compression import decompress
from brokerset_client.errors import MessageUnreadable
from brokerset_formats import names
from brokerset_formats.errors import FormatError
from brokerset_formats.hosts import HOST_SIZE_V4, HOST_SIZE_V6, Host
from brokerset_formats.message_ids import encode_offset_id
from brokerset_formats.properties import Property, decode_properties, find_property
from brokerset_formats.records import (
    MAGIC_V1,
    MAGIC_V2,
    QUEUE_OFFSET_POSITION,
    RECORD_SIZE_MIN,
    SYS_FLAG_POSITION,
    Record,
    SysFlag,
    decode_record,
    fixed_struct,
)
from brokerset_protocol.bodies.queues import MessageQueue
from brokerset_protocol.codes import ResponseCode

BODY_SIZE_MAX = 4 * 1024 * 1024
"""Largest body that is sent (`maxMessageSize` of brokers and of Java's producer)."""

_HOST_BITS = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6
_LAYOUTS: Final = {
    born | store: fixed_struct(
        HOST_SIZE_V6 if born else HOST_SIZE_V4,
        HOST_SIZE_V6 if store else HOST_SIZE_V4,
    )
    for born in (0, SysFlag.BORN_HOST_V6)
    for store in (0, SysFlag.STORE_HOST_V6)
}
"""The fixed part of a record for each combination of the two bits that tell the sizes of its hosts."""

_RESERVED: Final = frozenset(
    value
    for name, value in vars(Property).items()
    if isinstance(value, str) and not name.startswith("_") and name not in ("BUYER_ID", "INSTANCE_ID")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message to send."""

    topic: str
    """Where to; created by the first send if the broker allows that."""

    body: bytes = b""
    """At most 4 MiB; from 4 KiB on it is compressed on its way."""

    tags: str | None = None
    """What consumers filter by: one tag."""

    keys: Sequence[str] = ()
    """Business keys by which the message can be found later; no white space inside."""

    properties: Mapping[str, str] = field(default_factory=dict)
    """Free properties; the names of `brokerset_formats.properties` are reserved."""

    flag: int = 0
    """A number for the application, stored as it is."""

    delay_level: int = 0
    """Deliver later: 1 to 18 stand for 1 s, 5 s, 10 s, 30 s, 1 min … 2 h with default settings of the
    broker."""

    delay_ms: int | None = None
    """Deliver after so many milliseconds (timer message); not together with another delay."""

    deliver_at_ms: int | None = None
    """Deliver at this wall clock time in milliseconds since 1970 (timer message)."""

    wait_stored: bool = True
    """Whether the broker answers only when flushing and replication are as safe as its settings ask."""

    sharding_key: str | None = None
    """Messages of one key go to one queue, and carry the key for tools that order by it."""

    priority: int | None = None
    """0 or more, for topics of the type PRIORITY: brokers put the message into the queue of this number."""

    lite_topic: str | None = None
    """Name of a lite topic, for topics of the type LITE."""

    system_properties: Mapping[str, str] = field(default_factory=dict)
    """Properties with reserved names, for tools that forward stored messages."""

    def problem(self, body_size_max: int = BODY_SIZE_MAX) -> str | None:
        """Why this cannot be sent, in words for its author; None if it can."""
        wrong = names.check_topic(self.topic)
        if wrong is not None:
            return wrong
        if names.is_send_forbidden(self.topic):
            return f"Sending message to topic[{self.topic}] is forbidden."
        if len(self.body) > body_size_max:
            return f"body has {len(self.body)} bytes, at most {body_size_max} are allowed: split it"
        if sum((self.delay_level != 0, self.delay_ms is not None, self.deliver_at_ms is not None)) > 1:
            return "delay_level, delay_ms and deliver_at_ms exclude each other: keep one"
        if self.priority is not None and self.priority < 0:
            return f"priority {self.priority} is negative: 0 is the lowest"
        for key in self.keys if not isinstance(self.keys, str) else (self.keys,):
            if not key or key.split() != [key]:
                return f"key {key!r} is empty or has white space"
        for name in self.properties:
            if name in _RESERVED:
                return f"property {name!r} is reserved: use the field of Message, or system_properties"
        return None

    def to_properties(self, unique_id: str) -> dict[str, str]:
        """All properties as they are stored with the message."""
        made = {**self.properties, **self.system_properties}
        if self.tags:
            made[Property.TAGS] = self.tags
        if self.keys:
            made[Property.KEYS] = self.keys if isinstance(self.keys, str) else " ".join(self.keys)
        if self.delay_level:
            made[Property.DELAY] = str(self.delay_level)
        if self.delay_ms is not None:
            made[Property.TIMER_DELAY_MS] = str(self.delay_ms)
        if self.deliver_at_ms is not None:
            made[Property.TIMER_DELIVER_MS] = str(self.deliver_at_ms)
        if self.sharding_key is not None:
            made[Property.SHARDING_KEY] = self.sharding_key
        if self.priority is not None:
            made[Property.PRIORITY] = str(self.priority)
        if self.lite_topic is not None:
            made[Property.LITE_TOPIC] = self.lite_topic
        made[Property.WAIT] = "true" if self.wait_stored else "false"
        made.setdefault(Property.UNIQ_KEY, unique_id)
        return made


class SendStatus(Enum):
    """How safe a sent message is.

    The master has stored it in every case; only `SEND_OK` promises that it outlives the master.
    """

    SEND_OK = ResponseCode.SUCCESS
    FLUSH_DISK_TIMEOUT = ResponseCode.FLUSH_DISK_TIMEOUT
    FLUSH_SLAVE_TIMEOUT = ResponseCode.FLUSH_SLAVE_TIMEOUT
    SLAVE_NOT_AVAILABLE = ResponseCode.SLAVE_NOT_AVAILABLE


@dataclass(frozen=True, slots=True)
class SendResult:
    """What the broker said about a stored message (of a batch: about its first)."""

    status: SendStatus
    message_id: str
    """The id that this client made (`UNIQ_KEY`); of a batch, all of them joined by commas."""

    offset_message_id: str
    """The broker's id: its address and the place in its log."""

    queue: MessageQueue
    queue_offset: int
    transaction_id: str | None = None
    region_id: str | None = None
    trace_on: bool = True
    recall_handle: str | None = None
    """For timer messages on brokers ≥ 5.3: what a recall needs."""


class MessageView:
    """A stored message. What is asked for is read from the bytes of the pull's answer then, and not
    before."""

    __slots__ = (
        "_body",
        "_buffer",
        "_head",
        "_position",
        "_properties",
        "_raw_properties",
        "_topic",
        "broker_name",
        "failures_here",
        "group",
    )

    def __init__(self, buffer: bytes, position: int = 0, broker_name: str = "", group: str = "") -> None:
        self._buffer = buffer
        self._position = position
        self._head: tuple[Any, ...] | None = None
        self._topic = ""
        self._raw_properties = b""
        self._properties: dict[str, str] | None = None
        self._body: bytes | None = None
        self.broker_name = broker_name
        """Name of the broker that the message was read from."""
        self.group = group
        """The consumer group that reads it; empty outside of one."""
        self.failures_here = 0
        """How often this client failed with it without giving it back to the broker."""

    def __repr__(self) -> str:
        return f"<MessageView {self.topic}/{self.queue_id}@{self.queue_offset} {self.message_id}>"

    def _read(self) -> tuple[Any, ...]:
        """The fields of the fixed part, after finding topic and properties. Raises `MessageUnreadable`."""
        buffer, position = self._buffer, self._position
        try:
            sys_flag = int.from_bytes(
                buffer[position + SYS_FLAG_POSITION : position + SYS_FLAG_POSITION + 4], "big"
            )
            layout = _LAYOUTS[sys_flag & _HOST_BITS]
            head = layout.unpack_from(buffer, position)
            end = position + head[0]
            topic_start = position + layout.size + head[14] + 1
            topic_size = buffer[topic_start - 1]
            if head[1] != MAGIC_V1:
                if head[1] != MAGIC_V2:
                    raise ValueError(f"unknown magic {head[1]:#010x}")
                topic_size = topic_size << 8 | buffer[topic_start]
                topic_start += 1
            topic_end = topic_start + topic_size
            properties_size = int.from_bytes(buffer[topic_end : topic_end + 2], "big")
            if head[14] < 0 or topic_end + 2 + properties_size != end or end > len(buffer):
                raise ValueError("the lengths inside do not add up")
            self._topic = buffer[topic_start:topic_end].decode()
        except (ValueError, IndexError, struct.error) as error:
            raise MessageUnreadable(
                f"record at {position} of an answer from {self.broker_name or 'a broker'} is damaged: {error}"
            ) from error
        self._raw_properties = buffer[topic_end + 2 : end]
        self._head = head
        return head

    def _property(self, name: bytes) -> str | None:
        if self._head is None:
            self._read()
        raw = find_property(self._raw_properties, name)
        return None if raw is None else raw.decode("utf-8", "replace")

    def property_text(self, name: str) -> str | None:
        """One property, without reading the others; None if there is none. Raises `MessageUnreadable`."""
        return self._property(name.encode())

    @property
    def record(self) -> Record:
        """All fields of the stored record, for tools. Raises `MessageUnreadable`."""
        try:
            return decode_record(self._buffer, self._position)
        except FormatError as error:
            raise MessageUnreadable(f"record from {self.broker_name or 'a broker'}: {error}") from error

    @property
    def stored_bytes(self) -> bytes:
        """The whole record."""
        return self._buffer[self._position : self._position + self.size]

    @property
    def size(self) -> int:
        """Bytes of the whole record."""
        return int.from_bytes(self._buffer[self._position : self._position + 4], "big")

    @property
    def topic(self) -> str:
        """The topic that the producer sent to, also when the message comes back through the retry topic."""
        if self._head is None:
            self._read()
        if self.group and self._topic == names.retry_topic(self.group):
            return self._property(b"RETRY_TOPIC") or self._topic
        return self._topic

    @property
    def stored_topic(self) -> str:
        """The topic that the record is stored in."""
        if self._head is None:
            self._read()
        return self._topic

    @property
    def queue(self) -> MessageQueue:
        """The queue that the record is stored in."""
        return MessageQueue(self.stored_topic, self.broker_name, self.queue_id)

    @property
    def queue_id(self) -> int:
        """Number of the queue at its broker."""
        return self._at(3)

    @property
    def flag(self) -> int:
        """The application's number."""
        return self._at(4)

    @property
    def queue_offset(self) -> int:
        """Number of the message in its queue."""
        start = self._position + QUEUE_OFFSET_POSITION
        return int.from_bytes(self._buffer[start : start + 8], "big")

    @property
    def offset(self) -> int:
        """Byte address in the broker's commit log."""
        return self._at(6)

    @property
    def sys_flag(self) -> int:
        """Bits of `MessageSysFlag`: compression, transaction type, address sizes."""
        return self._at(7)

    @property
    def born_timestamp(self) -> int:
        """When the producer made it, in milliseconds of its clock."""
        return self._at(8)

    @property
    def born_host(self) -> Host:
        """The producer's end of the connection that it came over."""
        return Host.decode((self._head or self._read())[9], v6=bool(self.sys_flag & SysFlag.BORN_HOST_V6))

    @property
    def store_timestamp(self) -> int:
        """When the broker stored it, in milliseconds of its clock."""
        return self._at(10)

    @property
    def store_host(self) -> Host:
        """Address and listening port of the broker that stored it."""
        return Host.decode((self._head or self._read())[11], v6=bool(self.sys_flag & SysFlag.STORE_HOST_V6))

    @property
    def reconsume_times(self) -> int:
        """How often the group has failed with it before."""
        return self._at(12) + self.failures_here

    @property
    def prepared_transaction_offset(self) -> int:
        """Offset of the half message that this one completes; 0 for ordinary messages."""
        return self._at(13)

    @property
    def stored_body(self) -> bytes:
        """The body as stored, perhaps compressed."""
        head = self._head or self._read()
        start = self._position + _LAYOUTS[head[7] & _HOST_BITS].size
        return self._buffer[start : start + head[14]]

    @property
    def body(self) -> bytes:
        """The body as the producer gave it. Raises `MessageUnreadable` if it cannot be opened."""
        if self._body is None:
            stored = self.stored_body
            self._body = decompress(stored, self.sys_flag)
        return self._body

    @property
    def properties(self) -> dict[str, str]:
        """All properties, the system's among them. Raises `MessageUnreadable` if they are no text."""
        if self._properties is None:
            if self._head is None:
                self._read()
            try:
                self._properties = decode_properties(self._raw_properties)
            except (FormatError, UnicodeDecodeError) as error:
                raise MessageUnreadable(f"properties from {self.broker_name}: {error}") from error
        return self._properties

    @property
    def tags(self) -> str | None:
        """What consumers filter by."""
        return self._property(b"TAGS")

    @property
    def keys(self) -> tuple[str, ...]:
        """Business keys."""
        return tuple((self._property(b"KEYS") or "").split())

    @property
    def message_id(self) -> str:
        """The producer's id, the same in every redelivery; the broker's if the producer gave none."""
        return self._property(b"UNIQ_KEY") or self.offset_message_id

    @property
    def offset_message_id(self) -> str:
        """The broker's id: address of the storing broker and offset in its log."""
        return encode_offset_id(self.store_host, self.offset)

    @property
    def origin_message_id(self) -> str:
        """The broker's id of the first delivery, kept over retries."""
        return self._property(b"ORIGIN_MESSAGE_ID") or self.offset_message_id

    def _at(self, index: int) -> int:
        value: int = (self._head or self._read())[index]
        return value


def split_records(body: bytes, broker_name: str = "", group: str = "") -> list[MessageView]:
    """The messages of a pull or query answer: whole records one after the other.

    Raises `MessageUnreadable` if the sizes do not add up to the body.
    """
    return [
        MessageView(body, position, broker_name, group) for position in record_positions(body, broker_name)
    ]


def record_positions(body: bytes, broker_name: str = "") -> list[int]:
    """Where each record of an answer begins. Raises like `split_records`."""
    positions = []
    position = 0
    end = len(body)
    while position < end:
        size = int.from_bytes(body[position : position + 4], "big")
        if size < RECORD_SIZE_MIN or position + size > end:
            raise MessageUnreadable(
                f"answer of {end} bytes from {broker_name or 'a broker'} has a record of {size} bytes"
            )
        positions.append(position)
        position += size
    return positions
