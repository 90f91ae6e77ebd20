"""What an audit of order can say, how bad it is under each strategy, and how it becomes a finding. Pure.

A subject that is BestTried may let messages of a key overtake each other: that is counted there, and no
error. What brokers promise to both strategies is an error in both: nothing lost, nothing twice, nothing
behind a sealed end.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from brokerset_protocol.subject_words import OrderStrategy
from brokerset_spark.jobs.order.streams import Anomaly, Kind
from brokerset_spark.jobs.report import Finding, Level, Report

NAMED_MAX: Final = 10
"""Findings of one code in one queue that are named; all are counted."""


class Code(StrEnum):
    """Codes of findings, besides those of `streams.Kind`."""

    STAMP = "order-stamp"
    PARTITION = "order-partition"
    KEY = "order-key"
    RANGE = "order-range"
    SEAL = "order-seal"
    SEAL_SHORT = "order-seal-short"
    GENERATION = "order-generation"
    TIME = "order-time"
    UNKNOWN = "order-unknown"
    NOT_GIVEN = "order-not-given"
    NOTHING = "order-nothing"
    UNJUDGED = "order-unjudged"


_LEVELS: Final[dict[str, Level]] = {
    Code.SEAL_SHORT: Level.ERROR,
    Code.TIME: Level.INFO,
    Code.UNKNOWN: Level.WARNING,
    Code.NOT_GIVEN: Level.INFO,
    Code.NOTHING: Level.INFO,
    Kind.RESTART: Level.INFO,
}
"""Of those that are no errors; the rest are."""

_COUNTED: Final = frozenset({Code.RANGE, Code.GENERATION, Kind.DISORDER})
"""What a BestTried subject may do: counted there, and no error."""


def level_of(code: str, order: OrderStrategy) -> Level:
    """How bad a finding is."""
    if order is OrderStrategy.BEST_TRIED and code in _COUNTED:
        return Level.INFO
    return _LEVELS.get(code, Level.ERROR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Concern:
    """Something that an audit of order says about a subject."""

    code: str
    subject: str
    text: str
    messages: int = 0
    """How many are concerned."""

    store: str = ""
    queue_id: int | None = None
    place: int | None = None
    """Queue offset of the first."""

    level: Level | None = None
    """None for the level of its code."""

    unnamed: int = 0
    """If not 0, this stands for so many concerns that are counted and not named."""


class Concerns:
    """Puts what is said into a report: `NAMED_MAX` of a code and queue by name, all by number."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._named: Counter[tuple[str, str, str, int | None]] = Counter()
        self.messages: Counter[tuple[str, str]] = Counter()
        """Messages concerned, by subject and code."""

    def add(self, each: Concern, order: OrderStrategy) -> None:
        """Count it, and name it if there is room."""
        self.messages[each.subject, each.code] += each.messages
        level = each.level or level_of(each.code, order)
        for _ in range(each.unnamed):
            self._report.count(each.code, level)
        if each.unnamed:
            return
        key = each.subject, each.code, each.store, each.queue_id
        self._named[key] += 1
        if self._named[key] > NAMED_MAX:
            self._report.count(each.code, level)
            return
        file = each.subject if each.queue_id is None else f"{each.subject}/{each.queue_id}"
        self._report.add(Finding(each.code, level, each.text, each.store, file, each.place))


def anomaly_text(each: Anomaly, producer: str) -> str:
    """What an anomaly is, where it is, and what it means, in a sentence."""
    run, last, one = each.run, each.first + each.count - 1, each.count == 1
    numbers = f"message {each.first}" if one else f"messages {each.first} to {last}"
    key = "" if run.key is None else f", key {run.key!r}"
    at = f"queue offset {run.first_place} (record at {run.offset:,} of the log{key})"
    whose = f"producer {producer}, epoch {run.epoch}: {numbers}"
    be, stand = ("is", "stands") if one else ("are", "stand")
    match each.kind:
        case Kind.GAP:
            return f"{whose} {be} missing: {at} has {run.first} instead; they were lost, or never stored"
        case Kind.REPEAT:
            return f"{whose} {be} stored again at {at}: the broker did not recognise a retry"
        case Kind.DISORDER:
            return f"{whose} {stand} behind later ones, at {at}"
        case Kind.FENCED:
            return (
                f"{whose} {stand} behind epoch {each.newer_epoch}, at {at}: a producer that was replaced "
                "could still write"
            )
        case Kind.RESTART:
            return f"the queue begins again at {at}: the subject was deleted and made again"


def anomaly_concern(each: Anomaly, producer: str, subject: str, store: str, queue_id: int) -> Concern:
    """An anomaly of a queue, as what is said of its subject."""
    return Concern(
        code=each.kind, subject=subject, text=anomaly_text(each, producer), messages=each.count, store=store,
        queue_id=queue_id, place=each.run.first_place,
    )  # fmt: skip
