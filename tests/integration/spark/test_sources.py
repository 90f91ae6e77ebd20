"""The data sources in a real Spark."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f

from brokerset_rig.made_stores import damage, expected, message, write_log
from brokerset_spark.sources import to_kafka_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Unpack = Callable[[str], Path]

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def load(spark: SparkSession, store: Path | str, **options: Any) -> DataFrame:
    return spark.read.format("rocketmq-store").options(**options).load(str(store))


@pytest.mark.parametrize(
    ("archive", "broker"),
    [("classic", "broker-0"), ("controller-mode", "broker-1"), ("dledger-mixed", "broker-0")],
)
def test_messages_of_java(spark: SparkSession, fixture_store: Unpack, archive: str, broker: str) -> None:
    """Every message that the Java broker gave out comes out of Spark with the same values, and none twice."""
    root = fixture_store(archive)
    frame = load(
        spark,
        root / broker / "store",
        includeSystemTopics=True,
        splitSize="200k",
        verifyCrc=True,
        decompress=True,
    )

    rows = {row["commitLogOffset"]: row for row in frame.collect()}

    assert frame.count() == len(rows)
    for offset, line in expected(root).items():
        row = rows[offset]
        assert (row["topic"], row["queueId"], row["queueOffset"]) == (
            line["topic"],
            line["queueId"],
            line["queueOffset"],
        )
        assert (row["storeSize"], row["sysFlag"] & ~1, row["bodyCRC"]) == (
            line["storeSize"],
            line["sysFlag"],  # from which Java's client takes the bit of bodies that it opened
            line["bodyCrc"],
        )
        assert hashlib.sha256(row["body"]).hexdigest() == line["bodySha256"]
        assert row["properties"] == line["properties"]
        assert round(row["storeTimestamp"].timestamp() * 1000) == line["storeTimestamp"]
        assert round(row["bornTimestamp"].timestamp() * 1000) == line["bornTimestamp"]
        assert row["tags"] == line["properties"].get("TAGS")
        assert row["msgId"] == line["properties"].get("UNIQ_KEY")
        assert row["brokerName"] == ("broker-a" if archive == "controller-mode" else None)


def test_filters_do_not_leak(spark: SparkSession, fixture_store: Unpack) -> None:
    """Filtered and unfiltered queries on one DataFrame, a union of its branches, and a view count what is
    there.

    In Spark 4.3 a filter that a Python data source takes stays for all later queries of the DataFrame.
    """
    frame = load(spark, fixture_store("classic") / "broker-0" / "store", splitSize="256k")
    total, low = 3021, frame.where("commitLogOffset < 1000000")
    assert frame.count() == total

    lower = low.count()
    assert 0 < lower < total
    assert frame.count() == total
    high = frame.where("commitLogOffset >= 1000000")
    assert low.union(high).count() == total
    assert (frame.where("queueId = 1").count(), frame.count()) == (760, total)

    frame.createOrReplaceTempView("messages")
    assert spark.sql("select * from messages where topic = 'fx-batch'").count() == 16
    assert spark.sql("select * from messages").count() == total
    both = (
        "select topic from messages where queueId = 0 union all select topic from messages where queueId <> 0"
    )
    assert spark.sql(both).count() == total


def test_pushed_filters_stay_off(spark: SparkSession, fixture_store: Unpack) -> None:
    """Also with Spark's switch for pushed filters on, queries of one DataFrame do not disturb each other."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = load(spark, fixture_store("classic") / "broker-0" / "store")
        counts = [frame.where("queueId = 1").count(), frame.count(), frame.where("queueId = 2").count()]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")

    assert counts[1] == 3021
    assert counts[0] + counts[2] < counts[1]


def test_schemas_and_columns(spark: SparkSession, fixture_store: Unpack) -> None:
    """Any columns in any order come as asked for, by a schema or by `columns`."""
    store = str(fixture_store("classic") / "broker-0" / "store")

    by_schema = spark.read.format("rocketmq-commitlog").schema("queueId int, topic string").load(store)
    by_option = load(spark, store, columns="queueId,topic")
    text = load(spark, store, propertiesFormat="string", columns="properties")

    assert by_schema.columns == ["queueId", "topic"]
    assert by_schema.groupBy("queueId").count().collect() == by_option.groupBy("queueId").count().collect()
    assert text.where("properties like '%\\u0001%\\u0002'").count() == 3021


