"""How tasks are handed to Spark, with a session that runs them here: lanes, errors, and an early end.

`tests/integration/spark` does the same on a real one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from brokerset_spark.jobs import running
from brokerset_spark.jobs.report import JobFailed, NoInput
from brokerset_spark.jobs.running import Result, Row, SparkRunner

TASK = "here:task"
SECONDS_MAX = 20.0


class Session:
    """As much of a `SparkSession` as a runner uses."""

    def __init__(self, slots: int = 8) -> None:
        self.sparkContext = self
        self.defaultParallelism = slots
        self.groups: list[str] = []
        self.cancelled: list[str] = []
        self.partitions: list[int] = []

    def setJobGroup(self, group: str, description: str, interruptOnCancel: bool = False) -> None:
        self.groups.append(group)

    def cancelJobGroup(self, group: str) -> None:
        self.cancelled.append(group)

    def parallelize(self, rows: list[tuple[str]], count: int) -> list[tuple[str]]:
        self.partitions.append(count)
        return rows

    def createDataFrame(self, rows: list[tuple[str]], schema: str) -> Frame:
        assert schema == "row string"
        return Frame(rows)


class Frame:
    """Each row is a partition of its own, and runs when it is asked for."""

    def __init__(self, rows: list[tuple[str]]) -> None:
        self._rows = rows
        self._task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]] | None = None

    def mapInArrow(self, task: Any, schema: str) -> Frame:
        self._task = task
        return self

    def toLocalIterator(self) -> Iterator[dict[str, Any]]:
        assert self._task is not None
        for (text,) in self._rows:
            try:
                for batch in self._task(iter([pa.record_batch([[text]], names=["row"])])):
                    yield from batch.to_pylist()
            except Exception as error:
                told = f"{type(error).__module__}.{type(error).__name__}: {error}"
                raise RuntimeError(f"o1.getResult\n{told}\n\tat org.apache.spark") from error


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Row], Iterator[Result]]], None]:
    """Says what the task of this test does."""

    def become(function: Callable[[Row], Iterator[Result]]) -> None:
        monkeypatch.setattr(running, "find_task", lambda name: function)

    return become


def rows(count: int) -> list[Row]:
    return [{"number": number} for number in range(count)]


def run(session: Session, count: int, at_once: int = 0) -> list[int]:
    return [each.row["number"] for each in SparkRunner(session, at_once).run(TASK, rows(count))]  # type: ignore[arg-type]


@pytest.mark.parametrize(("count", "at_once", "lanes"), [(0, 3, 0), (1, 3, 1), (50, 3, 3), (50, 0, 8)])
def test_every_row_is_done_once(task: Any, count: int, at_once: int, lanes: int) -> None:
    """Over so many lanes, each with a partition for each of its rows; many results of one task come whole."""
    task(lambda row: iter([Result({**row, "part": part}, b"x" * part) for part in range(3)]))
    session = Session()

    found = list(SparkRunner(session, at_once).run(TASK, rows(count)))  # type: ignore[arg-type]

    assert sorted((each.row["number"], each.row["part"], len(each.data)) for each in found) == [
        (number, part, part) for number in range(count) for part in range(3)
    ]
    assert len(session.partitions) == lanes
    assert sum(session.partitions) == count
    assert len(set(session.groups)) <= 1


@pytest.mark.parametrize("at_once", [1, 3])
def test_as_many_tasks_as_asked_for_are_at_work(task: Any, at_once: int) -> None:
    """They meet, all of them; and never one more."""
    meeting, lock, here, most = threading.Barrier(at_once), threading.Lock(), [0], [0]

    def meet(row: Row) -> Iterator[Result]:
        with lock:
            here[0] += 1
            most[0] = max(most[0], here[0])
        meeting.wait(SECONDS_MAX)
        with lock:
            here[0] -= 1
        yield Result(row)

    task(meet)

    assert sorted(run(Session(), at_once * 4, at_once)) == list(range(at_once * 4))
    assert most[0] == at_once


@pytest.mark.parametrize("error", [JobFailed("a", "b"), NoInput("c"), ValueError("d"), OSError(5, "e", "f")])
def test_what_a_task_raises_ends_all_lanes(task: Any, error: Exception) -> None:
    """The error comes as it was raised; what still runs is cancelled, and no thread stays behind."""
    before = threading.active_count()

    def fail(row: Row) -> Iterator[Result]:
        if row["number"] == 5:
            raise error
        yield Result(row)

    task(fail)
    session = Session()

    with pytest.raises(type(error)) as told:
        run(session, 400, 4)
    assert str(told.value) == str(error)
    assert threading.active_count() == before


def test_whoever_stops_asking_stops_the_lanes(task: Any) -> None:
    """Though they have results that wait for room."""
    before, done = threading.active_count(), []

    def count(row: Row) -> Iterator[Result]:
        done.append(row["number"])
        yield Result(row)

    task(count)
    session = Session()
    results = SparkRunner(session, 2).run(TASK, rows(1_000))  # type: ignore[arg-type]

    assert next(results).row["number"] in range(1_000)
    results.close()  # type: ignore[attr-defined]

    assert threading.active_count() == before
    assert session.cancelled == session.groups[:1]
    assert len(done) < 200
