"""Running the tasks of a job: on Spark, or in processes of this machine.

A task is a function `(row: dict) -> Iterator[Result]` at the top level of a module, named
`module:function`. Rows
and results are plain JSON values, so that neither pickling nor the code of a client decides what crosses
over;
bulk data travels in `Result.data`.
"""

from __future__ import annotations

import ctypes
import importlib
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import islice
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from brokerset_spark.jobs.report import JobFailed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

Row = dict[str, Any]

BATCH_RESULTS: Final = 256
"""Results in one Arrow batch on their way back to the driver."""

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
        ...


def find_task(name: str) -> Task:
    """The function behind `module:function`."""
    module, _, function = name.partition(":")
    found: Task = getattr(importlib.import_module(module), function)
    return found


def _in_process(task: str, row: Row) -> list[Result]:
    return list(find_task(task)(row))


_PR_SET_PDEATHSIG: Final = 1
"""Of `prctl(2)`."""


def _start_worker() -> None:
    """A worker leaves Ctrl-C to the process that started it, and ends with it, however that ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


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
            self._pool = ProcessPoolExecutor(self._workers, mp_context=context, initializer=_start_worker)
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

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def run(self, task: str, rows: Sequence[Row]) -> Iterator[Result]:
        """See `Runner`."""
        if not rows:
            return
        texts = [(orjson.dumps(row).decode(),) for row in rows]
        frame = self._spark.createDataFrame(
            self._spark.sparkContext.parallelize(texts, len(texts)), "row string"
        )
        done = frame.mapInArrow(_ArrowTask(task), "row string, data binary")
        for each in done.toLocalIterator(prefetchPartitions=True):
            yield Result(orjson.loads(each["row"]), bytes(each["data"]))


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
                for result in function(orjson.loads(text)):
                    waiting.append(result)
                    if len(waiting) >= BATCH_RESULTS or result.data:
                        yield _batch(pa, waiting)
                        waiting = []
                if waiting:
                    yield _batch(pa, waiting)


def _batch(pa: Any, results: list[Result]) -> pa.RecordBatch:
    rows = pa.array([orjson.dumps(each.row).decode() for each in results], pa.string())
    data = pa.array([each.data for each in results], pa.binary())
    return pa.RecordBatch.from_arrays([rows, data], names=["row", "data"])
