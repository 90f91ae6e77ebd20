"""Deliberate bugs of transactions and timer messages, to see that the checkers notice them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest import mock

from brokerset_broker.requests import end_transactions
from brokerset_broker.requests.end_transactions import TransactionProcessor
from brokerset_broker.requests.transaction_log import OnOps, TransactionLog
from brokerset_broker.services import transaction_checks
from brokerset_broker.services.timers.service import TimerService
from brokerset_broker.services.timers.work import TimerWork
from brokerset_broker.services.transaction_checks import TransactionChecks
from brokerset_broker.services.transaction_loading import TransactionLoading
from brokerset_broker.store.results import Appended
from brokerset_broker.timers.dequeue import EarlierRolls
from brokerset_broker.timers.messages import TimedMessage
from brokerset_broker.timers.progress import Progress, TimerState
from brokerset_broker.timers.recovery import Recovered
from brokerset_broker.timers.settings import TimerSettings
from brokerset_broker.transactions import check_pass, ending
from brokerset_broker.transactions.ending import Decision, HalfFacts
from brokerset_broker.transactions.resolved import Resolved
from brokerset_formats.records import Record
from brokerset_formats.transactions import Message, op_message, target_of
from brokerset_protocol.commands import FLAG_ONEWAY, Command
from brokerset_protocol.headers.send import EndTransaction
from brokerset_runtime.remoting import Connection
from brokerset_runtime.remoting.connection import Reply
from brokerset_sim import timer_oracle as timers
from brokerset_sim import transaction_oracle as transactions
from brokerset_sim.broken_ledger import Patch
from brokerset_sim.deferred_alone import draw_alone, simulate_alone
from brokerset_sim.deferred_plan import DeferredPlan
from brokerset_sim.deferred_world import simulate_deferred
from brokerset_sim.ledger_checker import SERVICES
from brokerset_sim.ledger_world import PROCESS_DIED, PROGRESS
from brokerset_sim.log_records import COMMIT
from brokerset_sim.world import Outcome


@dataclass(frozen=True, slots=True)
class DeferredVariant:
    """A bug, what it must be caught by, and runs in which it shows soon."""

    name: str
    patches: Callable[[], list[Patch]]
    caught_by: tuple[str, ...]
    plan: DeferredPlan
    seeds_max: int = 10
    """It must be caught within so many seeds."""

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Production code with the bug in it."""
        with contextlib.ExitStack() as stack:
            for where, name, value in self.patches():
                stack.enter_context(mock.patch.object(where, name, value))
            yield

    def run(self, seed: int) -> Outcome:
        """One seed, with the bug if it is on."""
        return (
            simulate_alone(seed, self.plan) if self.plan.members == 1 else simulate_deferred(seed, self.plan)
        )


# -- transactions: records -------------------------------------------------------------------------


def _half_in_the_target_queue() -> list[Patch]:
    append_half = TransactionLog.append_half

    def twice(self: TransactionLog, half: Message, supersedes: int | None = None) -> Appended:
        appended = append_half(self, half, supersedes)
        topic, queue_id = target_of(self._record_of(half, appended))
        self.append(replace(half, topic=topic, queue_id=queue_id))
        return appended

    return [
        (TransactionLog, "append_half", twice),
        (TransactionLog, "send_plain_half", lambda *_, **__: None),
    ]


def _op_before_the_final() -> list[Patch]:
    commit = TransactionLog.commit

    def hasty(self: TransactionLog, half: Record, final: Message) -> int:
        self.append(op_message(b"%d," % half.queue_offset, self._host, self._clock.now_ms()))
        return commit(self, half, final)

    return [(TransactionLog, "commit", hasty)]


def _forgetful(*, checks_only: bool) -> list[Patch]:
    def decide(request: EndTransaction, facts: HalfFacts, **limits: Any) -> Decision:
        forgets = request.commit_or_rollback == COMMIT and (request.from_transaction_check or not checks_only)
        if forgets and facts.ending is not None and facts.half is not None:
            facts = replace(facts, ending=None, newest_copy=facts.half.offset)
        return ending.decide_ending(request, facts, **limits)

    return [(end_transactions, "decide_ending", decide)]


def _committed_twice() -> list[Patch]:
    return _forgetful(checks_only=False)


