"""Tables that stand for records: put together in pieces they say the same as at once."""

from __future__ import annotations

import numpy as np

from brokerset_spark.jobs.order.parts import Example, RangePart
from brokerset_spark.jobs.order.tables import (
    KEYS_KEPT,
    LOGICAL,
    QUEUE,
    RUN,
    Table,
    count_keys,
    fuse,
    group,
    hash_texts,
    least_hashes,
    rows_of,
)


def records(count: int, *, queues: int = 2, producers: int = 2) -> Table:
    """A run of one message each: producers and queues in turn, sequences without a hole."""
    number = np.arange(count)
    stream = number % (queues * producers)
    return rows_of(
        RUN, count, queue=stream % queues, producer=stream // queues, partition=stream % queues, epoch=1,
        first=number // (queues * producers), last=number // (queues * producers),
        first_place=number // queues, last_place=number // queues, offset=number * 100, time=number,
    )  # fmt: skip


def test_messages_that_follow_each_other_become_one_run() -> None:
    """One for each producer and queue, in the order of the log, whatever else lies between."""
    runs = fuse(records(40))

    assert runs[["queue", "producer", "first", "last", "offset"]].tolist() == [
        (0, 0, 0, 9, 0), (1, 0, 0, 9, 100), (0, 1, 0, 9, 200), (1, 1, 0, 9, 300),
    ]  # fmt: skip
    assert runs["last_place"].tolist() == [18, 18, 19, 19]


def test_runs_of_pieces_are_the_runs_of_the_whole() -> None:
    """Wherever a log is cut."""
    whole = records(60, queues=3)
    for cut in range(61):
        pieces = np.concatenate([fuse(whole[:cut]), fuse(whole[cut:])])
        assert fuse(pieces).tolist() == fuse(whole).tolist()


def test_a_run_ends_where_anything_is_interrupted() -> None:
    """Another epoch or partition, a sequence that is missing or comes again, a queue that begins again."""
    for name, value in (("epoch", 2), ("partition", 9), ("first", 7), ("first_place", 0)):
        table = records(4, queues=1, producers=1)
        table[name][2:] = value + np.arange(2) * (name in ("first", "first_place"))
        if name in ("first", "first_place"):
            table[name.replace("first", "last")][2:] = table[name][2:]
        assert len(fuse(table)) == 2, name


def test_groups_have_sums_and_ends() -> None:
    """The first of the log, the lowest and the highest time, whatever clocks do."""
    table = rows_of(
        LOGICAL, 4, queue=[0, 1, 0, 0], logical=[5, 5, 7, 5], messages=1, first_place=[0, 0, 1, 2],
        first_offset=[0, 100, 200, 300], last_offset=[0, 100, 200, 300], first_time=[9, 3, 4, 2],
        last_time=[9, 3, 4, 2],
    )  # fmt: skip

    assert group(table).tolist() == [
        (0, 5, 2, 0, 0, 300, 2, 9), (0, 7, 1, 1, 200, 200, 4, 4), (1, 5, 1, 0, 100, 100, 3, 3),
    ]  # fmt: skip
    assert group(table[:0]).tolist() == fuse(np.empty(0, RUN)).tolist() == []


def test_keys_are_counted_exactly_up_to_a_limit_and_closely_beyond_it() -> None:
    """Put together from parts that share keys; beyond the limit within 3 %."""
    hashes = np.random.default_rng(7).integers(0, 2**64, 200_000, np.uint64)
    few = least_hashes(hashes[:900], hashes[500:1_000])
    many = least_hashes(*(least_hashes(part, hashes[:50]) for part in np.array_split(hashes, 10)))

    assert count_keys(few) == (1_000, True)
    assert len(many) == KEYS_KEPT
    count, exact = count_keys(many)
    assert not exact
    assert abs(count - 200_000) < 6_000
    assert count_keys(np.empty(0, np.uint64)) == (0, True)


def test_equal_keys_have_equal_hashes_and_others_do_not() -> None:
    """Whatever stands before them; also empty ones, and those that are the beginning of another."""
    texts = [
        "",
        "a",
        "aa",
        "order-1",
        *(f"k-{number}" for number in range(5_000)),
        "订单1001",
        "a",
        "order-1",
        "",
    ]
    raw = [text.encode() for text in texts]
    hashes = hash_texts(np.frombuffer(b"".join(raw), np.uint8), np.cumsum([0, *map(len, raw)])).tolist()

    assert hashes[-3:] == [hashes[1], hashes[3], hashes[0]]
    assert len(set(hashes)) == len(set(texts))
    assert 2_000 < sum(each < 2**63 for each in hashes) < 3_000


def test_a_part_survives_its_way_to_the_reducer() -> None:
    """All tables, names, keys and examples."""
    part = RangePart(
        number=3, groups=(("orders", 0), ("näme", 2)), producers=("p-1",), queues=np.zeros(2, QUEUE),
        runs=fuse(records(9)), logical=np.zeros(1, LOGICAL), run_keys={100: "k"},
        hashes={"orders": np.array([1, 2**64 - 1], np.uint64)},
        examples=(Example("absent", 1, 5, 600, ""),), unjudged={1: 7},
    )  # fmt: skip

    back = RangePart.unpack(part.pack())

    for name in ("number", "groups", "producers", "run_keys", "examples", "unjudged"):
        assert getattr(back, name) == getattr(part, name)
    for name in ("queues", "runs", "logical"):
        assert getattr(back, name).tolist() == getattr(part, name).tolist()
    assert back.hashes["orders"].tolist() == [1, 2**64 - 1]
