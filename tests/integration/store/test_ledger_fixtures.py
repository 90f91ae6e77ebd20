"""DLedger logs that Java brokers wrote open here, and stay byte for byte what they were."""

from __future__ import annotations

import json
import shutil
import tarfile
import zlib
from pathlib import Path

import pytest

from brokerset_broker.store.ledger import FileLedger
from brokerset_formats.records import decode_record
from brokerset_rig.archives import extract_archive

FIXTURES = Path(__file__).parents[2] / "peers" / "fixtures"
NODES = ("n0", "n1", "n2")


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fixtures of DLedger, whose sparse files stay sparse."""
    folder = tmp_path_factory.mktemp("ledgers")
    for name in ("dledger", "dledger-mixed"):
        with tarfile.open(FIXTURES / f"{name}.tar.xz") as archive:
            extract_archive(archive, folder)
    return folder


def open_ledger(broker: Path, node: str) -> FileLedger:
    conf = dict(
        line.split("=", 1) for line in (broker / "broker.conf").read_text().splitlines() if "=" in line
    )
    ledger = FileLedger(
        broker / "store" / f"dledger-{node}",
        data_file_bytes=int(conf["mappedFileSizeCommitLog"]),
        record_of_term=lambda: b"",
    )
    ledger.open()
    return ledger


def digest(folder: Path) -> dict[str, int]:
    """Checksums of a log's files of entries and units, read sparsely: zeros add nothing that matters."""
    return {
        str(file.relative_to(folder)): zlib.crc32(file.read_bytes())
        for part in ("data", "index")
        for file in sorted((folder / part).iterdir())
    }


def test_members_of_one_group_have_the_same_log(unpacked: Path) -> None:
    """Entries, positions and terms of three Java brokers; each body is the record at its offset."""
    logs = []
    for number, node in enumerate(NODES):
        ledger = open_ledger(unpacked / "dledger" / f"broker-{number}", node)
        logs.append([ledger.entry(index) for index in range(ledger.begin_index, ledger.end_index + 1)])
        assert ledger.committed_index >= 0

    assert logs[0] == logs[1] == logs[2]
    assert len(logs[0]) > 600
    for entry in logs[0]:
        assert decode_record(entry.body).offset == entry.record_offset


def test_opening_changes_no_byte(unpacked: Path, tmp_path: Path) -> None:
    """A Java broker finds what it left."""
    folder = tmp_path / "broker-0"
    shutil.copytree(unpacked / "dledger" / "broker-0", folder)
    before = digest(folder / "store" / "dledger-n0")

    open_ledger(folder, "n0")

    assert digest(folder / "store" / "dledger-n0") == before


def test_every_message_that_java_gave_out_is_committed(unpacked: Path) -> None:
    """At the offset that Java's clients saw."""
    ledger = open_ledger(unpacked / "dledger" / "broker-0", "n0")
    expected = [
        json.loads(line) for line in (unpacked / "dledger" / "expected.jsonl").read_text().splitlines()
    ]
    at = {
        (record.topic, record.queue_id, record.queue_offset, record.offset)
        for index in range(ledger.begin_index, ledger.committed_index + 1)
        for record in [decode_record(ledger.entry(index).body)]
    }

    assert expected
    assert all(
        (each["topic"], each["queueId"], each["queueOffset"], each["commitLogOffset"]) in at
        for each in expected
    )


def test_a_log_that_begins_behind_old_files_is_read(unpacked: Path) -> None:
    """Its first position is where the CommitLog of the upgraded store ends."""
    ledger = open_ledger(unpacked / "dledger-mixed" / "broker-0", "n0")
    first = ledger.entry(ledger.begin_index)
    old = sorted((unpacked / "dledger-mixed" / "broker-0" / "store" / "commitlog").iterdir())

    assert first.position == int(old[-1].name) + old[-1].stat().st_size
    assert decode_record(first.body).offset == first.record_offset
