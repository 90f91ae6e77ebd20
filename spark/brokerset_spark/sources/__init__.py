"""Spark data sources over store folders: messages, queue units, epochs, index entries.

`register(spark)` makes them known to a session; `docs/spark.md` says what they take and give.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokerset_spark.sources.kafka import to_kafka_columns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register", "toKafkaColumns", "to_kafka_columns"]

toKafkaColumns = to_kafka_columns
"""The same, spelled as Spark spells names."""


def register(spark: SparkSession) -> None:
    """Let a session know `rocketmq-store` (also as `rocketmq-commitlog`) and the three smaller formats."""
    from brokerset_spark.sources.messages import CommitLogSource, StoreSource
    from brokerset_spark.sources.tables import EpochSource, IndexSource, QueueSource

    for source in (StoreSource, CommitLogSource, QueueSource, EpochSource, IndexSource):
        spark.dataSource.register(source)
