"""A DLedger group with transactions and timer messages: whole brokers, and all kinds of producers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from brokerset_broker.timers.settings import TimerSettings
from brokerset_sim.deferred_chaos import DeferredChaos
from brokerset_sim.deferred_checker import DeferredChecker
from brokerset_sim.deferred_clients import Decision, TimerProducer, TransactionProducer
from brokerset_sim.deferred_plan import (
    CHECK_INTERVAL_MS,
    CHECK_MAX,
    CHECK_TIMEOUT_MS,
    PRECISION_MS,
    ROLL_WINDOW_SLOTS,
    TIMER_FILE_BYTES,
    TIMER_FLUSH_MS,
    WHEEL_SLOTS,
    DeferredPlan,
    draw_deferred,
)
from brokerset_sim.ledger_checker import LedgerChecker
from brokerset_sim.ledger_clients import Committer, LedgerClient, Producer, Reader
from brokerset_sim.ledger_node import LedgerNode
from brokerset_sim.ledger_plan import LedgerPlan
from brokerset_sim.ledger_world import LedgerWorld, simulate_ledger
from brokerset_sim.page_files import PageFiles
from brokerset_sim.world import Outcome
from brokerset_spec.broker_settings import BrokerSettings

SETTLING_SECONDS = 16.0
"""Checks until an unanswered half is given up, the longest delay, and clocks that were set back."""


class DeferredNode(LedgerNode):
    """A member with short times, so that much happens in a few seconds."""

    def settings(self, **changes: Any) -> BrokerSettings:
        """As people have it, but with small files and short times."""
        values: dict[str, Any] = {
            "transaction_time_out": CHECK_TIMEOUT_MS,
            "transaction_check_max": CHECK_MAX,
            "transaction_check_interval": CHECK_INTERVAL_MS,
            "timer_precision_ms": PRECISION_MS,
            "timer_roll_window_slot": ROLL_WINDOW_SLOTS,
            "mapped_file_size_timer_log": TIMER_FILE_BYTES,
            "timer_flush_interval_ms": TIMER_FLUSH_MS,
            "recall_message_enable": True,
        }
        return super().settings(**(values | changes))


class DeferredWorld(LedgerWorld):
    """A run. Make one, await `run`, read `failure`."""

    settling_seconds = SETTLING_SECONDS
    draw: Callable[[int], LedgerPlan] = staticmethod(draw_deferred)
    checker: DeferredChecker

    def __init__(
        self, seed: int, plan: LedgerPlan, place: Path, hosts: dict[str, PageFiles], *, show: bool = False
    ) -> None:
        assert isinstance(plan, DeferredPlan)
        self.deferred = plan
        self.decisions: dict[str, Decision] = {}
        """What the producers' database says."""

        super().__init__(seed, plan, place, hosts, show=show)

    def _make_checker(self) -> LedgerChecker:
        return DeferredChecker(self, self.deferred)

    def _make_node(self, number: int, files: PageFiles) -> LedgerNode:
        return DeferredNode(self, number, files)

    def _make_chaos(self) -> DeferredChaos:
        return DeferredChaos(self)

    def _kinds_of_clients(self) -> Iterable[tuple[type[LedgerClient], int]]:
        plan = self.deferred
        return (
            (Producer, plan.producers),
            (TransactionProducer, plan.transaction_producers),
            (TimerProducer, plan.timer_producers),
            (Reader, 2),
            (Committer, 1),
        )

    def kill_client(self, number: int, *, silent: bool) -> None:
        """End the process of a client that may die; with `silent` its host, too."""
        client = self.clients[number]
        if client.mortal and client.process.alive:
            self.note("kill client", client.name, silent)
            client.process.kill()
            self.network.gone(client.process, silent=silent)
            self.dead_clients.append(client.process)

    def replace_client(self, number: int) -> None:
        """Start another one in place of a dead one."""
        client = self.clients[number]
        if not client.process.alive and client.mortal:
            again = self.clients[number] = type(client)(self, f"{client.name}+")
            again.start()

    def heal_clients(self) -> None:
        """All clients run."""
        for number in range(len(self.clients)):
            self.replace_client(number)

    async def _heal(self) -> None:
        self.heal_clients()
        await super()._heal()

    async def run(self) -> None:
        """Both phases. What was violated is in `failure`."""
        await super().run()
        self.counts.update(self.checker.transactions.counts())
        self.counts.update(self.checker.timers.counts())

    def _left(self) -> dict[str, list[str]]:
        """What is still to come."""
        checker = self.checker
        return {
            "open": [each.key for each in checker.transactions.open()],
            "without op": [each.key for each in checker.transactions.without_op()],
            "timers": [each.key for each in checker.timers.missing()],
        }

    def _describe(self) -> str:
        return f"{super()._describe()}; { ({name: keys[:3] for name, keys in self._left().items()}) }"

    def _settled(self) -> bool:
        return not any(self._left().values()) and super()._settled()


@contextlib.contextmanager
def small_wheels() -> Iterator[None]:
    """Wheels of a few seconds, for each crash copies them."""
    with mock.patch.dict(TimerSettings.__init__.__kwdefaults__, {"wheel_slots": WHEEL_SLOTS}):
        yield


def simulate_deferred(seed: int, plan: DeferredPlan | None = None, *, show: bool = False) -> Outcome:
    """Run one seed from beginning to end."""
    with small_wheels():
        return simulate_ledger(seed, plan, show=show, kind=DeferredWorld)
