"""Streams over stores, planned and read without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

from brokerset_rig.made_stores import Place, damage, message, unpack_fixture, write_log
from brokerset_spark.sources import stream_positions
from brokerset_spark.sources.columns import schema_of
from brokerset_spark.sources.options import OptionsError, read_message_options
from brokerset_spark.sources.reader import DataLost, StoreDamaged
from brokerset_spark.sources.stream import MessageStream

ALL = ReadAllAvailable()


def stream(store: Path, **options: str) -> MessageStream:
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
