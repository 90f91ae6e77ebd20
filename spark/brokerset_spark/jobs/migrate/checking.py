"""Third task: read a file of the new log back, check it, and keep what queues and index need of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brokerset_formats.dledger import ENTRY_HEAD_SIZE, MAGIC_NORMAL
from brokerset_formats.names import SCHEDULE_TOPIC
from brokerset_spark.jobs.dispatch import index_keys, is_dispatched, tags_codes
from brokerset_spark.jobs.migrate import tallies
from brokerset_spark.jobs.migrate.cloning import write_scratch
from brokerset_spark.jobs.migrate.selecting import PIECE, ContentDigest
from brokerset_spark.jobs.migrate.tallies import Groups
from brokerset_spark.jobs.running import Result, Row
from brokerset_spark.kernels import KERNELS
from brokerset_spark.kernels.contract import Heads, Int64s
from brokerset_spark.stores.opening import open_folder
from brokerset_spark.stores.reading import Chunk, Outcome, Range, Throttle, read_range
from brokerset_spark.stores.units import LEDGER_UNIT, QUEUE

TASK: Final = "brokerset_spark.jobs.migrate.checking:check"

KEY: Final = np.dtype([("hash", "<i4"), ("offset", "<i8"), ("stored", "<i8")])
"""A key that a record has, on its way to an index file."""


def check(row: Row) -> Iterator[Result]:
    """See the module."""
    folder = open_folder(str(Path(row["staging"]) / "store"))
    entries: bool = row["ledger"]
    end = row["base"] + row["used"]
    wanted = Range(row["path"], row["base"], row["size"], row["start"], end, entries, end, True)
    outcome = Outcome(wanted.start, wanted.start)
    groups_seen = Groups()
    content = ContentDigest()
    units = _Units(row, groups_seen) if row["units"] else None
    keys: list[NDArray[Any]] = []
    ledger_units: list[NDArray[Any]] = []
    count = 0
    throttle = Throttle(row["rate"])
    for chunk in read_range(folder, wanted, outcome, crc=True, throttle=throttle, piece=PIECE):
        if not len(chunk.starts):
            continue
        content.add(chunk.data, chunk.starts, chunk.sizes)
        heads = KERNELS.heads(chunk.data, chunk.starts)
        numbers = groups_seen.number(chunk.data, heads)
        count += groups_seen.add(numbers, heads, chunk.sizes, np.ones(len(numbers), np.bool_))
        if units is not None:
            units.add(chunk, heads, numbers)
        if row["keys"]:
            keys.append(_keys(chunk, heads, groups_seen, numbers))
        if entries:
            ledger_units.append(_ledger_units(chunk))
    folder.close()
    files = []
    groups: list[list[Any]] = []
    if units is not None:
        groups, parts = units.sorted()
        files.append(write_scratch(row["staging"], row["units"], parts, throttle))
    if row["keys"]:
        files.append(write_scratch(row["staging"], row["keys"], keys, throttle))
    if entries:
        files.append(write_scratch(row["staging"], row["ledgerUnits"], ledger_units, throttle))
    yield Result(
        {
            "key": row["key"],
            "count": count,
            "whole": outcome.end == end,
            "end": outcome.end,
            "tallies": tallies.to_rows(groups_seen.tallies()),
            "content": content.hexdigest(),
            "groups": groups,
            "keyCount": sum(map(len, keys)),
            "bytesRead": end - row["start"],
            "files": files,
        }
    )


class _Units:
    """Queue units of a file of the log, sorted by queue in the end."""

    def __init__(self, row: Row, groups: Groups) -> None:
        self._without = frozenset(row["withoutQueue"])
        self._delays: list[int] = row["delays"]
        self._groups = groups
        self._has_queue = np.empty(0, np.bool_)
        self._is_delayed = np.empty(0, np.bool_)
        self._parts: list[tuple[Int64s, Int64s, NDArray[Any]]] = []

    def add(self, chunk: Chunk, heads: Heads, numbers: Int64s) -> None:
        """Take in the records of a chunk; those of prepared and rolled back transactions have no unit."""
        self._learn()
        wanted = is_dispatched(heads) & self._has_queue[numbers]
        units = np.empty(len(numbers), QUEUE.dtype)
        units["offset"], units["size"] = heads.offset, chunk.sizes
        delayed = np.flatnonzero(self._is_delayed[numbers])
        units["tags"], _ = tags_codes(chunk.data, heads, delayed, self._delays)
        queue_offsets = heads.queue_offset
        if not wanted.all():
            rows = np.flatnonzero(wanted)
            numbers, queue_offsets, units = numbers[rows], queue_offsets[rows], units[rows]
        self._parts.append((numbers, queue_offsets, units))

    def _learn(self) -> None:
        """What is to be known of groups that have appeared since."""
        more = self._groups.queues[len(self._has_queue) :]
        if more:
            has_queue = np.array([topic not in self._without for topic, _ in more], np.bool_)
            is_delayed = np.array([topic == SCHEDULE_TOPIC for topic, _ in more], np.bool_)
            self._has_queue = np.concatenate((self._has_queue, has_queue))
            self._is_delayed = np.concatenate((self._is_delayed, is_delayed))

    def sorted(self) -> tuple[list[list[Any]], list[NDArray[Any]]]:
        """Queues ([topic, queue id, first row, rows]), and the units and queue offsets of all of them."""
        if not self._parts:
            return [], []
        numbers, queue_offsets, units = (np.concatenate([part[i] for part in self._parts]) for i in range(3))
        queues = self._groups.queues
        small = len(queues) <= np.iinfo(np.uint16).max  # numpy sorts those by radix, much faster
        order = np.argsort(numbers.astype(np.uint16) if small else numbers, kind="stable")
        counts = np.bincount(numbers, minlength=len(queues))
        starts = np.cumsum(counts) - counts
        groups = [
            [*queues[group], start, count]
            for group, (start, count) in enumerate(zip(starts.tolist(), counts.tolist(), strict=True))
            if count
        ]
        return groups, [units.astype(QUEUE.dtype)[order], queue_offsets[order].astype(np.int64)]


def _keys(chunk: Chunk, heads: Heads, groups: Groups, numbers: Int64s) -> NDArray[Any]:
    """The keys of the records of a chunk, in the order of the index."""
    topics = np.array(groups.topics, np.int64)[numbers]
    keys = index_keys(chunk.data, heads, groups.names, topics)
    found = np.empty(len(keys.rows), KEY)
    found["hash"], found["offset"] = keys.hashes, heads.offset[keys.rows]
    found["stored"] = heads.store_timestamp[keys.rows]
    return found


def _ledger_units(chunk: Chunk) -> NDArray[Any]:
    assert chunk.indexes is not None, "the log is a DLedger"
    assert chunk.terms is not None, "the log is a DLedger"
    found = np.empty(len(chunk.starts), LEDGER_UNIT)
    found["magic"] = MAGIC_NORMAL
    found["position"] = chunk.base + chunk.starts - ENTRY_HEAD_SIZE
    found["size"] = chunk.sizes + ENTRY_HEAD_SIZE
    found["index"], found["term"] = chunk.indexes, chunk.terms
    return found
