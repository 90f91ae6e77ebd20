"""What the last ordered pop of a queue gave to a group, as a value and as JSON of RocketMQ. Pure.

Source: `QueueLevelConsumerManager.OrderInfo` of Java 5.5, and its file `config/consumerOrderInfo.json`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from itertools import pairwise
from typing import Final

from brokerset_formats.config import fields
from brokerset_formats.errors import FormatError
from brokerset_formats.lazy_dataclasses import dataclass

UNREAD: Final = 0
"""Visible since ever: the message is in the lock so that the group goes on there, and nobody was given it."""

OFFSETS_MAX: Final = 63
"""Messages of one lock: each has a bit of a Java `long`, whose sign is left alone."""

ATTEMPT_ID_MAX: Final = 255
"""Characters of the name of an attempt, which is kept with its lock; clients name them by UUIDs, of 36."""

PART_BYTES_MAX: Final = 65_536
"""About so many bytes of locks are in one part; a record may have 128 KiB."""

_BITS: Final = 0xFFFF_FFFF_FFFF_FFFF
_MISSING: Final = 0


@dataclass(frozen=True, slots=True)
class OrderLock:
    """Messages of one queue that a group has got in order, and which of them are acknowledged.

    It stays when all are: it says how far the group is, and a repeated ack finds its message.
    """

    attempt_id: str | None
    """Names the pop for a client that repeats it; None from clients that name none."""

    pop_time: int
    """When the pop was served, milliseconds since 1970; its handles name it."""

    invisible_ms: int
    """So long nobody else gets the messages; 0 if that is not known."""

    queue_offsets: tuple[int, ...]
    """Of the messages, ascending: those that were given out, and those behind the first that were
    acknowledged before and are not given out again."""

    acked: int = 0
    """Bit i: message i is acknowledged."""

    counts: Mapping[int, int] = field(default_factory=dict)
    """By queue offset, how often a message was given out before; not those that are new."""

    visible_at: Mapping[int, int] = field(default_factory=dict)
    """By queue offset, when a message whose invisible time was changed becomes visible, in ms since 1970;
    `UNREAD` of the first message that no pop has read, before others that were acknowledged."""

    consumed_at: int = 0
    """When the group last popped the queue, milliseconds since 1970."""

    def open_offsets(self) -> list[int]:
        """Messages that are not acknowledged, of those that were given out."""
        acked, visible_at = self.acked, self.visible_at
        return [
            offset
            for index, offset in enumerate(self.queue_offsets)
            if not acked >> index & 1 and visible_at.get(offset) != UNREAD
        ]

    def acked_offsets(self) -> list[int]:
        """Messages that are acknowledged."""
        acked = self.acked
        return [offset for index, offset in enumerate(self.queue_offsets) if acked >> index & 1]

    @property
    def next_offset(self) -> int:
        """Where the group goes on: at the first message that is not acknowledged, or behind the last."""
        acked, offsets = self.acked, self.queue_offsets
        for index, offset in enumerate(offsets):
            if not acked >> index & 1:
                return offset
        return offsets[-1] + 1

    def to_json(self) -> dict[str, object]:
        """As RocketMQ has it: absent what is empty, offsets as the first one and distances from it."""
        first = self.queue_offsets[0]
        found: dict[str, object] = {} if self.attempt_id is None else {"a": self.attempt_id}
        found["cm"] = self.acked
        found["i"] = self.invisible_ms
        found["l"] = self.consumed_at
        found["o"] = [first, *[offset - first for offset in self.queue_offsets[1:]]]
        if self.counts:
            found["oc"] = {str(offset): count for offset, count in self.counts.items()}
        if self.visible_at:
            found["ot"] = {str(offset): time for offset, time in self.visible_at.items()}
        found["popTime"] = self.pop_time
        return found

    @classmethod
    def from_json(cls, value: object) -> OrderLock:
        """Raises FormatError."""
        found = fields.as_object(value, "a lock of ordered pops")
        distances = found.get("o")
        if not isinstance(distances, list) or not distances:
            raise FormatError(f"o of a lock of ordered pops should list queue offsets and is {distances!r}")
        first, *others = [fields.as_integer(distance, "o") for distance in distances]
        offsets = (first, *[first + distance for distance in others])
        if first < 0 or any(a >= b for a, b in pairwise(offsets)):
            raise FormatError(f"queue offsets of a lock of ordered pops do not ascend: {distances!r}")
        if len(offsets) > OFFSETS_MAX + 1:
            raise FormatError(f"a lock of ordered pops has {len(offsets)} messages; it has 64 bits for them")
        integer = fields.get_integer
        return cls(
            attempt_id=fields.get_text(found, "a") if found.get("a") is not None else None,
            pop_time=integer(found, "popTime", _MISSING),
            invisible_ms=_or_zero(found, "i"),
            queue_offsets=offsets,
            acked=integer(found, "cm", 0) & _BITS,
            counts=_numbers(found, "oc"),
            visible_at=_numbers(found, "ot"),
            consumed_at=integer(found, "l", _MISSING),
        )


Locks = Mapping[str, Mapping[int, OrderLock]]
"""By `topic@group` and queue id."""

LockChanges = Mapping[str, Mapping[int, OrderLock | None]]
"""The same; None where there is no lock any more."""


def locks_to_json(locks: LockChanges) -> Iterator[tuple[str, dict[str, object]]]:
    """Keys, and the locks of each by queue id, as records hold them."""
    for key, queues in locks.items():
        yield (
            key,
            {str(queue_id): None if lock is None else lock.to_json() for queue_id, lock in queues.items()},
        )


def locks_in_parts(locks: LockChanges) -> Iterator[tuple[str, dict[str, object]]]:
    """As `locks_to_json`, but the locks of a key that has very many come in several parts, for records."""
    for key, queues in locks.items():
        part: dict[int, OrderLock | None] = {}
        size = 0
        for queue_id, lock in queues.items():
            more = 16 if lock is None else _size_of(lock)
            if part and size + more > PART_BYTES_MAX:
                yield from locks_to_json({key: part})
                part, size = {}, 0
            part[queue_id] = lock
            size += more
        if part:
            yield from locks_to_json({key: part})


def _size_of(lock: OrderLock) -> int:
    """About as many bytes as it has in JSON, rather more."""
    numbers = 8 * len(lock.queue_offsets) + 24 * len(lock.counts) + 36 * len(lock.visible_at)
    return 120 + numbers + len(lock.attempt_id or "")


def lock_changes_of(section: Mapping[str, object]) -> dict[str, dict[int, OrderLock | None]]:
    """What `locks_to_json` wrote. Raises FormatError."""
    return {
        key: {
            fields.as_integer(queue_id, f"a queue id of {key}"): (
                None if lock is None else OrderLock.from_json(lock)
            )
            for queue_id, lock in fields.as_object(queues, key).items()
        }
        for key, queues in section.items()
    }


def apply_changes(table: dict[str, dict[int, OrderLock]], changes: LockChanges) -> None:
    """Change the table; doing it twice is doing it once."""
    for key, queues in changes.items():
        known = table.get(key)
        if known is None:
            known = table[key] = {}
        for queue_id, lock in queues.items():
            if lock is None:
                known.pop(queue_id, None)
            else:
                known[queue_id] = lock
        if not known:
            del table[key]


def file_of(table: Mapping[str, object]) -> dict[str, object]:
    """The content of `consumerOrderInfo.json`; `table` has what `locks_to_json` makes."""
    return {
        "orderInfoCount": len(table),
        "orderedConsumptionLevel": "QUEUE",
        "table": dict(table),
    }


def locks_of_file(data: bytes) -> dict[str, dict[int, OrderLock]]:
    """What a file says. Locks without messages, which Java's broker ignores, too, are left out.

    Raises FormatError.
    """
    table: dict[str, dict[int, OrderLock]] = {}
    for key, queues in fields.get_object(fields.parse_object(data), "table").items():
        found = {
            fields.as_integer(queue_id, f"a queue id of {key}"): OrderLock.from_json(lock)
            for queue_id, lock in fields.as_object(queues, key).items()
            if isinstance(lock, dict) and lock.get("o")
        }
        if found:
            table[key] = found
    return table


def _numbers(found: Mapping[str, object], name: str) -> dict[int, int]:
    value = found.get(name)
    return {} if value is None else fields.integer_map(value, name)


def _or_zero(found: Mapping[str, object], name: str) -> int:
    return 0 if found.get(name) is None else fields.get_integer(found, name, 0)
