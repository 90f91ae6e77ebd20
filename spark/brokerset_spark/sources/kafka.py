"""Messages with the columns of Spark's Kafka source, for queries that were written for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NEEDED = ("topic", "body", "keys", "queueId", "queueOffset", "storeTimestamp")


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
