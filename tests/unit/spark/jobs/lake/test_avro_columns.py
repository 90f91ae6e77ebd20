"""Avro bodies as columns: types, schemas that evolve, and bytes that are none of it."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_writer
from hypothesis import given
from hypothesis import strategies as st

from brokerset_spark.jobs.lake.avro_columns import (
    ERROR_COLUMN,
    AvroReading,
    AvroTarget,
    WrongSchema,
    columns_of,
)

PLAIN = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"], "default": None}],
}
TYPES: list[tuple[Any, Any, pa.DataType, Any]] = [
    ("boolean", True, pa.bool_(), True),
    ("int", 7, pa.int32(), 7),
    ("float", 0.5, pa.float32(), 0.5),
    ("double", 0.1, pa.float64(), 0.1),
    ("bytes", b"\x00\xff", pa.binary(), b"\x00\xff"),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", pa.string(), "B"),
    ({"type": "fixed", "name": "F", "size": 2}, b"ab", pa.binary(), b"ab"),
    ({"type": "array", "items": "int"}, [1, 2], pa.list_(pa.int32()), [1, 2]),
    ({"type": "map", "values": ["null", "long"]}, {"a": 1, "b": None}, pa.map_(pa.string(), pa.int64()),
     [("a", 1), ("b", None)]),
    ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, Decimal("-3.14"),
     pa.decimal128(9, 2), Decimal("-3.14")),
    ({"type": "int", "logicalType": "date"}, date(2026, 1, 2), pa.date32(), date(2026, 1, 2)),
    ({"type": "int", "logicalType": "time-millis"}, time(1, 0, 0, 5000), pa.int64(), 3_600_005_000),
    ({"type": "long", "logicalType": "timestamp-millis"}, datetime(2026, 1, 2, tzinfo=UTC),
     pa.timestamp("us", tz="UTC"), datetime(2026, 1, 2, tzinfo=UTC)),
    ({"type": "long", "logicalType": "local-timestamp-micros"}, datetime.fromisoformat("2026-01-02T03:00:00"),
     pa.string(), "2026-01-02T03:00:00"),
    ({"type": "string", "logicalType": "uuid"}, uuid.UUID(int=1), pa.string(), str(uuid.UUID(int=1))),
    (["null", "int", "string"], "x", pa.string(), '"x"'),
    ({"type": "record", "name": "R",
      "fields": [{"name": "t", "type": {"type": "int", "logicalType": "time-millis"}}]},
     {"t": time(0, 0, 1)}, pa.struct([("t", pa.int64())]), {"t": 1_000_000}),
    ({"type": "record", "name": "Tree", "fields": [{"name": "next", "type": ["null", "Tree"]}]},
     {"next": {"next": None}}, pa.struct([("next", pa.string())]), {"next": '{"next":null}'}),
]  # fmt: skip


def target(*schemas: Any) -> AvroTarget:
    return AvroTarget("http://registry:8081", tuple(json.dumps(each) for each in schemas))


def written(schema: Any, value: Any, number: int = 1) -> bytes:
    stream = io.BytesIO()
    schemaless_writer(stream, parse_schema(schema), value)
    return b"\x00" + number.to_bytes(4, "big") + stream.getvalue()


def reading(reader: Any, writers: dict[int, Sequence[Any] | str]) -> AvroReading:
    return AvroReading(target(reader), lambda number: writers.get(number, f"there is no schema {number}"))


@pytest.mark.parametrize(("schema", "value", "kind", "expected"), TYPES, ids=lambda each: str(each)[:40])
def test_each_type_has_its_column(schema: Any, value: Any, kind: pa.DataType, expected: Any) -> None:
    """What Arrow has no type for that all formats have is text or a number; the value is the same."""
    record = {"type": "record", "name": "One", "fields": [{"name": "value", "type": schema}]}
    (column, error) = columns_of(target(record), ())
    arrays, misfits, _ = reading(record, {1: [record]}).read([written(record, {"value": value})])

    assert (column.name, column.type, error.name) == ("value", kind, ERROR_COLUMN)
    assert (arrays[0].type, arrays[0].to_pylist(), misfits) == (kind, [expected], [])


def test_a_newer_writer_and_an_older_one_fill_the_same_columns() -> None:
    """By Avro's rules: a field that the target lacks is passed over, one that the writer lacks has its
    default, and an alias names a field otherwise."""
    newer = {**PLAIN, "fields": [{"name": "more", "type": "string"}, *PLAIN["fields"]]}
    older = {**PLAIN, "fields": [{"name": "id", "type": "int"}]}
    named = {
        **PLAIN,
        "fields": [
            {"name": "order", "aliases": ["id"], "type": "long"},
            {"name": "note", "type": "string", "default": "-"},
        ],
    }
    bodies = [written(newer, {"more": "x", "id": 1, "note": "a"}, 1), written(older, {"id": 2}, 2)]

    arrays, misfits, _ = reading(named, {1: [newer], 2: [older]}).read(bodies)

    assert [each.to_pylist() for each in arrays] == [[1, 2], ["a", "-"], [None, None]]
    assert not misfits


def test_what_is_no_such_avro_says_why_and_is_null() -> None:
    """No magic byte, no such number, bytes of something else, bytes left over, another schema."""
    good = written(PLAIN, {"id": 1, "note": "a"})
    other = {"type": "record", "name": "Order", "fields": [{"name": "unit", "type": "string"}]}
    bodies = [good, None, b"{}", b"\x01" + good[1:], good[:5] + b"\x02\x02\xff", good + b"!", good[:-1],
              written(PLAIN, {"id": 1, "note": None}, 9), written(other, {"unit": "x"}, 2)]  # fmt: skip
    arrays, misfits, text = reading(PLAIN, {1: [PLAIN], 2: [other]}).read(bodies)
    reasons = arrays[-1].to_pylist()

    assert misfits == list(range(1, 9))
    assert arrays[0].to_pylist() == [1] + [None] * 8
    assert text.startswith("cannot be read as Avro, first: it does not begin with a zero byte")
    assert reasons[0] is None
    assert reasons[5] == "schema 1: 1 bytes are left over"
    assert reasons[7] == "there is no schema 9"
    assert all(reasons[1:])


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=40), st.binary(max_size=40).map(lambda data: b"\x00\x00\x00\x00\x01" + data)
        )
    )
)
def test_no_bytes_stop_it(bodies: list[bytes]) -> None:
    """Each body is a row with a reason, or one that fits; never an exception."""
    arrays, misfits, _ = reading(PLAIN, {1: [PLAIN]}).read(bodies)

    assert {len(each) for each in arrays} == {len(bodies)}
    assert [at for at, reason in enumerate(arrays[-1].to_pylist()) if reason is not None] == misfits


def test_values_that_their_column_cannot_hold_make_the_body_a_misfit() -> None:
    """A decimal of more digits than its schema says: the other column of the body is null as well."""
    record = {
        "type": "record",
        "name": "Sum",
        "fields": [
            {"name": "id", "type": "int"},
            {"name": "sum", "type": {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 0}},
        ],
    }
    wide = json.loads(json.dumps(record).replace('"precision": 3', '"precision": 9'))
    bodies = [
        written(record, {"id": 1, "sum": Decimal(12)}),
        written(wide, {"id": 2, "sum": Decimal(123456)}),
    ]
    arrays, misfits, _ = reading(record, {1: [record]}).read(bodies)

    assert misfits == [1]
    assert arrays[0].to_pylist() == [1, None]


def test_types_of_other_subjects_are_known() -> None:
    """A schema may refer to types that are registered elsewhere: they come before it."""
    money = {
        "type": "record",
        "name": "Money",
        "namespace": "a",
        "fields": [{"name": "cents", "type": "long"}],
    }
    bill = {"type": "record", "name": "Bill", "fields": [{"name": "sum", "type": "a.Money"}]}
    stream = io.BytesIO()
    names: dict[str, Any] = {}
    parse_schema(money, named_schemas=names)
    schemaless_writer(stream, parse_schema(bill, named_schemas=names), {"sum": {"cents": 5}})
    found = AvroReading(target(money, bill), lambda number: [money, bill])

    arrays, misfits, _ = found.read([b"\x00\x00\x00\x00\x01" + stream.getvalue()])

    assert (arrays[0].to_pylist(), misfits) == ([{"cents": 5}], [])


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ("string", "no record"),
        ({"type": "record", "name": "x", "fields": [{"name": "a", "type": "nothing"}]}, "no Avro schema"),
        ({"type": "record", "name": "x", "fields": [{"name": "Keys", "type": "int"}]}, "aliases"),
    ],
)
def test_schemas_that_cannot_be_columns_are_refused(schema: Any, text: str) -> None:
    """Before anything is read."""
    with pytest.raises(WrongSchema, match=text):
        columns_of(target(schema), ("keys",))


NODE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}


def test_a_body_that_is_deep_within_itself_is_a_misfit() -> None:
    """A schema that refers to itself sets no bound, and fastavro's C reader ends the process for it."""
    bodies = [b"\x00\x00\x00\x00\x01" + b"\x02" * depth + b"\x00" for depth in (1, 200_000)]
    other = {"type": "record", "name": "Node", "fields": [{"name": "more", "type": "int", "default": 1}]}
    for reader in (NODE, other):  # the second one passes over it
        arrays, misfits, _ = reading(reader, {1: [NODE]}).read(bodies)

        assert misfits == [1]
        assert "RecursionError" in arrays[-1].to_pylist()[1]


