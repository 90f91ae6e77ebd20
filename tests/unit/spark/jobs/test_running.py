"""Tasks here and in processes: all results come, and a killed worker is told."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerset_spark.jobs.report import JobFailed
from brokerset_spark.jobs.running import LocalRunner, Result, find_task

TASKS = """
import os, signal
from brokerset_spark.jobs.running import Result

def double(row):
    yield Result({"number": row["number"] * 2, "process": os.getpid()})
    yield Result({"number": row["number"] * 2 + 1, "process": os.getpid()}, b"x")

def die(row):
    os.kill(os.getpid(), signal.SIGKILL)
    yield

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
    """It says that a worker was killed, and what to do."""
    runner = LocalRunner(2)
    try:
        with pytest.raises(JobFailed, match="worker process was killed") as told:
            list(runner.run(f"{tasks}:die", [{"number": n} for n in range(5)]))
    finally:
        runner.close()

    assert "--workers" in told.value.advice
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
