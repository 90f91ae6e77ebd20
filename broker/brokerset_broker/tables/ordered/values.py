"""Ordered subjects as a broker keeps them: values, and changes of them that are records of the log. Pure.

Every change overwrites, removes, or raises what its keys have: applying one twice is applying it once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from brokerset_formats.config import fields
from brokerset_formats.errors import FormatError
from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_formats.names import split_ordered_retry_topic
from brokerset_protocol.subject_words import OrderStrategy, PartitionStatus

NO_END: Final = -1
"""The end of a queue that is not sealed."""

SESSION_SIZE_MAX: Final = 128
"""Characters of a session."""

SHARED_SESSION: Final = "*"
"""Stands in fences and locks for all sessions of a Shared group; no session has this name."""

Ranges = tuple[tuple[int, int], ...]
"""Ranges of queue offsets, ascending and apart from each other: first, end (excluded)."""


class ClaimKey(NamedTuple):
    """A queue and the group that consumes it."""

    topic: str
    group: str
    queue_id: int

    def __str__(self) -> str:
        return f"queue {self.queue_id} of {self.topic} for group {self.group}"


class OrderedQueue(NamedTuple):
    """One queue of a subject."""

    partition_id: int
    state: PartitionStatus
    """`Prepared`, `Open` or `Sealed`."""

    end: int = NO_END
    """Of a sealed one: the queue offset behind its last message."""

    retired: bool = False
    """Of a sealed one: all groups have handled it, and it is kept for none of them."""


@dataclass(frozen=True, slots=True)
class Subject:
    """An ordered subject on this broker group."""

    order_strategy: OrderStrategy
    version: int
    queues: Mapping[int, OrderedQueue]

    @property
    def retired(self) -> frozenset[int]:
        """Ids of its retired queues."""
        return frozenset(queue_id for queue_id, queue in self.queues.items() if queue.retired)


class Fence(NamedTuple):
    """The highest ownership epoch of a queue for a group. It only grows."""

    epoch: int
    session: str
    """Whom the epoch was given to; `SHARED_SESSION` for all sessions of a Shared group."""

    released: bool = False
    """Whether that session has released the queue: it neither pulls nor acknowledges any more."""

    @property
    def is_shared(self) -> bool:
        """Whether the epoch is that of a Shared group."""
        return self.session == SHARED_SESSION

    def overtakes(self, other: Fence | None) -> bool:
        """Whether this one counts and not `other`."""
        return other is None or (self.epoch, self.released) > (other.epoch, other.released)


class ProducerState(NamedTuple):
    """What a queue has of one producer."""

    epoch: int
    next_sequence: int
    queue_offset: int
    """Of its last message."""

    stored_ms: int
    """When that was stored, by the clock of the broker that stored it."""


@dataclass(frozen=True, slots=True)
class SubjectsPut:
    """Subjects with all their queues."""

    subjects: Mapping[str, Subject]

    @property
    def retired(self) -> dict[str, frozenset[int]]:
        """Ids of retired queues, of subjects that have some."""
        return {topic: found for topic, subject in self.subjects.items() if (found := subject.retired)}


@dataclass(frozen=True, slots=True)
class FencesPut:
    """`topic@group` -> queue id -> fence; an older one than is known changes nothing."""

    fences: Mapping[str, Mapping[int, Fence]]


@dataclass(frozen=True, slots=True)
class ProducersPart:
    """What has changed among the producers of one queue."""

    complete_to: int
    """All messages below this queue offset are counted."""

    put: Mapping[str, ProducerState]
    gone: tuple[str, ...] = ()
    """Producers that were idle for so long that they are forgotten."""


@dataclass(frozen=True, slots=True)
class ProducersPut:
    """`topic@queue` -> what has changed."""

    queues: Mapping[str, ProducersPart]


@dataclass(frozen=True, slots=True)
class SharedAcksPut:
    """What Shared groups have acknowledged above their positions: all ranges of each queue that is named."""

    acks: Mapping[ClaimKey, Ranges]


OrderedChange = SubjectsPut | FencesPut | ProducersPut | SharedAcksPut


def subject_name(topic: str) -> str:
    """The subject of a topic: itself, or the one that a group's retry topic is for."""
    split = split_ordered_retry_topic(topic)
    return topic if split is None else split[1]


def queue_key(topic: str, queue_id: int) -> str:
    """The name of a queue in records."""
    return f"{topic}@{queue_id}"


def split_queue_key(key: str) -> tuple[str, int]:
    """Topic and queue id. Raises FormatError."""
    topic, _, queue = key.rpartition("@")
    if not topic or not queue.isascii() or not queue.isdigit() or len(queue) > 9:
        raise FormatError(f"{key[:80]!r} is no queue: topic@queue is")
    return topic, int(queue)


