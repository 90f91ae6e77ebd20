"""Deliberate bugs of transactions, timers and replication in controller mode, which checkers must notice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from brokerset_broker.member.gateway.gateway import Gateway
from brokerset_broker.member.ha.leader import Leader
from brokerset_broker.services.delay import DelayService
from brokerset_sim import timer_oracle as timers
from brokerset_sim import transaction_oracle as transactions
from brokerset_sim.broken_deferred import VARIANTS as OF_DLEDGER
from brokerset_sim.broken_deferred import DeferredVariant
from brokerset_sim.broken_ledger import Patch
from brokerset_sim.deferred_group_plan import DeferredGroupPlan, draw_deferred_group
from brokerset_sim.deferred_groups import simulate_deferred_group
from brokerset_sim.lease_checker import SERVED_WITH_LEASE
from brokerset_sim.ledger_checker import COMMITTED, KEPT, METADATA, QUORUM, READS
from brokerset_sim.ledger_world import PROGRESS
from brokerset_sim.world import Outcome


@dataclass(frozen=True, slots=True)
class DeferredGroupVariant(DeferredVariant):
    """A bug, what it must be caught by, and runs in which it shows soon."""

    first: int = 0
    """The seed to begin with."""

    def run(self, seed: int) -> Outcome:
        """One seed, with the bug if it is on."""
        assert isinstance(self.plan, DeferredGroupPlan)
        return simulate_deferred_group(self.first + seed, self.plan)


def _acknowledged_at_once() -> list[Patch]:
    return [(Leader, "is_acknowledged", lambda self, end: True)]


def _lease_not_checked() -> list[Patch]:
    return [(Gateway, "_guarded", lambda self, kind, handler: handler)]


def _unconfirmed_delays_sleep() -> list[Patch]:
    return [(DelayService, "_until_readable", lambda self, level: None)]


plan = partial(
    DeferredGroupPlan, producers=1, transaction_producers=0, timer_producers=0, seconds=2.5, pause=0.4,
    down_max=0.2, hold_max=1.2,
)  # fmt: skip
SWITCHES: Final = ("kill leader", "cut off leader", "isolate leader", "switchover", "elect")
TRANSACTIONS: Final = plan(transaction_producers=3, faults=SWITCHES)
TIMERS: Final = plan(timer_producers=2, faults=SWITCHES, delay_ms_max=1_500)
STOPPED: Final = plan(faults=("pause leader",), hold_max=2.0)
OF_TRANSACTIONS: Final = (
    "half in the target queue",
    "op record before the final",
    "a transaction is committed twice",
    "no op records",
    "a commit is answered at once",
    "checks are not counted",
    "checked at once",
    "checks never stop",
)
OF_TIMERS: Final = (
    "a slot early",
    "delivered twice",
    "recalls are ignored",
    "progress recorded before delivery",
    "an old master goes on",
)
_KNOWN: Final = {variant.name: variant for variant in OF_DLEDGER}


def _known(name: str, found: DeferredGroupPlan) -> DeferredGroupVariant:
    """A bug that the world of a DLedger has, too."""
    variant = _KNOWN[name]
    return DeferredGroupVariant(name, variant.patches, variant.caught_by, found, variant.seeds_max)


def _own(
    name: str,
    patches: Callable[[], list[Patch]],
    caught_by: tuple[str, ...],
    found: DeferredGroupPlan,
    *,
    first: int = 0,
) -> DeferredGroupVariant:
    return DeferredGroupVariant(name, patches, caught_by, found, first=first)


VARIANTS: Final = (
    *(_known(name, TRANSACTIONS) for name in OF_TRANSACTIONS),
    *(_known(name, TIMERS) for name in OF_TIMERS),
    _own(
        "acknowledged at once",
        _acknowledged_at_once,
        (
            QUORUM,
            KEPT,
            METADATA,
            COMMITTED,
            READS,
            transactions.HALF_KEPT,
            transactions.COMMITTED_KEPT,
            timers.LOST,
        ),
        TRANSACTIONS,
    ),
    _own("reads without a lease", _lease_not_checked, (SERVED_WITH_LEASE,), STOPPED),
    _own("unconfirmed delays sleep", _unconfirmed_delays_sleep, (PROGRESS,), draw_deferred_group(5), first=5),
)