def _check_answered_commit_twice() -> list[Patch]:
    return _forgetful(checks_only=True)


def _no_op_records() -> list[Patch]:
    return [(Resolved, "ops_to_write", lambda self: ())]


def _ops_late_and_finals_not_read() -> list[Patch]:
    """As in Java: ops are written later, and nothing else says at a promotion what was committed."""

    def later(self: TransactionLog) -> None:
        if self._turn is None:
            self._turn = asyncio.get_running_loop().call_later(0.3, self.write_ops)

    return [
        (TransactionLog, "write_ops_soon", later),
        (TransactionLoading, "_finals", lambda self, start: iter(())),
    ]


# -- transactions: answers and checks --------------------------------------------------------------


def _commit_answered_at_once() -> list[Patch]:
    def hasty(self: TransactionProcessor, connection: Connection, command: Command, end: int) -> Reply:
        return None if command.flag & FLAG_ONEWAY else command.reply()

    return [(TransactionProcessor, "_answer_at", hasty)]


def _rollback_answered_at_once() -> list[Patch]:
    def hasty(
        self: TransactionProcessor, connection: Connection, command: Command, ask: Callable[[OnOps], None]
    ) -> Reply:
        ask(lambda end: None)
        return None if command.flag & FLAG_ONEWAY else command.reply()

    return [(TransactionProcessor, "_answer_with_ops", hasty)]


def _progress_passes_open_halves() -> list[Patch]:
    def generous(self: Resolved, half_progress: int) -> None:
        self.follow(self.half_end)

    return [(Resolved, "advance", generous)]


def _checks_not_counted() -> list[Patch]:
    return [(check_pass, "check_times_of", lambda half: 0)]


def _checked_at_once() -> list[Patch]:
    limits = check_pass.CheckLimits

    def impatient(**values: Any) -> check_pass.CheckLimits:
        return limits(**(values | {"transaction_timeout_ms": 0}))

    return [(transaction_checks, "CheckLimits", impatient)]


def _checks_never_stop() -> list[Patch]:
    return [(TransactionChecks, "stop", lambda self: None)]


# -- timers ----------------------------------------------------------------------------------------


def _a_slot_early() -> list[Patch]:
    at = TimerState.at

    def hasty(self: TimerState, now_ms: int, settings: TimerSettings) -> TimerState:
        return at(self, now_ms + settings.slot_ms, settings)

    return [(TimerState, "at", hasty)]


def _delivered_twice() -> list[Patch]:
    deliver = TimerWork._deliver

    def twice(self: TimerWork, record: Record, message: TimedMessage, enqueued_ms: int) -> None:
        deliver(self, record, message, enqueued_ms)
        deliver(self, record, message, enqueued_ms)

    return [(TimerWork, "_deliver", twice)]


def _recalls_ignored() -> list[Patch]:
    return [(TimedMessage, "delete_keys", property(lambda self: ("", "")))]


def _progress_recorded_before_delivery() -> list[Patch]:
    unrecorded = TimerService.unrecorded

    def hasty(self: TimerService) -> Progress | None:
        progress = unrecorded(self)
        return None if progress is None else progress.passed(progress.read_ms + 20 * self.settings.slot_ms)

    return [(TimerService, "unrecorded", hasty)]


def _progress_never_recorded() -> list[Patch]:
    return [(TimerService, "unrecorded", lambda self: None)]


def _rolls_of_the_old_master_forgotten() -> list[Patch]:
    return [(EarlierRolls, "take", lambda self, message: False)]


def _wheel_not_rebuilt() -> list[Patch]:
    open_files = TimerService._open_files

    def lazy(self: TimerService, queue_offset_max: int) -> Recovered:
        recovered = open_files(self, queue_offset_max)
        wheel = self._files._wheel_file
        assert wheel is not None
        wheel.map[:] = bytes(wheel.size)
        return recovered

    return [(TimerService, "_open_files", lazy)]


def _first_progress_is_now() -> list[Patch]:
    return [(TimerService, "_first_store_ms", lambda self, default: default)]


def _old_master_goes_on() -> list[Patch]:
    async def lazy(self: TimerService) -> None:
        return

    return [(TimerService, "drain", lazy), (TimerService, "stop", lambda self: None)]


