"""Everything about ordered subjects that is replicated, as one value that records change. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from brokerset_broker.tables.ordered.values import (
    ClaimKey,
    Fence,
    FencesPut,
    OrderedChange,
    ProducersPart,
    ProducersPut,
    ProducerState,
    Ranges,
    SharedAcksPut,
    Subject,
    SubjectsPut,
    claim_key,
    claim_name,
    fences_of,
    fences_to_json,
    part_of,
    part_to_json,
    queue_key,
    ranges_of,
    ranges_to_json,
    split_queue_key,
    subject_name,
    subject_of,
    subject_to_json,
)
from brokerset_formats.config import fields


@dataclass(slots=True)
class QueueProducers:
    """The producers of one queue."""

    complete_to: int = 0
    """All messages below this queue offset are counted."""

    producers: dict[str, ProducerState] = field(default_factory=dict)

    def apply(self, part: ProducersPart) -> None:
        """Change what `part` names."""
        self.complete_to = part.complete_to
        self.producers.update(part.put)
        for name in part.gone:
            self.producers.pop(name, None)


@dataclass(slots=True)
class OrderedState:
    """Subjects, fences, producers, and what Shared groups have acknowledged, of one broker group."""

    subjects: dict[str, Subject] = field(default_factory=dict)
    fences: dict[str, dict[str, dict[int, Fence]]] = field(default_factory=dict)
    """Topic -> group -> queue id."""

    producers: dict[str, dict[int, QueueProducers]] = field(default_factory=dict)
    """Topic -> queue id."""

    shared_acks: dict[ClaimKey, Ranges] = field(default_factory=dict)
    """Above the groups' positions; there may be parts below, which mean nothing."""

    def apply(self, change: OrderedChange) -> None:
        """Change the state; never fails, and doing it twice is doing it once."""
        match change:
            case SubjectsPut():
                self.subjects.update(change.subjects)
                self._forget_retired(change.retired)
            case FencesPut():
                for key, queues in change.fences.items():
                    topic, _, group = key.partition("@")
                    known = self.fences.setdefault(topic, {}).setdefault(group, {})
                    for queue_id, fence in queues.items():
                        if fence.overtakes(known.get(queue_id)):
                            known[queue_id] = fence
            case ProducersPut():
                for key, part in change.queues.items():
                    topic, queue_id = split_queue_key(key)
                    queues_of = self.producers.setdefault(topic, {})
                    queues_of.setdefault(queue_id, QueueProducers()).apply(part)
            case SharedAcksPut():
                for claim, ranges in change.acks.items():
                    self.put_acks(claim, ranges)

    def _forget_retired(self, retired: Mapping[str, frozenset[int]]) -> None:
        """Nothing is kept for groups of these queues of subjects, nor of the queues for retry."""
        if not retired:
            return
        for topic, groups in list(self.fences.items()):
            for group, queues in list(groups.items()):
                for queue_id in retired.get(subject_name(topic), frozenset()) & queues.keys():
                    del queues[queue_id]
                if not queues:
                    del groups[group]
            if not groups:
                del self.fences[topic]
        self.forget_acks(lambda key: key.queue_id in retired.get(subject_name(key.topic), ()))

    def put_acks(self, key: ClaimKey, ranges: Ranges) -> None:
        """All that a Shared group has acknowledged of a queue above its position."""
        if ranges:
            self.shared_acks[key] = ranges
        else:
            self.shared_acks.pop(key, None)

    def forget_acks(self, gone: Callable[[ClaimKey], bool]) -> None:
        """The groups go on at their positions, and consume all that follows."""
        for key in [key for key in self.shared_acks if gone(key)]:
            del self.shared_acks[key]

    def offsets_reset(self, resets: Mapping[str, Iterable[int]]) -> None:
        """Offsets of `topic@group` were set from outside."""
        for name, queues in resets.items():
            topic, _, group = name.partition("@")
            for queue_id in queues:
                self.shared_acks.pop(ClaimKey(topic, group, queue_id), None)

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted."""
        self.subjects.pop(topic, None)
        self.fences.pop(topic, None)
        self.producers.pop(topic, None)
        self.forget_acks(lambda key: key.topic == topic)

    def fence(self, topic: str, group: str, queue_id: int) -> Fence | None:
        """The fence of a queue for a group, as confirmed."""
        groups = self.fences.get(topic)
        return None if groups is None else groups.get(group, {}).get(queue_id)

    def fence_count(self) -> int:
        """How many there are."""
        return sum(len(queues) for groups in self.fences.values() for queues in groups.values())

    def producer_count(self) -> int:
        """How many there are, of all queues."""
        return sum(len(queue.producers) for queues in self.producers.values() for queue in queues.values())

    def copy(self) -> OrderedState:
        """The same, independent of later changes."""
        return OrderedState(
            dict(self.subjects),
            {
                topic: {group: dict(queues) for group, queues in groups.items()}
                for topic, groups in self.fences.items()
            },
            {
                topic: {
                    queue_id: QueueProducers(queue.complete_to, dict(queue.producers))
                    for queue_id, queue in queues.items()
                }
                for topic, queues in self.producers.items()
            },
            dict(self.shared_acks),
        )

    # -- sections of snapshots, and of the file -----------------------------------------------------------

    def entries(self) -> Iterator[tuple[str, str, Callable[[], object | None]]]:
        """Section, key, and what the key has when that is asked for: None if it is gone."""
        for topic in list(self.subjects):
            yield "subjects", topic, partial(self._subject, topic)
        for topic, groups in list(self.fences.items()):
            for group in list(groups):
                yield "fences", f"{topic}@{group}", partial(self._fences, topic, group)
        for topic, queues in list(self.producers.items()):
            for queue_id in list(queues):
                yield "producers", queue_key(topic, queue_id), partial(self._part, topic, queue_id)
        for key in list(self.shared_acks):
            yield "sharedAcks", claim_name(key), partial(self._acks, key)

    def _subject(self, topic: str) -> object | None:
        subject = self.subjects.get(topic)
        return None if subject is None else subject_to_json(subject)

    def _fences(self, topic: str, group: str) -> object | None:
        queues = self.fences.get(topic, {}).get(group)
        return fences_to_json(queues) if queues else None

    def _part(self, topic: str, queue_id: int) -> object | None:
        queue = self.producers.get(topic, {}).get(queue_id)
        return None if queue is None else part_to_json(ProducersPart(queue.complete_to, queue.producers))

    def _acks(self, key: ClaimKey) -> object | None:
        ranges = self.shared_acks.get(key)
        return ranges_to_json(ranges) if ranges else None

    def add_sections(self, found: Mapping[str, object]) -> None:
        """Add what a chunk or the file has. Raises FormatError."""
        for change in changes_of(found):
            self.apply(change)

    def to_json(self) -> dict[str, object]:
        """All sections."""
        sections: dict[str, dict[str, object]] = {}
        for section, key, value in self.entries():
            sections.setdefault(section, {})[key] = value()
        return {**sections}


def changes_of(found: Mapping[str, object]) -> list[OrderedChange]:
    """The changes that the sections of a record or chunk say. Raises FormatError."""
    changes: list[OrderedChange] = []
    if "subjects" in found:
        items = fields.get_object(found, "subjects").items()
        changes.append(SubjectsPut({topic: subject_of(value, topic) for topic, value in items}))
    if "fences" in found:
        items = fields.get_object(found, "fences").items()
        changes.append(FencesPut({key: fences_of(value, key) for key, value in items}))
    if "producers" in found:
        items = fields.get_object(found, "producers").items()
        parts = {key: part_of(value, key) for key, value in items}
        for key in parts:
            split_queue_key(key)
        changes.append(ProducersPut(parts))
    if "sharedAcks" in found:
        items = fields.get_object(found, "sharedAcks").items()
        changes.append(SharedAcksPut({claim_key(key): ranges_of(value, key) for key, value in items}))
    return changes
