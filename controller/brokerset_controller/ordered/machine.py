"""All subjects by name, changed by committed events only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from brokerset_controller.ordered import limits
from brokerset_controller.ordered.apply import GuardFailed, apply
from brokerset_controller.ordered.events import Event
from brokerset_controller.ordered.state import Entry, Subject, Tombstone
from brokerset_controller.replicas.events import Superseded


@dataclass(frozen=True, slots=True)
class Changed:
    """An event took effect; what stands behind the subject's name after it."""

    after: Entry


SubjectOutcome = Changed | Superseded


@dataclass(frozen=True, slots=True)
class SubjectChange:
    """A committed event of a subject and what it did."""

    index: int
    event: Event
    before: Entry | None
    after: Entry | None
    outcome: SubjectOutcome


class SubjectsMachine:
    """Part of the engine's `StateMachine`; `listeners` hear of every event after it was applied."""

    def __init__(self) -> None:
        self.subjects: dict[str, Subject] = {}
        self.tombstones: dict[str, Tombstone] = {}
        """What is kept of deleted subjects."""

        self.listeners: list[Callable[[SubjectChange], None]] = []
        self._parts = 0
        self._partitions_on: dict[str, int] = {}

    def entry(self, name: str) -> Entry | None:
        """What stands behind a name."""
        return self.subjects.get(name) or self.tombstones.get(name)

    def entries(self) -> list[Entry]:
        """Subjects, and what is left of deleted ones."""
        return [*self.subjects.values(), *self.tombstones.values()]

    @property
    def parts(self) -> int:
        """What all subjects have together, at most `PARTS_MAX`."""
        return self._parts

    @property
    def partitions_on(self) -> Mapping[str, int]:
        """Partitions by broker group."""
        return self._partitions_on

    def check(self, event: Event) -> Entry:
        """What an event would give if it were applied now. Raises `GuardFailed`."""
        before = self.entry(event.subject)
        if before is None and len(self.subjects) + len(self.tombstones) >= limits.SUBJECTS_MAX:
            raise GuardFailed(
                f"{event.subject}: the controllers keep {limits.SUBJECTS_MAX} names of subjects already,"
                " those of deleted ones included; use such a one again"
            )
        after = apply(before, event)
        if isinstance(after, Subject):
            grows = limits.parts(after) - (limits.parts(before) if isinstance(before, Subject) else 0)
            if grows > 0 and self._parts + grows > limits.PARTS_MAX:
                raise GuardFailed(
                    f"{event.subject}: the controllers keep {self._parts} partitions, groups and members"
                    f" already, and {grows} more would be more than {limits.PARTS_MAX}; remove groups that"
                    " nobody uses, or delete subjects"
                )
        return after

    def apply(self, index: int, event: Event) -> SubjectOutcome:
        """Apply one committed event."""
        name = event.subject
        before = self.entry(name)
        after = before
        outcome: SubjectOutcome
        try:
            after = self.check(event)
            outcome = Changed(after)
        except GuardFailed as failed:
            outcome = Superseded(str(failed))
        if after is not None and after is not before:
            self._put(before, after)
        change = SubjectChange(index, event, before, after, outcome)
        for listener in self.listeners:
            listener(change)
        return outcome

    def restore(self, subjects: Iterable[Subject], tombstones: Iterable[Tombstone]) -> None:
        """Replace everything by what a snapshot has. Raises `ValueError` for a name that is there twice."""
        entries: list[Entry] = [*subjects, *tombstones]
        if len({each.name for each in entries}) != len(entries):
            raise ValueError("a subject is there twice")
        self.subjects, self.tombstones = {}, {}
        self._parts, self._partitions_on = 0, {}
        for entry in entries:
            self._put(None, entry)

    def _put(self, before: Entry | None, after: Entry) -> None:
        if (
            isinstance(before, Subject)
            and isinstance(after, Subject)
            and before.partitions is after.partitions
        ):  # as with most events: of members and ownerships
            self._parts += limits.parts(after) - limits.parts(before)
        else:
            self._count(before, -1)
            self._count(after, 1)
        if isinstance(after, Subject):
            self.subjects[after.name] = after
            self.tombstones.pop(after.name, None)
        else:
            self.tombstones[after.name] = after
            self.subjects.pop(after.name, None)

    def _count(self, entry: Entry | None, by: int) -> None:
        if not isinstance(entry, Subject):
            return
        self._parts += by * limits.parts(entry)
        for each in entry.partitions.values():
            place = each.broker_group
            self._partitions_on[place] = self._partitions_on.get(place, 0) + by
            if not self._partitions_on[place]:
                del self._partitions_on[place]
