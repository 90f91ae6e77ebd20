"""Limits and divisions of batches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerset_spark.topics.offsets import Mark, QueueKey
from brokerset_spark.topics.planning import SHORT, Range, divided, limited

KEYS = [QueueKey("t", "b", number) for number in range(6)]
SIZES = st.lists(st.integers(0, 10_000), min_size=1, max_size=6)


@given(SIZES, st.integers(1, 20_000))
def test_a_limit_holds_and_every_queue_moves(sizes: list[int], most: int) -> None:
    """The sum is at most the limit and one record for each queue; a queue with anything advances when the
    limit cuts, and none goes beyond its end."""
    begins = dict.fromkeys(KEYS[: len(sizes)], 5)
    ends = {key: 5 + size for key, size in zip(KEYS, sizes, strict=False)}
    found = limited(begins, ends, most)
    counts = {key: found[key] - 5 for key in ends}
    assert all(0 <= counts[key] <= ends[key] - 5 for key in ends)
    assert sum(counts.values()) <= min(most + len(sizes), sum(sizes))
    assert all(counts[key] > 0 for key in ends if ends[key] > 5)
    if sum(sizes) <= most:
        assert found == ends


@given(SIZES, st.integers(0, 50), st.integers(0, 3000))
def test_tasks_have_each_record_once(sizes: list[int], tasks_min: int, records_max: int) -> None:
    """Ranges of tasks are the ranges that were given, in pieces, without gap, double or empty piece."""
    ranges = [Range(key, 7, 7 + size, mark=Mark(1, 2)) for key, size in zip(KEYS, sizes, strict=False)]
    tasks = divided(ranges, tasks_min=tasks_min, records_max=records_max)
    pieces = [piece for task in tasks for piece in task]
    assert all(len(piece) for piece in pieces)
    for wanted in ranges:
        mine = sorted((p.start, p.end) for p in pieces if p.key == wanted.key)
        assert [place for piece in mine for place in range(*piece)] == list(range(wanted.start, wanted.end))
    if records_max:
        assert all(len(piece) <= records_max for piece in pieces)
    if tasks_min:
        assert len(tasks) >= min(tasks_min, sum(sizes))
    assert {p.start for p in pieces if p.mark is not None} <= {7}


@pytest.mark.parametrize(
    ("sizes", "tasks_min", "parts"),
    [
        ([4], 4, [1, 1, 1, 1]),
        ([4, 20], 4, [4, 6, 7, 7]),
        ([0, 20], 4, [5, 5, 5, 5]),
        ([1, 1000], 4, [1, 333, 333, 334]),
        ([4, 20], 1, [4, 20]),
        ([10], 3, [3, 3, 4]),
        ([10, 10, 1], 6, [3, 3, 4, 3, 3, 4, 1]),
        ([10_000, 15_000, 20_000], 9, [5000] * 9),
        ([500, 12_000, 15_001], 6, [500, 6000, 6000, 5000, 5000, 5001]),
        ([1, 1, 10_000], 6, [1, 1, 2500, 2500, 2500, 2500]),
    ],
)
def test_ranges_are_divided_as_in_kafka(sizes: list[int], tasks_min: int, parts: list[int]) -> None:
    """The cases of `KafkaOffsetRangeCalculatorSuite`."""
    ranges = [Range(key, 1, 1 + size) for key, size in zip(KEYS, sizes, strict=False)]
    assert [len(piece) for task in divided(ranges, tasks_min=tasks_min) for piece in task] == parts


def test_short_ranges_share_a_task() -> None:
    """Trickles of many queues do not make a task each; a long range has its own."""
    ranges = [Range(key, 0, 10) for key in KEYS] + [Range(QueueKey("u", "b", 0), 0, SHORT)]
    assert [len(task) for task in divided(ranges)] == [1, 6]
