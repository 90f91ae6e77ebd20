"""Tables of every format without brokers: commits, what dies between them, compaction, who comes too late."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from brokerset_rig.lake_tables import FORMATS, LakeAt
from brokerset_spark.jobs.lake import parquet_table
from brokerset_spark.jobs.lake.commits import Commit, LakeTable
from brokerset_spark.jobs.lake.files import (
    FILE_SCHEMA,
    MESSAGES,
    TABLE_SCHEMA,
    Layout,
    TableFile,
    WrittenFile,
)
from brokerset_spark.jobs.lake.formats import guarded, open_lake
from brokerset_spark.jobs.lake.frames import delta_files
from brokerset_spark.jobs.lake.iceberg_table import IcebergLake
from brokerset_spark.jobs.lake.merging import Piece, groups_of, merged
from brokerset_spark.jobs.lake.ranges import Control, Event, Exported
from brokerset_spark.jobs.lake.storage import Storage
from brokerset_spark.jobs.report import JobFailed
from brokerset_spark.topics.offsets import QueueKey

QUEUE = QueueKey("orders", "broker-a", 0)
ADDED = Control(Event.QUEUE_ADDED, QUEUE, 0, 0)
DAY = 20_000


@pytest.fixture(params=FORMATS)
def at(request: pytest.FixtureRequest, tmp_path: Path) -> LakeAt:
    return LakeAt.make(request.param, str(tmp_path / "lake"), tmp_path)


@pytest.fixture
def parquet(tmp_path: Path) -> LakeAt:
    return LakeAt.make("parquet", str(tmp_path / "lake"), tmp_path)


@pytest.fixture
def opened() -> Iterator[Callable[[LakeAt], Any]]:
    made: list[LakeTable] = []

    def opening(at: LakeAt) -> Any:
        made.append(open_lake(at.kind, Storage(at.url), at.catalog))
        return made[-1]

    yield opening
    for each in made:
        each.close()


def write(at: LakeAt, prefix: str, offsets: Sequence[int], day: int | None = DAY) -> WrittenFile:
    """A data file, as a task writes it."""
    files, root = Storage(at.url).files(MESSAGES)
    schema = TABLE_SCHEMA if at.kind == "iceberg" else FILE_SCHEMA
    made = TableFile(Layout(files, root, "%RETRY%orders", schema, prefix=prefix), day)
    when = None if day is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=day)
    row = {"properties": [], "brokerName": "broker-a", "queueId": 0, "storeTimestamp": when, "body": b"x"}
    made.add(pa.RecordBatch.from_pylist([row | {"queueOffset": each} for each in offsets], FILE_SCHEMA))
    return made.close()


def commit(lake: LakeTable, at: LakeAt, *offsets: int, control: Sequence[Control] = (ADDED,)) -> int:
    """A pass of these messages."""
    return lake.commit(
        Commit([write(at, lake.begin(), offsets)], {QUEUE: Exported(offsets[-1] + 1, 7)}, control)
    )


def offsets(at: LakeAt) -> list[int]:
    return sorted(each["queueOffset"] for each in at.rows())


def test_offsets_and_queues_are_what_the_last_commit_says(
    at: LakeAt, opened: Callable[[LakeAt], Any]
) -> None:
    """Also of a pass without files, for who opens the table later; a queue that is gone is known no more."""
    commit(opened(at), at, 0, 1)
    number = opened(at).commit(Commit([], {QUEUE: Exported(5)}, [Control(Event.EXPIRED, QUEUE, 2, 5)]))
    third = opened(at)

    assert number == third.passes == 2
    assert third.exported([QUEUE, QUEUE._replace(queue=1)])[QUEUE].next_offset == 5
    assert third.known_queues() == {QUEUE}
    assert third.commit(Commit([], {}, [Control(Event.QUEUE_GONE, QUEUE, 0, 0)])) == 3
    assert opened(at).known_queues() == set()
    assert sorted(each["event"] for each in at.rows("control")) == ["expired", "queue-added", "queue-gone"]
    assert offsets(at) == [0, 1]


def test_control_rows_that_another_export_has_written_are_there_once(
    at: LakeAt, opened: Callable[[LakeAt], Any]
) -> None:
    """One that begins between the two commits of a pass writes its rows; the pass is no failure."""
    lake = opened(at)
    real = lake._write_control

    def late(number: int, rows: list[Control]) -> None:
        opened(at)
        real(number, rows)

    lake._write_control = late  # another export comes in between
    number = lake.commit(Commit([], {QUEUE: Exported(1)}, [ADDED]))

    assert number == 1
    assert len(at.rows("control")) == 1
    assert lake.known_queues() == {QUEUE}


def test_small_files_become_large_ones_also_without_a_day(
    at: LakeAt, opened: Callable[[LakeAt], Any]
) -> None:
    """Of each day by itself; messages with a time that no calendar has are a day of their own."""
    lake = opened(at)
    for number in range(3):
        prefix = lake.begin()
        files = [write(at, prefix, [number]), write(at, prefix, [number + 10], None)]
        lake.commit(Commit(files, {QUEUE: Exported(number + 1)}, ()))
    first, second = lake.compact(1 << 20), lake.compact(1 << 20)

    assert offsets(at) == [0, 1, 2, 10, 11, 12]
    if at.kind != "delta":  # which has figures of its own
        assert (first, second) == ({"filesAdded": 2, "filesRemoved": 6}, {})
    assert len(at.data_files()) == (2 if at.kind == "parquet" else 8), "who reads an old version needs them"
    commit(lake, at, 3)
    assert opened(at).exported([QUEUE])[QUEUE].next_offset == 4
    assert offsets(at) == [0, 1, 2, 3, 10, 11, 12]


def test_files_of_a_dead_pass_go_with_the_next_commit(
    parquet: LakeAt, opened: Callable[[LakeAt], Any]
) -> None:
    """Also of days that the next pass has nothing of; files of a pass that has begun meanwhile stay."""
    dead = opened(parquet)
    write(parquet, dead.begin(), [0, 1], DAY - 1)
    lake = opened(parquet)
    later = write(parquet, "p0000000002-", [9])

    commit(lake, parquet, 0, 1)

    assert len(parquet.data_files()) == 2
    assert any(path.endswith(later.path) for path in parquet.data_files())
    with pytest.raises(JobFailed, match="pass 1 was not committed"):
        commit(dead, parquet, 0, 1)
    assert offsets(parquet) == [0, 1]


def test_who_stood_still_for_long_neither_commits_nor_deletes(
    parquet: LakeAt, opened: Callable[[LakeAt], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number is free again, since old manifests are gone: the checkpoint says that it is too late."""
    monkeypatch.setattr(parquet_table, "CHECKPOINT_EACH", 2)
    late = opened(parquet)
    prefix = late.begin()
    file = write(parquet, prefix, [0])
    lake = opened(parquet)
    for number in range(6):
        commit(lake, parquet, number)
    assert not (Path(parquet.url) / "commits" / f"{1:020}.json").exists()

    with pytest.raises(JobFailed, match="not committed"):
        late.commit(Commit([file], {QUEUE: Exported(1)}, ()))
    assert offsets(parquet) == list(range(6))
    commit(opened(parquet), parquet, 6)
    assert offsets(parquet) == list(range(7))
    assert opened(parquet).exported([QUEUE]) == {QUEUE: Exported(7, 7)}


