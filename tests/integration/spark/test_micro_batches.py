"""Streams of a topic into a Delta table by `append_to_delta`: what Spark repeats is in the table once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from brokerset_client.messages import Message
from brokerset_client.producer import Producer
from brokerset_rig.threaded_servers import ThreadedServers, threaded_servers
from brokerset_spark.jobs.lake import micro_batches
from brokerset_spark.jobs.lake.frames import read_delta
from brokerset_spark.jobs.lake.micro_batches import append_to_delta
from brokerset_spark.jobs.report import JobFailed
from brokerset_spark.topics.client_thread import client_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadedServers]:
    with threaded_servers(tmp_path_factory.mktemp("micro")) as found:
        yield found
        client_of(found.name_servers).close()


def send(servers: ThreadedServers, topic: str, first: int, count: int) -> None:
    async def run() -> None:
        async with Producer("test", namesrv=servers.name_servers) as producer:
            messages = [
                Message(topic=topic, body=str(number).encode(), keys=[f"k{number}"], properties={"n": "1"})
                for number in range(first, first + count)
            ]
            await producer.send_batch(messages)

    servers.run(run())


def run_stream(
    spark: SparkSession,
    servers: ThreadedServers,
    topic: str,
    folder: Path,
    sink: Callable[[DataFrame, int], None],
) -> list[int]:
    """All that is there, in batches of at most 40; how many rows each had."""
    frame = (
        spark.readStream.format("rocketmq")
        .option("nameServers", servers.name_servers)
        .option("topic", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 40)
        .option("includeHeaders", "true")
        .load()
    )
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination(60)
    return [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]


def test_a_batch_that_spark_repeats_is_there_once(
    spark: SparkSession, servers: ThreadedServers, tmp_path: Path
) -> None:
    """After a crash between the table's commit and Spark's own, the batch comes again and adds nothing; after
    one before the table's commit it is added. The rows are the topic's, with all columns of the source."""
    servers.create_topic("orders", 2)
    send(servers, "orders", 0, 70)
    table = str(tmp_path / "table")
    append, numbers = append_to_delta(table), list[int]()

    def sink(frame: DataFrame, number: int) -> None:
        append(frame, number)
        numbers.append(number)

    assert sum(run_stream(spark, servers, "orders", tmp_path, sink)) == 70
    last = max(int(each.name) for each in (tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    for each in (tmp_path / "checkpoint" / "commits").glob(f"*{last}*"):
        each.unlink()
    version = DeltaTable(table).version()
    # No row is read: the number of the batch is in the table.
    assert run_stream(spark, servers, "orders", tmp_path, sink) == []
    assert numbers == [*range(last + 1), last]
    assert DeltaTable(table).version() == version

    send(servers, "orders", 70, 10)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            micro_batches, "AddAction", lambda *_: (_ for _ in ()).throw(OSError("the driver died"))
        )
        with pytest.raises(Exception, match="the driver died"):
            run_stream(spark, servers, "orders", tmp_path, sink)
    assert run_stream(spark, servers, "orders", tmp_path, sink) == [10]

    rows = read_delta(spark, table).collect()
    assert sorted(int(row["value"]) for row in rows) == list(range(80))
    assert len({(row["brokerName"], row["queueId"], row["offset"]) for row in rows}) == 80
    assert {row["properties"]["n"] for row in rows} == {"1"}
    assert all(row["key"].decode() == f"k{row['value'].decode()}" for row in rows)
    assert {each["key"] for each in rows[0]["headers"]} >= {"KEYS", "n"}
    assert len(DeltaTable(table).file_uris()) < len(list(Path(table).glob("*.parquet")))
    assert read_delta(spark, table, version=0).count() == 0


def test_a_table_of_other_columns_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """The error names the columns that differ, and nothing is added. A number that is there adds nothing."""
    table = str(tmp_path / "table")
    sink = append_to_delta(table, application="by hand")
    sink(spark.range(3), 0)

    with pytest.raises(JobFailed, match="differ in name"):
        sink(spark.sql("select 1L id, 'x' name"), 1)
    sink(spark.range(5), 1)
    sink(spark.range(7), 1)
    assert read_delta(spark, table).count() == 8

    with pytest.raises(JobFailed, match="the id of the streaming query is not known"):
        append_to_delta(table)(spark.range(1), 2)


def test_two_drivers_of_one_query_add_a_batch_once(spark: SparkSession, tmp_path: Path) -> None:
    """A driver that was believed dead commits the batch while the new one writes it, which adds nothing."""
    table = str(tmp_path / "table")
    sink = append_to_delta(table, application="query")
    sink(spark.range(3), 0)
    opened = micro_batches._opened

    def raced(*given: object) -> DeltaTable:
        found = opened(*given)  # type: ignore[arg-type]  # as it is called
        patched.undo()
        sink(spark.range(10, 14), 1)
        return found

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(micro_batches, "_opened", raced)
        sink(spark.range(10, 14), 1)

    assert sorted(row["id"] for row in read_delta(spark, table).collect()) == [0, 1, 2, 10, 11, 12, 13]
