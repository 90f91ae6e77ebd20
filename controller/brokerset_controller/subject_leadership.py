"""What a controller knows about members of consumer groups while it leads: permissions, and who is leaving.

A member must not hear that it may go on while its departure is on its way through the log: it would consume
what another member gets as soon as the departure is applied. So each departure of this leadership that was
proposed, and may be applied yet, is on a list until it was, or surely never will be. Those of leaderships
before were applied before this one began.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from brokerset_controller.ordered.events import MemberJoined, MemberLeft
from brokerset_controller.ordered.machine import SubjectChange, SubjectsMachine
from brokerset_controller.ordered.permissions import Key, Permissions
from brokerset_controller.ordered.state import Member, Subject
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.errors import Rejected
from brokerset_runtime.clock import Clock

log = structlog.get_logger(__name__)


class Term:
    """One leadership of this controller."""

    def __init__(self, number: int, margin: float) -> None:
        self.number = number
        self.permissions = Permissions(margin)
        self.departing: dict[Key, asyncio.Event] = {}
        """Departures that may be applied yet; the event is set when that is over."""


class Leadership:
    """Follows whether this controller leads; `on_begin` and `on_end` hear of it in the same step."""

    def __init__(self, machine: SubjectsMachine, clock: Clock, margin: Callable[[], float]) -> None:
        """`margin` gives the seconds that a leader waits longer than a permission lasts."""
        self._machine = machine
        self._clock = clock
        self._margin = margin
        self.current: Term | None = None
        """None while this controller does not lead, as far as it has noticed."""

        self.on_begin: list[Callable[[], None]] = []
        self.on_end: list[Callable[[], None]] = []
        machine.listeners.append(self._applied)

    def leads(self, term: int, now: float) -> Term:
        """This controller leads in this term; `now` is on the clock of the permissions.

        Whoever led before may have given permissions until now: each member's counts from now.
        """
        current = self.current
        if current is not None and current.number == term:
            return current
        self.ended()
        current = self.current = Term(term, self._margin())
        for name, subject in self._machine.subjects.items():
            for group in subject.groups.values():
                for session, member in group.members.items():
                    current.permissions.expect((name, group.name, session), seconds_of(member), now)
        for listener in self.on_begin:
            listener()
        return current

    def ended(self) -> None:
        """This controller does not lead any more."""
        if self.current is None:
            return
        departing = self.current.departing
        self.current = None
        for event in departing.values():
            event.set()
        for listener in self.on_end:
            listener()

    def begin_departure(self, key: Key) -> bool:
        """A departure is about to be proposed; False if one is on its way, or nobody leads here."""
        if self.current is None or key in self.current.departing:
            return False
        self.current.departing[key] = asyncio.Event()
        return True

    def end_departure(self, term: Term, key: Key) -> None:
        """It was applied, or never will be."""
        event = term.departing.pop(key, None)
        if event is not None:
            event.set()

    async def departure_over(self, key: Key, deadline: float) -> None:
        """Return when no departure of a member may be applied yet. Raises `Rejected` after the deadline."""
        term = self.current
        event = term.departing.get(key) if term is not None else None
        if event is None:
            return
        try:
            async with asyncio.timeout_at(deadline):
                await event.wait()
        except TimeoutError:
            raise Rejected(
                ResponseCode.SYSTEM_BUSY,
                f"the session {key[2]} is leaving {key[1]}, and no majority of the controllers has agreed;"
                " repeat the request",
            ) from None

    def _applied(self, change: SubjectChange) -> None:
        term = self.current
        event = change.event
        if term is None or not isinstance(event, MemberJoined | MemberLeft):
            return
        key = (event.subject, event.group, event.session)
        member = member_of(change.after if isinstance(change.after, Subject) else None, key)
        if isinstance(event, MemberLeft):
            if member is None:
                term.permissions.forget(key)
            self.end_departure(term, key)
        elif member is not None:
            # Else a scan for permissions that have ended would find none for it, and make it leave at once.
            term.permissions.expect(key, seconds_of(member), self._clock.monotonic())


def member_of(subject: Subject | None, key: Key) -> Member | None:
    """The member, if it is one."""
    group = subject.groups.get(key[1]) if subject is not None else None
    return group.members.get(key[2]) if group is not None else None


def seconds_of(member: Member) -> float:
    """How long it may go on after a heartbeat."""
    return member.permission_ms / 1_000