def claim_name(key: ClaimKey) -> str:
    """The name of a queue and a group in records."""
    return f"{key.topic}@{key.group}@{key.queue_id}"


def claim_key(name: str) -> ClaimKey:
    """Read `claim_name`. Raises FormatError."""
    topic_and_group, queue_id = split_queue_key(name)
    topic, _, group = topic_and_group.partition("@")
    if not topic or not group:
        raise FormatError(f"{name[:80]!r} is no queue of a group: topic@group@queue is")
    return ClaimKey(topic, group, queue_id)


# -- JSON -------------------------------------------------------------------------------------------------


def subject_to_json(subject: Subject) -> dict[str, object]:
    """A subject as records have it: `{"strategy":"Strict","version":7,"queues":{"1":[3,"Open",-1]}}`.

    Ids of retired queues are ranges in `retired`, if there are any: brokers of older versions read the rest.
    """
    queues = {str(number): list(queue[:3]) for number, queue in subject.queues.items()}
    found: dict[str, object] = {
        "strategy": subject.order_strategy.value,
        "version": subject.version,
        "queues": queues,
    }
    retired = subject.retired
    if retired:
        found["retired"] = ranges_to_json(_ranges_of(sorted(retired)))
    return found


def subject_of(value: object, name: str) -> Subject:
    """Read `subject_to_json`. Raises FormatError."""
    found = fields.as_object(value, name)
    retired = ranges_of(found.get("retired", []), name)
    try:
        strategy = OrderStrategy(fields.get_text(found, "strategy"))
        queues = {
            fields.as_integer(number, name): OrderedQueue(
                fields.as_integer(item[0], name),
                PartitionStatus(str(item[1])),
                fields.as_integer(item[2], name),
                any(first <= int(number) < end for first, end in retired),
            )
            for number, item in (
                (number, _items(item, 3, name)) for number, item in fields.get_object(found, "queues").items()
            )
        }
    except ValueError as error:
        raise FormatError(f"the subject {name} cannot be read: {error}") from None
    return Subject(strategy, fields.get_integer(found, "version", 0), queues)


def fences_to_json(fences: Mapping[int, Fence]) -> dict[str, object]:
    """Fences by queue: `{"1":[17,"session",false]}`."""
    return {str(queue): list(fence) for queue, fence in fences.items()}


def fences_of(value: object, name: str) -> dict[int, Fence]:
    """Read `fences_to_json`. Raises FormatError."""
    found: dict[int, Fence] = {}
    for queue, value_of_queue in fields.as_object(value, name).items():
        epoch, session, released = _items(value_of_queue, 3, name)
        found[fields.as_integer(queue, name)] = Fence(
            fields.as_integer(epoch, name), str(session), released is True
        )
    return found


def part_to_json(part: ProducersPart) -> dict[str, object]:
    """Producers of a queue: `{"upTo":9,"put":{"p":[epoch,next,offset,ms]},"gone":["q"]}`."""
    found: dict[str, object] = {
        "upTo": part.complete_to,
        "put": {name: list(state) for name, state in part.put.items()},
    }
    if part.gone:
        found["gone"] = list(part.gone)
    return found


def part_of(value: object, name: str) -> ProducersPart:
    """Read `part_to_json`. Raises FormatError."""
    found = fields.as_object(value, name)
    put = {}
    for producer, value_of_producer in fields.get_object(found, "put").items():
        epoch, following, offset, stored_ms = (
            fields.as_integer(item, name) for item in _items(value_of_producer, 4, name)
        )
        put[producer] = ProducerState(epoch, following, offset, stored_ms)
    gone = found.get("gone", [])
    if not isinstance(gone, list):
        raise FormatError(f"gone of {name} should be a list")
    return ProducersPart(fields.get_integer(found, "upTo", 0), put, tuple(map(str, gone)))


def ranges_to_json(ranges: Ranges) -> list[int]:
    """Ranges as records have them: `[first,end,first,end]`."""
    return [bound for pair in ranges for bound in pair]


def _ranges_of(ascending: Sequence[int]) -> Ranges:
    found: list[tuple[int, int]] = []
    for number in ascending:
        first = found.pop()[0] if found and found[-1][1] == number else number
        found.append((first, number + 1))
    return tuple(found)


def ranges_of(value: object, name: str) -> Ranges:
    """Read `ranges_to_json`. Raises FormatError."""
    if not isinstance(value, list) or len(value) % 2:
        raise FormatError(f"the ranges of {name} should be a list of pairs")
    bounds = [fields.as_integer(item, name) for item in value]
    return tuple(zip(bounds[::2], bounds[1::2], strict=True))


def _items(value: object, count: int, name: str) -> list[object]:
    if not isinstance(value, list) or len(value) != count:
        raise FormatError(f"an entry of {name} should be a list of {count}")
    return value
