"""What the tasks reported, put together: sections of the log, claims on queues, and what follows from both.

Everything here is a value; the size grows with the number of queues and of faults, not with that of records.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from brokerset_spark.jobs.running import Result, Row
from brokerset_spark.jobs.verify.comparing import joined
from brokerset_spark.jobs.verify.findings import finding
from brokerset_spark.jobs.verify.scan import time_culprits, time_finding

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

    def add(self, row: Row) -> None:
        """Take a run that a task reported; neighbours become one."""
        first, count = row["first"], row["count"]
        bad: list[list[int]] = row["bad"]
        fine = not any(each[1] == first for each in bad)
        run = Run(first, first + count, row["begin"], row["last"], fine)
        self.records += count
        self.absent = self.absent or bool(row.get("absent"))
        room = BAD_MAX - len(self.bad)
        self.bad += bad[:room]
        self.dropped += len(bad) - len(bad[:room])
        while other := next((each for each in self.runs if each.is_before(run) or run.is_before(each)), None):
            self.runs.remove(other)
            one, behind = (other, run) if other.is_before(run) else (run, other)
            run = Run(one.first, behind.end, one.begin, behind.last, one.fine_first)
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
class Sections:
    """The parts of a log that could be read, and the blank records that close its files."""

    sections: list[dict[str, Any]] = field(default_factory=list)
    blanks: dict[int, int] = field(default_factory=dict)
    """Begin to end."""

    def add(self, row: Row) -> None:
        """Take a section or a blank record."""
        if row["kind"] == "blank":
            self.blanks[row["begin"]] = row["end"]
        else:
            self.sections.append(row)

    def covered(self) -> list[tuple[int, int, dict[str, Any] | None]]:
        """Sections and blank records in the order of the log."""
        parts: list[tuple[int, int, dict[str, Any] | None]] = [
            (each["begin"], each["end"], each) for each in self.sections
        ]
        parts += [(begin, end, None) for begin, end in self.blanks.items()]
        return sorted(parts, key=lambda part: part[:2])

    def gaps(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Parts of `[begin, end)` that nothing covers."""
        found, at = [], begin
        for first, last, _ in self.covered():
            if first > at and at < end:
                found.append((at, min(first, end)))
            at = max(at, last)
        if at < end:
            found.append((at, end))
        return found

    def overlaps(self) -> Iterator[Result]:
        """Findings for bytes that two sections own."""
        at = -1
        for first, last, section in self.covered():
            if first < at and section is not None:
                yield finding(
                    "chain-overlap",
                    "records before this one own its bytes",
                    section["path"],
                    first,
                    min(at, last),
                )
            at = max(at, last)

    def joints(self) -> Iterator[Result]:
        """Findings where sections meet: times, indexes and terms go on."""
        before: dict[str, Any] | None = None
        recent: list[list[Any]] = []  # offset, time and path of the two newest records
        for first, _last, section in self.covered():
            if section is None:
                continue
            yield from _times(recent, section)
            if before and before["lastEntry"] and section["entries"] and before["end"] == first:
                yield from _entries(before, section)
            if section["records"] or section["lastEntry"]:
                before = section
            recent = [*recent, *([*pair, section["path"]] for pair in section["lastTimes"])][-2:]


def _times(recent: list[list[Any]], section: dict[str, Any]) -> Iterator[Result]:
    triples = [*recent, *([*pair, section["path"]] for pair in section["times"])]
    for at in time_culprits(np.array([each[1] for each in triples], np.int64), len(recent)):
        offset, time, path = triples[at]
        yield time_finding(path, offset, time)


def _entries(before: dict[str, Any], section: dict[str, Any]) -> Iterator[Result]:
    (index, term), (next_index, next_term) = before["lastEntry"], section["entries"]
    if next_index != index + 1:
        text = f"entry {next_index} follows on entry {index}"
        yield finding("entry-index", text, section["path"], section["begin"])
    if next_term < term:
        text = f"entry {next_index} has term {next_term}, the one before {term}"
        yield finding("entry-term", text, section["path"], section["begin"])
