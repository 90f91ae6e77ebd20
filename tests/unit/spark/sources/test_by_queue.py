"""Small topics are read by their queues: fewer bytes, and never other messages than the log has."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from brokerset_formats.queue_units import UNIT_SIZE
from brokerset_rig.made_stores import Place, message, write_log
from brokerset_spark.sources import by_queue
from brokerset_spark.sources.columns import arrow_schema, schema_of
from brokerset_spark.sources.options import read_message_options
from brokerset_spark.sources.plan import Piece, opened_store, plan_pieces, plan_store
from brokerset_spark.sources.reader import StoreDamaged, read_piece
from brokerset_spark.stores.folder import LocalFolder

UNITS = 300
"""Of a queue file."""


def queue_file(store: Path, topic: str, queue_id: int) -> Path:
    return store / "consumequeue" / topic / str(queue_id) / f"{0:020}"


def write_queues(store: Path, places: list[Place]) -> None:
    """The units of these records, as a broker's dispatcher writes them."""
    for place in places:
        record = place.record
        path = queue_file(store, record.topic, record.queue_id)
        if not path.exists():
            path.parent.mkdir(parents=True)
            path.write_bytes(bytes(UNIT_SIZE * UNITS))
        unit = b"".join(
            value.to_bytes(size, "big") for value, size in ((place.offset, 8), (len(place.data), 4), (0, 8))
        )
        with path.open("r+b") as file:
            file.seek(record.queue_offset * UNIT_SIZE)
            file.write(unit)


def write_store(store: Path, rare_every: int = 20, count: int = 400, undispatched: int = 0) -> list[Place]:
    """A log in which each so many messages one is of the topic `rare`; the last ones are in no queue yet."""
    numbers: dict[tuple[str, int], int] = {}
    records = []
    for number in range(count):
        made = message(number)
        topic = "rare" if number % rare_every == 3 else "often"
        key = (topic, number % 2)
        records.append(replace(made, topic=topic, queue_id=key[1], queue_offset=numbers.get(key, 0)))
        numbers[key] = numbers.get(key, 0) + 1
    places = write_log(store, records, file_size=16_384)
    write_queues(store, places[: count - undispatched])
    return places


@pytest.fixture(autouse=True)
def cheap_seeks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores of tests are small: finding a record costs next to nothing here."""
    monkeypatch.setattr(by_queue, "SEEK_BYTES", 1)
    monkeypatch.setattr(by_queue, "GAP_BYTES", 64)
    monkeypatch.setattr(by_queue, "GROUP_BYTES", 1024)


def read(store: Path, **options: str) -> tuple[list[dict[str, Any]], list[Piece]]:
    """Messages by offset, and the pieces that they came from."""
    given = {"path": str(store), "splitSize": "4k", "topic": "rare", **options}
    wanted = read_message_options("rocketmq-store", given)
    schema = arrow_schema(schema_of(wanted.all_columns, wanted.columns))
    with opened_store(str(store)) as (folder, facts):
        pieces = plan_pieces(folder, plan_store(folder, facts, wanted), wanted)
    rows = [row for each in pieces for batch in read_piece(each, wanted, schema) for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: row["commitLogOffset"]), pieces


def test_a_small_topic_is_read_by_its_queues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rows, every column of them, from a small part of the log's bytes."""
    places = write_store(tmp_path)
    expected, _ = read(tmp_path, readBy="log")
    took = [0]
    read_into = LocalFolder.read_into

    def counted(self: LocalFolder, path: str, position: int, target: memoryview) -> int:
        took[0] += len(target) if path.startswith("commitlog/") else 0
        return read_into(self, path, position, target)

    monkeypatch.setattr(LocalFolder, "read_into", counted)
    with opened_store(str(tmp_path)) as (folder, facts):
        plan_store(folder, facts, read_message_options("rocketmq-store", {"path": str(tmp_path)}))
    planning, took[0] = took[0], 0
    found, pieces = read(tmp_path)

    assert found == expected
    assert len(found) == 20
    assert sum(len(each.groups) for each in pieces) > 1
    assert took[0] - planning < sum(len(place.data) for place in places) / 4


