"""DLedger's files."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from brokerset_formats.dledger import (
    INDEX_UNIT_SIZE,
    CurrentTerm,
    LedgerBlank,
    LedgerCheckpoint,
    LedgerEntry,
    LedgerUnit,
    decode_entry,
)
from brokerset_formats.errors import FormatError

ENTRY = LedgerEntry(index=7, term=3, position=1024, body=b"hello")
ENTRY_BYTES = bytes.fromhex(
    "000000010000003500000000000000070000000000000003000000000000040000000000000000000000000000000005"
    "68656c6c6f"
)
UNIT_BYTES = bytes.fromhex("000000010000000000000400000000350000000000000007" + "0000000000000003")


def test_entry_and_unit_vectors() -> None:
    """The verified entry and its index unit."""
    assert ENTRY.encode() == ENTRY_BYTES
    assert decode_entry(ENTRY_BYTES) == ENTRY
    assert decode_entry(b"xxx" + ENTRY_BYTES + b"yyy", 3) == ENTRY
    assert LedgerUnit.of(ENTRY).encode() == UNIT_BYTES
    assert LedgerUnit.decode(UNIT_BYTES) == LedgerUnit.of(ENTRY)
    assert ENTRY.record_offset == 1072


def test_end_of_a_data_file() -> None:
    """The rest of a file is marked, with magic first."""
    assert LedgerBlank(300).encode().hex() == "ffffffff0000012c"
    assert decode_entry(LedgerBlank(300).encode()) == LedgerBlank(300)


@pytest.mark.parametrize(("broker", "node"), [("broker-0", "n0"), ("broker-1", "n1"), ("broker-2", "n2")])
def test_logs_of_a_java_store(broker: str, node: str, unpack: Callable[[str, str], Path]) -> None:
    """Every entry and index unit of a real log decodes and encodes, and holds the record that it should."""
    folder = unpack("dledger", f"{broker}/store/dledger-{node}")
    data = (folder / "data" / f"{0:020d}").read_bytes()
    with (folder / "index" / f"{0:020d}").open("rb") as file:
        units = file.read(1000 * INDEX_UNIT_SIZE)

    position = 0
    count = 0
    while data[position : position + 4] != bytes(4):
        entry = decode_entry(data, position)
        assert isinstance(entry, LedgerEntry)
        assert (entry.index, entry.position) == (count, position)
        assert entry.encode() == data[position : position + entry.size]
        unit = LedgerUnit.decode(units, count * INDEX_UNIT_SIZE)
        assert unit == LedgerUnit.of(entry)
        assert entry.body[4:8].hex() == "daa320a7"
        assert struct.unpack_from(">q", entry.body, 28) == (entry.record_offset,)
        position += entry.size
        count += 1

    assert count == 630
    assert not any(units[count * INDEX_UNIT_SIZE :])


def test_text_files_of_a_java_store(unpack: Callable[[str, str], Path]) -> None:
    """Terms, votes and checkpoints decode and encode to the same text."""
    folder = unpack("dledger", "broker-1/store/dledger-n1")

    term = (folder / "currterm").read_bytes()
    checkpoint = (folder / "checkpoint").read_bytes()

    assert CurrentTerm.decode(term).encode() == term
    assert CurrentTerm.decode(term).voted_for in {"n0", "n1", "n2"}
    assert LedgerCheckpoint.decode(checkpoint) == LedgerCheckpoint(629, 629)
    assert LedgerCheckpoint(629, 629).encode() == checkpoint


def test_text_files() -> None:
    """Comments are skipped, a term without a vote is possible."""
    assert CurrentTerm.decode(b"#Mon\n\ncurrTerm = 4\n") == CurrentTerm(4, None)
    assert CurrentTerm.decode(CurrentTerm(4).encode()) == CurrentTerm(4)
    for damaged in (b"", b"currTerm=x", b"currTerm=--1", b"\xff", b"currTerm=" + b"1" * 70_000):
        with pytest.raises(FormatError):
            CurrentTerm.decode(damaged)


def test_damaged_entries() -> None:
    """Cut entries, foreign magics and wrong sizes are refused."""
    for end in range(len(ENTRY_BYTES)):
        with pytest.raises(FormatError):
            decode_entry(ENTRY_BYTES[:end])
    for position in (0, 4, 7, 8, 16, 24, 44):
        damaged = bytearray(ENTRY_BYTES)
        damaged[position] ^= 0x80
        with pytest.raises(FormatError):
            decode_entry(damaged)
    with pytest.raises(FormatError):
        decode_entry(LedgerBlank(7).encode())
    with pytest.raises(FormatError):
        decode_entry(ENTRY_BYTES, -1)
    for damaged_unit in (UNIT_BYTES[:31], bytes(32)):
        with pytest.raises(FormatError):
            LedgerUnit.decode(damaged_unit)
