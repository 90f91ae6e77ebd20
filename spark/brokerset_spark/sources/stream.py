"""`rocketmq-store` as a stream: follows logs that brokers write.

The offset of a stream is, for each store, an offset of its log at which a record begins or will begin. A
batch is what lies between two of them, so it is the same whenever it is read again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from brokerset_spark.sources.columns import arrow_schema
from brokerset_spark.sources.messages import PiecePartition
from brokerset_spark.sources.options import LATEST, MessageOptions, OptionsError
from brokerset_spark.sources.plan import Piece, StorePlan, cut, expand, gaps, open_store, plan_store, within
from brokerset_spark.sources.reader import DataLost, read_piece
from brokerset_spark.stores.folder import StoreFolder
from brokerset_spark.stores.reading import Range, split
from brokerset_spark.stores.searching import find_start
from brokerset_spark.stores.tail import Bound, align

Offsets = dict[str, int]


class MessageStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches in one process beside the driver; what it remembers only saves work."""

    def __init__(self, options: MessageOptions, schema: StructType) -> None:
        problems = []
        if options.ending_offsets != LATEST or options.wanted.end_offset < 2**63 - 1:
            problems.append("a stream has no end: leave endingOffsets and endingCommitLogOffset out")
        if options.on_corrupt == "stop":
            problems.append(
                "onCorrupt=stop is for batch queries: a stream would stand still; use fail or skip"
            )
        if problems:
            raise OptionsError("a stream of rocketmq-store", problems)
        self._options = options
        self._schema: pa.Schema = arrow_schema(schema)
        self._ends: Offsets = {}
        """Where walking ended last, to go on from there."""

        self._target: Offsets | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query begins: `startingOffsets` or the other cuts."""
        found: Offsets = {}
        for url in expand(self._options.paths):
            folder, facts = open_store(url)
            try:
                store = plan_store(folder, facts, self._options)
                if self._options.starting_offsets == LATEST:
                    found[url] = self._end(folder, store)
                else:
                    _, start, _ = cut(folder, store, self._options)
                    found[url] = record_at(folder, store, start)
            finally:
                folder.close()
        return found

    def getDefaultReadLimit(self) -> ReadLimit:
        """`maxBytesPerTrigger`, for each store."""
        limit = self._options.bytes_per_trigger
        return ReadMaxBytes(limit) if limit else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """How far the next batch goes: for each store to the end, or to the first record behind the limit."""
        found: Offsets = {url: int(offset) for url, offset in start.items()}
        for url in expand(self._options.paths):
            folder, facts = open_store(url)
            try:
                store = plan_store(folder, facts, self._options, since=self._ends.get(url))
                begin = found.get(url, store.first)
                end = self._end(folder, store)
                if self._target is not None:
                    end = min(end, self._target.get(url, begin))
                if isinstance(limit, ReadMaxBytes) and end - begin > limit.max_bytes:
                    end = min(end, record_at(folder, store, begin + limit.max_bytes))
                found[url] = max(begin, end)
            finally:
                folder.close()
        return found

    def prepareForTriggerAvailableNow(self) -> None:
        """Everything that is there now, and nothing that comes later."""
        self._target = None
        self._target = self.latestOffset({}, ReadAllAvailable())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Ranges between two offsets. DataLost if the log does not reach back so far any more."""
        found: list[InputPartition] = []
        for url, until in end.items():
            if start.get(url) == until:
                continue
            folder, facts = open_store(url)
            try:
                store = plan_store(folder, facts, self._options, bound=Bound(int(until), "stream"))
                begin = int(start.get(url, store.first))
                pieces = stream_pieces(folder, store, self._options, begin)
                found += [PiecePartition(each) for each in pieces]
            finally:
                folder.close()
        return found

    def _end(self, folder: StoreFolder, store: StorePlan) -> int:
        """Where the log ends, at the end of a record; remembered, so that the next walk begins there."""
        end = store.bound.offset
        if store.logs and store.bound.reason not in ("crc", "end"):
            log, entries = store.logs[-1]
            end = align(folder, log, end, since=self._ends.get(store.url), entries=entries)
        self._ends[store.url] = end
        return end

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Batches of one piece."""
        assert isinstance(partition, PiecePartition)
        return read_piece(partition.piece, self._options, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is kept: Spark's checkpoint has the offsets."""

    def stop(self) -> None:
        """Nothing is open between calls."""


def record_at(folder: StoreFolder, store: StorePlan, offset: int) -> int:
    """Offset of the first sure record at or behind an offset; the store's bound if there is none."""
    bound = store.bound.offset
    for log, entries in store.logs:
        for file in log.files:
            if file.end <= offset or file.base >= bound:
                continue
            if offset <= file.base:
                return file.base
            wanted = Range(file.path, file.base, file.size, offset, file.end, entries, bound)
            found = find_start(folder, wanted, offset)
            if found < wanted.limit:
                return found
    return bound


def stream_pieces(folder: StoreFolder, store: StorePlan, options: MessageOptions, begin: int) -> list[Piece]:
    """Pieces from `begin`, where a record begins, to the bound of the store. DataLost if the log begins
    later."""
    if begin < store.first:
        if options.fail_on_data_loss:
            raise DataLost(
                f"{store.url}: the stream is at {begin}, and the log begins at {store.first}: files expired "
                "before they were read. Go on behind them with failOnDataLoss=false"
            )
        begin = store.first
    wanted, _, _ = cut(folder, store, options)
    end = store.bound.offset
    found = []
    for log, entries in store.logs:
        missing = gaps(log, begin, end)
        if missing and options.fail_on_data_loss:
            path, start, until = missing[0]
            raise DataLost(f"{store.url}: the log has nothing from {start} to {until}, behind {path}")
        if missing:
            found.append(Piece(store.url, (), wanted, store.broker_name, store.epochs, missing))
        ranges = split(within(log.files), options.split_size, entries=entries, bound=end, start=begin)
        ranges = [replace(each, exact_start=each.start == begin) for each in ranges]
        found += [Piece(store.url, (each,), wanted, store.broker_name, store.epochs) for each in ranges]
    return found
