"""Batch queues: the first direction, from records to the units that they must have.

A unit has no place that follows from a queue offset: it is found by the offset of the record. In reports the
offset of a unit is that of its first byte in the files of its queue.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from brokerset_formats.queue_units import BATCH_UNIT_SIZE
from brokerset_formats.records import SysFlag
from brokerset_spark.jobs.dispatch import int_property, is_dispatched, topic_text
from brokerset_spark.jobs.running import Result, Row
from brokerset_spark.jobs.verify.columns import Columns, Topics
from brokerset_spark.jobs.verify.comparing import first_differences, in_a_row
from brokerset_spark.jobs.verify.findings import finding
from brokerset_spark.kernels import KERNELS, Heads
from brokerset_spark.kernels.contract import Int64s
from brokerset_spark.stores.folder import StoreFolder
from brokerset_spark.stores.reading import Chunk
from brokerset_spark.stores.units import BATCH, QueueReader, UnitFiles, Units

_COUNT, _BASE = b"INNER_NUM", b"INNER_BASE"
_COUNT_MAX: Final = 2**15 - 1

SAID_MAX: Final = 64
"""Units of one queue that differ, reported by one batch of records; one more finding counts the rest."""

SLACK: Final = 16
"""Units that are read in addition to those that are expected, before a whole queue is searched."""


@dataclass(frozen=True, slots=True)
class _Batches:
    """Records that belong into batch queues, in the order of the log."""

    columns: Columns
    base: Int64s
    count: Int64s


class BatchQueues:
    """Takes the records of a task, and compares those of batch queues with their units."""

    def __init__(self, folder: StoreFolder, row: Row) -> None:
        self._row = row
        self._reader, self._wanted = QueueReader(folder, BATCH), frozenset(row["topics"])
        self._batched = frozenset(row["batched"])
        self._batches: list[_Batches] = []

    def take(self, chunk: Chunk, heads: Heads, columns: Columns, topics: Topics) -> Iterator[Result]:
        """Keep the records of a chunk that have a unit there; findings about what makes no sense.

        Which kind of queue a record belongs to, its topic decides, as in Java: a single message of such a
        topic has a unit with a count of 1. Those are taken out of `columns.queued`.
        """
        inner = (heads.sys_flag & SysFlag.INNER_BATCH) != 0
        batched = np.zeros(len(inner), np.bool_)
        if self._batched:
            known = np.array([topic_text(name) in self._batched for name in topics.names], np.bool_)
            batched = known[columns.topic]
        wanted = (columns.queued & batched) | (inner & is_dispatched(heads))
        columns.queued[batched] = False
        if not wanted.any():
            return
        counts, bases = KERNELS.find_properties(chunk.data, heads, (_COUNT, _BASE))
        said: list[tuple[int, int, int]] = []
        for row in np.flatnonzero(wanted).tolist():
            own = int(columns.queue_offset[row])
            count, base = 1, own
            if inner[row] or (counts.starts[row] >= 0 and bases.starts[row] >= 0):
                count, base = (
                    int_property(chunk.data, int(each.starts[row]), int(each.sizes[row]))
                    for each in (counts, bases)
                )
            problem = ""
            if not 0 < count <= _COUNT_MAX:
                problem = "it does not say how many messages it has"
            elif base != own:
                problem = f"it begins with queue offset {base if base >= 0 else 'nothing'}, and says {own}"
            if problem:
                at = int(columns.offset[row])
                end = at + int(columns.size[row])
                yield finding("batch-property", f"an inner batch: {problem}", self._row["path"], at, end)
            if 0 < count <= _COUNT_MAX:
                said.append((row, base, count))
        if said:
            rows, base_column, count_column = np.array(said, np.int64).T
            self._batches.append(_Batches(columns.of(rows), base_column, count_column))

    def compare(self, topics: Topics) -> Iterator[Result]:
        """What the queues have of the records so far, which are forgotten then."""
        batches, self._batches = self._batches, []
        if not batches:
            return
        columns = Columns.joined([each.columns for each in batches])
        base = np.concatenate([each.base for each in batches])
        count = np.concatenate([each.count for each in batches])
        keys = columns.topic.astype(np.int64) << 32 | columns.queue_id.view(np.uint32)
        for key in np.unique(keys).tolist():
            rows = np.flatnonzero(keys == key)
            topic = topic_text(topics.names[int(columns.topic[rows[0]])])
            if not self._wanted or topic in self._wanted:
                yield from self._compare_queue(topic, _Batches(columns.of(rows), base[rows], count[rows]))

    def _compare_queue(self, topic: str, batches: _Batches) -> Iterator[Result]:
        records, base, queue_id = batches.columns, batches.base, int(batches.columns.queue_id[0])
        queue = {"topic": topic, "queue": queue_id}
        files = self._reader.of(topic, queue_id)

        def missing(rows: Int64s, *, absent: bool = False) -> Result:
            first, last = int(rows[0]), int(rows[-1])
            found = {
                "kind": "batch-missing", **queue, "count": len(rows), "offset": int(records.offset[first]),
                "last": int(records.offset[last]), "base": int(base[first]), "absent": absent,
            }  # fmt: skip
            return Result(found)

        if not files.files:
            yield missing(np.arange(len(base)), absent=True)
            return
        numbers, units = match(files, records.offset)
        _match_by_place(files, base, numbers, units)
        have = np.flatnonzero(numbers >= 0)
        claimed = [[int(each[0]), int(each[-1]) + 1] for each in in_a_row(np.unique(numbers[have]))]
        yield Result(
            {
                "kind": "batch-run", **queue, "records": len(base), "messages": int(batches.count.sum()),
                "claimed": claimed,
            }
        )  # fmt: skip
        yield from self._differences(f"{topic}/{queue_id}", queue, batches, files, numbers, units)
        for rows in in_a_row(np.flatnonzero(numbers < 0)):
            yield missing(rows)

    @staticmethod
    def _differences(
        name: str, queue: dict[str, Any], batches: _Batches, files: UnitFiles, numbers: Int64s, units: Units
    ) -> Iterator[Result]:
        records, zeros = batches.columns, np.zeros(len(numbers), np.int64)
        wanted: dict[str, Any] = {
            "offset": records.offset, "size": records.size, "tags": records.tags_code, "time": records.time,
            "base": batches.base, "count": batches.count, "compacted": zeros - 1, "reserved": zeros,
        }  # fmt: skip
        differ = first_differences(units, wanted)
        wrong = np.flatnonzero((differ > 0) & (numbers >= 0)).tolist()
        texts = []
        for at in wrong[:SAID_MAX]:
            part, values = list(wanted.items())[differ[at] - 1]
            texts.append(
                f"the unit of the record at offset {int(records.offset[at])} of {name} has "
                f"{part} {int(units[at][part])} instead of {int(values[at])}"
            )
        if len(wrong) > SAID_MAX:
            texts.append(f"{len(wrong) - SAID_MAX} more units of {name} do not agree with their records")
        for at, text in zip(wrong, texts, strict=False):
            number = int(numbers[at])
            yield finding("batch-unit", text, files.path_of(number), number * BATCH_UNIT_SIZE)
        if wrong:
            found = {"numbers": numbers[wrong].tolist(), "bases": batches.base[wrong].tolist()}
            yield Result({"kind": "batch-wrong", **queue, **found})


def match(files: UnitFiles, offsets: Int64s) -> tuple[Int64s, Units]:
    """For records at these offsets of the log, ascending: the number of the unit that points to each, -1 for
    none; and the units, zeros for none.

    Units are searched by halves first. Only if that misses some, which takes a damaged unit or one that is
    not there, all units are read.
    """
    numbers, found = np.full(len(offsets), -1, np.int64), np.zeros(len(offsets), BATCH.dtype)
    at = files.search(lambda unit: bool(unit["size"] <= 0 or unit["offset"] >= offsets[0]))
    _note(offsets, numbers, found, at, files.read(at, len(offsets) + SLACK))
    if (numbers < 0).any():
        for first, units in files.blocks():
            _note(offsets, numbers, found, first, units)
    return numbers, found


def _note(offsets: Int64s, numbers: Int64s, found: Units, first: int, units: Units) -> None:
    """Note which of the offsets these units point to, for those without a unit so far."""
    pointed = units["offset"].astype(np.int64)
    places = np.searchsorted(offsets, pointed)
    rows = np.flatnonzero((places < len(offsets)) & (units["size"] > 0))
    rows = rows[offsets[places[rows]] == pointed[rows]]
    rows = rows[numbers[places[rows]] < 0]
    chosen, at = np.unique(places[rows], return_index=True)  # of several units the first one counts
    numbers[chosen], found[chosen] = first + rows[at], units[rows[at]]


def _match_by_place(files: UnitFiles, base: Int64s, numbers: Int64s, units: Units) -> None:
    """A unit between those of the neighbours that has the batch's queue offset, and only points elsewhere,
    is the record's own."""
    for at in np.flatnonzero(numbers < 0).tolist():
        places = []
        if at > 0 and numbers[at - 1] >= 0:
            places.append(int(numbers[at - 1]) + 1)
        if at + 1 < len(numbers) and numbers[at + 1] > 0:
            places.append(int(numbers[at + 1]) - 1)
        for place in places:
            unit = files.read(place, 1)[0]
            if unit["base"] == base[at] and unit["count"] > 0 and place not in numbers:
                numbers[at], units[at] = place, unit
                break


def place_of(files: UnitFiles, offset: int, wrong: Collection[int]) -> int:
    """The number that the unit of a record at this offset should have: behind the last one that points before
    it. Units that are `wrong` do not count. Reads all units."""
    place = files.span(files.files[0])[0] if files.files else 0
    for first, units in files.blocks():
        before = np.flatnonzero((units["size"] > 0) & (units["offset"] < offset))
        right = [first + at for at in before[-len(wrong) - 1 :].tolist() if first + at not in wrong]
        place = max(place, right[-1] + 1) if right else place
    return place
