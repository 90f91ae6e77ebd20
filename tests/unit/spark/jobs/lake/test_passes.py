"""What a pass of the lake export believes, refuses, and leaves to another one."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import fs

from brokerset_spark.jobs.lake import exporting
from brokerset_spark.jobs.lake import files as lake_files
from brokerset_spark.jobs.lake.commits import Commit
from brokerset_spark.jobs.lake.exporting import BELIEVE_SECONDS, LakeOptions, export_pass, settled
from brokerset_spark.jobs.lake.files import FILE_SCHEMA, Layout, TableFiles
from brokerset_spark.jobs.lake.micro_batches import append_to_delta
from brokerset_spark.jobs.lake.observing import Observed
from brokerset_spark.jobs.lake.parquet_table import ParquetLake
from brokerset_spark.jobs.lake.ranges import Exported, others
from brokerset_spark.jobs.running import LocalRunner
from brokerset_spark.topics.following import Ends
from brokerset_spark.topics.offsets import QueueKey

QUEUE = QueueKey("orders", "broker-a", 0)


class Time:
    """A clock that goes on by sleeping only."""

    now = 0.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_master_that_is_not_as_far_yet_has_no_new_queues() -> None:
    """A queue that ends too early for a moment is no other queue: it would be exported twice."""
    time, extents = Time(), [Ends(0, 3), Ends(0, 4), Ends(0, 6), Ends(0, 7)]

    found = settled(
        lambda: extents.pop(0),
        lambda extent: others({QUEUE: Exported(5, 1)}, {QUEUE: extent}, {QUEUE: 1}),
        clock=time.clock,
        sleep=time.sleep,
    )

    assert found == Ends(0, 6)


def test_what_stays_is_believed() -> None:
    """A queue that is another one for all the time is one."""
    time = Time()

    found = settled(
        lambda: Ends(0, 3),
        lambda extent: others({QUEUE: Exported(5, 1)}, {QUEUE: extent}, {}),
        clock=time.clock,
        sleep=time.sleep,
    )

    assert found == Ends(0, 3)
    assert BELIEVE_SECONDS < time.now < BELIEVE_SECONDS + 1


def test_a_pattern_and_a_target_that_cannot_be_are_said() -> None:
    """Before anything is asked for; a relative folder would be another one on each executor."""
    wrong = LakeOptions(name_servers="n:1", target="lake", pattern="(")
    assert [each.partition(":")[0] for each in wrong.problems()] == [
        "target 'lake'",
        "topic pattern '(' is no regular expression",
    ]
    assert LakeOptions(name_servers="n:1", target="s3://b/lake", topics=("t",)).problems() == []


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("s3://key:secret@bucket/lake", "password"),
        ("hdfs://user:secret@host:8020/lake", "password"),
        ("abfss://container@account.dfs.core.windows.net/lake?sig=secret", "query"),
        ("s3://bucket/lake#2", "fragment"),
        ("s3://bucket/%41", "%"),
        ("/data/%41", "%"),
        ("/data/[a]", "parquet"),
    ],
)
def test_a_target_has_no_secrets_and_nothing_that_is_passed_over(target: str, text: str) -> None:
    """It stands in reports; what stands behind the path would make one place of two targets, and a % two of
    one: the commit in one folder, its files in the other."""
    (problem,) = LakeOptions(name_servers="n:1", target=target, topics=("t",)).problems()
    assert text in problem
    assert "secret" not in problem
    with pytest.raises(ValueError, match=text):
        append_to_delta(target)
    for right in (
        "abfss://container@account.dfs.core.windows.net/lake",
        "hdfs://user@host:8020/l",
        "/a#b?c",
    ):
        assert not LakeOptions(name_servers="n:1", target=right, topics=("t",)).problems()


@pytest.mark.parametrize(("queues", "expected"), [([], []), ([QUEUE], ["commit", "vacuum"])])
def test_a_run_that_commits_nothing_deletes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, queues: list[QueueKey], expected: list[str]
) -> None:
    """Files that no version names may be those of a pass of another export, which takes longer than
    `vacuum_hours`; only a commit makes sure that it is refused."""
    done: list[str] = []

    class Lake(ParquetLake):
        def commit(self, made: Commit) -> int:
            done.append("commit")
            return super().commit(made)

        def vacuum(self, hours: int) -> int:
            done.append("vacuum")
            return super().vacuum(hours)

    class Client:
        instance = object()

        def run(self, work: Any, seconds: float) -> Any:
            return asyncio.run(work)

    seen = Observed({queue: Ends(0, 0) for queue in queues}, frozenset(), frozenset())
    monkeypatch.setattr(exporting, "client_of", lambda _: Client())
    monkeypatch.setattr(exporting, "open_lake", lambda _, storage, __: Lake(storage))
    monkeypatch.setattr(exporting, "_observe", lambda *_: (seen, {}, {}))

    options = LakeOptions(name_servers="n:1", target=str(tmp_path), topics=("orders",), vacuum_hours=1)
    export_pass(LocalRunner(), options)

    assert done == expected


def test_messages_of_many_days_do_not_wait_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All files of a task together keep a bounded number of bytes, however many days it writes."""
    monkeypatch.setattr(lake_files, "WAITING_BYTES", 10_000)
    files = TableFiles(Layout(fs.LocalFileSystem(), str(tmp_path), "orders", FILE_SCHEMA))
    most = 0

    for _ in range(4):
        for day in range(20):
            files.add(day, batch(datetime.fromtimestamp(day * 86400, UTC), b"x" * 1000))
            most = max(most, sum(each.waiting_bytes for each in files._open.values()))

    assert most <= 10_000
    assert sum(each.rows for each in files.close()) == 80


def batch(when: datetime, body: bytes) -> pa.RecordBatch:
    row = {"brokerName": "a", "queueId": 0, "queueOffset": 0, "storeTimestamp": when, "body": body}
    return pa.RecordBatch.from_pylist([{"properties": [], **row}], FILE_SCHEMA)