def test_a_commit_whose_answer_was_lost_counts(parquet: LakeAt, opened: Callable[[LakeAt], Any]) -> None:
    """A request that was repeated finds its own manifest."""
    lake = opened(parquet)
    real = lake._storage

    class Repeating:
        def create(self, *given: Any) -> bool:
            real.create(*given)
            return bool(real.create(*given))

    lake._storage = Repeating()
    assert commit(lake, parquet, 0) == 1
    assert offsets(parquet) == [0]


def test_a_disk_that_is_full_at_the_commit_leaves_nothing_of_it(
    parquet: LakeAt, opened: Callable[[LakeAt], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A manifest is there as a whole or not at all; the next pass has its number."""
    lake = opened(parquet)
    commit(lake, parquet, 0)
    prefix = lake.begin()
    file = write(parquet, prefix, [1])

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space"):
            lake.commit(Commit([file], {QUEUE: Exported(2)}, ()))
    names = [path.name for path in (Path(parquet.url) / "commits").iterdir() if path.is_file()]
    assert names == [f"{1:020}.json"]
    commit(opened(parquet), parquet, 1)
    assert offsets(parquet) == [0, 1]


def test_a_manifest_that_is_gone_is_no_shorter_table(
    parquet: LakeAt, opened: Callable[[LakeAt], Any]
) -> None:
    """Its files would be missing, and later passes would go on: that is an error."""
    lake = opened(parquet)
    for number in range(3):
        commit(lake, parquet, number)
    (Path(parquet.url) / "commits" / f"{2:020}.json").unlink()

    with pytest.raises(JobFailed, match="manifest of commit 2 is missing"):
        opened(parquet)


def test_offsets_outlive_the_snapshots_of_iceberg(tmp_path: Path, opened: Callable[[LakeAt], Any]) -> None:
    """Somebody compacts, and lets all snapshots but the last expire: that one has no offsets."""
    at = LakeAt.make("iceberg", str(tmp_path / "lake"), tmp_path)
    commit(opened(at), at, 0, 1)
    assert at.catalog is not None
    with closing(load_catalog("tests", **at.catalog.properties)) as catalog:
        table = catalog.load_table(at.catalog.table)
        table.delete("queueOffset = 0")
        table.maintenance.expire_snapshots().by_id(table.history()[0].snapshot_id).commit()

    lake = opened(at)
    assert (lake.passes, lake.exported([QUEUE])) == (1, {QUEUE: Exported(2, 7)})
    assert commit(lake, at, 2) == 2
    assert offsets(at) == [1, 2]


def test_many_queues_fit_into_a_snapshot(tmp_path: Path, opened: Callable[[LakeAt], Any]) -> None:
    """Long values are compressed, and read back."""
    at = LakeAt.make("iceberg", str(tmp_path / "lake"), tmp_path)
    ends = {QUEUE._replace(queue=number): Exported(number, number) for number in range(1000)}
    opened(at).commit(Commit([], ends, [ADDED]))

    assert opened(at).exported(ends) == ends


def test_files_of_one_day_go_together_up_to_a_size() -> None:
    """Large ones stay, and so does one that has nobody to go with."""
    pieces = [Piece(f"{day}{number}", size, "t", day) for day, sizes in (("a", (10, 10, 10, 90)), ("b", (5,)))
              for number, size in enumerate(sizes)]  # fmt: skip

    assert [[each.path for each in group] for group in groups_of(pieces, 100)] == [["a0", "a1", "a2"]]
    assert [[each.path for each in group] for group in groups_of(pieces, 20)] == [["a0", "a1"]]


def test_files_of_others_next_to_the_log_are_no_error(
    parquet: LakeAt, opened: Callable[[LakeAt], Any]
) -> None:
    """Drafts of a driver that was killed in the middle of a file, and what people and desktops leave."""
    lake = opened(parquet)
    commit(lake, parquet, 0)
    begun = Path(parquet.url) / "commits" / "begun"
    for name in (f".{2:020}-{'a' * 32}.{'b' * 32}", ".DS_Store", "README", "00-x"):
        for folder in (begun, begun.parent):
            (folder / name).write_bytes(b"?")
    (begun / "folder").mkdir()

    assert commit(lake, parquet, 1) == 2
    assert commit(opened(parquet), parquet, 2) == 3
    assert offsets(parquet) == [0, 1, 2]
    assert not list(begun.glob(f"{0:010}*")), "marks of passes that are over"
    assert (begun / "README").exists()


@pytest.mark.parametrize("text", [b"", b'{"version": 1, "num', b"[]", b"7", b'{"version": 1}', b"\xff"])
def test_a_damaged_manifest_is_named(parquet: LakeAt, opened: Callable[[LakeAt], Any], text: bytes) -> None:
    """The error says which file, and what to do."""
    commit(opened(parquet), parquet, 0)
    (Path(parquet.url) / "commits" / f"{1:020}.json").write_bytes(text)

    with pytest.raises(JobFailed, match=r"commits/0+1\.json is damaged") as failed:
        opened(parquet)
    assert "backup" in failed.value.advice


def test_a_pass_that_begins_again_leaves_no_files_of_its_first_try(
    parquet: LakeAt, opened: Callable[[LakeAt], Any]
) -> None:
    """Also of a day that the second one has nothing of: the topic was made again while it was read."""
    lake = opened(parquet)
    write(parquet, lake.begin(), [0, 1], DAY - 1)

    commit(lake, parquet, 0)

    assert len(parquet.data_files()) == 1


def test_files_that_a_refused_pass_writes_late_go_with_a_later_commit(
    parquet: LakeAt, opened: Callable[[LakeAt], Any]
) -> None:
    """It goes on writing when another pass of its number has committed, and swept."""
    late = opened(parquet)
    prefix = late.begin()
    commit(opened(parquet), parquet, 0)
    write(parquet, prefix, [0], DAY - 1)

    commit(opened(parquet), parquet, 1)

    assert len(parquet.data_files()) == 2
    assert not list((Path(parquet.url) / "commits" / "begun").glob(f"{1:020}*"))


def test_an_end_without_a_mark_has_no_older_one(at: LakeAt, opened: Callable[[LakeAt], Any]) -> None:
    """Messages before it expired: a master that has them still would seem to have another queue, and the
    mark of the end before would make a pass read all of it once more."""
    lake = opened(at)
    lake.commit(Commit([], {QUEUE: Exported(5, 7)}, [ADDED]))
    lake.commit(Commit([], {QUEUE: Exported(9)}, [Control(Event.EXPIRED, QUEUE, 5, 9)]))

    assert opened(at).exported([QUEUE]) == {QUEUE: Exported(9)}
    lake.commit(Commit([], {QUEUE: Exported(10, 0)}, []))
    assert opened(at).exported([QUEUE]) == {QUEUE: Exported(10, 0)}


def test_a_file_whose_scheme_is_written_otherwise_is_no_orphan(
    tmp_path: Path, opened: Callable[[LakeAt], Any]
) -> None:
    """Another engine compacts, and names its files in its own way."""
    at = LakeAt.make("iceberg", str(tmp_path / "lake"), tmp_path)
    lake = opened(at)
    commit(lake, at, 0, 1)
    path = write(at, "", [2]).path
    assert at.catalog is not None
    with closing(load_catalog("tests", **at.catalog.properties)) as catalog:
        table = catalog.load_table(at.catalog.table)
        table.add_files([f"file:{at.url}/messages/{path}"])
    for each in at.data_files():
        os.utime(each, (0, 0))

    assert opened(at).vacuum(1) == 0
    assert offsets(at) == [0, 1, 2]
    assert opened(at).compact(1 << 20)
    assert offsets(at) == [0, 1, 2]


def test_a_storage_that_replaces_files_is_refused(
    parquet: LakeAt, opened: Callable[[LakeAt], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There two passes would have the same number, and both would take themselves for committed."""

    def replace(storage: Storage, folder: str, name: str, data: bytes) -> bool:
        return True

    lake = opened(parquet)
    monkeypatch.setattr(Storage, "create", replace)
    with pytest.raises(JobFailed, match="If-None-Match"):
        lake.begin()


@pytest.mark.parametrize("what", ["delete", "compact"])
def test_a_compaction_that_somebody_else_comes_before_changes_no_row(
    tmp_path: Path, opened: Callable[[LakeAt], Any], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """On top of it, rows that were deleted would be back, and those that another compaction moved be there
    twice: it is refused then."""
    at = LakeAt.make("iceberg", str(tmp_path / "lake"), tmp_path)
    lake = opened(at)
    commit(lake, at, 0, 1)
    commit(lake, at, 2)

    def interrupted(*given: Any) -> Any:
        monkeypatch.setattr(f"{IcebergLake.__module__}.merged", merged)
        if what == "compact":
            opened(at).compact(1 << 20)
        else:
            assert at.catalog is not None
            with closing(load_catalog("tests", **at.catalog.properties)) as catalog:
                catalog.load_table(at.catalog.table).delete("queueOffset = 0")
        return merged(*given)

    monkeypatch.setattr(f"{IcebergLake.__module__}.merged", interrupted)
    with suppress(JobFailed), guarded(at.url):
        lake.compact(1 << 20)

    assert offsets(at) == {"delete": [1, 2], "compact": [0, 1, 2]}[what]


@pytest.mark.parametrize("folder", ["lake", "my lake", "ü", "a#b?c"])
def test_files_of_a_delta_table_are_where_they_are_said_to_be(
    tmp_path: Path, opened: Callable[[LakeAt], Any], folder: str
) -> None:
    """Also in folders whose names a URL writes otherwise, and of topics with a % in their names."""
    at = LakeAt.make("delta", str(tmp_path / folder), tmp_path)
    commit(opened(at), at, 0)
    base = Storage(at.url).table_url(MESSAGES)

    assert set(delta_files(DeltaTable(base), base)) == at.data_files()
