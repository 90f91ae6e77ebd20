"""Deliberate bugs of pops, to see that the checkers notice them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

from brokerset_broker.pop import order_locks
from brokerset_broker.pop.check_points import CheckPoints, OpenPoint, ReviveQueue
from brokerset_broker.pop.fates import Settled, decide_fate
from brokerset_broker.pop.order_locks import Fate
from brokerset_broker.requests.pop import acks, log, ordered_pops
from brokerset_broker.requests.pop.acks import PopAckProcessor
from brokerset_broker.requests.pop.log import PopLog
from brokerset_broker.requests.pop.ordered_pops import OrderedPops
from brokerset_broker.requests.pop.plain_acks import JoinedAcks, PlainAcks
from brokerset_broker.requests.pop.pops import PopProcessor
from brokerset_broker.services.pop import revive
from brokerset_broker.services.pop.loading import PopReader
from brokerset_broker.services.pop.revive import PopRevival
from brokerset_broker.tables.pop.order_lock import OrderLock
from brokerset_formats.pop.records import CheckPoint
from brokerset_formats.records import Record
from brokerset_protocol.commands import Command
from brokerset_runtime.remoting import Connection
from brokerset_runtime.remoting.connection import Reply
from brokerset_sim import pop_oracle as pops
from brokerset_sim import pop_order_oracle as orders
from brokerset_sim.broken_deferred import DeferredVariant
from brokerset_sim.broken_deferred_groups import SWITCHES
from brokerset_sim.broken_ledger import Patch
from brokerset_sim.ledger_checker import SERVICES
from brokerset_sim.ledger_world import PROCESS_DIED
from brokerset_sim.pop_plan import PopPlan
from brokerset_sim.pop_world import simulate_pop
from brokerset_sim.world import Outcome


@dataclass(frozen=True, slots=True)
class PopVariant(DeferredVariant):
    """A bug, what it must be caught by, and runs in which it shows soon."""

    def run(self, seed: int) -> Outcome:
        """One seed, with the bug if it is on."""
        assert isinstance(self.plan, PopPlan)
        return simulate_pop(seed, self.plan)


# -- acks and pops ---------------------------------------------------------------------------------


def _acks_answered_at_once() -> list[Patch]:
    def at_once(self: PopAckProcessor, connection: Connection, command: Command, *_: object) -> Any:
        return JoinedAcks(lambda _result: connection.answer(command.reply()))

    return [(PopAckProcessor, "_answer", at_once), (PlainAcks, "take_batch", lambda *_: False)]


def _acks_not_recorded() -> list[Patch]:
    def only_known(self: PopLog, point: OpenPoint, bits: int, on_stored: log.OnStored) -> None:
        self.points.ack(point, bits)
        self.answer_soon(lambda: on_stored(self.end))

    return [(PopLog, "ack", only_known)]


def _acks_again_not_waited_for() -> list[Patch]:
    ack_one = PopAckProcessor._ack_one

    def hasty(self: PopAckProcessor, claim: Any, *rest: Any) -> Any:
        return None if isinstance(self._fate(claim), Settled) else ack_one(self, claim, *rest)

    return [(PopAckProcessor, "_ack_one", hasty)]


def _expired_handles_are_good() -> list[Patch]:
    def polite(points: CheckPoints, *args: Any, **times: Any) -> Any:
        points.came_back_ms = 0
        return decide_fate(points, *args, **times | {"now_ms": 0, "leads_since_ms": 0})

    return [(acks, "decide_fate", polite)]


def _old_handles_are_good() -> list[Patch]:
    return [(CheckPoints, "is_given_up", lambda self, key, queue_offset: False)]


def _pops_answered_at_once() -> list[Patch]:
    take = PopProcessor._take

    def hasty(self: PopProcessor, pop: Any) -> Reply:
        admission: Any = self._admission
        self._admission = SimpleNamespace(when_durable=None)  # type: ignore[assignment]  # no more is asked for
        try:
            return take(self, pop)
        finally:
            self._admission = admission

    return [(PopProcessor, "_take", hasty)]


def _changes_leave_the_old_one() -> list[Patch]:
    change = PopLog.change

    def leave(self: PopLog, record: CheckPoint, revive_queue: int, old: Any) -> int:
        return change(self, record, revive_queue, None)

    return [(PopLog, "change", leave)]


# -- revival ---------------------------------------------------------------------------------------


def _revived_early() -> list[Patch]:
    due = CheckPoints.due
    return [(CheckPoints, "due", lambda self, now: due(self, now + 0.2))]


def _revived_without_an_ack() -> list[Patch]:
    def only_known(self: PopLog, point: OpenPoint, bits: int) -> None:
        self.points.ack(point, bits & point.left)

    return [(PopLog, "settle", only_known)]


def _revived_twice() -> list[Patch]:
    put = PopRevival._put

    def twice(self: PopRevival, point: OpenPoint, record: Record) -> None:
        put(self, point, record)
        put(self, point, record)

    return [(PopRevival, "_put", twice)]


def _not_revived() -> list[Patch]:
    async def forget(self: PopRevival, point: OpenPoint) -> bool:
        self._pops.settle(point, point.left)
        return True

    return [(PopRevival, "_revive", forget)]


def _retries_not_counted() -> list[Patch]:
    put = PopRevival._put

    def uncounted(self: PopRevival, point: OpenPoint, record: Record) -> None:
        put(self, point, replace(record, reconsume_times=record.reconsume_times - 1))

    return [(PopRevival, "_put", uncounted)]


# -- a new master ----------------------------------------------------------------------------------


def _progress_passes_what_is_open() -> list[Patch]:
    def hasty(self: ReviveQueue, steps_max: int) -> int:
        return self.end

    return [(ReviveQueue, "advance", hasty), (revive, "PROGRESS_SECONDS", 0.05)]


def _copies_forget_acks() -> list[Patch]:
    record = OpenPoint.record
    return [(OpenPoint, "record", lambda self: replace(record(self), acked=0))]


def _positions_not_loaded() -> list[Patch]:
    load = PopReader.load

    def by_offsets(self: PopReader, points: CheckPoints) -> Iterator[Any]:
        yield from load(self, points)
        for source in points.sources.values():
            source.position = source.committed

    return [(PopReader, "load", by_offsets)]


def _acks_not_loaded() -> list[Patch]:
    return [(PopReader, "_ack", lambda self, points, *_: None)]


def _goes_on_without_the_role() -> list[Patch]:
    return [(PopRevival, "stop", lambda self: None)]


# -- ordered pops ----------------------------------------------------------------------------------


def _queues_not_locked() -> list[Patch]:
    return [(ordered_pops, "is_locked", lambda lock, attempt_id, now_ms: False)]


def _small_pops_pass_messages() -> list[Patch]:
    return [(order_locks, "_first_hole", lambda last, kept: ())]


def _acks_of_earlier_pops_count() -> list[Patch]:
    find = order_locks.find

    def polite(lock: OrderLock | None, queue_offset: int, pop_time: int) -> Fate:
        return find(lock, queue_offset, pop_time if lock is None else lock.pop_time)

    return [(ordered_pops, "find", polite)]


def _acked_again_in_order() -> list[Patch]:
    return [(OrderedPops, "passed_by", lambda self, *_: frozenset())]


plan = partial(
    PopPlan, producers=1, poppers=3, seconds=2.5, pause=0.4, down_max=0.2, hold_max=1.2,
    invisible_ms=(100, 400, 1_500), careless=0.5,
)  # fmt: skip
QUIET: Final = plan(seconds=1.5)
SWITCHED: Final = plan(faults=SWITCHES)
LONG: Final = plan(faults=SWITCHES, invisible_ms=(2_000,), careless=0.7)


def _variant(
    name: str,
    patches: Callable[[], list[Patch]],
    caught_by: tuple[str, ...],
    found: PopPlan = QUIET,
    *,
    seeds_max: int = 10,
) -> PopVariant:
    return PopVariant(name, patches, caught_by, found, seeds_max=seeds_max)


VARIANTS: Final = (
    _variant("acks are answered at once", _acks_answered_at_once, (pops.TRUTHFUL,)),
    _variant("acks are not recorded", _acks_not_recorded, (pops.TRUTHFUL,)),
    _variant("an ack again is answered at once", _acks_again_not_waited_for, (pops.TRUTHFUL,)),
    _variant("expired handles are good", _expired_handles_are_good, (pops.TRUTHFUL,)),
    _variant("old handles are good", _old_handles_are_good, (pops.TRUTHFUL,)),
    _variant("pops are answered at once", _pops_answered_at_once, (pops.TRUTHFUL,)),
    _variant("a change leaves the old time", _changes_leave_the_old_one, (pops.ONE_HOLDER,)),
    _variant("messages come back early", _revived_early, (pops.ONE_HOLDER,)),
    _variant("what came back stays open", _revived_without_an_ack, (pops.CLOSED, pops.REVIVED_ONCE)),
    _variant("messages come back twice", _revived_twice, (pops.REVIVED_ONCE,)),
    _variant("messages do not come back", _not_revived, (pops.ASKED,)),
    _variant("retries are not counted", _retries_not_counted, (pops.COUNTED,)),
    _variant("the progress passes what is open", _progress_passes_what_is_open, (pops.LOST,), LONG),
    _variant("copies forget acks", _copies_forget_acks, (pops.COPIED,), LONG),
    _variant("positions are not loaded", _positions_not_loaded, (pops.POPPED_ONCE,), SWITCHED),
    _variant("acks are not loaded", _acks_not_loaded, (pops.REVIVED_ONCE, pops.COPIED), SWITCHED),
    _variant("queues are not locked", _queues_not_locked, (orders.LOCKED,)),
    _variant("small pops pass messages", _small_pops_pass_messages, (orders.ORDER,), seeds_max=30),
    _variant("acks of earlier pops count", _acks_of_earlier_pops_count, (orders.FENCED, orders.ORDER)),
    _variant("acked messages come again in order", _acked_again_in_order, (orders.NOT_AGAIN,)),
    _variant("revival goes on", _goes_on_without_the_role, (SERVICES, PROCESS_DIED), SWITCHED),
)
