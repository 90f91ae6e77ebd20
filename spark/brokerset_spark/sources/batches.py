"""Records of a chunk as one Arrow batch: only the columns that were asked for."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brokerset_formats.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from brokerset_formats.records import SysFlag
from brokerset_spark.kernels import KERNELS, Heads, Kernels, Stop
from brokerset_spark.kernels.contract import Bools, Int64s
from brokerset_spark.sources import gathering
from brokerset_spark.sources.compression import decompress
from brokerset_spark.stores.reading import Chunk

INT_MAX: Final = 2**31 - 1


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
        return bool(
            self.topics
            or self.topic_pattern
            or not self.system_topics
            or self.queue_starts
            or self.queue_ends
        )

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


class _Records:
    """Fields of the records of a chunk, each computed when it is first asked for."""

    def __init__(self, chunk: Chunk, kept: Bools | None, kernels: Kernels) -> None:
        self.data = chunk.data
        self.base = chunk.base
        self.starts = chunk.starts if kept is None else chunk.starts[kept]
        self.sizes = chunk.sizes if kept is None else chunk.sizes[kept]
        self._kernels = kernels

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def heads(self) -> Heads:
        return self._kernels.heads(self.data, self.starts)

    @cached_property
    def offsets(self) -> Int64s:
        return self.starts + self.base

    @cached_property
    def topics(self) -> pa.StringArray:
        return gathering.as_text(gathering.gather(self.data, self.heads.topic, self.heads.topic_size))

    def property_text(self, name: bytes) -> pa.StringArray:
        found = self._kernels.find_property(self.data, self.heads, name)
        return gathering.as_text(gathering.gather(self.data, found.starts, found.sizes))


class Batches:
    """Turns chunks into batches of one schema."""

    def __init__(
        self,
        schema: pa.Schema,
        source: Source,
        wanted: Filter,
        *,
        open_bodies: bool = False,
        kernels: Kernels = KERNELS,
    ) -> None:
        """`open_bodies`: decompress. Columns are found by name without regard to case."""
        self._schema, self._source, self._wanted = schema, source, wanted
        self._open_bodies, self._kernels = open_bodies, kernels
        self._columns = [(field, _COLUMNS[field.name.lower()]) for field in schema]
        self._epochs = (
            np.array([epoch for epoch, _ in source.epochs], np.int32),
            np.array([start for _, start in source.epochs], np.int64),
        )

    def build(self, chunk: Chunk) -> pa.RecordBatch | None:
        """The wanted records of a chunk; None if there are none."""
        records = self._filtered(chunk)
        if not len(records):
            return None
        arrays = [column(self, records, field.type) for field, column in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def damage(self, begin: int, end: int, reason: str) -> pa.RecordBatch:
        """One row for a range that could not be read: where, how long, and why; null elsewhere."""
        values: dict[str, object] = {
            "commitlogoffset": begin,
            "storesize": min(end - begin, INT_MAX),
            "brokername": self._source.broker_name,
            "file": self._source.file,
            "damage": reason,
        }
        arrays = [pa.array([values.get(field.name.lower())], field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _filtered(self, chunk: Chunk) -> _Records:
        wanted, records = self._wanted, _Records(chunk, None, self._kernels)
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
        if kept.all():
            return records
        chunk = Chunk(records.data, records.base, records.starts, records.sizes)
        return _Records(chunk, kept, self._kernels)

    def _by_head(self, records: _Records) -> Bools:
        times = records.heads.store_timestamp
        kept: Bools = (times >= self._wanted.start_ms) & (times < self._wanted.end_ms)
        if self._wanted.queue_ids:
            kept &= np.isin(records.heads.queue_id, self._wanted.queue_ids)
        return kept

    def _by_topic(self, records: _Records) -> Bools:
        """A few topics have many records: each topic is judged once."""
        coded = records.topics.dictionary_encode()
        names: list[str] = coded.dictionary.to_pylist()
        codes = coded.indices.to_numpy()
        kept: Bools = np.array([topic_wanted(self._wanted, name) for name in names], np.bool_)[codes]
        queues, places = records.heads.queue_id, records.heads.queue_offset
        for starts, is_start in ((self._wanted.queue_starts, True), (self._wanted.queue_ends, False)):
            for topic, queue_id, limit in starts:
                if topic in names:
                    of_queue = (codes == names.index(topic)) & (queues == queue_id)
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
        """Bodies, opened if that was asked for; ValueError for one that cannot be opened."""
        heads = records.heads
        stored = gathering.gather(records.data, heads.body, heads.body_size)
        packed = heads.sys_flag & SysFlag.COMPRESSED != 0
        if not self._open_bodies or not packed.any():
            return stored
        opened = []
        for number in np.flatnonzero(packed).tolist():
            try:
                opened.append(decompress(stored[number].as_buffer(), int(heads.sys_flag[number])))
            except ValueError as error:
                offset = int(records.offsets[number])
                raise ValueError(f"{self._source.file}: body of the record at {offset}: {error}") from error
        return gathering.by_width(packed, stored.filter(pa.array(~packed)), pa.array(opened, pa.binary()))

    def constant(self, records: _Records, value: str | None) -> pa.Array:
        """The same text for all."""
        return pa.repeat(pa.scalar(value, pa.string()), len(records))

    @property
    def source(self) -> Source:
        """What is the same for all records."""
        return self._source


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


def _properties(batches: Batches, records: _Records, kind: pa.DataType) -> pa.Array:
    heads = records.heads
    raw = gathering.gather(records.data, heads.properties, heads.properties_size)
    return gathering.property_maps(raw, kind) if isinstance(kind, pa.MapType) else gathering.as_text(raw)


def _offset_ids(batches: Batches, records: _Records, kind: pa.DataType) -> pa.Array:
    heads = records.heads
    wide = _flag(heads, SysFlag.STORE_HOST_V6)
    parts = []
    for size, mask in ((8, ~wide), (20, wide)):
        hosts = gathering.matrix(records.data, heads.store_host[mask], size)
        places = gathering.big_endian(heads.offset[mask])
        parts.append(gathering.hex_text(np.concatenate([hosts, places], axis=1)))
    return gathering.by_width(wide, *parts)


def _flag(heads: Heads, bit: int) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = heads.sys_flag & bit != 0
    return found


_COLUMNS: Final[dict[str, _Build]] = {
    "topic": lambda b, r, t: r.topics,
    "flag": lambda b, r, t: pa.array(r.heads.flag),
    "body": lambda b, r, t: b.bodies(r),
    "properties": _properties,
    "brokername": lambda b, r, t: b.constant(r, b.source.broker_name),
    "queueid": lambda b, r, t: pa.array(r.heads.queue_id),
    "queueoffset": lambda b, r, t: pa.array(r.heads.queue_offset),
    "borntimestamp": lambda b, r, t: gathering.timestamps(r.heads.born_timestamp, t),
    "storetimestamp": lambda b, r, t: gathering.timestamps(r.heads.store_timestamp, t),
    "commitlogoffset": lambda b, r, t: pa.array(r.offsets),
    "storesize": lambda b, r, t: pa.array(r.sizes),
    "bodycrc": lambda b, r, t: pa.array(r.heads.body_crc),
    "sysflag": lambda b, r, t: pa.array(r.heads.sys_flag),
    "bornhost": lambda b, r, t: gathering.hosts(
        r.data, r.heads.born_host, _flag(r.heads, SysFlag.BORN_HOST_V6)
    ),
    "storehost": lambda b, r, t: gathering.hosts(
        r.data, r.heads.store_host, _flag(r.heads, SysFlag.STORE_HOST_V6)
    ),
    "reconsumetimes": lambda b, r, t: pa.array(r.heads.reconsume_times),
    "preparedtransactionoffset": lambda b, r, t: pa.array(r.heads.prepared_transaction_offset),
    "epoch": lambda b, r, t: b.epochs(r),
    "tags": lambda b, r, t: r.property_text(b"TAGS"),
    "keys": lambda b, r, t: r.property_text(b"KEYS"),
    "msgid": lambda b, r, t: r.property_text(b"UNIQ_KEY"),
    "offsetmsgid": _offset_ids,
    "file": lambda b, r, t: b.constant(r, b.source.file),
    "damage": lambda b, r, t: b.constant(r, None),
}
