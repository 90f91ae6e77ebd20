"""Deliberate bugs of brokers in DLedger mode, to see that the checkers notice them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from brokerset_broker.member.dledger.ledger_replication import LedgerReplication
from brokerset_broker.services.delay import DelayService
from brokerset_broker.services.role_services import RoleServices
from brokerset_broker.store.errors import PutStatus
from brokerset_broker.store.ledger import FileLedger, LedgerSync
from brokerset_broker.store.ledger_log import LedgerLog
from brokerset_broker.store.ledger_store import LedgerStore
from brokerset_broker.store.receiving import CommittedEntries, ReceivedRecords, Step
from brokerset_broker.store.segments import MappedFile
from brokerset_broker.tables.metadata.metadata_log import MetadataLog
from brokerset_dledger.driver import Driver
from brokerset_dledger.following import NEVER
from brokerset_dledger.node import Node, Ready
from brokerset_dledger.node import Role as LedgerRole
from brokerset_formats.dledger import CurrentTerm
from brokerset_protocol.bodies.dledger import VoteRequest, VoteResult
from brokerset_sim.ledger_checker import (
    COMMITTED,
    DISPATCHED,
    ENDS,
    KEPT,
    LEASE,
    METADATA,
    OLD_FILES,
    QUEUES,
    QUORUM,
    READS,
    SAME,
    SERVES,
    SERVICES,
    VOTES,
)
from brokerset_sim.ledger_plan import LedgerPlan
from brokerset_sim.ledger_world import PROCESS_DIED, PROGRESS

Patch = tuple[Any, str, object]
"""Where, which attribute, and what instead."""


@dataclass(frozen=True, slots=True)
class LedgerVariant:
    """A bug, what it must be caught by, and runs in which it shows soon."""

    name: str
    patches: Callable[[], list[Patch]]
    caught_by: tuple[str, ...]
    plan: LedgerPlan
    seeds_max: int = 15
    """It must be caught within so many seeds."""

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Production code with the bug in it."""
        with contextlib.ExitStack() as stack:
            for where, name, value in self.patches():
                stack.enter_context(mock.patch.object(where, name, value))
            yield


# -- the core and its driver -----------------------------------------------------------------------


def _vote_sent_before_it_is_written() -> list[Patch]:
    async def hasty(self: Driver, term: CurrentTerm, ready: Ready) -> None:
        self._send(ready)
        await self._run_blocking(lambda: self._ledger.write_term(term))
        self._writes_term = False
        self._carry_out()
        self._wake.set()

    return [(Driver, "_write_term", hasty)]


def _any_log_elected() -> list[Patch]:
    vote = Node._vote

    def generous(self: Node, now: int, request: VoteRequest) -> tuple[VoteResult, int]:
        return vote(self, now, replace(request, ledger_end_term=1 << 40))

    return [(Node, "_vote", generous)]


def _no_lease() -> list[Patch]:
    def endless(self: Node) -> int:
        return NEVER if self.role is LedgerRole.LEADER and self._begin_index is not None else -NEVER

    return [(Node, "serves_until", endless)]


def _acknowledged_before_the_disk() -> list[Patch]:
    def collect(self: Node) -> None:
        for answer in self._follower.take_answers():
            self._answer_push(answer)

    return [(Node, "_collect_push_answers", collect)]


def _leader_counts_itself_early() -> list[Patch]:
    return [(Node, "_own_watermark", lambda self: self.ledger.end_index)]


# -- the log ---------------------------------------------------------------------------------------


def _truncates_where_the_entry_begins() -> list[Patch]:
    cut = FileLedger._cut_files

    def short(self: FileLedger, position: int, index: int) -> None:
        drops = self.begin_index < index <= self.end_index
        cut(self, self.position(index - 1) if drops else position, index)

    return [(FileLedger, "_cut_files", short)]


def _sync_forgets_the_files() -> list[Patch]:
    def nothing(self: object) -> None:
        return

    return [(LedgerSync, "run", nothing)]


def _delete_guard_missing() -> list[Patch]:
    detach = LedgerLog.detach_first

    def unguarded(self: LedgerLog) -> MappedFile:
        return self._ledger.detach_first() if len(self._ledger.files.files) > 1 else detach(self)

    return [(LedgerLog, "detach_first", unguarded)]


# -- dispatch and answers --------------------------------------------------------------------------


def _dispatches_what_is_written() -> list[Patch]:
    def eager(self: CommittedEntries, received_end: int) -> Step:
        log = self._log
        assert isinstance(log, LedgerLog)
        return ReceivedRecords.step(self, log._ledger.write_position)

    return [(CommittedEntries, "step", eager)]


def _answers_at_once() -> list[Patch]:
    def hasty(self: LedgerStore, end: int, answer: Callable[[PutStatus], None]) -> None:
        answer(PutStatus.PUT_OK)

    return [(LedgerStore, "when_committed", hasty)]


