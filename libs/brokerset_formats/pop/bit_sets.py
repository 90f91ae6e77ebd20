"""Java's `BitSet` as text: base64 of its bytes, the lowest bit first. Batches of acks name messages so."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from typing import Final

from brokerset_formats.errors import FormatError

_BITS: Final = tuple([tuple([bit for bit in range(8) if byte >> bit & 1]) for byte in range(256)])

BIT_MAX: Final = 65_535
"""The highest bit that is read: a pop gives out 32 messages, between which filtered ones may lie."""


def encode_bits(bits: Iterable[int]) -> str:
    """The text of a set with these bits; empty for none."""
    value = 0
    for bit in bits:
        value |= 1 << bit
    return base64.b64encode(value.to_bytes((value.bit_length() + 7) // 8, "little")).decode()


def decode_bits(text: str) -> tuple[int, ...]:
    """The bits that are set, in order. FormatError for text that is no base64, or too high a bit."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise FormatError(f"the bits {text[:40]!r} are not base64") from error
    value = int.from_bytes(data, "little")
    if value.bit_length() > BIT_MAX + 1:
        raise FormatError(f"bit {value.bit_length() - 1} is set; {BIT_MAX} is the highest one")
    return tuple([8 * place + bit for place, byte in enumerate(data) if byte for bit in _BITS[byte]])
