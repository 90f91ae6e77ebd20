"""Tasks here and in processes: all results come, and a killed worker is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerset_spark.jobs.report import JobFailed, NoInput
from brokerset_spark.jobs.running import LocalRunner, Result, find_task, raised_by_task, raised_in_task

TASKS = """
import os, signal
from brokerset_spark.jobs.running import Result

def double(row):
    yield Result({"number": row["number"] * 2, "process": os.getpid()})
    yield Result({"number": row["number"] * 2 + 1, "process": os.getpid()}, b"x")

def die(row):
    os.kill(os.getpid(), signal.SIGKILL)
    yield

def hang(row):
    import time
    os.write(1, f"{os.getpid()}\\n".encode())  # of two workers, a line each
    time.sleep(600)
    yield

def keyed(row):
    import time
    if row["number"] == 0:
        time.sleep(0.3)
    yield Result({"seen": row["number"]})
    yield Result({"number": row["number"]}, key="k")

class Order:
    def __init__(self):
        self.numbers = []

    def take(self, row):
        self.numbers.append(row["number"])

    def finish(self):
        yield Result({"order": self.numbers})

def fail(row):
    raise OSError(f"row {row['number']} cannot be read")
    yield
"""


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of tasks that worker processes find, too."""
    (tmp_path / "tasks_of_a_test.py").write_text(TASKS)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "tasks_of_a_test"
    sys.modules.pop("tasks_of_a_test", None)


def test_one_worker_is_this_process(tasks: str) -> None:
    """Results come one by one in the order of the rows."""
    results = list(LocalRunner().run(f"{tasks}:double", [{"number": n} for n in range(3)]))

    assert [each.row["number"] for each in results] == list(range(6))
    assert {each.row["process"] for each in results} == {os.getpid()}
    assert results[1] == Result({"number": 1, "process": os.getpid()}, b"x")
    assert callable(find_task(f"{tasks}:double"))


def test_workers_do_every_row_once_and_stay(tasks: str) -> None:
    """More rows than are asked for ahead are done once each; the next run has the same processes."""
    runner = LocalRunner(2)
    try:
        first = list(runner.run(f"{tasks}:double", [{"number": n} for n in range(50)]))
        second = list(runner.run(f"{tasks}:double", [{"number": n} for n in range(50)]))
    finally:
        runner.close()

    for results in (first, second):
        assert sorted(each.row["number"] for each in results) == list(range(100))
    processes = {each.row["process"] for each in (*first, *second)}
    assert os.getpid() not in processes
    assert len(processes) <= 2


def test_a_reducer_gets_rows_in_the_order_of_the_step(tasks: str) -> None:
    """Also those of a task that takes longer than the ones behind it; other results do not wait for it."""
    runner = LocalRunner(2)
    try:
        found = list(runner.run(f"{tasks}:keyed", [{"number": n} for n in range(9)], f"{tasks}:Order"))
    finally:
        runner.close()

    assert found[-1].row == {"order": list(range(9))}
    assert sorted(each.row["seen"] for each in found[:-1]) == list(range(9))


def test_what_a_task_raises_reaches_the_caller(tasks: str) -> None:
    """With its message, and the runner can go on."""
    runner = LocalRunner(2)
    try:
        with pytest.raises(OSError, match="cannot be read"):
            list(runner.run(f"{tasks}:fail", [{"number": n} for n in range(5)]))
        assert len(list(runner.run(f"{tasks}:double", [{"number": n} for n in range(4)]))) == 8
    finally:
        runner.close()


def test_a_killed_worker_is_told(tasks: str) -> None:
    """It says that a worker was killed, and what to do; Ctrl-C means here what it meant before."""
    before = signal.getsignal(signal.SIGINT)
    runner = LocalRunner(2)
    try:
        with pytest.raises(JobFailed, match="worker process was killed") as told:
            list(runner.run(f"{tasks}:die", [{"number": n} for n in range(5)]))
    finally:
        runner.close()

    assert "--workers" in told.value.advice
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.long
def test_workers_end_with_a_job_that_is_killed(tasks: str, tmp_path: Path) -> None:
    """Else each killed job would leave processes, which may still write where the next job does."""
    call = f"list(LocalRunner(2).run('{tasks}:hang', [{{}}, {{}}]))"
    script = f"from brokerset_spark.jobs.running import LocalRunner\n{call}"
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    ) as job:
        assert job.stdout is not None
        workers = [int(job.stdout.readline()) for _ in range(2)]
        assert all(_runs(worker) for worker in workers)

        job.kill()

        deadline = time.monotonic() + 20
        while any(_runs(worker) for worker in workers):
            assert time.monotonic() < deadline, "a worker lives on"
            time.sleep(0.05)


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class OnSpark(Exception):
    """What Spark makes of an exception of a task: its stack, as text."""

    def __init__(self, raised: Exception) -> None:
        super().__init__(
            "An error occurred while calling o1.getResult.\n: org.apache.spark.SparkException: Job aborted\n"
            f"Traceback (most recent call last):\n  File x\n{type(raised).__module__}.TaskFailed: {raised}\n"
            "\tat org.apache.spark.Executor.run(Executor.scala:1)\n"
        )


@pytest.mark.parametrize(
    "error",
    [
        JobFailed("damaged at 5", "look there"),
        NoInput("no store", "check the path"),
        ValueError('it has "changed"\nsince'),
        FileNotFoundError(2, "No such file or directory", "/x/ä"),
        OSError(5, "the copy reads back differently", "/x"),
        OSError("row 1 cannot be read"),
    ],
    ids=lambda error: f"{type(error).__name__}-{error}"[:30],
)
def test_errors_travel_through_spark(error: Exception) -> None:
    """They come out as they went in: the same kind, text and advice, whatever stands around them."""
    found = raised_by_task("a:b", OnSpark(raised_in_task(error)))

    assert type(found) is type(error)
    assert str(found) == str(error)
    assert getattr(found, "advice", None) == getattr(error, "advice", None)


def test_errors_that_nobody_foresaw_name_the_task_and_their_kind() -> None:
    """And what Spark raises itself keeps its first line; both are failed jobs."""
    ours = raised_by_task("a:b", OnSpark(raised_in_task(KeyError("path"))))
    theirs = raised_by_task("a:b", RuntimeError("Job 3 was cancelled\nat x"))

    assert (type(ours), str(ours)) == (JobFailed, "a:b failed: KeyError: 'path'")
    assert (type(theirs), str(theirs)) == (JobFailed, "Spark gave up a:b: RuntimeError: Job 3 was cancelled")
