"""What must hold for Shared groups, by what leaves brokers and what handlers do.

The account of a broker is its answers: what it gave to which session, and what it said is acknowledged. A
session has what it was given until that is acknowledged, its pull log ends, it was silent for long, or
another one leads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from brokerset_sim.process import Process

ACKNOWLEDGED: Final = "what a shared group has acknowledged is given to nobody again"
ONE_SESSION: Final = "a message of a shared group is one living session's at a time"
SEQUENCES: Final = "a pull sequence of a session is one message"
BOUNDED: Final = "messages that were given to a shared group and not acknowledged are bounded"
LETS_GO: Final = "no session lets go of a queue while its handlers have messages of it"

SILENT_SECONDS: Final = 25.0
"""Whoever was not heard for so long may be forgotten: 30 s by the clock of a host that is fast."""

Queue = tuple[str, str, str, int]
"""Consumer group, broker group, topic and queue id."""

Mastership = tuple[Process, int]
"""A broker's process, and the epoch in which it leads."""


@dataclass(frozen=True, slots=True)
class _Given:
    session: str
    at: float


@dataclass(slots=True)
class _Account:
    """What one mastership has said of a queue."""

    given: dict[int, _Given] = field(default_factory=dict)
    """By queue offset; not acknowledged."""

    ending: Counter[str] = field(default_factory=Counter)
    """Requests of sessions that are not answered, and end their pull logs."""

    heard: dict[str, float] = field(default_factory=dict)
    """When the last request of a session was taken up that was answered."""


class SharedOracle:
    """All Shared groups of a world."""

    def __init__(
        self,
        now: Callable[[], float],
        violated: Callable[[str, str], None],
        counts: Counter[str],
        given_max: int,
    ) -> None:
        """`given_max`: so many messages of a queue may be given and not acknowledged."""
        self._now = now
        self._violated = violated
        self._counts = counts
        self._given_max = given_max
        self._accounts: dict[tuple[Mastership, Queue], _Account] = {}
        self._logs: dict[tuple[Queue, str], dict[int, int]] = {}
        """Queue offsets by pull sequence, of what a session was given and did not acknowledge."""

        self._acknowledged: dict[Queue, set[int]] = {}
        self._handling: dict[tuple[Process, Queue], int] = {}
        """How many handlers of a process have messages of a queue."""

    # -- handlers -----------------------------------------------------------------------------------------

    def handler_started(self, process: Process, queue: Queue) -> None:
        """A handler begins with a message."""
        self._handling[(process, queue)] = self._handling.get((process, queue), 0) + 1

    def handler_ended(self, process: Process, queue: Queue) -> None:
        """It returned, failed, or was cancelled."""
        self._handling[(process, queue)] -= 1

    def lets_go(self, process: Process, queue: Queue, what: str) -> None:
        """A session says that it has nothing of a queue any more: it releases it, or claims from scratch."""
        handlers = self._handling.get((process, queue), 0)
        if handlers and process.alive:
            self._violated(LETS_GO, f"{what} of {queue} by {process}, while {handlers} of its handlers run")

    # -- brokers ------------------------------------------------------------------------------------------

    def log_ends(self, master: Mastership, queue: Queue, session: str) -> None:
        """A release, or a claim of another pull log, is taken up: others may be given what it has."""
        self._account(master, queue).ending[session] += 1

    def log_has_ended(self, master: Mastership, queue: Queue, session: str) -> None:
        """It is answered."""
        account = self._account(master, queue)
        account.ending[session] -= 1
        for queue_offset, given in list(account.given.items()):
            if given.session == session:
                del account.given[queue_offset]

    def ack_arrives(self, master: Mastership, queue: Queue, session: str, last: int) -> None:
        """An acknowledgement is taken up: it counts at once, and is answered when it is confirmed."""
        account = self._account(master, queue)
        for queue_offset in self._through(queue, session, last).values():
            given = account.given.get(queue_offset)
            if given is not None and given.session == session:
                del account.given[queue_offset]

    def heard(self, master: Mastership, queue: Queue, session: str, taken_at: float) -> None:
        """A request of a session was answered that a broker took up at a time of the world."""
        heard = self._account(master, queue).heard
        heard[session] = max(heard.get(session, 0.0), taken_at)

    def gives(
        self, master: Mastership, queue: Queue, session: str, first: int, queue_offsets: list[int]
    ) -> None:
        """An answer to a pull leaves, with messages from pull sequence `first` on."""
        log = self._logs.setdefault((queue, session), {})
        account = self._account(master, queue)
        now = self._now()
        for sequence, queue_offset in enumerate(queue_offsets, first):
            if log.setdefault(sequence, queue_offset) != queue_offset:
                self._violated(
                    SEQUENCES, f"{sequence} of {session} is {log[sequence]} of {queue}, and {queue_offset}"
                )
            if queue_offset in self._acknowledged.get(queue, ()):
                self._violated(ACKNOWLEDGED, f"{queue_offset} of {queue} is given to {session}")
            before = account.given.get(queue_offset)
            if before is not None and before.session != session:
                self._check_gone(account, before, f"{queue_offset} of {queue} is given to {session}")
            account.given[queue_offset] = _Given(session, now)
        self._counts["shared: given"] += len(queue_offsets)
        if len(account.given) > self._given_max:
            self._violated(BOUNDED, f"{len(account.given)} messages of {queue} are given")

    def acknowledged(self, queue: Queue, session: str, last: int) -> None:
        """A broker answers that everything up to a pull sequence is acknowledged."""
        log = self._logs.get((queue, session), {})
        for sequence, queue_offset in self._through(queue, session, last).items():
            self._acknowledged.setdefault(queue, set()).add(queue_offset)
            del log[sequence]
        self._counts["shared: acknowledgements"] += 1

    def _check_gone(self, account: _Account, before: _Given, what: str) -> None:
        if account.ending[before.session] > 0:
            return
        silent = self._now() - max(before.at, account.heard.get(before.session, 0.0))
        if silent < SILENT_SECONDS:
            self._violated(
                ONE_SESSION,
                f"{what}; {before.session} was given it at {before.at:.3f}, and was heard {silent:.3f} s ago",
            )
        self._counts["shared: given again after silence"] += 1

    def _through(self, queue: Queue, session: str, last: int) -> dict[int, int]:
        """What a session has of one pull log up to a pull sequence; others are far away."""
        log = self._logs.get((queue, session), {})
        found: dict[int, int] = {}
        while last in log:
            found[last] = log[last]
            last -= 1
        return found

    def _account(self, master: Mastership, queue: Queue) -> _Account:
        return self._accounts.setdefault((master, queue), _Account())
