"""What a leading controller does about subjects unasked: assignments, departures, retirement, pushes.

Level-based, as reconcilers of Kubernetes are: events say which subject to examine, never what to do, and what
to do is decided on the state as it is then. One job at most works on one subject.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import structlog

from brokerset_controller.agreement import LeaderStatus
from brokerset_controller.engine_errors import TimedOut
from brokerset_controller.measurements import Measurements
from brokerset_controller.ordered.assignment import plan
from brokerset_controller.ordered.events import MemberLeft, PartitionRetired, Reassigned
from brokerset_controller.ordered.machine import Changed, SubjectChange, SubjectsMachine
from brokerset_controller.ordered.permissions import Key
from brokerset_controller.ordered.queues import broker_groups_of
from brokerset_controller.ordered.scaling import retirable
from brokerset_controller.ordered.state import Subject
from brokerset_controller.subject_leadership import Leadership, Term, member_of
from brokerset_controller.subject_pushes import Proposer, QueuePushes
from brokerset_controller.worker_pool import WorkerPool
from brokerset_protocol.errors import Rejected
from brokerset_protocol.subject_words import PartitionStatus
from brokerset_runtime.clock import Clock

log = structlog.get_logger(__name__)

JOBS_AT_ONCE_MAX: Final = 256
"""Subjects that are worked on, and members that leave, at once; more wait."""

GROUPS_AT_ONCE_MAX: Final = 64
"""Groups of one subject that are assigned partitions at once."""

ATTEMPTS_MAX: Final = 8
"""How often an assignment is planned again at once when other changes come in between; then it waits."""

AGAIN_SECONDS: Final = 0.2
"""Wait before something is tried again that was not agreed on."""

CHECK_SECONDS: Final = 0.1
"""How often permissions that have ended are searched for, and the own role is checked."""

AGES_SECONDS: Final = 1.0
"""How often partitions are examined for what their age decides."""

_AGED: Final = (PartitionStatus.SEALING, PartitionStatus.SEALED)


class SubjectReconciler:
    """The tasks of one controller about subjects."""

    def __init__(
        self,
        *,
        machine: SubjectsMachine,
        leadership: Leadership,
        pushes: QueuePushes,
        status: Callable[[], LeaderStatus],
        propose: Proposer,
        retire_seconds: Callable[[], float],
        clock: Clock,
        measurements: Measurements,
    ) -> None:
        """`retire_seconds` gives how long a sealed partition is kept at least."""
        self._machine = machine
        self._leadership = leadership
        self._pushes = pushes
        self._status = status
        self._propose = propose
        self._retire_seconds = retire_seconds
        self._clock = clock
        self._measurements = measurements
        self._workers = WorkerPool(JOBS_AT_ONCE_MAX)
        self._dirty: dict[str, dict[str, None]] = {}
        """Groups whose assignment may have to change, by subject."""

        self._busy: dict[str, None] = {}
        self._timers: dict[tuple[str, ...], asyncio.TimerHandle] = {}
        self._since: dict[str, dict[tuple[int, PartitionStatus], float]] = {}
        """By subject with partitions whose age matters: since when they are seen so by this leadership."""

        self._retiring: dict[str, None] = {}
        self._next_ages = 0.0
        self._news = asyncio.Event()
        leadership.on_begin.append(self._begin)
        leadership.on_end.append(self._end)
        machine.listeners.append(self._applied)

    async def run(self) -> None:
        """Do it, for as long as this task runs."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._workers.run())
                group.create_task(self._pushes.run())
                group.create_task(self._watch())
        finally:
            self._leadership.ended()

    def role_changed(self) -> None:
        """The engine's state is another; must be called on the loop's thread."""
        self._news.set()

    def leave(self, key: Key) -> None:
        """Have a member leave; `Leadership.departure_over` says when that is over."""
        term = self._leadership.current
        if term is not None and self._leadership.begin_departure(key):
            self._workers.add(partial(self._depart, term, key))

    @property
    def sealing_seconds(self) -> float:
        """How long the slowest sealing has taken until now, as this leadership has seen it."""
        since = [
            at
            for partitions in self._since.values()
            for (_, status), at in partitions.items()
            if status is PartitionStatus.SEALING
        ]
        return max(self._clock.monotonic() - min(since), 0.0) if since else 0.0

    # -- news ---------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        for name, subject in self._machine.subjects.items():
            self._examine(name, subject.groups)
            self._note_ages(subject)

    def _end(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._dirty.clear()
        self._since.clear()
        self._next_ages = 0.0

    def _applied(self, change: SubjectChange) -> None:
        before, after = change.before, change.after
        if self._leadership.current is None or after is before or after is None:
            return
        if not isinstance(after, Subject):
            self._pushes.subject_changed(after.name, broker_groups_of(after))
            self._since.pop(after.name, None)
            return
        known = before.groups if isinstance(before, Subject) else {}
        self._examine(
            after.name, [name for name, each in after.groups.items() if each is not known.get(name)]
        )
        if not isinstance(before, Subject) or after.version != before.version:
            # Also where it has nothing any more: what is known of that is forgotten then.
            places = {*broker_groups_of(before), *broker_groups_of(after)}
            self._pushes.subject_changed(after.name, sorted(places))
            self._note_ages(after)

    def _examine(self, name: str, groups: Iterable[str]) -> None:
        """Have assignments of groups planned."""
        listed = list(groups)
        if not listed:
            return
        self._dirty.setdefault(name, {}).update(dict.fromkeys(listed))
        if name not in self._busy:
            self._busy[name] = None
            self._workers.add(partial(self._assign, name))

    # -- leadership and time ------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            self._news.clear()
            status = self._status()
            now = self._clock.monotonic()
            if status.leading:
                term = self._leadership.leads(status.term, now)
                self._let_leave(term, now)
                if now >= self._next_ages:
                    self._next_ages = now + AGES_SECONDS
                    self._retire(now)
            else:
                self._leadership.ended()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CHECK_SECONDS):
                    await self._news.wait()

    def _let_leave(self, term: Term, now: float) -> None:
        for key in term.permissions.ended(now):
            if member_of(self._machine.subjects.get(key[0]), key) is None:
                term.permissions.forget(key)
            else:
                log.info("member of a group is not heard", subject=key[0], group=key[1], session=key[2])
                self.leave(key)

    async def _depart(self, term: Term, key: Key) -> None:
        """Propose a departure. It stays on the list while it may be applied; `Leadership` hears of it."""
        if self._leadership.current is not term:
            return
        try:
            await self._propose(MemberLeft(*key))
        except Rejected as rejected:
            if not isinstance(rejected, TimedOut):  # else it may be applied yet
                self._leadership.end_departure(term, key)
            log.info(
                "departure not agreed on",
                subject=key[0],
                group=key[1],
                session=key[2],
                reason=rejected.remark,
            )
            self._later(("leave", *key), lambda: self._leave_again(term, key))
        else:
            self._leadership.end_departure(term, key)

    def _leave_again(self, term: Term, key: Key) -> None:
        if self._leadership.current is term and term.permissions.has_ended(key, self._clock.monotonic()):
            self.leave(key)

    def _later(self, name: tuple[str, ...], do: Callable[[], None]) -> None:
        """Do something after a while, once by that name, if this leadership goes on."""
        if self._leadership.current is None or name in self._timers:
            return

        def over() -> None:
            self._timers.pop(name, None)
            do()

        self._timers[name] = asyncio.get_running_loop().call_later(AGAIN_SECONDS, over)

    # -- assignments --------------------------------------------------------------------------------------

    async def _assign(self, name: str) -> None:
        try:
            while groups := list(self._dirty.pop(name, {})):
                for begin in range(0, len(groups), GROUPS_AT_ONCE_MAX):
                    some = groups[begin : begin + GROUPS_AT_ONCE_MAX]
                    results = await asyncio.gather(
                        *(self._assign_group(name, group) for group in some), return_exceptions=True
                    )
                    for result in results:
                        if isinstance(result, BaseException):
                            raise result
        finally:
            del self._busy[name]

    async def _assign_group(self, name: str, group_name: str) -> None:
        for _ in range(ATTEMPTS_MAX):
            subject = self._machine.subjects.get(name)
            group = subject.groups.get(group_name) if subject is not None else None
            if subject is None or group is None or self._leadership.current is None:
                return
            event = plan(subject, group)
            if event is None:
                return
            try:
                outcome = await self._propose(event)
            except Rejected as rejected:
                log.info("assignment not agreed on", subject=name, group=group_name, reason=rejected.remark)
                break
            if isinstance(outcome, Changed):
                self._measurements.reassignments += 1
                _log_assigned(event)
        self._later(("assign", name, group_name), lambda: self._examine(name, [group_name]))

    # -- ages ---------------------------------------------------------------------------------------------

    def _note_ages(self, subject: Subject) -> None:
        """Note when partitions were seen first in a status whose age matters."""
        now, before = self._clock.monotonic(), self._since.pop(subject.name, {})
        aged: dict[tuple[int, PartitionStatus], float] = {
            (number, each.status): before.get((number, each.status), now)
            for number, each in subject.partitions.items()
            if each.status in _AGED
        }
        if aged:
            self._since[subject.name] = aged

    def _retire(self, now: float) -> None:
        for name, since in list(self._since.items()):
            subject = self._machine.subjects.get(name)
            if subject is None:
                del self._since[name]
                continue
            due = [
                event
                for event in retirable(subject)
                if now - since.get((event.partition_id, PartitionStatus.SEALED), now)
                >= self._retire_seconds()
            ]
            if due and name not in self._retiring:
                self._retiring[name] = None
                self._workers.add(partial(self._retire_partitions, name, due))

    async def _retire_partitions(self, name: str, events: list[PartitionRetired]) -> None:
        try:
            for event in events:
                if self._leadership.current is None:
                    return
                if isinstance(await self._propose(event), Changed):
                    log.info("sealed partition retired", subject=name, partition=event.partition_id)
        except Rejected as rejected:  # the next pass finds it again
            log.info("retirement not agreed on", subject=name, reason=rejected.remark)
        finally:
            del self._retiring[name]


def _log_assigned(event: Reassigned) -> None:
    log.info(
        "partitions assigned",
        subject=event.subject,
        group=event.group,
        revoked=len(event.revoked),
        granted=len(event.granted),
    )
