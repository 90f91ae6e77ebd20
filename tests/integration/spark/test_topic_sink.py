"""The sink on a real broker: from Arrow batches without Spark, and once through Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from brokerset_client.messages import MessageView
from brokerset_rig.threaded_servers import ThreadedServers, threaded_servers
from brokerset_spark.topics.client_thread import client_of
from brokerset_spark.topics.sink.options import SinkOptions
from brokerset_spark.topics.sink.ordered import TaskIdentity
from brokerset_spark.topics.sink.plain import SinkFailed
from brokerset_spark.topics.sink.writers import Written, batch_writer, stream_task, stream_writer, write_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK = TaskIdentity("write", 0, 0)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadedServers]:
    with threaded_servers(tmp_path_factory.mktemp("sink"), auto_create_topic_enable=False) as found:
        yield found
        client_of(found.name_servers).close()


def options(servers: ThreadedServers, **changes: object) -> SinkOptions:
    return SinkOptions(**({"name_servers": servers.name_servers, "send_timeout": 20_000} | changes))  # type: ignore[arg-type]  # of any field


def bodies(found: list[MessageView]) -> list[str]:
    return [each.body.decode() for each in found]


def test_rows_are_stored_with_all_that_they_say(servers: ThreadedServers) -> None:
    """Keys, tags, properties and the named queue are what a consumer sees."""
    servers.create_topic("rows")
    broker = servers.broker.settings.broker_name
    batch = pa.RecordBatch.from_pydict(
        {
            "topic": ["rows"] * 3,
            "value": [b"a", b"b", b"c"],
            "key": ["k1", None, "k3 k4"],
            "tags": ["red", None, "blue"],
            "headers": [[("x", "1")], [], None],
            "brokerName": [broker, broker, None],
            "queueId": [2, 2, None],
        },
        schema=pa.schema(
            [
                ("topic", pa.string()),
                ("value", pa.binary()),
                ("key", pa.string()),
                ("tags", pa.string()),
                ("headers", pa.map_(pa.string(), pa.string())),
                ("brokerName", pa.string()),
                ("queueId", pa.int32()),
            ]
        ),
    )

    written = write_rows(iter([batch]), options(servers), TASK)

    stored = {each.body: each for each in servers.messages("rows")}
    assert (written.rows, written.bytes, sorted(stored)) == (3, 3, [b"a", b"b", b"c"])
    assert (stored[b"a"].keys, stored[b"a"].tags, stored[b"a"].properties["x"]) == (("k1",), "red", "1")
    assert stored[b"c"].keys == ("k3", "k4")
    assert (stored[b"a"].queue_id, stored[b"b"].queue_id) == (2, 2)


def test_rows_of_one_key_keep_their_order(servers: ThreadedServers) -> None:
    """With many requests on their way, rows of one orderKey are in one queue, in the order of the rows."""
    servers.create_topic("keyed")
    count = 600
    batch = pa.RecordBatch.from_pydict(
        {
            "value": [f"{n % 7}:{n}" for n in range(count)],
            "orderKey": [str(n % 7) for n in range(count)],
        }
    )

    write_rows(iter([batch]), options(servers, topic="keyed", batch_messages=5), TASK)

    seen: dict[str, list[tuple[int, int]]] = {}
    for each in servers.messages("keyed"):
        key, number = each.body.decode().split(":")
        seen.setdefault(key, []).append((each.queue_id, int(number)))
    assert sum(map(len, seen.values())) == count
    for found in seen.values():
        assert len({queue for queue, _ in found}) == 1
        assert [number for _, number in found] == sorted(number for _, number in found)


def test_a_topic_that_does_not_exist_fails_the_task(servers: ThreadedServers) -> None:
    """The sink creates no topics, and says which one is missing."""
    with pytest.raises(SinkFailed, match="nosuch"):
        write_rows(
            iter([pa.RecordBatch.from_pydict({"value": ["a"]})]),
            options(servers, topic="nosuch", send_timeout=2_000),
            TASK,
        )


class SinkOnly(DataSource):
    """The sink under a name of its own."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq-sink-only"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return batch_writer(schema, self.options, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return stream_writer(schema, self.options)


def test_spark_writes_a_batch_and_a_stream(
    spark: SparkSession, servers: ThreadedServers, tmp_path: Path
) -> None:
    """Each row of a DataFrame and of a stream is in its topic when the write, or the query, has ended."""
    servers.create_topic("batch")
    servers.create_topic("stream")
    spark.dataSource.register(SinkOnly)
    frame = spark.range(500).selectExpr("cast(id as string) value", "'batch' topic")

    frame.repartition(3).write.format("rocketmq-sink-only").mode("append").option(
        "nameServers", servers.name_servers
    ).save()

    frame.select("value").write.parquet(str(tmp_path / "in"))
    query = (
        spark.readStream.schema("value string")
        .parquet(str(tmp_path / "in"))
        .writeStream.format("rocketmq-sink-only")
        .option("nameServers", servers.name_servers)
        .option("topic", "stream")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(60)
    query.stop()

    for topic in ("batch", "stream"):
        assert sorted(bodies(servers.messages(topic))) == sorted(map(str, range(500)))


class TellsTask(DataSource):
    """A sink that writes down which task of which query Spark says it is."""

    @classmethod
    def name(cls) -> str:
        return "tells-task"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return TellsTaskWriter(self.options["folder"])


class TellsTaskWriter(DataSourceStreamArrowWriter):
    def __init__(self, folder: str) -> None:
        self._folder = folder

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        count = sum(each.num_rows for each in iterator)
        task = stream_task()
        Path(self._folder, f"{task.batch}-{task.partition}").write_text(task.write)
        return Written(count, 0, 0)


def test_a_task_of_a_stream_knows_its_query_and_batch(spark: SparkSession, tmp_path: Path) -> None:
    """Idempotence rests on it: the query's id, the number of the micro-batch, the partition."""
    spark.dataSource.register(TellsTask)
    told = tmp_path / "told"
    told.mkdir()
    spark.range(4).selectExpr("cast(id as string) value").write.parquet(str(tmp_path / "in"))

    query = (
        spark.readStream.schema("value string")
        .parquet(str(tmp_path / "in"))
        .repartition(2)
        .writeStream.format("tells-task")
        .option("folder", str(told))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(60)

    assert {each.name: each.read_text() for each in told.iterdir()} == {"0-0": query.id, "0-1": query.id}
