"""Hashes agree with Java's, and the fast hasher with the plain one."""

from __future__ import annotations

import pytest

from brokerset_formats import hashing
from brokerset_formats.hashing import KeyHasher, crc31, index_hash, java_hash


def test_crc_has_no_top_bit() -> None:
    """The stored CRC is zlib's without its top bit."""
    assert crc31(b"x") == 0x0CDC1683
    assert crc31(b"Hello RocketMQ") == 1774740973
    assert crc31(b"") == 0
    assert crc31(memoryview(b"Hello RocketMQ")) == 1774740973
    assert crc31(bytearray(b"x")) == 0x0CDC1683


def test_java_hash_vectors() -> None:
    """Strings hash as in Java, over UTF-16 units, with a sign."""
    assert java_hash("TagA") == 2598919
    assert java_hash("TagB") == 2598920
    assert java_hash("AaAa") == java_hash("BBBB") == 2031744
    assert java_hash("") == 0
    assert java_hash("polygenelubricants") == -(2**31)
    assert java_hash("é") == 0xE9
    assert java_hash("😀") == 0xD83D * 31 + 0xDE00


def test_index_hash_is_never_negative() -> None:
    """The one hash without a positive counterpart counts as 0, others lose their sign."""
    assert index_hash("polygenelubricants") == 0
    assert index_hash("TopicTest#k1") == 2746024
    assert java_hash("order-123456789") < 0
    assert index_hash("order-123456789") == -java_hash("order-123456789")


@pytest.mark.parametrize(
    "key",
    [
        "",
        "k",
        "1234567",
        "12345678",
        "123456789",
        "7F0000010F2A18B4AAC20000000A0001",
        "schlüssel-1",
        "😀" * 9,
        "k" * hashing.KEY_SIZE_MAX,
        "k" * (hashing.KEY_SIZE_MAX + 1),
    ],
)
def test_key_hasher_agrees_with_the_plain_hash(key: str) -> None:
    """Remembered pieces never change a hash, on the first use or later."""
    hasher = KeyHasher()

    for topic in ("T", "TopicTest", "%RETRY%group"):
        for _ in range(2):
            assert hasher.hash(topic, key.encode()) == index_hash(f"{topic}#{key}")


def test_key_hasher_stays_correct_when_its_tables_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables that are full are cleared, not corrupted."""
    monkeypatch.setattr(hashing, "KEY_HEADS_MAX", 3)
    monkeypatch.setattr(hashing, "KEY_TOPICS_MAX", 2)
    monkeypatch.setattr(hashing, "KEY_QUADS_MAX", 4)
    hasher = KeyHasher()

    for number in range(200):
        topic, key = f"topic-{number % 5}", f"{number % 7:04d}{number * 7919:012d}"

        assert hasher.hash(topic, key.encode()) == index_hash(f"{topic}#{key}")


def test_long_keys_are_not_remembered() -> None:
    """Keys may have 32 KiB, and the tables are bounded by their number of entries only."""
    hasher = KeyHasher()
    hasher.hash("T", b"k" * (hashing.KEY_SIZE_MAX - 8) + b"aaaabbbb")
    before = hasher.remembered

    for number in range(100):
        hasher.hash("T", f"{number:032767d}".encode())

    assert hasher.remembered == before == 3


@pytest.mark.parametrize("size", [0, 1, 2, 126, 510, 511, 512, 513, 2_000])
def test_texts_of_every_length_are_hashed_alike(size: int) -> None:
    """The sum of products that short texts are hashed with gives what a loop over the characters gives."""
    text = "".join([chr(33 + place * 7 % 90) for place in range(size)])
    value = 0
    for unit in text:
        value = (value * 31 + ord(unit)) & 0xFFFFFFFF
    assert java_hash(text) & 0xFFFFFFFF == value
