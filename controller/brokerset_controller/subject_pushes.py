"""Brings each broker group to what is agreed on about subjects: queues prepared, open, sealed or deleted.

Level-based: for each broker group there is a list of subjects that may differ, and at most one job that works
on it. It compares what the group's master has confirmed in this leadership with what is agreed on, and sends
all of it (21031) when they differ, or when the controllers wait for an end that only the master can say. A
master that does not answer delays its own broker group and no other.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import structlog

from brokerset_controller.broker_masters import BrokerMasters, Master
from brokerset_controller.measurements import Measurements
from brokerset_controller.ordered.events import Event, QueuesDeleted
from brokerset_controller.ordered.machine import SubjectOutcome, SubjectsMachine
from brokerset_controller.ordered.queues import answered, broker_groups_of, queues_of, waits_for_end
from brokerset_controller.ordered.state import Tombstone
from brokerset_controller.subject_leadership import Leadership
from brokerset_controller.worker_pool import WorkerPool
from brokerset_protocol.bodies.ordered import SubjectQueues
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_runtime.peer_requests import Asker
from brokerset_runtime.remoting.connection import ConnectionClosed, RequestTimeout

log = structlog.get_logger(__name__)

GROUPS_AT_ONCE_MAX: Final = 256
"""Broker groups that are pushed to at once; more wait."""

PUSHES_AT_ONCE_MAX: Final = 16
"""Subjects that one broker group is sent at once."""

PROPOSED_AT_ONCE_MAX: Final = 64
"""Events of one answer that are agreed on at once."""

ANSWER_SECONDS_MAX: Final = 3.0
"""Longest wait for a broker's answer: its in-sync replicas must have what it confirms."""

BACK_OFF_SECONDS_MIN: Final = 0.05
"""Wait after the first push to a broker group that failed; it doubles."""

BACK_OFF_SECONDS_MAX: Final = 1.0
"""Longest wait between two pushes to a broker group that fail."""

REFUSED_SECONDS: Final = 5.0
"""Wait before a subject is sent again that the broker has refused."""

Proposer = Callable[[Event], Awaitable[SubjectOutcome]]
"""Has an event agreed on and applied. Raises `Rejected` when it was not, or nobody knows."""


@dataclass(slots=True)
class _Target:
    """One broker group."""

    dirty: dict[str, None] = field(default_factory=dict)
    """Subjects that may differ."""

    busy: bool = False
    failures: int = 0
    timer: asyncio.TimerHandle | None = None
    problem: str | None = None


class _Unreachable(Exception):
    """The master does not answer, or is none."""


class _Refused(Exception):
    """The master does not take what it was sent."""


