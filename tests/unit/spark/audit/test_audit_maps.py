"""Maps that travel: what a map made elsewhere still finds, how small it is, and what the cache may spare."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from brokerset_formats.errors import FormatError
from brokerset_rig.replica_stores import FILE_SIZE, Log, flip, write_replica
from brokerset_spark.jobs.audit import (
    ControllerView,
    MapOptions,
    ReplicaMap,
    compare,
    map_replica,
    parse_view,
)
from brokerset_spark.jobs.audit.digests import (
    COARSE,
    ROWS_MAX,
    SEGMENT,
    SegmentDigest,
    thin,
    wanted_intervals,
)
from brokerset_spark.jobs.audit.mapping import FULL_READ_MS
from brokerset_spark.jobs.running import LocalRunner, Result, Row

RUNNER = LocalRunner()
NOW_MS = 1_800_000_000_000


def travelled(store: Path, options: MapOptions | None = None) -> ReplicaMap:
    """A map that was written and read again."""
    return ReplicaMap.from_json(map_replica(RUNNER, str(store), options).to_json())


def test_maps_made_apart_find_the_stretch_that_differs(tmp_path: Path, log: Log) -> None:
    stores = [
        write_replica(tmp_path / each, log, epochs=((1, 0),), confirmed=log.end, broker_id=number)
        for number, each in enumerate("ab")
    ]
    clean = compare([travelled(each) for each in stores])
    flip(stores[0], log.starts[500] + 100)
    report = compare([travelled(each) for each in stores])

    assert clean.findings == []
    assert clean.counters["bytesNotCompared"] == 0
    (finding,) = [each for each in report.findings if each.code == "bytes"]
    assert finding.offset is not None
    assert finding.end is not None
    assert finding.offset <= log.starts[500] < finding.end <= finding.offset + FILE_SIZE


@pytest.mark.parametrize("entries", [False, True])
@pytest.mark.parametrize("inside", [0, 1, 7, 8, 500, -1])
def test_a_confirmed_offset_inside_a_blank_record_accuses_nobody(
    tmp_path: Path, entries: bool, inside: int
) -> None:
    """A slave receives bytes, not records, so what is confirmed may end anywhere."""
    log = Log(file_size=4096, entries=entries)
    for size in (900, 900, 900, 900):
        log.append(bytes(size))
    blank, following = log.starts[2] + log.starts[1], log.starts[3]
    assert following == 4096
    confirmed = blank + inside if inside >= 0 else following + inside
    stores = [
        write_replica(tmp_path / "a", log, epochs=((1, 0),), confirmed=log.end, broker_id=1),
        write_replica(tmp_path / "b", log, epochs=((1, 0),), confirmed=confirmed, broker_id=2),
    ]

    report = compare([travelled(each) for each in stores])

    assert [each for each in report.findings if each.code != "not-compared"] == []


def test_maps_with_different_bounds_are_compared_as_far_as_their_digests_meet(
    tmp_path: Path, log: Log
) -> None:
    """What is left is told; the same cut given to both leaves nothing."""
    half = log.starts[700]
    a = write_replica(tmp_path / "a", log, epochs=((1, 0),), confirmed=log.end, broker_id=1)
    b = write_replica(tmp_path / "b", log, epochs=((1, 0),), confirmed=half, broker_id=2)

    apart = compare([travelled(a), travelled(b)])
    cut = compare([travelled(a, MapOptions(cuts=(half,))), travelled(b)])

    assert [each.code for each in apart.findings] == ["not-compared"]
    assert apart.counters["bytesNotCompared"] == half % FILE_SIZE
    assert cut.findings == []


def test_a_map_of_a_terabyte_stays_below_a_megabyte() -> None:
    """Segments of the oldest part give way; what remains still covers the whole log."""
    rows = []
    for base in range(0, 1 << 40, 1 << 30):
        for start, end in wanted_intervals(base, base + (1 << 30), bound=1 << 40):
            rows.append(SegmentDigest(start, end, 14_000, os.urandom(16)))
    assert len(rows) > 2 * ROWS_MAX

    kept = thin(rows)
    found = ReplicaMap(url="x", name="x", layout="commitlog", digests=tuple(rows)).to_json()

    assert len(kept) <= ROWS_MAX
    assert len(found) < 1_000_000
    assert {each.start for each in kept if each.end - each.start == COARSE} == set(range(0, 1 << 40, COARSE))
    assert any(each.end == 1 << 40 and each.end - each.start <= SEGMENT for each in kept)


@pytest.mark.parametrize(
    "change", [b"", b"{}", b"[]", b'{"mapVersion": 99}', b"\xff", b'{"mapVersion": 1, "url": 3}']
)
def test_what_is_no_map_is_refused(change: bytes) -> None:
    with pytest.raises(FormatError):
        ReplicaMap.from_json(change)


def test_a_map_with_a_cut_table_is_refused(tmp_path: Path, log: Log) -> None:
    value = json.loads(map_replica(RUNNER, str(write_replica(tmp_path / "a", log))).to_json())
    value["digests"] = value["digests"][:-10]

    with pytest.raises(FormatError, match="table of digests"):
        ReplicaMap.from_json(json.dumps(value).encode())


def test_a_map_whose_identity_is_no_text_is_refused(tmp_path: Path, log: Log) -> None:
    """A value of another type ends in the same words, not in a traceback."""
    value = json.loads(map_replica(RUNNER, str(write_replica(tmp_path / "a", log))).to_json())

    with pytest.raises(FormatError, match="'encode'"):
        ReplicaMap.from_json(json.dumps({**value, "identity": 5}).encode())


def test_the_cache_spares_sealed_files_until_they_change_or_a_week_has_gone(tmp_path: Path, log: Log) -> None:
    store = write_replica(tmp_path / "a", log, epochs=((1, 0),), confirmed=log.end)
    options = MapOptions(cache=tmp_path / "cache.json", now_ms=NOW_MS)
    first = map_replica(RUNNER, str(store), options)
    sealed = sum(
        end - start
        for start, end in ((n * FILE_SIZE, (n + 1) * FILE_SIZE) for n in range(log.end // FILE_SIZE))
    )

    again = map_replica(RUNNER, str(store), options)
    full = map_replica(RUNNER, str(store), replace(options, full=True))
    late = map_replica(RUNNER, str(store), replace(options, now_ms=NOW_MS + FULL_READ_MS))
    path = flip(store, log.starts[100] + 100)
    changed = map_replica(RUNNER, str(store), replace(options, now_ms=NOW_MS + FULL_READ_MS))

    assert first.bytes_cached == full.bytes_cached == late.bytes_cached == 0
    assert 0.9 * sealed < again.bytes_cached <= sealed
    assert again.bytes_read + again.bytes_cached == first.bytes_read
    assert again.digests == first.digests == late.digests
    assert [each.begin for each in changed.damages] == [log.starts[100]]
    assert path.name in changed.damages[0].file


def test_damage_is_never_taken_from_the_cache(tmp_path: Path, log: Log) -> None:
    store = write_replica(tmp_path / "a", log, epochs=((1, 0),), confirmed=log.end)
    flip(store, log.starts[100] + 100)
    options = MapOptions(cache=tmp_path / "cache.json", now_ms=NOW_MS)

    found = [map_replica(RUNNER, str(store), options).damages for _ in range(2)]

    assert found[0] == found[1] != ()


def test_a_new_epoch_in_a_sealed_file_is_not_taken_for_known(tmp_path: Path, log: Log) -> None:
    """The cache has no digest cut there, and does not know whether a record begins there."""
    options = MapOptions(cache=tmp_path / "cache.json", now_ms=NOW_MS)
    store = write_replica(tmp_path / "a", log, epochs=((1, 0),), confirmed=log.end)
    map_replica(RUNNER, str(store), options)
    wrong = log.starts[50] + 1
    moved = write_replica(tmp_path / "b", log, epochs=((1, 0), (2, wrong)), confirmed=log.end)
    (store / "epochFileCheckpoint").write_bytes((moved / "epochFileCheckpoint").read_bytes())

    assert map_replica(RUNNER, str(store), options).bad_boundaries == (wrong,)


def test_a_damaged_cache_file_is_an_empty_one(tmp_path: Path, log: Log) -> None:
    store = write_replica(tmp_path / "a", log, confirmed=log.end)
    (tmp_path / "cache.json").write_bytes(b'{"cacheVersion": 1, "stores": {"x')

    found = map_replica(RUNNER, str(store), MapOptions(cache=tmp_path / "cache.json"))

    assert found.records == len(log.starts)
    assert json.loads((tmp_path / "cache.json").read_bytes())["stores"].keys() == {str(store)}


def test_a_store_that_is_read_by_many_processes_gives_the_same_map(tmp_path: Path, log: Log) -> None:
    store = write_replica(tmp_path / "a", log, epochs=((1, 0),), confirmed=log.end)

    one, many = (map_replica(LocalRunner(count), str(store)) for count in (1, 3))

    assert one.digests == many.digests
    assert (one.records, one.last) == (many.records, many.last)


def test_a_view_is_read_from_a_status_with_several_groups() -> None:
    status = {
        "groups": [
            {"brokerName": "a", "masterId": 2, "masterEpoch": 5, "syncStateSet": [1, 2]},
            {"brokerName": "b", "masterId": None, "masterEpoch": 7, "syncStateSet": []},
        ]
    }

    assert parse_view(json.dumps(status).encode(), "a") == ControllerView("a", 2, 5, frozenset({1, 2}))
    assert parse_view(json.dumps(status["groups"][1]).encode(), "b").master_id is None
    with pytest.raises(FormatError, match="0 groups fit broker c"):
        parse_view(json.dumps(status).encode(), "c")
    with pytest.raises(FormatError):
        parse_view(b'{"groups": 3}', "a")


def test_a_replica_read_before_another_confirmed_more_is_not_accused_while_it_is_written(
    tmp_path: Path, log: Log
) -> None:
    """Two maps of running brokers are made at different times; the later one knows more."""
    short = log.copy(until=log.starts[900])
    early = travelled(
        write_replica(tmp_path / "a", short, epochs=((1, 0),), confirmed=short.end, broker_id=1)
    )
    later = travelled(write_replica(tmp_path / "b", log, epochs=((1, 0),), confirmed=log.end, broker_id=2))
    running = replace(early, written=True, last_at_ms=later.confirmed_at_ms - 1)

    stopped_codes, running_codes = (
        {each.code for each in compare([each, later]).findings} for each in (early, running)
    )

    assert "confirm" in stopped_codes
    assert "confirm" not in running_codes
    election = compare([running, later]).facts["elections"][0]
    assert (election["lostFrom"], election["mayHaveGrown"]) == (short.end, True)


def test_the_last_record_of_a_store_that_is_written_is_held_back_when_nothing_is_confirmed(
    tmp_path: Path, log: Log
) -> None:
    """Its body may still be on its way."""
    store = write_replica(tmp_path / "a", log, epochs=((1, 0),))
    stopped = travelled(store)
    (store / "abort").write_bytes(b"1")
    running = travelled(store)

    assert (stopped.bound, stopped.last, stopped.records) == (log.end, log.end, 1000)
    assert (running.bound, running.last, running.records) == (log.starts[-1], log.end, 999)


class ExpiringRunner(LocalRunner):
    """The first file goes between planning and reading, as a running broker deletes old ones."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file

    def run(self, task: str, rows: Sequence[Row], reducer: str = "") -> Iterator[Result]:
        self._file.unlink(missing_ok=True)
        yield from super().run(task, rows)


@pytest.mark.parametrize("number", [0, 2])
def test_a_file_that_goes_meanwhile_is_expired_at_the_head_and_damage_elsewhere(
    tmp_path: Path, log: Log, number: int
) -> None:
    store = write_replica(tmp_path / "a", log, epochs=((1, 0),), confirmed=log.end)
    file = store / "commitlog" / f"{number * FILE_SIZE:020d}"

    found = map_replica(ExpiringRunner(file), str(store))

    assert found.first == (FILE_SIZE if number == 0 else 0)
    gone = [(each.begin, each.end, each.reason) for each in found.damages]
    assert gone == ([] if number == 0 else [(2 * FILE_SIZE, 3 * FILE_SIZE, "GONE")])
    assert min(each.start for each in found.digests) == found.first
