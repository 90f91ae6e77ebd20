"""What a seed draws for a group in controller mode that has transactions and timer messages."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from brokerset_sim.deferred_plan import MORE_FAULTS, DeferredPlan
from brokerset_sim.ledger_plan import POWER_FAULTS

OF_BROKERS: Final = (
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
    "switchover",
    "break connections",
)
"""Faults that a DLedger group has, too; cuts are between brokers."""

OF_CONTROLLERS: Final = (
    "elect",
    "break replication",
    "isolate leader",
    "kill controller",
    "power controller",
    "pause controller",
    "cut off controller",
)
"""Faults that need controllers: "isolate leader" cuts a master off brokers and controllers, not clients."""

FAULTS: Final = (*OF_BROKERS, *OF_CONTROLLERS)

HEARTBEAT_MS: Final = 150
DEAD_MS: Final = 700
"""A broker that was silent for so long is dead, and a lease has this length at most."""

POLL_MS: Final = 300
TICK_MS: Final = 60
SLAVE_BEHIND_MS: Final = 500
"""A slave that was behind for so long leaves the in-sync set."""

PIECE_BYTES: Final = 2_048
"""Of the log that go to a slave at a time: more than a record, less than what waits after a pause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferredGroupPlan(DeferredPlan):
    """A run. Times are seconds of virtual time."""

    controllers: int = 3
    min_in_sync: int = 2
    tick_ms: int = TICK_MS
    snapshot_entries: int = 100
    unclean: bool = False
    """Never: then messages may be lost."""


def draw_deferred_group(seed: int) -> DeferredGroupPlan:
    """The plan of a seed."""
    source = random.Random(f"{seed}/deferred group plan")
    sync_flush = source.random() < 0.7
    allowed = [each for each in FAULTS if sync_flush or each not in POWER_FAULTS or each == "power"]
    faults = source.sample(allowed, source.randint(1, len(allowed)))
    faults += source.sample(MORE_FAULTS, source.randint(0, len(MORE_FAULTS)))
    members = source.choice((2, 3, 3, 3))
    return DeferredGroupPlan(
        members=members,
        min_in_sync=min(members - 1, source.choice((1, 2, 2))),
        controllers=source.choice((1, 3, 3)),
        snapshot_entries=source.choice((10, 100)),
        seconds=2.0 + 1.5 * source.random(),
        faults=tuple(faults),
        pause=source.choice((0.2, 0.4, 0.8)),
        down_max=source.choice((0.05, 0.5, 1.0)),
        hold_max=source.choice((0.3, 1.0, 2.0)),
        sync_flush=sync_flush,
        lost=source.choice((0.0, 0.0, 0.01, 0.05)),
        late=source.choice((0.0, 0.0, 0.02)),
        reset=source.choice((0.0, 0.0, 0.005)),
        stalls=source.choice((0.0, 0.0, 0.02, 0.1)),
        drift=source.choice((0.0, 0.01, 0.03)),
        producers=1,
        transaction_producers=source.randint(1, 3),
        timer_producers=source.randint(1, 2),
        clock_ms=source.choice((300, 2_000)) if "set clock" in faults else 0,
        delay_ms_max=source.choice((600, 2_500)),
        file_bytes=source.choice((16_384, 65_536)),
    )
