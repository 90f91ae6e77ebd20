"""The rows of the results: what is shown of each case, and what is asked of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.bench.ratios import Ratio, middle, paired_ratio

BASE = "java"
FLOOR = "floor"


@dataclass(frozen=True, slots=True)
class Goal:
    """What is asked of one measurement; every part that is given must be reached."""

    least_ratio: float | None = None
    """To Java, at least."""

    most_ratio: float | None = None
    """To Java, at most."""

    most: float | None = None
    """In the unit of the row, at most."""

    least_of_floor: float | None = None
    """Of the floor of the same run, at least."""

    def text(self) -> str:
        """As a table shows it; nothing when nothing is asked."""
        parts = []
        if self.least_ratio is not None:
            parts.append(f"≥ {self.least_ratio:g} ×")
        if self.most_ratio is not None:
            parts.append(
                f"≤ 1/{1 / self.most_ratio:g}" if self.most_ratio < 1 else f"≤ {self.most_ratio:g} ×"
            )
        if self.most is not None:
            parts.append(f"≤ {self.most:g} ms")
        if self.least_of_floor is not None:
            parts.append(f"≥ {self.least_of_floor:g} of floor")
        return ", ".join(parts)

    def reached(self, value: float, ratio: float | None, floor: float | None) -> bool | None:
        """Whether all of it is reached; None when nothing is asked, or what it is compared with was not measured."""
        compared = (
            (self.least_ratio, ratio, 1),
            (self.most_ratio, ratio, -1),
            (self.most, value, -1),
            (self.least_of_floor, value / floor if floor else None, 1),
        )
        asked = [(limit, found, sign) for limit, found, sign in compared if limit is not None]
        if any(found is not None and (found - limit) * sign < 0 for limit, found, sign in asked):
            return False
        return True if asked and all(found is not None for _, found, _ in asked) else None


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement of one case."""

    case: str
    metric: str
    label: str
    unit: str
    native: Goal = Goal()
    python: Goal = Goal()

    def goal(self, side: str) -> Goal:
        """What is asked of a side."""
        return {"native": self.native, "python": self.python}.get(side, Goal())


def rate(case: str, label: str, native: float | None = None, python: float | None = None) -> Row:
    """Messages a second, at least so many times Java's."""
    return Row(case, "perSecond", label, "/s", Goal(least_ratio=native), Goal(least_ratio=python))


def cpu(case: str, native: float, python: float) -> Row:
    """Processor time of the servers for each message, at most this part of Java's."""
    return Row(
        case, "cpuUs", "… CPU for each message", "µs", Goal(most_ratio=native), Goal(most_ratio=python)
    )


def latencies(case: str, label: str) -> list[Row]:
    """Of the end-to-end cases: the same is asked of both."""
    p50, p99 = Goal(most=0.3), Goal(most_ratio=1, most=5)
    return [
        Row(case, "p50ms", f"{label}, p50", "ms", p50, p50),
        Row(case, "p99ms", "… p99", "ms", p99, p99),
    ]


def message_rows(case: str, label: str) -> list[Row]:
    """Of transactions, timers and filtered pulls: twice Java's is asked of what has the native core."""
    return [rate(case, label, 2), Row(case, "cpuUs", "… CPU for each message", "µs")]


def secure_rows(case: str, label: str) -> list[Row]:
    """By TLS, with signatures: one and a half times Java's is asked of what has the native core."""
    return [rate(case, label, 1.5), Row(case, "cpuUs", "… CPU for each message", "µs")]


def lateness(case: str) -> list[Row]:
    """From when messages are due until they are stored."""
    return [Row(case, "p50ms", "… late, p50", "ms"), Row(case, "p99ms", "… p99", "ms")]


def waiting_rows(case: str, label: str) -> list[Row]:
    """Of pops that wait: from before a send until one is answered, and the most memory meanwhile."""
    return [
        Row(case, "p50ms", f"{label}, p50", "ms"),
        Row(case, "p99ms", "… p99", "ms", Goal(most_ratio=1 / 2)),
        Row(case, "cpuUs", "… CPU for each message", "µs"),
        Row(case, "mostMiB", "… anonymous memory, most", "MiB", Goal(most_ratio=1 / 4)),
    ]


EIGHTH = Goal(most_ratio=1 / 8)
COPY = Goal(least_ratio=2, least_of_floor=0.7)