def test_types_that_form_a_long_chain_are_read_without_the_c_reader() -> None:
    """Each is in its own subject: no JSON is deep, and the body has no byte too many."""
    chain: list[Any] = [{"type": "record", "name": "T0", "fields": [{"name": "x", "type": "int"}]}]
    for at in range(1, 5000):
        chain.append(
            {"type": "record", "name": f"T{at}", "fields": [{"name": "x", "type": ["null", f"T{at - 1}"]}]}
        )
    reader = {"type": "record", "name": "T4999", "fields": [{"name": "y", "type": "int", "default": 1}]}
    body = b"\x00\x00\x00\x00\x01" + b"\x02" * 4999 + b"\x02"

    arrays, misfits, _ = reading(reader, {1: chain}).read([body])

    assert misfits == [0]
    assert "RecursionError" in arrays[-1].to_pylist()[0]


@pytest.mark.parametrize(
    "items",
    [
        "null",
        {"type": "fixed", "name": "Zero", "size": 0},
        {"type": "record", "name": "Empty", "fields": [{"name": "x", "type": "null"}]},
    ],
    ids=str,
)
def test_an_array_whose_items_take_no_bytes_is_not_counted(items: Any) -> None:
    """Ten bytes would be 2**60 items: memory without end, or a loop where the column is passed over."""
    record = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "a", "type": ["null", {"type": "map", "values": {"type": "array", "items": items}}]}
        ],
    }
    body = b"\x00\x00\x00\x00\x01" + b"\x02\x02\x02k" + b"\xfe" + b"\xff" * 8 + b"\x01"

    arrays, misfits, _ = reading(PLAIN, {1: [record]}).read([body])

    assert misfits == [0]
    assert "take no bytes" in arrays[-1].to_pylist()[0]


