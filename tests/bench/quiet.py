"""Whether the machine is quiet enough to measure on: checked before each case, and judged again after each run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from tests.bench.machine import Snapshot, Usage, snapshot, usage

OTHERS_CORES_MAX = 0.05
"""Others and the host together; above that a case is repeated, marked or refused."""

GENERATOR_CORES_MAX = 0.9
"""A load generator that is as busy as this may be what was measured."""

CHECK_SECONDS = 1.0


class MachineBusy(Exception):
    """Others use the machine, and `--strict` was given."""


class Step(Enum):
    """What to do after a look at the machine."""

    MEASURE = "measure"
    WAIT = "wait"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for a quiet machine, and whether to measure on a busy one at all."""

    seconds: float
    strict: bool


@dataclass(frozen=True, slots=True)
class Observation:
    """One run of a case on one side, and what disturbed it."""

    side: str
    use: Usage
    generator: float
    """Cores that the load generator used."""


def decide_step(use: Usage, waited: float, patience: Patience) -> Step:
    """Measure on a quiet machine; otherwise wait, and then measure with a remark, or refuse."""
    if use.disturbance <= OTHERS_CORES_MAX:
        return Step.MEASURE
    if waited < patience.seconds:
        return Step.WAIT
    return Step.REFUSE if patience.strict else Step.MEASURE


def await_quiet(
    patience: Patience,
    sleep: Callable[[float], None] = time.sleep,
    observe: Callable[[], Snapshot] = snapshot,
) -> Usage:
    """Return what others use when measuring may begin. Raises `MachineBusy`."""
    begun = before = observe()
    while True:
        sleep(CHECK_SECONDS)
        after = observe()
        use = usage(before, after)
        step = decide_step(use, after.at - begun.at, patience)
        if step is Step.MEASURE:
            return use
        if step is Step.REFUSE:
            raise MachineBusy(
                f"others use {use.others:.2f} cores and the host takes {use.stolen:.2f}, more than "
                f"{OTHERS_CORES_MAX} for {patience.seconds:g} s: end them, or measure without --strict"
            )
        before = after


def remarks(observations: list[Observation]) -> list[str]:
    """What readers must know of a case: the most that anything disturbed it, and which sides that met."""
    found = []
    measures: list[tuple[str, float, Callable[[Observation], float]]] = [
        ("others used", OTHERS_CORES_MAX, lambda one: one.use.others),
        ("the host took", OTHERS_CORES_MAX, lambda one: one.use.stolen),
        ("the load generator used", GENERATOR_CORES_MAX, lambda one: one.generator),
    ]
    for words, limit, value in measures:
        above = [one for one in observations if value(one) > limit]
        if above:
            sides = ", ".join(dict.fromkeys(one.side for one in above))
            found.append(f"{words} up to {max(map(value, above)):.2f} cores ({sides})")
    return found
