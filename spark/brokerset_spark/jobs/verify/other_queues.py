"""What records have in queues that are no plain ones: the first direction, record by record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from brokerset_formats.queue_units import BATCH_UNIT_SIZE
from brokerset_spark.jobs.running import Result, Row
from brokerset_spark.jobs.verify.batch_units import BatchReader, Units
from brokerset_spark.jobs.verify.columns import Columns, Topics
from brokerset_spark.jobs.verify.findings import finding
from brokerset_spark.jobs.verify.light_queues import light_columns
from brokerset_spark.jobs.verify.units import UnitReader, queue_runs, topic_text
from brokerset_spark.kernels import Heads, Kernels
from brokerset_spark.kernels.contract import Bools, Int64s
from brokerset_spark.stores.folder import StoreFolder
from brokerset_spark.stores.reading import Chunk

INNER_BATCH: Final = 0x80
_NOT_VISIBLE: Final = 0x4
"""Half and rolled back messages have this bit, others not."""

_COUNT, _BASE = b"INNER_NUM", b"INNER_BASE"
_COUNT_MAX: Final = 2**15 - 1

SAID_MAX: Final = 64
"""Units of one queue that differ, told by one batch of records; the rest is counted in one more finding."""


@dataclass(frozen=True, slots=True)
class _Batches:
    """Records of a chunk that belong into batch queues, in the order of the log."""

    columns: Columns
    base: Int64s
    count: Int64s


class OtherQueues:
    """Takes the records of a task, and compares them with light queues and batch queues."""

    def __init__(self, folder: StoreFolder, row: Row, kernels: Kernels) -> None:
        self._row, self._kernels = row, kernels
        self._reader = BatchReader(folder)
        self._batched = frozenset(row["batched"])
        self._light: list[Columns] = []
        self._batches: list[_Batches] = []

    def take(self, chunk: Chunk, heads: Heads, columns: Columns, topics: Topics) -> Iterator[Result]:
        """Keep what a chunk says about these queues; findings about what makes no sense.

        Records of batch queues are taken out of `columns.queued`: they have no unit of 20 bytes.
        """
        inner = (heads.sys_flag & INNER_BATCH) != 0
        batched = np.zeros(len(inner), np.bool_)
        if self._batched:
            known = np.array([topic_text(name) in self._batched for name in topics.names], np.bool_)
            batched = known[columns.topic]
        if inner.any() or batched.any():
            yield from self._take_batches(chunk, heads, columns, inner, batched)
        if self._row["light"]:
            light, found = light_columns(chunk, heads, columns, topics, self._kernels, self._row["path"])
            yield from found
            if light is not None:
                self._light.append(light)

    def _take_batches(
        self, chunk: Chunk, heads: Heads, columns: Columns, inner: Bools, batched: Bools
    ) -> Iterator[Result]:
        wanted = (columns.queued & batched) | (inner & ((heads.sys_flag & _NOT_VISIBLE) == 0))
        columns.queued[batched] = False
        counts, bases = self._kernels.find_properties(chunk.data, heads, (_COUNT, _BASE))
        numbers: list[int] = []
        said: list[tuple[int, int]] = []
        for number in np.flatnonzero(wanted).tolist():
            own = int(columns.queue_offset[number])
            count, base = 1, own
            if inner[number] or (counts.starts[number] >= 0 and bases.starts[number] >= 0):
                count = _number(chunk, int(counts.starts[number]), int(counts.sizes[number]))
                base = _number(chunk, int(bases.starts[number]), int(bases.sizes[number]))
            problem = ""
            if not 0 < count <= _COUNT_MAX:
                problem = "it does not say how many messages it has"
            elif base != own:
                problem = f"it begins with queue offset {base if base >= 0 else 'nothing'}, and says {own}"
            if problem:
                at = int(columns.offset[number])
                end = at + int(columns.size[number])
                yield finding("batch-property", f"an inner batch: {problem}", self._row["path"], at, end)
                if not 0 < count <= _COUNT_MAX:
                    continue
            numbers.append(number)
            said.append((base, count))
        if numbers:
            chosen = np.array(numbers, np.int64)
            part = Columns(*(getattr(columns, name)[chosen] for name in Columns.__slots__))
            pairs = np.array(said, np.int64)
            self._batches.append(_Batches(part, pairs[:, 0], pairs[:, 1]))

    def compare(self, topics: Topics, reader: UnitReader, wanted: frozenset[str]) -> Iterator[Result]:
        """Runs of light queues, as of plain ones; what batch queues have of the inner batches."""
        if self._light:
            for run in queue_runs(_joined(self._light), topics, reader, wanted):
                yield Result(run)
        if self._batches:
            columns = _joined([each.columns for each in self._batches])
            base = np.concatenate([each.base for each in self._batches])
            count = np.concatenate([each.count for each in self._batches])
            keys = columns.topic.astype(np.int64) << 32 | columns.queue_id.view(np.uint32)
            for key in np.unique(keys).tolist():
                chosen = np.flatnonzero(keys == key)
                part = Columns(*(getattr(columns, name)[chosen] for name in Columns.__slots__))
                topic = topic_text(topics.names[int(part.topic[0])])
                if not wanted or topic in wanted:
                    yield from self._compare_batches(topic, part, base[chosen], count[chosen])
        self._light, self._batches = [], []

    def _compare_batches(self, topic: str, part: Columns, base: Int64s, count: Int64s) -> Iterator[Result]:
        queue_id = int(part.queue_id[0])
        queue = {"topic": topic, "queue": queue_id}
        if not self._reader.files(topic, queue_id):
            yield Result(_missing(queue, part, base, np.arange(len(base)), absent=True))
            return
        numbers, units = self._reader.match(topic, queue_id, part.offset)
        numbers, units = self._by_place(topic, queue_id, base, numbers, units)
        have = np.flatnonzero(numbers >= 0)
        claimed = _ranges(np.unique(numbers[have]))
        yield Result(
            {
                "kind": "batch-run", **queue, "records": len(base), "messages": int(count.sum()),
                "claimed": claimed,
            }
        )  # fmt: skip
        yield from self._differences(topic, part, base, count, numbers, units, have)
        gone = np.flatnonzero(numbers < 0)
        for group in np.split(gone, np.flatnonzero(np.diff(gone) != 1) + 1) if len(gone) else []:
            yield Result(_missing(queue, part, base, group))

    def _by_place(
        self, topic: str, queue_id: int, base: Int64s, numbers: Int64s, units: Units
    ) -> tuple[Int64s, Units]:
        """A unit between those of the neighbours that has the batch's queue offset, and only points
        elsewhere, is the record's own."""
        for at in np.flatnonzero(numbers < 0).tolist():
            places = []
            if at > 0 and numbers[at - 1] >= 0:
                places.append(int(numbers[at - 1]) + 1)
            if at + 1 < len(numbers) and numbers[at + 1] > 0:
                places.append(int(numbers[at + 1]) - 1)
            for place in places:
                unit = self._reader.read(topic, queue_id, place, 1)[0]
                if unit["base"] == base[at] and unit["count"] > 0 and place not in numbers:
                    numbers[at], units[at] = place, unit
                    break
        return numbers, units

    def _differences(
        self,
        topic: str,
        part: Columns,
        base: Int64s,
        count: Int64s,
        numbers: Int64s,
        units: Units,
        have: Int64s,
    ) -> Iterator[Result]:
        wanted: dict[str, Any] = {
            "offset": part.offset, "size": part.size, "tags": part.tags_code, "time": part.time,
            "base": base, "count": count, "compacted": np.full(len(base), -1),
            "reserved": np.zeros(len(base)),
        }  # fmt: skip
        wrong = np.zeros(len(base), np.bool_)
        for name, values in wanted.items():
            wrong[have] |= units[name][have] != values[have]
        culprits = np.flatnonzero(wrong).tolist()
        queue_id = int(part.queue_id[0])
        for at in culprits[:SAID_MAX]:
            number, unit = int(numbers[at]), units[at]
            name, own = next(
                (name, int(values[at])) for name, values in wanted.items() if unit[name] != values[at]
            )
            text = (
                f"the unit of the record at offset {int(part.offset[at])} of {topic}/{queue_id} has "
                f"{name} {int(unit[name])} instead of {own}"
            )
            yield self._said(topic, queue_id, number, text)
        if len(culprits) > SAID_MAX:
            text = (
                f"{len(culprits) - SAID_MAX} more units of {topic}/{queue_id} do not agree with their records"
            )
            yield self._said(topic, queue_id, int(numbers[culprits[SAID_MAX]]), text)
        if culprits:
            yield Result(
                {
                    "kind": "batch-wrong", "topic": topic, "queue": queue_id,
                    "numbers": numbers[culprits].tolist(), "bases": base[culprits].tolist(),
                }
            )  # fmt: skip

    def _said(self, topic: str, queue_id: int, number: int, text: str) -> Result:
        path = self._reader.file_of(topic, queue_id, number)
        return finding("batch-unit", text, path, number * BATCH_UNIT_SIZE)


def _missing(
    queue: dict[str, Any], part: Columns, base: Int64s, group: Int64s, *, absent: bool = False
) -> Row:
    first, last = int(group[0]), int(group[-1])
    return {
        "kind": "batch-missing", **queue, "count": len(group), "offset": int(part.offset[first]),
        "last": int(part.offset[last]), "base": int(base[first]), "absent": absent,
    }  # fmt: skip


def _joined(parts: list[Columns]) -> Columns:
    return Columns(*(np.concatenate([getattr(part, name) for part in parts]) for name in Columns.__slots__))


def _ranges(numbers: Int64s) -> list[list[int]]:
    """Sorted numbers as ranges `[first, end)`."""
    if not len(numbers):
        return []
    edges = np.flatnonzero(np.diff(numbers) != 1) + 1
    return [[int(group[0]), int(group[-1]) + 1] for group in np.split(numbers, edges)]


def _number(chunk: Chunk, start: int, size: int) -> int:
    """A property that is a number; -1 for none, and for what is no number."""
    text = chunk.data[start : start + size].tobytes() if start >= 0 else b""
    return int(text) if text.isdigit() and len(text) < 19 else -1
