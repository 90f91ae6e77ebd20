"""A flow as values: steps in order, each derived from facts, so that a command that was cut off goes on.

Nothing remembers "step 3 is done": a plan (`adopt_plan`, `finish_plan`, `upgrade_plan`) is a pure function of
what was observed, and says of every step how it stands. `flow` runs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple


class StepState(StrEnum):
    """How far a step is."""

    DONE = "done"
    READY = "ready"
    """Everything it needs is there; `brokerset` does it when it is told to go on."""

    YOURS = "yours"
    """It is for the person to do; `hint` says how, and the flow goes on when it is seen to be done."""

    WAITING = "waiting"
    """Under way; nobody needs to do anything but wait."""

    BLOCKED = "blocked"
    """It cannot be done as things are; `detail` says what stands against it and `hint` what to change."""

    LATER = "later"
    """A step before it is not done."""


class Standing(NamedTuple):
    """How a step stands, by the facts; the functions below make one."""

    state: StepState
    detail: str = ""
    hint: str = ""
    act: object = None


def done(detail: str = "") -> Standing:
    """The facts show it."""
    return Standing(StepState.DONE, detail)


def ready(detail: str = "", act: object = None) -> Standing:
    """It is ours to do now; `act` is what is done, where the name of the step does not say it."""
    return Standing(StepState.READY, detail, act=act)


def yours(detail: str, hint: str) -> Standing:
    """It is the person's to do."""
    return Standing(StepState.YOURS, detail, hint)


def waiting(detail: str) -> Standing:
    """It happens by itself."""
    return Standing(StepState.WAITING, detail)


def blocked(detail: str, hint: str) -> Standing:
    """It cannot be done as things are."""
    return Standing(StepState.BLOCKED, detail, hint)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a flow, as it stands now: `Step(name, title, *standing, back=...)`."""

    name: str
    """Short and stable, for `--to` and scripts: `join`, `switch:broker-a`."""

    title: str
    """What happens, as a sentence."""

    state: StepState
    detail: str = ""
    """What was seen: measurements, addresses, reasons."""

    hint: str = ""
    """What the person does next, when it is theirs or blocked."""

    act: object = None
    """What the flow does when it is ready; None where the name says it."""

    back: str = ""
    """How it is undone; empty for the step after which there is no way back, which its title says."""

    @property
    def kind(self) -> str:
        """The name without the group and the broker that it is about."""
        return self.name.partition(":")[0]


def current(steps: Sequence[Step]) -> Step | None:
    """The first step that is not done; None when all are."""
    return next((step for step in steps if step.state is not StepState.DONE), None)


def in_order(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The same steps, with those behind the current one as `LATER`, unless they are done or blocked."""
    now = current(steps)
    place = len(steps) if now is None else steps.index(now)
    return tuple(
        replace(step, state=StepState.LATER, hint="", act=None)
        if number > place and step.state not in (StepState.DONE, StepState.BLOCKED)
        else step
        for number, step in enumerate(steps)
    )


def until_step(steps: Sequence[Step], last: str | None) -> tuple[Step, ...]:
    """The steps up to one that is named, or to all of its kind: `retire` means every `retire:…`,
    and `retire:broker-a` every one of that group.

    Raises `KeyError` when none is meant.
    """
    if last is None or not steps:
        return tuple(steps)
    places = [number for number, step in enumerate(steps) if f"{step.name}:".startswith(f"{last}:")]
    if not places:
        raise KeyError(last)
    return tuple(steps[: places[-1] + 1])


def kinds(steps: Sequence[Step]) -> str:
    """The names that can be given to `--to`."""
    return ", ".join(dict.fromkeys(step.kind for step in steps))


def as_json(steps: Sequence[Step]) -> list[dict[str, Any]]:
    """The steps for scripts."""
    return [{key: value for key, value in asdict(step).items() if key != "act"} for step in steps]
