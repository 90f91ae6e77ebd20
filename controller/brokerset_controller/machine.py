"""The state machine behind the engine: broker groups, subjects, users; changed by committed events only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import orjson

from brokerset_controller import strict_json as read
from brokerset_controller.access import codec as access_codec
from brokerset_controller.access.codec import FORMER_VERSION, version_of
from brokerset_controller.access.machine import AccessMachine, AccessOutcome
from brokerset_controller.ordered import codec as ordered_codec
from brokerset_controller.ordered.machine import SubjectOutcome, SubjectsMachine
from brokerset_controller.replicas import codec
from brokerset_controller.replicas.apply import apply, broker_name_of
from brokerset_controller.replicas.events import Applied, Event, Outcome, Superseded
from brokerset_controller.replicas.state import GROUPS_MAX, Group


@dataclass(frozen=True, slots=True)
class Change:
    """A committed event and what it did."""

    index: int
    event: Event
    before: Group | None
    after: Group | None
    outcome: Outcome


class ReplicasMachine:
    """The engine's `StateMachine`; `listeners` hear of every event of a group after it was applied."""

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self.ordered = SubjectsMachine()
        """The subjects, whose entries stand in the same log."""

        self.access = AccessMachine()
        """Users and policies, in the same log."""

        self.listeners: list[Callable[[Change], None]] = []

    def group(self, broker_name: str | None) -> Group | None:
        """The group with this name, or None."""
        return self.groups.get(broker_name or "")

    def clusters(self) -> set[str]:
        """Names of the clusters of all groups."""
        return {group.cluster_name for group in self.groups.values()}

    def apply(self, index: int, data: bytes) -> Outcome | SubjectOutcome | AccessOutcome:
        """Apply one committed event.

        Raises `ValueError` for an entry that this version cannot read, which ends the process: to go on
        without it would make this controller differ from the others.
        """
        values = read.versioned(data, "an event", FORMER_VERSION)
        of_subject = ordered_codec.event_of(values)
        if of_subject is not None:
            return self.ordered.apply(index, of_subject)
        of_access = access_codec.event_of(values)
        if of_access is not None:
            return self.access.apply(of_access)
        event = codec.event_of(values)
        name = broker_name_of(event)
        before = self.groups.get(name)
        after: Group | None = before
        outcome: Outcome
        if before is None and len(self.groups) >= GROUPS_MAX:
            outcome = Superseded(f"the controllers keep {GROUPS_MAX} groups already")
        else:
            after, outcome = apply(before, event)
        if after is not None and after is not before:
            assert isinstance(outcome, Applied)
            self.groups[name] = after
        change = Change(index, event, before, after, outcome)
        for listener in self.listeners:
            listener(change)
        return outcome

    def snapshot(self) -> bytes:
        """Everything, the same bytes on every controller that applied the same entries.

        Without users, and without subjects, it is what controllers of before they existed write and read.
        """
        subjects, tombstones = self.ordered.subjects, self.ordered.tombstones
        if not subjects and not tombstones and self.access.is_empty:
            return codec.encode_groups(self.groups.values())
        listed = [ordered_codec.subject_values(subject) for _, subject in sorted(subjects.items())]
        deleted = [ordered_codec.tombstone_values(each) for _, each in sorted(tombstones.items())]
        groups = codec.group_values(self.groups.values())
        if self.access.is_empty:
            return orjson.dumps([ordered_codec.ORDERED_VERSION, groups, listed, deleted])
        users = access_codec.machine_values(self.access)
        return orjson.dumps([version_of(self.access.book.users), groups, listed, deleted, users])

    def restore(self, data: bytes) -> None:
        """Replace everything by a snapshot's. Raises `ValueError` for one that cannot be read."""
        values = read.versioned(data, "a snapshot", FORMER_VERSION)
        groups, *more = values or [[]]
        if len(more) not in (0, 2, 3):
            raise ValueError(f"a snapshot of {len(values)} parts")
        subjects, tombstones = more[:2] or ([], [])
        known = codec.groups_of(groups)
        self.ordered.restore(
            [ordered_codec.subject_of(each) for each in read.items(subjects)],
            [ordered_codec.tombstone_of(each) for each in read.items(tombstones)],
        )
        access_codec.restore(self.access, more[2] if len(more) > 2 else None)
        self.groups = known
