"""Sections of the log that tasks have read, put together while they come.

Everything here is a value; the size grows with the number of faults, not with that of records.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from brokerset_spark.jobs.running import Result, Row
from brokerset_spark.jobs.verify.findings import finding
from brokerset_spark.jobs.verify.scan import time_culprits, time_finding

Section = dict[str, Any]


class Sections:
    """The parts of a log that could be read, and the blank records that close its files.

    Sections that meet, or have a blank record between them, are kept as one: of a sound log there is one in
    the end, however long it is.
    """

    def __init__(self) -> None:
        self.blanks: dict[int, int] = {}
        """Begin to end."""

        self._inside: set[int] = set()  # blanks that belong to a section
        self._found: list[Result] = []  # where sections met that are one now
        self._kept: dict[int, Section] = {}
        self._added = 0
        self._begins: dict[int, int] = {}
        self._ends: dict[int, int] = {}

    @property
    def sections(self) -> list[Section]:
        """In no order."""
        return list(self._kept.values())

    def add(self, row: Row) -> None:
        """Take a section or a blank record."""
        if row["kind"] == "blank":
            self.blanks[row["begin"]] = row["end"]
            number = self._ends.get(row["begin"])
            if number is not None:
                self._keep(self._let_go(number))
            return
        newest = max((time for _, time in row["lastTimes"]), default=0)
        self._keep({**row, "readTo": row["end"], "lastPath": row["path"], "newest": newest,
                    "mostEntry": row["lastEntry"]})  # fmt: skip

    def _keep(self, section: Section) -> None:
        if section["end"] in self.blanks and section["end"] not in self._inside:
            self._inside.add(section["end"])
            section["end"] = self.blanks[section["end"]]
        before = self._ends.get(section["begin"])
        if before is not None and _can_join(self._kept[before], section):
            section = self._join(self._let_go(before), section)
        behind = self._begins.get(section["end"])
        if behind is not None and _can_join(section, self._kept[behind]):
            section = self._join(section, self._let_go(behind))
        self._added += 1
        self._kept[self._added] = section
        self._begins.setdefault(section["begin"], self._added)
        self._ends.setdefault(section["end"], self._added)

    def _let_go(self, number: int) -> Section:
        section = self._kept.pop(number)
        for known, place in ((self._begins, section["begin"]), (self._ends, section["end"])):
            if known.get(place) == number:
                del known[place]
        return section

    def _join(self, one: Section, other: Section) -> Section:
        self._found += _times(_recent([], one), other)
        self._found += _entries(one, other)
        both = (one["mostEntry"], other["mostEntry"])
        return {
            **one, "end": other["end"], "readTo": other["readTo"], "lastPath": other["lastPath"],
            "records": one["records"] + other["records"], "epochs": [], "lastTimes": other["lastTimes"],
            "lastEntry": other["lastEntry"], "newest": max(one["newest"], other["newest"]),
            "mostEntry": max((each for each in both if each), default=None),
        }  # fmt: skip

    def covered(self) -> list[tuple[int, int, dict[str, Any] | None]]:
        """Sections and blank records in the order of the log."""
        parts: list[tuple[int, int, dict[str, Any] | None]] = [
            (each["begin"], each["end"], each) for each in self.sections
        ]
        parts += [(begin, end, None) for begin, end in self.blanks.items() if begin not in self._inside]
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
            if first < min(at, last) and section is not None:
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
        yield from sorted(self._found, key=lambda each: int(each.row["offset"]))
        before: Section | None = None
        recent: list[list[Any]] = []
        for _first, _last, section in self.covered():
            if section is None:
                continue
            yield from _times(recent, section)
            if before:
                yield from _entries(before, section)
            if section["records"] or section["lastEntry"]:
                before = section
            recent = _recent(recent, section)


def _can_join(one: Section, other: Section) -> bool:
    """Whether two sections are long enough to be judged by themselves where they meet."""
    return len(one["lastTimes"]) == len(other["times"]) == 2


def _recent(before: list[list[Any]], section: Section) -> list[list[Any]]:
    """Offset, time and path of the two newest records."""
    return [*before, *([*pair, section["lastPath"]] for pair in section["lastTimes"])][-2:]


def _times(recent: list[list[Any]], section: Section) -> Iterator[Result]:
    triples = [*recent, *([*pair, section["path"]] for pair in section["times"])]
    for at in time_culprits(np.array([each[1] for each in triples], np.int64), len(recent)):
        offset, time, path = triples[at]
        yield time_finding(path, offset, time)


def _entries(before: Section, section: Section) -> Iterator[Result]:
    if not (before["lastEntry"] and section["entries"] and before["readTo"] == section["begin"]):
        return
    (index, term), (next_index, next_term) = before["lastEntry"], section["entries"]
    if next_index != index + 1:
        text = f"entry {next_index} follows on entry {index}"
        yield finding("entry-index", text, section["path"], section["begin"])
    if next_term < term:
        text = f"entry {next_index} has term {next_term}, the one before {term}"
        yield finding("entry-term", text, section["path"], section["begin"])
