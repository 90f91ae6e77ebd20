"""Running the tasks of a job: on Spark, or in processes of this machine.

A task is a function `(row: dict) -> Iterator[Result]` at the top level of a module, named `module:function`.
Rows and results are plain JSON values, so that neither pickling nor the code of a client decides what crosses
over; bulk data travels in `Result.data`.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import queue
import re
import select
import signal
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import islice
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from brokerset_spark import termination
from brokerset_spark.jobs.report import JobFailed, NoInput

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

Row = dict[str, Any]

BATCH_RESULTS: Final = 256
"""Results in one Arrow batch on their way back to the driver."""

LANES_MAX: Final = 256
"""Tasks that one driver looks after at once on Spark."""

RESULTS_AHEAD: Final = 16
"""Results that wait until the driver takes them."""

ROWS_AHEAD: Final = 2
"""Rows that wait or are worked on for each worker."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a task says: JSON values, and bytes where there are many."""

    row: Row
    data: bytes = b""


Task = Callable[[Row], Iterator[Result]]

Progress = Callable[[str, int, int], None]
"""Is told what is being done, how many bytes of it are done, and how many there are."""


def quiet(label: str, done: int, total: int) -> None:
    """The `Progress` that tells nobody."""


class Runner(Protocol):
    """Runs a task for each row; results come in any order."""

    def run(self, task: str, rows: Sequence[Row]) -> Iterator[Result]:
        """Raises what a task raised, after Spark's own retries."""


def find_task(name: str) -> Task:
    """The function behind `module:function`."""
    module, _, function = name.partition(":")
    found: Task = getattr(importlib.import_module(module), function)
    return found


def _in_process(task: str, row: Row) -> list[Result]:
    return list(find_task(task)(row))


_PR_SET_PDEATHSIG: Final = 1
"""Of `prctl(2)`."""


def _start_worker(job: int) -> None:
    """A worker leaves Ctrl-C to the process of the job, and ends with it, however that ends.

    Its parent is the fork server, which lives on while workers do: so it is the job that is watched.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    try:
        watched = os.pidfd_open(job)
    except ProcessLookupError:
        os._exit(1)
    except OSError:  # a kernel before 5.3
        return
    threading.Thread(target=_end_with, args=(watched,), daemon=True).start()


def _end_with(watched: int) -> None:
    select.select([watched], [], [])
    os._exit(1)


class LocalRunner:
    """Without Spark: here, or in `workers` processes, which stay for the next run until `close`."""

    def __init__(self, workers: int = 0) -> None:
        self._workers = workers
        self._pool: ProcessPoolExecutor | None = None

    def run(self, task: str, rows: Sequence[Row]) -> Iterator[Result]:
        """See `Runner`. JobFailed if a worker is killed, most likely for want of memory."""
        if self._workers <= 1 or len(rows) <= 1:
            function = find_task(task)
            for row in rows:
                yield from function(row)
            return
        if self._pool is None:
            context = get_context("forkserver")
            self._pool = ProcessPoolExecutor(
                self._workers, mp_context=context, initializer=_start_worker, initargs=(os.getpid(),)
            )
        waiting: set[Future[list[Result]]] = set()
        left = iter(rows)
        try:
            # No more is asked for than can soon be taken: results of a whole store would not fit the memory.
            for row in islice(left, self._workers * ROWS_AHEAD):
                waiting.add(self._pool.submit(_in_process, task, row))
            while waiting:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for row in islice(left, len(done)):
                    waiting.add(self._pool.submit(_in_process, task, row))
                for each in done:
                    yield from each.result()
        except BrokenProcessPool as error:
            self._pool = None
            advice = "run it with fewer --workers, or with more memory"
            raise JobFailed("a worker process was killed", advice) from error
        finally:
            for each in waiting:
                each.cancel()

    def close(self) -> None:
        """End the workers; what they are at is given up."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None