def test_a_large_topic_is_read_by_the_log(tmp_path: Path) -> None:
    """Where units would not save anything, none is used; nor for topics without a queue, or by a pattern."""
    write_store(tmp_path)

    for options in ({"topic": "often"}, {"topic": "rare,gone"}, {"topicPattern": "rare", "topic": ""}):
        given = {name: value for name, value in options.items() if value}
        wanted = read_message_options("rocketmq-store", {"path": str(tmp_path), **given})
        with opened_store(str(tmp_path)) as (folder, facts):
            pieces = plan_pieces(folder, plan_store(folder, facts, wanted), wanted)
        assert not any(each.groups for each in pieces)


def test_what_is_not_dispatched_yet_comes_from_the_log(tmp_path: Path) -> None:
    """Behind the newest unit of all queues the log is read, so no message is missing."""
    places = write_store(tmp_path, undispatched=90)

    found, pieces = read(tmp_path)

    assert [row["commitLogOffset"] for row in found] == [p.offset for p in places if p.record.topic == "rare"]
    assert any(each.groups for each in pieces)
    assert any(each.ranges for each in pieces)


def test_a_queue_that_comes_while_a_query_is_planned_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its records lie before what is dispatched, and the list of queues is older: the log is read."""
    write_store(tmp_path, rare_every=15)
    (tmp_path / "consumequeue/rare/1").rename(tmp_path / "later")
    dispatched = by_queue._dispatched

    def slow(*given: Any) -> int:
        (tmp_path / "later").rename(tmp_path / "consumequeue/rare/1")
        return dispatched(*given)

    expected, _ = read(tmp_path, readBy="log")
    monkeypatch.setattr(by_queue, "_dispatched", slow)

    found, _ = read(tmp_path)

    assert found == expected
    assert {row["queueId"] for row in found} == {0, 1}


def test_a_store_that_was_not_closed_is_read_by_the_log(tmp_path: Path) -> None:
    """After a crash one queue may lack more than another; then nothing is known of what is dispatched."""
    write_store(tmp_path)
    (tmp_path / "abort").touch()

    found, pieces = read(tmp_path, tailBound="end")

    assert len(found) == 20
    assert not any(each.groups for each in pieces)


@pytest.mark.parametrize(
    "options",
    [
        {"queueId": "1"},
        {"startingCommitLogOffset": "20000", "endingCommitLogOffset": "40001"},
        {"startingTimestamp": "1795000001000", "endingTimestamp": "1795000003000"},
        {
            "startingOffsets": '{"rare": {"b": {"1": 3}}}',
            "endingOffsets": '{"rare": {"b": {"1": 9}}}',
            "brokerName": "b",
        },
        {"verifyCrc": "true", "onCorrupt": "skip"},
    ],
)
def test_other_options_mean_the_same(tmp_path: Path, options: dict[str, str]) -> None:
    """Queues, offsets, times and checks choose the same messages as in the log."""
    write_store(tmp_path, undispatched=30)

    found, pieces = read(tmp_path, **options)

    assert found == read(tmp_path, readBy="log", **options)[0]
    assert found
    assert any(each.groups for each in pieces)


@given(
    st.lists(st.tuples(st.integers(0, 19), st.integers(0, 11), st.integers(0, 255)), min_size=1, max_size=6)
)
@example([(6, 6, 75)])  # the first unit of a group, behind its record
@example([(9, 0, 128), (18, 0, 1)])  # one that points nowhere, and one behind the end of the log
def test_damaged_units_lose_nothing(
    tmp_path_factory: pytest.TempPathFactory, damages: list[tuple[int, int, int]]
) -> None:
    """Whatever bytes units have that others follow, the messages are those of the log."""
    store = tmp_path_factory.mktemp("store")
    places = write_store(store)
    expected = [each.offset for each in places if each.record.topic == "rare"]
    path = queue_file(store, "rare", 1)
    content = bytearray(path.read_bytes())
    for unit, position, value in damages:
        if unit < 19 or position < 8:  # a last unit that is zeros is one that was never written
            content[unit * UNIT_SIZE + position] = value
    path.write_bytes(content)

    found, _ = read(store)

    assert [row["commitLogOffset"] for row in found] == expected


@pytest.mark.parametrize(
    ("unit", "offset", "options"),
    [
        (19, 1 << 40, {}),
        (15, 50_500, {"endingCommitLogOffset": "50000"}),
        (4, 11_900, {"startingCommitLogOffset": "12000"}),
        (0, 0, {"startingCommitLogOffset": "300"}),
    ],
)
def test_a_damaged_unit_next_to_what_is_read_hides_no_record(
    tmp_path: Path, unit: int, offset: int, options: dict[str, str]
) -> None:
    """A unit that points outside of what is read is believed only if its record is there."""
    write_store(tmp_path)
    expected, _ = read(tmp_path, readBy="log", **options)
    path = queue_file(tmp_path, "rare", 1)
    content = bytearray(path.read_bytes())
    right = int.from_bytes(content[unit * UNIT_SIZE : unit * UNIT_SIZE + 8], "big")
    assert any(row["commitLogOffset"] == right for row in expected), "else nothing could be hidden"
    content[unit * UNIT_SIZE : unit * UNIT_SIZE + 8] = offset.to_bytes(8, "big")
    path.write_bytes(content)

    assert read(tmp_path, **options)[0] == expected


def test_units_of_records_that_a_broker_does_not_give_yet_are_usual(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are no reason to read a whole log."""
    places = write_store(tmp_path)
    known = places[350].offset
    monkeypatch.setattr(by_queue, "_dispatched", lambda *_: known)
    monkeypatch.setattr(by_queue, "readable_end", lambda _: known)
    read_into = LocalFolder.read_into

    def confirmed(self: LocalFolder, path: str, position: int, target: memoryview) -> int:
        file = int(Path(path).name) if path.startswith("commitlog/") else -known
        return read_into(self, path, position, target[: max(0, known - file - position)])

    monkeypatch.setattr(LocalFolder, "read_into", confirmed)

    found, pieces = read(tmp_path, tailBound="confirm", confirmedOffset=str(known))

    assert [row["queueOffset"] for row in found] == list(range(18))
    assert any(each.groups for each in pieces)


