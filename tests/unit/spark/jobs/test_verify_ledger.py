"""Damage in the files of a DLedger is found, and named by code, file and offset."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

from brokerset_formats.dledger import ENTRY_HEAD_SIZE, INDEX_UNIT_SIZE
from brokerset_rig.damaged_copies import StoreCopy
from brokerset_rig.made_stores import unpack_fixture
from brokerset_spark.jobs.report import Finding, Level
from brokerset_spark.jobs.running import LocalRunner
from brokerset_spark.jobs.verify import VerifyOptions, verify

NUMBER = 100
"""Index of the entry that is damaged."""


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


DAMAGES = {
    "body of the record": ("data", ENTRY_HEAD_SIZE + 90),
    "index in the head": ("data", 15),
    "position in the head": ("data", 31),
    "term in the head": ("data", 23),  # higher than it was: those behind it are lower, and yet not to blame
    "size in the index": ("index", 15),
    "term in the index": ("index", 31),
}
"""Folder, and position in the entry or in its unit."""


def errors(store: Path, range_bytes: int = 1 << 26) -> list[Finding]:
    report = verify(LocalRunner(), str(store), VerifyOptions(range_bytes=range_bytes))
    return [each for each in report.findings if each.level is Level.ERROR]


@pytest.mark.parametrize("damaged", DAMAGES)
def test_damage_of_an_entry_or_its_unit_is_named(store: Path, damaged: str) -> None:
    """The first error lies where the damage was made."""
    assert errors(store) == []
    folder, further = DAMAGES[damaged]
    begin = entry_at(store) if folder == "data" else NUMBER * INDEX_UNIT_SIZE
    file, copy = f"{ledger(store).name}/{folder}/{0:020}", StoreCopy(store)
    (byte,) = copy.read(file, begin + further, 1)
    copy.write(file, begin + further, bytes([byte ^ 0x55]))

    found = errors(store)

    assert any((each.file, each.offset) == (file, begin) for each in found), found


@pytest.mark.parametrize("cut_there", [False, True])
def test_a_term_that_falls_is_named(store: Path, cut_there: bool) -> None:
    """Entry and index agree on a term lower than the one before, inside of a range and where two meet."""
    place = entry_at(store)
    name = ledger(store).name
    for path, at in (
        (f"{name}/data/{0:020}", place + 16),
        (f"{name}/index/{0:020}", NUMBER * INDEX_UNIT_SIZE + 24),
    ):
        assert struct.unpack(">q", StoreCopy(store).read(path, at, 8))[0] > 0
        StoreCopy(store).write(path, at, struct.pack(">q", 0))

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