def test_a_default_is_what_a_body_with_that_value_gives() -> None:
    """Of each type, also within records that a default has only parts of."""
    given = [
        ({"type": "long", "logicalType": "timestamp-millis"}, 1_700_000_000_000),
        ({"type": "long", "logicalType": "timestamp-micros"}, 1_700_000_000_000_001),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, 5),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, 5),
        ({"type": "int", "logicalType": "date"}, 3),
        ({"type": "int", "logicalType": "time-millis"}, 3),
        ({"type": "long", "logicalType": "time-micros"}, 3),
        ({"type": "string", "logicalType": "uuid"}, str(uuid.UUID(int=5))),
        ("bytes", "\u00ff\u0001"),
        ({"type": "fixed", "name": "F", "size": 1}, "\u00fe"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}, "\u00ff"),
        ({"type": "array", "items": "bytes"}, ["\u00ff"]),
        ({"type": "map", "values": "bytes"}, {"k": "\u00ff"}),
        (["bytes", "null"], "\u00ff"),
        (["null", "bytes"], None),
        ({"type": "record", "name": "In", "fields": [{"name": "x", "type": "bytes", "default": "\u00fd"},
                                                     {"name": "y", "type": "int"}]}, {"y": 1}),
    ]  # fmt: skip
    fields = [{"name": f"f{at}", "type": kind, "default": value} for at, (kind, value) in enumerate(given)]
    reader = {"type": "record", "name": "R", "fields": fields}
    whole = {
        "f0": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
        "f1": datetime(2023, 11, 14, 22, 13, 20, 1, tzinfo=UTC),
        "f2": datetime.fromisoformat("1970-01-01T00:00:00.005000"),
        "f3": datetime.fromisoformat("1970-01-01T00:00:00.000005"),
        "f4": date(1970, 1, 4),
        "f5": time(0, 0, 0, 3000),
        "f6": time(0, 0, 0, 3),
        "f7": uuid.UUID(int=5),
        "f8": b"\xff\x01",
        "f9": b"\xfe",
        "f10": Decimal("-0.01"),
        "f11": [b"\xff"],
        "f12": {"k": b"\xff"},
        "f13": b"\xff",
        "f14": None,
        "f15": {"x": b"\xfd", "y": 1},
    }
    older = {"type": "record", "name": "R", "fields": []}

    arrays, misfits, _ = reading(reader, {1: [older], 2: [reader]}).read(
        [written(older, {}), written(reader, whole, 2)]
    )

    assert not misfits
    for array in arrays:
        by_default, by_value = array.to_pylist()
        assert by_default == by_value


