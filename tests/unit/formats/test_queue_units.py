"""Consume queue units: layout, tags, and finding the end of a queue."""

from __future__ import annotations

import pytest

from brokerset_formats.errors import FormatError
from brokerset_formats.queue_units import (
    BATCH_UNIT_SIZE,
    BLANK_UNIT,
    UNIT_SIZE,
    BatchQueueUnit,
    QueueUnit,
    count_before,
    decode_batch_unit,
    decode_unit,
    first_that,
    sizes_struct,
    tags_code,
    units_struct,
)


def test_a_unit_has_offset_size_and_tags() -> None:
    """20 bytes: i64 offset, i32 size, i64 tags code, with the sign of the hash."""
    unit = QueueUnit(4096, 157, tags_code("TagA"))

    assert unit.encode().hex() == "00000000000010000000009d000000000027a807"
    assert decode_unit(b"x" + unit.encode(), 1) == unit
    assert QueueUnit(0, 1, -1).encode().endswith(b"\xff" * 8)
    assert UNIT_SIZE == 20


def test_tags_are_hashed_as_java_does() -> None:
    """The whole text is hashed; no tags are 0."""
    assert (tags_code("TagA"), tags_code("TagB")) == (2_598_919, 2_598_920)
    assert tags_code("AaAa") == tags_code("BBBB") == 2_031_744
    assert tags_code(None) == tags_code("") == 0


def test_place_holders_are_told_from_unused_space() -> None:
    """Units before the first message are valid but blank; zeros are not valid."""
    assert BLANK_UNIT.hex() == "00000000000000007fffffff0000000000000000"
    assert decode_unit(BLANK_UNIT).is_blank
    assert decode_unit(BLANK_UNIT).is_valid
    assert not decode_unit(bytes(20)).is_valid


def test_the_unit_of_an_inner_batch() -> None:
    """46 bytes, with -1 as compacted offset."""
    unit = BatchQueueUnit(1, 2, 3, 4, 5, 6)

    data = unit.encode()

    assert len(data) == BATCH_UNIT_SIZE == 46
    assert data[36:].hex() == "0006ffffffff00000000"
    assert decode_batch_unit(data) == unit


def test_cut_units_are_refused() -> None:
    """A buffer that ends inside a unit is an error with a position."""
    with pytest.raises(FormatError, match="byte 1"):
        decode_unit(bytes(20), 1)
    with pytest.raises(FormatError, match="byte 0"):
        decode_batch_unit(bytes(45))


@pytest.mark.parametrize("used", [0, 1, 5, 9, 10])
def test_the_end_of_a_queue_is_found(used: int) -> None:
    """Only what comes before the first unused unit counts, whatever stands behind it."""
    units = [QueueUnit(100 * i, 100, 0).encode() for i in range(used)] + [bytes(20)] * (10 - used)
    if used < 9:
        units[-1] = QueueUnit(0, 5, 0).encode()

    assert count_before(b"".join(units), 10, 2**62) == used
    assert count_before(b"".join(units), 10, 300) == min(used, 3)


def test_searching_the_first() -> None:
    """The bounds are answers, too."""
    assert [first_that(0, 5, lambda n, at=at: n >= at) for at in (-1, 0, 3, 5, 9)] == [0, 0, 3, 5, 5]  # type: ignore[misc]  # lambda with default


def test_many_units_at_once() -> None:
    """A flat row of numbers is the same bytes as unit after unit."""
    flat = (1, 2, 3, 4, 5, 6)

    assert units_struct(2).pack(*flat) == QueueUnit(1, 2, 3).encode() + QueueUnit(4, 5, 6).encode()
    assert sizes_struct(2).unpack(units_struct(2).pack(*flat)) == (2, 5)
