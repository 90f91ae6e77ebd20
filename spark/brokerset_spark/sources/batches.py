"""Records of a chunk as one Arrow batch: only the columns that were asked for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from brokerset_formats.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from brokerset_formats.records import SysFlag
from brokerset_spark.kernels import KERNELS, Heads, Numbered, Stop, Texts
from brokerset_spark.kernels.contract import Bools, Int64s
from brokerset_spark.sources import gathering
from brokerset_spark.stores.reading import Chunk

INT_MAX: Final = 2**31 - 1
DAY_MS: Final = 86_400_000
_NO_DAY: Final = -(2**63)


@dataclass(frozen=True, slots=True)
class Filter:
    """Which messages are wanted. Everything is compared before a column is built."""

    topics: tuple[str, ...] = ()
    """All if empty."""

    topic_pattern: str = ""
    """A regular expression that the whole topic matches."""

    queue_ids: tuple[int, ...] = ()
    system_topics: bool = False
    start_offset: int = 0
    end_offset: int = 2**63 - 1
    """Of the log: records that begin in `[start_offset, end_offset)`."""

    start_ms: int = -(2**63)
    end_ms: int = 2**63 - 1
    """Store times in `[start_ms, end_ms)`."""

    queue_starts: tuple[tuple[str, int, int], ...] = ()
    """First queue offset of a topic's queue; others from their beginning."""

    queue_ends: tuple[tuple[str, int, int], ...] = ()
    """Queue offset behind the last; others to their end."""

    @property
    def by_topic(self) -> bool:
        """Whether topics must be looked at."""
        limits = self.queue_starts or self.queue_ends
        return bool(self.topics or self.topic_pattern or not self.system_topics or limits)

    @property
    def by_head(self) -> bool:
        """Whether fixed fields must be looked at."""
        return (
            bool(self.queue_ids or self.queue_starts or self.queue_ends)
            or self.start_ms > -(2**63)
            or self.end_ms < 2**63 - 1
        )


@dataclass(frozen=True, slots=True)
class Source:
    """What is the same for all records of a range."""

    file: str
    broker_name: str | None = None
    epochs: tuple[tuple[int, int], ...] = ()
    """Epoch and its first offset, ascending."""


BadBody = Callable[[int, bytes, str], bytes | None]
"""From the number of a record in its chunk, its body as stored, and what is wrong with it."""


class _Records:
    """Fields of the records of a chunk, each computed when it is first asked for."""

    def __init__(self, chunk: Chunk, names: tuple[bytes, ...]) -> None:
        """`names` are the properties that are wanted by name."""
        self.chunk, self.data, self.base = chunk, chunk.data, chunk.base
        self.starts, self.sizes = chunk.starts, chunk.sizes
        self._names = names

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def heads(self) -> Heads:
        return KERNELS.heads(self.data, self.starts)

    @cached_property
    def offsets(self) -> Int64s:
        return self.starts + self.base if self.chunk.offsets is None else self.chunk.offsets

    @cached_property
    def numbered_topics(self) -> Numbered:
        """Topics by number."""
        return KERNELS.number_texts(self.data, Texts(self.heads.topic, self.heads.topic_size))

    @cached_property
    def topic_names(self) -> list[str]:
        """The name to each number; damaged names may become the same text."""
        heads, firsts = self.heads, self.numbered_topics.firsts
        bounds = zip(heads.topic[firsts].tolist(), heads.topic_size[firsts].tolist(), strict=True)
        return [self.data[at : at + size].tobytes().decode(errors="replace") for at, size in bounds]

    @property
    def topics(self) -> pa.StringArray:
        return gathering.repeated(self.topic_names, self.numbered_topics.codes)

    @cached_property
    def properties(self) -> Texts:
        return Texts(self.heads.properties, self.heads.properties_size)

    @cached_property
    def _named(self) -> dict[bytes, Texts]:
        found = KERNELS.find_properties(self.data, self.heads, self._names)
        return dict(zip(self._names, found, strict=True))

    def property_text(self, name: bytes) -> pa.StringArray:
        """Value of one of the properties that are wanted."""
        return gathering.as_text(gathering.gather(self.data, self._named[name]))

    @cached_property
    def stored_by(self) -> Texts:
        """Storing hosts."""
        return gathering.host_texts(self.heads.store_host, _flag(self.heads, SysFlag.STORE_HOST_V6))

    @cached_property
    def born_at(self) -> Texts:
        """Producers."""
        return gathering.host_texts(self.heads.born_host, _flag(self.heads, SysFlag.BORN_HOST_V6))