@pytest.mark.parametrize("read_by", ["log", "auto"])
def test_a_damaged_unit_where_a_query_begins_hides_no_record(tmp_path: Path, read_by: str) -> None:
    """The log is read from where that unit points to only if its record is there."""
    places = write_store(tmp_path)
    path = queue_file(tmp_path, "rare", 1)
    content = bytearray(path.read_bytes())
    content[3 * UNIT_SIZE : 3 * UNIT_SIZE + 8] = places[390].offset.to_bytes(8, "big")
    path.write_bytes(content)
    starts = {"startingOffsets": '{"rare": {"b": {"1": 3}}}', "brokerName": "b"}

    found, _ = read(tmp_path, readBy=read_by, **starts)

    assert [row["queueOffset"] for row in found] == list(range(3, 20))


@pytest.mark.parametrize("read_by", ["log", "auto"])
def test_a_query_may_begin_at_what_is_not_dispatched_yet(tmp_path: Path, read_by: str) -> None:
    """Its queue has no unit for the first wanted record, and the log has the record."""
    write_store(tmp_path, undispatched=30)
    starts = {"startingOffsets": '{"rare": {"b": {"1": 19}}}', "brokerName": "b"}

    found, _ = read(tmp_path, readBy=read_by, **starts)

    assert [row["queueOffset"] for row in found] == [19]


def test_units_that_do_not_fit_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A warning names the queue, and the messages come from the log."""
    places = write_store(tmp_path)
    often = next(each for each in places if each.record.topic == "often" and each.offset > places[103].offset)
    path = queue_file(tmp_path, "rare", 1)
    content = bytearray(path.read_bytes())
    content[5 * UNIT_SIZE : 5 * UNIT_SIZE + 12] = often.offset.to_bytes(8, "big") + len(often.data).to_bytes(
        4, "big"
    )
    path.write_bytes(content)

    with caplog.at_level(logging.WARNING):
        found, pieces = read(tmp_path)

    assert len(found) == 20
    assert any(each.groups for each in pieces)
    assert "queue rare/1 do not fit" in caplog.text


def test_a_damaged_record_fails_as_in_the_log(tmp_path: Path) -> None:
    """Its unit is right and its bytes are not: the query fails, or goes on behind it if it may."""
    places = write_store(tmp_path)
    rare = [each for each in places if each.record.topic == "rare"]
    with rare[4].file.open("r+b") as file:
        file.seek(rare[4].position + 4)
        file.write(b"\x00\x00\x00\x00")

    with pytest.raises(StoreDamaged, match=str(rare[4].offset)):
        read(tmp_path)
    found, _ = read(tmp_path, onCorrupt="skip")

    assert [row["commitLogOffset"] for row in found] == [p.offset for p in rare if p is not rare[4]]
