"""The task of a lake export: some ranges of one topic into Parquet files of the table's folder.

A file belongs to the table only when the driver's commit names it. So an attempt that fails, or runs twice,
leaves files that no reader of the table sees; `vacuum` deletes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

import pyarrow as pa
from pydantic import ConfigDict

from brokerset_spark.jobs.lake.avro_columns import AvroReading, AvroTarget, columns_of
from brokerset_spark.jobs.lake.files import (
    FILE_COLUMNS,
    FILE_SCHEMA,
    MESSAGES,
    TABLE_SCHEMA,
    Layout,
    TableFiles,
)
from brokerset_spark.jobs.lake.json_columns import JsonColumn, JsonReading
from brokerset_spark.jobs.lake.ranges import Control, Event
from brokerset_spark.jobs.lake.reading import RangeOutcome, read_queue
from brokerset_spark.jobs.lake.registry import Registry
from brokerset_spark.jobs.lake.storage import Storage, without_secrets
from brokerset_spark.jobs.report import JobFailed
from brokerset_spark.jobs.running import Result, Row
from brokerset_spark.json_values import CAMEL, from_value, to_value
from brokerset_spark.sources.batches import Batches, Filter, Source
from brokerset_spark.stores.reading import Chunk
from brokerset_spark.topics.client_thread import client_of
from brokerset_spark.topics.offsets import QueueKey
from brokerset_spark.topics.planning import Range

TASK: Final = "brokerset_spark.jobs.lake.writing:write_ranges"
UNWRITTEN: Final = (
    "make room there, or look at its credentials and rights, then run it again: nothing of this run is in "
    "the table, and the next one goes on from the last commit"
)


@dataclass(frozen=True, slots=True)
class Task:
    """What a task reads, and where it writes."""

    __pydantic_config__: ClassVar = CAMEL | ConfigDict(extra="forbid")

    name_servers: str
    target: str
    compression: str
    ranges: tuple[Range, ...]
    json_columns: tuple[JsonColumn, ...] = ()
    avro: AvroTarget | None = None
    prefix: str = ""
    """Names of files begin so."""
    partitions_in_files: bool = False
    """Whether `topic` and `day` are columns of the files, too."""

    @property
    def columns(self) -> list[pa.Field]:
        """Those that are read out of bodies."""
        avro = columns_of(self.avro, TABLE_SCHEMA.names) if self.avro is not None else ()
        return [*(each.field for each in self.json_columns), *avro]

    def layout(self) -> Layout:
        """Of its files."""
        files, folder = Storage(self.target).files(MESSAGES)
        base = TABLE_SCHEMA if self.partitions_in_files else FILE_SCHEMA
        schema = pa.schema([*base, *self.columns])
        return Layout(files, folder, self.ranges[0].key.topic, schema, self.compression, self.prefix)

    def reading(self) -> JsonReading | AvroReading | None:
        """What reads bodies."""
        if self.avro is not None:
            return AvroReading(self.avro, Registry(self.avro.registry).writer)
        return JsonReading(self.json_columns) if self.json_columns else None


def write_ranges(row: Row) -> Iterator[Result]:
    """Read the ranges and write their files. Raises JobFailed for what cannot be read or written."""
    task = from_value(Task, row)
    client = client_of(task.name_servers)
    sink, reading = TableFiles(task.layout()), task.reading()
    outcomes = []
    try:
        for each in task.ranges:
            outcome = RangeOutcome()
            misfits = _Misfits(each.key, reading)
            opened = _Opened(each, outcome)
            for chunk in read_queue(client, each, outcome):
                for _, day, part in opened.batches.by_topic_and_day(chunk):
                    sink.add(day, misfits.widened(opened.build(part)))
            outcome.control.extend(misfits.rows())
            outcomes.append(
                {
                    "range": to_value(each),
                    "messages": outcome.messages,
                    "control": [to_value(control) for control in outcome.control],
                }
            )
        written = sink.close()
    except BaseException as error:
        sink.abandon()
        if isinstance(error, OSError) and not isinstance(error, TimeoutError):  # which is a broker's
            raise JobFailed(
                f"{task.target} cannot be written: {without_secrets(error)}", UNWRITTEN
            ) from error
        raise
    if sum(each.rows for each in written) != sum(int(str(each["messages"])) for each in outcomes):
        raise JobFailed(
            f"{outcomes} messages were read, and other numbers written: {written}", "report this as a bug"
        )
    yield Result({"files": [to_value(each) for each in written], "ranges": outcomes})


class _Opened:
    """Batches with opened bodies; one that cannot be opened is as it is stored, and has a control row."""

    def __init__(self, wanted: Range, outcome: RangeOutcome) -> None:
        source = Source(str(wanted.key), wanted.key.broker)
        self.batches = Batches(
            FILE_SCHEMA, source, Filter(system_topics=True), open_bodies=True, bad_body=self._bad_body
        )
        self._key, self._outcome = wanted.key, outcome
        self._bad: list[tuple[int, str]] = []

    def build(self, part: Chunk) -> pa.RecordBatch:
        """All records of a chunk."""
        batch = self.batches.build_all(part)
        for number, text in self._bad:
            offset = batch.column(FILE_COLUMNS.index("queueOffset"))[number].as_py()
            self._outcome.control.append(Control(Event.UNREADABLE, self._key, offset, offset + 1, text))
        self._bad.clear()
        return batch

    def _bad_body(self, number: int, stored: bytes, text: str) -> bytes:
        self._bad.append((number, text))
        return stored


class _Misfits:
    """Columns that are read out of a range's bodies, and which messages do not fit them."""

    def __init__(self, queue: QueueKey, reading: JsonReading | AvroReading | None) -> None:
        self._queue, self._reading = queue, reading
        self._count = 0
        self._first = self._last = -1
        self._text = ""

    def widened(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with the columns."""
        if self._reading is None:
            return batch
        made, misfits, text = self._reading.read(batch.column(FILE_COLUMNS.index("body")).to_pylist())
        if misfits:
            offsets = batch.column(FILE_COLUMNS.index("queueOffset"))
            first, last = offsets[misfits[0]].as_py(), offsets[misfits[-1]].as_py()
            if self._count == 0:
                self._text = text
            self._first = first if self._count == 0 else min(self._first, first)
            self._last = max(self._last, last)
            self._count += len(misfits)
        names = [*batch.schema.names, *self._reading.names]
        return pa.RecordBatch.from_arrays([*batch.columns, *made], names)

    def rows(self) -> list[Control]:
        """One row, if there were any."""
        if not self._count or self._reading is None:
            return []
        text = f"{self._count} messages {self._text}"
        return [Control(self._reading.event, self._queue, self._first, self._last + 1, text)]
