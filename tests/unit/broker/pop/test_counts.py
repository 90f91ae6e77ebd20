"""Numbers for metrics: what is overdue, and how long searches took."""

from __future__ import annotations

import pytest

from brokerset_broker.pop.check_points import CheckPoints
from brokerset_broker.pop.counts import SERIES_MAX, PopCounts, Steps
from brokerset_formats.pop.records import CheckPoint


def point_at(start: int) -> CheckPoint:
    return CheckPoint(
        topic="t", group="g", queue_id=0, start_offset=start, pop_time=1, invisible_time=1_000, broker="b",
        count=1, distances=(0,),
    )  # fmt: skip


def test_overdue_are_those_that_due_gives_and_nothing_changes() -> None:
    """Asked twice it says the same, and before and after `due` has begun to give them out."""
    points = CheckPoints()
    for start, due in enumerate((9.0, 1.0, 3.0, 1.0, 2.0, 8.0, 2.5)):
        points.add(point_at(start), 0, start, due)
    points.ack(next(point for point in points.due(1.1) if point.start == 3), 1)

    first = sorted(point.start for point in points.overdue(4.0))
    second = sorted(point.start for point in points.overdue(4.0))
    given = points.due(4.0)
    taken = next(given)
    points.put_off(taken, 100.0)
    left = sorted(point.start for point in points.overdue(4.0))

    assert first == second
    assert set(first) >= {2, 4, 6}
    assert set(first) <= {1, 2, 4, 6}
    assert left == [start for start in first if start != taken.start]
    assert list(points.overdue(0.5)) == []
    assert list(CheckPoints().overdue(4.0)) == []


def test_times_of_searches_are_cumulated_as_prometheus_wants_them() -> None:
    """A time counts in the class of its bound and in all above."""
    steps = Steps()
    for seconds in (0.0005, 0.001, 0.05, 2.5, 60):
        steps.add(seconds)

    assert steps.buckets() == [
        ("1", 2.0), ("10", 2.0), ("100", 3.0), ("1000", 3.0), ("2000", 3.0), ("3000", 4.0), ("+Inf", 5.0),
    ]  # fmt: skip
    assert steps.sum_ms == pytest.approx(62_551.5)


def test_names_of_clients_do_not_grow_without_bound() -> None:
    """What is counted already goes on; what is new finds room again when something was forgotten."""
    counts = PopCounts()
    for number in range(SERIES_MAX + 5):
        counts.stored.add((f"g{number}", "t" if number else "u", "CK"))
    counts.stored.add(("g0", "u", "CK"))
    full = len(counts.stored)

    for number in range(1, SERIES_MAX):
        del counts.stored[f"g{number}", "t", "CK"]
    counts.stored.add(("g9", "u", "CK"))

    assert full == SERIES_MAX
    assert counts.stored == {("g0", "u", "CK"): 2, ("g9", "u", "CK"): 1}
