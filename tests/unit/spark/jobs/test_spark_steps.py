"""How a step is handed to Spark, with a session that runs its tasks here: one job, errors, an early end.

`tests/integration/spark` does the same on a real one.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from click.testing import CliRunner

from brokerset_spark.commands.table import main
from brokerset_spark.jobs import running
from brokerset_spark.jobs.report import JobFailed, NoInput
from brokerset_spark.jobs.running import LocalRunner, Result, Row, SparkRunner
from brokerset_spark.jobs.session import settings

TASK, SUM = "here:task", "here:Sum"
SECONDS_MAX = 20.0


class Handed:
    """An accumulator: tasks add to it at once, as if each had ended already."""

    def __init__(self, value: Any, how: Any) -> None:
        self.value, self._how = value, how

    def add(self, more: Any) -> None:
        """What a task adds travels as bytes and is added up on the way, as on executors."""
        own = self._how.addInPlace(self._how.zero(self.value), pickle.loads(pickle.dumps(more)))
        self.value = self._how.addInPlace(self.value, own)


class Session:
    """As much of a `SparkSession`, its context and an RDD as a runner uses."""

    def __init__(self, cores: int = 8, *, again: bool = False) -> None:
        self.sparkContext, self.master = self, "spark://here"
        self.defaultParallelism = cores
        self.conf: dict[str, str] = {}
        self.jobs: list[int] = []
        self.groups: list[str] = []
        self.cancelled: list[str] = []
        self.texts: list[str] = []
        self._again = again
        self._parts: list[Any] = []
        self._steps: list[Callable[[list[Any]], list[Any]]] = []

    def getConf(self) -> dict[str, str]:
        return self.conf

    def setJobGroup(self, group: str, description: str, interruptOnCancel: bool = False) -> None:
        self.groups.append(group)

    def cancelJobGroup(self, group: str) -> None:
        self.cancelled.append(group)

    def accumulator(self, value: Any, how: Any) -> Handed:
        return Handed(value, how)

    def parallelize(self, parts: list[list[str]], count: int) -> Session:
        assert count == len(parts)
        self.texts = [text for part in parts for text in part]
        self._parts, self._steps = [[part] for part in parts], []
        return self

    def mapPartitionsWithIndex(self, task: Callable[[int, Iterable[Any]], Iterable[Any]]) -> Session:
        def step(parts: list[Any]) -> list[Any]:
            with ThreadPoolExecutor(self.defaultParallelism) as pool:
                found = list(pool.map(lambda pair: list(task(*pair)), enumerate(parts)))
                if self._again:  # an executor went: its tasks run once more
                    found[:1] = [list(task(0, parts[0]))]
            return found

        self._steps.append(step)
        return self

    def repartitionAndSortWithinPartitions(self, count: int, number_of: Callable[[Any], int]) -> Session:
        def step(parts: list[Any]) -> list[Any]:
            pairs = sorted(pair for part in parts for pair in part)
            return [[pair for pair in pairs if number_of(pair[0]) == number] for number in range(count)]

        self._steps.append(step)
        return self

    def runJob(self, rdd: Session, take: Any) -> list[Any]:
        """All partitions, as many at once as there are cores."""
        parts = self._parts
        self.jobs.append(len(parts))
        try:
            for step in self._steps:
                parts = step(parts)
        except Exception as error:
            told = f"{type(error).__module__}.{type(error).__name__}: {error}"
            raise RuntimeError(f"o1.getResult\n{told}\n\tat org.apache.spark") from error
        return [each for part in parts for each in take(part)]


class Order:
    """Says in which order its rows came."""

    def __init__(self) -> None:
        self._numbers: list[int] = []

    def take(self, row: Row) -> None:
        self._numbers.append(row["number"])

    def finish(self) -> Iterator[Result]:
        yield Result({"order": self._numbers})


class Sum:
    """Adds up the numbers of each key."""

    def __init__(self) -> None:
        self._sums: dict[str, int] = {}

    def take(self, row: Row) -> None:
        self._sums[row["key"]] = self._sums.get(row["key"], 0) + row["value"]

    def finish(self) -> Iterator[Result]:
        yield from (Result({"key": key, "sum": found}) for key, found in self._sums.items())


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Row], Iterator[Result]]], None]:
    """Says what the task of this test does."""

    def become(function: Callable[[Row], Iterator[Result]]) -> None:
        monkeypatch.setattr(running, "find_task", lambda name: Sum if name == SUM else function)

    return become


def rows(count: int) -> list[Row]:
    return [{"number": number, "said": ["to", "all"]} for number in range(count)]


def run(session: Session, count: int, at_once: int = 0, reducer: str = "") -> list[Result]:
    return list(SparkRunner(session, at_once).run(TASK, rows(count), reducer))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("count", "at_once", "parts"), [(0, 3, []), (1, 3, [1]), (50, 3, [3]), (50, 0, [50]), (5, 8, [5])]
)
@pytest.mark.parametrize("again", [False, True])
def test_every_row_counts_once_in_one_job(
    task: Any, count: int, at_once: int, parts: list[int], again: bool
) -> None:
    """As a Spark task of its own unless fewer may run than there are cores, and also if a task ran twice;
    many results of one task come whole."""
    task(lambda row: iter([Result({**row, "part": part}, b"x" * part) for part in range(3)]))
    session = Session(again=again)

    found = run(session, count, at_once)

    assert sorted((each.row["number"], each.row["part"], len(each.data)) for each in found) == [
        (number, part, part) for number in range(count) for part in range(3)
    ]
    assert all(each.row["said"] == ["to", "all"] for each in found)
    assert session.jobs == parts


def test_what_all_rows_say_is_sent_once(task: Any) -> None:
    """A row of its own has only what differs: the driver keeps little for each task."""
    task(lambda row: iter([Result(row)]))
    session = Session()

    assert len(run(session, 20)) == 20

    assert session.texts == [f'{{"number":{number}}}' for number in range(20)]


@pytest.mark.parametrize("again", [False, True])
def test_results_with_a_key_are_put_together_by_executors(task: Any, again: bool) -> None:
    """The driver gets one result for each key, from a second stage of the same job, whichever task ran
    twice; it is the same without Spark."""

    def work(row: Row) -> Iterator[Result]:
        yield Result({"seen": row["number"]})
        for key in ("a", "b", "c"):
            yield Result({"key": key, "value": row["number"]}, key=key)

    task(work)
    session = Session(3, again=again)

    found = run(session, 40, reducer=SUM)

    sums = {each.row["key"]: each.row["sum"] for each in found if "key" in each.row}
    assert sums == dict.fromkeys("abc", sum(range(40)))
    assert sorted(each.row["seen"] for each in found if "seen" in each.row) == list(range(40))
    assert len(found) == 43
    assert session.jobs == [40]
    local = list(LocalRunner().run(TASK, rows(40), SUM))
    assert {each.row["key"]: each.row["sum"] for each in local if "key" in each.row} == sums


@pytest.mark.parametrize("at_once", [0, 3])
def test_a_reducer_gets_rows_in_the_order_of_the_step(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    """Also where rows are dealt out to few tasks: else runs of a queue that began again would be joined with
    those of its past."""

    def work(row: Row) -> Iterator[Result]:
        yield Result({"number": row["number"]}, key="one")

    monkeypatch.setattr(running, "find_task", lambda name: Order if name == SUM else work)

    found = run(Session(8), 20, at_once, SUM)

    assert [each.row["order"] for each in found if each.row["order"]] == [list(range(20))]


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({}, 2),
        ({"spark.cores.max": "2"}, 9),
        ({"spark.executor.instances": "2", "spark.executor.cores": "1"}, 9),
        ({"spark.executor.instances": "2", "spark.executor.cores": "2"}, 2),
        (
            {
                "spark.executor.instances": "1", "spark.executor.cores": "1",
                "spark.dynamicAllocation.enabled": "true", "spark.dynamicAllocation.maxExecutors": "9",
            },
            2,
        ),
    ],
)  # fmt: skip
def test_never_more_tasks_at_once_than_a_rate_is_meant_for(
    task: Any, settings: dict[str, str], parts: int
) -> None:
    """Rows are dealt out unless the cluster can never have more cores than tasks may run."""
    task(lambda row: iter([Result(row)]))
    session = Session(2)
    session.conf |= settings

    assert len(run(session, 9, 2)) == 9
    assert session.jobs == [parts]


@pytest.mark.parametrize("error", [JobFailed("a", "b"), NoInput("c"), ValueError("d"), OSError(5, "e", "f")])
def test_what_a_task_raises_ends_the_step(task: Any, error: Exception) -> None:
    """The error comes as it was raised, behind what other tasks had found; no thread stays behind."""
    before = threading.active_count()

    def fail(row: Row) -> Iterator[Result]:
        if row["number"] == 5:
            raise error
        yield Result(row)

    task(fail)
    session = Session(1)
    found: list[int] = []

    with pytest.raises(type(error)) as told:
        found.extend(each.row["number"] for each in SparkRunner(session).run(TASK, rows(40)))  # type: ignore[arg-type]
    assert str(told.value) == str(error)
    assert found[:5] == [0, 1, 2, 3, 4]
    assert 5 not in found
    assert threading.active_count() == before


def test_whoever_stops_asking_ends_the_job(task: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancelled is until the job has ended, also if it began behind the first cancellation."""
    monkeypatch.setattr(running, "CANCEL_SECONDS", 0.0)
    before, ended = threading.active_count(), threading.Event()

    class Late(Session):
        def cancelJobGroup(self, group: str) -> None:
            super().cancelJobGroup(group)
            if len(self.cancelled) > 1:
                ended.set()

    def work(row: Row) -> Iterator[Result]:
        if row["number"] == 1:
            assert ended.wait(SECONDS_MAX), "it was never cancelled"
        yield Result(row)

    task(work)
    session = Late(1)
    results = SparkRunner(session).run(TASK, rows(2))  # type: ignore[arg-type]
    assert next(results).row["number"] == 0

    results.close()  # type: ignore[attr-defined]

    assert threading.active_count() == before
    assert set(session.cancelled) == set(session.groups)


