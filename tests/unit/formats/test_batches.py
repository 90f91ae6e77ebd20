"""Batch bodies are those of Java clients."""

from __future__ import annotations

import pytest

from brokerset_formats.batches import BatchItem, encode_batch, iterate_batch
from brokerset_formats.errors import FormatError

BODY = bytes.fromhex(
    "0000002c000000000000000000000000000000026231001457414954017472756502544147530154616741020000002300"
    "000000000000000000000000000003623232000a57414954017472756502"
)
ITEMS = [BatchItem(0, b"b1", b"WAIT\x01true\x02TAGS\x01TagA\x02"), BatchItem(0, b"b22", b"WAIT\x01true\x02")]


def test_body_of_a_java_client() -> None:
    """The verified batch of two messages decodes and encodes to the same bytes."""
    assert iterate_batch(BODY) == ITEMS
    assert encode_batch(ITEMS) == BODY


def test_an_empty_body_has_no_messages() -> None:
    """No bytes, no messages; the caller decides whether that is allowed."""
    assert iterate_batch(b"") == []


def test_every_cut_is_noticed() -> None:
    """A batch that ends inside a message is refused as a whole."""
    first = 0x2C
    for end in range(1, len(BODY)):
        if end != first:
            with pytest.raises(FormatError):
                iterate_batch(BODY[:end])


@pytest.mark.parametrize("position", [0, 16, 22])
def test_wrong_lengths_are_noticed(position: int) -> None:
    """Lengths that do not add up, or are negative, are refused."""
    for value in (0, 0x7F, 0xFF):
        damaged = bytearray(BODY)
        damaged[position] = value if damaged[position] != value else 1

        with pytest.raises(FormatError):
            iterate_batch(bytes(damaged))


def test_the_number_of_messages_is_limited() -> None:
    """More messages than the limit are refused."""
    assert len(iterate_batch(BODY, items_max=2)) == 2
    with pytest.raises(FormatError):
        iterate_batch(BODY, items_max=1)


def test_too_long_properties_are_not_written() -> None:
    """Their length would not fit its field."""
    with pytest.raises(FormatError):
        encode_batch([BatchItem(0, b"", b"x" * 32_768)])
