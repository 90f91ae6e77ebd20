"""What a rule answers, as values; `deciding` orders them, and leaves out what excludes each other.

A rule is a generator over facts: it yields actions, and steps of the kinds below. It changes nothing, and
what it yields is seen by the rules after it in the table, not by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum, auto
from typing import TYPE_CHECKING, Any, Final, TypeVar

from brokerset_operator.model.actions import Action

if TYPE_CHECKING:
    from brokerset_operator.plan.facts import Facts, GroupFacts

AT_ONCE_SECONDS: Final = 0.0
"""What was written down in this reconcile is done in the next."""

BUSY_SECONDS: Final = 2.0
"""How soon to reconcile again while something goes on without events, as brokers that come into sync."""

WAIT_SECONDS: Final = 15.0
"""How soon to reconcile again when something outside must change first."""

IDLE_SECONDS: Final = 300.0
"""How soon to reconcile again when everything is as wanted."""

CONTROLLERS: Final = "controllers"
"""Scope: the roll of the controllers."""

BROKERS: Final = "brokers"
"""Scope: the roll of brokers, which is in one group at a time."""


class Stage(IntEnum):
    """When an action is carried out, the first stage first. The first action that fails ends a reconcile."""

    OBJECTS = auto()
    """First: what a request may be refused for, a newer manifest may mend."""

    STUCK = auto()
    MEMBERS = auto()
    SIZE = auto()
    ROLL = auto()
    MEND = auto()
    REQUESTS = auto()
    EVENTS = auto()
    MINIMUM = auto()
    """From here on actions that may well be refused; only a scale-in waits for one, the minimum."""

    REFUSABLE = auto()
    SETTINGS = auto()


@dataclass(frozen=True, slots=True)
class At:
    """An action that is carried out in another stage than its rule's others."""

    stage: Stage
    action: Action


@dataclass(frozen=True, slots=True)
class Remember:
    """Change what is remembered of a group, or (index None) of the set."""

    index: int | None
    changes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class GoesOn:
    """Something is changing, and it is reconciled again soon; the first reason is that of Progressing."""

    reason: str
    message: str
    seconds: float = BUSY_SECONDS


@dataclass(frozen=True, slots=True)
class Waits:
    """Something that is wanted is not done now."""

    message: str
    seconds: float = BUSY_SECONDS


@dataclass(frozen=True, slots=True)
class Again:
    """Reconcile again so soon, or sooner."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Raise:
    """Tell people of something that they may have to act on; messages of one condition are joined."""

    condition: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Pods:
    """How many pods a StatefulSet is to have: of the group with this index, or (None) of the controllers."""

    index: int | None
    number: int
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Answers:
    """What `status.requests` says."""

    requests: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Takes:
    """Nothing that is `Unless` this scope is done in the rest of the reconcile.

    Scopes are `CONTROLLERS`, `BROKERS`, and a group's name, which its switchovers and fences take.
    """

    scope: str


@dataclass(frozen=True, slots=True)
class Unless:
    """Steps that hold unless an earlier step has taken the scope; then `otherwise` holds."""

    scope: str
    steps: tuple[Step, ...]
    otherwise: tuple[Step, ...] = ()


Step = Action | At | Remember | GoesOn | Waits | Again | Raise | Pods | Answers | Takes | Unless
Steps = Iterator[Step]

Found = TypeVar("Found")
Finding = Generator[Step, None, Found]
"""Steps of a part of a rule that finds something for the rest."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A row of the table of rules."""

    stage: Stage
    """Of its actions."""

    steps: Callable[[Facts], Steps]


def remember(group: GroupFacts, **changes: Any) -> Remember:
    """Change what is remembered of a group."""
    return Remember(group.index, changes)
