"""A task: pulls ranges of queues, and says what is missing in them.

`RangeReader` is the same for the wire source and the lake export. What they do about a loss, or about a
broker that does not give what was planned, is their policy.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from brokerset_client.calls import PulledRecords, PullStatus
from brokerset_client.errors import ClientError, RequestRefused, TopicNotFound
from brokerset_client.retry import Backoff
from brokerset_protocol.bodies.routes import MASTER_ID
from brokerset_protocol.codes import ResponseCode
from brokerset_spark.kernels import KERNELS
from brokerset_spark.kernels.contract import Heads, Int32s, Int64s
from brokerset_spark.stores.reading import Chunk
from brokerset_spark.topics.client_thread import ClientThread, client_of
from brokerset_spark.topics.columns import WireBatches
from brokerset_spark.topics.offsets import Mark, QueueKey
from brokerset_spark.topics.options import ReadFrom, SourceOptions
from brokerset_spark.topics.planning import Range
from brokerset_spark.topics.pulls import pull_at, reader

_LOG: Final = logging.getLogger("brokerset_spark")
TROUBLE: Final = Backoff(first_ms=50, factor=1.6, max_ms=2000)
SUSPEND_MS: Final = 1000
"""How long a broker may wait for a record that it was said to have."""

BATCH_BYTES: Final = 2 << 20
"""Answers are put together to about so many bytes before columns are made of them."""

GONE_SECONDS: Final = 5.0
"""How long a topic is missing before that is believed: a broker that starts registers its topics late."""

AHEAD: Final = 4
"""Ranges of a task that are pulled at the same time."""


class DataLost(ValueError):
    """Records that were planned to be read are not there any more."""


class TopicGone(Exception):
    """Brokers say for some time that the topic does not exist."""


class Loss(Enum):
    """Why records of a range are not read."""

    EXPIRED = auto()
    GAP = auto()
    """No record has these offsets, and others behind them are there."""
    ENDED = auto()
    """The queue ends before them, for as long as the policy waited."""
    RECREATED = auto()
    """The record before the range is another one: the range is one of another queue of the same name."""
    TOPIC_GONE = auto()


class Policy(Protocol):
    """What a reader does about what it cannot read. Both methods may raise, which ends the range."""

    @property
    def read_from(self) -> ReadFrom:
        """Which replicas are asked."""

    @property
    def patience_seconds(self) -> float:
        """How long one pull is tried."""

    def lost(self, key: QueueKey, kind: Loss, first: int, last: int, text: str) -> None:
        """Records `[first, last)` are not read. If this returns, the reader goes on behind them."""

    def late(self, key: QueueKey, place: int, end: int, last: ClientError | PulledRecords) -> None:
        """Patience is over, and this was the last failure, or the last answer without the record at `place`.
        If this returns, an answer is believed, and a failure is raised."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What some pulls of one queue gave, one behind the other."""

    parts: list[bytes]
    next: int
    """Where to go on."""

    without: PulledRecords | None = None
    """The last answer, if it had no records."""


@dataclass(frozen=True, slots=True)
class QueryPolicy:
    """Of a query: a loss fails it, or is a warning, as `failOnDataLoss` says."""

    options: SourceOptions

    @property
    def read_from(self) -> ReadFrom:
        """`readFrom`."""
        return self.options.read_from

    @property
    def patience_seconds(self) -> float:
        """`fetchTimeoutSeconds`."""
        return self.options.fetch_seconds

    def lost(self, key: QueueKey, kind: Loss, first: int, last: int, text: str) -> None:
        """DataLost, or a warning."""
        said = f"{key}: {text}"
        if self.options.fail_on_data_loss:
            raise DataLost(f"{said}. Start the query again, or read what is left with failOnDataLoss=false")
        _LOG.warning("%s; going on with what there is (failOnDataLoss=false)", said)

    def late(self, key: QueueKey, place: int, end: int, last: ClientError | PulledRecords) -> None:
        """Whatever came last is the last word."""


