"""`format("rocketmq")` in a real Spark: SQL, streams with checkpoints into files, topics into topics."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.captured import StreamingQueryException
from pyspark.sql import functions as f

from brokerset_client import Message, Producer
from brokerset_client.admin import Admin
from brokerset_formats.config import TopicConfig
from brokerset_rig.local_set import Sending, local_set
from brokerset_rig.ordered_run import master_of
from brokerset_rig.threaded_servers import ThreadedServers, read_all, threaded_servers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadedServers]:
    with threaded_servers(tmp_path_factory.mktemp("spark-topics"), auto_create_topic_enable=False) as found:
        yield found


def send(servers: ThreadedServers, topic: str, first: int, count: int) -> None:
    send_to(servers.name_servers, topic, first, count)


def send_to(name_servers: str, topic: str, first: int, count: int) -> None:
    async def work() -> None:
        async with Producer("p", namesrv=name_servers) as producer:
            await asyncio.gather(
                *(
                    producer.send(Message(topic=topic, body=str(n).encode(), keys=(f"k{n}",), tags="even"))
                    for n in range(first, first + count)
                )
            )

    asyncio.run(work())


def of(servers: ThreadedServers, topic: str, **more: Any) -> dict[str, Any]:
    return {"nameServers": servers.name_servers, "topic": topic} | more


def test_a_topic_is_a_table(spark: SparkSession, servers: ThreadedServers) -> None:
    """Filtered, counted and grouped queries on one DataFrame give what was sent, also in SQL."""
    servers.create_topic("table", 4)
    send(servers, "table", 0, 500)
    frame = spark.read.format("rocketmq").options(**of(servers, "table", includeHeaders=True)).load()
    numbers = frame.select(f.col("value").cast("string").cast("int").alias("n"), "*")
    assert numbers.where("n < 100").count() == 100
    assert (numbers.count(), numbers.agg(f.sum("n")).first()[0]) == (500, sum(range(500)))  # type: ignore[index]
    row = frame.where("cast(value as string) = '7'").first()
    assert row is not None
    assert (row["key"], row["tags"], row["timestampType"]) == (b"k7", "even", 1)
    assert {"TAGS"} <= {each["key"] for each in row["headers"]}
    spark.sql(
        "create or replace temporary view topic_table using rocketmq options "
        f"(nameServers '{servers.name_servers}', topic 'table', columns 'queueId,offset')"
    )
    counts = spark.sql(
        "select queueId, count(*), max(offset) + 1 from topic_table group by queueId"
    ).collect()
    assert sum(each[1] for each in counts) == 500
    assert all(each[1] == each[2] for each in counts)


def test_a_stream_fills_a_table_once(spark: SparkSession, servers: ThreadedServers, tmp_path: Path) -> None:
    """Over a restart from its checkpoint, with a limited trigger, each message is a row of the table once."""
    servers.create_topic("stream", 4)
    send(servers, "stream", 0, 300)
    table, checkpoint = str(tmp_path / "table"), str(tmp_path / "checkpoint")

    def run() -> list[int]:
        options = of(servers, "stream", startingOffsets="earliest", maxOffsetsPerTrigger=200, groupId="lake")
        frame = spark.readStream.format("rocketmq").options(**options).load()
        writer = frame.select("value", "brokerName", "queueId", "offset").writeStream.format("parquet")
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start(table)
        query.awaitTermination(120)
        return [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]

    assert len(run()) == 2
    send(servers, "stream", 300, 100)
    assert run() == [100]
    rows = spark.read.parquet(table).collect()
    assert sorted(int(row["value"]) for row in rows) == list(range(400))
    assert len({(row["brokerName"], row["queueId"], row["offset"]) for row in rows}) == 400


def test_a_topic_becomes_a_topic(spark: SparkSession, servers: ThreadedServers, tmp_path: Path) -> None:
    """Source and sink in one stream: an aggregate of a topic is in another one."""
    servers.create_topic("from", 2)
    servers.create_topic("to", 1)
    send(servers, "from", 0, 50)
    frame = (
        spark.readStream.format("rocketmq").options(**of(servers, "from", startingOffsets="earliest")).load()
    )
    sums = frame.groupBy().agg(f.sum(f.col("value").cast("string").cast("int")).cast("string").alias("value"))
    writer = sums.writeStream.format("rocketmq").options(**of(servers, "to")).outputMode("complete")
    query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    query.awaitTermination(120)
    assert [each.body for each in servers.messages("to")] == [str(sum(range(50))).encode()]


def test_wrong_options_are_said_by_spark(spark: SparkSession, servers: ThreadedServers) -> None:
    """The sentences of all wrong options are in Spark's error."""
    with pytest.raises(PySparkException, match="did you mean startingOffsets"):
        spark.read.format("rocketmq").options(**of(servers, "t", startingOffset="earliest")).load()


