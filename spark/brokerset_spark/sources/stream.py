"""`rocketmq-store` as a stream: follows logs that brokers write.

The offset of a stream is, for each store, an offset of its log at which a record begins or will begin. A
batch is what lies between two of them, so it is the same whenever it is read again. With the offset goes a
mark of the last record before it (`marks`): a store that was cut or replaced is noticed, and fails the stream
unless `failOnDataLoss=false`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any, Final

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
from brokerset_spark.sources.options import LATEST, MessageOptions, OptionsError
from brokerset_spark.sources.plan import Piece, StorePlan, cut, expand, make_pieces, opened_store, plan_store
from brokerset_spark.sources.reader import DataLost, PiecePartition, read_piece
from brokerset_spark.sources.replicas import one_of_each
from brokerset_spark.sources.stream_positions import SUFFIX, MarkState, check_mark, make_mark, mark_in, places
from brokerset_spark.stores.ending import LogWalk
from brokerset_spark.stores.folder import StoreFolder
from brokerset_spark.stores.reading import Range, gaps
from brokerset_spark.stores.searching import find_start
from brokerset_spark.stores.tail import Bound, align, state_of

_LOG: Final = logging.getLogger("brokerset_spark")
Offsets = dict[str, int]


class MessageStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches in one process next to the driver; what it remembers only saves work."""

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

        self._urls: list[str] = []
        """The stores that were seen to be of different groups."""

        self._target: Offsets | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query begins: `startingOffsets` or the other cuts."""
        found: dict[str, Any] = {}
        for url in one_of_each(expand(self._options.paths), self._options.replicas, stream=True):
            with opened_store(url) as (folder, facts):
                store = plan_store(folder, facts, self._options)
                if self._options.starting_offsets == LATEST:
                    start = self._end(folder, store)
                else:
                    _, start, _ = cut(folder, store, self._options)
                    start = record_at(folder, store, start)
                found |= _offset(folder, store, url, start)
        return found

    def getDefaultReadLimit(self) -> ReadLimit:
        """`maxBytesPerTrigger`, for each store."""
        limit = self._options.bytes_per_trigger
        return ReadMaxBytes(limit) if limit else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """How far the next batch goes: for each store to the end, or to the first record behind the limit.

        DataLost if a store is not the one any more that the stream has read. With `failOnDataLoss=false` it
        goes on with what there is, which may lie before `start`.
        """
        found: dict[str, Any] = dict(start)
        urls = expand(self._options.paths)
        if self._urls != urls:  # also after a restart, and when a store has come
            one_of_each(urls, self._options.replicas, stream=True)
            self._urls = urls
        for url in places(start):
            if url not in urls:
                self._lost(f"{url}: the stream has read it, and it is gone")
        for url in urls:
            with opened_store(url) as (folder, facts):
                store = plan_store(folder, facts, self._options, since=self._ends.get(url))
                if store.bound.lost is not None and not store.bound.lost.crash:
                    self._lost(f"{url}: {store.bound.lost.text()}")
                begin = places(start).get(url, store.first)
                seen = check_mark(folder, store.logs, mark_in(start, url))
                if (
                    seen is MarkState.CHANGED and url in self._ends
                ):  # where walking ended last means nothing now
                    del self._ends[url]
                    store = plan_store(folder, facts, self._options)
                end = self._end(folder, store)
                if self._target is not None:
                    end = min(end, self._target.get(url, begin))
                if self._is_lost(folder, store, begin, end, seen):
                    begin = min(begin, end)
                else:
                    end = max(begin, end)
                if isinstance(limit, ReadMaxBytes) and end - begin > limit.max_bytes:
                    end = min(end, record_at(folder, store, begin + limit.max_bytes))
                if end != places(start).get(url):
                    found.pop(url + SUFFIX, None)
                    found |= _offset(folder, store, url, end)
        return found

    def _is_lost(self, folder: StoreFolder, store: StorePlan, begin: int, end: int, seen: MarkState) -> bool:
        """Whether the log is not the one any more that was read up to `begin`; DataLost if that is to fail.

        An end before `begin` alone proves nothing: what is confirmed may be less for a while, and the last
        record of a store is held back when its broker starts.
        """
        if seen is MarkState.CHANGED:
            self._lost(
                f"{store.url}: the record before {begin}, where the stream is, is another one now: the log "
                f"was cut and has grown again, or the store was replaced; the log ends at {end}"
            )
            return True
        if end >= begin:
            return False
        last = (
            self._log_end(folder, store)
            if seen is MarkState.UNKNOWN or store.bound.reason == "end"
            else begin
        )
        if last < begin:
            self._lost(
                f"{store.url}: the stream is at {begin}, and the log ends at {last}: it was cut, or the "
                "store was replaced"
            )
            return True
        _LOG.info("%s: read up to %d; sure is only %d at the moment", store.url, begin, end)
        return False

    @staticmethod
    def _log_end(folder: StoreFolder, store: StorePlan) -> int:
        """Where the log really ends, whatever of it is sure."""
        served = folder.max_offset()
        if served is not None:
            return served
        if store.bound.end is not None:
            return max(store.bound.end.offset, store.bound.offset)
        if not store.logs:
            return 0
        log, entries = store.logs[-1]
        return LogWalk(folder, log, entries).find_end(state_of(folder, store.facts)).offset

    def _lost(self, text: str) -> None:
        """DataLost, or a warning."""
        if self._options.fail_on_data_loss:
            raise DataLost(
                f"{text}. Inspect the store, then start again with another checkpointLocation, or go on "
                "with what there is with failOnDataLoss=false"
            )
        _LOG.warning("%s; going on with what there is (failOnDataLoss=false)", text)

    def prepareForTriggerAvailableNow(self) -> None:
        """Everything that is there now, and nothing that comes later."""
        self._target = None
        self._target = places(self.latestOffset({}, ReadAllAvailable()))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Ranges between two offsets. DataLost if the log does not reach back so far any more, or is another
        one than when the offsets were told."""
        found: list[InputPartition] = []
        for url, until in places(end).items():
            if places(start).get(url) == until:
                continue
            with opened_store(url) as (folder, facts):
                store = plan_store(folder, facts, self._options, bound=Bound(until, "stream"))
                begin = self._begin(folder, store, url, start, until)
                if check_mark(folder, store.logs, mark_in(end, url)) is MarkState.CHANGED:
                    self._lost(
                        f"{url}: the record before {until} is another one than when the batch was planned"
                    )
                if begin < until:
                    pieces = stream_pieces(folder, store, self._options, begin)
                    found += [PiecePartition(each) for each in pieces]
        return found

    def _begin(
        self, folder: StoreFolder, store: StorePlan, url: str, start: dict[str, Any], until: int
    ) -> int:
        """Where a batch begins: if the log is another one, with the next sure record."""
        begin = places(start).get(url, store.first)
        changed = check_mark(folder, store.logs, mark_in(start, url)) is MarkState.CHANGED
        if changed or begin > until:
            self._lost(f"{store.url}: the log was cut before {begin}, or the store was replaced")
            return record_at(folder, store, begin) if begin < until else until
        return begin

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


def _offset(folder: StoreFolder, store: StorePlan, url: str, offset: int) -> dict[str, Any]:
    """A store's part of a stream's offset."""
    mark = make_mark(folder, store.logs, offset)
    return {url: offset} | ({url + SUFFIX: mark.encode()} if mark else {})


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
    missing = [gap for log, _ in store.logs for gap in gaps(log, begin, end)]
    if missing and options.fail_on_data_loss:
        path, start, until = missing[0]
        raise DataLost(f"{store.url}: the log has nothing from {start} to {until}, behind {path}")
    return make_pieces(store, options, wanted, begin, end, missing, exact_start=True)
