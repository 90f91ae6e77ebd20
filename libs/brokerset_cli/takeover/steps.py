"""A flow: steps in order, each derived from what is seen, so that a command that was cut off goes on.

Nothing remembers "step 3 is done": pure code (`adopt_plan`, `upgrade_plan`) looks at facts and says of every
step whether it is done. The shell shows that, does what is ours to do, and looks again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


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


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a flow, as it stands now."""

    name: str
    """Short and stable, for `--to` and scripts: `join`, `switch:broker-a`."""

    title: str
    """What happens, as a sentence."""

    state: StepState
    detail: str = ""
    """What was seen: figures, addresses, reasons."""

    hint: str = ""
    """What the person does next, when it is theirs or blocked."""

    back: str = ""
    """How it is undone; empty for the step after which there is no way back, which its title says."""


def current(steps: Sequence[Step]) -> Step | None:
    """The first step that is not done; None when all are."""
    return next((step for step in steps if step.state is not StepState.DONE), None)


def in_order(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The same steps, with those behind the current one as `LATER`, unless they are done or blocked."""
    found: list[Step] = []
    behind = False
    for step in steps:
        late = behind and step.state not in (StepState.DONE, StepState.BLOCKED)
        found.append(
            Step(step.name, step.title, StepState.LATER, step.detail, "", step.back) if late else step
        )
        behind = behind or step.state is not StepState.DONE
    return tuple(found)


def as_json(steps: Sequence[Step]) -> list[dict[str, Any]]:
    """The steps for scripts."""
    return [
        {
            "name": step.name,
            "title": step.title,
            "state": step.state.value,
            "detail": step.detail,
            "hint": step.hint,
            "back": step.back,
        }
        for step in steps
    ]
