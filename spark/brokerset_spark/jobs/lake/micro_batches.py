"""Batches of a stream into a Delta table, each once, where Spark has no connector for Delta.

Tasks write Parquet files under names that no other attempt has, and the driver commits them. The number of
the batch is in the same commit, as an application transaction under the query's id, which its checkpoint
keeps. So a batch that Spark repeats after a crash is found in the table and not added again.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from pyarrow import fs

from brokerset_spark.jobs.lake.storage import Storage, url_problems, without_secrets
from brokerset_spark.jobs.report import JobFailed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

QUERY_ID: Final = "sql.streaming.queryId"
"""Property of the thread that runs a batch (StreamExecution.QUERY_ID_KEY); Delta's own sink takes it."""

ROW_GROUP_BYTES: Final = 64 << 20
"""Rows of so many bytes wait in a task for the next row group."""

_WRITTEN: Final = pa.schema(
    [("path", pa.string()), ("size", pa.int64()), ("rows", pa.int64()), ("written", pa.int64())]
)


def append_to_delta(
    target: str, *, application: str | None = None, compression: str = "zstd"
) -> Callable[[DataFrame, int], None]:
    """A function for `foreachBatch` that appends each batch to the table at `target` once.

    The first batch makes the table. `target` is a path or `s3://BUCKET/PATH`. `application` is who appends:
    the same for all starts from one checkpoint, another one for another checkpoint; it is needed only where
    the query's id is not known (Spark Connect). Several queries may append to one table. The function raises
    JobFailed for a batch whose columns are not those of the table.
    """
    place = table_place(target)

    def append(frame: DataFrame, batch_id: int) -> None:
        _append(frame, batch_id, place, application or _query_id(frame), compression)

    return append


def table_place(target: str) -> str:
    """One table's URL, the same for the driver in any folder and for tasks. ValueError for what cannot be."""
    if problems := url_problems(target, delta=True):
        raise ValueError("; ".join(problems))
    return Storage(target if "://" in target else str(Path(target).absolute())).table_url("").rstrip("/")


def _append(frame: DataFrame, batch_id: int, target: str, application: str, compression: str) -> None:
    wanted = _schema_of(frame)
    table = _opened(target, wanted)
    if _has(table, application, batch_id):
        return
    schema = _fitting(table, wanted, target)
    write = partial(write_batches, target=target, schema=schema, compression=compression)
    columns = "path string, size bigint, rows bigint, written bigint"
    files = frame.select(*schema.names).mapInArrow(write, columns).collect()
    if not files:
        return
    actions: list[AddAction | RemoveAction] = [
        AddAction(each.path, each.size, {}, each.written, True, json.dumps({"numRecords": each.rows}))
        for each in files
    ]
    properties = CommitProperties(app_transactions=[Transaction(application, batch_id)])
    try:
        table.create_write_transaction(actions, "append", table.schema(), commit_properties=properties)
    except CommitFailedError as error:
        table.update_incremental()
        if not _has(table, application, batch_id):  # else a driver that was believed dead has committed it
            raise JobFailed(
                f"batch {batch_id} was not committed to {target}: {without_secrets(error)}",
                "start the query again: it repeats the batch",
            ) from error


def write_batches(
    batches: Iterable[pa.RecordBatch], *, target: str, schema: pa.Schema, compression: str
) -> Iterator[pa.RecordBatch]:
    """The task: its rows as one file in the table's folder; nothing for no rows."""
    files, folder = Storage(target).files("")
    path = f"{uuid.uuid4().hex}.parquet"
    whole = f"{folder.rstrip('/')}/{path}"
    waiting: list[pa.RecordBatch] = []
    rows = waiting_bytes = 0
    with ExitStack() as stack:
        stream: pa.NativeFile | None = None
        for batch in batches:
            if not batch.num_rows:
                continue
            if stream is None:
                if isinstance(files, fs.LocalFileSystem | fs.SubTreeFileSystem):
                    files.create_dir(folder, recursive=True)
                stream = stack.enter_context(files.open_output_stream(whole))
                writer = stack.enter_context(pq.ParquetWriter(stream, schema, compression=compression))
            rows += batch.num_rows
            waiting.append(batch.cast(schema))
            waiting_bytes += batch.nbytes
            if waiting_bytes >= ROW_GROUP_BYTES:
                writer.write_table(pa.Table.from_batches(waiting))
                waiting, waiting_bytes = [], 0
        if stream is None:
            return
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting))
    found = files.get_file_info(whole)
    row = {"path": path, "size": found.size, "rows": rows, "written": found.mtime_ns // 1_000_000}
    yield pa.RecordBatch.from_pylist([row], _WRITTEN)


def _query_id(frame: DataFrame) -> str:
    found = None
    with suppress(Exception):  # sessions of Spark Connect have no context, and say so in several ways
        found = frame.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
    if not found:
        raise JobFailed(
            "the id of the streaming query is not known here",
            "give append_to_delta an application, a name that stays as long as the checkpoint",
        )
    return str(found)


def _opened(target: str, schema: pa.Schema) -> DeltaTable:
    options = Storage(target).options()
    try:
        return DeltaTable(target, storage_options=options)
    except TableNotFoundError:
        return DeltaTable.create(target, schema, mode="ignore", storage_options=options)


def _has(table: DeltaTable, application: str, batch_id: int) -> bool:
    version = table.transaction_version(application)
    return version is not None and version >= batch_id


def _schema_of(frame: DataFrame) -> pa.Schema:
    """The columns as Delta keeps them; each may be null."""
    from pyspark.sql.pandas.types import to_arrow_schema

    found = to_arrow_schema(frame.schema, timezone="UTC")
    return pa.schema(Schema.from_arrow(pa.schema([each.with_nullable(True) for each in found])))


def _fitting(table: DeltaTable, wanted: pa.Schema, target: str) -> pa.Schema:
    """The table's columns in its order; JobFailed if the batch has others."""
    if parts := table.metadata().partition_columns:
        raise JobFailed(
            f"the table at {target} is divided by {', '.join(parts)}, which batches of a stream are not",
            "append to another table",
        )
    there = pa.schema(table.schema())
    ours, theirs = ({each.name: str(each.type) for each in schema} for schema in (wanted, there))
    if ours != theirs:
        other = sorted({name for name, _ in ours.items() ^ theirs.items()})
        raise JobFailed(
            f"the batch and the table at {target} differ in {', '.join(other)}: "
            f"the batch has {ours}, the table {theirs}",
            "select the columns of the table, or append to another one",
        )
    return there
