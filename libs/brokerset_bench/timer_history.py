"""Timers of one run, and whether what their sender was promised still holds.

Events besides those of `event_log`; `t` is the time of day here, in seconds since 1970:

* `put` {id, due, broker}: a message left that is to be delivered at `due`.
* `ack` {id, broker}: the broker keeps it until then.
* `fail` {id, why}: refused, or no answer in time; whether it is stored is unknown, and it is not sent again.

A message that is delivered twice is counted, and is no violation: after a failover the new master delivers
what was due about then again. One that comes late is counted, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from brokerset_bench.event_log import Broken, EventLog, MessageVerdict, Places, Subject

LATE_SECONDS: Final = 2.0
"""A timer that a consumer gets later than this counts as late: the wheel has slots of a second."""


class TimerHistory(EventLog):
    """Events of timers."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(Subject.TIMERS, clock)
        self._acked: set[int] = set()

    @property
    def owed(self) -> int:
        """Messages that were acknowledged, and that the consumer has not got yet."""
        return len(self._acked - self.seen)

    def put(self, number: int, due: float, broker: str) -> None:
        """A message leaves now."""
        self.add("put", id=number, due=due, broker=broker)

    def acked(self, number: int, broker: str) -> None:
        """The broker keeps it."""
        self._acked.add(number)
        self.add("ack", id=number, broker=broker)

    def failed(self, number: int, why: str) -> None:
        """It was refused, or there was no answer in time."""
        self.add("fail", id=number, why=why)


def check(events: Iterable[Mapping[str, Any]]) -> MessageVerdict:
    """Judge a history of timers. Events of one time keep their order.

    Raises `KeyError`, `TypeError` or `ValueError` for an event that is none of those above.
    """
    verdict = MessageVerdict()
    places = Places(verdict)
    due: dict[int, float] = {}
    acked: dict[int, bool] = {}
    for event in sorted(events, key=lambda event: float(event["t"])):
        match event["kind"]:
            case "put":
                due[int(event["id"])] = float(event["due"])
            case "ack":
                acked[int(event["id"])] = True
            case "fail":
                verdict.counts["failed"] += 1
            case _:
                places.take(event)
    found = places.judge(due)
    verdict.counts["acked"] = len(acked)
    verdict.counts["delivered"] = len(found)
    for number in acked:
        if not found[number] and places.scanned:
            verdict.broken(Broken.LOST, f"timer {number} was acknowledged and is nowhere at the end")
    for number, seen in places.first.items():
        if number not in due:
            continue
        late = seen - due[number]
        verdict.lateness.append(late)
        verdict.counts["late"] += late > LATE_SECONDS
        if late < 0:
            verdict.broken(Broken.EARLY, f"timer {number} was consumed {-late:.3f} s before it was due")
    return verdict