plan = partial(DeferredPlan, producers=1, transaction_producers=0, timer_producers=0, seconds=2.5, pause=0.3)
SWITCHES = ("kill leader", "cut off leader", "transfer", "switchover")
TRANSACTIONS = plan(transaction_producers=3, faults=SWITCHES, down_max=0.2, hold_max=0.6)
TIMERS = plan(timer_producers=2, faults=SWITCHES, down_max=0.2, hold_max=0.6, delay_ms_max=1_500)
ROLLS = plan(timer_producers=2, faults=SWITCHES, down_max=0.1, hold_max=0.4, delay_ms_max=2_500, pause=0.5)
TIMERS_ALONE = plan(members=1, timer_producers=2, faults=("kill", "power"), down_max=0.5, pause=0.25)
KILLS_ALONE = draw_alone(0)

VARIANTS = (
    DeferredVariant(
        "half in the target queue", _half_in_the_target_queue, (transactions.HIDDEN,), TRANSACTIONS
    ),
    DeferredVariant("op record before the final", _op_before_the_final, (transactions.OPS,), TRANSACTIONS),
    DeferredVariant(
        "a transaction is committed twice",
        _committed_twice,
        (transactions.ONCE, transactions.ROLLED_BACK, PROCESS_DIED),
        TRANSACTIONS,
    ),
    DeferredVariant(
        "the answer to a check commits twice",
        _check_answered_commit_twice,
        (transactions.ONCE, transactions.ROLLED_BACK, PROCESS_DIED),
        TRANSACTIONS,
    ),
    DeferredVariant(
        "no op records", _no_op_records, (transactions.OPS, transactions.NOT_CHECKED, PROGRESS), TRANSACTIONS
    ),
    DeferredVariant(
        "ops are late and finals not read",
        _ops_late_and_finals_not_read,
        (transactions.ONCE, transactions.NOT_CHECKED),
        TRANSACTIONS,
        20,
    ),
    DeferredVariant(
        "a commit is answered at once", _commit_answered_at_once, (transactions.COMMITTED_KEPT,), TRANSACTIONS
    ),
    DeferredVariant(
        "a rollback is answered at once",
        _rollback_answered_at_once,
        (transactions.NOT_CHECKED, transactions.ROLLED_BACK, transactions.ENDED),
        TRANSACTIONS,
        20,
    ),
    DeferredVariant(
        "the progress passes open halves",
        _progress_passes_open_halves,
        (transactions.PASSED, transactions.ENDED, PROGRESS),
        TRANSACTIONS,
    ),
    DeferredVariant(
        "checks are not counted", _checks_not_counted, (transactions.CHECKED, PROGRESS), TRANSACTIONS
    ),
    DeferredVariant("checked at once", _checked_at_once, (transactions.YOUNG,), TRANSACTIONS),
    DeferredVariant("checks never stop", _checks_never_stop, (SERVICES, PROCESS_DIED), TRANSACTIONS),
    DeferredVariant("a slot early", _a_slot_early, (timers.EARLY,), TIMERS),
    DeferredVariant("delivered twice", _delivered_twice, (timers.TWICE,), TIMERS),
    DeferredVariant("recalls are ignored", _recalls_ignored, (timers.RECALLED,), TIMERS),
    DeferredVariant(
        "progress recorded before delivery",
        _progress_recorded_before_delivery,
        (timers.LOST, PROGRESS),
        TIMERS,
    ),
    DeferredVariant(
        "progress is never recorded",
        _progress_never_recorded,
        (timers.AGAIN, timers.ROLLED),
        ROLLS,
        20,
    ),
    DeferredVariant(
        "rolls of the old master are forgotten",
        _rolls_of_the_old_master_forgotten,
        (timers.ROLLED,),
        ROLLS,
        20,
    ),
    DeferredVariant("wheel not rebuilt", _wheel_not_rebuilt, (timers.LOST, PROGRESS), TIMERS_ALONE, 20),
    DeferredVariant("first progress is now", _first_progress_is_now, (timers.RECALLED,), KILLS_ALONE, 30),
    DeferredVariant("an old master goes on", _old_master_goes_on, (SERVICES, PROCESS_DIED), TIMERS),
)
