"""`rocketmq-consumequeue`, planned and read without Spark: units of a store that is written are bounded."""

from __future__ import annotations

from pathlib import Path

from brokerset_formats.queue_units import BLANK_UNIT, UNIT_SIZE, QueueUnit
from brokerset_rig.made_stores import Place, message, unpack_fixture, write_log
from brokerset_spark.sources.columns import QUEUE_COLUMNS, arrow_schema, schema_of
from brokerset_spark.sources.options import QueueOptions, read_options
from brokerset_spark.sources.tables import QueueReader
from brokerset_spark.stores.folder import LocalFolder
from brokerset_spark.stores.layout import look
from brokerset_spark.stores.tail import bound_of


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
