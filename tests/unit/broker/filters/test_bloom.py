"""Bits of groups, as Java's `BloomFilter` gives them; the vectors are its own."""

from __future__ import annotations

import pytest

from brokerset_broker.filters.bloom import BloomBits, BloomParameters, murmur3_128_low


@pytest.mark.parametrize(
    ("error_percent", "consumer_count", "hash_count", "bit_count"),
    [
        (20, 32, 3, 112),
        (20, 64, 3, 216),
        (10, 128, 4, 616),
        (5, 1000, 5, 6240),
        (50, 7, 1, 16),
        (25, 7, 2, 24),
        (99, 1, 1, 8),
    ],
)
def test_settings_give_the_parameters_that_java_has(
    error_percent: int, consumer_count: int, hash_count: int, bit_count: int
) -> None:
    """Also where a logarithm is a whole number, which must not become one more."""
    parameters = BloomParameters.of_settings(error_percent, consumer_count)

    assert parameters == BloomParameters(bit_count=bit_count, hash_count=hash_count)


@pytest.mark.parametrize(("error_percent", "consumer_count"), [(0, 32), (100, 32), (20, 0)])
def test_settings_without_a_meaning_are_refused(error_percent: int, consumer_count: int) -> None:
    """Java does not start with them."""
    with pytest.raises(ValueError, match="must be"):
        BloomParameters.of_settings(error_percent, consumer_count)


@pytest.mark.parametrize(
    ("group", "topic", "positions"),
    [
        ("g", "T", (90, 68, 28)),
        ("g1", "TopicTest", (71, 62, 52)),
        ("a", "b", (101, 103, 59)),
        ("group_with_a_long_name", "TopicOfSomething", (11, 56, 101)),
        ("组", "主题", (38, 9, 19)),
    ],
)
def test_a_group_has_the_bits_that_java_gives_it(group: str, topic: str, positions: tuple[int, ...]) -> None:
    """With the default settings; names of more than 16 bytes, and beyond ASCII."""
    parameters = BloomParameters.of_settings()

    bits = parameters.bits_of(group, topic)

    assert bits == BloomBits(112, positions)
    assert parameters.fits(bits)


def test_bits_of_other_settings_do_not_fit() -> None:
    """Java compares the number of bits and of positions, and asks for some."""
    parameters = BloomParameters.of_settings()

    assert not parameters.fits(None)
    assert not parameters.fits(BloomBits(216, (1, 2, 3)))
    assert not parameters.fits(BloomBits(112, (1, 2)))


def test_more_bits_than_default_settings_have() -> None:
    """Five positions of 6,240, some of which come from sums that are negative."""
    parameters = BloomParameters.of_settings(5, 1000)

    assert parameters.bits_of("group-1", "order").positions == (4286, 3890, 3494, 3098, 2702)


def test_nothing_has_the_hash_zero() -> None:
    """The hash of no bytes with the seed 0."""
    assert murmur3_128_low(b"") == 0
