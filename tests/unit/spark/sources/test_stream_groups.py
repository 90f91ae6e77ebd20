"""Streams over groups with several replicas: another takes over, and every record comes once."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from brokerset_formats.identity import BrokerIdentity
from brokerset_rig.made_stores import message, write_log
from brokerset_spark.sources import reader, stream_groups
from brokerset_spark.sources import stream as stream_module
from brokerset_spark.sources.columns import schema_of
from brokerset_spark.sources.options import read_message_options
from brokerset_spark.sources.plan import opened_store
from brokerset_spark.sources.reader import DataLost
from brokerset_spark.sources.stream import MessageStream
from brokerset_spark.sources.stream_positions import places

ALL = ReadAllAvailable()
KEY = "group:cluster/broker-a"


def stream(*stores: Path, **options: str) -> MessageStream:
    given = {"path": ",".join(map(str, stores)), "includeSystemTopics": "true", "splitSize": "1k", **options}
    read = read_message_options("rocketmq-store", given)
    return MessageStream(read, schema_of(read.all_columns))


def rows(source: MessageStream, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    return [
        offset
        for partition in source.partitions(start, end)
        for batch in source.read(partition)
        for offset in batch.column("commitLogOffset").to_pylist()
    ]


def write_replicas(folder: Path, counts: dict[str, int], broker: str = "broker-a") -> list[int]:
    """Replicas of one group that have so many records; the offsets of the longest."""
    found: list[int] = []
    for number, (name, count) in enumerate(counts.items()):
        written = write_log(folder / name, [message(each) for each in range(count)])
        (folder / name / "brokerIdentity").write_bytes(BrokerIdentity("cluster", broker, number).encode())
        found = max(found, [place.offset for place in written], key=len)
    return found


def test_a_replica_that_is_gone_is_replaced(tmp_path: Path) -> None:
    """The offset is the group's: the stream goes on from another replica, with each record once."""
    offsets = write_replicas(tmp_path, {"a": 60, "b": 50})
    source = stream(tmp_path / "a", tmp_path / "b")
    start = source.initialOffset()
    middle = source.latestOffset(start, ALL)
    found = rows(source, start, middle)
    assert list(places(middle)) == [KEY]
    assert found == offsets

    shutil.rmtree(tmp_path / "a")
    offsets = write_replicas(tmp_path, {"b": 90})
    end = source.latestOffset(middle, ALL)
    found += rows(source, middle, end)

    assert found == offsets
    assert rows(stream(tmp_path / "a", tmp_path / "b"), middle, end) == found[60:]


def test_a_replica_that_does_not_grow_is_left(tmp_path: Path) -> None:
    """The files of a broker that is down are still there: the one that has more is read."""
    write_replicas(tmp_path, {"a": 60, "b": 50})
    source = stream(tmp_path / "a", tmp_path / "b")
    start = source.initialOffset()
    middle = source.latestOffset(start, ALL)
    offsets = write_replicas(tmp_path, {"a": 60, "b": 90})

    end = source.latestOffset(middle, ALL)

    assert rows(source, middle, end) == offsets[60:]
    assert source.latestOffset(end, ALL) == end


def test_a_replica_with_another_log_is_not_read(tmp_path: Path) -> None:
    """The last record that was read must be the same there; if no replica has it, the stream fails."""
    write_replicas(tmp_path, {"a": 60, "b": 60})
    source = stream(tmp_path / "a", tmp_path / "b")
    middle = source.latestOffset(source.initialOffset(), ALL)
    offsets = write_replicas(tmp_path, {"b": 90})
    other = [message(each) for each in range(40)]
    other += [replace(message(each), flag=7) for each in range(40, 120)]
    write_log(tmp_path / "a", other)

    end = source.latestOffset(middle, ALL)

    assert rows(source, middle, end) == offsets[60:]
    write_log(tmp_path / "b", other)
    with pytest.raises(DataLost, match="is another one now"):
        source.latestOffset(middle, ALL)


