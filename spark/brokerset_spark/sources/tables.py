"""`rocketmq-consumequeue`, `rocketmq-epochs`, `rocketmq-index`: what stores hold besides their messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, TypeVar

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from brokerset_formats import index_file
from brokerset_formats.epochs import END_UNBOUNDED
from brokerset_formats.errors import FormatError
from brokerset_formats.queue_units import UNIT_SIZE
from brokerset_spark.sources import gathering
from brokerset_spark.sources.batches import topic_wanted
from brokerset_spark.sources.columns import EPOCH_COLUMNS, INDEX_COLUMNS, QUEUE_COLUMNS, Column, schema_of
from brokerset_spark.sources.options import (
    IndexOptions,
    QueueOptions,
    StoreOptions,
    checked_schema,
    read_options,
)
from brokerset_spark.sources.plan import broker_name_of, expand, opened_store
from brokerset_spark.sources.replicas import one_of_each
from brokerset_spark.stores.folder import StoreFolder
from brokerset_spark.stores.layout import StoreFacts, look
from brokerset_spark.stores.opening import open_folder
from brokerset_spark.stores.tail import bound_of, is_written
from brokerset_spark.stores.units import INDEX_UNIT, QUEUE, Units, is_blank
from brokerset_spark.stores.units import is_written as has_record

_READ: Final = 4 << 20
_NO_BOUND: Final = 2**63 - 1

Values = Mapping[str, Any]
"""Columns by name in lower case: arrays of numpy or Arrow, or one value for all rows."""


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file that a task reads."""

    path: str
    base: int = 0
    size: int = 0
    topic: str = ""
    queue_id: int = 0
    bound: int = _NO_BOUND
    """Offset of the log behind which no record counts: of a store that a broker writes."""


@dataclass
class TablePartition(InputPartition):
    """What one task reads."""

    url: str
    broker_name: str | None
    files: tuple[TableFile, ...]


Options = TypeVar("Options", bound=StoreOptions)