def test_wrong_options_are_told_at_once(spark: SparkSession, fixture_store: Unpack) -> None:
    """All that is wrong with the options stands in one error, with hints."""
    store = fixture_store("classic") / "broker-0" / "store"

    with pytest.raises(Exception, match="splitSize=many") as caught:
        load(spark, store, topik="a", splitSize="many", onCorrupt="perhaps").count()

    assert "did you mean topic?" in str(caught.value)
    assert "must be one of fail, skip, stop" in str(caught.value)
    with pytest.raises(Exception, match="queueId is int, not string"):
        spark.read.format("rocketmq-store").schema("queueId string").load(str(store)).count()
    with pytest.raises(Exception, match="/store looks like one"):
        load(spark, fixture_store("classic") / "broker-0").count()


def test_damage(spark: SparkSession, tmp_path: Path) -> None:
    """Damage fails a query with its place; it is passed over, or given as rows, only if asked for."""
    places = write_log(tmp_path, [message(n, topic="t") for n in range(200)], file_size=1 << 14)
    damage(places[50])

    with pytest.raises(Exception, match=f"no record can be read at {places[50].offset} \\(bad-magic\\)"):
        load(spark, tmp_path, splitSize="2k", columns="queueId").count()
    damage(places[120], 0, bytes(8))
    with pytest.raises(Exception, match=f"{places[120].offset} \\(empty\\), and 79 whole records follow"):
        load(spark, tmp_path, splitSize="2k", columns="queueId").count()
    assert load(spark, tmp_path, splitSize="2k", onCorrupt="skip").count() == 198
    assert load(spark, tmp_path, splitSize="2k", onCorrupt="stop").count() == 50
    rows = load(spark, tmp_path, splitSize="2k", damagedRanges="rows").where("damage is not null")
    assert [
        (r["commitLogOffset"], r["storeSize"], r["damage"]) for r in rows.sort("commitLogOffset").collect()
    ] == [
        (places[50].offset, len(places[50].data), "bad-magic"),
        (places[120].offset, len(places[120].data), "empty"),
    ]


def test_queues_epochs_and_indexes(spark: SparkSession, fixture_store: Unpack) -> None:
    """Units and index entries point to the messages of their store; epochs are those of the file."""
    store = str(fixture_store("controller-mode") / "broker-0" / "store")
    messages = load(spark, store, includeSystemTopics=True)

    units = spark.read.format("rocketmq-consumequeue").option("includeSystemTopics", True).load(store)
    same = ["topic", "queueId", "queueOffset", "commitLogOffset"]
    assert units.count() == units.join(messages, same).where("size = storeSize").count() == 1460
    entries = spark.read.format("rocketmq-index").load(store)
    assert entries.count() == entries.join(messages, "commitLogOffset").count() > 1460
    epochs = spark.read.format("rocketmq-epochs").load(store).orderBy("epoch").collect()
    assert [(e["epoch"], e["startOffset"], e["endOffset"]) for e in epochs] == [
        (1, 0, 184112), (2, 184112, 396784), (3, 396784, 425244), (7, 425244, None),
    ]  # fmt: skip
    by_epoch = {
        row["epoch"]: row["from"]
        for row in messages.groupBy("epoch").agg(f.min("commitLogOffset").alias("from")).collect()
    }
    assert by_epoch == {1: 0, 2: 184112, 3: 396784, 7: 425244}


def test_kafka_columns(spark: SparkSession, fixture_store: Unpack) -> None:
    """A query for Kafka's columns works on messages of a store."""
    frame = load(spark, fixture_store("classic") / "broker-0" / "store", topic="fx-plain")

    row = to_kafka_columns(frame, include_headers=True).where("partition = 1 and offset = 3").collect()[0]

    assert [each.simpleString() for each in (field.dataType for field in to_kafka_columns(frame).schema)] == [
        "binary", "binary", "string", "int", "bigint", "timestamp", "int",
    ]  # fmt: skip
    assert row["value"].startswith(b"body-")
    assert row["key"].startswith(b"k-")
    assert {h["key"]: bytes(h["value"]) for h in row["headers"]}["KEYS"] == bytes(row["key"])
    with pytest.raises(ValueError, match="keys"):
        to_kafka_columns(frame.drop("keys"))


WORKER_STARTS_MAX = 3
WORKER_LATE = "Python worker failed to connect back"
"""Spark waits 10 s for the process that reads a stream, and cannot be told to; busy machines need more."""


def collect_stream(frame: DataFrame, folder: Path, rows: list[int], **trigger: Any) -> list[int]:
    """Run a stream until it ends; gives the number of rows of each batch.

    When Spark did not wait for its own process, the query is started again at its checkpoint.
    """
    for start in range(WORKER_STARTS_MAX):
        try:
            return _run_stream(frame, folder, rows, **trigger)
        except StreamingQueryException as error:
            if WORKER_LATE not in str(error) or start == WORKER_STARTS_MAX - 1:
                raise
    raise AssertionError("it returned or raised")


