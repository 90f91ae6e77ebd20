"""From options and stores to pieces, and reading them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from brokerset_formats.queue_units import QueueUnit
from brokerset_rig.made_stores import Place, damage, message, unpack_fixture, write_log
from brokerset_spark.sources.columns import arrow_schema, schema_of
from brokerset_spark.sources.options import MessageOptions, read_message_options
from brokerset_spark.sources.plan import Piece, expand, open_store, plan_pieces, plan_store
from brokerset_spark.sources.reader import DataLost, StoreDamaged, read_piece


def options_of(store: Path, **options: str) -> MessageOptions:
    return read_message_options(
        "rocketmq-store", {"path": str(store), "includeSystemTopics": "true", **options}
    )


def pieces_of(store: Path, **options: str) -> tuple[list[Piece], MessageOptions]:
    read = options_of(store, **options)
    folder, facts = open_store(str(store))
    try:
        return plan_pieces(folder, plan_store(folder, facts, read), read), read
    finally:
        folder.close()


def rows_of(pieces: list[Piece], options: MessageOptions) -> list[dict[str, Any]]:
    schema = arrow_schema(schema_of(options.all_columns, options.columns))
    return [
        row for piece in pieces for batch in read_piece(piece, options, schema) for row in batch.to_pylist()
    ]


def offsets(store: Path, **options: str) -> list[int]:
    pieces, read = pieces_of(store, **options)
    return [row["commitLogOffset"] for row in rows_of(pieces, read)]


@pytest.fixture
def places(tmp_path: Path) -> list[Place]:
    return write_log(tmp_path, [message(n) for n in range(200)])


def test_all_of_a_store(tmp_path: Path, places: list[Place]) -> None:
    """Every record once, whatever the size of the splits."""
    for size in ("1k", "3k", "1m"):
        assert offsets(tmp_path, splitSize=size) == [each.offset for each in places]


def test_cuts_by_offset(tmp_path: Path, places: list[Place]) -> None:
    """Offsets cut at records that begin in them, and files outside are not read."""
    start, end = places[77].offset, places[120].offset
    cut = {"startingCommitLogOffset": str(start - 3), "endingCommitLogOffset": str(end + 1)}

    pieces, read = pieces_of(tmp_path, **cut)

    assert [row["commitLogOffset"] for row in rows_of(pieces, read)] == [p.offset for p in places[77:121]]
    assert {each.path.rpartition("/")[2] for piece in pieces for each in piece.ranges} == {
        p.file.name for p in places[76:121]
    }


def test_cuts_by_time(tmp_path: Path) -> None:
    """Times cut exactly, and files of other hours are not read."""
    hour = 3_600_000
    stored = [message(n, store_timestamp=1_795_000_000_000 + n * hour // 10) for n in range(400)]
    places = write_log(tmp_path, stored)
    start, end = 1_795_000_000_000 + 10 * hour, 1_795_000_000_000 + 12 * hour

    pieces, read = pieces_of(tmp_path, startingTimestamp=str(start), endingTimestamp=str(end))

    wanted = [p for p in places if start <= p.record.store_timestamp < end]
    assert [row["commitLogOffset"] for row in rows_of(pieces, read)] == [p.offset for p in wanted]
    assert len(wanted) == 20
    bases = [each.base for piece in pieces for each in piece.ranges]
    hours = [int(p.file.name) for p in places if p.record.store_timestamp >= start - hour]
    assert hours[0] - 4096 <= bases[0] <= hours[0]
    assert bases[-1] <= int(wanted[-1].file.name) + 4096 < int(places[-1].file.name)


def write_queue(store: Path, topic: str, queue_id: int, places: list[Place], first: int = 0) -> None:
    folder = store / "consumequeue" / topic / str(queue_id)
    folder.mkdir(parents=True)
    units = b"".join(QueueUnit(p.offset, len(p.data), 0).encode() for p in places)
    blank = QueueUnit(0, 0x7FFFFFFF, 0).encode() * first
    (folder / f"{0:020d}").write_bytes((blank + units).ljust(20_000, b"\0"))


def test_queue_offsets(tmp_path: Path, places: list[Place]) -> None:
    """Offsets of queues cut each queue, -2 and -1 are its ends, and the log before them is not read."""
    orders = [p for p in places if p.record.topic == "orders"]
    payments = [p for p in places if p.record.topic == "payments"]
    write_queue(tmp_path, "orders", 0, orders)
    write_queue(tmp_path, "payments", 1, payments[10:], first=10)
    starting = json.dumps({"orders": {"b": {"0": 30}}, "payments": {"b": {"1": -1}}})

    pieces, read = pieces_of(tmp_path, topic="orders,payments", startingOffsets=starting)
    assert [row["commitLogOffset"] for row in rows_of(pieces, read)] == [p.offset for p in orders[30:]]
    assert min(each.start for piece in pieces for each in piece.ranges) == orders[30].offset

    ending = json.dumps({"orders": {"b": {"0": 5}}, "payments": {"b": {"1": -2}}})
    found = offsets(tmp_path, topic="orders,payments", endingOffsets=ending)
    assert found == sorted(p.offset for p in orders[:5] + payments[:10])
    with pytest.raises(ValueError, match="there is no queue 9"):
        pieces_of(tmp_path, startingOffsets='{"orders": {"b": {"9": 1}}}')
    with pytest.raises(ValueError, match="option brokerName"):
        pieces_of(tmp_path, startingOffsets='{"orders": {"a": {"0": 1}, "b": {"0": 1}}}')


def test_queue_offsets_of_java(tmp_path: Path) -> None:
    """In a store of Java's, queue offsets select what its consume queues say."""
    store = unpack_fixture(tmp_path, "classic") / "broker-0" / "store"
    starting = json.dumps({"fx-plain": {"broker-a": {str(queue): 740 for queue in range(4)}}})

    pieces, read = pieces_of(store, topic="fx-plain", startingOffsets=starting)
    rows = rows_of(pieces, read)

    assert sorted((row["queueId"], row["queueOffset"]) for row in rows) == [
        (queue, offset) for queue in range(4) for offset in range(740, 750)
    ]
    assert min(each.start for piece in pieces for each in piece.ranges) > 2_000_000


