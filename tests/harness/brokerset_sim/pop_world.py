"""Worlds whose messages are popped: whole brokers in controller mode, in a DLedger group, or one alone."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from brokerset_broker.requests.pop import pops
from brokerset_sim.deferred_group_controllers import GROUP
from brokerset_sim.deferred_group_node import GroupNode
from brokerset_sim.deferred_groups import DeferredGroupsWorld, simulated_boots
from brokerset_sim.deferred_world import DeferredNode, DeferredWorld, small_wheels
from brokerset_sim.history import Violation
from brokerset_sim.ledger_clients import Committer, LedgerClient, Producer, Reader
from brokerset_sim.ledger_plan import LedgerPlan
from brokerset_sim.ledger_world import PROGRESS, simulate_ledger
from brokerset_sim.page_files import PageFiles
from brokerset_sim.pop_checker import PopChecker, PopRules
from brokerset_sim.pop_clients import OrderedPopper, Popper
from brokerset_sim.pop_notified import Notified
from brokerset_sim.pop_plan import (
    CLOCK_SKEW_MS,
    COPY_DISTANCE,
    REVIVE_QUEUES,
    PopPlan,
    draw_pop,
    draw_pop_ledger,
)
from brokerset_sim.world import Outcome
from brokerset_spec.broker_settings import BrokerSettings


class PopNode(DeferredNode):
    """A broker with few revive queues, whose check points are copied soon."""

    def settings(self, **changes: Any) -> BrokerSettings:
        """As people have it, but with short distances."""
        world: Any = self.world
        plan: PopPlan = world.pop_plan
        values: dict[str, Any] = {
            "revive_queue_num": REVIVE_QUEUES,
            "pop_check_point_copy_distance": COPY_DISTANCE,
            "pop_clock_skew_ms": CLOCK_SKEW_MS,
            "pop_check_points_max": plan.points_max,
            "enable_retry_topic_v2": plan.retry_v2,
            "use_separate_retry_queue": plan.separate_retry_queue,
        }
        return super().settings(**(values | changes))


class PopGroupNode(PopNode, GroupNode):
    """A member of a group in controller mode."""


class PopPart(DeferredWorld):
    """Poppers and their rules, whatever kind of group the brokers are."""

    checker: PopRules
    broker_name = "orders"

    def __init__(
        self, seed: int, plan: LedgerPlan, place: Path, hosts: dict[str, PageFiles], *, show: bool = False
    ) -> None:
        assert isinstance(plan, PopPlan)
        self.pop_plan = plan
        super().__init__(seed, plan, place, hosts, show=show)

    def _kinds_of_clients(self) -> Iterable[tuple[type[LedgerClient], int]]:
        plan = self.pop_plan
        return (
            (Producer, plan.producers),
            (Popper, plan.poppers),
            (OrderedPopper, plan.ordered_poppers),
            (Reader, 1),
            (Committer, 1),
            (Notified, plan.notified),
        )

    async def run(self) -> None:
        """Both phases. What was violated is in `failure`."""
        await super().run()
        self.counts.update(self.checker.pops.counts)
        self.counts.update(self.checker.orders.counts)

    async def _heal(self) -> None:
        """What is missing at the end is named, if that is why the end does not come."""
        try:
            await super()._heal()
        except Violation as violation:
            if violation.invariant == PROGRESS and self.quiet:
                self.checker.pops_settled()
            raise

    def _left(self) -> dict[str, list[str]]:
        pops = self.checker.pops
        leading = [node.broker for node in self.nodes if node.leads and node.broker is not None]
        return super()._left() | {
            "not acked": [f"{group} {key}" for group, key in pops.missing()],
            "not acked in order": self.checker.ordered_left(),
            "out": [f"{group} {place}" for group, place in pops.still_out()],
            "left": [each for broker in leading for each in self.checker.left_in(broker)],
        }


class PopWorld(PopPart, DeferredGroupsWorld):
    """A group in controller mode. Make one, await `run`, read `failure`."""

    draw: Callable[[int], LedgerPlan] = staticmethod(draw_pop)
    checker: PopChecker
    broker_name = GROUP

    def _make_checker(self) -> PopChecker:
        return PopChecker(self, self.pop_plan)

    def _make_node(self, number: int, files: PageFiles) -> GroupNode:
        return PopGroupNode(self, number, files)


class PopLedgerWorld(PopPart):
    """A DLedger group. Make one, await `run`, read `failure`."""

    draw: Callable[[int], LedgerPlan] = staticmethod(draw_pop_ledger)

    def _make_checker(self) -> PopRules:
        return PopRules(self, self.pop_plan)

    def _make_node(self, number: int, files: PageFiles) -> PopNode:
        return PopNode(self, number, files)


@contextlib.contextmanager
def popping(seed: int) -> Iterator[None]:
    """Brokers within the block take queues as the seed says, and have small wheels."""
    dice = random.Random(f"{seed}/order of queues")
    with small_wheels(), mock.patch.object(pops, "getrandbits", lambda bits: dice.randrange(1 << bits)):
        yield


def simulate_pop(seed: int, plan: PopPlan | None = None, *, show: bool = False) -> Outcome:
    """Run one seed of a group in controller mode from beginning to end."""
    with popping(seed), simulated_boots():
        return simulate_ledger(seed, plan, show=show, kind=PopWorld)


def simulate_pop_ledger(seed: int, plan: PopPlan | None = None, *, show: bool = False) -> Outcome:
    """Run one seed of a DLedger group from beginning to end."""
    with popping(seed):
        return simulate_ledger(seed, plan, show=show, kind=PopLedgerWorld)
