"""The second direction: units that no record claims. One task for some queues, after the scan."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from brokerset_spark.jobs.running import Result, Row
from brokerset_spark.jobs.verify.comparing import inside, runs_of
from brokerset_spark.kernels.contract import Int64s
from brokerset_spark.stores.opening import open_folder
from brokerset_spark.stores.units import BATCH, QUEUE, QueueReader, UnitFiles, Units, is_blank

RUNS_MAX: Final = 256
"""Runs of unclaimed units, and gaps, that are reported one by one for one queue."""

_WHY: Final = ("", "dangling", "beyond", "blank", "damaged")
_DANGLING, _BEYOND, _BLANK, _DAMAGED = 1, 2, 3, 4


def check_queues(row: Row) -> Iterator[Result]:
    """A task: for each queue of `queues` its units against what the log has claimed.

    `claims` are ranges of numbers of units `[first, end)`, in order; `damage` are ranges of the log that
    could not be read; `first` and `end` bound the log; `batch` says whether these are batch queues.
    """
    folder = open_folder(row["url"])
    try:
        reader = QueueReader(folder, BATCH if row["batch"] else QUEUE)
        for queue in row["queues"]:
            yield from _Queue(row, reader.of(queue["topic"], int(queue["queue"])), queue).check()
    finally:
        folder.close()


def _claimed_from(first: int, count: int, claims: list[list[int]]) -> int:
    """How many of `[first, first + count)` one of these sorted ranges has from `first` on: mostly all."""
    at = bisect_right(claims, first, key=lambda claim: claim[0]) - 1
    return max(0, min(count, claims[at][1] - first)) if at >= 0 else 0


class _Queue:
    def __init__(self, row: Row, files: UnitFiles, queue: dict[str, Any]) -> None:
        self._row, self._files, self._batch = row, files, bool(row["batch"])
        self._claims: list[list[int]] = queue["claims"]
        self._queue = {"topic": queue["topic"], "queue": int(queue["queue"]), "batch": self._batch}
        self._counts = {"units": 0, "expired": 0, "blank": 0, "damaged": 0}
        self._runs: list[Row] = []
        self._gaps: list[Row] = []
        self._begun = False  # whether a unit of a message was seen: place holders behind it are wrong
        self._before: tuple[int, int] | None = None  # number of the batch before, queue offset behind it

    def check(self) -> Iterator[Result]:
        for first, units in self._files.blocks():
            quick = _claimed_from(first, len(units), self._claims)
            if quick and (units["offset"][:quick] != 0).all():
                self._counts["units"] += quick
                self._begun = True
                self._find_gaps(first + np.arange(quick), units[:quick])
                first, units = first + quick, units[quick:]
            if len(units):
                self._check_units(first, units)
        for each in [*self._runs, *self._gaps]:
            yield Result(self._queue | each)
        yield Result({"kind": "queue", **self._queue, **self._counts})

    def _check_units(self, first: int, units: Units) -> None:
        numbers = np.arange(first, first + len(units))
        offset, end = units["offset"].astype(np.int64), self._row["end"]
        written = units.view(np.uint8).reshape(len(units), -1).any(axis=1)
        blank = is_blank(units) & (not self._batch)
        free = ~inside(numbers, self._claims)
        pointing = written & ~blank
        expired = pointing & (offset < self._row["first"]) & (offset >= 0) & (units["size"] > 0)
        damaged = pointing & inside(offset, self._row["damage"])
        beyond = pointing & (offset >= end) & (units["size"] > 0)
        for name, mask in {"units": written, "blank": blank}.items():
            self._counts[name] += int(mask.sum())
        for name, mask in {"expired": expired, "damaged": damaged}.items():
            self._counts[name] += int((mask & free).sum())
        kinds = np.zeros(len(units), np.int8)
        kinds[pointing & ~expired] = _DANGLING
        kinds[beyond] = 0 if self._row["live"] else _BEYOND
        seen = np.flatnonzero(pointing)
        kinds[blank & (self._begun | (numbers > numbers[seen[0]] if len(seen) else False))] = _BLANK
        kinds[damaged] = 0 if self._batch else _DAMAGED
        kinds[~free] = 0
        self._begun = self._begun or len(seen) > 0
        for begin, until, kind in runs_of(kinds):
            self._add_run(_WHY[kind], first + begin, first + until, units[begin])
        sound = np.flatnonzero(written & (kinds == 0))
        self._find_gaps(numbers[sound], units[sound])

    def _add_run(self, why: str, first: int, end: int, unit: np.void) -> None:
        last = self._runs[-1] if self._runs else None
        if last and last["why"] == why and (last["end"] == first or len(self._runs) >= RUNS_MAX):
            last["end"] = end
            return
        place = {"first": first, "end": end, "file": self._files.path_of(first)}
        self._runs.append({"kind": "unclaimed", "why": why, "offset": int(unit["offset"]), **place})

    def _find_gaps(self, numbers: Int64s, units: Units) -> None:
        """Queue offsets between two batches that neither has; plain queues have a unit for each."""
        if not self._batch or not len(units):
            return
        base = units["base"].astype(np.int64)
        behind = base + units["count"]
        before = np.concatenate(([self._before[1] if self._before else base[0]], behind[:-1]))
        for at in np.flatnonzero(before != base)[: RUNS_MAX - len(self._gaps)].tolist():
            number = int(numbers[at - 1]) if at else self._before[0] if self._before else 0
            place = {"before": number, "number": int(numbers[at])}
            self._gaps.append({"kind": "unit-gap", **place, "from": int(before[at]), "to": int(base[at])})
        self._before = int(numbers[-1]), int(behind[-1])
