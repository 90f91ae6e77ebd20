"""Epoch files and the point where two logs part."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from brokerset_formats.epochs import (
    END_UNBOUNDED,
    EpochEntry,
    EpochHistory,
    decode_epoch_file,
    encode_epoch_file,
    history_of,
    truncation_point,
)
from brokerset_formats.errors import FormatError
from brokerset_formats.hashing import crc31


@pytest.mark.parametrize(
    ("pairs", "text"),
    [
        ([(1, 0), (2, 4096)], b"2\n1694929738\n1-0\n2-4096\n"),
        ([(1, 0), (2, 200)], b"2\n125939699\n1-0\n2-200\n"),
    ],
)
def test_files_of_java(pairs: list[tuple[int, int]], text: bytes) -> None:
    """The verified files decode and encode to the same text."""
    assert decode_epoch_file(text) == history_of(pairs)
    assert encode_epoch_file(history_of(pairs)) == text


def test_checksum_vector() -> None:
    """The verified checksum of two lines."""
    assert crc31(b"7-7000\n8-8000\n") == 773307083


def test_files_of_a_java_store(unpack: Callable[[str, str], Path]) -> None:
    """The epoch files of both replicas of a real cluster agree where they have the same epochs."""
    folder = unpack("controller-mode", "broker-")
    histories = []
    for broker in ("broker-0", "broker-1"):
        data = (folder.parent / broker / "store" / "epochFileCheckpoint").read_bytes()
        history = decode_epoch_file(data)
        assert encode_epoch_file(history) == data
        histories.append(history)

    shorter, longer = sorted(histories, key=lambda history: len(history.entries))

    assert shorter.entries == longer.entries[: len(shorter.entries)]
    assert truncation_point(longer, 427_000, shorter, 426_174) == 426_174


def test_checksum_of_zero_is_not_compared() -> None:
    """Java switches the check off with 0."""
    assert decode_epoch_file(b"1\n0\n1-0\n") == history_of([(1, 0)])
    assert decode_epoch_file(encode_epoch_file(EpochHistory())) == EpochHistory()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"1",
        b"1\n0",
        b"2\n0\n1-0\n",
        b"1\n5\n1-0\n",
        b"x\n0\n1-0\n",
        b"1\n0\n10\n",
        b"1\n0\n-1-0\n",
        b"1\n0\n1-x\n",
        b"2\n0\n2-0\n1-5\n",
        b"2\n0\n1-5\n2-5\n",
        b"1\n0\n99999999999-0\n",
        b"1\n0\n1-99999999999999999999\n",
    ],
)
def test_damaged_files(text: bytes) -> None:
    """Wrong counts, checksums, numbers and orders are refused."""
    with pytest.raises(FormatError):
        decode_epoch_file(text)


def test_negative_numbers_are_refused() -> None:
    """A handshake with a negative start is damaged."""
    with pytest.raises(FormatError):
        history_of([(1, -1)])


def of_starts(*pairs: tuple[int, int]) -> EpochHistory:
    return history_of(pairs)


OWN = of_starts((1, 100), (2, 300), (3, 500))


@pytest.mark.parametrize(
    ("own", "own_end", "other", "other_end", "expected"),
    [
        (OWN, 700, OWN, 600, 600),
        (OWN, 700, of_starts((1, 100), (2, 300), (3, 450)), 900, 450),
        (of_starts((1, 200), (2, 500)), 700, OWN, 700, None),
        (of_starts((1, 100), (2, 300), (3, 500), (4, 800)), 900, OWN, 700, 700),
        (OWN, 400, OWN, 600, 400),
        (EpochHistory(), 0, OWN, 600, None),
        (OWN, 700, EpochHistory(), 0, None),
    ],
)
def test_truncation_points(
    own: EpochHistory, own_end: int, other: EpochHistory, other_end: int, expected: int | None
) -> None:
    """The worked examples of the handshake."""
    assert truncation_point(own, own_end, other, other_end) == expected


def test_append() -> None:
    """Epochs grow; one without data is replaced, so that no two logs share an epoch and start by accident."""
    assert OWN.append(3, 900) is None
    longer = OWN.append(7, 900)
    assert longer is not None
    assert (longer.last_epoch, longer.last_start) == (7, 900)
    replaced = OWN.append(4, 500)
    assert replaced is not None
    assert replaced.entries == (EpochEntry(1, 100), EpochEntry(2, 300), EpochEntry(4, 500))
    assert EpochHistory().append(1, 0) == history_of([(1, 0)])


def test_lookups() -> None:
    """Who wrote an offset, where an epoch ends, which one follows."""
    assert OWN.find(99) is None
    assert OWN.find(100) == EpochEntry(1, 100)
    assert OWN.find(499) == EpochEntry(2, 300)
    assert OWN.find(10_000) == EpochEntry(3, 500)
    assert [OWN.end_of(epoch) for epoch in (1, 2, 3, 4)] == [300, 500, END_UNBOUNDED, -1]
    assert OWN.next_after(1) == EpochEntry(2, 300)
    assert OWN.next_after(3) is None
    assert (EpochHistory().last_epoch, EpochHistory().last_start) == (-1, -1)


def test_cuts() -> None:
    """Both ends of a history can be cut; the last epoch survives the deletion of old segments."""
    assert OWN.truncate_from_offset(500).last_epoch == 2
    assert OWN.truncate_from_offset(501) == OWN
    assert OWN.truncate_from_epoch(2).last_epoch == 1
    assert OWN.truncate_before(300).entries[0].epoch == 2
    assert OWN.truncate_before(299) == OWN
    assert OWN.truncate_before(10_000).entries == (EpochEntry(3, 500),)
