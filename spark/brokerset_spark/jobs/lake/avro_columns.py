"""Avro bodies with a registry's number of their schema, as typed columns of the table. Pure but for
`Writers`.

A body is a zero byte, four bytes with the number of the schema that it was written with, and the record
(Confluent's wire format). It is read as the target's schema, which Avro's rules for evolution match with the
writer's: columns stay while producers go on to newer versions.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import time
from itertools import count
from typing import Any, ClassVar, Final

import orjson
import pyarrow as pa
from fastavro import _read_py, parse_schema, schemaless_reader
from fastavro.read import LOGICAL_READERS

from brokerset_spark.jobs.lake.avro_schemas import (
    C_DEPTH_MAX,
    bounded_decimal,
    depth_of,
    endless_array,
    put_defaults,
)
from brokerset_spark.jobs.lake.ranges import Event
from brokerset_spark.json_values import CAMEL

ERROR_COLUMN: Final = "avroError"
"""Why a body could not be read; null for one that was."""

MAGIC: Final = 0
HEAD_BYTES: Final = 5
DECIMAL_DIGITS_MAX: Final = 38
REASON_LENGTH_MAX: Final = 300
TYPES_MAX: Final = 10_000
"""Columns and what is within them: a schema that names each type twice doubles them with each level."""

for _kind in ("bytes-decimal", "fixed-decimal"):  # here fastavro has its readers changed, of C and Python
    LOGICAL_READERS[_kind] = bounded_decimal(LOGICAL_READERS[_kind])

Convert = Callable[[Any], Any]
"""A value of fastavro as Arrow takes it; never called with None."""


@dataclass(frozen=True, slots=True)
class AvroTarget:
    """What bodies are read as."""

    __pydantic_config__: ClassVar = CAMEL

    registry: str
    """URL of the registry that knows the writers' schemas."""
    schemas: tuple[str, ...]
    """JSON: the record that the columns are made of at the end, before it the types that it refers to."""


class WrongSchema(ValueError):
    """The target's schema cannot be columns; the text says why."""


def parsed(schemas: Sequence[Any]) -> tuple[Any, dict[str, Any]]:
    """The last of these schemas, which may refer to those before it, and all named types."""
    named: dict[str, Any] = {}
    found: Any = None
    for each in schemas:
        found = parse_schema(each, named_schemas=named)
    return found, named


def columns_of(target: AvroTarget, taken: Sequence[str]) -> list[pa.Field]:
    """The columns, with that of errors. WrongSchema for what cannot be; `taken` are names of other
    columns."""
    try:
        record, named = _target(target)
        fields = _fields(record, named) if _is_record(record) else []
    except WrongSchema:
        raise
    except Exception as error:  # fastavro raises KeyError and TypeError as well for what is no schema
        raise WrongSchema(f"the schema is no Avro schema: {error!r}") from error
    if not _is_record(record):
        raise WrongSchema("the schema is no record, so it has no columns")
    used = {name.lower() for name in (*taken, ERROR_COLUMN)}
    for field in record["fields"]:
        if field["name"].lower() in used:
            raise WrongSchema(
                f"field {field['name']} has the name of a column of every table: give a schema "
                f'(--schema-file) that names it otherwise ("aliases": ["{field["name"]}"]), or not at all'
            )
        used.add(field["name"].lower())
    return [
        *(pa.field(name, kind) for name, kind, _ in fields),
        pa.field(ERROR_COLUMN, pa.string()),
    ]


def _target(target: AvroTarget) -> tuple[Any, dict[str, Any]]:
    record, named = parsed([orjson.loads(each) for each in target.schemas])
    put_defaults(record, named)
    return record, named


