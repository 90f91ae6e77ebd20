"""Counts of `inspect`: tables of them are put together without losing a message."""

from __future__ import annotations

import pyarrow as pa
import pytest

from brokerset_spark.jobs import inspect


def table_of(rows: list[tuple[str, int, int, int]]) -> pa.Table:
    """Topic, queue, day and messages of 10 bytes, all stored in the first second of the day."""
    topics, queues, days, messages = zip(*rows, strict=True)
    times = [day * inspect.DAY_MS for day in days]
    sizes = [10 * each for each in messages]
    return pa.table(
        {
            "topic": list(topics), "queue": list(queues), "day": list(days), "messages": list(messages),
            "bytes": sizes, "bodyBytes": sizes, "first": times, "last": times,
        }
    )  # fmt: skip


def test_parts_of_one_group_become_one_row() -> None:
    """Sums of counts and bytes, the earliest and the latest time; whatever kinds of integers parts have."""
    one = table_of([("a", 0, 5, 2), ("a", 1, 5, 3)])
    other = table_of([("a", 0, 5, 7)]).cast(
        pa.schema([(each.name, pa.string() if each.name == "topic" else pa.int64()) for each in one.schema])
    )

    found = inspect._grouped([one, other])

    assert sorted(found.select(["queue", "messages", "bytes"]).to_pylist(), key=str) == [
        {"queue": 0, "messages": 9, "bytes": 90},
        {"queue": 1, "messages": 3, "bytes": 30},
    ]


def test_more_days_than_are_reported_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store with damaged times fills no driver: the days with the most messages stay, and no count goes."""
    monkeypatch.setattr(inspect, "DAYS_MAX", 3)
    found = inspect._few_days(table_of([("a", 0, day, day) for day in range(1, 11)]))

    days = {each["day"]: each["messages"] for each in inspect._rows(found, "day")}

    assert days == {10: 10, 9: 9, inspect.OTHER_DAYS: 36}
    assert inspect._few_days(found).num_rows == 3
