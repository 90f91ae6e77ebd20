"""The heartbeat of a consumer (21027): who may go on for how long, with which partitions.

The order of steps is what makes it safe:

1. A departure of the session that may be applied yet is waited for. Whoever is no member joins.
2. What the session has drained, finished and released is agreed on, in this order, as one may need another.
   What was before changes nothing.
3. By then this controller was confirmed as leader after the heartbeat had arrived: by a commit in its term,
   or by a read barrier. So no other controller can have led, and waited for permissions to end, before the
   heartbeat was sent; and the permission is counted from then.
4. In one step, without anything in between: the session is a member, and no departure of it is on its way;
   the permission is noted, and the answer is taken from the state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from brokerset_controller.agreement import Agreement
from brokerset_controller.measurements import Measurements
from brokerset_controller.ordered.apply import GuardFailed
from brokerset_controller.ordered.describe import describe_assignment
from brokerset_controller.ordered.events import Drained, Event, MemberJoined, Released, RetriesFinished
from brokerset_controller.ordered.machine import SubjectOutcome, SubjectsMachine
from brokerset_controller.ordered.membership import assignment_of, decide_joining
from brokerset_controller.ordered.permissions import Key
from brokerset_controller.ordered.scaling import SubjectRefused
from brokerset_controller.ordered.state import ConsumerGroup, Subject
from brokerset_controller.subject_leadership import Leadership, member_of, seconds_of
from brokerset_protocol.bodies.ordered import AssignmentBody, OwnedReport
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers.ordered import ConsumerHeartbeat, ConsumerHeartbeatResponse
from brokerset_protocol.subject_words import ConsumeStrategy, OrderStrategy
from brokerset_runtime.clock import Clock
from brokerset_spec.controller_settings import ControllerSettings

ATTEMPTS_MAX: Final = 4
"""How often a session joins again that left while its heartbeat was answered."""

REPORTED_AT_ONCE_MAX: Final = 64
"""Events of one report that are agreed on at once."""

Reported = Drained | RetriesFinished | Released
"""What a session says of a partition that it consumes."""

Decide = Callable[[], Event | None]
Change = Callable[[Decide, float], Awaitable[object]]
"""Has what is decided agreed on, by the deadline, or passes a barrier; raises `Rejected`."""

Propose = Callable[[Event, float], Awaitable[SubjectOutcome]]


class ConsumerHeartbeats:
    """Answers heartbeats of consumers."""

    def __init__(
        self,
        *,
        settings: Callable[[], ControllerSettings],
        machine: SubjectsMachine,
        leadership: Leadership,
        agreement: Agreement,
        change: Change,
        propose: Propose,
        leave: Callable[[Key], None],
        clock: Clock,
        measurements: Measurements,
    ) -> None:
        """`leave` makes a member leave; the leadership says when that is over."""
        self._settings = settings
        self._machine = machine
        self._leadership = leadership
        self._agreement = agreement
        self._change = change
        self._propose = propose
        self._leave = leave
        self._clock = clock
        self._measurements = measurements

    async def answer(
        self,
        header: ConsumerHeartbeat,
        consume: ConsumeStrategy,
        order: OrderStrategy | None,
        report: OwnedReport,
    ) -> tuple[ConsumerHeartbeatResponse, AssignmentBody]:
        """The permission and the assignment. Raises `Rejected`, and then gives neither."""
        try:
            return await self._answer(header, consume, order, report)
        except BaseException:
            self._measurements.permissions_refused += 1
            raise

    async def _answer(
        self,
        header: ConsumerHeartbeat,
        consume: ConsumeStrategy,
        order: OrderStrategy | None,
        report: OwnedReport,
    ) -> tuple[ConsumerHeartbeatResponse, AssignmentBody]:
        deadline = self._agreement.deadline()
        term = self._agreement.must_lead()
        key = (header.subject, header.consumer_group, header.session)
        for _ in range(ATTEMPTS_MAX):
            await self._leadership.departure_over(key, deadline)
            if header.leaving:
                await self._report(key, report, deadline)
                await self._let_leave(key, deadline)
                await self._agreement.barrier(deadline)
                return self._left(header)
            await self._change(lambda: self._joining(header, consume, order), deadline)
            await self._report(key, report, deadline)
            # Nothing may wait from here to the end of the step.
            if self._agreement.must_lead() != term:
                raise Rejected(
                    ResponseCode.CONTROLLER_NOT_LEADER,
                    "this controller has led again since; repeat the request",
                )
            given = self._give(key)
            if given is not None:
                return given
        raise Rejected(
            ResponseCode.SYSTEM_BUSY,
            f"the session {header.session} left {header.consumer_group} {ATTEMPTS_MAX} times meanwhile;"
            " repeat the request",
        )

    def _joining(
        self, header: ConsumerHeartbeat, consume: ConsumeStrategy, order: OrderStrategy | None
    ) -> MemberJoined | None:
        """Raises `SubjectRefused` or `Rejected`."""
        subject = known_subject(self._machine, header.subject)
        check_order(subject, order)
        event = decide_joining(
            subject,
            header.subject,
            header.consumer_group,
            consume,
            header.session,
            header.client_id,
            self._settings().consumer_permission,
        )
        if event is not None:
            try:
                self._machine.check(event)
            except GuardFailed as failed:
                raise SubjectRefused(str(failed)) from failed
        return event

    async def _report(self, key: Key, report: OwnedReport, deadline: float) -> None:
        """Have what the session says of its partitions agreed on, so far as it is of what it owns still."""
        name, group, session = key
        drained = [
            Drained(name, group, each.partition_id, each.epoch, each.position) for each in report.drained
        ]
        finished = [RetriesFinished(name, group, each.partition_id, each.epoch) for each in report.finished]
        released = [Released(name, group, each.partition_id, each.epoch) for each in report.released]
        for reported in (drained, finished, released):
            await self._agree_on(reported, session, deadline)

    async def _agree_on(self, reported: Sequence[Reported], session: str, deadline: float) -> None:
        events = [event for event in dict.fromkeys(reported) if self._counts(event, session)]
        for begin in range(0, len(events), REPORTED_AT_ONCE_MAX):
            some = events[begin : begin + REPORTED_AT_ONCE_MAX]
            results = await asyncio.gather(
                *(self._propose(event, deadline) for event in some), return_exceptions=True
            )
            for result in results:
                if isinstance(result, BaseException):
                    raise result

    def _counts(self, event: Reported, session: str) -> bool:
        """Whether it is the session's to say, and its guards would pass now. Others were heard before."""
        subject = self._machine.subjects.get(event.subject)
        group = subject.groups.get(event.group) if subject is not None else None
        if group is None or session not in group.members or not _consumes(group, event, session):
            return False
        try:
            self._machine.check(event)
        except GuardFailed:
            return False
        return True

    def _give(self, key: Key) -> tuple[ConsumerHeartbeatResponse, AssignmentBody] | None:
        """The answer; None for a session that is no member any more, or may be none soon."""
        term, subject = self._leadership.current, self._machine.subjects.get(key[0])
        member = member_of(subject, key)
        if term is None or subject is None or member is None or key in term.departing:
            return None
        group = subject.groups[key[1]]
        term.permissions.give(key, seconds_of(member), self._clock.monotonic())
        self._measurements.permissions += 1
        settings = self._settings()
        header = ConsumerHeartbeatResponse(
            permission_ms=member.permission_ms,
            margin_ms=min(settings.consumer_stop_margin, member.permission_ms // 2),
            heartbeat_ms=min(settings.consumer_heartbeat_interval, member.permission_ms // 3),
            version=group.version,
        )
        return header, describe_assignment(subject, assignment_of(subject, group, key[2]))

    async def _let_leave(self, key: Key, deadline: float) -> None:
        if member_of(self._machine.subjects.get(key[0]), key) is None:
            return
        self._leave(key)
        await self._leadership.departure_over(key, deadline)
        if member_of(self._machine.subjects.get(key[0]), key) is not None:
            self._agreement.must_lead()
            raise Rejected(
                ResponseCode.SYSTEM_BUSY, f"the controllers have not agreed that {key[2]} leaves; repeat it"
            )

    def _left(self, header: ConsumerHeartbeat) -> tuple[ConsumerHeartbeatResponse, AssignmentBody]:
        subject = known_subject(self._machine, header.subject)
        group = subject.groups.get(header.consumer_group)
        version = subject.group_version if group is None else group.version
        strategy = ConsumeStrategy(header.consume_strategy) if group is None else group.strategy
        body = AssignmentBody(subject.generation, version, subject.order, strategy, ())
        return ConsumerHeartbeatResponse(permission_ms=0, margin_ms=0, heartbeat_ms=0, version=version), body


def _consumes(group: ConsumerGroup, event: Reported, session: str) -> bool:
    if group.is_shared:
        return True
    ownership = group.ownerships.get(event.partition_id)
    return ownership is not None and ownership.session == session


def known_subject(machine: SubjectsMachine, name: str) -> Subject:
    """The subject of that name. Raises `Rejected` (2111)."""
    subject = machine.subjects.get(name)
    if subject is None:
        raise Rejected(
            ResponseCode.BROKERSET_SUBJECT_UNKNOWN,
            f"there is no ordered subject {name}; producers or `brokerset subject create` make it",
        )
    return subject


def check_order(subject: Subject, order: OrderStrategy | None) -> None:
    """Raise `SubjectRefused` for who expects another strategy than the subject's."""
    if order is not None and order is not subject.order:
        raise SubjectRefused(
            f"the subject {subject.name} is {subject.order}, not {order}: set the client's order strategy to"
            " that, or use another subject"
        )
