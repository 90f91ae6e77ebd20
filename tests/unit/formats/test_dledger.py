"""DLedger's files."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from brokerset_formats.dledger import (
    ENTRY_HEAD_SIZE,
    INDEX_UNIT_SIZE,
    CurrentTerm,
    LedgerBlank,
    LedgerCheckpoint,
    LedgerEntry,
    LedgerRun,
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


RUN_ENTRIES = (
    LedgerEntry(7, 3, 1024, b"hello"),
    LedgerEntry(8, 3, 1024 + 53, b""),
    LedgerEntry(9, 5, 1024 + 53 + 48, b"x" * 300),
)
RUN = LedgerRun(7, 3, 1024, b"".join(entry.encode() for entry in RUN_ENTRIES))


def test_heads_of_a_run_are_its_index_units() -> None:
    """What a follower writes into its index, and the terms that it compares."""
    checked = RUN.check()

    assert checked.units == b"".join(LedgerUnit.of(entry).encode() for entry in RUN_ENTRIES)
    assert (checked.first_term, checked.last_term) == (3, 5)
    assert RUN.entries() == RUN_ENTRIES
    assert RUN.last_index == 9


def changed(position: int, value: bytes) -> LedgerRun:
    """The run with other bytes at a position."""
    data = RUN.data[:position] + value + RUN.data[position + len(value) :]
    return LedgerRun(7, 3, 1024, data)


SECOND = 53
"""Where the second head of the run begins."""


@pytest.mark.parametrize(
    ("run", "problem"),
    [
        (changed(0, b"\0\0\0\2"), "in the place of 7"),
        (changed(SECOND, b"\xff\xff\xff\xff"), "in the place of 8"),
        (changed(SECOND + 4, b"\0\0\0\x31"), "of 49 bytes with a body of 0"),
        (changed(SECOND + 4, b"\0\0\0\0"), "of 0 bytes"),
        (changed(SECOND + 8, bytes(7) + b"\x07"), "entry 7 at 1077 in the place of 8"),
        (changed(SECOND + 16, bytes(7) + b"\x02"), "entry 8 of term 2 behind one of 3"),
        (changed(SECOND + 16, b"\xff" * 8), "of term -1"),
        (changed(SECOND + 24, bytes(8)), "entry 8 at 0"),
        (changed(SECOND + 44, b"\0\0\0\1"), "of 48 bytes with a body of 1"),
        (LedgerRun(7, 3, 1024, RUN.data[:-1]), "entry 9 of 348 bytes"),
        (LedgerRun(7, 3, 1024, RUN.data + b"x"), "1 bytes behind a run"),
        (LedgerRun(7, 2, 1024, RUN.data), "348 bytes behind a run"),
        (LedgerRun(7, 4, 1024, RUN.data), "ends inside an entry"),
        (LedgerRun(8, 3, 1024, RUN.data), "entry 7 at 1024 in the place of 8"),
        (LedgerRun(7, 3, 1025, RUN.data), "entry 7 at 1024"),
        (LedgerRun(7, 0, 1024, b""), "a run of 0 entries"),
        (LedgerRun(7, 1 << 30, 1024, RUN.data), "a run of 1073741824 entries in 449 bytes"),
        (LedgerRun(-1, 1, 0, RUN.data), "a run from entry -1"),
        (LedgerRun(7, 1, 1 << 60, RUN.data), "a run from entry 7 at"),
    ],
)
def test_run_with_a_wrong_head_is_refused(run: LedgerRun, problem: str) -> None:
    """Every head must be that of the entry which belongs there; what only looks like one is refused."""
    with pytest.raises(FormatError, match=problem):
        run.check()
    with pytest.raises(FormatError, match=problem):
        run.entries()


def test_runs_end_where_they_are_cut() -> None:
    """No part of a run is taken for the whole."""
    for size in range(len(RUN.data)):
        with pytest.raises(FormatError):
            LedgerRun(7, 3, 1024, RUN.data[:size]).check()
    assert len(RUN.data) == 3 * ENTRY_HEAD_SIZE + 305
