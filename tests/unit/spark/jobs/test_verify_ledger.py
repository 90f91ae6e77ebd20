"""Damage in the files of a DLedger is found, and named by code, file and offset."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from brokerset_formats.dledger import ENTRY_HEAD_SIZE, INDEX_UNIT_SIZE
from brokerset_rig.made_stores import unpack_fixture
from brokerset_spark.jobs.report import Finding, Level
from brokerset_spark.jobs.running import LocalRunner
from brokerset_spark.jobs.verify import VerifyOptions, verify

NUMBER = 100
"""Index of the entry that is damaged."""

Where = tuple[str, int]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that a Java node of a DLedger group wrote."""
    folder = unpack_fixture(tmp_path_factory.mktemp("dledger"), "dledger")
    (store,) = folder.rglob("broker-0/store")
    return store


@pytest.fixture
def store(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "store"))


def ledger(store: Path) -> Path:
    (found,) = store.glob("dledger-*")
    return found


def entry_at(store: Path) -> int:
    """Position of the entry, as the index file has it."""
    unit = (ledger(store) / "index" / f"{0:020}").read_bytes()[NUMBER * INDEX_UNIT_SIZE :][:INDEX_UNIT_SIZE]
    return int(struct.unpack_from(">q", unit, 4)[0])


def flip(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 0x55]))


def body_of_the_record(store: Path) -> Where:
    place = entry_at(store)
    flip(ledger(store) / "data" / f"{0:020}", place + ENTRY_HEAD_SIZE + 90)
    return f"{ledger(store).name}/data/{0:020}", place


def index_in_the_head(store: Path) -> Where:
    place = entry_at(store)
    flip(ledger(store) / "data" / f"{0:020}", place + 15)
    return f"{ledger(store).name}/data/{0:020}", place


def position_in_the_head(store: Path) -> Where:
    place = entry_at(store)
    flip(ledger(store) / "data" / f"{0:020}", place + 31)
    return f"{ledger(store).name}/data/{0:020}", place


def size_in_the_index(store: Path) -> Where:
    flip(ledger(store) / "index" / f"{0:020}", NUMBER * INDEX_UNIT_SIZE + 15)
    return f"{ledger(store).name}/index/{0:020}", NUMBER * INDEX_UNIT_SIZE


def term_in_the_index(store: Path) -> Where:
    flip(ledger(store) / "index" / f"{0:020}", NUMBER * INDEX_UNIT_SIZE + 31)
    return f"{ledger(store).name}/index/{0:020}", NUMBER * INDEX_UNIT_SIZE


def term_in_the_head(store: Path) -> Where:
    """Higher than it was: those behind it are lower, and yet not to blame."""
    place = entry_at(store)
    flip(ledger(store) / "data" / f"{0:020}", place + 23)
    return f"{ledger(store).name}/data/{0:020}", place


DAMAGES = [
    body_of_the_record, index_in_the_head, position_in_the_head, size_in_the_index, term_in_the_index,
    term_in_the_head,
]  # fmt: skip


def errors(store: Path, range_bytes: int = 1 << 26) -> list[Finding]:
    report = verify(LocalRunner(), str(store), VerifyOptions(range_bytes=range_bytes))
    return [each for each in report.findings if each.level is Level.ERROR]


@pytest.mark.parametrize("make", DAMAGES, ids=lambda make: str(make.__name__))
def test_damage_of_an_entry_or_its_unit_is_named(store: Path, make: Callable[[Path], Where]) -> None:
    """The first error lies where the damage was made."""
    assert errors(store) == []
    file, offset = make(store)

    found = errors(store)

    assert any((each.file, each.offset) == (file, offset) for each in found), found


@pytest.mark.parametrize("cut_there", [False, True])
def test_a_term_that_falls_is_named(store: Path, cut_there: bool) -> None:
    """Entry and index agree on a term lower than the one before, inside of a range and where two meet."""
    place = entry_at(store)
    for path, at in (
        (ledger(store) / "data" / f"{0:020}", place + 16),
        (ledger(store) / "index" / f"{0:020}", NUMBER * INDEX_UNIT_SIZE + 24),
    ):
        with path.open("r+b") as file:
            file.seek(at)
            assert struct.unpack(">q", file.read(8))[0] > 0
            file.seek(at)
            file.write(struct.pack(">q", 0))

    found = errors(store, place if cut_there else 1 << 26)

    assert [(each.code, each.file, each.offset) for each in found] == [
        ("entry-term", f"{ledger(store).name}/data/{0:020}", place)
    ]


@pytest.mark.parametrize("content", [None, b"", b"currTerm=0\n"], ids=["missing", "empty", "older"])
def test_a_term_that_does_not_fit_the_entries_is_named(store: Path, content: bytes | None) -> None:
    path = ledger(store) / "currterm"
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)

    (found,) = errors(store)

    assert (found.code, found.file) == ("ledger-term", f"{ledger(store).name}/currterm")


def test_a_checkpoint_ahead_of_the_entries_is_named(store: Path) -> None:
    (ledger(store) / "checkpoint").write_bytes(b"committedIndex=999999\nendIndex=999999\n")

    found = errors(store)

    assert "ledger-checkpoint" in {each.code for each in found}, found