def started(spark: SparkSession, folder: Path, options: dict[str, Any]) -> StreamingQuery:
    """A stream into a table of files, which runs until it is stopped."""
    frame = spark.readStream.format("rocketmq").options(**options).load()
    writer = frame.select("value", "brokerName", "queueId", "offset").writeStream.format("parquet")
    return writer.option("checkpointLocation", str(folder / "checkpoint")).start(str(folder / "table"))


def table(spark: SparkSession, folder: Path) -> tuple[list[str], list[tuple[str, int, int]]]:
    """Bodies, and the places that they have."""
    rows = spark.read.parquet(str(folder / "table")).collect()
    places = [(row["brokerName"], row["queueId"], row["offset"]) for row in rows]
    return [row["value"].decode() for row in rows], places


def test_a_running_stream_says_that_its_topic_is_another_one(
    spark: SparkSession, servers: ThreadedServers, tmp_path: Path
) -> None:
    """A topic that is deleted and made again ends the query with its queue in the error. From the same
    checkpoint, with failOnDataLoss=false, the new one's messages come, each once."""
    servers.create_topic("remade", 1)
    send(servers, "remade", 0, 5)
    options = of(servers, "remade", startingOffsets="earliest")
    query = started(spark, tmp_path, options)
    query.processAllAvailable()

    async def delete() -> None:
        async with Admin(namesrv=servers.name_servers) as admin:
            await admin.delete_topic("remade")

    servers.run(delete())
    servers.create_topic("remade", 1)
    send(servers, "remade", 100, 8)
    with pytest.raises(StreamingQueryException, match="deleted and created again"):
        query.awaitTermination(60)
    query = started(spark, tmp_path, options | {"failOnDataLoss": False})
    query.processAllAvailable()
    query.stop()

    assert sorted(map(int, table(spark, tmp_path)[0])) == [*range(5), *range(100, 108)]


MANIFEST = """
apiVersion: brokerset.io/v1alpha1
kind: BrokerSet
metadata: {name: lake}
spec:
  groups: 1
  replicas: 3
  config: {mappedFileSizeCommitLog: 16777216, maxHashSlotNum: 1000, maxIndexNum: 4000}
"""


@pytest.mark.slow
def test_a_running_stream_fills_a_table_once_over_a_failover(spark: SparkSession, tmp_path: Path) -> None:
    """The master is killed and queues are added while Spark runs the query and a producer sends: the table
    has each acknowledged message, and each place of a queue once."""
    with local_set(tmp_path, MANIFEST) as local:
        local.until_whole()
        local("topic", "create", "letters", "--queues", "2")
        name_servers = str(local.state()["namesrv"])
        options = {"nameServers": name_servers, "topic": "letters", "startingOffsets": "earliest"}
        send_to(name_servers, "letters", 2_000_000, 50)
        query = started(spark, tmp_path, options)
        query.processAllAvailable()  # not while a producer sends: there is always more then
        before = len(table(spark, tmp_path)[0])
        with Sending(local, "letters", at_least=50) as sending:
            view = local.until(lambda each: bool(master_of(each, "lake-0")), "a master")
            os.kill(local.processes("broker")[master_of(view, "lake-0")]["pid"], signal.SIGKILL)
            local.until_whole()
            asyncio.run(widen(name_servers, "letters", 4))
            send_to(name_servers, "letters", 1_000_000, 40)  # a producer that knows of them
            sending.until(len(sending.acknowledged) + 100)
        query.processAllAvailable()
        query.stop()
        stored = asyncio.run(read_all(name_servers, "letters"))

    bodies, places = table(spark, tmp_path)
    assert 50 <= before < len(bodies) == len(stored)
    assert set(sending.acknowledged) <= set(bodies)
    assert len(set(places)) == len(places)
    assert {place[1] for place in places} == {0, 1, 2, 3}


async def widen(name_servers: str, topic: str, queues: int) -> None:
    """Give a topic more queues."""
    async with Admin(namesrv=name_servers) as admin:
        await admin.create_topic(TopicConfig(topic, read_queue_nums=queues, write_queue_nums=queues))
