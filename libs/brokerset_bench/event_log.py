"""What one run saw of transactions, timers or pops: events, then JSON lines, and how they are judged.

Each event is an object with `t` (seconds on one clock) and `kind`; the first has the kind `subject`, and says
in `of` which judge it is for. Both judges know:

* `consume` {id, queue, offset, broker}: a consumer was given this. `id` is null when the body is none that
  was made for this run.
* `final` {id, queue, offset, broker}: it is there at the end, when everything has healed.
* `scanned` {}: every queue was read to its end; without it nothing is known about the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from brokerset_bench.history import body_of, number_of

TEXTS_MAX: Final = 20
"""Violations of one kind that are told in words; all are counted."""


class Subject(StrEnum):
    """What a history is about."""

    TRANSACTIONS = "transactions"
    TIMERS = "timers"
    POPS = "pops"


class Broken(StrEnum):
    """How a promise about a transaction or a timer was broken."""

    LOST = "lost"
    """A commit, or a timer, was acknowledged, and its message is nowhere at the end."""
    UNSETTLED = "unsettled"
    """A half message was acknowledged and its producer wants it committed: at the end it is nowhere, though
    whoever was asked answered."""
    HALF_VISIBLE = "halfVisible"
    """A consumer was given a message before anybody had committed it."""
    ROLLED_BACK_VISIBLE = "rolledBackVisible"
    """A consumer was given a message that was rolled back, or whose producer had given it up."""
    AGAIN = "again"
    """A broker had confirmed that a consumer is done with a message, and it was given out again."""
    EARLY = "early"
    """A consumer was given a timer before its time."""
    UNREAD = "unread"
    """What is there at the end was never given to the consumer."""
    VANISHED = "vanished"
    """What a consumer was given is not there at the end."""
    UNKNOWN = "unknown"
    """A message is there that nobody sent, or that is not as it was sent."""
    UNFINISHED = "unfinished"
    """The history ends without a scan of what is left."""


class EventLog:
    """Events of one run about one subject."""

    def __init__(self, subject: Subject, clock: Callable[[], float]) -> None:
        self.subject = subject
        self._clock = clock
        self._events: list[dict[str, Any]] = []
        self.seen: set[int] = set()
        """Numbers that the consumer was given."""

        self.add("subject", of=subject.value)

    def add(self, kind: str, **fields: object) -> None:
        """Note an event now."""
        self._events.append({"t": round(self._clock(), 6), "kind": kind, **fields})

    def consumed(self, queue: int, offset: int, broker: str, body: bytes) -> None:
        """The consumer was given this."""
        number = whole_number(body)
        if number is not None:
            self.seen.add(number)
        self.add("consume", id=number, queue=queue, offset=offset, broker=broker)

    def found(self, queue: int, offset: int, broker: str, body: bytes) -> None:
        """The scan at the end met this."""
        self.add("final", id=whole_number(body), queue=queue, offset=offset, broker=broker)

    def note(self, kind: str, why: str = "", broker: str = "") -> None:
        """Something that the sequence is to be read with."""
        self.add(kind, why=why, broker=broker)

    def events(self) -> Iterator[dict[str, Any]]:
        """All events, in order."""
        return iter(self._events)

    def write(self, path: Path) -> None:
        """Write the events as JSON lines."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as stream:
            for event in self._events:
                stream.write(orjson.dumps(event) + b"\n")


def whole_number(body: bytes) -> int | None:
    """The number of a message whose body is as `body_of` makes it; None for any other."""
    number = number_of(body)
    return number if number is not None and body == body_of(number, len(body)) else None


@dataclass(slots=True)
class MessageVerdict:
    """What a history of transactions or timers shows."""

    counts: Counter[str] = field(default_factory=Counter)
    """How many messages did what; the names are the judge's, and those of JSON."""

    violations: Counter[str] = field(default_factory=Counter)
    """By kind, how often."""

    texts: dict[str, list[str]] = field(default_factory=dict)
    """By kind, the first ones in words."""

    lateness: list[float] = field(default_factory=list)
    """Seconds from when each message was due until the consumer was given it."""

    @property
    def ok(self) -> bool:
        """Whether every promise was kept."""
        return not self.violations

    def to_object(self) -> dict[str, object]:
        """Return the verdict for JSON, without the lateness of each message."""
        return {
            "ok": self.ok,
            "counts": dict(sorted(self.counts.items())),
            "violations": dict(sorted(self.violations.items())),
            "texts": {kind: list(texts) for kind, texts in sorted(self.texts.items())},
        }

    def broken(self, how: Broken, text: str) -> None:
        """Count a violation."""
        self.violations[how.value] += 1
        texts = self.texts.setdefault(how.value, [])
        if len(texts) < TEXTS_MAX:
            texts.append(text)


class _Place(NamedTuple):
    queue: int
    offset: int

    def __str__(self) -> str:
        return f"queue {self.queue} offset {self.offset}"


@dataclass(slots=True)
class Places:
    """Where messages were seen, by the consumer and at the end."""

    verdict: MessageVerdict
    first: dict[int, float] = field(default_factory=dict)
    """By number, when the consumer was given it first."""

    consumed: dict[_Place, int | None] = field(default_factory=dict)
    final: dict[_Place, int | None] = field(default_factory=dict)
    scanned: bool = False

    def take(self, event: Mapping[str, Any]) -> None:
        """An event of the kinds above; any other is ignored."""
        match event["kind"]:
            case "consume":
                number = None if event["id"] is None else int(event["id"])
                self.consumed.setdefault(_place(event), number)
                if number is not None:
                    self.first.setdefault(number, float(event["t"]))
            case "final":
                self.final[_place(event)] = None if event["id"] is None else int(event["id"])
            case "scanned":
                self.scanned = True

    def judge(self, sent: Mapping[int, Any]) -> Counter[int]:
        """Count doubles and what should not be there; returns how often each number is there at the end.

        `sent` has the numbers that were sent.
        """
        verdict = self.verdict
        if not self.scanned:
            verdict.broken(Broken.UNFINISHED, "the history has no scan of what is left at the end")
        for place, number in {**self.consumed, **self.final}.items():
            if number is None or number not in sent:
                named = (
                    "a message that was not made here" if number is None else f"message {number}, never sent,"
                )
                verdict.broken(Broken.UNKNOWN, f"{named} is at {place}")
        places = Counter(number for number in self.final.values() if number is not None)
        verdict.counts["duplicates"] = sum(count - 1 for count in places.values())
        for place, number in self.consumed.items():
            if self.scanned and self.final.get(place, -1) != number:
                verdict.broken(
                    Broken.VANISHED, f"message {number} was consumed at {place} and is not there at the end"
                )
        for number in places:
            if number not in self.first:
                verdict.broken(Broken.UNREAD, f"message {number} is there at the end and was never consumed")
        return places


def _place(event: Mapping[str, Any]) -> _Place:
    return _Place(int(event["queue"]), int(event["offset"]))
