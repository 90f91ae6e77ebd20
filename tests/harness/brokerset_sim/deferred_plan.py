"""What a seed draws for a group that has transactions and timer messages."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, replace
from typing import Final

from brokerset_sim.ledger_plan import LedgerPlan, draw_ledger

CHECK_MAX: Final = 3
CHECK_TIMEOUT_MS: Final = 250
CHECK_INTERVAL_MS: Final = 150
PRECISION_MS: Final = 100
WHEEL_SLOTS: Final = 60
"""Of half the wheel: it has 12 s."""

TIMER_FILE_BYTES: Final = 4_096
TIMER_FLUSH_MS: Final = 200
ROLL_WINDOW_SLOTS: Final = 8
"""What waits for 0.8 s or more rolls."""

MORE_FAULTS: Final = ("kill producer", "set clock", "full disk")
ALONE_FAULTS: Final = (
    "kill",
    "power",
    "end",
    "pause",
    "slow disk",
    "failing disk",
    "break connections",
    "kill producer",
    "set clock",
    "full disk",
)
"""Of the faults of a group all that a broker alone can have."""

LEFT_OUT: Final = ("delete files",)
"""Retention takes waiting messages, too: its least time is longer than any of them may wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferredPlan(LedgerPlan):
    """A run. Times are seconds of virtual time."""

    transaction_producers: int = 2
    timer_producers: int = 1
    clock_ms: int = 0
    """How far a clock is set forward or back at most."""

    delay_ms_max: int = 2_500


def draw_deferred(seed: int) -> DeferredPlan:
    """The plan of a seed."""
    plain = draw_ledger(seed)
    source = random.Random(f"{seed}/deferred plan")
    faults = [each for each in plain.faults if each not in LEFT_OUT]
    faults += source.sample(MORE_FAULTS, source.randint(0, len(MORE_FAULTS)))
    plan = DeferredPlan(**asdict(replace(plain, old_messages=0, producers=1, seconds=plain.seconds + 0.5)))
    return replace(
        plan,
        faults=tuple(faults),
        transaction_producers=source.randint(1, 3),
        timer_producers=source.randint(1, 2),
        clock_ms=source.choice((300, 2_000)) if "set clock" in faults else 0,
        delay_ms_max=source.choice((600, 2_500)),
    )
