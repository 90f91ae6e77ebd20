"""The state machine behind the engine: all groups by name, changed by committed events only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from brokerset_controller.replicas.apply import apply, broker_name_of
from brokerset_controller.replicas.codec import decode_event, decode_groups, encode_groups
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
    """The engine's `StateMachine`; `listeners` hear of every event after it was applied."""

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self.listeners: list[Callable[[Change], None]] = []

    def group(self, broker_name: str | None) -> Group | None:
        """The group with this name, or None."""
        return self.groups.get(broker_name or "")

    def apply(self, index: int, data: bytes) -> Outcome:
        """Apply one committed event.

        Raises `ValueError` for an entry that this version cannot read, which ends the process: to go on
        without it would make this controller differ from the others.
        """
        event = decode_event(data)
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
        """All groups, the same bytes on every controller that applied the same entries."""
        return encode_groups(self.groups.values())

    def restore(self, data: bytes) -> None:
        """Replace all groups by a snapshot's. Raises `ValueError` for one that cannot be read."""
        self.groups = decode_groups(data)
