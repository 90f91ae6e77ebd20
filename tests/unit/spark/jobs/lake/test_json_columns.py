"""Fields of JSON bodies as columns."""

from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerset_spark.jobs.lake.json_columns import KINDS, JsonColumn, parse_columns, read_columns

COLUMNS = tuple(JsonColumn(kind, kind) for kind in KINDS)


def test_values_of_the_right_type_are_taken_and_others_are_null() -> None:
    """A misfit costs its own field, not the others of its message; missing and null fields fit."""
    bodies = [
        b'{"string": "a", "bigint": 1, "double": 1, "boolean": true}',
        b'{"string": [1], "bigint": "1", "double": 2.5}',
        b'{"bigint": true}',
        b'{"string": null}',
        b"[1]",
        b"{",
        b'{"bigint": 9223372036854775808}',
    ]

    arrays, misfits = read_columns(bodies, COLUMNS)

    strings, wholes, numbers, truths = (each.to_pylist() for each in arrays)
    assert strings == ["a", "[1]", None, None, None, None, None]
    assert wholes == [1, None, None, None, None, None, None]
    assert numbers == [1.0, 2.5, None, None, None, None, None]
    assert truths == [True, None, None, None, None, None, None]
    assert misfits == [1, 2, 4, 5, 6]


VALUES = st.recursive(
    st.integers() | st.floats() | st.text(max_size=3) | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
DOCUMENTS = st.dictionaries(st.sampled_from([*KINDS, "x"]), VALUES, max_size=3)


@given(st.lists(st.binary(max_size=20) | DOCUMENTS.map(lambda each: json.dumps(each).encode()), max_size=5))
def test_no_body_stops_the_export(bodies: list[bytes]) -> None:
    """Whatever bodies hold: each has one row in each column."""
    arrays, misfits = read_columns(bodies, COLUMNS)

    assert {len(each) for each in arrays} == {len(bodies)}
    assert set(misfits) <= set(range(len(bodies)))


def test_a_field_that_is_too_deep_to_be_written_is_a_misfit() -> None:
    """Deeper values are read than written."""
    bodies = [b'{"string": ' + b"[" * depth + b"]" * depth + b', "bigint": 1}' for depth in (3, 300, 1000)]

    arrays, misfits = read_columns(bodies, COLUMNS)

    assert (arrays[0].to_pylist(), arrays[1].to_pylist()) == (["[[[]]]", None, None], [1, 1, 1])
    assert misfits == [1, 2]


@given(st.dictionaries(st.sampled_from(list(KINDS)), st.none()))
def test_documents_without_values_fit(document: dict[str, None]) -> None:
    """Missing and null are the same, and no misfit."""
    assert read_columns([orjson.dumps(document)], COLUMNS)[1] == []


@pytest.mark.parametrize("text", ["id", "id number", "a.b string", "topic string", "a string, A bigint"])
def test_columns_that_cannot_be_are_refused(text: str) -> None:
    """Types that are not there, names that are no names or taken."""
    with pytest.raises(ValueError, match="column"):
        parse_columns(text, ["topic"])
