"""Consume queues: the first direction, from records to the units that they must have."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brokerset_formats.queue_units import EXTENSION_ADDRESS_MAX
from brokerset_spark.jobs.dispatch import topic_text
from brokerset_spark.jobs.verify.columns import Columns, Topics
from brokerset_spark.jobs.verify.comparing import Kinds, first_differences, runs_of
from brokerset_spark.jobs.verify.extended_units import ExtendedUnits, check_extended
from brokerset_spark.kernels import KERNELS
from brokerset_spark.kernels.contract import Int32s, Int64s
from brokerset_spark.stores.folder import StoreFolder
from brokerset_spark.stores.units import QUEUE, QueueReader, Units, is_blank

BAD_RUNS_MAX: Final = 64
"""Runs of units that differ, reported for one queue by one batch; more are counted in the last one."""


class Bad(IntEnum):
    """How a unit differs from its record."""

    FINE = 0
    OFFSET = 1
    SIZE = 2
    TAGS = 3
    MISSING = 4
    BLANK = 5
    DELIVER_TIME = 6


CODE_OF: Final = {
    Bad.MISSING: "cq-missing",
    Bad.BLANK: "cq-blank",
    Bad.OFFSET: "cq-offset",
    Bad.SIZE: "cq-size",
    Bad.TAGS: "cq-tags",
    Bad.DELIVER_TIME: "cq-deliver-time",
}


class ConsumeQueues:
    """Compares the records of one task with the units of plain and light queues."""

    def __init__(self, folder: StoreFolder, wanted: frozenset[str]) -> None:
        self._reader, self._extended = QueueReader(folder, QUEUE), ExtendedUnits(folder)
        self._wanted = wanted

    def compare(self, columns: Columns, topics: Topics) -> list[dict[str, Any]]:
        """For each queue the runs of following queue offsets, and where their units differ.

        A run is a row: queue, first queue offset, count, offset of the first and the last record, and under
        `bad` the differences: kind, queue offset, count, offset of the record, offset and size in the unit.
        """
        chosen = np.flatnonzero(columns.queued)
        if len(chosen) == 0:
            return []
        keys = _queue_keys(columns.topic[chosen], columns.queue_id[chosen])
        order = np.argsort(keys, kind="stable")
        chosen, keys = chosen[order], keys[order]
        steps = np.diff(columns.queue_offset[chosen]) != 1
        edges = np.flatnonzero(steps | (keys[1:] != keys[:-1])) + 1
        rows: list[dict[str, Any]] = []
        for run in np.split(chosen, edges):
            topic = topic_text(topics.names[int(columns.topic[run[0]])])
            if not self._wanted or topic in self._wanted:
                rows += self._compare_run(topic, columns, run)
        return rows

    def _compare_run(self, topic: str, columns: Columns, run: Int64s) -> list[dict[str, Any]]:
        queue_id, first = int(columns.queue_id[run[0]]), int(columns.queue_offset[run[0]])
        begin, units_of = int(columns.offset[run[0]]), self._reader.of(topic, queue_id)
        row: dict[str, Any] = {
            "kind": "run",
            "topic": topic,
            "queue": queue_id,
            "first": first,
            "count": len(run),
            "begin": begin,
            "last": int(columns.offset[run[-1]]),
            "bad": [],
        }
        if not units_of.files:
            return [{**row, "absent": True}]
        if first < 0:
            return [{**row, "bad": [[int(Bad.MISSING), first, len(run), begin, 0, 0]]}]
        units = units_of.read(first, len(run))
        if self._all_fit(units, run, columns):
            return [row]
        kinds = compare(units, columns.of(run))
        row["bad"] = _bad_runs(kinds, first, columns.offset[run], units)
        at = np.flatnonzero((units["tags"] <= EXTENSION_ADDRESS_MAX) & (kinds == Bad.FINE))
        if not len(at):
            return [row]
        path = units_of.path_of(first + int(at[0]))
        return [
            row,
            *check_extended(
                self._extended, topic, queue_id, path, first + at, units["tags"][at], columns.of(run[at])
            ),
        ]

    def _all_fit(self, units: Units, run: Int64s, columns: Columns) -> bool:
        """Whether all units are what their records say, and none is an extended one: nearly always."""
        raw, least = units.view(np.uint8), EXTENSION_ADDRESS_MAX + 1
        count = KERNELS.count_fitting(raw, run, columns.offset, columns.size, columns.tags_code, least)
        return count == len(run)


def compare(units: Units, records: Columns) -> Kinds:
    """`Bad` for each unit; those with an address of an extended unit are not compared by tags."""
    extended = units["tags"] <= EXTENSION_ADDRESS_MAX
    tags = np.where(extended, units["tags"].astype(np.int64), records.tags_code)
    found = first_differences(units, {"offset": records.offset, "size": records.size, "tags": tags})
    found[(found == Bad.TAGS) & records.delayed] = Bad.DELIVER_TIME
    found[is_blank(units)] = Bad.BLANK
    found[(units["offset"] == 0) & (units["size"] == 0)] = Bad.MISSING
    return found


def _queue_keys(topics: Int32s, queue_ids: Int32s) -> NDArray[Any]:
    """A number for each record's queue, of 16 bits if they suffice: numpy sorts those by counting."""
    width = int(queue_ids.max()) + 1
    if queue_ids.min() >= 0 and (int(topics.max()) + 1) * width <= 1 << 16:
        return (topics.astype(np.int64) * width + queue_ids).astype(np.uint16)
    return topics.astype(np.int64) << 32 | queue_ids.view(np.uint32).astype(np.int64)


def _bad_runs(kinds: Kinds, first: int, offset: Int64s, units: Units) -> list[list[int]]:
    found: list[list[int]] = []
    for begin, end, kind in runs_of(kinds):
        if len(found) >= BAD_RUNS_MAX:
            found[-1][2] += end - begin
            continue
        single = kind in (Bad.MISSING, Bad.BLANK)
        for at in (begin,) if single else range(begin, min(end, begin + BAD_RUNS_MAX - len(found))):
            count, unit = end - begin if single else 1, units[at]
            found.append([kind, first + at, count, int(offset[at]), int(unit["offset"]), int(unit["size"])])
    return found
