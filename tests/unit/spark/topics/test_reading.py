"""A range is read whole, or the loss is said."""

from __future__ import annotations

import asyncio
import itertools
import zlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given as over
from hypothesis import strategies as st

from brokerset_formats.records import SysFlag, decode_record
from brokerset_rig.wire_answers import GIVEN_KEY, Given, given_answers, given_record, nothing_from
from brokerset_spark.stores.reading import Chunk
from brokerset_spark.topics import pulls
from brokerset_spark.topics.client_thread import ClientThread
from brokerset_spark.topics.columns import BadBody, WireBatches, source_schema, wire_schema
from brokerset_spark.topics.offsets import Mark
from brokerset_spark.topics.options import SourceOptions
from brokerset_spark.topics.planning import Range
from brokerset_spark.topics.reading import Answers, DataLost, QueryPolicy, RangeReader, record_starts, sifted


def read(wanted: Range, given: Sequence[Answers], *, fail: bool = True) -> list[int]:
    options = SourceOptions(name_servers="n:1", topics=("t",), fail_on_data_loss=fail)
    reader = RangeReader(cast(ClientThread, Given(given)), wanted, QueryPolicy(options))
    found = []
    for chunk in reader.chunks():
        raw = chunk.data.tobytes()
        for start in chunk.starts.tolist():
            found.append(int.from_bytes(raw[start + 20 : start + 28], "big"))
    return found


def test_answers_are_cut_to_the_range() -> None:
    """Records before and behind the range, which brokers give along, are left out."""
    assert read(Range(GIVEN_KEY, 2, 5), [given_answers(2, 3), given_answers(4, 5, 6)]) == [2, 3, 4]


def test_a_gap_in_an_answer_is_a_loss() -> None:
    """A record that is missing between others fails the task; a compacted topic may have holes."""
    with pytest.raises(DataLost, match="records 3 to 4 are missing"):
        read(Range(GIVEN_KEY, 2, 5), [given_answers(2, 4)])
    assert read(Range(GIVEN_KEY, 2, 5), [given_answers(2, 4)], fail=False) == [2, 4]
    assert read(Range(GIVEN_KEY, 2, 5, holes=True), [given_answers(2, 4)]) == [2, 4]


def test_what_has_expired_is_a_loss() -> None:
    """Without failOnDataLoss the rest of the range is read."""
    given = [nothing_from(2, 4, 9), given_answers(4)]
    with pytest.raises(DataLost, match="records 2 to 4 are not there any more"):
        read(Range(GIVEN_KEY, 2, 5), given)
    assert read(Range(GIVEN_KEY, 2, 5), given, fail=False) == [4]


def test_a_queue_that_ends_early_is_a_loss() -> None:
    """What was planned and does not come is not passed over."""
    given = [given_answers(2), nothing_from(3, 3, 3)]
    with pytest.raises(DataLost, match="records 3 to 5 are not there any more"):
        read(Range(GIVEN_KEY, 2, 5), given)
    assert read(Range(GIVEN_KEY, 2, 5), given, fail=False) == [2]


def test_the_record_before_the_range_is_compared() -> None:
    """Another record under the number before the range fails the task; if it has expired nothing is said."""
    right = Mark(1001, crc_of(1))
    assert read(Range(GIVEN_KEY, 2, 4, mark=right), [given_answers(1, 2, 3)]) == [2, 3]
    with pytest.raises(DataLost, match="is another one"):
        read(Range(GIVEN_KEY, 2, 4, mark=Mark(5, 5)), [given_answers(1, 2, 3)])
    assert read(Range(GIVEN_KEY, 2, 4, mark=right), [nothing_from(1, 2, 9), given_answers(2, 3)]) == [2, 3]


def test_records_of_another_queue_are_not_given() -> None:
    """Without failOnDataLoss, too: the next batch begins at the other queue's first record, so they would
    come twice."""
    for given in ([given_answers(1, 2), given_answers(3, 4)], [given_answers(1, 2), nothing_from(3, 3, 3)]):
        assert read(Range(GIVEN_KEY, 2, 5, mark=Mark(5, 5)), given, fail=False) == []


