"""Batch queues: the second direction (units without a record), and what both directions mean together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from brokerset_formats.queue_units import BATCH_UNIT_SIZE
from brokerset_spark.jobs.report import Level
from brokerset_spark.jobs.running import Result, Row
from brokerset_spark.jobs.verify.batch_units import BATCH_QUEUES, BatchReader, Queue, batch_queues
from brokerset_spark.jobs.verify.findings import finding
from brokerset_spark.jobs.verify.gathered import BatchClaims, Gathered
from brokerset_spark.jobs.verify.plan import Target
from brokerset_spark.jobs.verify.topic_settings import known_topics
from brokerset_spark.kernels.contract import Bools, Int64s
from brokerset_spark.stores.folder import StoreFolder
from brokerset_spark.stores.opening import open_folder

RUNS_MAX: Final = 256
"""Runs of units without a record, and holes, that one queue tells one by one."""


MISSING_MAX: Final = 64
"""Runs of records without a unit whose place is looked for; the rest is counted with the last of them."""


def _inside(values: Int64s, ranges: list[list[int]]) -> Bools:
    """Which values lie in one of these sorted ranges."""
    if not ranges:
        return np.zeros(len(values), np.bool_)
    bounds = np.array(ranges, np.int64)
    at = np.searchsorted(bounds[:, 0], values, side="right") - 1
    found: Bools = (at >= 0) & (values < bounds[np.maximum(at, 0), 1])
    return found


def batch_rows(folder: StoreFolder, target: Target, gathered: Gathered, end: int, damage: Any) -> list[Row]:
    """A row of `check_batch_queue` for each queue that is wanted."""
    wanted = set(target.options.topics)
    none = BatchClaims()
    return [
        {
            "url": target.facts.url, "topic": topic, "queue": queue_id, "first": target.first, "end": end,
            "damage": damage, "live": target.live,
            "claims": gathered.batches.get((topic, queue_id), none).claimed,
        }
        for topic, queue_id in batch_queues(folder)
        if not wanted or topic in wanted
    ]  # fmt: skip


def check_batch_queue(row: Row) -> Iterator[Result]:
    """A task: units of one queue that no record claims, and holes between the queue offsets of its units.

    `claims` are ranges of unit numbers; `damage`, `first` and `end` as of `queue_files.check_queues`.
    """
    folder = open_folder(row["url"])
    queue = {"topic": row["topic"], "queue": row["queue"]}
    counts = {"units": 0, "expired": 0}
    runs: list[Row] = []
    gaps: list[Row] = []
    before: tuple[int, int] | None = None  # number of the unit before, queue offset behind its batch
    try:
        reader = BatchReader(folder)
        for first, units in reader.blocks(row["topic"], row["queue"]):
            numbers = np.arange(first, first + len(units))
            written = units.view(np.uint8).reshape(len(units), -1).any(axis=1)
            offset = units["offset"].astype(np.int64)
            free = written & ~_inside(numbers, row["claims"])
            expired = free & (offset >= 0) & (offset < row["first"]) & (units["size"] > 0)
            damaged = free & _inside(offset, row["damage"])
            beyond = free & (offset >= row["end"]) & (units["size"] > 0)
            counts["units"] += int(written.sum())
            counts["expired"] += int(expired.sum())
            stray = free & ~expired & ~damaged & ~(beyond & row["live"])
            for at in np.flatnonzero(stray).tolist():
                why = "beyond" if beyond[at] else "dangling"
                number = first + at
                if runs and runs[-1]["why"] == why and (
                    runs[-1]["end"] == number or len(runs) >= RUNS_MAX
                ):  # fmt: skip
                    runs[-1]["end"] = number + 1
                else:
                    told = {"first": number, "end": number + 1, "offset": int(offset[at]), "why": why}
                    runs.append({"kind": "batch-unclaimed", **queue, **told})
            for at in np.flatnonzero(written & ~stray).tolist():
                base, behind = int(units["base"][at]), int(units["base"][at]) + int(units["count"][at])
                if before is not None and before[1] != base and len(gaps) < RUNS_MAX:
                    told = {"before": before[0], "number": first + at, "from": before[1], "to": base}
                    gaps.append({"kind": "batch-gap", **queue, **told})
                before = (first + at, behind)
    finally:
        folder.close()
    for each in [*runs, *gaps]:
        yield Result(each)
    yield Result({"kind": "batch-queue", **queue, **counts})


def judge_batches(folder: StoreFolder, target: Target, gathered: Gathered) -> None:
    """Say what is wrong with batch queues."""
    reader, known = BatchReader(folder), known_topics(folder)
    for queue, claims in sorted(gathered.batches.items()):
        _Queue(target, gathered, reader, queue, claims).judge(queue[0] in known)


class _Queue:
    def __init__(
        self, target: Target, gathered: Gathered, reader: BatchReader, queue: Queue, claims: BatchClaims
    ) -> None:
        self._target, self._gathered, self._reader, self._claims = target, gathered, reader, claims
        self._queue, self._name = queue, f"{queue[0]}/{queue[1]}"
        self._lost: set[int] = set()  # numbers of units of which something was said

    def _say(self, code: str, text: str, number: int, *, milder: bool = False) -> None:
        path = self._reader.file_of(*self._queue, number)
        found = finding(code, text, path, number * BATCH_UNIT_SIZE)
        self._gathered.say(Result({**found.row, "level": Level.WARNING}) if milder else found)

    def judge(self, known: bool) -> None:
        """`known`: whether the settings have the topic."""
        missing = sorted(self._claims.missing, key=lambda row: int(row["offset"]))
        if missing and missing[0]["absent"]:
            self._judge_absent(missing, known)
            return
        self._lost |= self._claims.wrong
        strays = self._strays() if missing else {}
        for group in self._by_place([row for row in missing if not self._is_stray(row, strays)]):
            self._judge_missing(*group)
        for row in self._claims.unclaimed:
            if not row.get("joined"):
                self._judge_unclaimed(row)
        for row in self._claims.gaps:
            between = range(row["before"], row["number"] + 1)
            if not any(number in self._lost for number in between):
                text = (
                    f"a unit of {self._name} begins with queue offset {row['to']}, "
                    f"the one before ends at {row['from']}"
                )
                self._say("batch-gap", text, row["number"])

    def _judge_absent(self, missing: list[Row], known: bool) -> None:
        count = sum(int(row["count"]) for row in missing)
        begin = missing[0]["offset"]
        path = f"{BATCH_QUEUES}/{self._name}"
        if not known:
            text = f"{count} records of {self._name} from offset {begin} on: the topic is gone"
            self._gathered.say(finding("topic-deleted", text, path, 0))
            return
        text = f"{count} records of {self._name} are in no batch queue; the first is at {begin}"
        found = finding("queue-missing", text, path, 0)
        milder = {"level": Level.WARNING} if self._target.crash else {}
        self._gathered.say(Result({**found.row, **milder}))

    def _strays(self) -> dict[int, Row]:
        """Single units without a record, by the queue offset with which they begin."""
        found = {}
        for row in self._claims.unclaimed:
            if row["end"] - row["first"] == 1:
                found[int(self._reader.read(*self._queue, row["first"], 1)[0]["base"])] = row
        return found

    def _is_stray(self, row: Row, strays: dict[int, Row]) -> bool:
        """Whether the unit of a record is there, and only points elsewhere."""
        stray = strays.pop(row["base"], None) if row["count"] == 1 else None
        if stray is None:
            return False
        stray["joined"] = True
        self._lost.add(stray["first"])
        text = (
            f"the unit of the record at offset {row['offset']} of {self._name} has offset {stray['offset']} "
            f"instead of {row['offset']}"
        )
        self._say("batch-unit", text, stray["first"])
        return True

    def _by_place(self, missing: list[Row]) -> list[tuple[int, Row, int]]:
        """Missing ones, those that follow each other as one: the number that the first unit should have, the
        first row, and how many records."""
        found: list[tuple[int, Row, int]] = []
        for row in missing[:MISSING_MAX]:
            number = self._reader.place_of(*self._queue, int(row["offset"]), self._lost)
            if found and found[-1][0] == number:
                found[-1] = (number, found[-1][1], found[-1][2] + int(row["count"]))
            else:
                found.append((number, row, int(row["count"])))
        rest = sum(int(row["count"]) for row in missing[MISSING_MAX:])
        if rest:
            found[-1] = (*found[-1][:2], found[-1][2] + rest)
        return found

    def _judge_missing(self, number: int, row: Row, count: int) -> None:
        first, last = self._reader.first_unit(*self._queue), self._reader.last_unit(*self._queue)
        if first is not None and first[1]["base"] == 0 and row["last"] < first[1]["offset"]:
            text = (
                f"queue {self._name} begins again at 0 behind the record at {row['last']}: "
                "its topic was made anew"
            )
            self._say("queue-restart", text, first[0])
            return
        at_end = last is None or row["offset"] > last[1]["offset"]
        if at_end and self._target.live:
            self._gathered.count("queue.behind", count)
            return
        self._lost.add(number)
        many = f" and {count - 1} others" if count > 1 else ""
        text = f"for the record at offset {row['offset']}{many} of batch queue {self._name} there is no unit"
        self._say("batch-missing", text, number, milder=at_end and self._target.crash)

    def _judge_unclaimed(self, row: Row) -> None:
        count = row["end"] - row["first"]
        self._lost.update(range(row["first"], min(row["end"], row["first"] + RUNS_MAX)))
        many = f" and {count - 1} others" if count > 1 else ""
        beyond = row["why"] == "beyond"
        where = "behind the end of the log" if beyond else "where no record of the queue begins"
        text = f"the unit{many} points to {row['offset']}, {where}"
        self._say("batch-dangling", text, row["first"], milder=beyond and self._target.crash)
