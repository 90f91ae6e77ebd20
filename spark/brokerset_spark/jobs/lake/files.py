"""Parquet files of a lake's table: where they lie, which columns they have, and how they are written.

A file belongs to the table only when a commit names it.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from brokerset_spark.jobs.lake.storage import folder_name, sync_folder
from brokerset_spark.json_values import CAMEL
from brokerset_spark.sources.columns import MESSAGE_COLUMNS, arrow_schema, schema_of

MESSAGES: Final = "messages"
FILE_COLUMNS: Final = (
    "brokerName",
    "queueId",
    "queueOffset",
    "storeTimestamp",
    "bornTimestamp",
    "msgId",
    "keys",
    "tags",
    "properties",
    "body",
)
"""Columns of the files. The table has `topic` and `day` before them, which are in the names of folders."""

FILE_SCHEMA: Final = arrow_schema(schema_of(MESSAGE_COLUMNS, FILE_COLUMNS))
TABLE_SCHEMA: Final = pa.schema([pa.field("topic", pa.string()), pa.field("day", pa.date32()), *FILE_SCHEMA])

GROUP_BYTES: Final = 64 << 20
"""Bytes of messages in one row group."""

WAITING_BYTES: Final = 192 << 20
"""Bytes of messages that wait in all files of a task; at more the fullest file writes a smaller row group."""

OPEN_MAX: Final = 32
"""Files that one task has open, one for each day; at one more the oldest is closed."""

_EPOCH: Final = date(1970, 1, 1)


def day_number(day: str) -> int | None:
    """Days since 1970; None for the empty text, a time that no calendar has."""
    return (date.fromisoformat(day) - _EPOCH).days if day else None


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that the commit is to name."""

    __pydantic_config__: ClassVar = CAMEL

    path: str
    """Below the table's folder."""
    size: int
    rows: int
    topic: str
    day: str
    first_ms: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Where files of a topic go, and what they are made of."""

    files: fs.FileSystem
    root: str
    """The table's folder, as `files` knows it."""
    topic: str
    schema: pa.Schema
    """With `topic` and `day` before the others where the format wants them in the files as well."""
    compression: str = "zstd"
    prefix: str = ""
    """Names of files begin so."""


class TableFiles:
    """One open file for each day of a task's topic."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._open: dict[int | None, TableFile] = {}
        self._written: list[WrittenFile] = []

    def add(self, day: int | None, batch: pa.RecordBatch) -> None:
        """Messages of one day (since 1970); None: a time that no calendar has."""
        found = self._open.get(day)
        if found is None:
            if len(self._open) >= OPEN_MAX:
                oldest = next(iter(self._open))
                self._written.append(self._open[oldest].close())
                del self._open[oldest]
            found = self._open[day] = TableFile(self._layout, day)
        found.add(batch)
        if sum(each.waiting_bytes for each in self._open.values()) > WAITING_BYTES:
            max(self._open.values(), key=lambda each: each.waiting_bytes).flush()

    def close(self) -> list[WrittenFile]:
        """What was written. OSError as from the storage."""
        for day in list(self._open):
            self._written.append(self._open[day].close())
            del self._open[day]
        return self._written

    def abandon(self) -> None:
        """Close without a result, and delete: nobody will name these files."""
        for each in self._open.values():
            each.abandon()
        self._open.clear()
        for written in self._written:
            with contextlib.suppress(OSError):
                self._layout.files.delete_file(f"{self._layout.root}/{written.path}")


class TableFile:
    """A Parquet file in the folder of its topic and day, under a name that no other attempt has."""

    def __init__(self, layout: Layout, day: int | None) -> None:
        self._layout = layout
        self._when = None if day is None else _EPOCH + timedelta(days=day)
        self._day = "" if self._when is None else self._when.isoformat()
        partition = self._day or "__HIVE_DEFAULT_PARTITION__"
        name = f"{layout.prefix}{uuid.uuid4().hex}.parquet"
        self._path = f"topic={folder_name(layout.topic)}/day={partition}/{name}"
        self._files, self._whole = layout.files, f"{layout.root}/{self._path}"
        if not isinstance(self._files, fs.S3FileSystem):
            self._files.create_dir(self._whole.rpartition("/")[0], recursive=True)
        self._time = layout.schema.get_field_index("storeTimestamp")
        self._constant = layout.schema.names[0] == "topic"
        self._stream = self._files.open_output_stream(self._whole)
        self._writer = pq.ParquetWriter(
            self._stream,
            layout.schema,
            compression=layout.compression,
            use_dictionary=["topic", "day", "brokerName", "tags"],
            column_encoding={
                "queueOffset": "DELTA_BINARY_PACKED",
                "storeTimestamp": "DELTA_BINARY_PACKED",
                "bornTimestamp": "DELTA_BINARY_PACKED",
            },
        )
        self._waiting: list[pa.RecordBatch] = []
        self.waiting_bytes = 0
        self._rows = 0
        self._first: datetime | None = None
        self._last: datetime | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Rows with the columns of the layout; `topic` and `day` may be left out."""
        if self._constant and batch.schema.names[0] != "topic":
            count = len(batch)
            topic = pa.repeat(pa.scalar(self._layout.topic, pa.string()), count)
            day = pa.repeat(pa.scalar(self._when, pa.date32()), count)
            batch = pa.RecordBatch.from_arrays([topic, day, *batch.columns], schema=self._layout.schema)
        self._waiting.append(batch)
        self.waiting_bytes += batch.nbytes
        self._rows += batch.num_rows
        times = pc.min_max(batch.column(self._time)).as_py()
        self._first = min(filter(None, (self._first, times["min"])), default=None)
        self._last = max(filter(None, (self._last, times["max"])), default=None)
        if self.waiting_bytes >= GROUP_BYTES:
            self.flush()

    def close(self) -> WrittenFile:
        """Write the rest; the file outlives a crash of the machine. OSError as from the storage."""
        self.flush()
        self._writer.close()
        size = self._stream.tell()
        self._stream.close()
        if isinstance(self._files, fs.LocalFileSystem):
            path = Path(self._whole)
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            sync_folder(path.parent)
        return WrittenFile(
            self._path, size, self._rows, self._layout.topic, self._day, _ms(self._first), _ms(self._last)
        )

    def abandon(self) -> None:
        """Delete it, as far as the storage lets that be done."""
        for step in (self._writer.close, self._stream.close, lambda: self._files.delete_file(self._whole)):
            with contextlib.suppress(OSError, pa.ArrowException, ValueError):
                step()

    def flush(self) -> None:
        """Writes what waits as a row group."""
        if self._waiting:
            table = pa.Table.from_batches(self._waiting)
            self._writer.write_table(table, row_group_size=table.num_rows)
            self._waiting, self.waiting_bytes = [], 0


def _ms(when: datetime | None) -> int:
    return 0 if when is None else int((when - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000)
