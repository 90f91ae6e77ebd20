"""What the log says about queues: put together where executors are, one part of the queues at each.

Everything here is a value; the size grows with the number of queues and of faults, not with that of records.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import astuple, dataclass, field, replace

from brokerset_spark.jobs.running import Result, Row
from brokerset_spark.jobs.verify.comparing import joined

Queue = tuple[str, int]

BAD_MAX = 10_000
"""Differences between units and records that are kept until all is known; more of one queue are counted."""


@dataclass(slots=True)
class Run:
    """Following queue offsets `[first, end)` of one queue, in the order of the log."""

    first: int
    end: int
    begin: int
    """Offset of the first record."""

    last: int
    """Offset of the last record."""

    fine_first: bool
    """Whether the first one's unit is its own."""

    def is_before(self, other: Run) -> bool:
        """Whether the other one goes on where this one ends."""
        return self.end == other.first and self.last < other.begin


@dataclass(slots=True)
class Claims:
    """What the log says about one queue."""

    runs: list[Run] = field(default_factory=list)
    bad: list[list[int]] = field(default_factory=list)
    absent: bool = False
    records: int = 0
    dropped: int = 0
    """Differences that were not kept."""

    @classmethod
    def of(cls, row: Row) -> Claims:
        """From `row()`."""
        runs = [Run(*each) for each in row["runs"]]
        return cls(runs, row["bad"], row["absent"], row["records"], row["dropped"])

    def row(self) -> Row:
        """All of it as JSON values."""
        return {"runs": [list(astuple(each)) for each in self.runs], "bad": self.bad, "absent": self.absent,
                "records": self.records, "dropped": self.dropped}  # fmt: skip

    def add(self, row: Row) -> None:
        """Take a run that a task reported; neighbours become one.

        Runs come in the order of the log, but those of damaged parts.
        """
        first, count = row["first"], row["count"]
        bad: list[list[int]] = row["bad"]
        fine = not any(each[1] == first for each in bad)
        run = Run(first, first + count, row["begin"], row["last"], fine)
        self.records += count
        self.absent = self.absent or bool(row.get("absent"))
        room = BAD_MAX - len(self.bad)
        self.bad += bad[:room]
        self.dropped += len(bad) - len(bad[:room])
        # Only with what is next to it in the log: other runs with fitting numbers are of another life.
        before = max(
            (each for each in self.runs if each.last < run.begin), key=lambda each: each.last, default=None
        )
        if before is not None and before.is_before(run):
            self.runs.remove(before)
            run = Run(before.first, run.end, before.begin, run.last, before.fine_first)
        behind = min(
            (each for each in self.runs if run.last < each.begin), key=lambda each: each.begin, default=None
        )
        if behind is not None and run.is_before(behind):
            self.runs.remove(behind)
            run = Run(run.first, behind.end, run.begin, behind.last, run.fine_first)
        self.runs.append(run)

    @property
    def restart(self) -> int:
        """Offset of the record with which the queue began again at 0, -1 if it never did.

        Only a record whose unit is its own counts: a queue offset that became 0 by damage has none.
        """
        if len(self.runs) < 2:
            return -1
        older = min(each.begin for each in self.runs)
        return max(
            (each.begin for each in self.runs if each.first == 0 and each.fine_first and each.begin > older),
            default=-1,
        )

    def claimed(self, but: Collection[int] = ()) -> list[list[int]]:
        """Ranges of queue offsets that records of the queue's present life have, sorted and joined.

        Single records at the offsets `but` do not count.
        """
        since = self.restart
        return joined(
            [
                [each.first, each.end]
                for each in self.runs
                if each.begin >= since and not (each.begin == each.last and each.begin in but)
            ]
        )

    def differences(self) -> list[list[int]]:
        """Those of records of the present life."""
        since = self.restart
        return [each for each in self.bad if each[3] >= since]


@dataclass(slots=True)
class BatchClaims:
    """What the log says about one batch queue."""

    claimed: list[list[int]] = field(default_factory=list)
    """Ranges of the numbers of units that have their record."""

    wrong: set[int] = field(default_factory=set)
    """Numbers of units that differ from their record."""

    bases: set[int] = field(default_factory=set)
    """Queue offsets with which the records of those units begin."""

    missing: list[Row] = field(default_factory=list)
    unclaimed: list[Row] = field(default_factory=list)
    gaps: list[Row] = field(default_factory=list)

    def rows(self) -> Iterator[Row]:
        """What tasks that scan have found, for `take`."""
        yield {"kind": "batch-run", "claimed": self.claimed}
        if self.wrong:
            yield {"kind": "batch-wrong", "numbers": sorted(self.wrong), "bases": sorted(self.bases)}
        yield from self.missing

    def has_elsewhere(self, base: int) -> bool:
        """Whether the record that begins with this queue offset is not where its unit points to."""
        return base in self.bases or any(row["base"] == base for row in self.missing)

    def take(self, row: Row) -> None:
        """A row of a task."""
        match row["kind"]:
            case "batch-run":
                self.claimed = joined([*self.claimed, *row["claimed"]])
            case "batch-wrong":
                self.wrong.update(row["numbers"])
                self.bases.update(row["bases"])
            case "batch-missing":
                self.missing.append(row)
            case "unclaimed":
                self.unclaimed.append(row)
            case "unit-gap":
                self.gaps.append(row)


def for_reducer(result: Result) -> Result:
    """The same; what the log says about a queue goes to `Claimed`."""
    row = result.row
    if row["kind"] not in ("run", "batch-run", "batch-wrong", "batch-missing"):
        return result
    return replace(result, key=f"{row['topic']}/{row['queue']}")


class Claimed:
    """The reducer of a scan."""

    def __init__(self) -> None:
        self._claims: dict[Queue, Claims] = {}
        self._batches: dict[Queue, BatchClaims] = {}

    def take(self, row: Row) -> None:
        """What one task found of a queue."""
        queue = row["topic"], row["queue"]
        if row["kind"] == "run":
            self._claims.setdefault(queue, Claims()).add(row)
        else:
            self._batches.setdefault(queue, BatchClaims()).take(row)

    def finish(self) -> Iterator[Result]:
        """A row for each queue, and for what batch queues lack."""
        for (topic, queue), claims in self._claims.items():
            yield Result({"kind": "claims", "topic": topic, "queue": queue, **claims.row()})
        for (topic, queue), batches in self._batches.items():
            for row in batches.rows():
                yield Result({"topic": topic, "queue": queue, **row})
