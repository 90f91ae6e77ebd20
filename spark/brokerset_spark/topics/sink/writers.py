"""Spark's classes of the sink: thin. One task, one sender; a commit says how many rows were acknowledged."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from brokerset_client.ordered.client import OrderedClient
from brokerset_spark.topics.client_thread import ClientThread, client_of
from brokerset_spark.topics.sink.options import SinkOptions, read_options
from brokerset_spark.topics.sink.ordered import OrderedSender, TaskIdentity
from brokerset_spark.topics.sink.plain import PlainSender, SinkFailed
from brokerset_spark.topics.sink.rows import Row, in_order, rows_of

log = logging.getLogger(__name__)

START_SECONDS: Final = 60.0
CLOSE_SECONDS: Final = 30.0
QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""Local properties that Spark gives to the tasks of a stream."""


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What one task has sent, all of it acknowledged."""

    rows: int
    bytes: int
    sent_again: int


def batch_writer(schema: StructType, options: Mapping[str, str], overwrite: bool) -> RocketBatchWriter:
    """What `DataSource.writer` returns. Raises `OptionsError`, and ValueError for mode `overwrite`."""
    if overwrite:
        raise ValueError("mode overwrite: a topic cannot be overwritten, only appended to; use mode append")
    return RocketBatchWriter(read_options(options, schema))


def stream_writer(schema: StructType, options: Mapping[str, str]) -> RocketStreamWriter:
    """What `DataSource.streamWriter` returns. Raises `OptionsError`."""
    return RocketStreamWriter(read_options(options, schema))


class RocketBatchWriter(DataSourceArrowWriter):
    """`df.write.format("rocketmq")`: rows are in their topics when the write returns."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._write_id = uuid.uuid4().hex
        """Drawn on the driver, so all attempts of all tasks have it."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """On an executor: sends the rows of one partition."""
        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        return write_rows(iterator, self._options, TaskIdentity(self._write_id, partition, 0))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Rows are visible already; only their number is told."""
        _tell("write", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Nothing can be taken back: messages that were acknowledged stay."""
        _tell("write failed; these rows stay in their topics", messages)


class RocketStreamWriter(DataSourceStreamArrowWriter):
    """`writeStream.format("rocketmq")`."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """On an executor: sends the rows of one partition of a micro-batch."""
        return write_rows(iterator, self._options, stream_task())

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Rows are visible already; only their number is told."""
        _tell(f"batch {batchId}", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing can be taken back; Spark runs the batch again when the query starts again."""
        _tell(f"batch {batchId} failed; these rows stay in their topics", messages)


def stream_task() -> TaskIdentity:
    """Of the task that runs here, in each attempt the same; batch -1 if Spark does not say."""
    context = TaskContext.get()
    query = None if context is None else context.getLocalProperty(QUERY_ID)
    batch = None if context is None else context.getLocalProperty(BATCH_ID)
    if context is None or not query or not batch:
        return TaskIdentity("", 0, -1)
    return TaskIdentity(query, context.partitionId(), int(batch))


def write_rows(batches: Iterator[pa.RecordBatch], options: SinkOptions, task: TaskIdentity) -> Written:
    """Sends all rows, and returns when each is acknowledged. Raises `SinkFailed`, `RowInvalid`."""
    client = client_of(options.name_servers)
    if options.ordered:
        return _write_ordered(batches, options, task, client)
    sender = PlainSender(client.instance, options)
    client.run(sender.start(), START_SECONDS)
    try:
        for batch in batches:
            rows = list(rows_of(batch, options))
            client.run(sender.add(rows))
        client.run(sender.finish())
    finally:
        _close(client, sender)
    return Written(sender.rows, sender.bytes, sender.sent_again)


def _write_ordered(
    batches: Iterator[pa.RecordBatch], options: SinkOptions, task: TaskIdentity, client: ClientThread
) -> Written:
    if options.idempotence and task.batch < 0:
        raise SinkFailed("idempotence: Spark does not say which query and micro-batch this task belongs to")

    async def opened() -> OrderedSender:
        made = OrderedClient(instance=client.instance)
        await made.start()
        return OrderedSender(made, options)

    sender = client.run(opened(), START_SECONDS)
    try:
        kept: list[Row] = []
        for batch in batches:
            rows = list(rows_of(batch, options))
            if options.idempotence or options.order_by is not None:
                kept.extend(rows)
            else:
                client.run(sender.add(rows))
        if options.order_by is not None:
            kept = in_order(kept, options.order_by)
        if options.idempotence:
            client.run(sender.add_once(kept, task))
        elif kept:
            client.run(sender.add(kept))
        client.run(sender.finish())
    finally:
        _close(client, sender)
    return Written(sender.rows, sender.bytes, sender.sent_again)


def _close(client: ClientThread, sender: PlainSender | OrderedSender) -> None:
    """Whatever happens here, the task ends as its rows did: those that are acknowledged need no second send,
    and an error of theirs is not hidden by one of leaving."""
    try:
        client.run(sender.close(), CLOSE_SECONDS)
    except Exception:
        log.warning("rocketmq: the sink could not leave its brokers in order", exc_info=True)


def _tell(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    done = [each for each in messages if isinstance(each, Written)]
    log.info(
        "rocketmq %s: %d rows, %d bytes of values, %d rows sent again, by %d tasks",
        what,
        sum(each.rows for each in done),
        sum(each.bytes for each in done),
        sum(each.sent_again for each in done),
        len(done),
    )