ROWS: Sequence[Row] = (
    rate("send-1k-1", "send 1 KB, one at a time", 2.5, 1.5),
    cpu("send-1k-1", 1 / 6, 1 / 2),
    rate("send-1k-64", "send 1 KB, window 64", 4, 1.5),
    cpu("send-1k-64", 1 / 6, 1 / 2),
    rate("send-1k-4x64", "send 1 KB, 4 connections × 64", 4, 1.5),
    cpu("send-1k-4x64", 1 / 6, 1 / 2),
    rate("send-100b-64", "send 100 B, window 64", 4, 1.5),
    cpu("send-100b-64", 1 / 6, 1 / 2),
    rate("batch-1k", "batches of 32 × 1 KB", 2, 1),
    cpu("batch-1k", 1 / 3, 1),
    rate("batch-100b", "batches of 32 × 100 B", 2, 0.5),
    cpu("batch-100b", 1 / 3, 1),
    Row("pull-1k", "perSecond", "raw pull 1 KB", "/s", Goal(least_ratio=3), Goal(least_ratio=1.5)),
    Row("pull-1k", "cpuUs", "… CPU for each message", "µs", Goal(most_ratio=1 / 4)),
    *latencies("e2e-old-topic", "end to end at 1,000/s, old topic"),
    *latencies("e2e-new-topic", "end to end, new topic"),
    *latencies("e2e-roll", "end to end, over a roll of the log's files"),
    *latencies("e2e-after-load", "end to end, after load"),
    rate("sync-1", "SYNC_FLUSH, one at a time", 2, 1),
    rate("sync-16", "SYNC_FLUSH, window 16", 2, 1),
    rate("sync-64", "SYNC_FLUSH, window 64", 2, 1),
    rate("sync-batch", "SYNC_FLUSH, batches of 32 × 1 KB", 2, 1),
    *message_rows("tx-1", "transactions, one at a time"),
    *message_rows("tx-4x64", "transactions, 4 producers × 64"),
    *message_rows("timer-put", "timers put, 4 producers × 64"),
    rate("timer-deliver", "timers delivered, all due at once", 2),
    *lateness("timer-deliver"),
    *message_rows("filter-tag", "filtered pull, 1 of 10 by tag, matches"),
    *message_rows("filter-sql", "filtered pull, 1 of 10 by SQL, matches"),
    *message_rows("pop-ack", "popped and acknowledged one by one"),
    *message_rows("pop-batch-ack", "popped and acknowledged in batches"),
    *waiting_rows("pop-wake", "8 waiting pops, 1,000 messages a second"),
    *waiting_rows("pop-wake-10k", "10,000 waiting pops, 1,000 answers a second"),
    *secure_rows("secure-send-1k-1", "TLS and signed: send 1 KB, one at a time"),
    *secure_rows("secure-send-1k-4x64", "TLS and signed: send 1 KB, 4 connections × 64"),
    *secure_rows("secure-send-100b-64", "TLS and signed: send 100 B, window 64"),
    *secure_rows("secure-batch-1k", "TLS and signed: batches of 32 × 1 KB"),
    *secure_rows("secure-pull-1k", "TLS and signed: pull 1 KB"),
    *secure_rows("secure-pop-ack", "TLS and signed: popped and acknowledged one by one"),
    *latencies("secure-e2e", "TLS and signed: end to end at 1,000/s"),
    rate("replicas-1", "3 replicas in sync, one at a time", 3, 1.3),
    rate("replicas-16", "3 replicas in sync, window 16", 3, 1.3),
    rate("replicas-64", "3 replicas in sync, window 64", 3, 1.3),
    Row("replicas-64", "cpuUs", "… CPU of all servers for each message", "µs"),
    Row("empty-slave", "MiBps", "empty slave, steady rate", "MiB/s", COPY, COPY),
    Row("empty-slave", "caughtUpSeconds", "… caught up after", "s"),
    Row("memory", "idleMiB", "anonymous memory, idle", "MiB", EIGHTH, EIGHTH),
    Row("memory", "loadedMiB", "anonymous memory, loaded", "MiB", EIGHTH, EIGHTH),
    Row("start", "warmMs", "start to first acknowledged send, warm", "ms", EIGHTH, EIGHTH),
    Row("start", "coldMs", "… with cold files", "ms", EIGHTH, EIGHTH),
)


@dataclass(frozen=True, slots=True)
class Judged:
    """One cell of the results: a side's median, its ratio to the base, and whether that is enough."""

    value: float
    ratio: Ratio | None
    floor: float | None
    """The part of the floor that is reached."""

    reached: bool | None


def judged(row: Row, side: str, base: str, case: Mapping[str, Any]) -> Judged | None:
    """What one side reached in a case (metric -> side -> a value for each round); None if it was not measured."""
    sides: Mapping[str, Sequence[float | None]] = case.get(row.metric, {})
    value = middle(sides.get(side, ()))
    if value is None:
        return None
    ratio = paired_ratio(sides[side], sides.get(base, ())) if side != base else None
    floor = middle(sides.get(FLOOR, ()))
    # Goals are goals against Java; compared with another checkout there is nothing to reach.
    compared = ratio.median if ratio is not None and base == BASE else None
    return Judged(
        value, ratio, value / floor if floor else None, row.goal(side).reached(value, compared, floor)
    )