class Batches:
    """Turns chunks into batches of one schema."""

    def __init__(
        self,
        schema: pa.Schema,
        source: Source,
        wanted: Filter,
        *,
        open_bodies: bool = False,
        bad_body: BadBody | None = None,
    ) -> None:
        """`open_bodies`: decompress. `bad_body` says what stands for one that cannot be opened; None:
        ValueError. Columns are found by name without regard to case."""
        self._schema, self.source, self._wanted = schema, source, wanted
        self._open_bodies, self._bad_body = open_bodies, bad_body
        self._columns = [(field, _COLUMNS[field.name.lower()]) for field in schema]
        names = [field.name.lower() for field in schema]
        self._names = tuple(_PROPERTIES[name] for name in names if name in _PROPERTIES)
        epochs = np.array(source.epochs, np.int64).reshape(-1, 2)
        self._epochs = epochs[:, 0].astype(np.int32), epochs[:, 1]

    def build(self, chunk: Chunk) -> pa.RecordBatch | None:
        """The wanted records of a chunk; None if there are none."""
        records = self._filtered(chunk)
        return self._built(records) if len(records) else None

    def build_all(self, chunk: Chunk) -> pa.RecordBatch:
        """All records of a chunk, wanted or not."""
        return self._built(self._records(chunk))

    def _built(self, records: _Records) -> pa.RecordBatch:
        arrays = [column(self, records, field.type) for field, column in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def by_topic_and_day(self, chunk: Chunk) -> Iterator[tuple[str, int | None, Chunk]]:
        """The wanted records of a chunk, apart by topic and day of storing (since 1970, in UTC).

        None is the day of times that Spark cannot hold.
        """
        records = self._filtered(chunk)
        if not len(records):
            return
        codes, names = records.numbered_topics.codes, records.topic_names
        days, day_codes = _days(records.heads.store_timestamp)
        if len(names) == len(days) == 1:
            yield names[0], days[0], records.chunk
            return
        groups = codes.astype(np.int64) * len(days) + day_codes
        if len(names) * len(days) <= 1 << 16:
            groups = groups.astype(np.uint16)  # numpy sorts these by counting
        order = np.argsort(groups, kind="stable")
        found, begins = np.unique(groups[order], return_index=True)
        for group, rows in zip(found.tolist(), np.split(order, begins[1:]), strict=True):
            yield names[group // len(days)], days[group % len(days)], chosen(records.chunk, rows)

    def damage(self, begin: int, end: int, reason: str) -> pa.RecordBatch:
        """One row for a range that could not be read: where, how long, and why; null elsewhere."""
        values: dict[str, object] = {
            "commitlogoffset": begin,
            "storesize": min(end - begin, INT_MAX),
            "brokername": self.source.broker_name,
            "file": self.source.file,
            "damage": reason,
        }
        arrays = [pa.array([values.get(field.name.lower())], field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _records(self, chunk: Chunk) -> _Records:
        return _Records(chunk, self._names)

    def _filtered(self, chunk: Chunk) -> _Records:
        wanted, records = self._wanted, self._records(chunk)
        if not len(records):
            return records
        if chunk.begin < wanted.start_offset or chunk.end > wanted.end_offset:
            records = self._kept(
                records, (records.offsets >= wanted.start_offset) & (records.offsets < wanted.end_offset)
            )
        if wanted.by_head and len(records):
            records = self._kept(records, self._by_head(records))
        if wanted.by_topic and len(records):
            records = self._kept(records, self._by_topic(records))
        return records

    def _kept(self, records: _Records, kept: Bools) -> _Records:
        return records if kept.all() else self._records(chosen(records.chunk, np.flatnonzero(kept)))

    def _by_head(self, records: _Records) -> Bools:
        times = records.heads.store_timestamp
        kept: Bools = (times >= self._wanted.start_ms) & (times < self._wanted.end_ms)
        if self._wanted.queue_ids:
            kept &= np.isin(records.heads.queue_id, self._wanted.queue_ids)
        return kept

    def _by_topic(self, records: _Records) -> Bools:
        """A few topics have many records: each topic is judged once."""
        codes, names = records.numbered_topics.codes, records.topic_names
        fits = np.array([topic_wanted(self._wanted, name) for name in names], np.bool_)
        kept: Bools = np.ones(len(records), np.bool_) if fits.all() else fits[codes]
        queues, places = records.heads.queue_id, records.heads.queue_offset
        for starts, is_start in ((self._wanted.queue_starts, True), (self._wanted.queue_ends, False)):
            for topic, queue_id, limit in starts:
                numbers = [number for number, name in enumerate(names) if name == topic]
                if numbers:
                    of_queue = np.isin(codes, numbers) & (queues == queue_id)
                    kept &= ~of_queue | (places >= limit if is_start else places < limit)
        return kept

    def epochs(self, records: _Records) -> pa.Array:
        """Epoch of each record, null before the first."""
        numbers, starts = self._epochs
        if not len(numbers):
            return pa.nulls(len(records), pa.int32())
        found = np.searchsorted(starts, records.offsets, side="right") - 1
        return pa.array(numbers[np.maximum(found, 0)], pa.int32(), mask=found < 0)

    def bodies(self, records: _Records) -> pa.BinaryArray:
        """Bodies, opened if that was asked for. ValueError for one that cannot be, without `bad_body`."""
        heads = records.heads
        stored = gathering.gather(records.data, Texts(heads.body, heads.body_size))
        packed = heads.sys_flag & SysFlag.COMPRESSED != 0
        if not self._open_bodies or not packed.any():
            return stored
        opened: list[Any] = []
        for number in np.flatnonzero(packed).tolist():
            try:
                opened.append(gathering.decompress(stored[number].as_buffer(), int(heads.sys_flag[number])))
            except ValueError as error:
                if self._bad_body is not None:
                    opened.append(self._bad_body(number, stored[number].as_py(), str(error)))
                    continue
                offset = int(records.offsets[number])
                raise ValueError(f"{self.source.file}: body of the record at {offset}: {error}") from error
        return pc.replace_with_mask(stored, pa.array(packed), pa.array(opened, pa.binary()))

    def properties(self, records: _Records, kind: pa.DataType) -> pa.Array:
        """All properties, as maps or as text."""
        data, texts = records.data, records.properties
        if isinstance(kind, pa.MapType):
            return gathering.property_maps(data, texts, kind)
        return gathering.as_text(gathering.gather(data, texts))


def chosen(chunk: Chunk, rows: Int64s) -> Chunk:
    """A chunk of only these records, by number; where it begins and ends stays."""
    return replace(
        chunk,
        starts=chunk.starts[rows],
        sizes=chunk.sizes[rows],
        indexes=None if chunk.indexes is None else chunk.indexes[rows],
        terms=None if chunk.terms is None else chunk.terms[rows],
        offsets=None if chunk.offsets is None else chunk.offsets[rows],
    )


def _days(times: Int64s) -> tuple[list[int | None], Int64s]:
    """The different days of these times, and the number of each time's day."""
    held = gathering.holds_time(times)
    first, last = int(times.min()) // DAY_MS, int(times.max()) // DAY_MS
    if first == last and held.all():
        return [first], np.zeros(len(times), np.int64)
    days, codes = np.unique(np.where(held, times // DAY_MS, _NO_DAY), return_inverse=True)
    return [None if day == _NO_DAY else day for day in days.tolist()], codes.reshape(-1).astype(np.int64)


def topic_wanted(wanted: Filter, topic: str) -> bool:
    """Whether a topic's messages are wanted."""
    if wanted.topics or wanted.topic_pattern:
        return topic in wanted.topics or bool(
            wanted.topic_pattern and re.fullmatch(wanted.topic_pattern, topic)
        )
    return wanted.system_topics or not is_internal(topic)


def is_internal(topic: str) -> bool:
    """Whether a topic belongs to the system, to retries, or to dead letters."""
    return is_system_topic(topic) or topic.startswith((RETRY_PREFIX, DLQ_PREFIX, "RMQ_SYS_"))


def reason_of(stop: Stop) -> str:
    """A damage's name in rows, logs and errors."""
    return stop.name.lower().replace("_", "-")


_Build = Callable[[Batches, _Records, pa.DataType], pa.Array]


def _flag(heads: Heads, bit: int) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = heads.sys_flag & bit != 0
    return found


def _constant(records: _Records, value: str | None) -> pa.Array:
    return pa.repeat(pa.scalar(value, pa.string()), len(records))


_PROPERTIES: Final = {"tags": b"TAGS", "keys": b"KEYS", "msgid": b"UNIQ_KEY"}
"""Columns that are one property."""

_COLUMNS: Final[dict[str, _Build]] = {
    "topic": lambda b, r, t: r.topics,
    "flag": lambda b, r, t: pa.array(r.heads.flag),
    "body": lambda b, r, t: b.bodies(r),
    "properties": lambda b, r, t: b.properties(r, t),
    "brokername": lambda b, r, t: _constant(r, b.source.broker_name),
    "queueid": lambda b, r, t: pa.array(r.heads.queue_id),
    "queueoffset": lambda b, r, t: pa.array(r.heads.queue_offset),
    "borntimestamp": lambda b, r, t: gathering.timestamps(r.heads.born_timestamp, t),
    "storetimestamp": lambda b, r, t: gathering.timestamps(r.heads.store_timestamp, t),
    "commitlogoffset": lambda b, r, t: pa.array(r.offsets),
    "storesize": lambda b, r, t: pa.array(r.sizes),
    "bodycrc": lambda b, r, t: pa.array(r.heads.body_crc),
    "sysflag": lambda b, r, t: pa.array(r.heads.sys_flag),
    "bornhost": lambda b, r, t: gathering.hosts(r.data, r.born_at),
    "storehost": lambda b, r, t: gathering.hosts(r.data, r.stored_by),
    "reconsumetimes": lambda b, r, t: pa.array(r.heads.reconsume_times),
    "preparedtransactionoffset": lambda b, r, t: pa.array(r.heads.prepared_transaction_offset),
    "epoch": lambda b, r, t: b.epochs(r),
    "tags": lambda b, r, t: r.property_text(b"TAGS"),
    "keys": lambda b, r, t: r.property_text(b"KEYS"),
    "msgid": lambda b, r, t: r.property_text(b"UNIQ_KEY"),
    "offsetmsgid": lambda b, r, t: gathering.offset_ids(r.data, r.starts, r.stored_by),
    "file": lambda b, r, t: _constant(r, b.source.file),
    "damage": lambda b, r, t: _constant(r, None),
}
