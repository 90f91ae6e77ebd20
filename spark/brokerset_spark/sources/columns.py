"""The columns of the data sources: names, types, what they hold, and schemas made of them.

The first nine of a message have the names and types of the Java connector (`rocketmq-spark`), so that queries
can be carried over; `properties` is a map unless `propertiesFormat=string` asks for Java's string.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

_INT, _LONG, _TEXT, _BYTES, _TIME = IntegerType(), LongType(), StringType(), BinaryType(), TimestampType()
_MAP = MapType(StringType(), StringType())


@dataclass(frozen=True, slots=True)
class Column:
    """One column."""

    name: str
    type: DataType
    summary: str


MESSAGE_COLUMNS: Final = (
    Column("topic", _TEXT, "topic"),
    Column("flag", _INT, "flag of the application"),
    Column("body", _BYTES, "body as stored; opened with `decompress=true`"),
    Column("properties", _MAP, "all properties; text with `propertiesFormat=string`"),
    Column("brokerName", _TEXT, "option `brokerName`, else of the store's `brokerIdentity`, else null"),
    Column("queueId", _INT, "queue"),
    Column("queueOffset", _LONG, "number of the message in its queue"),
    Column("bornTimestamp", _TIME, "producer's clock; null for a time that Spark cannot hold"),
    Column("storeTimestamp", _TIME, "broker's clock"),
    Column("commitLogOffset", _LONG, "where the record begins: unique in a store"),
    Column("storeSize", _INT, "bytes of the record"),
    Column("bodyCRC", _INT, "CRC-32 of the stored body, 31 bits"),
    Column("sysFlag", _INT, "compression, transaction type, address sizes"),
    Column("bornHost", _TEXT, "producer, `ip:port`"),
    Column("storeHost", _TEXT, "broker that wrote the record, `ip:port`"),
    Column("reconsumeTimes", _INT, "failed deliveries before this one"),
    Column("preparedTransactionOffset", _LONG, "offset of the half message, 0 if there is none"),
    Column("epoch", _INT, "epoch of the master that wrote it, null without epoch file"),
    Column("tags", _TEXT, "property TAGS"),
    Column("keys", _TEXT, "property KEYS"),
    Column("msgId", _TEXT, "property UNIQ_KEY, the producer's id"),
    Column("offsetMsgId", _TEXT, "the broker's id: storing host and offset"),
    Column("file", _TEXT, "file of the store, below its root"),
)

DAMAGE: Final = Column("damage", _TEXT, "why a range could not be read; null for a message")

QUEUE_COLUMNS: Final = (
    Column("topic", _TEXT, "topic"),
    Column("queueId", _INT, "queue"),
    Column("queueOffset", _LONG, "number of the unit"),
    Column("commitLogOffset", _LONG, "record that it points to"),
    Column("size", _INT, "bytes of that record"),
    Column("tagsCode", _LONG, "hash of the tags; in the delay topic the time of delivery"),
    Column("brokerName", _TEXT, "as for messages"),
    Column("file", _TEXT, "file of the store, below its root"),
)

EPOCH_COLUMNS: Final = (
    Column("epoch", _INT, "epoch of a master"),
    Column("startOffset", _LONG, "first byte of the log that it wrote"),
    Column("endOffset", _LONG, "where the next one starts; null for the newest"),
    Column("brokerName", _TEXT, "as for messages"),
    Column("brokerId", _LONG, "of `brokerIdentity`"),
    Column("store", _TEXT, "the store's URL"),
)

INDEX_COLUMNS: Final = (
    Column("keyHash", _INT, "hash of `topic#key`"),
    Column("commitLogOffset", _LONG, "record that has the key"),
    Column("storeTimestamp", _TIME, "of the record, cut to seconds after the file's first"),
    Column("slot", _INT, "place in the hash table"),
    Column("number", _INT, "number of the entry in its file, from 1"),
    Column("previous", _INT, "older entry of the same slot, 0 if there is none"),
    Column("brokerName", _TEXT, "as for messages"),
    Column("file", _TEXT, "file of the store, below its root"),
)


def schema_of(columns: Sequence[Column], names: Sequence[str] = ()) -> StructType:
    """Schema of these columns, or of those named, in the order of the names; KeyError for an unknown name."""
    by_name = {each.name.lower(): each for each in columns}
    wanted = [by_name[name.lower()] for name in names] if names else columns
    return StructType([StructField(each.name, each.type) for each in wanted])


def with_text_properties(columns: Sequence[Column]) -> tuple[Column, ...]:
    """The same with `properties` as text."""
    return tuple(
        Column(each.name, _TEXT, each.summary) if each.name == "properties" else each for each in columns
    )


def problems_of(schema: StructType, columns: Sequence[Column]) -> list[str]:
    """What a user's schema has that these columns do not: a sentence for each."""
    by_name = {each.name.lower(): each for each in columns}
    problems = []
    for field in schema.fields:
        column = by_name.get(field.name.lower())
        if column is None:
            problems.append(
                f"there is no column {field.name}; there are {', '.join(c.name for c in columns)}"
            )
        elif field.dataType != column.type:
            problems.append(
                f"column {field.name} is {column.type.simpleString()}, not {field.dataType.simpleString()}: "
                "read it as it is and cast it"
            )
    return problems


_ARROW: Final = {
    "int": pa.int32(),
    "bigint": pa.int64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


def arrow_schema(schema: StructType) -> pa.Schema:
    """What Spark expects batches of this schema to have."""
    fields = []
    for field in schema.fields:
        if isinstance(field.dataType, MapType):
            values = pa.field("value", pa.string(), nullable=field.dataType.valueContainsNull)
            kind: pa.DataType = pa.map_(pa.field("key", pa.string(), nullable=False), values)
        else:
            kind = _ARROW[field.dataType.simpleString()]
        fields.append(pa.field(field.name, kind, nullable=field.nullable))
    return pa.schema(fields)
