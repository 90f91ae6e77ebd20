"""The columns of the wire source: those of Spark's Kafka source, and ours behind them."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from brokerset_spark.kernels import KERNELS
from brokerset_spark.sources.batches import Batches, Filter, Source
from brokerset_spark.sources.columns import MESSAGE_COLUMNS, Column, arrow_schema, problems_of, schema_of
from brokerset_spark.sources.option_values import OptionsError
from brokerset_spark.stores.reading import Chunk
from brokerset_spark.topics.options import NAME, SourceOptions
from brokerset_spark.topics.planning import Range

_HEADER: Final = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_KAFKA: Final = (
    Column("key", BinaryType(), "property KEYS"),
    Column("value", BinaryType(), "body, opened if it is compressed"),
    Column("topic", StringType(), "topic"),
    Column("partition", IntegerType(), "number of the queue within its topic, over brokers by name"),
    Column("offset", LongType(), "number of the message in its queue"),
    Column("timestamp", TimestampType(), "broker's clock"),
    Column("timestampType", IntegerType(), "1: time of storing"),
)
_HEADERS: Final = Column("headers", ArrayType(_HEADER), "all properties; with `includeHeaders=true`")
_VALUE_ERROR: Final = Column("valueError", StringType(), "why `value` is null; with `failOnBadBody=false`")
_NO_RECORDS: Final = ("topic", "epoch", "file")
"""Columns of stores that are Kafka's too, or that a record on the wire does not have."""

_OURS: Final = tuple(each for each in MESSAGE_COLUMNS if each.name not in _NO_RECORDS)
_USUAL: Final = ("brokerName", "queueId", "tags", "msgId", "properties", "bornTimestamp", "reconsumeTimes")
"""Those of ours that a query gets unless it names columns: each one costs, used or not."""

COLUMNS: Final = (*_KAFKA, _HEADERS, _VALUE_ERROR, *_OURS)
_FROM: Final = {
    "key": "keys", "value": "body", "offset": "queueOffset", "timestamp": "storeTimestamp",
    "headers": "properties",
}  # fmt: skip
"""Which column of a store one of Kafka's is made of."""


_MADE_HERE: Final = {"partition", "timestamptype", "valueerror"}
_OPENED: Final = {"value", "valueerror"}
"""Columns for which bodies are opened."""


class BadBody(ValueError):
    """A compressed body that cannot be opened."""


def source_schema(options: SourceOptions) -> StructType:
    """The columns that a query gets. OptionsError for unknown ones."""
    known = {each.name.lower() for each in COLUMNS}
    wrong = [name for name in options.columns if name.lower() not in known]
    if wrong:
        there = ", ".join(each.name for each in COLUMNS)
        raise OptionsError(NAME, [f"columns: no column {', '.join(wrong)}; there are {there}"])
    headers = ("headers",) if options.include_headers else ()
    errors = () if options.fail_on_bad_body else (_VALUE_ERROR.name,)
    names = options.columns or (*(each.name for each in _KAFKA), *headers, *_USUAL, *errors)
    return schema_of(COLUMNS, names)


def check_columns(schema: StructType) -> None:
    """OptionsError if a user's schema asks for what there is not."""
    problems = problems_of(schema, COLUMNS)
    if problems:
        raise OptionsError(f"{NAME}, schema", problems)


def wire_schema(schema: StructType) -> pa.Schema:
    """What Spark expects batches of this schema to have."""
    plain = StructType([field for field in schema.fields if field.name.lower() != "headers"])
    known = {field.name: field for field in arrow_schema(plain)}
    element = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    return pa.schema(
        known.get(field.name, pa.field(field.name, pa.list_(pa.field("element", element)), field.nullable))
        for field in schema.fields
    )


class WireBatches:
    """Turns records of one range into batches of a schema."""

    def __init__(self, schema: pa.Schema, wanted: Range, *, fail_on_bad_body: bool = True) -> None:
        """`fail_on_bad_body`: whether a body that cannot be opened is an error; else its `value` is null."""
        self._schema, self._range, self._fail = schema, wanted, fail_on_bad_body
        self._names = [field.name.lower() for field in schema]
        needed = {_FROM.get(name, name).lower() for name in self._names} - _MADE_HERE
        # `value` is opened, `body` is as stored; a query that wants both gets both as opened.
        opened = not _OPENED.isdisjoint(self._names)
        needed |= {"body"} if opened else set()
        by_name = {each.name.lower(): each.name for each in MESSAGE_COLUMNS}
        names = sorted(by_name[name] for name in needed) or ["queueOffset"]
        inner = arrow_schema(schema_of(MESSAGE_COLUMNS, names))
        self._places = {field.name.lower(): number for number, field in enumerate(inner)}
        source = Source(str(wanted.key), wanted.key.broker)
        self._batches = Batches(inner, source, Filter(), open_bodies=opened, bad_body=self._bad_body)
        self._bad: dict[int, str] = {}

    def build(self, chunk: Chunk) -> pa.RecordBatch:
        """All records of a chunk. BadBody for one that cannot be opened, unless that may be passed over."""
        self._bad = {}
        inner = self._batches.build_all(chunk)
        if self._bad and self._fail:
            row, text = next(iter(self._bad.items()))
            offset = int(KERNELS.heads(chunk.data, chunk.starts).queue_offset[row])
            raise BadBody(
                f"{self._range.key}, offset {offset}: the compressed body cannot be opened: {text}. "
                "failOnBadBody=false gives such rows with a null `value`, and the reason in `valueError`; "
                "columns without `value` leave all bodies as they are"
            )
        arrays = [self._column(name, inner) for name in self._names]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _bad_body(self, number: int, stored: bytes, text: str) -> None:
        self._bad[number] = text

    def _column(self, name: str, inner: pa.RecordBatch) -> pa.Array:
        if name == "partition":
            return pa.repeat(pa.scalar(self._range.partition, pa.int32()), len(inner))
        if name == "timestamptype":
            return pa.repeat(pa.scalar(1, pa.int32()), len(inner))
        if name == "valueerror":
            if not self._bad:
                return pa.nulls(len(inner), pa.string())
            return pa.array([self._bad.get(number) for number in range(len(inner))], pa.string())
        found = inner.column(self._places[_FROM.get(name, name).lower()])
        if name == "key":
            return found.view(pa.binary())
        if name == "headers":
            return _headers(found, self._schema.field(self._names.index("headers")).type)
        return found


def _headers(properties: pa.MapArray, kind: pa.ListType) -> pa.Array:
    values = pa.StructArray.from_arrays(
        [properties.keys, properties.items.view(pa.binary())], fields=list(kind.value_type)
    )
    return pa.ListArray.from_arrays(properties.offsets, values, type=kind)