class SparkRunner:
    """On the executors of a session, one Spark task for each row (`mapInArrow`: no row enters the JVM)."""

    def __init__(self, spark: SparkSession, tasks_at_once: int = 0) -> None:
        """As many tasks at once as Spark has room for, or fewer: a rate is meant for so many together."""
        self._spark = spark
        self._at_once = tasks_at_once or spark.sparkContext.defaultParallelism

    def run(self, task: str, rows: Sequence[Row]) -> Iterator[Result]:
        """See `Runner`. JobFailed, too, if Spark gives up for reasons of its own.

        Each lane has its own share of the rows and one task at work. One `toLocalIterator` for all would have
        two, however many executors there are, and `collect` would hold the results of a whole store.
        """
        lanes = min(len(rows), self._at_once, LANES_MAX)
        found: queue.Queue[Result | Exception | None] = queue.Queue(RESULTS_AHEAD)
        stopped = threading.Event()
        group = f"brokerset-{uuid.uuid4()}"
        threads = [
            threading.Thread(target=self._run_lane, args=(task, rows[lane::lanes], group, found, stopped))
            for lane in range(lanes)
        ]
        for each in threads:
            each.start()
        try:
            for _ in threads:
                while (result := found.get()) is not None:
                    if isinstance(result, Exception):
                        raise result
                    yield result
        finally:
            stopped.set()
            if any(each.is_alive() for each in threads):
                self._spark.sparkContext.cancelJobGroup(group)
            for each in threads:
                while each.is_alive():
                    with contextlib.suppress(queue.Empty):
                        found.get_nowait()  # it may wait for room
                    each.join(0.05)

    def _run_lane(
        self,
        task: str,
        rows: Sequence[Row],
        group: str,
        found: queue.Queue[Result | Exception | None],
        stopped: threading.Event,
    ) -> None:
        try:
            self._spark.sparkContext.setJobGroup(group, task, interruptOnCancel=True)
            texts = [(orjson.dumps(row).decode(),) for row in rows]
            frame = self._spark.createDataFrame(
                self._spark.sparkContext.parallelize(texts, len(texts)), "row string"
            )
            done = frame.mapInArrow(_ArrowTask(task), "row string, data binary")
            for each in done.toLocalIterator():
                if stopped.is_set():
                    return
                found.put(Result(orjson.loads(each["row"]), bytes(each["data"])))
        except Exception as error:  # the edge of a thread: whoever started it shall know
            found.put(raised_by_task(task, error))
        finally:
            found.put(None)


class TaskFailed(Exception):
    """What a task raised, as JSON: it goes to the driver as the text of a Spark exception."""


_RAISED: Final = re.compile(r"TaskFailed: (\{.*\})$", re.MULTILINE)


def raised_in_task(error: Exception) -> TaskFailed:
    """For `raised_by_task`, on the executor."""
    raised = {"kind": type(error).__name__, "text": str(error), "advice": getattr(error, "advice", "")}
    if isinstance(error, OSError):
        raised |= {"errno": error.errno, "strerror": error.strerror, "filename": error.filename}
    return TaskFailed(orjson.dumps(raised, default=str).decode())


def raised_by_task(task: str, error: Exception) -> Exception:
    """What a task raised, as it would come from a process, out of what Spark makes of it."""
    match = _RAISED.search(str(error))
    if match is None:
        said = termination.one_line(str(error))
        return JobFailed(
            f"Spark gave up {task}: {type(error).__name__}: {said}", "look at what it wrote above"
        )
    raised = orjson.loads(match[1])
    match raised["kind"]:
        case "JobFailed":
            return JobFailed(raised["text"], raised["advice"])
        case "NoInput":
            return NoInput(raised["text"], raised["advice"])
        case "ValueError":
            return ValueError(raised["text"])
    if raised.get("errno") is not None:
        return OSError(raised["errno"], raised["strerror"], raised["filename"])
    if "errno" in raised:
        return OSError(raised["text"])
    return JobFailed(f"{task} failed: {raised['kind']}: {raised['text']}", "look at what Spark wrote above")


class _ArrowTask:
    """What executors run; pickled by the name of its class, so it needs this package there and nothing
    else."""

    def __init__(self, task: str) -> None:
        self._task = task

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        function = find_task(self._task)
        for batch in batches:
            for text in batch.column(0).to_pylist():
                waiting: list[Result] = []
                try:
                    for result in function(orjson.loads(text)):
                        waiting.append(result)
                        if len(waiting) >= BATCH_RESULTS or result.data:
                            yield _batch(pa, waiting)
                            waiting = []
                except Exception as error:
                    raise raised_in_task(error) from error
                if waiting:
                    yield _batch(pa, waiting)


def _batch(pa: Any, results: list[Result]) -> pa.RecordBatch:
    rows = pa.array([orjson.dumps(each.row).decode() for each in results], pa.string())
    data = pa.array([each.data for each in results], pa.binary())
    return pa.RecordBatch.from_arrays([rows, data], names=["row", "data"])
