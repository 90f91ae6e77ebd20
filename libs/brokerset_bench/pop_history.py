"""Messages of one run that a group pops, and whether what sender and consumer were promised still holds.

Events besides those of `event_log`; there is no `consume`, as a message may come from a retry topic:

* `put` {id, broker}: a message left.
* `ack` {id, broker}: the broker has it.
* `fail` {id, why}: refused, or no answer in time; whether it is stored is unknown, and it is not sent again.
* `give` {id, broker}: a pop gave it to the consumer.
* `done` {id, broker}: a broker has confirmed that the consumer is done with it.
* `undone` {id, why}: it has not; whether it comes again is unknown.

A message that is given out twice before it is done is counted, and is no violation: its invisible time ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from brokerset_bench.event_log import Broken, EventLog, MessageVerdict, Places, Subject, whole_number


class PopHistory(EventLog):
    """Events of messages that are popped."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(Subject.POPS, clock)
        self._acked: set[int] = set()

    @property
    def owed(self) -> int:
        """Messages that were acknowledged, and that the consumer has not got yet."""
        return len(self._acked - self.seen)

    def put(self, number: int, _due: float, broker: str) -> None:
        """A message leaves now."""
        self.add("put", id=number, broker=broker)

    def acked(self, number: int, broker: str) -> None:
        """The broker has it."""
        self._acked.add(number)
        self.add("ack", id=number, broker=broker)

    def failed(self, number: int, why: str) -> None:
        """It was refused, or there was no answer in time."""
        self.add("fail", id=number, why=why)

    def given(self, body: bytes, broker: str) -> int | None:
        """The consumer was given this; its number, None if it was not made for this run."""
        number = whole_number(body)
        if number is not None:
            self.seen.add(number)
        self.add("give", id=number, broker=broker)
        return number

    def done(self, number: int | None, broker: str) -> None:
        """A broker has confirmed that the consumer is done with it."""
        if number is not None:
            self.add("done", id=number, broker=broker)

    def undone(self, number: int | None, why: str) -> None:
        """No broker has."""
        self.add("undone", id=number, why=why)


def check(events: Iterable[Mapping[str, Any]]) -> MessageVerdict:
    """Judge a history of pops. Events of one time keep their order.

    Raises `KeyError`, `TypeError` or `ValueError` for an event that is none of those above.
    """
    verdict = MessageVerdict()
    places = Places(verdict)
    sent: set[int] = set()
    acked: dict[int, bool] = {}
    given: Counter[int] = Counter()
    done: set[int] = set()
    for event in sorted(events, key=lambda event: float(event["t"])):
        match event["kind"]:
            case "put":
                sent.add(int(event["id"]))
            case "ack":
                acked[int(event["id"])] = True
            case "fail":
                verdict.counts["failed"] += 1
            case "give" if event["id"] is None:
                verdict.broken(Broken.UNKNOWN, "a message that was not made here was given out")
            case "give":
                number = int(event["id"])
                given[number] += 1
                places.first.setdefault(number, float(event["t"]))
                if number in done:
                    verdict.broken(Broken.AGAIN, f"message {number} was done, and was given out again")
            case "done":
                done.add(int(event["id"]))
            case "undone":
                verdict.counts["undone"] += 1
            case _:
                places.take(event)
    found = places.judge(dict.fromkeys(sent))
    verdict.counts["acked"] = len(acked)
    verdict.counts["delivered"] = len(given)
    verdict.counts["done"] = len(done)
    verdict.counts["twice"] = sum(given.values()) - len(given)
    for number in acked:
        if not found[number] and places.scanned:
            verdict.broken(Broken.LOST, f"message {number} was acknowledged and is nowhere at the end")
    return verdict