def test_damage_fails_unless_asked(tmp_path: Path, places: list[Place]) -> None:
    """Damage is an error with its place, or passed over, or a row, or the end."""
    damage(places[50])
    with pytest.raises(
        StoreDamaged, match=rf"at {places[50].offset} \(bad-magic\); up to {places[51].offset}"
    ):
        offsets(tmp_path)
    rest = [p.offset for p in places[:50] + places[51:]]
    assert offsets(tmp_path, onCorrupt="skip") == rest
    assert offsets(tmp_path, onCorrupt="stop") == rest[:50]

    pieces, read = pieces_of(tmp_path, damagedRanges="rows", splitSize="1k")
    rows = [row for row in rows_of(pieces, read) if row["damage"]]
    assert [(r["commitLogOffset"], r["storeSize"], r["damage"]) for r in rows] == [
        (places[50].offset, len(places[50].data), "bad-magic")
    ]


def test_damage_in_the_last_file(tmp_path: Path, places: list[Place]) -> None:
    """A bad record in the last file is damage if newer records follow, not the end of the log."""
    numbers = [n for n, p in enumerate(places) if p.file == places[-1].file]
    bad = numbers[2]
    damage(places[bad])

    with pytest.raises(StoreDamaged, match=str(places[bad].offset)):
        offsets(tmp_path)
    assert offsets(tmp_path, onCorrupt="skip") == [p.offset for n, p in enumerate(places) if n != bad]
    assert offsets(tmp_path, onCorrupt="stop") == [p.offset for p in places[:bad]]


def test_wrong_bodies(tmp_path: Path, places: list[Place]) -> None:
    """A body that does not match its CRC is damage with `verifyCrc`, and is not looked at without."""
    place = next(p for p in places[30:] if len(p.record.body) > 10)
    damage(place, place.data.index(place.record.body), b"?")

    assert offsets(tmp_path) == [p.offset for p in places]
    assert offsets(tmp_path, verifyCrc="true", onCorrupt="skip") == [
        p.offset for p in places if p is not place
    ]


def test_missing_file(tmp_path: Path, places: list[Place]) -> None:
    """A file that is missing in the middle of a log fails the query, or is passed over, or is a row."""
    gone = places[60].file
    gone.unlink()
    left = [p.offset for p in places if p.file != gone]

    with pytest.raises(ValueError, match=f"nothing from {int(gone.name)} to {int(gone.name) + 4096}"):
        pieces_of(tmp_path)
    assert offsets(tmp_path, failOnDataLoss="false") == left
    pieces, read = pieces_of(tmp_path, damagedRanges="rows")
    rows = rows_of(pieces, read)
    assert [(r["commitLogOffset"], r["storeSize"]) for r in rows if r["damage"] == "missing-file"] == [
        (int(gone.name), 4096)
    ]
    assert len(rows) == len(left) + 1


def test_files_that_expire_between_plan_and_read(tmp_path: Path, places: list[Place]) -> None:
    """A file that expired after planning is told as such, or passed over if that is allowed."""
    left = [p.offset for p in places if p.file != places[0].file]
    strict, _ = pieces_of(tmp_path)
    places[0].file.unlink()

    with pytest.raises(DataLost, match="it expired since the query was planned"):
        rows_of(strict, options_of(tmp_path))
    loose = options_of(tmp_path, failOnDataLoss="false")
    assert [row["commitLogOffset"] for row in rows_of(strict, loose)] == left
    shown = rows_of(strict, options_of(tmp_path, failOnDataLoss="false", damagedRanges="rows"))
    assert [row["damage"] for row in shown if row["damage"]] == ["expired"]


def test_what_is_no_store(tmp_path: Path) -> None:
    """Paths that are no store are refused with a hint."""
    write_log(tmp_path / "home" / "store", [message(1)])

    with pytest.raises(FileNotFoundError, match="no such folder"):
        expand((str(tmp_path / "nowhere"),))
    with pytest.raises(FileNotFoundError, match="home/store looks like one"):
        open_store(str(tmp_path / "home"))
    with pytest.raises(FileNotFoundError, match="give the folder above it"):
        open_store(str(tmp_path / "home" / "store" / "commitlog"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="it is empty"):
        open_store(str(tmp_path / "empty"))


def test_globs(tmp_path: Path) -> None:
    """A path may be a list or a pattern; a store that both name is read once."""
    for name in ("a", "b"):
        write_log(tmp_path / name, [message(1)])

    assert expand((f"{tmp_path}/*", f"{tmp_path}/a", "http://broker:1/store")) == [
        f"{tmp_path}/a", f"{tmp_path}/b", "http://broker:1/store",
    ]  # fmt: skip


def test_nothing_is_written(tmp_path: Path, places: list[Place]) -> None:
    """A store whose files and folders cannot be written is read, and keeps its bytes and times."""
    before = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in sorted((tmp_path / "commitlog").iterdir())}
    for file in before:
        os.chmod(file, 0o444)

    assert len(offsets(tmp_path)) == len(places)

    after = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in sorted((tmp_path / "commitlog").iterdir())}
    assert after == before
