"""Streams over stores, planned and read without Spark. Streams whose store was truncated, replaced or lost
since the checkpoint fail and say why, or go on if they may; nothing waits without a word."""

from __future__ import annotations

import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

from brokerset_formats.records import Record
from brokerset_rig.made_stores import Place, damage, message, unpack_fixture, write_log
from brokerset_spark.sources import stream_positions
from brokerset_spark.sources.columns import schema_of
from brokerset_spark.sources.option_values import OptionsError
from brokerset_spark.sources.options import read_message_options
from brokerset_spark.sources.reader import DataLost, StoreDamaged
from brokerset_spark.sources.stream import MessageStream

ALL = ReadAllAvailable()
LATER = 3_600_000


def stream(store: Path | str, **options: str) -> MessageStream:
    read = read_message_options(
        "rocketmq-store", {"path": str(store), "includeSystemTopics": "true", "splitSize": "1k", **options}
    )
    return MessageStream(read, schema_of(read.all_columns))


def rows(source: MessageStream, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    found = []
    for partition in source.partitions(start, end):
        for batch in source.read(partition):
            found += batch.column("commitLogOffset").to_pylist()
    return found


def end_of(place: Place) -> int:
    return place.offset + len(place.data)


@pytest.mark.parametrize("entries", [False, True])
@pytest.mark.parametrize("limit", [1, 100, 777, 5000, 1 << 20])
def test_batches_cover_the_log(tmp_path: Path, entries: bool, limit: int) -> None:
    """Batches of any size have every record once, in order, and end where records begin."""
    places = write_log(tmp_path, [message(n) for n in range(150)], entries=entries)
    source = stream(tmp_path)
    start = source.initialOffset()
    found: list[int] = []
    for _ in range(1000):
        end = source.latestOffset(start, ReadMaxBytes(limit))
        assert source.latestOffset(start, ReadMaxBytes(limit)) == end
        if end == start:
            break
        batch = rows(source, start, end)
        assert rows(stream(tmp_path), start, end) == batch
        found += batch
        start = end

    assert found == [place.offset for place in places]


def test_growing_log(tmp_path: Path) -> None:
    """While a broker writes, the last record waits for its successor, and then comes once."""
    records = [message(n) for n in range(120)]
    (tmp_path / "abort").parent.mkdir(exist_ok=True)
    source, start, found = stream(tmp_path), {str(tmp_path): 0}, []
    for count in (1, 2, 3, 40, 41, 90, 120):
        places = write_log(tmp_path, records[:count])
        (tmp_path / "abort").touch()
        end = source.latestOffset(start, ALL)
        found += rows(source, start, end)
        start = end

        assert found == [place.offset for place in places[:-1]]


def test_latest(tmp_path: Path) -> None:
    """`latest` begins behind what is there."""
    records = [message(n) for n in range(60)]
    places = write_log(tmp_path, records[:30])
    source = stream(tmp_path, startingOffsets="latest")
    start = source.initialOffset()
    assert stream_positions.places(start) == {str(tmp_path): end_of(places[-1])}

    places = write_log(tmp_path, records)

    assert rows(source, start, source.latestOffset(start, ALL)) == [place.offset for place in places[30:]]


def test_confirmed_offset_inside_a_record(tmp_path: Path) -> None:
    """Slaves confirm bytes, not records: the stream ends where the record begins, and goes on there."""
    places = write_log(tmp_path, [message(n) for n in range(60)])
    store, found = {str(tmp_path): 0}, []
    for cut in (places[20].offset + 7, places[20].offset + 8, places[40].offset, end_of(places[-1])):
        source = stream(tmp_path, confirmedOffset=str(cut))
        end = source.latestOffset(store, ALL)
        found += rows(source, store, end)
        store = end

    assert found == [place.offset for place in places]


def test_available_now(tmp_path: Path) -> None:
    """What comes after the start of an available-now query is left for the next one."""
    records = [message(n) for n in range(60)]
    places = write_log(tmp_path, records[:30])
    source = stream(tmp_path)
    start = source.initialOffset()
    source.prepareForTriggerAvailableNow()
    write_log(tmp_path, records)

    end = source.latestOffset(start, ALL)

    assert stream_positions.places(end) == {str(tmp_path): end_of(places[-1])}
    assert source.latestOffset(end, ALL) == end


def test_expired_files(tmp_path: Path) -> None:
    """A stream that fell behind the oldest file fails, or goes on with it if told to."""
    places = write_log(tmp_path, [message(n) for n in range(60)])
    start = {str(tmp_path): places[3].offset}
    first = places[0].file
    first.unlink()
    left = [place.offset for place in places if place.file != first]

    source = stream(tmp_path)
    end = source.latestOffset(start, ALL)
    with pytest.raises(DataLost, match="files expired before they were read"):
        source.partitions(start, end)
    assert rows(stream(tmp_path, failOnDataLoss="false"), start, end) == left


def test_damage_does_not_stop_it_silently(tmp_path: Path) -> None:
    """A stream that comes to damage before newer records fails there, or passes it over if told to."""
    places = write_log(tmp_path, [message(n) for n in range(120)])
    damage(places[10])
    start = {str(tmp_path): 0}

    strict = stream(tmp_path)
    with pytest.raises(StoreDamaged, match=str(places[10].offset)):
        rows(strict, start, strict.latestOffset(start, ALL))
    loose = stream(tmp_path, onCorrupt="skip")
    found = rows(loose, start, loose.latestOffset(start, ALL))
    assert found == [place.offset for place in places if place is not places[10]]


def test_old_and_new_log(tmp_path: Path) -> None:
    """A store that became a DLedger is followed from its old log into the new one."""
    store = unpack_fixture(tmp_path, "dledger-mixed") / "broker-0" / "store"
    source = stream(store, splitSize="200k")
    start = source.initialOffset()
    count = 0
    for _ in range(100):
        end = source.latestOffset(start, ReadMaxBytes(400_000))
        if end == start:
            break
        count += len(rows(source, start, end))
        start = end

    assert count == 3631


def test_options_that_a_stream_cannot_have(tmp_path: Path) -> None:
    """A stream has no end and does not stop at damage."""
    with pytest.raises(OptionsError, match="a stream has no end") as caught:
        stream(tmp_path, onCorrupt="stop", endingCommitLogOffset="5")
    assert len(caught.value.problems) == 2


def test_a_stream_does_not_begin_at_the_latest_of_one_queue(tmp_path: Path) -> None:
    """Its batches would ask again what that is, and give nothing; the error names what else can be said."""
    with pytest.raises(OptionsError, match="use latest, or offsets"):
        stream(tmp_path, startingOffsets='{"t": {"b": {"0": 3, "1": -1}}}')
    stream(tmp_path, startingOffsets='{"t": {"b": {"0": 3, "1": -2}}}')


# -- stores that are not what they were ------------------------------------------------------------------


def records(count: int, *, later: int = 0, first: int = 0) -> list[Record]:
    made = [message(number) for number in range(first, first + count)]
    return [replace(each, store_timestamp=each.store_timestamp + later) for each in made]


def read_to_the_end(store: Path) -> dict[str, Any]:
    """The checkpoint of a stream that has read everything."""
    source = stream(store)
    end = source.latestOffset(source.initialOffset(), ALL)
    assert rows(source, source.initialOffset(), end)
    return end


def rewrite(store: Path, made: list[Record], *, entries: bool = False) -> list[Place]:
    """The store holds these records now, and no others."""
    shutil.rmtree(store / ("dledger-n0" if entries else "commitlog"))
    return write_log(store, made, entries=entries)


@pytest.mark.parametrize("entries", [False, True])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_log_that_was_cut_fails_the_stream(tmp_path: Path, entries: bool, restarted: bool) -> None:
    """The same query notices it as well as one that starts from the checkpoint."""
    made = records(60)
    write_log(tmp_path, made, entries=entries)
    source = stream(tmp_path)
    checkpoint = source.latestOffset(source.initialOffset(), ALL)
    rewrite(tmp_path, made[:40], entries=entries)

    with pytest.raises(DataLost, match="cut"):
        (stream(tmp_path) if restarted else source).latestOffset(checkpoint, ALL)


@pytest.mark.parametrize("count", [45, 60, 61, 200])
def test_a_log_that_was_cut_and_has_grown_again_fails_the_stream(tmp_path: Path, count: int) -> None:
    """Whether it is shorter, as long, or longer than what was read: other records are where those were."""
    made = records(60)
    write_log(tmp_path, made)
    source = stream(tmp_path)
    checkpoint = source.latestOffset(source.initialOffset(), ALL)
    rewrite(tmp_path, [*made[:40], *records(count - 40, later=LATER, first=40)])

    for each in (source, stream(tmp_path)):
        why = "it was cut, or" if count == 45 else "was cut and has grown again, or"  # a file less, or none
        with pytest.raises(DataLost, match=f"{why} the store was replaced"):
            each.latestOffset(checkpoint, ALL)
        if count > 45:
            with pytest.raises(DataLost, match="was cut before"):
                each.partitions(checkpoint, {str(tmp_path): 10**6})


def test_a_store_that_was_replaced_by_a_new_one_fails_the_stream(tmp_path: Path) -> None:
    """A new broker on an empty volume, with fewer messages."""
    write_log(tmp_path, records(60))
    checkpoint = read_to_the_end(tmp_path)
    rewrite(tmp_path, records(3, later=LATER))

    with pytest.raises(DataLost, match="failOnDataLoss=false"):
        stream(tmp_path).latestOffset(checkpoint, ALL)


def test_a_store_that_is_gone_fails_the_stream(tmp_path: Path) -> None:
    """One of several that a pattern named; the others are read on if that is allowed."""
    write_log(tmp_path / "a", records(20))
    write_log(tmp_path / "b", records(20, first=100))
    pattern = str(tmp_path / "*")
    source = stream(pattern)
    checkpoint = source.latestOffset(source.initialOffset(), ALL)
    shutil.rmtree(tmp_path / "b")

    with pytest.raises(DataLost, match="/b: the stream has read it, and it is gone"):
        stream(pattern).latestOffset(checkpoint, ALL)
    assert stream(pattern, failOnDataLoss="false").latestOffset(checkpoint, ALL) == checkpoint


def test_a_stream_that_may_lose_messages_goes_on_with_what_is_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It says so, passes over what it cannot tell, and reads everything that is written from then on."""
    made = records(60)
    write_log(tmp_path, made)
    checkpoint = read_to_the_end(tmp_path)
    rewrite(tmp_path, [*made[:40], *records(5, later=LATER, first=40)])
    source = stream(tmp_path, failOnDataLoss="false")

    with caplog.at_level(logging.WARNING, "brokerset_spark"):
        end = source.latestOffset(checkpoint, ALL)
        assert rows(source, checkpoint, end) == []

    assert stream_positions.places(end)[str(tmp_path)] < stream_positions.places(checkpoint)[str(tmp_path)]
    assert "it was cut, or the store was replaced; going on with what there is" in caplog.text
    assert source.latestOffset(end, ALL) == end
    places = rewrite(tmp_path, [*made[:40], *records(30, later=LATER, first=40)])
    assert rows(source, end, source.latestOffset(end, ALL)) == [each.offset for each in places[45:]]


def test_a_stream_that_may_lose_messages_finds_the_next_record_of_a_longer_log(tmp_path: Path) -> None:
    """Where it was there may be the inside of another record."""
    write_log(tmp_path, records(60))
    checkpoint = read_to_the_end(tmp_path)
    at = stream_positions.places(checkpoint)[str(tmp_path)]
    places = rewrite(tmp_path, records(100, later=LATER, first=7))
    source = stream(tmp_path, failOnDataLoss="false")

    end = source.latestOffset(checkpoint, ReadMaxBytes(100_000))

    assert rows(source, checkpoint, end) == [each.offset for each in places if each.offset >= at]
    assert source.latestOffset(end, ALL) == end


@pytest.mark.parametrize("left", [1, 2, 59])
def test_what_is_sure_may_become_less_for_a_while(tmp_path: Path, left: int) -> None:
    """A broker that starts, or confirms less at first, is no cut log: the stream waits, and reads on."""
    made = records(60)
    places = write_log(tmp_path, made)
    checkpoint = read_to_the_end(tmp_path)
    (tmp_path / "abort").touch()  # its last record is held back now

    assert stream(tmp_path).latestOffset(checkpoint, ALL) == checkpoint
    lower = str(places[-left].offset)
    assert stream(tmp_path, confirmedOffset=lower).latestOffset(checkpoint, ALL) == checkpoint
    places = write_log(tmp_path, records(70))
    source = stream(tmp_path)
    more = source.latestOffset(checkpoint, ALL)
    assert rows(source, checkpoint, more) == [each.offset for each in places[60:-1]]


def test_damage_that_was_passed_over_is_no_end_of_the_log(tmp_path: Path) -> None:
    """While the store was closed the stream went on behind it; once it is written what is sure ends there."""
    places = write_log(tmp_path, records(60))
    damage(places[57])
    source = stream(tmp_path, onCorrupt="skip")
    checkpoint = source.latestOffset(source.initialOffset(), ALL)
    assert stream_positions.places(checkpoint)[str(tmp_path)] > places[57].offset
    (tmp_path / "abort").touch()

    assert stream(tmp_path, onCorrupt="skip").latestOffset(checkpoint, ALL) == checkpoint


def test_a_checkpoint_of_an_older_version_is_understood(tmp_path: Path) -> None:
    """It has no marks: a shorter log is noticed all the same, a longer one is read on."""
    places = write_log(tmp_path, records(60))
    old = {str(tmp_path): places[30].offset}

    source = stream(tmp_path)
    assert rows(source, old, source.latestOffset(old, ALL)) == [each.offset for each in places[30:]]
    rewrite(tmp_path, records(10))
    with pytest.raises(DataLost, match=f"the stream is at {places[30].offset}, and the log ends at"):
        stream(tmp_path).latestOffset(old, ALL)


def test_a_batch_that_was_planned_before_the_log_was_cut_is_not_read_as_if_nothing_was(
    tmp_path: Path,
) -> None:
    """Its beginning is the same, its end is not: after a restart Spark asks for the very same batch."""
    made = records(60)
    places = write_log(tmp_path, made)
    source = stream(tmp_path)
    start = source.latestOffset(source.initialOffset(), ReadMaxBytes(places[20].offset))
    end = source.latestOffset(start, ALL)
    rewrite(tmp_path, [*made[:40], *records(20, later=LATER, first=40)])

    with pytest.raises(DataLost, match="another one than when the batch was planned"):
        stream(tmp_path).partitions(start, end)
    assert len(rows(stream(tmp_path, failOnDataLoss="false"), start, end)) > 30


@pytest.mark.parametrize("entries", [False, True])
def test_marks_are_of_the_last_record_wherever_a_batch_ends(tmp_path: Path, entries: bool) -> None:
    """Inside of files and where one ends; an offset at the beginning of the log has none."""
    places = write_log(tmp_path, records(80), entries=entries)
    source, head = stream(tmp_path), 48 if entries else 0
    start = source.initialOffset()
    assert stream_positions.mark_in(start, str(tmp_path)) is None
    at_file_ends = 0
    for limit in (200, 500, 1_000, 4_096, 8_192, 30_000):
        end = source.latestOffset(start, ReadMaxBytes(limit))
        at = stream_positions.places(end)[str(tmp_path)]
        mark = stream_positions.mark_in(end, str(tmp_path))

        before = [each for each in places if each.offset - head < at]
        assert mark is not None
        assert mark.offset == before[-1].offset - head
        assert mark.size == len(before[-1].data) + head
        at_file_ends += at % 4096 == 0
    assert at_file_ends


def test_marks_survive_the_change_to_a_dledger(tmp_path: Path) -> None:
    """Every batch of a store with an old and a new log has a mark that holds in the next one."""
    store = unpack_fixture(tmp_path, "dledger-mixed") / "broker-0" / "store"
    source = stream(store, splitSize="200k")
    start, seen = source.initialOffset(), 0
    for _ in range(100):
        end = source.latestOffset(start, ReadMaxBytes(300_000))
        if end == start:
            break
        assert stream_positions.mark_in(end, str(store)) is not None
        start, seen = end, seen + 1

    assert seen > 5