def read_ranges(
    ranges: Sequence[Range], options: SourceOptions, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Batches of all ranges. DataLost as `failOnDataLoss` says; ClientError after `fetchTimeoutSeconds`."""
    client, policy = client_of(options.name_servers), QueryPolicy(options)
    waiting = deque(ranges)
    readers: deque[RangeReader] = deque()
    try:
        while waiting or readers:
            while waiting and len(readers) < AHEAD:
                readers.append(RangeReader(client, waiting.popleft(), policy))
            current = readers[0]
            batches = WireBatches(schema, current.range, fail_on_bad_body=options.fail_on_bad_body)
            for chunk in current.chunks():
                yield batches.build(chunk)
            readers.popleft()
    finally:
        for each in readers:  # a task that ends early leaves no pulls behind: its process is used again
            each.close()


class RangeReader:
    """Reads one range; the next pull is on its way while the caller works on what came."""

    def __init__(self, client: ClientThread, wanted: Range, policy: Policy) -> None:
        self.range = wanted
        self._client, self._instance, self._policy = client, client.instance, policy
        self._next = wanted.start - 1 if wanted.mark is not None else wanted.start
        """The next offset to ask for; one before the range if there is a mark to compare."""

        self._suggested = MASTER_ID
        self._turn = 0
        """Of the replicas that may be asked, by failures."""

        self._ask_master = False
        """Whether a slave had nothing: the master has the last word."""

        self._ahead: Future[Answers] | None = client.begin(self._gather(self._next))

    def chunks(self) -> Iterator[Chunk]:
        """Whole runs of records in order, several answers together."""
        while self._next < self.range.end:
            begin = max(self._next, self.range.start)
            found = self._taken()
            if found.without is None:
                self._begin_next()
            if found.parts:
                chunk = self._chunk(found.parts, begin)
                if len(chunk.starts):
                    yield chunk
            if found.without is not None and self._next < self.range.end:
                self._passed_over(found.without)
                self._begin_next()

    def close(self) -> None:
        """Ends the pull that is on its way."""
        if self._ahead is not None:
            self._ahead.cancel()

    def _taken(self) -> Answers:
        assert self._ahead is not None
        try:
            found = self._ahead.result()
        except TopicGone as error:
            self._lost(Loss.TOPIC_GONE, self._next, self.range.end, str(error))
            found = Answers([], self.range.end)
        self._next = found.next
        return found

    def _begin_next(self) -> None:
        more = self._next < self.range.end
        self._ahead = self._client.begin(self._gather(self._next)) if more else None

    def _chunk(self, parts: list[bytes], begin: int) -> Chunk:
        """The records of the range among these answers; what is missing is lost. ValueError for no run, or
        a damaged record."""
        raw = b"".join(parts)
        data = np.frombuffer(raw, np.uint8)
        try:
            starts, sizes, heads = whole_records(raw)
        except ValueError as error:
            raise ValueError(
                f"{self.range.key}, pulled from offset {begin} on: {error}; `brokerset store verify` on the "
                "broker's machine says more"
            ) from error
        offsets, mark = heads.queue_offset, self.range.mark
        if mark is not None and len(offsets) and offsets[0] == self.range.start - 1:
            seen = Mark(int(heads.store_timestamp[0]), int(heads.body_crc[0]))
            if not mark.fits(seen):
                self._lost(
                    Loss.RECREATED, self.range.start, self.range.end,
                    f"the record before offset {self.range.start} is another one than when the range was "
                    "planned: the topic was deleted and created again, or the store was replaced",
                )  # fmt: skip
                self.close()  # what is there belongs to another queue, and is planned as such
                self._next, self._ahead = self.range.end, None
                return Chunk(data, 0, starts[:0], sizes[:0], begin=0, end=0)
        try:
            kept, gaps = sifted(offsets, begin, min(self._next, self.range.end))
        except ValueError as error:
            raise ValueError(f"{self.range.key}: {error}") from error
        for first, last in gaps:
            text = f"records {first} to {last} are missing, and those behind them are there"
            self._lost(Loss.GAP, first, last, text)
        return Chunk(data, 0, starts[kept], sizes[kept], begin=0, end=len(data))

    def _passed_over(self, found: PulledRecords) -> None:
        """An answer without records that says where to go on."""
        start, end = self.range.start, self.range.end
        first, there = max(self._next, start), min(max(found.next_queue_offset, start), end)
        bounds = f"the queue has {found.min_queue_offset} to {found.max_queue_offset}"
        if found.next_queue_offset <= self._next:
            text = f"records {first} to {end} are not there any more: {bounds}"
            self._lost(Loss.ENDED, first, end, text)
            self._next = end
            return
        if first < there:
            kind = Loss.EXPIRED if found.min_queue_offset > first else Loss.GAP
            why = f"they expired ({bounds})" if kind is Loss.EXPIRED else bounds
            self._lost(kind, first, there, f"records {first} to {there} are not there any more: {why}")
        self._next = found.next_queue_offset

    def _lost(self, kind: Loss, first: int, last: int, text: str) -> None:
        if not (self.range.holes and kind in (Loss.GAP, Loss.EXPIRED)):
            self._policy.lost(self.range.key, kind, first, last, text)

    # -- on the client's loop -----------------------------------------------------------------------------

    async def _gather(self, place: int) -> Answers:
        """Pulls one after the other, up to `BATCH_BYTES`, so that threads change once for many answers."""
        parts: list[bytes] = []
        size = 0
        while size < BATCH_BYTES and place < self.range.end:
            try:
                found = await self._pull(place)
            except (ClientError, TopicGone):
                if parts:
                    break  # what came is used first; the next pull says it again
                raise
            if found.status is not PullStatus.FOUND:
                return Answers(parts, place, found)
            parts.append(found.body)
            size += len(found.body)
            place = found.next_queue_offset
        return Answers(parts, place)

    async def _pull(self, place: int) -> PulledRecords:
        """The next records, from whoever has them. An answer without records is the last word: it is the
        master's, and either says that they are gone, or patience is over. Raises `ClientError`, and what
        `late` raises."""
        key, end = self.range.key, self.range.end
        deadline = time.monotonic() + self._policy.patience_seconds
        failures = 0
        gone_at: float | None = None
        while True:
            last: ClientError | PulledRecords
            try:
                address, is_master = await reader(
                    self._instance,
                    key,
                    "master" if self._ask_master else self._policy.read_from,
                    suggested=self._suggested,
                    turn=self._turn,
                )
                suspend_ms = SUSPEND_MS if is_master else 0
                found = last = await pull_at(self._instance, address, key, place, suspend_ms=suspend_ms)
            except ClientError as error:
                last = error
                self._turn += self._suggested == MASTER_ID  # a failed suggestion is no turn of the others
                self._suggested, self._ask_master = MASTER_ID, False
                if not _says_gone(error):
                    gone_at = None
                elif gone_at is None:
                    gone_at = time.monotonic()
                elif time.monotonic() > gone_at + GONE_SECONDS:
                    raise TopicGone(f"topic {key.topic} does not exist there any more") from error
            else:
                if found.status is PullStatus.FOUND:
                    if self._turn == 0 and self._policy.read_from == "auto":
                        self._suggested = found.suggested_broker_id
                    self._ask_master = False
                    return found
                if not is_master:
                    self._ask_master = True  # a slave may not have it yet, or not any more
                    continue
                is_there = found.max_queue_offset >= end  # else a new master may still be reading what it has
                if found.min_queue_offset > place or (is_there and found.next_queue_offset > place):
                    return found
            failures += 1
            if time.monotonic() > deadline:
                self._policy.late(key, place, end, last)
                if isinstance(last, ClientError):
                    raise last
                return last
            if failures in (1, 10) and isinstance(last, ClientError):
                _LOG.warning("%s: pull failed, trying again: %s", key, last)
            await asyncio.sleep(TROUBLE.delay_ms(failures) / 1000)
            if isinstance(last, ClientError) or failures % 8 == 0:
                self._instance.forget_route(key.topic)


def sifted(offsets: Int64s, begin: int, until: int) -> tuple[Int64s, list[tuple[int, int]]]:
    """Which of the records with these offsets are in `[begin, until)`, by number, and the runs of it that
    are missing. ValueError for offsets that do not ascend."""
    kept = np.flatnonzero((offsets >= begin) & (offsets < until))
    edges = np.concatenate(([begin - 1], offsets[kept], [until]))
    steps = np.diff(edges)
    if len(kept) and (steps <= 0).any():
        at = int(np.argmax(steps <= 0))
        raise ValueError(f"a broker's answer has record {edges[at + 1]} behind record {edges[at]}")
    return kept, [(int(edges[at]) + 1, int(edges[at + 1])) for at in np.flatnonzero(steps > 1)]


def _says_gone(error: ClientError) -> bool:
    missing = isinstance(error, RequestRefused) and error.code == ResponseCode.TOPIC_NOT_EXIST
    return missing or isinstance(error, TopicNotFound)


def whole_records(raw: bytes) -> tuple[Int64s, Int32s, Heads]:
    """Starts, sizes and heads of the records of a pull answer. ValueError for what is no run of records, or
    one whose inner lengths do not add up: its fields would be bytes of another one."""
    starts = record_starts(raw)
    sizes = np.diff(np.append(starts, len(raw))).astype(np.int32)
    heads = KERNELS.heads(np.frombuffer(raw, np.uint8), starts)
    wrong = heads.properties + heads.properties_size != starts + sizes
    if wrong.any():
        at = int(np.argmax(wrong))
        said = f"the lengths inside of record {heads.queue_offset[at]} do not add up to its {sizes[at]} bytes"
        raise ValueError(said)
    return starts, sizes, heads


def record_starts(raw: bytes) -> Int64s:
    """Where the records of a pull answer begin. ValueError for what is no run of records."""
    size = len(raw)
    starts, at = [], 0
    while at < size:
        length = int.from_bytes(raw[at : at + 4], "big")
        if length < 88 or at + length > size:
            raise ValueError(f"a pull answer of {size} bytes has a record of {length} bytes at {at}")
        starts.append(at)
        at += length
    return np.array(starts, np.int64)