def test_results_that_were_lost_fail_the_job(task: Any) -> None:
    """Spark goes on when it cannot add up what a task has handed over: nothing is passed over in silence."""
    task(lambda row: iter([Result(row)]))

    class Losing(Session):
        def accumulator(self, value: Any, how: Any) -> Handed:
            found = super().accumulator(value, how)
            found.add = lambda more: None  # type: ignore[method-assign]
            return found

    with pytest.raises(JobFailed, match="results of 7 tasks of here:task were lost"):
        run(Losing(), 7)


def test_a_driver_whose_spark_is_gone_ends(task: Any) -> None:
    """Nothing can be cancelled then."""
    before = threading.active_count()

    class Gone(Session):
        def cancelJobGroup(self, group: str) -> None:
            raise ConnectionError("Answer from Java side is empty")

        def runJob(self, rdd: Session, take: Any) -> list[Any]:
            raise ConnectionError("Answer from Java side is empty")

    with pytest.raises(JobFailed, match="Spark gave up"):
        run(Gone(), 40)
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("master", "cores"), [(None, None), ("local[4]", None), ("spark://a:7077", "3"), ("k8s://a", None)]
)
def test_a_cluster_gives_no_more_cores_than_may_work(master: str | None, cores: str | None) -> None:
    """Where its manager knows how; how many tasks it shuffles to is not for this machine to say."""
    found = settings(2, master, cores_max=3)

    assert found.get("spark.cores.max") == cores
    assert ("spark.sql.shuffle.partitions" in found) == (master is None or master.startswith("local"))


def test_a_rate_is_not_divided_by_the_cores_of_the_driver() -> None:
    """Where executors are elsewhere it must be said among how many tasks; nothing is started before."""
    arguments = ["verify", "/nowhere", "--engine", "spark", "--master", "spark://a:7077"]

    done = CliRunner().invoke(main, [*arguments, "--max-bytes-per-second", "50M"])

    assert done.exit_code == 2
    assert "say --workers, too" in done.stderr
