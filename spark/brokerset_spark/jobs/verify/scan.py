"""Reading the log: one task for each range, and one for each gap that no range could read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np

from brokerset_formats.dledger import BLANK as LEDGER_BLANK
from brokerset_formats.dledger import ENTRY_HEAD_SIZE, MAGIC_BLANK
from brokerset_formats.records import BLANK
from brokerset_formats.records import MAGIC_BLANK as RECORD_BLANK
from brokerset_spark.jobs.running import Result, Row
from brokerset_spark.jobs.verify.batch_queues import BatchQueues
from brokerset_spark.jobs.verify.claims import for_reducer
from brokerset_spark.jobs.verify.columns import Columns, Topics, columns_of
from brokerset_spark.jobs.verify.consume_queues import ConsumeQueues
from brokerset_spark.jobs.verify.findings import finding
from brokerset_spark.jobs.verify.index_units import SPAN_MAX, IndexFile, Keys, compare_keys, keys_of
from brokerset_spark.jobs.verify.ledger import check_units
from brokerset_spark.jobs.verify.light_queues import light_columns
from brokerset_spark.json_values import from_value
from brokerset_spark.kernels import KERNELS, Heads, Stop
from brokerset_spark.kernels.contract import Int64s
from brokerset_spark.stores.folder import StoreFolder
from brokerset_spark.stores.layout import LogFile
from brokerset_spark.stores.opening import open_folder
from brokerset_spark.stores.reading import Chunk, Outcome, Range, Throttle, read_range
from brokerset_spark.stores.units import LEDGER_UNIT, UnitFiles

BATCH_RECORDS: Final = 200_000
"""Records whose columns are kept before queues and index are compared; about 15 MB."""

TIMES_MAX: Final = 200
"""Records out of the order of time that one task reports."""


def range_of(row: Row) -> Range:
    """The range of a task's row."""
    return Range(
        row["path"], row["base"], row["size"], row["start"], row["end"], row["entries"], row["bound"]
    )


class Collector:
    """Takes chunks in the order of the log, and reports what was found in them.

    Sections are runs of chunks without a hole; each is reported with begin, end and what its neighbours need.
    """

    def __init__(self, folder: StoreFolder, row: Row) -> None:
        self._row, self._folder = row, folder
        self._aside = open_folder(row["url"])  # a file of its own, so that the log stays open
        self._queues = ConsumeQueues(self._aside, frozenset(row["topics"]))
        self._batches = BatchQueues(self._aside, row)
        self._index = [from_value(IndexFile, each) for each in row["index"]]
        self._topics = Topics()
        self._parts: list[Columns] = []
        self._light: list[Columns] = []
        self._keys: list[Keys] = []
        self._records = 0
        self._span: tuple[int, int] = (0, 0)
        self._section: dict[str, Any] | None = None
        self._epochs: list[int] = sorted(row["epochs"])
        files = [LogFile(*each) for each in row["ledgerIndex"]]
        self._ledger = UnitFiles(self._aside, LEDGER_UNIT, "index", files) if row["entries"] else None
        self._entry: tuple[int, int] | None = None
        self._times: list[tuple[int, int]] = []  # the two newest (offset, time)

    def take(self, chunk: Chunk) -> Iterator[Result]:
        """Check a chunk that follows on the one before, or begins a section."""
        if self._section is not None and self._section["end"] != chunk.begin:
            yield from self.end_section()
        if self._section is None:
            self._section = {
                "kind": "section", "begin": chunk.begin, "end": chunk.begin, "records": 0,
                "times": [], "entries": None, "epochs": [],
            }  # fmt: skip
            self._span = (chunk.begin, chunk.begin)
            self._times, self._entry = [], None
        section = self._section
        if chunk.end - self._span[0] >= SPAN_MAX or self._records >= BATCH_RECORDS:
            yield from self._compare()
            self._span = (chunk.begin, chunk.begin)
        section["end"] = chunk.end
        section["records"] += len(chunk.starts)
        self._span = (self._span[0], chunk.end)
        if self._ledger is not None:
            found, first, self._entry = check_units(
                self._ledger,
                chunk,
                self._entry,
                has_index=bool(self._row["ledgerIndexed"]),
            )
            for each in found:
                yield Result({**each.row, "file": each.row["file"] or self._row["path"]})
            if section["entries"] is None:
                section["entries"] = first
        self._starts(chunk)
        if len(chunk.starts) == 0:
            return
        heads = KERNELS.heads(chunk.data, chunk.starts)
        yield from self._check_times(chunk, heads)
        if self._row["queues"] or self._row["indexed"]:
            columns = columns_of(chunk, heads, self._topics, self._row["delays"])
            self._parts.append(columns)
            self._records += len(columns.topic)
            if self._row["queues"]:
                yield from self._take_others(chunk, heads, columns)
            if self._row["indexed"]:
                self._keys.append(keys_of(chunk, heads, columns, self._topics))

    def _take_others(self, chunk: Chunk, heads: Heads, columns: Columns) -> Iterator[Result]:
        """Keep what the records have in batch queues and light queues."""
        yield from self._batches.take(chunk, heads, columns, self._topics)
        if self._row["light"]:
            path = self._row["path"]
            light, found = light_columns(chunk, heads, columns, self._topics, path)
            yield from found
            self._light += [light] if light is not None else []

    def end_section(self) -> Iterator[Result]:
        """Nothing follows without a hole."""
        if self._section is None:
            return
        yield from self._compare()
        section, self._section = self._section, None
        section["lastTimes"] = [list(each) for each in self._times]
        section["lastEntry"] = list(self._entry) if self._entry else None
        section["path"] = self._row["path"]
        yield Result(section)

    def close(self) -> None:
        """Let files go."""
        self._aside.close()

    def _starts(self, chunk: Chunk) -> None:
        """Which epochs begin at a record of this chunk."""
        assert self._section is not None
        for start in self._epochs:
            if chunk.begin <= start < chunk.end:
                at = start - chunk.base + (ENTRY_HEAD_SIZE if self._row["entries"] else 0)
                place = int(np.searchsorted(chunk.starts, at))
                if place < len(chunk.starts) and int(chunk.starts[place]) == at:
                    self._section["epochs"].append(start)

    def _check_times(self, chunk: Chunk, heads: Heads) -> Iterator[Result]:
        assert self._section is not None
        offsets = chunk.base + chunk.starts
        known = len(self._times)
        offset = np.concatenate([np.array([each[0] for each in self._times], np.int64), offsets])
        time = np.concatenate([np.array([each[1] for each in self._times], np.int64), heads.store_timestamp])
        # Whether the first record of a section or its second one is wrong, only the section before shows.
        first = max(known, 2) if self._section["records"] - len(offsets) < 2 else known
        for at in time_culprits(time, first)[:TIMES_MAX]:
            yield time_finding(self._row["path"], int(offset[at]), int(time[at]))
        if len(self._section["times"]) < 2:
            pairs = zip(offset[:2].tolist(), time[:2].tolist(), strict=True)
            self._section["times"] = [list(pair) for pair in pairs]
        self._times = list(zip(offset[-2:].tolist(), time[-2:].tolist(), strict=True))

    def _compare(self) -> Iterator[Result]:
        if not self._parts:
            return
        columns = Columns.joined(self._parts)
        if self._row["queues"]:
            light = [Columns.joined(self._light)] if self._light else []
            for each in (columns, *light):
                yield from map(for_reducer, map(Result, self._queues.compare(each, self._topics)))
            yield from map(for_reducer, self._batches.compare(self._topics))
        if self._row["indexed"]:
            keys = Keys.joined(self._keys)
            yield from compare_keys(
                self._aside, self._index, keys, columns.offset, *self._span, self._row["path"]
            )
        self._parts, self._light, self._keys, self._records = [], [], [], 0


