"""Order keys and logical partitions: statements 1 and 2 of the ordered subjects."""

from __future__ import annotations

import pytest

from brokerset_formats.order_keys import (
    LOGICAL_PARTITIONS,
    logical_partition,
    order_key_hash,
    overlap,
    partition_ranges,
)

VECTORS = [
    ("", 0, 0),
    ("0", 48, 48),
    ("a", 97, 97),
    ("order-1", -1207111310, 654),
    ("order-10001", 478770291, 115),
    ("uid:42", -845350424, 536),
    ("polygenelubricants", -2147483648, 0),
    ("订单1001", -596440365, 301),
    ("\U0001f600", 1772899, 355),
]


@pytest.mark.parametrize(("key", "value", "number"), VECTORS)
def test_a_key_has_javas_hash_and_its_logical_partition(key: str, value: int, number: int) -> None:
    """Statement 1: also beyond the first plane, for the empty key, and for the smallest number."""
    assert (order_key_hash(key), logical_partition(key)) == (value, number)


def test_each_logical_partition_is_in_one_range_whatever_their_number() -> None:
    """Statement 2."""
    for count in range(1, LOGICAL_PARTITIONS + 1):
        ranges = partition_ranges(count)
        covered = [number for first, end in ranges for number in range(first, end)]
        sizes = {end - first for first, end in ranges}

        assert covered == list(range(LOGICAL_PARTITIONS))
        assert len(ranges) == count
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("count", [0, -1, LOGICAL_PARTITIONS + 1])
def test_other_numbers_of_partitions_are_refused(count: int) -> None:
    """Statement 2."""
    with pytest.raises(ValueError, match=str(count)):
        partition_ranges(count)


def test_ranges_that_only_touch_do_not_overlap() -> None:
    assert not overlap((0, 512), (512, 1024))
    assert overlap((0, 513), (512, 1024))
    assert overlap((0, 1024), (3, 4))
