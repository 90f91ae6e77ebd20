"""A waiting message: what the record in the wheel's topic says, and what a copy of it says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Protocol

from brokerset_broker.store.property_edits import edit_properties
from brokerset_formats.errors import FormatError
from brokerset_formats.properties import Property, decode_properties, encode_properties

NEVER_ENQUEUED_MS: Final = 2**63 - 1
"""`TIMER_ENQUEUE_MS` of a message that was due before it came into the wheel."""

DELIVERY_PROPERTIES_SIZE: Final = 128
"""Bytes that properties may grow by when a message is delivered or rolls: a message that is put aside leaves
them free, or it could not be delivered."""

_TIMES: Final = (Property.TIMER_ENQUEUE_MS.encode(), Property.TIMER_DEQUEUE_MS.encode())

_ROLL_TIMES_DIGITS: Final = 10

_is_number = re.compile(r"-?[0-9]{1,18}").fullmatch


@dataclass(frozen=True, slots=True)
class TimedMessage:
    """What decisions about a waiting message need."""

    queue_offset: int
    """In the wheel's topic."""

    out_ms: int
    """`TIMER_OUT_MS`: the slot with whose end it is due."""

    store_ms: int
    """When the record was stored; the same on every replica."""

    topic: str
    """Where it is to be delivered."""

    queue_id: int

    unique_key: str = ""
    """`UNIQ_KEY`, empty if the producer gave none."""

    delete_key: str = ""
    """`TIMER_DEL_UNIQKEY` of a recall, empty for all others."""

    roll_times: int = 0
    """How often it was put aside again; 0 if the property is no small number, as clients may send it."""

    @property
    def delete_keys(self) -> tuple[str, str]:
        """The keys by which it can be recalled: with and without `appendTopicForTimerDeleteKey`."""
        return self.unique_key, delete_key(self.topic, self.unique_key, with_topic=True)


def delete_key(topic: str, unique_key: str, *, with_topic: bool) -> str:
    """`TIMER_DEL_UNIQKEY` of a recall; `with_topic` is `appendTopicForTimerDeleteKey`."""
    return f"{topic}+{unique_key}" if with_topic else unique_key


class TimedRecord(Protocol):
    """What is needed of a record, a whole one or its head."""

    @property
    def offset(self) -> int:
        """Where it is in the commit log."""

    @property
    def queue_offset(self) -> int:
        """Its number in the wheel's topic."""

    @property
    def store_timestamp(self) -> int:
        """When it was stored."""

    @property
    def properties(self) -> bytes:
        """Its properties as they are stored."""


def timed_message(record: TimedRecord) -> TimedMessage:
    """Read a record of the wheel's topic; FormatError with the property that is missing or no number."""
    properties = decode_properties(record.properties)

    def number(name: str) -> int:
        text = properties.get(name, "")
        if not _is_number(text):
            raise FormatError(f"property {name} of a timer message is {text[:40]!r}", record.offset)
        return int(text)

    if Property.REAL_TOPIC not in properties:
        raise FormatError("a timer message has no REAL_TOPIC", record.offset)
    return TimedMessage(
        queue_offset=record.queue_offset,
        out_ms=number(Property.TIMER_OUT_MS),
        store_ms=record.store_timestamp,
        topic=properties[Property.REAL_TOPIC],
        queue_id=number(Property.REAL_QID),
        unique_key=properties.get(Property.UNIQ_KEY, ""),
        delete_key=properties.get(Property.TIMER_DEL_UNIQKEY, ""),
        roll_times=_roll_times(properties.get(Property.TIMER_ROLL_TIMES, "")),
    )


def _roll_times(text: str) -> int:
    return int(text) if len(text) < _ROLL_TIMES_DIGITS and _is_number(text) else 0


def delivered_properties(raw: bytes, *, enqueued_ms: int, now_ms: int) -> bytes:
    """Properties of the delivered message: all that it had, also REAL_*, and the two times.

    `enqueued_ms` is the unit's base time, or `NEVER_ENQUEUED_MS`.
    """
    times = {Property.TIMER_ENQUEUE_MS: str(enqueued_ms), Property.TIMER_DEQUEUE_MS: str(now_ms)}
    if raw.endswith(b"\x02") and not any(name in raw for name in _TIMES):
        return raw + encode_properties(times)  # as editing would have it, without reading all of them
    return edit_properties(raw, times)


def rolled_properties(raw: bytes, message: TimedMessage, *, enqueued_ms: int, now_ms: int) -> bytes:
    """Properties of the copy that goes into the wheel's topic again; its time stays."""
    rolled = edit_properties(raw, {Property.TIMER_ROLL_TIMES: str(message.roll_times + 1)})
    return delivered_properties(rolled, enqueued_ms=enqueued_ms, now_ms=now_ms)
