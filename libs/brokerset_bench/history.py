"""What writers and a consumer saw in one run, and whether what they were promised still holds.

A history is kept in memory while it is measured, then written as JSON lines. `check` knows nothing of
brokers: it reads events, each an object with `t` (seconds on one clock) and `kind`:

* `send` {id, queue, broker, body}: a request left; `body` is a checksum of the message.
* `ack` {id, queue, offset, broker}: the broker promised that the message is in the queue at this offset.
* `fail` {id, queue, broker, why}: refused, or no answer in time; whether it is stored is unknown.
* `consume` {id, queue, offset, broker, body}: a consumer was given this. `id` is null when the body names
  none.
* `final` {id, queue, offset, broker, body}: it is there at the end, when everything has healed.
* `scanned` {}: every queue was read to its end; without it nothing is known about the end, which is a
  violation.

Other kinds are notes for people. A message that is there twice after its sender tried again is counted, and
is no violation: that is what at-least-once means.
"""

from __future__ import annotations

import hashlib
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

_DIGITS_MAX: Final = 20
"""Longest number at the head of a body."""


def body_of(number: int, size: int) -> bytes:
    """Return the body of a message: its number, and bytes that only this number has."""
    seed = hashlib.sha256(b"%d" % number).hexdigest().encode()
    return (b"%d:" % number + seed * (size // len(seed) + 1))[:size]


def number_of(body: bytes) -> int | None:
    """Return the number that a body begins with; None when it has none."""
    head = body[: _DIGITS_MAX + 1].partition(b":")
    return int(head[0]) if head[1] and head[0].isdigit() else None


def checksum(body: bytes) -> int:
    """Return what the history keeps of a body."""
    return zlib.crc32(body)


@dataclass(frozen=True, slots=True)
class Ack:
    """One acknowledgement, as the measurements need it."""

    t: float
    broker: str


class History:
    """Events of one run; the keys are those above."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._events: list[tuple[Any, ...]] = []
        self.acks: list[Ack] = []
        """Every acknowledgement, in order."""

    def sent(self, number: int, queue: int, broker: str, body: bytes) -> None:
        """A request leaves now."""
        self._events.append((self._clock(), "send", number, queue, None, broker, checksum(body), None))

    def acked(self, number: int, queue: int, offset: int, broker: str) -> None:
        """Its answer is `SEND_OK`."""
        now = self._clock()
        self.acks.append(Ack(now, broker))
        self._events.append((now, "ack", number, queue, offset, broker, None, None))

    def failed(self, number: int, queue: int, broker: str, why: str) -> None:
        """It was refused, its connection has ended, or there was no answer in time."""
        self._events.append((self._clock(), "fail", number, queue, None, broker, None, why))

    def consumed(self, queue: int, offset: int, broker: str, body: bytes) -> None:
        """The consumer was given this."""
        number = number_of(body)
        self._events.append((self._clock(), "consume", number, queue, offset, broker, checksum(body), None))

    def found(self, queue: int, offset: int, broker: str, body: bytes) -> None:
        """The scan at the end met this."""
        number = number_of(body)
        self._events.append((self._clock(), "final", number, queue, offset, broker, checksum(body), None))

    def note(self, kind: str, why: str = "", broker: str = "") -> None:
        """Something that the sequence is to be read with: `clock`, `fault`, `heal`, `scanned`."""
        self._events.append((self._clock(), kind, None, None, None, broker, None, why))

    def events(self) -> Iterator[dict[str, Any]]:
        """All events as objects."""
        for t, kind, number, queue, offset, broker, body, why in self._events:
            event: dict[str, Any] = {"t": round(t, 6), "kind": kind}
            if queue is not None:
                event["id"] = number
                event["queue"] = queue
            if offset is not None:
                event["offset"] = offset
            if broker:
                event["broker"] = broker
            if body is not None:
                event["body"] = body
            if why:
                event["why"] = why
            yield event

    def write(self, path: Path) -> None:
        """Write the events as JSON lines."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as stream:
            for event in self.events():
                stream.write(orjson.dumps(event) + b"\n")


def read_events(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The events of a history file. Raises `ValueError` with the number of a line that is no object."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            event = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise ValueError(f"line {number} is not JSON: {error}") from error
        if not isinstance(event, dict):
            raise ValueError(f"line {number} is no object")
        yield event


# -- judging ----------------------------------------------------------------------------------------------

TEXTS_MAX: Final = 20
"""Violations of one kind that are told in words; all are counted."""


class Violation(StrEnum):
    """How a promise was broken."""

    LOST = "lost"
    """An acknowledged message is nowhere at the end."""
    OVERWRITTEN = "overwritten"
    """At the end another message, or none, is where a message was acknowledged to be."""
    CONFLICT = "conflict"
    """Two different messages were seen at one offset of one queue."""
    VANISHED = "vanished"
    """A consumer was given what is not there at the end."""
    REORDERED = "reordered"
    """A message that was sent after another one had been acknowledged is before it in the queue."""
    GAP = "gap"
    """Offsets of a queue are missing between those that are there, or a consumer was led past some."""
    DAMAGED = "damaged"
    """A body is not the one that was sent under this id."""
    UNKNOWN = "unknown"
    """A message that nobody sent was acknowledged, or is in a queue."""
    UNREAD = "unread"
    """An acknowledged message was never given to the consumer."""
    UNFINISHED = "unfinished"
    """The history ends without a scan of what is left."""


@dataclass(slots=True)
class Verdict:
    """What a history shows."""

    sent: int = 0
    """Different messages that were sent."""

    acked: int = 0
    """Different messages that were acknowledged."""

    failed: int = 0
    """Attempts that failed."""

    consumed: int = 0
    """Places of queues that the consumer read, each counted once."""

    reread: int = 0
    """Places that it read again."""

    duplicates: int = 0
    """Places at the end beyond the first one of each message."""

    violations: Counter[str] = field(default_factory=Counter)
    """By kind, how often."""

    texts: dict[str, list[str]] = field(default_factory=dict)
    """By kind, the first ones in words."""

    @property
    def ok(self) -> bool:
        """Whether every promise was kept."""
        return not self.violations

    @property
    def lost(self) -> int:
        """Acknowledged messages that are nowhere at the end."""
        return self.violations[Violation.LOST]

    def to_object(self) -> dict[str, object]:
        """Return the verdict for JSON."""
        return {
            "ok": self.ok,
            "lost": self.lost,
            **asdict(self),
            "violations": dict(sorted(self.violations.items())),
            "texts": {kind: list(texts) for kind, texts in sorted(self.texts.items())},
        }


class _Place(NamedTuple):
    """Where a message is."""

    queue: int
    offset: int

    def __str__(self) -> str:
        return f"queue {self.queue} offset {self.offset}"


@dataclass(slots=True)
class _Judge:
    verdict: Verdict = field(default_factory=Verdict)
    bodies: dict[int, object] = field(default_factory=dict)
    """By id, the checksum of the body that was sent."""

    floors: dict[int, int] = field(default_factory=dict)
    """By id, the highest offset that its queue had acknowledged when it was first sent."""

    highest: dict[int, int] = field(default_factory=dict)
    """By queue, the highest offset that has been acknowledged."""

    seen: dict[_Place, tuple[int | None, ...]] = field(default_factory=dict)
    """All that was seen at a place, in an acknowledgement, by the consumer or at the end."""

    acks: dict[_Place, int] = field(default_factory=dict)
    consumed: dict[_Place, int | None] = field(default_factory=dict)
    final: dict[_Place, int | None] = field(default_factory=dict)
    next_consumed: dict[int, int] = field(default_factory=dict)
    scanned: bool = False

    def broken(self, how: Violation, text: str) -> None:
        self.verdict.violations[how.value] += 1
        texts = self.verdict.texts.setdefault(how.value, [])
        if len(texts) < TEXTS_MAX:
            texts.append(text)

    def take(self, event: Mapping[str, Any]) -> None:
        match event["kind"]:
            case "send":
                number, queue = int(event["id"]), int(event["queue"])
                self.bodies.setdefault(number, event["body"])
                self.floors.setdefault(number, self.highest.get(queue, -1))
            case "ack":
                self._acked(event)
            case "fail":
                self.verdict.failed += 1
            case "consume":
                self._consumed(event)
            case "final":
                place, found = self._message(event, "found at the end on")
                self.final[place] = found
            case "scanned":
                self.scanned = True

    def _acked(self, event: Mapping[str, Any]) -> None:
        number = int(event["id"])
        place = _Place(int(event["queue"]), int(event["offset"]))
        if number not in self.bodies:
            self.broken(Violation.UNKNOWN, f"message {number} was acknowledged and never sent")
            return
        if place.offset <= self.floors[number]:
            self.broken(
                Violation.REORDERED,
                f"message {number} is at {place}, though offset {self.floors[number]} had been acknowledged "
                "before it was sent",
            )
        self.highest[place.queue] = max(self.highest.get(place.queue, -1), place.offset)
        self._see(place, number, f"acknowledged by {event.get('broker')}")
        self.acks.setdefault(place, number)

    def _consumed(self, event: Mapping[str, Any]) -> None:
        place, number = self._message(event, "consumed from")
        queue, offset = place
        expected = self.next_consumed.get(queue, offset)
        if offset > expected:
            self.broken(Violation.GAP, f"the consumer was led from {queue}:{expected} to {queue}:{offset}")
        self.next_consumed[queue] = offset + 1
        self.verdict.reread += place in self.consumed
        self.consumed.setdefault(place, number)

    def _message(self, event: Mapping[str, Any], how: str) -> tuple[_Place, int | None]:
        """Check a whole message that was read."""
        place = _Place(int(event["queue"]), int(event["offset"]))
        number = None if event["id"] is None else int(event["id"])
        where = f"{how} {event.get('broker')}"
        if number is None:
            self.broken(Violation.DAMAGED, f"the body at {place}, {where}, names no message")
        elif number not in self.bodies:
            self.broken(Violation.UNKNOWN, f"message {number} at {place}, {where}, was never sent")
        elif event["body"] != self.bodies[number]:
            text = f"the body of message {number} at {place}, {where}, is not the one sent"
            self.broken(Violation.DAMAGED, text)
        self._see(place, number, where)
        return place, number

    def _see(self, place: _Place, number: int | None, where: str) -> None:
        before = self.seen.get(place, ())
        if number in before:
            return
        if before:
            text = f"{place} held message {before[0]}, and message {number}, {where}"
            self.broken(Violation.CONFLICT, text)
        self.seen[place] = (*before, number)

    def finish(self) -> Verdict:
        verdict = self.verdict
        acked = dict.fromkeys(self.acks.values())
        verdict.sent, verdict.acked, verdict.consumed = len(self.bodies), len(acked), len(self.consumed)
        if not self.scanned:
            self.broken(Violation.UNFINISHED, "the history has no scan of what is left at the end")
            return verdict
        places = Counter(number for number in self.final.values() if number is not None)
        verdict.duplicates = sum(count - 1 for count in places.values())
        for number in acked:
            if not places[number]:
                self.broken(Violation.LOST, f"message {number} was acknowledged and is nowhere at the end")
        for place, number in self.acks.items():
            if place not in self.final or self.final[place] != number:
                there = f"message {self.final[place]}" if place in self.final else "nothing"
                text = f"message {number} was acknowledged at {place}: {there} is there"
                self.broken(Violation.OVERWRITTEN, text)
        for place, taken in self.consumed.items():
            if place not in self.final or self.final[place] != taken:
                text = f"message {taken} was consumed at {place} and is not there"
                self.broken(Violation.VANISHED, text)
        read = set(self.consumed.values())
        for number in acked:
            if number not in read:
                self.broken(Violation.UNREAD, f"message {number} was acknowledged and never consumed")
        self._check_dense()
        return verdict

    def _check_dense(self) -> None:
        for queue in sorted({place.queue for place in self.final}):
            offsets = [place.offset for place in self.final if place.queue == queue]
            if missing := max(offsets) - min(offsets) + 1 - len(offsets):
                text = f"queue {queue} ends at offset {max(offsets)}, and {missing} below it are missing"
                self.broken(Violation.GAP, text)


def check(events: Iterable[Mapping[str, Any]]) -> Verdict:
    """Judge a history. The events may come in any order; equal times keep theirs.

    Raises `KeyError`, `TypeError` or `ValueError` for an event that is none of those above.
    """
    judge = _Judge()
    for event in sorted(events, key=lambda event: float(event["t"])):
        judge.take(event)
    return judge.finish()
