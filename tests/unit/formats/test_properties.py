"""Message properties are read as Java reads them."""

from __future__ import annotations

import pytest

from brokerset_formats.errors import FormatError
from brokerset_formats.properties import decode_properties, encode_properties, find_property

RAW = bytes.fromhex("4b455953016b31206b3202554e49515f4b4559013746303030303031303030310254414753015461674102")


def test_bytes_of_a_java_record() -> None:
    """The properties of the verified record decode and encode to the same bytes."""
    properties = {"KEYS": "k1 k2", "UNIQ_KEY": "7F0000010001", "TAGS": "TagA"}

    assert decode_properties(RAW) == properties
    assert encode_properties(properties) == RAW


def test_find_does_not_take_the_end_of_another_name() -> None:
    """A name that ends another name, or stands in a value, is not found there."""
    raw = encode_properties({"MY_TAGS": "x", "a": "TAGS", "TAGS": "TagA", "TAGS_": "y"})

    assert find_property(raw, b"TAGS") == b"TagA"
    assert find_property(encode_properties({"MY_TAGS": "x"}), b"TAGS") is None
    assert find_property(b"", b"TAGS") is None


def test_incomplete_pairs_are_skipped() -> None:
    """Pairs without separator, name or value are ignored, and the last value may lack its end."""
    raw = b"alone\x02\x01v\x02n\x01\x02A\x01b\x02C\x01d"

    assert decode_properties(raw) == {"A": "b", "C": "d"}
    assert find_property(raw, b"C") == b"d"
    assert find_property(raw, b"n") is None


def test_the_last_of_repeated_names_counts() -> None:
    """A later value replaces an earlier one, unless it is empty."""
    raw = b"A\x011\x02A\x012\x02A\x01\x02"

    assert decode_properties(raw) == {"A": "2"}
    assert find_property(raw, b"A") == b"2"


def test_values_without_content_are_not_written() -> None:
    """No reader takes an empty value, so none is written."""
    assert encode_properties({"A": "", "B": "1"}) == b"B\x011\x02"


@pytest.mark.parametrize("properties", [{"": "v"}, {"a\x01": "v"}, {"a": "v\x02"}, {"a": "\x01v"}])
def test_separators_cannot_be_written(properties: dict[str, str]) -> None:
    """Names and values that would be read back differently are refused."""
    with pytest.raises(FormatError):
        encode_properties(properties)
