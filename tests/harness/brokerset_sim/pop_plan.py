"""What a seed draws for a group whose messages are popped."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from brokerset_sim.deferred_group_plan import DeferredGroupPlan, draw_deferred_group
from brokerset_sim.deferred_plan import ALONE_FAULTS, DeferredPlan, draw_deferred

CLOCK_SKEW_MS: Final = 150
"""By so much may the clock of another master be ahead."""

COPY_DISTANCE: Final = 64
"""Records behind a check point until it is appended again: the least that is allowed."""

REVIVE_QUEUES: Final = 2
GROUPS: Final = ("popped-0", "popped-1")
ORDERED: Final = "popped-in-order"
WAIT_MS_MAX: Final = 250
NOTIFY_MS_MAX: Final = 1_200
POINTS_MANY: Final = 500_000
"""Check points that may be open, if a seed does not want that they run out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PopPlan(DeferredGroupPlan):
    """A run. Times are seconds of virtual time."""

    transaction_producers: int = 0
    timer_producers: int = 0
    poppers: int = 4
    ordered_poppers: int = 2
    notified: int = 3
    """Clients that take nothing; each group has one, also the ordered one."""

    invisible_ms: tuple[int, ...] = (80, 300, 1_000)
    careless: float = 0.3
    """Chance that a message is not acknowledged, or late, or with another handle."""

    retry_v2: bool = False
    separate_retry_queue: bool = False
    points_max: int = POINTS_MANY
    """Check points that may be open."""


def draw_pop(seed: int) -> PopPlan:
    """The plan of a seed for a group in controller mode."""
    return _with_pops(draw_deferred_group(seed), random.Random(f"{seed}/pop plan"))


def draw_pop_ledger(seed: int) -> PopPlan:
    """The plan of a seed for a DLedger group."""
    return _with_pops(draw_deferred(seed), random.Random(f"{seed}/pop dledger plan"))


def draw_pop_alone(seed: int) -> PopPlan:
    """The plan of a seed for a broker alone: it dies again and again."""
    plain = draw_deferred(seed)
    source = random.Random(f"{seed}/pop alone plan")
    allowed = [each for each in ALONE_FAULTS if plain.sync_flush or each != "power"]
    faults = tuple(source.sample(allowed, source.randint(1, len(allowed))))
    clock_ms = source.choice((300, 2_000)) if "set clock" in faults else 0
    return _with_pops(replace(plain, members=1, faults=faults, clock_ms=clock_ms, drift=0.0), source)


def _with_pops(plain: DeferredPlan, source: random.Random) -> PopPlan:
    known: dict[str, Any] = {field.name: getattr(plain, field.name) for field in fields(plain)}
    plan = PopPlan(**known | {"transaction_producers": 0, "timer_producers": 0})
    return replace(
        plan,
        producers=source.randint(1, 2),
        poppers=source.randint(2, 5),
        invisible_ms=tuple(source.sample((60, 150, 400, 1_000, 2_000), source.randint(1, 3))),
        careless=source.choice((0.1, 0.3, 0.6)),
        retry_v2=source.random() < 0.3,
        separate_retry_queue=source.random() < 0.3,
        points_max=source.choice((POINTS_MANY, POINTS_MANY, POINTS_MANY, 12)),
        ordered_poppers=source.randint(1, 3),
    )
