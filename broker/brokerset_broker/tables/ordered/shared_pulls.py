"""What a master has given to the sessions of a Shared group of one queue: their pull logs. Pure.

Each queue offset from the group's position on, below `next_new`, is acknowledged, or in the pull log of one
session, or is to be given again. After a change of the master, and for a queue without sessions, nothing of
that is known but what was acknowledged, which is replicated.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Final

from brokerset_broker.tables.ordered.acked_ranges import AckedRanges

WINDOW: Final = 4_096
"""Queue offsets between the group's position and the newest that was given: it bounds the pull logs."""

RANGES_MAX: Final = 512
"""Acknowledged ranges above the position with which nothing new is given: each ack stores all of them."""

SESSIONS_MAX: Final = 1_024
"""Sessions of a group that a queue has pull logs of; a further one is refused."""


class PullLog:
    """What one session has of a queue, numbered by contiguous pull sequences."""

    __slots__ = ("_pending", "position", "queue", "seen", "session", "start")

    def __init__(self, queue: SharedQueue, session: str, start: int, now: float) -> None:
        self.queue = queue
        self.session = session
        self.start = self.position = start
        """`position` is the first pull sequence that the session has not acknowledged."""

        self.seen = now
        """When the session last asked for something, by the clock of the caller."""

        self._pending: list[int] = []

    @property
    def end(self) -> int:
        """The pull sequence that the next message gets."""
        return self.position + len(self._pending)

    def __len__(self) -> int:
        """Messages that were given, and are not acknowledged."""
        return len(self._pending)

    @property
    def sent_back(self) -> dict[int, int]:
        """Queue offset -> end in the log of the copy that was made of the message."""
        return self.queue.sent_back

    def has(self, queue_offset: int) -> bool:
        """Whether the session has a message, not acknowledged yet."""
        return queue_offset in self._pending

    def note_copy(self, queue_offset: int, end: int) -> None:
        """A copy of a message that it has was stored for retry, up to `end` of the log."""
        self.queue.sent_back[queue_offset] = end

    def given_from(self, sequence: int) -> list[int]:
        """Queue offsets of what it was given from a pull sequence on, which is not below its position."""
        return self._pending[sequence - self.position :]

    def give(self, queue_offset: int) -> None:
        """It gets the message that `SharedQueue.candidate` has named."""
        self.queue.take(queue_offset)
        self._pending.append(queue_offset)

    def unacknowledged(self, sequence: int) -> list[int]:
        """Queue offsets below a pull sequence that neither it nor the end of their retention has settled."""
        settled = self.queue.acked
        return [offset for offset in self._below(sequence) if offset not in settled]

    def acknowledge(self, end: int) -> None:
        """It has handled everything below a pull sequence, which is not behind its end."""
        done = self._below(end)
        del self._pending[: len(done)]
        self.position += len(done)
        for queue_offset in done:
            self.queue.settle(queue_offset, queue_offset + 1)

    def _below(self, sequence: int) -> list[int]:
        """What it has below a pull sequence, which may lie below its position: acks may be late."""
        return self._pending[: max(0, sequence - self.position)]

    def abandon(self) -> list[int]:
        """It ends: what it has not acknowledged."""
        left, self._pending = self.unacknowledged(self.end), []
        return left


class SharedQueue:
    """The pull logs of one queue and group, and what of the queue nobody has."""

    __slots__ = ("_again", "acked", "confirmed_position", "epoch", "logs", "next_new", "sent_back")

    def __init__(self, epoch: int, acked: AckedRanges) -> None:
        self.epoch = epoch
        self.acked = acked
        self.confirmed_position = acked.position
        """The group's position that every in-sync replica has."""

        self.next_new = acked.position
        """The first queue offset that no session was given, and no filter has dropped."""

        self.logs: dict[str, PullLog] = {}
        self.sent_back: dict[int, int] = {}
        self._again: list[int] = []

    @property
    def pending(self) -> int:
        """Messages that sessions were given, and have not acknowledged."""
        return sum(map(len, self.logs.values()))

    @property
    def is_full(self) -> bool:
        """Whether nothing new is given until gaps are closed."""
        return self._following_new() >= self.acked.position + WINDOW or len(self.acked) > RANGES_MAX

    def begin(self, session: str, start: int, now: float) -> PullLog:
        """A pull log for a session from a pull sequence on; what it had before is given again."""
        self.forget(session)
        log = self.logs[session] = PullLog(self, session, start, now)
        return log

    def forget(self, session: str) -> bool:
        """A session's log ends; whether it had one."""
        log = self.logs.pop(session, None)
        if log is None:
            return False
        for queue_offset in log.abandon():
            insort(self._again, queue_offset)
        return True

    def forget_silent(self, before: float) -> list[str]:
        """The logs end of sessions that asked for nothing since a time; returns whose."""
        silent = [session for session, log in self.logs.items() if log.seen < before]
        for session in silent:
            self.forget(session)
        return silent

    def candidate(self) -> tuple[int, bool] | None:
        """What is to be given next, if it is there, and whether it is given again; None while full."""
        if self._again:
            return self._again[0], True
        return None if self.is_full else (self._following_new(), False)

    def take(self, queue_offset: int) -> None:
        """The candidate goes to a session."""
        if self._again and self._again[0] == queue_offset:
            del self._again[0]
        else:
            self.next_new = queue_offset + 1

    def settle(self, first: int, end: int) -> None:
        """What lies from `first` on, below `end`, is done: acknowledged, dropped by the filter, or expired.

        Beyond `next_new` it is contiguous with that.
        """
        self.acked.add(first, end)
        self.next_new = max(self.next_new, end)
        del self._again[bisect_left(self._again, first) : bisect_left(self._again, end)]
        for queue_offset in [offset for offset in self.sent_back if first <= offset < end]:
            del self.sent_back[queue_offset]

    def expire(self, queue_min: int) -> None:
        """The messages below a queue offset are gone."""
        if queue_min > self.acked.position:
            self.settle(self.acked.position, queue_min)

    def _following_new(self) -> int:
        return self.acked.following(self.next_new)
