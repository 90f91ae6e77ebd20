"""What a seed draws for a group of brokers in DLedger mode."""

from __future__ import annotations

import random
from dataclasses import dataclass

FAULTS = (
    "kill",
    "kill leader",
    "power",
    "power leader",
    "power all",
    "end",
    "end leader",
    "pause",
    "pause leader",
    "cut",
    "cut one way",
    "cut off leader",
    "cut off leader one way",
    "slow disk",
    "failing disk",
    "transfer",
    "switchover",
    "break connections",
    "delete files",
)
"""What breaks, or is asked for; the last ones break nothing by themselves."""

POWER_FAULTS = ("power", "power leader", "power all")
"""With asynchronous flushing they may lose what was acknowledged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerPlan:
    """A run. Times are seconds of virtual time."""

    members: int = 3
    seconds: float = 3.0
    faults: tuple[str, ...] = ()
    pause: float = 0.3
    """Between two faults, in the mean."""

    down_max: float = 0.6
    hold_max: float = 1.0
    """How long a process is stopped, or a path cut, at most."""

    sync_flush: bool = True
    lost: float = 0.0
    late: float = 0.0
    reset: float = 0.0
    stalls: float = 0.0
    stall_max: float = 0.3
    drift: float = 0.0
    """How much faster or slower than others a clock runs at most."""

    producers: int = 2
    old_messages: int = 0
    """Messages of the commit log that the group had before the DLedger."""

    file_bytes: int = 16_384
    """Of each data file."""


def draw_ledger(seed: int) -> LedgerPlan:
    """The plan of a seed."""
    source = random.Random(f"{seed}/ledger plan")
    sync_flush = source.random() < 0.8
    allowed = [each for each in FAULTS if sync_flush or each not in POWER_FAULTS]
    return LedgerPlan(
        members=5 if source.random() < 0.15 else 3,
        seconds=1.2 + 1.3 * source.random(),
        faults=tuple(source.sample(allowed, source.randint(1, len(allowed)))),
        pause=source.choice((0.15, 0.3, 0.6)),
        down_max=source.choice((0.05, 0.5, 1.0)),
        hold_max=source.choice((0.3, 1.0, 2.0)),
        sync_flush=sync_flush,
        lost=source.choice((0.0, 0.0, 0.01, 0.05)),
        late=source.choice((0.0, 0.0, 0.02)),
        reset=source.choice((0.0, 0.0, 0.005)),
        stalls=source.choice((0.0, 0.0, 0.02, 0.1)),
        drift=source.choice((0.0, 0.01, 0.03)),
        producers=source.randint(1, 3),
        old_messages=source.choice((0, 0, 0, 20)),
        file_bytes=source.choice((16_384, 65_536)),
    )
