"""Requests about ordered subjects (21021 to 21029): decide, have the event agreed on, answer from the state.

As with broker groups nothing is serialised: each event carries guards, and who comes second decides again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import structlog

from brokerset_controller.agreement import Agreement, AgreementEngine
from brokerset_controller.broker_masters import BrokerMasters
from brokerset_controller.consumer_heartbeats import ConsumerHeartbeats, check_order, known_subject
from brokerset_controller.first_subject import check_readers
from brokerset_controller.long_polls import LongPolls
from brokerset_controller.measurements import Measurements
from brokerset_controller.ordered import limits
from brokerset_controller.ordered.apply import GuardFailed
from brokerset_controller.ordered.codec import encode_event
from brokerset_controller.ordered.describe import describe_route, describe_subject
from brokerset_controller.ordered.events import (
    Event,
    GroupRemoved,
    MemberJoined,
    MemberLeft,
    ProducerStarted,
    SubjectCreated,
    SubjectDeleted,
)
from brokerset_controller.ordered.machine import Changed, SubjectChange, SubjectOutcome, SubjectsMachine
from brokerset_controller.ordered.scaling import SubjectRefused, decide_creation, decide_scaling
from brokerset_controller.ordered.state import Entry, Subject
from brokerset_controller.replicas.events import Superseded
from brokerset_controller.subject_leadership import Leadership, member_of
from brokerset_controller.subject_pushes import QueuePushes
from brokerset_controller.subject_reconciler import SubjectReconciler
from brokerset_protocol.bodies.ordered import (
    AssignmentBody,
    OwnedReport,
    SubjectRoute,
    SubjectState,
    SubjectStates,
)
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers.ordered import ConsumerHeartbeat, ConsumerHeartbeatResponse
from brokerset_protocol.subject_words import ConsumeStrategy, OrderStrategy
from brokerset_runtime.clock import Clock
from brokerset_runtime.peer_requests import Asker
from brokerset_spec.controller_settings import ControllerSettings

log = structlog.get_logger(__name__)

ATTEMPTS_MAX: Final = 8
"""How often a request decides again because other changes of its subject came in between."""

SUBJECTS_SHOWN_MAX: Final = 1_000
"""Subjects in one answer; for more the request must name the ones that it wants."""

PARTS_SHOWN_MAX: Final = 60_000
"""What the subjects of one answer have together (`limits.parts`): about 10 MB of JSON."""

WAIT_MS_MAX: Final = 10_000
"""Longest wait of a request for a change."""


class SubjectService:
    """All requests about subjects, and what the controller does about them unasked while `run` is on."""

    def __init__(
        self,
        *,
        settings: Callable[[], ControllerSettings],
        engine: AgreementEngine,
        machine: SubjectsMachine,
        masters: BrokerMasters,
        clock: Clock,
        asker: Asker,
        source: random.Random,
        measurements: Measurements,
        others: Callable[[], Mapping[int, str]] = dict,
    ) -> None:
        """`settings` gives those in force; `source` is for choices of routes and for waits; `others` gives
        the other controllers, addresses by id."""
        self._settings = settings
        self.machine = machine
        self._masters = masters
        self._clock = clock
        self._source = source
        self._measurements = measurements
        self._asker = asker
        self._others = others
        self._polls = LongPolls()
        self._leadership = Leadership(machine, clock, lambda: settings().consumer_wait_margin / 1_000)
        self._agreement = Agreement(
            engine=engine,
            clock=clock,
            measurements=measurements,
            timeout=lambda: settings().request_timeout / 1_000,
            on_leading=self._leadership.leads,
        )
        self.pushes = QueuePushes(
            machine=machine,
            leadership=self._leadership,
            masters=masters,
            asker=asker,
            propose=self._propose,
            source=source,
            measurements=measurements,
        )
        self.reconciler = SubjectReconciler(
            machine=machine,
            leadership=self._leadership,
            pushes=self.pushes,
            status=lambda: engine.status,
            propose=self._propose,
            retire_seconds=lambda: settings().sealed_partition_retention / 1_000,
            clock=clock,
            measurements=measurements,
        )
        self._heartbeats = ConsumerHeartbeats(
            settings=settings,
            machine=machine,
            leadership=self._leadership,
            agreement=self._agreement,
            change=self._change,
            propose=self._propose,
            leave=self.reconciler.leave,
            clock=clock,
            measurements=measurements,
        )
        self._leadership.on_end.append(self._polls.wake_all)
        machine.listeners.append(self._applied)

    async def run(self) -> None:
        """Assign, push and let members leave, for as long as this task runs."""
        await self.reconciler.run()

    def role_changed(self) -> None:
        """The engine's state is another; without it the role is checked often enough."""
        self.reconciler.role_changed()

    def master_changed(self, broker_group: str) -> None:
        """A broker group has another master, or none."""
        self.pushes.master_changed(broker_group)

    @property
    def sealing_seconds(self) -> float:
        """How long the slowest sealing has taken until now."""
        return self.reconciler.sealing_seconds

    @property
    def waiting(self) -> int:
        """Requests that wait for a change."""
        return len(self._polls)

    # -- administrators -----------------------------------------------------------------------------------

    async def create(
        self, name: str, order: OrderStrategy, partitions: int | None, route: tuple[str, ...]
    ) -> SubjectStates:
        """21021."""
        await self._create(name, order, partitions, route)
        return self._states([name])

    async def scale(self, name: str, partitions: int, route: tuple[str, ...]) -> SubjectStates:
        """21022."""

        def decide() -> Event | None:
            return decide_scaling(
                known_subject(self.machine, name), name, partitions, route, self._masters.writable()
            )

        await self._change(decide)
        return self._states([name])

    async def delete(self, name: str) -> None:
        """21023. A subject that is deleted already is deleted."""

        def decide() -> Event | None:
            if name in self.machine.tombstones:
                return None
            known_subject(self.machine, name)
            return SubjectDeleted(name)

        await self._change(decide)

    async def describe(self, names: Sequence[str]) -> SubjectStates:
        """21024: the known ones of these, or all."""
        await self._agreement.barrier()
        wanted = list(names) if names else sorted(self.machine.subjects)
        if len(wanted) > SUBJECTS_SHOWN_MAX:
            raise Rejected(
                ResponseCode.SYSTEM_ERROR,
                f"there are {len(wanted)} subjects; name those to show, SUBJECTS_SHOWN_MAX is"
                f" {SUBJECTS_SHOWN_MAX}",
            )
        return self._states(wanted)

    async def remove_group(self, name: str, group: str) -> None:
        """21029. A group that is not there is removed."""

        def decide() -> Event | None:
            found = known_subject(self.machine, name).groups.get(group)
            return None if found is None else GroupRemoved(name, group)

        await self._change(decide)

    # -- producers ----------------------------------------------------------------------------------------

    async def route(
        self, name: str, order: OrderStrategy | None, *, create: bool, known_version: int | None, wait_ms: int
    ) -> tuple[int, SubjectRoute | None]:
        """21025: the version, and the route unless the version is the known one still.

        A subject that is created here is Strict unless its producer expects another strategy.
        """
        if create and name not in self.machine.subjects:
            await self._create(name, order or OrderStrategy.STRICT, None, ())
        else:
            await self._agreement.barrier()
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + min(max(wait_ms, 0), WAIT_MS_MAX) / 1_000
        while True:
            self._agreement.must_lead()
            subject = known_subject(self.machine, name)
            with _refusals():
                check_order(subject, order)
            if subject.version != known_version:
                return subject.version, describe_route(subject)
            seconds = ends_at - loop.time()
            if seconds <= 0:
                return subject.version, None
            await self._polls.wait(name, seconds)

    async def start_producer(self, name: str, producer_id: str) -> int:
        """21026: the producer's epoch."""
        problem = limits.producer_id_problem(producer_id)
        if problem is not None:
            raise Rejected(ResponseCode.BROKERSET_SUBJECT_REFUSED, problem)

        def decide() -> Event | None:
            known_subject(self.machine, name)
            return ProducerStarted(name)

        after = await self._change(decide)
        assert isinstance(after, Subject), "it was there when the event was applied"
        log.info("producer started", subject=name, producer=producer_id, epoch=after.epoch)
        return after.epoch

    # -- consumers ----------------------------------------------------------------------------------------

    async def heartbeat(
        self,
        header: ConsumerHeartbeat,
        consume: ConsumeStrategy,
        order: OrderStrategy | None,
        report: OwnedReport,
    ) -> tuple[ConsumerHeartbeatResponse, AssignmentBody]:
        """21027."""
        return await self._heartbeats.answer(header, consume, order, report)

    async def assignment_changed(
        self, name: str, group_name: str, session: str, version: int, wait_ms: int
    ) -> int:
        """21028: the version of the group, as soon as it is another one than the known one.

        It gives nothing, so it needs no barrier: who is answered from the past sends a heartbeat too many.
        """
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + min(max(wait_ms, 0), WAIT_MS_MAX) / 1_000
        while True:
            self._agreement.must_lead()
            subject = known_subject(self.machine, name)
            if member_of(subject, (name, group_name, session)) is None:
                raise Rejected(
                    ResponseCode.BROKERSET_SUBJECT_REFUSED,
                    f"{session} is no member of {group_name}; send a heartbeat to join",
                )
            current = subject.groups[group_name].version
            seconds = ends_at - loop.time()
            if current != version or seconds <= 0:
                return current
            await self._polls.wait((name, group_name), seconds)

    # -- inner parts --------------------------------------------------------------------------------------

    async def _create(
        self, name: str, order: OrderStrategy, partitions: int | None, route: tuple[str, ...]
    ) -> None:
        def decide() -> Event | None:
            places = self.machine.partitions_on
            writable = {place: places.get(place, 0) for place in self._masters.writable()}
            default = self._settings().subject_default_broker_groups
            existing = self.machine.entry(name)
            return decide_creation(existing, name, order, partitions, route, writable, self._source, default)

        if not self.machine.subjects and not self.machine.tombstones:
            self._agreement.must_lead()
            await check_readers(self._asker, self._others())
        await self._change(decide)

    async def _change(
        self, decide: Callable[[], Event | None], deadline: float | None = None
    ) -> Entry | None:
        """Decide until the event is applied, or until there is none on a state that was current.

        Returns what stands behind the subject's name after the event; None without one. Either way this
        controller was confirmed as leader after the call. Raises `Rejected`.
        """
        deadline = self._agreement.deadline() if deadline is None else deadline
        current = False
        for _ in range(ATTEMPTS_MAX):
            self._agreement.must_lead()
            try:
                with _refusals():
                    event = decide()
                    if event is not None:
                        self.machine.check(event)
            except Rejected:
                if current:
                    raise
                event = None
            if event is None:
                if current:
                    return None
                await self._agreement.barrier(deadline)
                current = True
                continue
            term = self._agreement.must_lead()
            outcome = await self._propose(event, deadline)
            if isinstance(outcome, Changed):
                if self._agreement.must_lead() != term:  # it was committed by another leader
                    await self._agreement.barrier(deadline)
                return outcome.after
            current = self._agreement.must_lead() == term
        raise Rejected(
            ResponseCode.SYSTEM_BUSY,
            f"other changes of the subject came in between {ATTEMPTS_MAX} times; repeat the request",
        )

    async def _propose(self, event: Event, deadline: float | None = None) -> SubjectOutcome:
        outcome = await self._agreement.propose(encode_event(event), deadline)
        assert isinstance(outcome, Changed | Superseded), outcome
        return outcome

    def _states(self, names: Sequence[str]) -> SubjectStates:
        known = [self.machine.subjects[name] for name in names if name in self.machine.subjects]
        if len(known) > 1 and sum(map(limits.parts, known)) > PARTS_SHOWN_MAX:
            raise Rejected(
                ResponseCode.SYSTEM_ERROR,
                "these subjects have too many partitions and members for one answer; name some of them",
            )
        return SubjectStates(tuple(self._state(subject) for subject in known))

    def _state(self, subject: Subject) -> SubjectState:
        term, now = self._leadership.current, self._clock.monotonic()

        def heard_ago(group: str, session: str) -> int | None:
            at = term.permissions.answered_at((subject.name, group, session)) if term is not None else None
            return None if at is None else max(round((now - at) * 1_000), 0)

        return describe_subject(subject, heard_ago, self.pushes.problems(subject.name))

    def _applied(self, change: SubjectChange) -> None:
        """An event took effect here, whoever proposed it."""
        before, after, event = change.before, change.after, change.event
        if after is before:
            return
        was = before if isinstance(before, Subject) else None
        now = after if isinstance(after, Subject) else None
        if was is None or now is None or was.version != now.version:
            self._polls.wake(event.subject)
        groups = dict(was.groups) if was is not None else {}
        for name, group in groups.items():
            if now is None or now.groups.get(name) is not group:
                self._polls.wake((event.subject, name))
        if self._leadership.current is not None:
            self._note(event)

    def _note(self, event: Event) -> None:
        match event:
            case SubjectCreated():
                log.info("subject created", subject=event.subject, partitions=event.partitions)
            case SubjectDeleted():
                log.info("subject deleted", subject=event.subject)
            case MemberJoined():
                self._measurements.joins += 1
                log.info(
                    "member joined",
                    subject=event.subject,
                    group=event.group,
                    session=event.session,
                    client=event.client_id,
                )
            case MemberLeft():
                self._measurements.departures += 1
                log.info("member left", subject=event.subject, group=event.group, session=event.session)
            case _:
                pass


@contextmanager
def _refusals() -> Iterator[None]:
    """Turn what is refused into an answer (2110)."""
    try:
        yield
    except (SubjectRefused, GuardFailed) as error:
        raise Rejected(ResponseCode.BROKERSET_SUBJECT_REFUSED, str(error)) from error