class _TableReader(DataSourceReader, Generic[Options]):
    """Plans with one function for each store, reads with another for each partition."""

    one_replica: ClassVar[bool] = True
    """Whether replicas of one group would give the same rows."""

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        self._options, self._schema = options, schema

    def plan(self, folder: StoreFolder, facts: StoreFacts) -> Iterator[tuple[TableFile, ...]]:
        """Files for the tasks."""
        raise NotImplementedError

    def rows(self, folder: StoreFolder, file: TableFile) -> Iterator[tuple[int, Values]]:
        """Number of rows and their columns, piece by piece."""
        raise NotImplementedError

    def partitions(self) -> Sequence[InputPartition]:
        """One for each group of files."""
        found: list[InputPartition] = []
        urls = expand(self._options.paths)
        for url in one_of_each(urls, self._options.replicas) if self.one_replica else urls:
            with opened_store(url) as (folder, facts):
                name = broker_name_of(self._options, facts)
                found += [TablePartition(url, name, files) for files in self.plan(folder, facts)]
        return found or [TablePartition("", None, ())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Batches of a group of files."""
        assert isinstance(partition, TablePartition)
        if not partition.files:
            return
        with closing(open_folder(partition.url)) as folder:
            for file in partition.files:
                for count, values in self.rows(folder, file):
                    if count:
                        common = {"brokername": partition.broker_name, "file": file.path}
                        yield _batch(self._schema, count, {**common, **values})


class _TableSource(DataSource):
    """A source with a fixed set of columns."""

    format: ClassVar[str]
    columns: ClassVar[tuple[Column, ...]]
    takes: ClassVar[type[StoreOptions]] = StoreOptions
    reads: ClassVar[type[_TableReader[Any]]]

    @classmethod
    def name(cls) -> str:
        """What `spark.read.format` takes."""
        return cls.format

    def _options(self) -> StoreOptions:
        return read_options(self.takes, self.format, self.options, self.columns)

    def schema(self) -> StructType:
        """The columns that the options ask for."""
        return schema_of(self.columns, self._options().columns)

    def reader(self, schema: StructType) -> _TableReader[Any]:
        """For a batch query."""
        return self.reads(self._options(), checked_schema(self.format, schema, self.columns))


def _batch(schema: pa.Schema, count: int, values: Values) -> pa.RecordBatch:
    arrays = []
    for field in schema:
        value = values[field.name.lower()]
        if isinstance(value, np.ndarray) and pa.types.is_timestamp(field.type):
            arrays.append(gathering.timestamps(value, field.type))
        elif isinstance(value, np.ndarray | list):
            arrays.append(pa.array(value, field.type))
        else:
            arrays.append(pa.repeat(pa.scalar(value, field.type), count))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class QueueReader(_TableReader[QueueOptions]):
    """Files of many queues together make a task."""

    def plan(self, folder: StoreFolder, facts: StoreFacts) -> Iterator[tuple[TableFile, ...]]:
        """Files of the wanted queues, about `splitSize` bytes in a task."""
        group: list[TableFile] = []
        bound = bound_of(folder, facts).offset if is_written(folder, facts) else _NO_BOUND
        wanted = self._options.wanted
        for queue in facts.queues:
            if not topic_wanted(wanted, queue.topic):
                continue
            if wanted.queue_ids and queue.queue_id not in wanted.queue_ids:
                continue
            for file in queue.log.files:
                group.append(TableFile(file.path, file.base, file.size, queue.topic, queue.queue_id, bound))
                if sum(each.size for each in group) >= self._options.split_size:
                    yield tuple(group)
                    group = []
        if group:
            yield tuple(group)

    def rows(self, folder: StoreFolder, file: TableFile) -> Iterator[tuple[int, Values]]:
        """Units that point to messages, up to the first that never was written, or whose record ends behind
        the bound."""
        for number, units in _units(folder, file.path, 0, file.size // UNIT_SIZE, QUEUE.dtype):
            blank = is_blank(units)
            below = units["offset"].astype(np.int64) <= file.bound - units["size"].astype(np.int64)
            written = has_record(units) & (below | blank)
            end = len(units) if written.all() else int(np.argmin(written))
            kept = np.flatnonzero(~blank[:end])
            yield (
                len(kept),
                {
                    "topic": file.topic,
                    "queueid": file.queue_id,
                    "queueoffset": file.base // UNIT_SIZE + number + kept,
                    "commitlogoffset": units["offset"][kept].astype(np.int64),
                    "size": units["size"][kept].astype(np.int32),
                    "tagscode": units["tags"][kept].astype(np.int64),
                },
            )
            if end < len(units):
                return


def _units(
    folder: StoreFolder, path: str, position: int, count: int, kind: np.dtype[np.void]
) -> Iterator[tuple[int, Units]]:
    """Number of the first unit and the units, piece by piece; fewer if the file is shorter."""
    number, room = 0, _READ // kind.itemsize
    while number < count:
        piece = np.empty(min(room, count - number), kind)
        raw = piece.view(np.uint8).data
        got = folder.read_into(path, position + number * kind.itemsize, raw) // kind.itemsize
        if got:
            yield number, piece[:got]
        if got < len(piece):
            return
        number += got


class EpochReader(_TableReader[StoreOptions]):
    """One small task for each store, replicas included: rows say whose they are."""

    one_replica = False

    def plan(self, folder: StoreFolder, facts: StoreFacts) -> Iterator[tuple[TableFile, ...]]:
        """The epoch file, if there is one. FormatError if it and its copy are damaged."""
        damaged = [text for path, text in facts.problems if path.startswith("epochFileCheckpoint")]
        if facts.epochs is None and damaged:
            raise FormatError(f"{facts.url}/epochFileCheckpoint: {damaged[0]}")
        if facts.epochs is not None:
            yield (TableFile("epochFileCheckpoint"),)

    def rows(self, folder: StoreFolder, file: TableFile) -> Iterator[tuple[int, Values]]:
        """All epochs of the store."""
        facts = look(folder)
        history = facts.epochs
        if history is None:
            return
        ends = [history.end_of(each.epoch) for each in history.entries]
        yield (
            len(ends),
            {
                "epoch": [each.epoch for each in history.entries],
                "startoffset": [each.start_offset for each in history.entries],
                "endoffset": [None if end == END_UNBOUNDED else end for end in ends],
                "brokerid": facts.identity.broker_id if facts.identity else None,
                "store": folder.url,
            },
        )


class IndexReader(_TableReader[IndexOptions]):
    """A task for each file."""

    def plan(self, folder: StoreFolder, facts: StoreFacts) -> Iterator[tuple[TableFile, ...]]:
        """Files with a name of digits."""
        for each in facts.index_files:
            if each.path.rpartition("/")[2].isdigit():
                yield (TableFile(each.path, 0, each.size),)

    def rows(self, folder: StoreFolder, file: TableFile) -> Iterator[tuple[int, Values]]:
        """Entries that the header counts. FormatError for a file whose numbers do not fit."""
        slots, units = self._sizes(file)
        head = bytearray(index_file.HEADER.size)
        folder.read_into(file.path, 0, memoryview(head))
        header = index_file.IndexHeader.decode(head)
        if header.next_unit > units:
            raise FormatError(f"{file.path}: {header.next_unit - 1} entries where {units} have room")
        begin = index_file.file_size(slots, 1)
        for number, entries in _units(folder, file.path, begin, header.next_unit - 1, INDEX_UNIT):
            hashes = entries["hash"].astype(np.int32)
            seconds = entries["seconds"].astype(np.int64)
            yield (
                len(entries),
                {
                    "keyhash": hashes,
                    "commitlogoffset": entries["offset"].astype(np.int64),
                    "storetimestamp": header.begin_timestamp + seconds * 1000,
                    "slot": (hashes % slots).astype(np.int32),
                    "number": np.arange(number + 1, number + 1 + len(entries), dtype=np.int32),
                    "previous": entries["previous"].astype(np.int32),
                },
            )

    def _sizes(self, file: TableFile) -> tuple[int, int]:
        """Slots and units of a file."""
        rest = file.size - index_file.HEADER.size
        slots = self._options.hash_slots or rest // (4 * index_file.UNIT.size + index_file.SLOT.size)
        units, odd = divmod(rest - slots * index_file.SLOT.size, index_file.UNIT.size)
        if odd or units < 1 or (not self._options.hash_slots and units != 4 * slots):
            raise FormatError(
                f"{file.path} has {file.size} bytes: give maxHashSlotNum of the broker as option hashSlots"
            )
        return slots, units


class QueueSource(_TableSource):
    """Units of consume queues."""

    format, columns, takes, reads = "rocketmq-consumequeue", QUEUE_COLUMNS, QueueOptions, QueueReader


class EpochSource(_TableSource):
    """Epochs of stores in controller mode."""

    format, columns, reads = "rocketmq-epochs", EPOCH_COLUMNS, EpochReader


class IndexSource(_TableSource):
    """Entries of key indexes."""

    format, columns, takes, reads = "rocketmq-index", INDEX_COLUMNS, IndexOptions, IndexReader
