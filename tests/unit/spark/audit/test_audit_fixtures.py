"""An audit of stores that the Java broker wrote."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from brokerset_rig.archives import extract_archive
from brokerset_rig.replica_stores import flip
from brokerset_spark.jobs.audit import audit
from brokerset_spark.jobs.report import Level, Report
from brokerset_spark.jobs.running import LocalRunner

FIXTURES = Path(__file__).parents[3] / "peers" / "fixtures"


def unpack(name: str, target: Path) -> list[Path]:
    """The stores of a fixture, without the queues and the timer's files, which no audit reads."""
    with tarfile.open(FIXTURES / f"{name}.tar.xz") as archive:
        members = [each for each in archive if "/consumequeue/" not in each.name and "timer" not in each.name]
        extract_archive(archive, target, members)
    return sorted(target.glob(f"{name}/broker-*/store"))


def run(stores: list[Path]) -> Report:
    return audit(LocalRunner(), [str(path) for path in stores])


def test_two_java_replicas_after_three_masters_agree(tmp_path: Path) -> None:
    """The last master wrote 1,860 bytes at its shutdown that the other one never got; nothing else
    differs."""
    report = run(unpack("controller-mode", tmp_path))

    (finding,) = report.findings
    assert (finding.code, finding.level, finding.offset, finding.end) == (
        "truncate-point", Level.INFO, 426_174, 428_034,
    )  # fmt: skip
    assert "broker-a/2 would cut 1,860 bytes" in finding.text
    assert report.counters["records"] == 2 * 1_460
    assert report.counters["bytesNotCompared"] == 0
    assert report.facts["replicas"][1]["epochs"] == [
        [1, 0], [2, 184_112], [3, 396_784], [7, 425_244], [8, 426_174],
    ]  # fmt: skip


def test_three_java_nodes_of_a_dledger_agree(tmp_path: Path) -> None:
    report = run(unpack("dledger", tmp_path))

    assert report.findings == []
    assert report.counters["records"] == 3 * 630
    assert {(pair["from"], pair["to"]) for pair in report.facts["pairs"]} == {(0, 214_181)}
    assert report.counters["bytesNotCompared"] == 0


@pytest.mark.parametrize(("name", "head", "size_at"), [("controller-mode", 0, 0), ("dledger", 48, 4)])
def test_a_flipped_byte_in_a_java_store_is_found(tmp_path: Path, name: str, head: int, size_at: int) -> None:
    stores = unpack(name, tmp_path)
    (path,) = [*stores[1].glob("commitlog/*"), *stores[1].glob("dledger-*/data/*")]
    data, record = path.read_bytes(), 0
    for _ in range(300):
        record += int.from_bytes(data[record + size_at : record + size_at + 4], "big")
    flip(stores[1], record + head + 90)  # the third byte of the body

    report = run(stores)

    found = [each for each in report.findings if each.code == "bytes"]
    assert {(each.store, each.offset) for each in found} == {(str(stores[1]), record)}
    difference = report.facts["pairs"][0]["firstDifference"]
    assert (difference["byte"], difference["field"]) == (head + 90, "body")


def test_a_commit_log_that_a_dledger_goes_on_from_is_read_as_one_log(tmp_path: Path) -> None:
    (store,) = unpack("dledger-mixed", tmp_path)
    copy = tmp_path / "copy"
    copy.mkdir()
    unpack("dledger-mixed", copy)

    report = run([store, *copy.glob("dledger-mixed/broker-0/store")])

    assert report.findings == []
    assert report.facts["replicas"][0]["records"] == 1_184 + 1_180 + 666 + 601
    assert report.facts["pairs"][0]["to"] == 3_350_353