class QueuePushes:
    """The pushes of one controller while it leads."""

    def __init__(
        self,
        *,
        machine: SubjectsMachine,
        leadership: Leadership,
        masters: BrokerMasters,
        asker: Asker,
        propose: Proposer,
        source: random.Random,
        measurements: Measurements,
    ) -> None:
        self._machine = machine
        self._leadership = leadership
        self._masters = masters
        self._asker = asker
        self._propose = propose
        self._source = source
        self._measurements = measurements
        self._workers = WorkerPool(GROUPS_AT_ONCE_MAX)
        self._targets: dict[str, _Target] = {}
        self._confirmed: dict[tuple[str, str], tuple[Master, SubjectQueues]] = {}
        """By subject and broker group: what its master has confirmed last, in this leadership."""

        self._refused: dict[tuple[str, str], tuple[str, asyncio.TimerHandle]] = {}
        """By subject and broker group: why it was refused, and when it is sent again."""

        leadership.on_begin.append(self._begin)
        leadership.on_end.append(self._end)

    async def run(self) -> None:
        """Push, for as long as this task runs."""
        try:
            await self._workers.run()
        finally:
            self._end()

    def subject_changed(self, name: str, broker_groups: Iterable[str]) -> None:
        """Something was agreed on about a subject that these broker groups may not have yet."""
        if self._leadership.current is None:
            return  # a timer of a leadership that has ended; the next one begins with everything
        for broker_group in broker_groups:
            target = self._targets.setdefault(broker_group, _Target())
            target.dirty[name] = None
            self._start(broker_group, target)

    def master_changed(self, broker_group: str) -> None:
        """The broker group has another master, or none: what the one before had confirmed does not count."""
        if self._leadership.current is None:
            return
        target = self._targets.get(broker_group)
        if target is not None:
            target.failures = 0
            self._stop_timer(target)
        for entry in self._machine.entries():
            if broker_group in entry.next_queue_ids and broker_group in broker_groups_of(entry):
                self.subject_changed(entry.name, (broker_group,))

    def problems(self, name: str) -> tuple[str, ...]:
        """What keeps broker groups from having what is agreed on about a subject."""
        found = []
        for broker_group in broker_groups_of(self._machine.entry(name)):
            refused = self._refused.get((name, broker_group))
            target = self._targets.get(broker_group)
            if self._masters.master(broker_group) is None:
                found.append(f"{broker_group} has no master; its partitions wait")
            elif refused is not None:
                found.append(f"{broker_group} refuses: {refused[0]}")
            elif target is not None and target.problem is not None:
                found.append(f"{broker_group} does not answer: {target.problem}")
        return tuple(found)

    # -- leadership ---------------------------------------------------------------------------------------

    def _begin(self) -> None:
        for entry in self._machine.entries():
            self.subject_changed(entry.name, broker_groups_of(entry))

    def _end(self) -> None:
        for target in self._targets.values():
            target.dirty.clear()
            target.failures = 0
            target.problem = None
            self._stop_timer(target)
        for _, timer in self._refused.values():
            timer.cancel()
        self._refused.clear()
        self._confirmed.clear()

    # -- one broker group ---------------------------------------------------------------------------------

    def _start(self, broker_group: str, target: _Target) -> None:
        if not target.busy and target.timer is None and target.dirty:
            target.busy = True
            self._workers.add(partial(self._work, broker_group, target))

    def _stop_timer(self, target: _Target) -> None:
        if target.timer is not None:
            target.timer.cancel()
            target.timer = None

    async def _work(self, broker_group: str, target: _Target) -> None:
        try:
            while target.dirty and self._leadership.current is not None:
                if not await self._push_some(broker_group, target):
                    return
        finally:
            target.busy = False
            self._start(broker_group, target)
            if not target.dirty and not target.busy and self._targets.get(broker_group) is target:
                del self._targets[broker_group]

    async def _push_some(self, broker_group: str, target: _Target) -> bool:
        """Push to a broker group what is due, some of it; False if it has to wait."""
        master = self._masters.master(broker_group)
        forgotten = self._masters.forgotten(broker_group)
        if master is None and not forgotten:
            target.problem = "it has no master"  # an election calls `master_changed`
            self._back_off(broker_group, target)
            return False
        size = PUSHES_AT_ONCE_MAX if target.failures == 0 else 1
        names = list(target.dirty)[:size]
        for name in names:
            del target.dirty[name]
        results = await asyncio.gather(
            *(self._bring(name, broker_group, master) for name in names), return_exceptions=True
        )
        failed = False
        for name, result in zip(names, results, strict=True):
            match result:
                case None:
                    pass
                case _Refused():
                    self._note_refused(name, broker_group, str(result))
                case _Unreachable() | Rejected():
                    failed = True
                    self._measurements.subject_pushes_failed += 1
                    target.dirty[name] = None
                    target.problem = str(result)
                case Exception():  # the edge of a task: other subjects still need this controller
                    log.error("push of a subject failed", subject=name, exc_info=result)
                    failed = True
                    target.dirty[name] = None
                    target.problem = "the controller failed"
                case _:
                    raise result
        if self._leadership.current is None:
            target.dirty.clear()
            return False
        if failed:
            self._back_off(broker_group, target)
            return False
        if target.failures:
            log.info("broker group takes queues of subjects again", broker_group=broker_group)
        target.failures = 0
        target.problem = None
        return True

    def _back_off(self, broker_group: str, target: _Target) -> None:
        target.failures += 1
        if target.failures == 1:
            log.info(
                "broker group does not take queues of subjects",
                broker_group=broker_group,
                reason=target.problem,
            )
        longest = min(BACK_OFF_SECONDS_MAX, BACK_OFF_SECONDS_MIN * 2 ** min(target.failures - 1, 10))
        seconds = longest * (0.5 + self._source.random() / 2)

        def over() -> None:
            target.timer = None
            self._start(broker_group, target)

        self._stop_timer(target)
        target.timer = asyncio.get_running_loop().call_later(seconds, over)

    def _note_refused(self, name: str, broker_group: str, problem: str) -> None:
        self._measurements.subject_pushes_failed += 1
        log.warning(
            "broker group refuses queues of a subject",
            subject=name,
            broker_group=broker_group,
            reason=problem,
        )

        def again() -> None:
            self._refused.pop((name, broker_group), None)
            self.subject_changed(name, (broker_group,))

        before = self._refused.pop((name, broker_group), None)
        if before is not None:
            before[1].cancel()
        timer = asyncio.get_running_loop().call_later(REFUSED_SECONDS, again)
        self._refused[name, broker_group] = (problem, timer)

    # -- one subject on one broker group ------------------------------------------------------------------

    async def _bring(self, name: str, broker_group: str, master: Master | None) -> None:
        """Push, if need be, and have the answer agreed on.

        Raises `_Unreachable`, `_Refused` or `Rejected`.
        """
        term, entry = self._leadership.current, self._machine.entry(name)
        wanted = queues_of(entry, broker_group)
        if wanted is None or wanted.deleted:
            self._forget(name, broker_group)
        if wanted is None:
            return
        if master is None:
            if isinstance(entry, Tombstone):
                await self._agree([QueuesDeleted(name, broker_group, entry.version)])
            return
        if not waits_for_end(entry, broker_group) and self._has(name, broker_group, master, wanted):
            return
        answer = await self._ask(master, wanted)
        if self._leadership.current is not term:
            return
        await self._agree(answered(self._machine.entry(name), broker_group, wanted, answer, master.epoch))
        if self._leadership.current is not term:
            return
        if not wanted.deleted:
            self._confirmed[name, broker_group] = (master, wanted)
        refused = self._refused.pop((name, broker_group), None)
        if refused is not None:
            refused[1].cancel()
        if queues_of(self._machine.entry(name), broker_group) == wanted and waits_for_end(
            self._machine.entry(name), broker_group
        ):
            raise _Refused("its answer does not say where its sealed queues end")

    def _has(self, name: str, broker_group: str, master: Master, wanted: SubjectQueues) -> bool:
        confirmed = self._confirmed.get((name, broker_group))
        return confirmed is not None and confirmed[0] == master and confirmed[1].queues == wanted.queues

    async def _ask(self, master: Master, wanted: SubjectQueues) -> SubjectQueues:
        command = Command(RequestCode.BROKERSET_SUBJECT_QUEUES, {}, wanted.to_json())
        self._measurements.subject_pushes += 1
        try:
            answer = await self._asker.ask(master.address, command, ANSWER_SECONDS_MAX)
        except (ConnectionClosed, RequestTimeout) as error:
            raise _Unreachable(str(error) or type(error).__name__) from error
        if answer.code == ResponseCode.BROKERSET_SUBJECT_REFUSED:
            raise _Refused(answer.remark or "without a reason")
        if answer.code != ResponseCode.SUCCESS:
            raise _Unreachable(f"{answer.code}: {answer.remark}")
        try:
            return SubjectQueues.from_json(answer.body)
        except Rejected as rejected:
            raise _Refused(f"its answer cannot be read: {rejected.remark}") from rejected

    async def _agree(self, events: list[Event]) -> None:
        for begin in range(0, len(events), PROPOSED_AT_ONCE_MAX):
            some = events[begin : begin + PROPOSED_AT_ONCE_MAX]
            results = await asyncio.gather(*map(self._propose, some), return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    raise result

    def _forget(self, name: str, broker_group: str) -> None:
        self._confirmed.pop((name, broker_group), None)
        refused = self._refused.pop((name, broker_group), None)
        if refused is not None:
            refused[1].cancel()
