"""Bits that a consumer group has in the bit maps of a Java broker's extended consume queues.

A broker that calculates no bit maps needs them only to write `consumerFilter.json`: Java reads the file if
the bits of all its groups fit its own settings, and ignores all of it otherwise.

Source: `BloomFilter` of 5.5.0, whose hash is Guava's `murmur3_128`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

_MASK: Final = 0xFFFFFFFFFFFFFFFF
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F
_BLOCK_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class BloomBits:
    """The bits of one group and topic, of `bit_count` in a map."""

    bit_count: int
    positions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BloomParameters:
    """How many bits a map has, and how many of them a group gets."""

    bit_count: int
    hash_count: int

    @classmethod
    def of_settings(cls, error_percent: int = 20, consumer_count: int = 32) -> BloomParameters:
        """From `maxErrorRateOfBloomFilter` (1 to 99 percent) and `expectConsumerNumUseFilter` (from 1)."""
        if not 1 <= error_percent <= 99:
            raise ValueError(f"the error rate must be from 1 to 99 percent and is {error_percent}")
        if consumer_count < 1:
            raise ValueError(f"the number of consumers must be positive and is {consumer_count}")
        error_rate = error_percent / 100.0
        hash_count = math.ceil(_logarithm(0.5, error_rate))
        bit_count = math.ceil(consumer_count * _logarithm(2, 1 / error_rate) * _logarithm(2, math.e))
        return cls(bit_count=-(-bit_count // 8) * 8, hash_count=hash_count)

    def bits_of(self, group: str, topic: str) -> BloomBits:
        """The bits of a group that filters a topic. Positions may repeat."""
        low = murmur3_128_low(f"{group}#{topic}".encode("utf-8", "replace"))
        first, second = _int32(low), _int32(low >> 32)
        positions = []
        for number in range(1, self.hash_count + 1):
            combined = _int32(first + number * second)
            positions.append((~combined if combined < 0 else combined) % self.bit_count)
        return BloomBits(self.bit_count, tuple(positions))

    def fits(self, bits: BloomBits | None) -> bool:
        """Whether the bits were given by these parameters, as far as Java checks it."""
        return (
            bits is not None and bits.bit_count == self.bit_count and len(bits.positions) == self.hash_count
        )


def murmur3_128_low(data: bytes) -> int:
    """The first 64 bits of MurmurHash3 x64 128 with the seed 0, unsigned (`HashCode.asLong` of Guava)."""
    first = second = 0
    whole = len(data) - len(data) % _BLOCK_BYTES
    for start in range(0, whole, _BLOCK_BYTES):
        first ^= _mix_first(int.from_bytes(data[start : start + 8], "little"))
        first = (_rotate(first, 27) + second) * 5 + 0x52DCE729 & _MASK
        second ^= _mix_second(int.from_bytes(data[start + 8 : start + 16], "little"))
        second = (_rotate(second, 31) + first) * 5 + 0x38495AB5 & _MASK
    first ^= _mix_first(int.from_bytes(data[whole : whole + 8], "little"))
    second ^= _mix_second(int.from_bytes(data[whole + 8 :], "little"))
    first ^= len(data)
    second ^= len(data)
    first = first + second & _MASK
    second = second + first & _MASK
    return _finish(first) + _finish(second) & _MASK


def _mix_first(block: int) -> int:
    return _rotate(block * _C1 & _MASK, 31) * _C2 & _MASK


def _mix_second(block: int) -> int:
    return _rotate(block * _C2 & _MASK, 33) * _C1 & _MASK


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & _MASK


def _finish(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ value >> 33


def _int32(value: int) -> int:
    return (value + 0x80000000 & 0xFFFFFFFF) - 0x80000000


def _logarithm(base: float, value: float) -> float:
    """Of two natural ones, as Java has it: a whole number must come out as one, since it is rounded up."""
    return math.log(value) / math.log(base)
