"""`startOffsetInfo`, `msgOffsetInfo` and `orderCountInfo` of the answer to POP_MESSAGE.

Items are separated by semicolons, their fields by a space. Retry flag and queue id name the queue of an item.
Source: `ExtraInfoUtil` of Java 5.5.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar

from brokerset_formats.errors import FormatError
from brokerset_formats.pop.names import RETRY_FLAGS

QueueKey = tuple[int, int]
"""Retry flag and queue id."""

OffsetKey = tuple[int, int, int]
"""Retry flag, queue id, queue offset."""

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

_INT64_MAX: Final = 0x7FFF_FFFF_FFFF_FFFF
_is_number = re.compile(r"[0-9]{1,19}").fullmatch
_is_offset_key = re.compile(r"qo([0-9]{1,10})%([0-9]{1,19})").fullmatch


def encode_start_offsets(starts: Iterable[tuple[int, int, int]]) -> str:
    """Of retry flag, queue id and start offset of each queue that was popped."""
    return ";".join([f"{flag} {queue_id} {start}" for flag, queue_id, start in starts])


def parse_start_offsets(text: str | None) -> dict[QueueKey, int]:
    """Where the pop of each queue began. FormatError for text that is no such info."""
    found: dict[QueueKey, int] = {}
    for flag, queue, value in _items(text):
        _put(found, (flag, _number(queue)), _number(value))
    return found


def encode_message_offsets(offsets: Iterable[tuple[int, int, Sequence[int]]]) -> str:
    """Of retry flag, queue id and queue offsets of the messages of each queue."""
    return ";".join(
        [f"{flag} {queue_id} {','.join(map(str, numbers))}" for flag, queue_id, numbers in offsets if numbers]
    )


def parse_message_offsets(text: str | None) -> dict[QueueKey, tuple[int, ...]]:
    """The queue offsets of the messages, by queue. FormatError for text that is no such info."""
    found: dict[QueueKey, tuple[int, ...]] = {}
    for flag, queue, value in _items(text):
        _put(found, (flag, _number(queue)), tuple([_number(part) for part in value.split(",")]))
    return found


def encode_order_counts(
    by_offset: Mapping[OffsetKey, int] | None = None, by_queue: Mapping[QueueKey, int] | None = None
) -> str:
    """How often messages of ordered pops were given out before: of single messages, then of queues."""
    items = [
        f"{flag} qo{queue_id}%{offset} {count}"
        for (flag, queue_id, offset), count in (by_offset or {}).items()
    ]
    items += [f"{flag} {queue_id} {count}" for (flag, queue_id), count in (by_queue or {}).items()]
    return ";".join(items)


def parse_order_counts(text: str | None) -> tuple[dict[OffsetKey, int], dict[QueueKey, int]]:
    """The counts of messages, and those of queues. FormatError for text that is no such info."""
    by_offset: dict[OffsetKey, int] = {}
    by_queue: dict[QueueKey, int] = {}
    for flag, key, value in _items(text):
        match = _is_offset_key(key)
        if match is not None:
            _put(by_offset, (flag, _number(match[1]), _number(match[2])), _number(value))
        else:
            _put(by_queue, (flag, _number(key)), _number(value))
    return by_offset, by_queue


def _items(text: str | None) -> Iterable[tuple[int, str, str]]:
    for item in text.split(";") if text else ():
        parts = item.split(" ")
        if len(parts) != 3:
            raise FormatError(f"{item[:80]!r} is no item of an offset info: it has three fields")
        flag = _number(parts[0])
        if flag not in RETRY_FLAGS:
            raise FormatError(f"{flag} is no retry flag of an offset info: it is 0, 1 or 2")
        yield flag, parts[1], parts[2]


def _number(text: str) -> int:
    number = int(text) if _is_number(text) else -1
    if not 0 <= number <= _INT64_MAX:
        raise FormatError(f"{text[:40]!r} in an offset info is no number")
    return number


def _put(found: dict[_Key, _Value], key: _Key, value: _Value) -> None:
    if key in found:
        raise FormatError(f"an offset info names {key} twice")
    found[key] = value