@pytest.mark.parametrize("more", [-1, 1, len(given_record(4))])
def test_a_record_whose_lengths_are_wrong_is_refused(more: int) -> None:
    """Else its body would end in another field, or in another record; the error names the queue and it."""
    record = bytearray(given_record(3))
    record[84:88] = (int.from_bytes(record[84:88], "big") + more).to_bytes(4, "big")
    given = Answers([given_record(2), bytes(record), given_record(4)], 5)
    with pytest.raises(ValueError, match=r"^queue 0 of topic t on a, pulled from offset 2 on: "):
        read(Range(GIVEN_KEY, 2, 5), [given])


def crc_of(offset: int) -> int:
    return decode_record(given_record(offset)).body_crc


def test_what_is_no_run_of_records_is_refused() -> None:
    """A damaged length does not make a task read beyond its answer."""
    with pytest.raises(ValueError, match="has a record of 7 bytes at 0"):
        record_starts(b"\x00\x00\x00\x07" + b"x" * 96)


@over(st.sets(st.integers(0, 47)), st.integers(0, 20), st.integers(0, 30))
def test_gaps_and_records_together_are_the_range(found: set[int], begin: int, size: int) -> None:
    """Each offset of the range either came or is in one gap, gaps do not touch, and nothing else is kept."""
    offsets, until = np.array(sorted(found), np.int64), begin + size

    kept, gaps = sifted(offsets, begin, until)

    missing = [at for first, last in gaps for at in range(first, last)]
    assert sorted([*missing, *offsets[kept].tolist()]) == list(range(begin, until))
    assert all(before[1] < after[0] for before, after in itertools.pairwise(gaps))


def test_records_out_of_order_are_refused() -> None:
    """A broker that gives a record twice would fill a table with it."""
    for offsets in ([3, 2], [2, 2]):
        with pytest.raises(ValueError, match="behind record"):
            sifted(np.array(offsets, np.int64), 0, 9)


def bodies(options: dict[str, Any], *records: bytes) -> list[tuple[Any, Any]]:
    """`value` and its error."""
    wanted = SourceOptions(name_servers="n:1", topics=("t",), **options)
    schema = wire_schema(source_schema(wanted))
    raw = b"".join(records)
    starts = record_starts(raw)
    chunk = Chunk(np.frombuffer(raw, np.uint8), 0, starts, np.diff([*starts, len(raw)]).astype(np.int32))
    batches = WireBatches(schema, Range(GIVEN_KEY, 0, 9), fail_on_bad_body=wanted.fail_on_bad_body)
    return [(row.get("value"), row.get("valueError")) for row in batches.build(chunk).to_pylist()]


def test_a_body_that_cannot_be_opened_has_its_place_in_the_error() -> None:
    """Topic, queue, offset, and the option that passes it over; then the other rows come, and it is null."""
    records = (
        given_record(5, zlib.compress(b"good"), SysFlag.COMPRESSED),
        given_record(6, b"no zlib at all", SysFlag.COMPRESSED),
        given_record(7),
    )
    with pytest.raises(BadBody, match=r"queue 0 of topic t on a, offset 6: .* failOnBadBody=false"):
        bodies({}, *records)
    rows = bodies({"fail_on_bad_body": False}, *records)
    assert [value for value, _ in rows] == [b"good", None, b"7"]
    assert [error is None for _, error in rows] == [True, False, True]
    assert bodies({"columns": ("offset",)}, *records) == [(None, None)] * 3


@pytest.mark.parametrize(
    ("read_from", "addresses"),
    [
        ("master", ["m", "m", "m", "m"]),
        ("auto", ["m", "s1", "s2", "m"]),
        ("replica", ["s2", "s1", "m", "s2"]),
    ],
)
def test_readers_go_on_with_another_replica(read_from: Any, addresses: list[str]) -> None:
    """Of replicas that fail the next one is asked, in an order that the option gives."""
    route = SimpleNamespace(addresses={"a": {0: "m", 1: "s1", 2: "s2"}})

    async def known(_: str) -> Any:
        return route

    instance = cast(Any, SimpleNamespace(route=known))
    key = GIVEN_KEY._replace(queue=1)

    def asked(turn: int) -> tuple[str, bool]:
        return asyncio.run(pulls.reader(instance, key, read_from, turn=turn))

    assert [asked(turn) for turn in range(4)] == [(each, each == "m") for each in addresses]
