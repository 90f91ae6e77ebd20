"""What the data sources offer to Spark, and what they must not."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from pyspark.sql.datasource import DataSource, DataSourceReader

from brokerset_formats.queue_units import BLANK_UNIT, UNIT_SIZE, QueueUnit
from brokerset_rig.made_stores import Place, message, unpack_fixture, write_log
from brokerset_spark.sources import register
from brokerset_spark.sources.columns import QUEUE_COLUMNS, arrow_schema, schema_of
from brokerset_spark.sources.messages import CommitLogSource, MessageReader, StoreSource
from brokerset_spark.sources.options import QueueOptions, read_options
from brokerset_spark.sources.tables import EpochSource, IndexSource, QueueReader, QueueSource
from brokerset_spark.stores.folder import LocalFolder
from brokerset_spark.stores.layout import look
from brokerset_spark.stores.tail import bound_of

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
        "rocketmq", "rocketmq-store", "rocketmq-commitlog", "rocketmq-consumequeue", "rocketmq-epochs",
        "rocketmq-index",
    ]  # fmt: skip


# -- units of a store that is written are bounded ---------------------------------------------------------


def units(store: Path) -> list[tuple[int, int, int]]:
    """Queue offset, offset and size of all units."""
    read = read_options(
        QueueOptions,
        "rocketmq-consumequeue",
        {"path": str(store), "includeSystemTopics": "true"},
        QUEUE_COLUMNS,
    )
    reader = QueueReader(read, arrow_schema(schema_of(QUEUE_COLUMNS)))
    found = []
    for partition in reader.partitions():
        for batch in reader.read(partition):
            columns = [batch.column(name).to_pylist() for name in ("queueOffset", "commitLogOffset", "size")]
            found += list(zip(*columns, strict=True))
    return found


def write_queue(store: Path, places: list[Place], *, blanks: int = 0) -> None:
    folder = store / "consumequeue" / "orders" / "0"
    folder.mkdir(parents=True)
    made = [QueueUnit(each.offset, len(each.data), 0).encode() for each in places]
    data = BLANK_UNIT * blanks + b"".join(made)
    (folder / f"{0:020d}").write_bytes(data.ljust(100 * UNIT_SIZE, b"\0"))


def test_units_of_a_store_that_is_written_end_with_its_last_sure_record(tmp_path: Path) -> None:
    """The last record is held back until another follows; place holders, whose size is huge, stay passed
    over and do not end the queue."""
    places = write_log(tmp_path, [message(n) for n in range(40)])
    write_queue(tmp_path, places, blanks=7)
    everything = [(7 + number, each.offset, len(each.data)) for number, each in enumerate(places)]

    closed = units(tmp_path)
    (tmp_path / "abort").touch()
    written = units(tmp_path)

    assert closed == everything
    assert written == everything[:-1]


def test_units_that_are_ahead_of_the_log_are_not_given(tmp_path: Path) -> None:
    """A queue may be on the disk before the log is."""
    places = write_log(tmp_path / "whole", [message(n) for n in range(40)])
    write_log(tmp_path / "store", [message(n) for n in range(25)])
    write_queue(tmp_path / "store", places)
    (tmp_path / "store" / "abort").touch()

    assert [offset for _, offset, _ in units(tmp_path / "store")] == [each.offset for each in places[:24]]


def test_units_of_a_store_that_was_killed_are_those_of_its_sure_messages(tmp_path: Path) -> None:
    """As Java left it: all but the unit of the last record."""
    store = unpack_fixture(tmp_path, "killed") / "broker-0" / "store"
    folder = LocalFolder(store)
    bound = bound_of(folder, look(folder)).offset
    folder.close()

    held_back = units(store)
    (store / "abort").unlink()
    everything = units(store)

    assert {offset for _, offset, _ in everything} - {offset for _, offset, _ in held_back} == {bound}
    assert all(offset + size <= bound for _, offset, size in held_back)
