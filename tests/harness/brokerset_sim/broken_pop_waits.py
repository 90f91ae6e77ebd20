"""Deliberate bugs of requests that take nothing, and of pops without controllers: checkers must notice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

from brokerset_broker.pop.waiting import WaitingTable
from brokerset_broker.requests.pop import ordered_pops
from brokerset_broker.requests.pop.notifications import NotificationProcessor
from brokerset_broker.requests.pop.ordered_pops import OrderedPops
from brokerset_broker.requests.pop.polls import Polls
from brokerset_broker.services.pop.loading import PopReader
from brokerset_broker.tables.pop.order_lock import OrderLock
from brokerset_protocol.commands import Command
from brokerset_runtime.remoting import Connection
from brokerset_runtime.remoting.connection import Reply
from brokerset_sim import pop_oracle as pops
from brokerset_sim import pop_order_oracle as orders
from brokerset_sim import pop_waits as waits
from brokerset_sim.broken_deferred import DeferredVariant
from brokerset_sim.broken_ledger import Patch
from brokerset_sim.broken_pop import _acks_answered_at_once
from brokerset_sim.ledger_world import PROGRESS
from brokerset_sim.pop_alone import simulate_pop_alone
from brokerset_sim.pop_plan import PopPlan
from brokerset_sim.pop_world import simulate_pop, simulate_pop_ledger
from brokerset_sim.world import Outcome


@dataclass(frozen=True, slots=True)
class PopWaitVariant(DeferredVariant):
    """A bug, what it must be caught by, and a world in which it shows soon."""

    simulate: Callable[[int, PopPlan], Outcome] = simulate_pop

    def run(self, seed: int) -> Outcome:
        """One seed, with the bug if it is on."""
        assert isinstance(self.plan, PopPlan)
        return self.simulate(seed, self.plan)


# -- who waits, and who looks ----------------------------------------------------------------------


def _notifications_not_woken() -> list[Patch]:
    arrived = Polls.arrived

    def deaf(self: Polls, *arrival: Any) -> None:
        if not self.name.startswith("notifications"):
            arrived(self, *arrival)

    return [(Polls, "arrived", deaf)]


def _notified_of_what_is_popped() -> list[Patch]:
    def by_end(self: NotificationProcessor, _asked: Any, topic: str, queue_id: int) -> bool:
        return self._store.queue_max(topic, queue_id) > 0

    return [(NotificationProcessor, "_has_message", by_end)]


def _peeks_move_the_group() -> list[Patch]:
    peek = NotificationProcessor.peek

    def take(self: NotificationProcessor, connection: Connection, command: Command) -> Reply:
        answer = peek(self, connection, command)
        topic, group = command.ext["topic"], command.ext["consumerGroup"]
        if self._log.is_known and command.ext["queueId"] != "-1":
            queue_id = int(command.ext["queueId"])
            self._log.move(topic, group, queue_id, self._store.queue_max(topic, queue_id))
        return answer

    return [(NotificationProcessor, "peek", take)]


def _peeks_show_what_is_popped() -> list[Patch]:
    peek = NotificationProcessor.peek

    def from_the_start(self: NotificationProcessor, connection: Connection, command: Command) -> Reply:
        positions: Any = self._positions
        self._positions = SimpleNamespace(present=lambda *_: 0)  # type: ignore[assignment]  # no more is asked for
        try:
            return peek(self, connection, command)
        finally:
            self._positions = positions

    return [(NotificationProcessor, "peek", from_the_start)]


def _too_many_wait() -> list[Patch]:
    count = WaitingTable.count
    return [(WaitingTable, "count", lambda self, *of: count(self, *of) + 20)]


# -- ordered pops, and other kinds of groups -------------------------------------------------------


def _changes_in_order_do_nothing() -> list[Patch]:
    return [(ordered_pops, "made_visible", lambda lock, *_: lock)]


def _locks_do_not_move_groups() -> list[Patch]:
    def by_offsets(self: OrderedPops, place: tuple[str, str, int]) -> OrderLock | None:
        lock = self._table.get(*place)
        if lock is not None and self._leads and place not in self._clocked:
            self._take_over(place, lock)
            self._watch(place, lock, self._now_ms(place, lock))
        return lock

    return [(OrderedPops, "_lock", by_offsets)]


def _acks_not_loaded() -> list[Patch]:
    return [(PopReader, "_ack", lambda self, points, *_: None)]


plan = partial(
    PopPlan, producers=1, poppers=2, seconds=1.5, pause=0.3, down_max=0.1, hold_max=0.5,
    invisible_ms=(100, 400), careless=0.4,
)  # fmt: skip
QUIET: Final = plan()
ALONE: Final = plan(members=1, faults=("kill",), seconds=2.5)
LEDGER: Final = plan(faults=("kill leader", "cut off leader", "transfer"), seconds=2.5)

VARIANTS: Final = (
    PopWaitVariant(
        "notifications are not woken", _notifications_not_woken, (waits.NOTIFIED, waits.IN_TIME), QUIET
    ),
    PopWaitVariant("notified of what is popped", _notified_of_what_is_popped, (waits.NAMED,), QUIET),
    PopWaitVariant(
        "peeks move the group", _peeks_move_the_group, (pops.LOST, waits.NOTIFIED, PROGRESS), QUIET
    ),
    PopWaitVariant("peeks show what is popped", _peeks_show_what_is_popped, (waits.PEEKED,), QUIET),
    PopWaitVariant("too many are said to wait", _too_many_wait, (waits.WAITING,), QUIET),
    PopWaitVariant(
        "changes in order do nothing", _changes_in_order_do_nothing, (orders.LOCKED,), plan(seconds=3.0)
    ),
    PopWaitVariant(
        "locks do not move groups",
        _locks_do_not_move_groups,
        (orders.NOT_AGAIN,),
        ALONE,
        simulate=simulate_pop_alone,
    ),
    PopWaitVariant(
        "alone, acks are not loaded",
        _acks_not_loaded,
        (pops.REVIVED_ONCE, pops.COPIED, pops.TRUTHFUL),
        ALONE,
        simulate=simulate_pop_alone,
    ),
    PopWaitVariant(
        "DLedger, acks are answered at once",
        _acks_answered_at_once,
        (pops.TRUTHFUL,),
        LEDGER,
        simulate=simulate_pop_ledger,
    ),
)