def test_an_older_checkpoint_goes_on(tmp_path: Path) -> None:
    """Its keys are the URL of the store that was read; from now on they are the group's."""
    offsets = write_replicas(tmp_path, {"a": 60})
    source = stream(tmp_path / "a")
    new = source.latestOffset(source.initialOffset(), ALL)
    old = {name.replace(KEY, str(tmp_path / "a")): value for name, value in new.items()}
    assert str(tmp_path / "a") in old
    offsets = write_replicas(tmp_path, {"a": 60, "b": 80})

    again = stream(tmp_path / "a", tmp_path / "b")
    end = again.latestOffset(old, ALL)

    assert list(places(end)) == [KEY]
    assert rows(again, old, end) == offsets[60:]
    assert rows(stream(tmp_path / "a"), {}, old) == offsets[:60]


def test_a_replica_that_is_shorter_than_an_older_offset_is_not_read(tmp_path: Path) -> None:
    """Offsets of older checkpoints have no mark; the replica that is read must reach so far all the same."""
    offsets = write_replicas(tmp_path, {"a": 60, "b": 40})
    end = stream(tmp_path / "a").latestOffset({}, ALL)
    plain = {KEY: places(end)[KEY]}

    assert rows(stream(tmp_path / "b", tmp_path / "a"), {}, plain) == offsets


def test_a_group_of_which_no_replica_is_left_fails(tmp_path: Path) -> None:
    """The others are not read as if nothing were missing; it goes on when one is back."""
    write_replicas(tmp_path / "1", {"a": 30, "b": 30})
    write_replicas(tmp_path / "2", {"c": 30}, broker="broker-b")
    paths = tmp_path / "1" / "a", tmp_path / "1" / "b", tmp_path / "2" / "c"
    source = stream(*paths)
    start = source.latestOffset(source.initialOffset(), ALL)
    (tmp_path / "1").rename(tmp_path / "away")

    with pytest.raises(OSError, match="no such folder"):
        source.latestOffset(start, ALL)
    with pytest.raises(OSError, match="no such folder"):
        stream(*paths).initialOffset()

    (tmp_path / "away").rename(tmp_path / "1")
    assert source.latestOffset(start, ALL) == start


def test_a_replica_that_does_not_answer_does_not_delay_each_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is left alone for a while, the longer it took to fail; it is tried at once when no other is left."""
    write_replicas(tmp_path, {"a": 60, "b": 60})
    now, asked, down = [0.0], list[str](), {str(tmp_path / "a")}
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def slow(url: str) -> Any:
        if url in down:
            asked.append(url)
            now[0] += 20.0
            raise OSError(110, "timed out", url)
        return opened_store(url)

    source = stream(tmp_path / "a", tmp_path / "b")
    start = source.initialOffset()
    monkeypatch.setattr(stream_module, "opened_store", slow)
    monkeypatch.setattr(stream_groups, "opened_store", slow)
    middle = source.latestOffset(start, ALL)
    assert len(asked) == 1

    for _ in range(10):
        middle = source.latestOffset(middle, ALL)
    assert len(asked) == 1
    now[0] += 300.0
    assert source.latestOffset(middle, ALL) == middle
    assert len(asked) == 2

    down = {str(tmp_path / "b")}
    assert source.latestOffset(middle, ALL) == middle


def test_another_attempt_of_a_task_takes_another_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that dies in the middle of a batch does not fail the batch."""
    offsets = write_replicas(tmp_path, {"a": 60, "b": 60})
    source = stream(tmp_path / "a", tmp_path / "b")
    start = source.initialOffset()
    end = source.latestOffset(start, ALL)
    partitions = source.partitions(start, end)
    shutil.rmtree(tmp_path / "a")

    with pytest.raises(FileNotFoundError):
        list(source.read(partitions[0]))
    monkeypatch.setattr(reader, "_attempt", lambda: 1)

    found = [
        batch.column("commitLogOffset").to_pylist() for each in partitions for batch in source.read(each)
    ]
    assert [offset for part in found for offset in part] == offsets
