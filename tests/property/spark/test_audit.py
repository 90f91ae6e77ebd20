"""Random histories of masters, random bounds, random damage: the first difference is found, and nobody
else is accused."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from brokerset_rig.replica_stores import Log, flip, write_replica
from brokerset_spark.jobs.audit import AuditOptions, MapOptions, audit, compare, map_replica
from brokerset_spark.jobs.audit.digests import (
    SegmentDigest,
    decode_digests,
    encode_digests,
    missing,
    smallest,
    union,
    wanted_intervals,
)
from brokerset_spark.jobs.running import LocalRunner

FILE = 4096
RUNNER = LocalRunner()


@st.composite
def histories(draw: st.DrawFn) -> tuple[Log, tuple[tuple[int, int], ...]]:
    """A log of a few small files, and epochs that start at some of its records."""
    log = Log(file_size=FILE, entries=draw(st.booleans()))
    for size in draw(st.lists(st.integers(0, 900), min_size=2, max_size=40)):
        log.append(bytes(size), queue_id=size % 3)
    starts = draw(st.sets(st.sampled_from(log.starts), max_size=4)) | {0}
    return log, tuple(enumerate(sorted(starts), 1))


@settings(max_examples=60)
@given(history=histories(), data=st.data())
def test_equal_replicas_are_never_accused_whatever_their_bounds_and_heads(
    history: tuple[Log, tuple[tuple[int, int], ...]], data: st.DataObject
) -> None:
    """Confirmed offsets at any byte, heads expired at will, one epoch file older than the other."""
    log, epochs = history
    files = -(-log.end // FILE)
    with tempfile.TemporaryDirectory() as folder:
        stores = []
        for number in range(2):
            confirmed = data.draw(st.integers(1, log.end))
            expired = data.draw(st.integers(0, files - 1))
            path = Path(folder) / str(number)
            write_replica(path, log, epochs=epochs, confirmed=confirmed, broker_id=number, expired=expired)
            stores.append(str(path))
        together = audit(RUNNER, stores)
        apart = compare([map_replica(RUNNER, store) for store in stores])

    for report in (together, apart):
        assert [each for each in report.findings if each.code not in ("not-compared", "file-size")] == []
    assert together.counters["bytesNotCompared"] == 0


@settings(max_examples=60)
@given(history=histories(), data=st.data())
def test_a_damaged_byte_is_found_in_its_record_and_its_replica(
    history: tuple[Log, tuple[tuple[int, int], ...]], data: st.DataObject
) -> None:
    """Whichever byte of whichever record; every record before and behind it stays beyond doubt."""
    log, epochs = history
    number = data.draw(st.integers(0, len(log.starts) - 1))
    start = log.starts[number]
    size = int.from_bytes(log.data[start + (4 if log.entries else 0) :][:4], "big")
    at = data.draw(st.integers(0, size - 1))
    with tempfile.TemporaryDirectory() as folder:
        stores = [
            write_replica(Path(folder) / str(each), log, epochs=epochs, confirmed=log.end, broker_id=each)
            for each in range(3)
        ]
        flip(stores[1], start + at, 1 << data.draw(st.integers(0, 7)))
        report = audit(RUNNER, [str(each) for each in stores], AuditOptions(confirmed=log.end))

    found = [each for each in report.findings if each.code == "bytes"]
    assert {(each.offset, each.store) for each in found} == {(start, str(stores[1]))}
    assert len(found) == 2
    accused = {each.store for each in report.findings if each.level == "error" and each.store}
    assert accused == {str(stores[1])}


@settings(max_examples=60)
@given(history=histories(), data=st.data())
def test_a_fork_is_found_at_its_first_record(
    history: tuple[Log, tuple[tuple[int, int], ...]], data: st.DataObject
) -> None:
    """Two masters go on from the same record under the same epochs, with other messages."""
    log, epochs = history
    at = data.draw(st.integers(1, len(log.starts) - 1))
    common = log.copy(until=log.starts[at])
    one, other = common.copy(), common.copy()
    for made, letter in ((one, b"a"), (other, b"b")):
        for size in data.draw(st.lists(st.integers(1, 300), min_size=1, max_size=5)):
            made.append(letter * size)
    begin = min(
        each for each in (set(one.starts) ^ set(other.starts)) | set(one.starts[at:]) & set(other.starts[at:])
    )
    known = tuple(each for each in epochs if each[1] < common.end)
    with tempfile.TemporaryDirectory() as folder:
        stores = [
            write_replica(Path(folder) / str(n), each, epochs=known, confirmed=each.end, broker_id=n)
            for n, each in enumerate((one, other))
        ]
        report = audit(RUNNER, [str(each) for each in stores])
        maps = [
            map_replica(RUNNER, str(each), MapOptions(confirmed=min(one.end, other.end))) for each in stores
        ]
        apart = compare(maps)

    offsets = [each.offset for each in report.findings if each.code == "bytes"]
    assert offsets == [begin]
    assert [each.code for each in apart.findings if each.code == "bytes"] == ["bytes"]
    (pair,) = apart.facts["pairs"]
    assert pair["differing"][0][0] <= begin < pair["differing"][0][1]


@given(
    st.integers(0, 40).map(lambda n: n << 20),
    st.integers(1, 600 << 20),
    st.sets(st.integers(0, 700 << 20), max_size=5),
)
def test_stretches_cover_a_file_without_gaps_at_every_size(begin: int, length: int, cuts: set[int]) -> None:
    """Each point at which anybody cuts is a border, and the smallest stretches are a partition."""
    end = begin + length
    found = wanted_intervals(begin, end, cuts=cuts, bound=end)

    assert union(found) == [(begin, end)]
    pieces = smallest(found)
    assert pieces[0][0] == begin
    assert pieces[-1][1] == end
    assert all(one[1] == other[0] for one, other in itertools.pairwise(pieces))
    assert {each for each in cuts if begin < each < end} <= {start for start, _ in pieces}
    assert missing((begin, end), pieces[1:]) == [pieces[0]]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2**62),
            st.integers(0, 2**31),
            st.integers(0, 2**32 - 1),
            st.binary(min_size=16, max_size=16),
        ),
        max_size=50,
    )
)
def test_a_table_of_digests_survives_its_encoding(rows: list[tuple[int, int, int, bytes]]) -> None:
    table = [SegmentDigest(start, start + length, count, digest) for start, length, count, digest in rows]

    assert decode_digests(encode_digests(table)) == table
