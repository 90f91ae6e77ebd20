"""The body of a batch send: several messages of one queue, one after the other."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from brokerset_formats.errors import FormatError
from brokerset_formats.properties import PROPERTIES_SIZE_MAX

BATCH_ITEMS_MAX = 100_000
"""Messages in one batch. The smallest real ones take 40 bytes, so a batch of 4 MiB can hold about as many."""

_HEAD = struct.Struct(">iiiii")  # item size, magic (0), body CRC (0), flag, body length
_LENGTH = struct.Struct(">h")
_HEAD_SIZE, _LENGTH_SIZE = _HEAD.size, _LENGTH.size
_ITEM_OVERHEAD = _HEAD_SIZE + _LENGTH_SIZE


class BatchItem(NamedTuple):
    """One message of a batch: what it does not share with the others. `properties` are raw.

    A named tuple, because it is made for every message of every batch, and is made in half the time of a
    dataclass.
    """

    flag: int
    body: bytes
    properties: bytes


def encode_batch(items: Iterable[BatchItem]) -> bytes:
    """The body of a batch request (code 320); FormatError if an item's properties are too long."""
    parts = []
    for item in items:
        if len(item.properties) > PROPERTIES_SIZE_MAX:
            raise FormatError(
                f"{len(item.properties)} bytes of properties; {PROPERTIES_SIZE_MAX} is the limit"
            )
        size = _ITEM_OVERHEAD + len(item.body) + len(item.properties)
        parts.append(_HEAD.pack(size, 0, 0, item.flag, len(item.body)))
        parts.append(item.body)
        parts.append(_LENGTH.pack(len(item.properties)))
        parts.append(item.properties)
    return b"".join(parts)


def iterate_batch(body: bytes, *, items_max: int = BATCH_ITEMS_MAX) -> list[BatchItem]:
    """All messages of a batch body, or FormatError: nothing of a damaged batch may be stored."""
    items: list[BatchItem] = []
    position = 0
    end = len(body)
    read_head, read_length, new = _HEAD.unpack_from, _LENGTH.unpack_from, tuple.__new__
    while position < end:
        if len(items) >= items_max:
            raise FormatError(f"more than {items_max} messages in a batch", position)
        if end - position < _ITEM_OVERHEAD:
            raise FormatError("the batch ends inside a message", position)
        size, _, _, flag, body_size = read_head(body, position)
        body_start = position + _HEAD_SIZE
        body_end = body_start + body_size
        properties_start = body_end + _LENGTH_SIZE
        if body_size < 0 or properties_start > end:
            raise FormatError(f"body length {body_size} does not fit the batch", position)
        (properties_size,) = read_length(body, body_end)
        position_next = properties_start + properties_size
        if properties_size < 0 or position_next > end:
            raise FormatError(f"properties length {properties_size} does not fit the batch", position)
        if size != position_next - position:
            raise FormatError(f"item size {size} instead of {position_next - position}", position)
        items.append(
            new(
                BatchItem, (flag, body[body_start:body_end], body[properties_start:position_next])
            )  # half the time
        )
        position = position_next
    return items
