"""What POP has done since the start of the broker, for metrics. Pure.

Labels and words are those of `PopMetricsManager` of Java 5.5.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, TypeVar

CHECK_POINT: Final = "CK"
"""Word of RocketMQ for a check point, as a label."""

ACK: Final = "ACK"
"""The same for a record of acks."""

STEP_BOUNDS_MS: Final = (1, 10, 100, 1_000, 2_000, 3_000)
"""RocketMQ's bounds of the time of a scan, milliseconds."""


SERIES_MAX: Final = 20_000
"""Groups with their topics that one counter shows apart; further ones are not counted. Clients name groups as
they like, and a scrape must not stop the broker."""

_Of = TypeVar("_Of", bound=tuple[Any, ...])


class Series(dict[_Of, int]):
    """A counter by group, topic and more."""

    __slots__ = ()

    def add(self, of: _Of) -> None:
        """One more."""
        count = self.get(of, 0)
        if count or len(self) < SERIES_MAX:
            self[of] = count + 1


class Steps:
    """How long the searches for what is due took."""

    __slots__ = ("classes", "sum_ms")

    def __init__(self) -> None:
        self.classes = [0] * (len(STEP_BOUNDS_MS) + 1)
        """How many took as long as a bound and longer than the one before; the last ones took longest."""
        self.sum_ms = 0.0

    def add(self, seconds: float) -> None:
        """One search is over."""
        took = seconds * 1_000
        self.sum_ms += took
        for number, bound in enumerate(STEP_BOUNDS_MS):
            if took <= bound:
                self.classes[number] += 1
                return
        self.classes[-1] += 1

    def buckets(self) -> list[tuple[str, float]]:
        """The cumulated classes, as Prometheus wants them."""
        found, total = [], 0
        for bound, count in zip((*map(str, STEP_BOUNDS_MS), "+Inf"), self.classes, strict=True):
            total += count
            found.append((bound, float(total)))
        return found


class PopCounts:
    """Plain numbers; they are added to where something happens."""

    def __init__(self) -> None:
        self.stored = Series[tuple[str, str, str]]()
        """Records in the revive topic, by group, topic and `CHECK_POINT` or `ACK`."""
        self.not_stored = Series[tuple[str, str, str, str]]()
        """Those that the store did not take; its status comes last."""
        self.expired = Series[tuple[str, str, int]]()
        """Check points whose time was over before all was acked, by group, topic and revive queue."""
        self.revived = Series[tuple[str, str, str]]()
        """Messages to be put into retry topics, by group, topic and status of the store."""
        self.refused_acks = Counter[str]()
        """Acks and changes of messages that were not the caller's, by why."""
        self.acked = 0
        """Messages that were acked."""
        self.steps: Final = Steps()