def _is_record(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "record"


def _fields(record: Any, named: Mapping[str, Any]) -> list[tuple[str, pa.DataType, Convert | None]]:
    made, within = count(1), (record["name"],)
    return [(each["name"], *_type(each["type"], named, within, made)) for each in record["fields"]]


def _type(
    schema: Any, named: Mapping[str, Any], within: tuple[str, ...], made: Iterator[int]
) -> tuple[pa.DataType, Convert | None]:
    """Arrow's type of an Avro type, and how its values are converted; None: not at all. `made` counts
    types."""
    if next(made) > TYPES_MAX:
        raise WrongSchema(f"the schema has more than {TYPES_MAX} columns, with those within columns")
    if isinstance(schema, list):
        others = [each for each in schema if each != "null" and each != {"type": "null"}]
        return _type(others[0], named, within, made) if len(others) == 1 else (pa.string(), _as_json)
    if isinstance(schema, str) and schema in named:
        schema = named[schema]
    kind = schema if isinstance(schema, str) else schema["type"]
    if isinstance(kind, dict | list):
        return _type(kind, named, within, made)
    logical = None if isinstance(schema, str) else schema.get("logicalType")
    if logical in _LOGICAL and (logical, kind) in _LOGICAL_ON:
        return _LOGICAL[logical]
    if logical == "decimal" and kind in ("bytes", "fixed"):
        if schema["precision"] > DECIMAL_DIGITS_MAX:
            return pa.string(), str
        return pa.decimal128(schema["precision"], schema.get("scale", 0)), None
    if kind == "array":
        inner, convert = _type(schema["items"], named, within, made)
        return pa.list_(inner), _each(convert)
    if kind == "map":
        inner, convert = _type(schema["values"], named, within, made)
        return pa.map_(pa.string(), inner), _items(convert)
    if kind in ("record", "error"):
        if schema["name"] in within or not schema["fields"]:
            return pa.string(), _as_json  # a tree has no type, and a struct without fields is none everywhere
        fields = [
            (each["name"], *_type(each["type"], named, (*within, schema["name"]), made))
            for each in schema["fields"]
        ]
        return pa.struct([pa.field(name, inner) for name, inner, _ in fields]), _parts(fields)
    return _PLAIN.get(kind, (pa.string(), _as_json))


def _as_json(value: Any) -> str:
    return orjson.dumps(value, default=_plain, option=orjson.OPT_NON_STR_KEYS).decode()


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else str(value)


def _micros(value: time) -> int:
    return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond


def _each(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    return lambda values: [None if value is None else convert(value) for value in values]


def _items(convert: Convert | None) -> Convert:
    if convert is None:
        return lambda values: list(values.items())
    return lambda values: [(key, None if value is None else convert(value)) for key, value in values.items()]


def _parts(fields: Sequence[tuple[str, pa.DataType, Convert | None]]) -> Convert | None:
    converts = [(name, convert) for name, _, convert in fields if convert is not None]
    if not converts:
        return None

    def convert_all(value: Any) -> Any:
        made = dict(value)
        for name, convert in converts:
            if made[name] is not None:
                made[name] = convert(made[name])
        return made

    return convert_all


_PLAIN: Final[dict[str, tuple[pa.DataType, Convert | None]]] = {
    "boolean": (pa.bool_(), None),
    "int": (pa.int32(), None),
    "long": (pa.int64(), None),
    "float": (pa.float32(), None),
    "double": (pa.float64(), None),
    "bytes": (pa.binary(), None),
    "fixed": (pa.binary(), None),
    "string": (pa.string(), None),
    "enum": (pa.string(), None),
}
_LOGICAL: Final[dict[str, tuple[pa.DataType, Convert | None]]] = {
    "date": (pa.date32(), None),
    "time-millis": (pa.int64(), _micros),
    "time-micros": (pa.int64(), _micros),
    "timestamp-millis": (pa.timestamp("us", tz="UTC"), None),
    "timestamp-micros": (pa.timestamp("us", tz="UTC"), None),
    "local-timestamp-millis": (pa.string(), lambda value: value.isoformat()),
    "local-timestamp-micros": (pa.string(), lambda value: value.isoformat()),
    "uuid": (pa.string(), str),
}
"""Not all formats have times of a day, or times without a zone: those are microseconds and ISO 8601."""

_LOGICAL_ON: Final = {
    ("date", "int"),
    ("time-millis", "int"),
    ("time-micros", "long"),
    ("timestamp-millis", "long"),
    ("timestamp-micros", "long"),
    ("local-timestamp-millis", "long"),
    ("local-timestamp-micros", "long"),
    ("uuid", "string"),
}
"""On other types Avro says to pass over them."""


@dataclass(frozen=True, slots=True)
class _Writer:
    """A schema that bodies are written with, and what reads it."""

    schema: Any
    read: Callable[..., Any]


class _Misfit(Exception):
    """A body that cannot be read, and why."""


class AvroReading:
    """Reads bodies. `writers` gives the writer's schemas of a number, or why there is none, and keeps
    them."""

    event = Event.AVRO_MISFIT

    def __init__(self, target: AvroTarget, writers: Callable[[int], Sequence[Any] | str]) -> None:
        self._record, named = _target(target)
        self._columns = _fields(self._record, named)
        self.names = [*(name for name, _, _ in self._columns), ERROR_COLUMN]
        self._writers = writers
        self._parsed: dict[int, _Writer | str] = {}

    def read(self, bodies: Sequence[bytes | None]) -> tuple[list[pa.Array], list[int], str]:
        """The columns, which bodies do not fit, and what those are."""
        values: list[list[Any]] = [[] for _ in self._columns]
        reasons: list[str | None] = []
        for body in bodies:
            try:
                row, reason = self._row(body or b""), None
            except _Misfit as error:
                row, reason = (None,) * len(values), str(error)[:REASON_LENGTH_MAX]
            reasons.append(reason)
            for to, value in zip(values, row, strict=True):
                to.append(value)
        arrays = [self._array(at, column, reasons) for at, column in enumerate(values)]
        misfits = [at for at, reason in enumerate(reasons) if reason is not None]
        if misfits:  # a body has all of its columns, or none of them
            mask = pa.array([reason is not None for reason in reasons])
            arrays = [_without(each, mask) for each in arrays]
        first = f", first: {reasons[misfits[0]]}" if misfits else ""
        return [*arrays, pa.array(reasons, pa.string())], misfits, f"cannot be read as Avro{first}"

    def _row(self, body: bytes) -> tuple[Any, ...]:
        if len(body) < HEAD_BYTES or body[0] != MAGIC:
            raise _Misfit(
                f"it does not begin with a zero byte and a schema's number: {body[:HEAD_BYTES].hex()}"
            )
        number = int.from_bytes(body[1:HEAD_BYTES], "big")
        writer = self._parsed.get(number)
        if writer is None:
            writer = self._parsed[number] = self._writer(number)
        if isinstance(writer, str):
            raise _Misfit(writer)
        stream = io.BytesIO(body)
        stream.seek(HEAD_BYTES)
        try:
            found: Any = writer.read(stream, writer.schema, self._record)
            row = tuple(
                value if convert is None or value is None else convert(value)
                for value, convert in ((found[name], convert) for name, _, convert in self._columns)
            )
        except Exception as error:  # whatever bytes of something else make of a decoder
            raise _Misfit(f"schema {number}: {error!r}") from error
        if stream.tell() != len(body):
            raise _Misfit(f"schema {number}: {len(body) - stream.tell()} bytes are left over")
        return row

    def _writer(self, number: int) -> _Writer | str:
        found = self._writers(number)
        if isinstance(found, str):
            return found
        try:
            schema, named = parsed(found)
            if endless_array(schema, named):
                return f"schema {number} has an array of items that take no bytes: it may never end"
            is_deep = depth_of(schema, named) > C_DEPTH_MAX
            return _Writer(schema, _read_py.schemaless_reader if is_deep else schemaless_reader)
        except Exception as error:  # as in `columns_of`
            return f"schema {number} is no Avro schema: {error!r}"

    def _array(self, at: int, values: list[Any], reasons: list[str | None]) -> pa.Array:
        name, kind, _ = self._columns[at]
        try:
            return pa.array(values, kind)
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            fitting = []
            for row, value in enumerate(values):
                try:
                    pa.array([value], kind)
                except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
                    value = None
                    reasons[row] = reasons[row] or f"{name}: {error}"[:REASON_LENGTH_MAX]
                fitting.append(value)
            return pa.array(fitting, kind)


def _without(array: pa.Array, mask: pa.Array) -> pa.Array:
    """Nulls where the mask is true."""
    keep = pa.array([None if out.as_py() else at for at, out in enumerate(mask)], pa.int64())
    return array.take(keep)
