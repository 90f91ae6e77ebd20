"""All subjects by name, changed by committed events only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from brokerset_controller.ordered.apply import GuardFailed, apply
from brokerset_controller.ordered.events import Event, SubjectCreated
from brokerset_controller.ordered.state import SUBJECTS_MAX, Subject
from brokerset_controller.replicas.events import Applied, Outcome, Superseded


@dataclass(frozen=True, slots=True)
class SubjectChange:
    """A committed event of a subject and what it did."""

    index: int
    event: Event
    before: Subject | None
    after: Subject | None
    outcome: Outcome


class SubjectsMachine:
    """Part of the engine's `StateMachine`; `listeners` hear of every event after it was applied."""

    def __init__(self) -> None:
        self.subjects: dict[str, Subject] = {}
        self.listeners: list[Callable[[SubjectChange], None]] = []

    def apply(self, index: int, event: Event) -> Outcome:
        """Apply one committed event."""
        name = event.subject
        before = self.subjects.get(name)
        after = before
        outcome: Outcome = Applied()
        if before is None and isinstance(event, SubjectCreated) and len(self.subjects) >= SUBJECTS_MAX:
            outcome = Superseded(f"the controllers keep {SUBJECTS_MAX} subjects already")
        else:
            try:
                after = apply(before, event)
            except GuardFailed as failed:
                outcome = Superseded(str(failed))
        if after is None:
            self.subjects.pop(name, None)
        else:
            self.subjects[name] = after
        change = SubjectChange(index, event, before, after, outcome)
        for listener in self.listeners:
            listener(change)
        return outcome