@pytest.mark.parametrize(
    ("schemas", "text"),
    [
        ([{"type": "record", "name": "T0", "fields": [{"name": "x", "type": "int"}]},
          *({"type": "record", "name": f"T{at}", "fields": [{"name": name, "type": f"T{at - 1}"}
                                                            for name in ("x", "y")]} for at in range(1, 40))],
         "more than"),
        ([{"type": "record", "name": "R", "fields": [
            {"name": "x", "type": {"type": "bytes", "logicalType": "decimal"}}]}], "no Avro schema"),
        ([{"type": "record", "name": "R", "fields": [
            {"name": "x", "type": {"type": "bytes", "logicalType": "decimal", "precision": 0}}]}],
         "no Avro schema"),
        ([{"type": "record", "name": "R", "fields": [{"name": "x", "type": "bytes", "default": "\u4e00"}]}],
         "no Avro schema"),
    ],
    ids=["doubling", "no precision", "no digits", "default"],
)  # fmt: skip
def test_a_target_that_no_table_can_have_is_refused(schemas: list[Any], text: str) -> None:
    """With a reason, and soon: a few kilobytes of types can stand for more columns than there are atoms."""
    with pytest.raises(WrongSchema, match=text):
        columns_of(target(*schemas), ())


def test_a_target_that_is_too_deep_is_refused() -> None:
    """As deep as JSON is read."""
    kind = '{"type":"array","items":' * 1000 + '"int"' + "}" * 1000
    schema = '{"type":"record","name":"R","fields":[{"name":"x","type":' + kind + "}]}"
    with pytest.raises(WrongSchema, match="no Avro schema"):
        columns_of(AvroTarget("http://registry:8081", (schema,)), ())


def test_a_decimal_of_a_million_digits_is_a_misfit_at_once() -> None:
    """Python takes time by the square of its length; more bytes than digits are bytes of something else."""

    def record(kind: Any) -> Any:
        return {"type": "record", "name": "R", "fields": [{"name": "x", "type": kind}]}

    narrow, wide = (
        record({"type": "bytes", "logicalType": "decimal", "precision": digits}) for digits in (9, 60)
    )
    bodies = [written(record("bytes"), {"x": b"\x7f" * size}) for size in (3, 4 << 20)]

    arrays, misfits, _ = reading(narrow, {1: [narrow]}).read(bodies)
    assert (arrays[0].to_pylist(), misfits) == ([Decimal(0x7F7F7F), None], [1])
    assert "bytes" in arrays[-1].to_pylist()[1]

    most = [Decimal(sign + "9" * 60) for sign in ("", "-")]
    arrays, misfits, _ = reading(wide, {1: [wide]}).read([written(wide, {"x": each}) for each in most])
    assert (arrays[0].to_pylist(), misfits) == ([str(each) for each in most], [])
