"""Archives in a folder of this machine: what is sealed, what a run leaves when it fails, whose archive it
is."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from brokerset_formats.checkpoints import StoreCheckpoint
from brokerset_formats.epochs import decode_epoch_file, encode_epoch_file, history_of
from brokerset_rig.made_stores import message, write_log
from brokerset_spark.jobs.archive import ArchiveOptions, archive
from brokerset_spark.jobs.archive.job import archive_file
from brokerset_spark.jobs.archive.planning import archived_epochs, check_owner, sealed_files
from brokerset_spark.jobs.archive.target import ArchiveTarget
from brokerset_spark.jobs.report import JobFailed, NoInput
from brokerset_spark.jobs.running import LocalRunner, Result, Row
from brokerset_spark.jobs.verify import verify
from brokerset_spark.stores.archives import MANIFEST, ArchivedFile, ArchiveManifest, decode_manifest
from brokerset_spark.stores.folder import LocalFolder
from brokerset_spark.stores.layout import EPOCH_FILES, look

RUNNER = LocalRunner(1)


def manifest_of(target: Path) -> ArchiveManifest:
    return decode_manifest((target / MANIFEST).read_bytes())


@pytest.mark.parametrize("entries", [False, True])
def test_an_archive_is_a_store_that_verify_finds_clean(tmp_path: Path, entries: bool) -> None:
    """Of a commit log and of a DLedger; files are those of the store, byte by byte."""
    write_log(tmp_path / "store", [message(number) for number in range(100)], entries=entries)

    report = archive(RUNNER, str(tmp_path / "store"), str(tmp_path / "target"))

    assert report.clean
    names = [each.path for each in manifest_of(tmp_path / "target").files]
    assert len(names) == report.counters["files.archived"] >= 3
    for name in names:
        assert (tmp_path / "target" / name).read_bytes() == (tmp_path / "store" / name).read_bytes()
    checked = verify(RUNNER, str(tmp_path / "target"))
    assert [each.code for each in checked.findings] == []
    assert checked.facts["end"] == report.facts["end"]


def test_only_what_is_full_and_confirmed_is_sealed(tmp_path: Path) -> None:
    """A file that ends behind what the checkpoint confirms may be truncated, and one that is written is not
    full."""
    places = write_log(tmp_path, [message(number) for number in range(100)])
    facts, end = look(LocalFolder(tmp_path)), places[-1].offset + len(places[-1].data)
    bases = [each.base for each in facts.commit_log.files]

    assert [each.base for each in sealed_files(facts, end)] == bases[:-1]
    assert [each.base for each in sealed_files(facts, bases[2])] == bases[:2]
    assert [each.base for each in sealed_files(facts, bases[2] - 1)] == bases[:1]
    confirming = replace(facts, checkpoint=StoreCheckpoint(confirm_phy_offset=bases[1]))
    assert [each.base for each in sealed_files(confirming, end)] == bases[:1]


def test_a_copy_that_reads_back_otherwise_fails_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What storage changed is not named in the manifest, and the next run writes it again."""
    write_log(tmp_path / "store", [message(number) for number in range(60)])
    write = ArchiveTarget.write

    def lying(self: ArchiveTarget, path: str, pieces: Iterator[bytes | memoryview]) -> str:
        digest = write(self, path, pieces)
        if path.endswith("4096"):
            (tmp_path / "target" / path).write_bytes(bytes(4096))
        return digest

    monkeypatch.setattr(ArchiveTarget, "write", lying)
    with pytest.raises(JobFailed, match="reads back as"):
        archive(RUNNER, str(tmp_path / "store"), str(tmp_path / "target"))
    assert [each.path[-20:] for each in manifest_of(tmp_path / "target").files] == [f"{0:020}"]
    monkeypatch.undo()

    report = archive(RUNNER, str(tmp_path / "store"), str(tmp_path / "target"), ArchiveOptions(check=True))

    assert report.clean
    assert report.counters["files.known"] == 1


