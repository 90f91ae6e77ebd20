"""The two hashes of RocketMQ's files: CRC-32 cut to 31 bits, and Java's `String.hashCode`."""

from __future__ import annotations

import struct
from operator import mul

from isal import isal_zlib

_MASK = 0xFFFFFFFF
_POWERS = tuple([pow(31, exponent, 1 << 32) for exponent in range(511, -1, -1)])
"""Of 31, down to 31 ** 0: the weights of the last characters of a text."""

_native_crc32 = isal_zlib.crc32  # five times as fast as zlib's on the build machine


def crc31(data: bytes | bytearray | memoryview) -> int:
    """CRC-32 (zlib's polynomial) without its top bit, as `UtilAll.crc32` of Java stores it."""
    return _native_crc32(data) & 0x7FFFFFFF


def java_hash(text: str) -> int:
    """`String.hashCode`: over UTF-16 units, as a signed 32-bit number."""
    value = _extend(0, text)
    return value - 0x100000000 if value & 0x80000000 else value


def index_hash(text: str) -> int:
    """The hash of the index files: `abs` of `java_hash`, with 0 for the one value that has none."""
    return _absolute(_extend(0, text))


def _extend(value: int, text: str) -> int:
    """Go on hashing from `value` (unsigned 32 bits)."""
    if text.isascii():
        return _extend_bytes(value, text.encode())
    units = text.encode("utf-16-le", "surrogatepass")
    for unit in struct.unpack(f"<{len(units) // 2}H", units):
        value = (value * 31 + unit) & _MASK
    return value


def _absolute(value: int) -> int:
    return value if value < 0x80000000 else (0x100000000 - value) & 0x7FFFFFFF


def _extend_bytes(value: int, piece: bytes) -> int:
    size = len(piece)
    if size < len(_POWERS):  # a sum of products is several times as fast as a loop
        total: int = sum(map(mul, piece, _POWERS[-size:]), value * _POWERS[-size - 1])
        return total & _MASK
    for unit in piece:
        value = (value * 31 + unit) & _MASK
    return value


_POWER_4 = 31**4 & _MASK
_POWER_8 = 31**8 & _MASK

KEY_TOPICS_MAX = 4_096
"""Topics whose hash `KeyHasher` remembers; the table is cleared when it is full."""

KEY_HEADS_MAX = 16_384
"""Beginnings of keys that `KeyHasher` remembers over all topics; cleared when full."""

KEY_SIZE_MAX = 128
"""Bytes of the longest key of which `KeyHasher` remembers pieces; properties may have 32 KiB."""

KEY_QUADS_MAX = 65_536
"""Groups of four characters that `KeyHasher` remembers: as many as hexadecimal has; cleared when full."""


class _Quads(dict[bytes, int]):
    """The sums of groups of four ASCII characters, made when first asked for. KeyError for others."""

    def __missing__(self, quad: bytes) -> int:
        if len(quad) != 4 or not quad.isascii():
            raise KeyError(quad)
        if len(self) >= KEY_QUADS_MAX:
            self.clear()
        first, second, third, fourth = quad
        value = self[quad] = ((first * 31 + second) * 31 + third) * 31 + fourth
        return value


class KeyHasher:
    """`index_hash(f"{topic}#{key}")`, several times faster for keys that resemble those before them.

    Client-made message ids differ in their last eight characters only, for a minute or so. A hash is a sum of
    character x power of 31, so the sums of the beginning and of the last two groups of four are kept, in
    bounded tables (about 10 MB when full); keys of 8 to `KEY_SIZE_MAX` ASCII bytes use them. Not for use by
    several threads at once.
    """

    __slots__ = ("_heads", "_heads_count", "_quads", "_topics")

    def __init__(self) -> None:
        self._topics: dict[str, int] = {}
        self._heads: dict[str, dict[bytes, int]] = {}
        self._heads_count = 0
        self._quads = _Quads()

    def hash(self, topic: str, key: bytes) -> int:
        """The index hash of a key of `topic`; `key` is UTF-8 text as properties hold it."""
        quads = self._quads
        try:
            value = (self._heads[topic][key[:-8]] + quads[key[-8:-4]] * _POWER_4 + quads[key[-4:]]) & _MASK
        except KeyError:
            return self._hash_and_remember(topic, key)
        return value if value < 0x80000000 else (0x100000000 - value) & 0x7FFFFFFF

    @property
    def remembered(self) -> int:
        """Pieces of keys in the tables."""
        return self._heads_count + len(self._quads)

    def _hash_and_remember(self, topic: str, key: bytes) -> int:
        if not key.isascii():  # UTF-8 bytes are not UTF-16 units
            return index_hash(f"{topic}#{key.decode(errors='replace')}")
        if not 8 <= len(key) <= KEY_SIZE_MAX:  # of a shorter one, the beginning's place depends on the length
            return _absolute(_extend_bytes(_extend(0, topic + "#"), key))
        value = self._head(topic, key[:-8])
        value += self._quads[key[-8:-4]] * _POWER_4 + self._quads[key[-4:]]
        return _absolute(value & _MASK)

    def _head(self, topic: str, head: bytes) -> int:
        if self._heads_count >= KEY_HEADS_MAX or len(self._heads) >= KEY_TOPICS_MAX:
            self._heads.clear()
            self._topics.clear()
            self._heads_count = 0
        heads = self._heads.setdefault(topic, {})
        value = heads.get(head)
        if value is None:
            start = self._topics.get(topic)
            if start is None:
                start = self._topics[topic] = _extend(0, topic + "#")
            value = _extend_bytes(start, head) * _POWER_8 & _MASK
            heads[head] = value
            self._heads_count += 1
        return value