def time_finding(path: str, offset: int, time: int) -> Result:
    """A record that is out of the order of time."""
    text = (
        f"the record's store time {time} is out of order with its neighbours: "
        f"the clock was set, or it is damaged"
    )
    return finding("time-back", text, path, offset)


def time_culprits(time: Int64s, known: int = 0) -> list[int]:
    """Which of these times are out of order: one that is too high, or those that are too low.

    The first `known` were judged with what came before them.
    """
    found = []
    for at in (np.flatnonzero(np.diff(time) < 0) + 1).tolist():
        if at < known:
            continue
        spike = at >= 2 and time[at] >= time[at - 2]
        found.append(at - 1 if spike else at)
    return sorted(set(found))


def proper_blank(folder: StoreFolder, path: str, position: int, size: int, entries: bool) -> int | None:
    """What the blank record at a position of a file gives as its length; None if there is no blank record."""
    head = bytearray(BLANK.size)
    if size - position < BLANK.size or folder.read_into(path, position, memoryview(head)) < BLANK.size:
        return None
    if entries:
        magic, length = LEDGER_BLANK.unpack(head)
        return int(length) if magic == MAGIC_BLANK else None
    length, magic = BLANK.unpack(head)
    return int(length) if magic == RECORD_BLANK else None


def scan_range(row: Row) -> Iterator[Result]:
    """A task: the records that begin in one range of the log.

    Gives findings, runs of queue offsets, keys without file, and the sections that could be read; what lies
    between sections is for `examine_gap`.
    """
    folder = open_folder(row["url"])
    collector = Collector(folder, row)
    try:
        wanted = range_of(row)
        limit = min(wanted.end, wanted.bound)
        throttle = Throttle(row["rate"])
        at = wanted.start
        while at < limit:
            outcome = Outcome(at, at, skipped=[])
            part = replace(wanted, start=at)
            for chunk in read_range(
                folder, part, outcome, crc=True, resync=True, throttle=throttle,
                drop_cache=row["drop"],
            ):  # fmt: skip
                yield from collector.take(chunk)
            if outcome.stop not in (Stop.BLANK, Stop.EMPTY):
                break
            position = outcome.end - wanted.base
            if outcome.stop is Stop.BLANK:
                length = proper_blank(folder, wanted.path, position, wanted.size, wanted.entries)
                if length == wanted.size - position:
                    yield from collector.end_section()
                    blank = {
                        "kind": "blank",
                        "begin": outcome.end,
                        "end": wanted.base + wanted.size,
                        "path": wanted.path,
                    }
                    yield Result(blank)
                    break
            at = max(at, outcome.end) + 1
        yield from collector.end_section()
        yield Result({"kind": "read", "bytes": max(0, limit - wanted.start)})
    except FileNotFoundError:
        text = "the file is gone: if the broker runs, it has expired; start the job again"
        yield finding("file-unreadable", text, row["path"], row["start"], row["end"])
    finally:
        collector.close()
        folder.close()
