"""Judges a history of sends, acknowledgements and reads: what was promised must still be there, in its
place and order.

It knows nothing of brokers: it reads events, each an object with `t` (seconds on one clock) and `kind`:

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

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

TEXTS_MAX: Final = 20
"""Violations of one kind that are told in words; all are counted."""

LOST: Final = "lost"
"""An acknowledged message is nowhere at the end."""

OVERWRITTEN: Final = "overwritten"
"""At the end another message, or none, is where a message was acknowledged to be."""

CONFLICT: Final = "conflict"
"""Two different messages were seen at one offset of one queue."""

VANISHED: Final = "vanished"
"""A consumer was given what is not there at the end."""

REORDERED: Final = "reordered"
"""A message that was sent after another one had been acknowledged is before it in the queue."""

GAP: Final = "gap"
"""Offsets of a queue are missing between those that are there, or a consumer was led past some."""

DAMAGED: Final = "damaged"
"""A body is not the one that was sent under this id."""

UNKNOWN: Final = "unknown"
"""A message that nobody sent was acknowledged, or is in a queue."""

UNREAD: Final = "unread"
"""An acknowledged message was never given to the consumer."""

UNFINISHED: Final = "unfinished"
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
        return self.violations[LOST]

    def to_object(self) -> dict[str, object]:
        """Return the verdict for JSON."""
        return {
            "ok": self.ok,
            "sent": self.sent,
            "acked": self.acked,
            "failed": self.failed,
            "consumed": self.consumed,
            "reread": self.reread,
            "duplicates": self.duplicates,
            "lost": self.lost,
            "violations": dict(sorted(self.violations.items())),
            "texts": {kind: list(texts) for kind, texts in sorted(self.texts.items())},
        }


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a message is."""

    queue: int
    offset: int

    def __str__(self) -> str:
        return f"queue {self.queue} offset {self.offset}"


@dataclass(slots=True)
class _Checker:
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

    def violation(self, kind: str, text: str) -> None:
        self.verdict.violations[kind] += 1
        texts = self.verdict.texts.setdefault(kind, [])
        if len(texts) < TEXTS_MAX:
            texts.append(text)

    def take(self, event: Mapping[str, Any]) -> None:
        match event["kind"]:
            case "send":
                self._sent(event)
            case "ack":
                self._acked(event)
            case "fail":
                self.verdict.failed += 1
            case "consume":
                self._consumed(event)
            case "final":
                self._found(event)
            case "scanned":
                self.scanned = True

    def _sent(self, event: Mapping[str, Any]) -> None:
        number, queue = int(event["id"]), int(event["queue"])
        self.bodies.setdefault(number, event["body"])
        self.floors.setdefault(number, self.highest.get(queue, -1))

    def _acked(self, event: Mapping[str, Any]) -> None:
        number = int(event["id"])
        place = _Place(int(event["queue"]), int(event["offset"]))
        if number not in self.bodies:
            self.violation(UNKNOWN, f"message {number} was acknowledged and never sent")
            return
        if place.offset <= self.floors[number]:
            self.violation(
                REORDERED,
                f"message {number} is at {place}, though offset {self.floors[number]} had been acknowledged "
                "before it was sent",
            )
        self.highest[place.queue] = max(self.highest.get(place.queue, -1), place.offset)
        self._see(place, number, f"acknowledged by {event.get('broker')}")
        self.acks.setdefault(place, number)

    def _consumed(self, event: Mapping[str, Any]) -> None:
        place, number = self._message(event, "consumed from")
        expected = self.next_consumed.get(place.queue)
        if expected is not None and place.offset > expected:
            self.violation(
                GAP, f"the consumer was led from {place.queue}:{expected} to {place.queue}:{place.offset}"
            )
        self.next_consumed[place.queue] = place.offset + 1
        if place in self.consumed:
            self.verdict.reread += 1
        else:
            self.consumed[place] = number

    def _found(self, event: Mapping[str, Any]) -> None:
        place, number = self._message(event, "found at the end on")
        self.final[place] = number

    def _message(self, event: Mapping[str, Any], how: str) -> tuple[_Place, int | None]:
        """Check a whole message that was read."""
        place = _Place(int(event["queue"]), int(event["offset"]))
        number = None if event["id"] is None else int(event["id"])
        where = f"{how} {event.get('broker')}"
        if number is None:
            self.violation(DAMAGED, f"the body at {place}, {where}, names no message")
        elif number not in self.bodies:
            self.violation(UNKNOWN, f"message {number} at {place}, {where}, was never sent")
        elif event["body"] != self.bodies[number]:
            self.violation(DAMAGED, f"the body of message {number} at {place}, {where}, is not the one sent")
        self._see(place, number, where)
        return place, number

    def _see(self, place: _Place, number: int | None, where: str) -> None:
        before = self.seen.get(place, ())
        if number in before:
            return
        if before:
            self.violation(CONFLICT, f"{place} held message {before[0]}, and message {number}, {where}")
        self.seen[place] = (*before, number)

    def finish(self) -> Verdict:
        verdict = self.verdict
        acked = dict.fromkeys(self.acks.values())
        verdict.sent, verdict.acked, verdict.consumed = len(self.bodies), len(acked), len(self.consumed)
        if not self.scanned:
            self.violation(UNFINISHED, "the history has no scan of what is left at the end")
            return verdict
        places = Counter(number for number in self.final.values() if number is not None)
        verdict.duplicates = sum(count - 1 for count in places.values())
        for number in acked:
            if not places[number]:
                self.violation(LOST, f"message {number} was acknowledged and is nowhere at the end")
        for place, number in self.acks.items():
            if place not in self.final:
                self.violation(OVERWRITTEN, f"message {number} was acknowledged at {place}: nothing is there")
            elif self.final[place] != number:
                self.violation(
                    OVERWRITTEN,
                    f"message {number} was acknowledged at {place}: message {self.final[place]} is there",
                )
        for place, taken in self.consumed.items():
            if place not in self.final or self.final[place] != taken:
                self.violation(VANISHED, f"message {taken} was consumed at {place} and is not there")
        read = set(self.consumed.values())
        for number in acked:
            if number not in read:
                self.violation(UNREAD, f"message {number} was acknowledged and never consumed")
        self._check_dense()
        return verdict

    def _check_dense(self) -> None:
        ranges: dict[int, list[int]] = {}
        for place in self.final:
            ranges.setdefault(place.queue, []).append(place.offset)
        for queue, offsets in sorted(ranges.items()):
            missing = max(offsets) - min(offsets) + 1 - len(offsets)
            if missing:
                self.violation(
                    GAP,
                    f"queue {queue} ends at offset {max(offsets)}, and {missing} below it are missing",
                )


def check(events: Iterable[Mapping[str, Any]]) -> Verdict:
    """Judge a history. The events may come in any order; equal times keep theirs.

    Raises `KeyError`, `TypeError` or `ValueError` for an event that is none of those above.
    """
    checker = _Checker()
    for event in sorted(events, key=lambda event: float(event["t"])):
        checker.take(event)
    return checker.finish()
