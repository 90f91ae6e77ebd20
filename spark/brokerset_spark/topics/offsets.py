"""Places in queues: keys, offsets of many queues as JSON and back, marks.

A stream's offset is JSON in Spark's checkpoint: `{"orders": {"broker-a": {"0": 4711}}}`, with further entries
whose names no topic can have. What it names are broker *names* and queue ids, so addresses, masters and
replicas may change behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

EARLIEST: Final = -2
LATEST: Final = -1
MARKS: Final = "@marks"
BEGINS: Final = "@begins"
"""`@` is no letter of a topic's name."""

Nested = Mapping[str, Mapping[str, Mapping[str, Any]]]


class QueueKey(NamedTuple):
    """One queue of one broker; sorted like this, the queues of a topic are numbered as partitions."""

    topic: str
    broker: str
    queue: int

    def __str__(self) -> str:
        return f"queue {self.queue} of topic {self.topic} on {self.broker}" if self.broker else self.topic

    @property
    def text(self) -> str:
        """`topic/broker/queue`, as names of the lake's transactions have it; a topic has no slash."""
        return f"{self.topic}/{self.broker}/{self.queue}"


class Mark(NamedTuple):
    """What tells the record before an offset from another one with the same number."""

    store_ms: int
    body_crc: int | None = None
    """None if it is not known: then the time alone decides."""

    def fits(self, seen: Mark) -> bool:
        """Whether a record that is seen there now may be the one that this mark was made of."""
        if self.body_crc is None or seen.body_crc is None:
            return self.store_ms == seen.store_ms
        return self.encode() == seen.encode()

    def encode(self) -> str:
        """As in a checkpoint."""
        return f"{self.store_ms}-{(self.body_crc or 0) & 0xFFFFFFFF:08x}"

    @classmethod
    def decode(cls, text: str) -> Mark:
        """ValueError for what is no mark."""
        store_ms, _, crc = text.rpartition("-")
        return cls(int(store_ms), int(crc, 16))


def nested(values: Mapping[QueueKey, Any]) -> dict[str, Any]:
    """topic -> broker -> queue -> value, in order, so that equal offsets are equal texts."""
    found: dict[str, Any] = {}
    for key in sorted(values):
        found.setdefault(key.topic, {}).setdefault(key.broker, {})[str(key.queue)] = values[key]
    return found


def flat(values: Nested) -> dict[QueueKey, Any]:
    """The same by key; ValueError for another form."""
    try:
        return {
            QueueKey(topic, broker, queue_number(queue)): value
            for topic, brokers in values.items()
            for broker, queues in brokers.items()
            for queue, value in queues.items()
        }
    except AttributeError as error:
        raise ValueError('must be like {"topic": {"broker-a": {"0": 12}}}') from error


def all_of(topic: str) -> QueueKey:
    """Stands for all queues of a topic in options; no broker has an empty name."""
    return QueueKey(topic, "", 0)


def queue_number(text: str) -> int:
    """A queue id; ValueError for what is none."""
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{text!r} is no queue id")
    return int(text)


def partition_numbers(keys: Iterable[QueueKey]) -> dict[QueueKey, int]:
    """The number of each queue within its topic, over brokers in the order of their names."""
    found: dict[QueueKey, int] = {}
    counts: dict[str, int] = {}
    for key in sorted(set(keys)):
        found[key] = counts.get(key.topic, 0)
        counts[key.topic] = found[key] + 1
    return found


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """How far a stream is in each queue, and what it needs to read a batch that ends there again."""

    offsets: dict[QueueKey, int]
    marks: dict[QueueKey, Mark] = field(default_factory=dict)
    """Of the record before the offset, where there is one."""

    begins: dict[QueueKey, int] = field(default_factory=dict)
    """Where the batch that ends here begins in queues in which that is not where the one before ended: new
    queues, and after a loss. So a batch is the same whenever it is planned again."""

    def to_json(self) -> dict[str, Any]:
        """For Spark's checkpoint."""
        found = nested(self.offsets)
        if self.marks:
            found[MARKS] = nested({key: mark.encode() for key, mark in self.marks.items()})
        if self.begins:
            found[BEGINS] = nested(self.begins)
        return found

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StreamOffset:
        """ValueError for what no version of this source has written."""
        topics = {name: each for name, each in value.items() if not name.startswith("@")}
        unknown = sorted(name for name in value if name.startswith("@") and name not in (MARKS, BEGINS))
        if unknown:
            raise ValueError(
                f"the checkpoint has {', '.join(unknown)}, which this version of brokerset does not know: "
                "it was written by a newer one; use that"
            )
        marks = {key: Mark.decode(text) for key, text in flat(value.get(MARKS, {})).items()}
        return cls(flat(topics), marks, flat(value.get(BEGINS, {})))
