"""`rocketmq-store` as a stream: follows logs that brokers write.

The offset of a stream is, for each store, an offset of its log at which a record begins or will begin. A
batch is what lies between two of them, so it is the same whenever it is read again. With the offset goes a
mark of the last record before it (`marks`): a store that was cut or replaced is noticed, and fails the stream
unless `failOnDataLoss=false`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
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
from brokerset_spark.sources.option_values import OptionsError
from brokerset_spark.sources.options import LATEST, MessageOptions
from brokerset_spark.sources.plan import Piece, StorePlan, cut, make_pieces, opened_store, plan_store
from brokerset_spark.sources.reader import DataLost, PiecePartition, read_piece
from brokerset_spark.sources.stream_groups import Pause, StreamSource, StreamSources, find_sources, there_now
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
        if _has_latest_queues(options):
            # Each batch would take it for the latest at that time, and leave out what came since.
            problems.append(
                "startingOffsets: -1 for single queues is for batch queries; use latest, or offsets"
            )
        if problems:
            raise OptionsError("a stream of rocketmq-store", problems)
        self._options = options
        self._schema: pa.Schema = arrow_schema(schema)
        self._ends: Offsets = {}
        """Where walking ended last, to go on from there."""

        self._urls: list[str] = []
        self._sources = StreamSources()
        """What those stores are."""

        self._pause = Pause()
        self._current: dict[str, str] = {}
        """Which replica of a group is being read."""

        self._target: Offsets | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query begins: `startingOffsets` or the other cuts.

        OSError if a store cannot be opened: whose messages would be left out is not known.
        """
        self._refresh()
        if self._sources.missing:
            raise self._sources.missing[0]
        found: dict[str, Any] = {}
        for source in self._sources.found:
            with opened_store(source.urls[0]) as (folder, facts):
                store = plan_store(folder, facts, self._options)
                if self._options.starting_offsets == LATEST:
                    start = self._end(folder, store)
                else:
                    _, start, _ = cut(folder, store, self._options)
                    start = record_at(folder, store, start)
                found |= _offset(folder, store, source.key, start)
        return found

    def getDefaultReadLimit(self) -> ReadLimit:
        """`maxBytesPerTrigger`, for each store."""
        limit = self._options.bytes_per_trigger
        return ReadMaxBytes(limit) if limit else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """How far the next batch goes: for each group to the end, or to the first record behind the limit.

        DataLost if no replica of a group has the log any more that the stream has read. With
        `failOnDataLoss=false` it goes on with what there is, which may lie before `start`.
        """
        paused = self._refresh(start)
        start = self._sources.keyed(start)
        found: dict[str, Any] = dict(start)
        keys = {each.key for each in self._sources.found}
        for key in places(start):
            if key not in keys:
                if self._sources.missing:
                    raise self._sources.missing[0]
                self._lost(f"{key}: the stream has read it, and it is gone")
        sources = self._sources.found
        try:
            steps = [self._best_step(source, start, limit) for source in sources]
        except OSError:
            if not paused:
                raise
            self._pause = Pause()  # the replicas that were left alone may be back
            return self.latestOffset(start, limit)
        for source, step in zip(sources, steps, strict=True):
            for each in step.problems:
                self._lost(each)
            if step.offset is not None:
                found.pop(source.key + SUFFIX, None)
                found |= step.offset
        return found

    def _refresh(self, start: dict[str, Any] | None = None) -> bool:
        """Look at the stores again when they are others, or when one could not be opened: after a pause if
        there is a replica of each group in `start`. Whether that pause is not over."""
        urls, missing = there_now(self._options.paths)
        same = self._urls == urls
        missing += self._sources.missing
        if same and missing and start is not None and self._sources.covers(start) and not self._pause.over:
            return True
        if not same or missing:
            begun = time.monotonic()
            self._sources = find_sources(self._options.paths, self._options.replicas)
            self._pause.begin(begun)
            self._urls = urls
            for each in self._sources.missing:
                _LOG.warning(
                    "a store cannot be opened, and is left out while another replica has its log: %s", each
                )
        return False

    def _candidates(self, source: StreamSource) -> list[str]:
        """Replicas of a group, the one that is being read first."""
        now = self._current.get(source.key)
        return sorted(source.urls, key=lambda url: url != now)

    def _best_step(self, source: StreamSource, start: dict[str, Any], limit: ReadLimit) -> _Step:
        """The step that the replica in use makes; if it is gone, changed, or has nothing new, that of the
        one that reaches furthest. OSError if none can be opened."""
        best: _Step | None = None
        gone: OSError | None = None
        for url in self._candidates(source):
            begun = time.monotonic()
            try:
                step = self._step(source.key, url, start, limit)
            except OSError as error:
                gone = error
                self._leave(url, error, begun)
                _LOG.warning("%s cannot be read now: %s", url, error)
                continue
            if best is None or (not step.problems, step.end) > (not best.problems, best.end):
                best = step
            if not best.problems and best.offset is not None:
                break
        if best is None:
            assert gone is not None, "a source has a replica"
            raise gone
        before = self._current.get(source.key)
        if before is not None and before != best.url:
            _LOG.warning("%s: going on from %s instead of %s", source.key, best.url, before)
        self._current[source.key] = best.url
        return best

    def _leave(self, url: str, error: OSError, begun: float) -> None:
        """Do without a replica until it is looked for again."""
        self._sources = self._sources.without(url, error)
        self._pause.begin(begun)

    def _step(self, key: str, url: str, start: dict[str, Any], limit: ReadLimit) -> _Step:
        """What one replica has to offer."""
        with opened_store(url) as (folder, facts):
            store = plan_store(folder, facts, self._options, since=self._ends.get(url))
            problems = []
            if store.bound.lost is not None and not store.bound.lost.crash:
                problems.append(f"{url}: {store.bound.lost.text()}")
            begin = places(start).get(key, store.first)
            seen = check_mark(folder, store.logs, mark_in(start, key))
            if seen is MarkState.CHANGED and url in self._ends:  # where walking ended last means nothing now
                del self._ends[url]
                store = plan_store(folder, facts, self._options)
            end = self._end(folder, store)
            if self._target is not None:
                end = min(end, self._target.get(key, begin))
            changed = self._changed(folder, store, begin, end, seen)
            if changed:
                problems.append(changed)
                begin = min(begin, end)
            else:
                end = max(begin, end)
            if isinstance(limit, ReadMaxBytes) and end - begin > limit.max_bytes:
                end = min(end, record_at(folder, store, begin + limit.max_bytes))
            moved = end != places(start).get(key)
            return _Step(url, end, tuple(problems), _offset(folder, store, key, end) if moved else None)

    def _changed(self, folder: StoreFolder, store: StorePlan, begin: int, end: int, seen: MarkState) -> str:
        """Why the log is not the one any more that was read up to `begin`; empty if it is.

        An end before `begin` alone proves nothing: what is confirmed may be less for a while, and the last
        record of a store is held back when its broker starts.
        """
        if seen is MarkState.CHANGED:
            return (
                f"{store.url}: the record before {begin}, where the stream is, is another one now: the log "
                f"was cut and has grown again, or the store was replaced; the log ends at {end}"
            )
        if end >= begin:
            return ""
        last = (
            self._log_end(folder, store)
            if seen is MarkState.UNKNOWN or store.bound.reason == "end"
            else begin
        )
        if last < begin:
            return (
                f"{store.url}: the stream is at {begin}, and the log ends at {last}: it was cut, or the "
                "store was replaced"
            )
        _LOG.info("%s: read up to %d; sure is only %d at the moment", store.url, begin, end)
        return ""

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
        """Ranges between two offsets, of a replica that has them.

        DataLost if none reaches back so far any more, or all are other logs than when the offsets were
        told.
        """
        if not self._sources.found:
            self._refresh()
        start, end = self._sources.keyed(start), self._sources.keyed(end)
        sources = {each.key: each for each in self._sources.found}
        found: list[InputPartition] = []
        for key, until in places(end).items():
            if places(start).get(key) == until:
                continue
            if key not in sources:
                if self._sources.missing:
                    raise self._sources.missing[0]
                self._lost(f"{key}: the stream has read it, and it is gone")
                continue
            url, others = self._replica_with(sources[key], start, end)
            with opened_store(url) as (folder, facts):
                store = plan_store(folder, facts, self._options, bound=Bound(until, "stream"))
                begin = self._begin(folder, store, key, start, until)
                if check_mark(folder, store.logs, mark_in(end, key)) is MarkState.CHANGED:
                    self._lost(
                        f"{url}: the record before {until} is another one than when the batch was planned"
                    )
                if begin < until:
                    pieces = stream_pieces(folder, store, self._options, begin)
                    found += [PiecePartition(replace(each, others=others)) for each in pieces]
        return found

    def _replica_with(
        self, source: StreamSource, start: dict[str, Any], end: dict[str, Any]
    ) -> tuple[str, tuple[str, ...]]:
        """A replica that has the batch, and the others that have it in the same files.

        If none has all of it, one that can be opened: it says what is wrong. OSError if none can be opened.
        """
        whole: dict[str, tuple[tuple[int, int], ...]] = {}
        openable: list[str] = []
        gone: OSError | None = None
        for url in self._candidates(source):
            begun = time.monotonic()
            try:
                with opened_store(url) as (folder, facts):
                    openable.append(url)
                    begin, until = places(start).get(source.key, facts.first), places(end)[source.key]
                    marks = [
                        check_mark(folder, facts.logs, mark_in(each, source.key)) for each in (start, end)
                    ]
                    known = mark_in(end, source.key) is not None
                    if MarkState.CHANGED in marks or (known and marks[1] is not MarkState.SAME):
                        continue
                    if not known and self._end(folder, plan_store(folder, facts, self._options)) < until:
                        continue  # an offset without a mark: its log must at least reach so far
                    if facts.first <= begin:
                        whole[url] = tuple(
                            (each.base, each.size) for log, _ in facts.logs for each in log.files
                        )
            except OSError as error:
                gone = error
                self._leave(url, error, begun)
        if not openable:
            assert gone is not None, "a source has a replica"
            raise gone
        chosen = next(iter(whole), openable[0])
        size = {each for _, each in whole.get(chosen, ())}
        others = (
            url for url, files in whole.items() if url != chosen and {each for _, each in files} == size
        )
        return chosen, tuple(others)

    def _begin(
        self, folder: StoreFolder, store: StorePlan, key: str, start: dict[str, Any], until: int
    ) -> int:
        """Where a batch begins: if the log is another one, with the next sure record."""
        begin = places(start).get(key, store.first)
        changed = check_mark(folder, store.logs, mark_in(start, key)) is MarkState.CHANGED
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


def _has_latest_queues(options: MessageOptions) -> bool:
    topics = options.starting_offsets
    return isinstance(topics, dict) and any(
        LATEST in queues.values() for brokers in topics.values() for queues in brokers.values()
    )


@dataclass(frozen=True, slots=True)
class _Step:
    """How far a replica takes the stream."""

    url: str
    end: int
    problems: tuple[str, ...]
    """Why its log is not the one that the stream has read, or has lost messages."""

    offset: dict[str, Any] | None
    """The group's part of the stream's offset; None if it stays."""


def _offset(folder: StoreFolder, store: StorePlan, key: str, offset: int) -> dict[str, Any]:
    """A group's part of a stream's offset."""
    mark = make_mark(folder, store.logs, offset)
    return {key: offset} | ({key + SUFFIX: mark.encode()} if mark else {})


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
