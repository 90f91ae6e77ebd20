"""What a broker in memory gives the sessions of a Shared group, by docs/ordered-protocol.md."""

from __future__ import annotations

from dataclasses import dataclass, field

FORGOTTEN_SECONDS = 30.0
"""A session that is silent for so long is forgotten."""

SPAN_MAX = 4_096


@dataclass
class FakePullLog:
    """What one session was given of a queue; pull sequences count from `start`."""

    start: int
    heard: float
    offsets: list[int] = field(default_factory=list)
    position: int = 0
    """Index of the first that it has not acknowledged."""

    @property
    def end(self) -> int:
        return self.start + len(self.offsets)


@dataclass
class FakeSharing:
    """Of one group in one queue."""

    logs: dict[str, FakePullLog] = field(default_factory=dict)
    cursor: int = 0
    """New messages begin there."""

    again: list[int] = field(default_factory=list)
    acknowledged: set[int] = field(default_factory=set)
    starts: int = 0

    @property
    def group_position(self) -> int:
        return next(number for number in range(self.cursor + 1) if number not in self.acknowledged)

    def begin(self, session: str, now: float) -> FakePullLog:
        """Another pull log; what the session had is given again."""
        self.end(session)
        self.starts += 1_000_000
        log = self.logs[session] = FakePullLog(self.starts, now)
        return log

    def end(self, session: str) -> None:
        log = self.logs.pop(session, None)
        if log is not None:
            self.again = sorted({*self.again, *log.offsets[log.position :]})

    def end_all(self) -> None:
        """Another master, or a reset."""
        for session in list(self.logs):
            self.end(session)

    def forget_silent(self, now: float) -> None:
        for session in [each for each, log in self.logs.items() if now - log.heard >= FORGOTTEN_SECONDS]:
            self.end(session)

    def next_offsets(self, count: int, end: int) -> list[int]:
        """What a session is given next: what comes again first, then what is new."""
        again, self.again = self.again[:count], self.again[count:]
        most = min(end, self.group_position + SPAN_MAX, self.cursor + count - len(again))
        new = list(range(self.cursor, most))
        self.cursor = max(self.cursor, most)
        return again + new

    def acknowledge(self, log: FakePullLog, last: int) -> None:
        index = last - log.start + 1
        self.acknowledged |= set(log.offsets[log.position : index])
        log.position = max(log.position, index)
