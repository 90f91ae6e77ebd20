"""What the data sources offer to Spark, and what they must not."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from pyspark.sql.datasource import DataSource, DataSourceReader

from brokerset_rig.made_stores import message, write_log
from brokerset_spark.sources import register
from brokerset_spark.sources.messages import CommitLogSource, MessageReader, StoreSource
from brokerset_spark.sources.tables import EpochSource, IndexSource, QueueReader, QueueSource

SOURCES: list[type[DataSource]] = [StoreSource, CommitLogSource, QueueSource, EpochSource, IndexSource]


@pytest.mark.parametrize("source", SOURCES)
def test_no_source_takes_filters(tmp_path: Path, source: type[DataSource]) -> None:
    """A filter that a source takes stays for later queries of a DataFrame, so none may take one."""
    write_log(tmp_path, [message(1)])
    made = source({"path": str(tmp_path)})

    reader = made.reader(made.schema())  # type: ignore[arg-type]

    assert type(reader).pushFilters is DataSourceReader.pushFilters


@pytest.mark.parametrize("source", SOURCES)
def test_readers_and_partitions_travel(tmp_path: Path, source: type[DataSource]) -> None:
    """Readers and partitions are pickled on their way to tasks, and read the same there."""
    write_log(tmp_path, [message(n) for n in range(9)])
    made = source({"path": str(tmp_path)})
    reader = made.reader(made.schema())  # type: ignore[arg-type]
    partitions = reader.partitions()

    there = pickle.loads(pickle.dumps(reader))
    batches = [batch for each in partitions for batch in there.read(pickle.loads(pickle.dumps(each)))]

    assert sum(batch.num_rows for batch in batches) == (7 if isinstance(reader, MessageReader) else 0)


def test_queue_units(tmp_path: Path) -> None:
    """Units before a queue's first message and those that never were written are no rows."""
    folder = tmp_path / "consumequeue" / "t" / "3"
    folder.mkdir(parents=True)
    blank = (0).to_bytes(8, "big") + (0x7FFFFFFF).to_bytes(4, "big") + bytes(8)
    units = b"".join(
        (n * 100).to_bytes(8, "big") + (100).to_bytes(4, "big") + (n - 7).to_bytes(8, "big", signed=True)
        for n in range(5)
    )
    (folder / f"{2000:020d}").write_bytes((blank * 2 + units).ljust(1000, b"\0") + units)
    source = QueueSource({"path": str(tmp_path), "topic": "t"})
    reader = source.reader(source.schema())
    assert isinstance(reader, QueueReader)

    rows = [row for each in reader.partitions() for batch in reader.read(each) for row in batch.to_pylist()]

    assert [(r["queueOffset"], r["commitLogOffset"], r["size"], r["tagsCode"]) for r in rows] == [
        (102 + n, n * 100, 100, n - 7) for n in range(5)
    ]
    assert {(r["topic"], r["queueId"]) for r in rows} == {("t", 3)}


def test_register() -> None:
    """All formats are made known under their names."""
    names: list[str] = []

    class Session:
        class dataSource:
            @staticmethod
            def register(source: type[DataSource]) -> None:
                names.append(source.name())

    register(Session())  # type: ignore[arg-type]

    assert names == [
        "rocketmq-store", "rocketmq-commitlog", "rocketmq-consumequeue", "rocketmq-epochs", "rocketmq-index",
    ]  # fmt: skip
