"""Spark data sources: topics over the wire; messages, queue units, epochs and index entries of stores.

`register(spark)` makes them known to a session; `docs/spark.md` says what they take and give.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["register", "toKafkaColumns", "to_kafka_columns"]

NEEDED = ("topic", "body", "keys", "queueId", "queueOffset", "storeTimestamp")


def register(spark: SparkSession) -> None:
    """Let a session know `rocketmq`, `rocketmq-store` (or `rocketmq-commitlog`), and the smaller formats."""
    from brokerset_spark.sources.messages import CommitLogSource, StoreSource
    from brokerset_spark.sources.tables import EpochSource, IndexSource, QueueSource
    from brokerset_spark.topics.source import TopicSource

    for source in (TopicSource, StoreSource, CommitLogSource, QueueSource, EpochSource, IndexSource):
        spark.dataSource.register(source)


def to_kafka_columns(frame: DataFrame, *, include_headers: bool = False) -> DataFrame:
    """key, value, topic, partition, offset, timestamp, timestampType, and headers if asked for.

    `timestampType` is 1, time of storing, as in Kafka's `LogAppendTime`. Headers are the properties in any
    order. ValueError if the frame lacks a column, or has properties as text where headers are wanted.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import MapType

    needed = (*NEEDED, "properties") if include_headers else NEEDED
    missing = [name for name in needed if name not in frame.columns]
    if missing:
        raise ValueError(f"columns {', '.join(missing)} are missing; load the store without `columns`")
    columns = [
        f.col("keys").cast("binary").alias("key"),
        f.col("body").alias("value"),
        f.col("topic"),
        f.col("queueId").alias("partition"),
        f.col("queueOffset").alias("offset"),
        f.col("storeTimestamp").alias("timestamp"),
        f.lit(1).alias("timestampType"),
    ]
    if include_headers:
        if not isinstance(frame.schema["properties"].dataType, MapType):
            raise ValueError("headers need properties as a map: load with propertiesFormat=map")
        headers = f.transform(
            f.map_entries("properties"),
            lambda entry: f.struct(entry["key"].alias("key"), entry["value"].cast("binary").alias("value")),
        )
        columns.append(headers.alias("headers"))
    return frame.select(*columns)


toKafkaColumns = to_kafka_columns
"""The same, spelled as Spark spells names."""