def test_the_manifest_is_not_written_for_each_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written whole, so often that little is lost by a kill, and at the end, also when a task fails."""
    write_log(tmp_path / "store", [message(number) for number in range(100)])
    written: list[int] = []
    encode = ArchiveManifest.encode

    def counted(manifest: ArchiveManifest) -> bytes:
        written.append(len(manifest.files))
        return encode(manifest)

    monkeypatch.setattr(ArchiveManifest, "encode", counted)
    report = archive(
        RUNNER, str(tmp_path / "store"), str(tmp_path / "slow"), clock=itertools.count(0, 11).__next__
    )
    files = report.counters["files.archived"]
    assert written == list(range(1, files + 1))
    written.clear()
    archive(RUNNER, str(tmp_path / "store"), str(tmp_path / "quick"), clock=lambda: 0.0)
    assert written == [files]

    class Failing:
        def run(self, task: str, rows: Sequence[Row], reducer: str = "") -> Iterator[Result]:
            yield from RUNNER.run(task, rows[:2], reducer)
            raise JobFailed("gone", "")

    with pytest.raises(JobFailed, match="gone"):
        archive(Failing(), str(tmp_path / "store"), str(tmp_path / "failed"))
    assert len(manifest_of(tmp_path / "failed").files) == 2


def test_files_that_expired_before_they_were_archived_are_a_finding(tmp_path: Path) -> None:
    """The gap in the archive is named by its offsets."""
    write_log(tmp_path / "store", [message(number) for number in range(60)])
    archive(RUNNER, str(tmp_path / "store"), str(tmp_path / "target"))
    files = look(LocalFolder(tmp_path / "store")).commit_log.files
    write_log(tmp_path / "store", [message(number) for number in range(120)])
    (tmp_path / "store" / files[-1].path).unlink()
    for each in files[:-1]:
        (tmp_path / "store" / each.path).unlink()

    report = archive(RUNNER, str(tmp_path / "store"), str(tmp_path / "target"))

    assert [(each.code, each.offset, each.end) for each in report.findings] == [
        ("archive-gap", files[-1].base, files[-1].end)
    ]


def test_an_archive_is_of_one_group(tmp_path: Path) -> None:
    """Another broker's store is refused; a store without an identity may go on with an archive that has
    one."""
    known = ArchiveManifest("cluster", "broker-a", (ArchivedFile("commitlog/0", 1, "ab"),))

    assert check_owner(known, "cluster", "broker-a") == known
    assert check_owner(known, None, None) == known
    with pytest.raises(JobFailed, match="broker-a"):
        check_owner(known, "cluster", "broker-b")


def test_epochs_of_an_archive_are_those_of_its_log() -> None:
    """Without those that begin behind it, and with earlier ones that the store has dropped."""
    store = history_of([(3, 300), (5, 500), (7, 700)])

    assert archived_epochs(store, 600, [(1, 0), (3, 300)]) == history_of([(1, 0), (3, 300), (5, 500)])


def test_an_archive_is_not_archived_and_not_put_into_its_store(tmp_path: Path) -> None:
    """Both are refused before anything is written."""
    write_log(tmp_path / "store", [message(number) for number in range(60)])
    archive(RUNNER, str(tmp_path / "store"), str(tmp_path / "target"))

    with pytest.raises(NoInput, match="is an archive"):
        archive(RUNNER, str(tmp_path / "target"), str(tmp_path / "other"))
    with pytest.raises(JobFailed, match="lies in the store"):
        archive(RUNNER, str(tmp_path / "store"), str(tmp_path / "store" / "archive"))
    assert not (tmp_path / "other").exists()
    assert not (tmp_path / "store" / "archive").exists()


def test_a_lost_file_is_not_replaced_by_another_one(tmp_path: Path) -> None:
    """What is archived again must have the bytes that it had; the manifest stays as it is."""
    write_log(tmp_path / "store", [message(number) for number in range(60)])
    archive(RUNNER, str(tmp_path / "store"), str(tmp_path / "target"))
    before = manifest_of(tmp_path / "target")
    (tmp_path / "target" / before.files[0].path).unlink()
    with (tmp_path / "store" / before.files[0].path).open("r+b") as file:
        file.write(b"other")

    with pytest.raises(JobFailed, match="other bytes than when it was archived"):
        archive(RUNNER, str(tmp_path / "store"), str(tmp_path / "target"))
    assert manifest_of(tmp_path / "target") == before
    assert not (tmp_path / "target" / before.files[0].path).exists()


def test_an_archive_is_of_one_log(tmp_path: Path) -> None:
    """A store that was made again has other bytes under the same names: nothing of it is added."""
    write_log(tmp_path / "store", [message(number) for number in range(60)])
    archive(RUNNER, str(tmp_path / "store"), str(tmp_path / "target"))
    before = manifest_of(tmp_path / "target")
    write_log(tmp_path / "again", [message(number, flag=7) for number in range(120)])

    with pytest.raises(JobFailed, match="begins with other bytes"):
        archive(RUNNER, str(tmp_path / "again"), str(tmp_path / "target"))
    assert manifest_of(tmp_path / "target") == before


def test_a_damaged_archive_is_still_of_its_log(tmp_path: Path) -> None:
    """Files in it that are not as they were archived are findings, also without a check."""
    write_log(tmp_path / "store", [message(number) for number in range(60)])
    archive(RUNNER, str(tmp_path / "store"), str(tmp_path / "target"))
    newest = [each.path for each in manifest_of(tmp_path / "target").files][-1]
    (tmp_path / "target" / newest).write_bytes(bytes(4096))

    report = archive(RUNNER, str(tmp_path / "store"), str(tmp_path / "target"))

    assert [(each.code, each.file) for each in report.findings] == [("archive-differs", newest)]


def test_the_store_of_a_broker_is_no_target(tmp_path: Path) -> None:
    """Its log would be written over."""
    write_log(tmp_path / "store", [message(number) for number in range(60)])
    write_log(tmp_path / "other", [message(number) for number in range(30)])
    (tmp_path / "other" / "checkpoint").write_bytes(bytes(4096))
    before = {each: each.read_bytes() for each in (tmp_path / "other").rglob("0*")}

    with pytest.raises(JobFailed, match="is a store: it has checkpoint"):
        archive(RUNNER, str(tmp_path / "store"), str(tmp_path / "other"))
    assert {each: each.read_bytes() for each in (tmp_path / "other").rglob("0*")} == before
    assert not (tmp_path / "other" / MANIFEST).exists()


def test_a_replica_that_is_behind_takes_no_epoch_away(tmp_path: Path) -> None:
    """It has less of the log, and does not know the epoch with which the archive ends."""
    write_log(tmp_path / "ahead", [message(number) for number in range(120)])
    write_log(tmp_path / "behind", [message(number) for number in range(60)])
    base = look(LocalFolder(tmp_path / "ahead")).commit_log.files[-2].base
    (tmp_path / "ahead" / EPOCH_FILES[0]).write_bytes(encode_epoch_file(history_of([(1, 0), (2, base)])))
    (tmp_path / "behind" / EPOCH_FILES[0]).write_bytes(encode_epoch_file(history_of([(1, 0)])))

    archive(RUNNER, str(tmp_path / "ahead"), str(tmp_path / "target"))
    report = archive(RUNNER, str(tmp_path / "behind"), str(tmp_path / "target"))

    assert report.clean
    kept = decode_epoch_file((tmp_path / "target" / EPOCH_FILES[0]).read_bytes())
    assert [each.epoch for each in kept.entries] == [1, 2]


def test_a_small_file_whose_run_ended_before_the_manifest_is_named_by_the_next(tmp_path: Path) -> None:
    """It is there as the store has it, and the manifest still says how it was before."""
    write_log(tmp_path / "store", [message(number) for number in range(60)])
    settings = tmp_path / "store" / "config" / "topics.json"
    settings.parent.mkdir()
    settings.write_text("{}")
    archive(RUNNER, str(tmp_path / "store"), str(tmp_path / "target"))
    settings.write_text('{"a": 1}')
    (tmp_path / "target" / "config" / "topics.json").write_text('{"a": 1}')

    report = archive(RUNNER, str(tmp_path / "store"), str(tmp_path / "target"), ArchiveOptions(check=True))

    assert report.clean


def test_a_file_that_expires_before_it_is_copied_says_so(tmp_path: Path) -> None:
    """With what to do, and without a trace in the archive's manifest."""
    write_log(tmp_path / "store", [message(0)])
    row = {"url": str(tmp_path / "store"), "target": str(tmp_path / "target"), "sha256": "", "rate": 0}

    with pytest.raises(JobFailed, match="it expired before it was copied") as told:
        list(archive_file(row | {"path": f"commitlog/{8192:020d}", "size": 4096}))
    assert told.value.advice == "start the job again"
