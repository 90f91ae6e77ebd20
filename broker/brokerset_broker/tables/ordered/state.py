"""Everything about ordered subjects that is replicated, as one value that records change. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from brokerset_broker.tables.ordered.values import (
    Fence,
    FencesPut,
    OrderedChange,
    ProducersPart,
    ProducersPut,
    ProducerState,
    Subject,
    SubjectsPut,
    fences_of,
    fences_to_json,
    part_of,
    part_to_json,
    queue_key,
    split_queue_key,
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
    """Subjects, fences and producers of one broker group."""

    subjects: dict[str, Subject] = field(default_factory=dict)
    fences: dict[str, dict[str, dict[int, Fence]]] = field(default_factory=dict)
    """Topic -> group -> queue id."""

    producers: dict[str, dict[int, QueueProducers]] = field(default_factory=dict)
    """Topic -> queue id."""

    def apply(self, change: OrderedChange) -> None:
        """Change the state; never fails, and doing it twice is doing it once."""
        match change:
            case SubjectsPut():
                self.subjects.update(change.subjects)
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

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted."""
        self.subjects.pop(topic, None)
        self.fences.pop(topic, None)
        self.producers.pop(topic, None)

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

    def _subject(self, topic: str) -> object | None:
        subject = self.subjects.get(topic)
        return None if subject is None else subject_to_json(subject)

    def _fences(self, topic: str, group: str) -> object | None:
        queues = self.fences.get(topic, {}).get(group)
        return fences_to_json(queues) if queues else None

    def _part(self, topic: str, queue_id: int) -> object | None:
        queue = self.producers.get(topic, {}).get(queue_id)
        return None if queue is None else part_to_json(ProducersPart(queue.complete_to, queue.producers))

    def add_sections(self, found: Mapping[str, object]) -> None:
        """Add what a chunk or the file has. Raises FormatError."""
        for change in changes_of(found):
            self.apply(change)

    def to_json(self) -> dict[str, object]:
        """All sections."""
        sections: dict[str, dict[str, object]] = {"subjects": {}, "fences": {}, "producers": {}}
        for section, key, value in self.entries():
            sections[section][key] = value()
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
    return changes
