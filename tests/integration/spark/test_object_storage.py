"""Stores in object storage, archived there and read back, with an S3 server as a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyarrow.fs import S3FileSystem

from brokerset_rig.made_stores import message, write_log
from brokerset_rig.object_storage import ObjectStorage, object_storage
from brokerset_spark.jobs.archive import ArchiveOptions, archive
from brokerset_spark.jobs.export.exporting import export
from brokerset_spark.jobs.export.options import ExportOptions
from brokerset_spark.jobs.report import JobFailed
from brokerset_spark.jobs.running import LocalRunner
from brokerset_spark.jobs.verify import verify
from brokerset_spark.stores.layout import look
from brokerset_spark.stores.opening import open_folder

RUNNER = LocalRunner(1)


@pytest.fixture(scope="module")
def storage() -> Iterator[ObjectStorage]:
    with object_storage() as found:
        yield found


def offsets(url: str) -> list[int]:
    """Of all records that the data source reads there."""
    from brokerset_spark.sources.columns import schema_of
    from brokerset_spark.sources.messages import MessageReader
    from brokerset_spark.sources.options import read_message_options

    given = {"path": url, "includeSystemTopics": "true", "splitSize": "4k"}
    options = read_message_options("rocketmq-store", given)
    reader = MessageReader(options, schema_of(options.all_columns))
    return [
        offset
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for offset in batch.column("commitLogOffset").to_pylist()
    ]


def codes(report: Any) -> list[str]:
    return [each.code for each in report.findings]


def test_sealed_files_go_to_object_storage_and_are_read_back(storage: ObjectStorage, tmp_path: Path) -> None:
    """The archive has all files but the one that is written; verify, export and the data source read it; a
    second run adds only what is new."""
    url = storage.url("archive-1")
    places = write_log(tmp_path / "store", [message(number) for number in range(100)])
    last = int(places[-1].file.name)

    report = archive(RUNNER, str(tmp_path / "store"), url)

    sealed = [place.offset for place in places if int(place.file.name) < last]
    assert (codes(report), report.facts["end"]) == ([], last)
    assert offsets(url) == sealed
    assert codes(verify(RUNNER, url)) == []
    exported = export(RUNNER, url, tmp_path / "exported", ExportOptions())
    assert exported.clean

    places = write_log(tmp_path / "store", [message(number) for number in range(140)])
    again = archive(RUNNER, str(tmp_path / "store"), url, ArchiveOptions(check=True))

    assert again.counters["files.known"] == report.counters["files.archived"]
    assert again.counters["files.archived"] > 0
    assert codes(again) == []
    assert offsets(url) == [place.offset for place in places if place.file.name != places[-1].file.name]
    assert archive(RUNNER, str(tmp_path / "store"), url).counters["files.archived"] == 0


def test_what_an_archive_lost_or_changed_is_a_finding(storage: ObjectStorage, tmp_path: Path) -> None:
    """What is gone or has another size is archived again; what has other bytes is found by a check."""
    url = storage.url("archive-2")
    write_log(tmp_path / "store", [message(number) for number in range(100)])
    archive(RUNNER, str(tmp_path / "store"), url)
    s3 = S3FileSystem(endpoint_override=storage.endpoint)
    at = f"{storage.bucket}/archive-2/commitlog/"
    first, second, third = (f"{base:020}" for base in (0, 4096, 8192))
    content = s3.open_input_file(at + second).read()
    s3.open_output_stream(at + second).close()
    s3.delete_file(at + first)
    with s3.open_output_stream(at + third) as file:
        file.write(bytes(len(content)))

    assert {"archive-missing", "archive-differs"} <= set(codes(verify(RUNNER, url)))
    report = archive(RUNNER, str(tmp_path / "store"), url, ArchiveOptions(check=True))

    found = {(each.code, each.file[-20:]) for each in report.findings}
    assert found == {("archive-restored", first), ("archive-restored", second), ("archive-differs", third)}


def test_a_copy_that_no_manifest_names_is_not_read(storage: ObjectStorage, tmp_path: Path) -> None:
    """A file whose copying was interrupted is written again, and nobody reads it before it was read back."""
    url = storage.url("archive-3")
    places = write_log(tmp_path / "store", [message(number) for number in range(40)])
    s3 = S3FileSystem(endpoint_override=storage.endpoint)
    archive(RUNNER, str(tmp_path / "store"), url)
    behind = f"{storage.bucket}/archive-3/commitlog/{int(places[-1].file.name):020}"
    with s3.open_output_stream(behind) as file:
        file.write(b"half a file")

    assert offsets(url) == [place.offset for place in places if place.file.name != places[-1].file.name]

    write_log(tmp_path / "store", [message(number) for number in range(80)])
    assert codes(archive(RUNNER, str(tmp_path / "store"), url, ArchiveOptions(check=True))) == []


def test_a_whole_store_is_read_from_object_storage(storage: ObjectStorage, tmp_path: Path) -> None:
    """A store that somebody copied into a bucket has the files and records of the folder it came from."""
    places = write_log(tmp_path / "store", [message(number) for number in range(100)])
    s3 = S3FileSystem(endpoint_override=storage.endpoint)
    for path in sorted((tmp_path / "store").rglob("*")):
        if path.is_file():
            name = path.relative_to(tmp_path / "store")
            with s3.open_output_stream(f"{storage.bucket}/copied/{name}") as file:
                file.write(path.read_bytes())

    with (
        closing(open_folder(storage.url("copied"))) as there,
        closing(open_folder(str(tmp_path / "store"))) as here,
    ):
        theirs, ours = look(there), look(here)

        assert [(each.path, each.size) for each in theirs.commit_log.files] == [
            (each.path, each.size) for each in ours.commit_log.files
        ]
    assert offsets(storage.url("copied").replace("s3://", "s3a://")) == [place.offset for place in places]


def test_an_archive_of_another_group_is_not_written_to(storage: ObjectStorage, tmp_path: Path) -> None:
    """An archive belongs to one log: a store with another file size is refused, and nothing changes."""
    url = storage.url("archive-4")
    write_log(tmp_path / "one", [message(number) for number in range(60)])
    write_log(tmp_path / "other", [message(number) for number in range(60)], file_size=8192)
    archive(RUNNER, str(tmp_path / "one"), url)

    with pytest.raises(JobFailed, match="in the archive"):
        archive(RUNNER, str(tmp_path / "other"), url)
