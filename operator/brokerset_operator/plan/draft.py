"""A plan while the rules write it: actions in order, what is remembered, what people are told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from brokerset_operator.model.actions import Action
from brokerset_operator.plan.facts import Facts, GroupFacts
from brokerset_operator.plan.objects import Template
from brokerset_operator.plan.workflow import GroupWork, Replacing, Workflow

AT_ONCE_SECONDS: Final = 0.0
"""What was written down in this round is done in the next."""

BUSY_SECONDS: Final = 2.0
"""How soon to look again while something goes on without events: brokers come into sync, votes are given."""

WAIT_SECONDS: Final = 15.0
"""How soon to look again when something outside must change first."""

IDLE_SECONDS: Final = 300.0
"""How soon to look again when everything is as wanted."""


@dataclass(slots=True)
class Draft:
    """What one round has decided so far."""

    facts: Facts
    actions: list[Action] = field(default_factory=list)
    last: list[Action] = field(default_factory=list)
    """Actions that may well be refused; nothing waits for them."""

    notes: list[str] = field(default_factory=list)
    works: dict[int, GroupWork] = field(default_factory=dict)
    controller: Replacing | None = None
    controller_replicas: int = 0
    blank_controllers: bool = False
    requests: dict[str, Any] = field(default_factory=dict)
    progress: list[tuple[str, str]] = field(default_factory=list)
    """Reason and message of everything that goes on; the first one is told."""

    raised: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Conditions that are there only while they are true, with reason and message."""

    look_again_seconds: float = IDLE_SECONDS
    templates: Mapping[str, Template] = field(default_factory=dict)
    """The newest pod templates by StatefulSet."""

    @property
    def workflow(self) -> Workflow:
        """What is to be remembered."""
        return Workflow(
            controllers=self.controller,
            controller_replicas=self.controller_replicas,
            blank_controllers=self.blank_controllers,
            groups=dict(sorted(self.works.items())),
        )

    def act(self, action: Action) -> None:
        """Do this, after everything that was decided before."""
        self.actions.append(action)

    def work_of(self, group: GroupFacts) -> GroupWork:
        """What is remembered of a group, with this round's changes."""
        return self.works.get(group.index, group.work)

    def remember(self, group: GroupFacts, **changes: Any) -> None:
        """Change what is remembered of a group."""
        self.works[group.index] = replace(self.work_of(group), **changes)

    def look(self, seconds: float) -> None:
        """Look again so soon, or sooner."""
        self.look_again_seconds = min(self.look_again_seconds, seconds)

    def goes_on(self, reason: str, message: str, seconds: float = BUSY_SECONDS) -> None:
        """Something is changing, and it is looked after again soon."""
        self.progress.append((reason, message))
        self.look(seconds)

    def waits(self, message: str, seconds: float = BUSY_SECONDS) -> None:
        """Something that is wanted is not done now."""
        self.notes.append(message)
        self.look(seconds)

    def raise_condition(self, kind: str, reason: str, message: str) -> None:
        """Tell people of something that they may have to act on; messages of one kind are joined."""
        known = self.raised.get(kind)
        if known is None:
            self.raised[kind] = (reason, message)
        elif message not in known[1]:
            self.raised[kind] = (known[0], f"{known[1]}; {message}")


def begin(facts: Facts) -> Draft:
    """A plan without decisions; what is seen of identities is remembered already."""
    draft = Draft(
        facts=facts,
        controller=facts.workflow.controllers,
        controller_replicas=facts.workflow.controller_replicas,
        blank_controllers=facts.workflow.blank_controllers,
        works=dict(facts.workflow.groups),
    )
    for group in facts.groups.values():
        if not group.dropped or group.known:
            learn(draft, group)
    return draft


def learn(draft: Draft, group: GroupFacts) -> None:
    """Remember which id is on which volume, how many pods there are, and whether it ever had a master."""
    led = group.work.led or (group.state is not None and not group.virgin)
    seen = group.keeper.replicas if group.keeper is not None and not group.keeper.deleting else 0
    draft.remember(group, led=led, ids=_ids(group), replicas=max(seen, group.work.replicas))


def _ids(group: GroupFacts) -> dict[int, int]:
    """Ids by ordinal; what contradicts what is known counts only when everything is seen and fits.

    A pod's address may have been another pod's a moment ago, and controllers tell of a dead process for two
    seconds: an id that seems to have moved to another ordinal has most likely not.
    """
    known = dict(group.work.ids)
    seen = {n: broker.replica.broker_id for n, broker in group.brokers.items() if broker.replica is not None}
    if len(seen) == len(group.brokers) == len(set(seen.values())):
        return dict(sorted((known | seen).items()))
    for ordinal, broker_id in seen.items():
        if broker_id not in known.values():
            known[ordinal] = broker_id
    return dict(sorted(known.items()))


def named_in(annotation: str | None, group: GroupFacts) -> bool:
    """Return whether an annotation's list names a group, by its broker name or its StatefulSet's."""
    listed: Sequence[str] = [part.strip() for part in (annotation or "").split(",")]
    return group.name in listed or group.resource in listed