def _answers_for_another_leader() -> list[Patch]:
    def generous(self: LedgerStore) -> None:
        end, waiting = self.log.max_offset, self._waiting
        while waiting and waiting[0].end <= end:
            waiting.popleft().answer(PutStatus.PUT_OK)

    return [
        (LedgerStore, "_answer_dispatched", generous),
        (LedgerReplication, "lost", lambda self: False),
        (LedgerReplication, "answer_waiters", lambda self, status: None),
    ]


def _numbers_of_lost_messages_stay() -> list[Patch]:
    return [(LedgerStore, "begin_leading", lambda self: None)]


# -- roles -----------------------------------------------------------------------------------------


def _serves_before_dispatch() -> list[Patch]:
    async def hasty(self: LedgerReplication) -> int:
        return self._store.max_offset

    return [
        (LedgerReplication, "finish_received", hasty),
        (LedgerStore, "begin_leading", lambda self: self._tails.clear()),
    ]


def _services_never_stop() -> list[Patch]:
    async def nothing(self: RoleServices) -> None:
        return

    return [(RoleServices, "stop", nothing)]


def _service_leaves_its_timers() -> list[Patch]:
    def lazy(self: DelayService) -> None:
        self._running = False

    return [(DelayService, "stop", lazy)]


def _offsets_answered_at_once() -> list[Patch]:
    def hasty(self: MetadataLog, callback: Callable[[PutStatus], None]) -> None:
        callback(PutStatus.PUT_OK if self.leading else PutStatus.SERVICE_NOT_AVAILABLE)

    return [(MetadataLog, "when_offsets_confirmed", hasty)]


SWITCHES = LedgerPlan(
    seconds=3.0,
    faults=("kill leader", "pause leader", "cut off leader", "transfer", "switchover"),
    pause=0.3,
    down_max=0.1,
    hold_max=0.8,
)
KILLS = LedgerPlan(
    seconds=3.0,
    faults=("kill", "kill leader", "cut off leader", "cut"),
    pause=0.2,
    down_max=0.2,
    hold_max=0.5,
)
POWER = LedgerPlan(
    seconds=3.0,
    faults=("power", "power leader", "power all", "cut off leader", "slow disk"),
    pause=0.25,
    down_max=0.1,
    hold_max=0.4,
    stalls=0.1,
)
PAUSES = LedgerPlan(
    seconds=3.0,
    faults=("pause leader", "cut off leader", "cut off leader one way"),
    pause=0.5,
    hold_max=1.5,
)
OLD = LedgerPlan(seconds=2.5, faults=("delete files",), pause=0.15, old_messages=120, producers=4)

VARIANTS = (
    LedgerVariant("vote sent before it is written", _vote_sent_before_it_is_written, (VOTES,), KILLS),
    LedgerVariant("any log elected", _any_log_elected, (KEPT, COMMITTED, QUEUES, READS, PROCESS_DIED), KILLS),
    LedgerVariant("no lease", _no_lease, (LEASE, ENDS), PAUSES),
    LedgerVariant("acknowledged before the disk", _acknowledged_before_the_disk, (QUORUM,), POWER),
    LedgerVariant("leader counts itself early", _leader_counts_itself_early, (QUORUM,), POWER),
    LedgerVariant(
        "truncates where the entry begins",
        _truncates_where_the_entry_begins,
        (KEPT, COMMITTED, QUEUES, READS, SAME, PROGRESS, PROCESS_DIED),
        KILLS,
    ),
    LedgerVariant("sync forgets the files", _sync_forgets_the_files, (QUORUM,), POWER),
    LedgerVariant("delete guard missing", _delete_guard_missing, (OLD_FILES,), OLD),
    LedgerVariant("dispatches what is written", _dispatches_what_is_written, (DISPATCHED,), SWITCHES),
    LedgerVariant("answers at once", _answers_at_once, (QUORUM, KEPT), SWITCHES),
    LedgerVariant(
        "answers for another leader", _answers_for_another_leader, (KEPT, QUEUES, QUORUM), PAUSES, 40
    ),
    LedgerVariant(
        "numbers of lost messages stay",
        _numbers_of_lost_messages_stay,
        (QUEUES, KEPT, PROCESS_DIED),
        PAUSES,
        40,
    ),
    LedgerVariant(
        "serves before dispatch", _serves_before_dispatch, (SERVES, QUEUES, KEPT, METADATA), SWITCHES
    ),
    LedgerVariant("services never stop", _services_never_stop, (SERVICES, PROCESS_DIED), SWITCHES),
    LedgerVariant("a service leaves its timers", _service_leaves_its_timers, (SERVICES,), SWITCHES),
    LedgerVariant("offsets answered at once", _offsets_answered_at_once, (METADATA,), SWITCHES, 40),
)