def _run_stream(frame: DataFrame, folder: Path, rows: list[int], **trigger: Any) -> list[int]:
    batches: list[int] = []

    def take(batch: DataFrame, _: int) -> None:
        offsets = [row[0] for row in batch.select("commitLogOffset").collect()]
        rows.extend(offsets)
        batches.append(len(offsets))

    query = (
        frame.writeStream.foreachBatch(take)
        .option("checkpointLocation", str(folder))
        .trigger(**trigger)
        .start()
    )
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()
    return batches


def test_stream(spark: SparkSession, tmp_path: Path) -> None:
    """A stream reads all there is in batches of the asked size, goes on where it was, and waits for
    successors."""
    store, checkpoint = tmp_path / "store", tmp_path / "checkpoint"
    records = [message(n, topic="t") for n in range(300)]
    places = write_log(store, records[:200], file_size=1 << 14)
    (store / "abort").touch()

    def stream() -> DataFrame:
        options = {"maxBytesPerTrigger": "5k", "splitSize": "2k"}
        return spark.readStream.format("rocketmq-store").options(**options).load(str(store))

    rows: list[int] = []
    batches = collect_stream(stream(), checkpoint, rows, availableNow=True)
    assert rows == [each.offset for each in places[:-1]]
    assert len([each for each in batches if each]) >= 6

    again: list[int] = []
    collect_stream(stream(), checkpoint, again, availableNow=True)
    assert again == []

    more = write_log(store, records, file_size=1 << 14)
    collect_stream(stream(), checkpoint, again, availableNow=True)
    assert again == [each.offset for each in more[199:-1]]

    (store / "abort").unlink()
    collect_stream(stream(), checkpoint, again, availableNow=True)
    assert again[-1] == more[-1].offset


def test_stream_behind_a_store_that_was_replaced(spark: SparkSession, tmp_path: Path) -> None:
    """The checkpoint has what was read: another store in its place fails the query, or is read on if that is
    allowed, from where the shorter log ends."""
    store, checkpoint = tmp_path / "store", tmp_path / "checkpoint"
    write_log(store, [message(n, topic="t") for n in range(100)], file_size=1 << 14)

    def stream(**options: str) -> DataFrame:
        return spark.readStream.format("rocketmq-store").options(**options).load(str(store))

    rows: list[int] = []
    collect_stream(stream(), checkpoint, rows, availableNow=True)
    assert len(rows) == 100

    shutil.rmtree(store)
    later = 3_600_000
    records = [
        replace(each, store_timestamp=each.store_timestamp + later)
        for each in (message(n, topic="t") for n in range(80))
    ]
    write_log(store, records[:40], file_size=1 << 14)
    with pytest.raises(Exception, match="or the store was replaced"):
        collect_stream(stream(), checkpoint, rows, availableNow=True)
    again: list[int] = []
    collect_stream(stream(failOnDataLoss="false"), checkpoint, again, availableNow=True)
    assert again == []

    places = write_log(store, records, file_size=1 << 14)
    collect_stream(stream(), checkpoint, again, availableNow=True)
    assert again == [each.offset for each in places[40:]]


def test_replicas_of_one_group_give_each_message_once(spark: SparkSession, fixture_store: Unpack) -> None:
    """The guide's own pattern over the brokers of a group: one replica is read, or all if that is asked
    for."""
    stores = fixture_store("controller-mode") / "broker-*" / "store"

    frame = load(spark, stores, columns="topic,queueId,queueOffset,commitLogOffset")

    total = frame.count()
    assert total == frame.distinct().count() > 0
    assert load(spark, stores, replicas="all").count() > total
    units = spark.read.format("rocketmq-consumequeue").load(str(stores))
    assert units.count() == units.distinct().count() > 0
    with pytest.raises(Exception, match="are replicas of"):
        load(spark, stores, replicas="fail").count()


def test_a_bad_bit_in_a_crashed_store_fails_the_query(spark: SparkSession, tmp_path: Path) -> None:
    """The newest file of a store with `abort`: the query names the place and what follows; nothing is
    dropped."""
    places = write_log(tmp_path, [message(number) for number in range(100)], file_size=1 << 15)
    (tmp_path / "abort").touch()
    damage(places[60])
    said = rf"no record can be read at {places[60].offset} .*39 whole records follow"

    with pytest.raises(Exception, match=said):
        load(spark, tmp_path, includeSystemTopics=True).count()
    around = load(spark, tmp_path, includeSystemTopics=True, damagedRanges="rows", tailBound="end")
    assert (around.where("damage is null").count(), around.where("damage is not null").count()) == (99, 1)
