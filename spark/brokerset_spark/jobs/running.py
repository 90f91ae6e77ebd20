"""Running the tasks of a job: on Spark, or in processes of this machine.

A task is a function `(row: dict) -> Iterator[Result]` at the top level of a module, named `module:function`.
Rows and results are plain JSON values, so that neither pickling nor the code of a client decides what crosses
over; bulk data travels in `Result.data`.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import math
import os
import pickle
import re
import select
import signal
import threading
import uuid
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, islice
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from brokerset_spark import termination
from brokerset_spark.jobs.report import JobFailed, NoInput
from brokerset_spark.jobs.waiting import Inbox, Place, Shelf

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext
    from pyspark.sql import SparkSession

Row = dict[str, Any]

CANCEL_SECONDS: Final = 1.0
"""Pause before what still runs is cancelled once more."""

ROWS_AHEAD: Final = 2
"""Rows that wait or are worked on for each worker."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a task says: JSON values, and bytes where there are many."""

    row: Row
    data: bytes = b""
    key: str | None = None
    """Results with one go to the step's reducer, if it has one: those of a key to the same."""


Task = Callable[[Row], Iterator[Result]]

Progress = Callable[[str, int, int], None]
"""Is told what is being done, how many bytes of it are done, and how many there are."""


def quiet(label: str, done: int, total: int) -> None:
    """The `Progress` that tells nobody."""


class Runner(Protocol):
    """Runs a task for each row; results come in any order."""

    def run(self, task: str, rows: Sequence[Row], reducer: str = "") -> Iterator[Result]:
        """Raises what a task raised, after Spark's own retries. `reducer` names a class, too."""


class Reducer(Protocol):
    """Puts together what tasks found of some keys, and says it when all tasks have ended.

    Rows come in the order of those of the step, so that neighbours can be put together at once.
    """

    def take(self, row: Row) -> None:
        """The row of a result with a key."""

    def finish(self) -> Iterable[Result]:
        """What all of them mean."""


def find_task(name: str) -> Any:
    """The function or class behind `module:name`."""
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


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

    def run(self, task: str, rows: Sequence[Row], reducer: str = "") -> Iterator[Result]:
        """See `Runner`. JobFailed if a worker is killed, most likely for want of memory."""
        if not reducer:
            with closing(self._results(task, rows)) as found:
                for _, results in found:
                    yield from results
            return
        fold: Reducer = find_task(reducer)()
        with closing(self._results(task, rows)) as found, closing(Shelf()) as shelf:
            early, following = dict[int, Place](), 0
            for number, results in found:
                keyed = list[Row]()
                for result in results:
                    if result.key is None:
                        yield result
                    else:
                        keyed.append(result.row)
                early[number] = shelf.put(keyed)
                while following in early:
                    for row in shelf.take(early.pop(following)):
                        fold.take(row)
                    following += 1
        yield from fold.finish()

    def _results(self, task: str, rows: Sequence[Row]) -> Generator[tuple[int, Iterable[Result]]]:
        """Numbers of rows, and what their tasks say."""
        if self._workers <= 1 or len(rows) <= 1:
            function = find_task(task)
            for number, row in enumerate(rows):
                yield number, function(row)
            return
        if self._pool is None:
            context = get_context("forkserver")
            self._pool = ProcessPoolExecutor(
                self._workers, mp_context=context, initializer=_start_worker, initargs=(os.getpid(),)
            )
        waiting: dict[Future[list[Result]], int] = {}
        left = enumerate(rows)
        try:
            # No more is asked for than can soon be taken: results of a whole store would not fit the memory.
            for number, row in islice(left, self._workers * ROWS_AHEAD):
                waiting[self._pool.submit(_in_process, task, row)] = number
            while waiting:
                done, _ = wait(waiting, return_when=FIRST_COMPLETED)
                ended = [(waiting.pop(each), each) for each in done]
                for number, row in islice(left, len(done)):
                    waiting[self._pool.submit(_in_process, task, row)] = number
                for number, each in ended:
                    yield number, each.result()
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
    """On the executors of a session: one Spark job for each step, one Spark task for each row."""

    def __init__(self, spark: SparkSession, tasks_at_once: int = 0) -> None:
        """As many tasks at once as the cluster has cores, also those of executors that come later; or never
        more than `tasks_at_once`: a rate is meant for so many together."""
        self._spark = spark
        self._at_once = tasks_at_once

    def run(self, task: str, rows: Sequence[Row], reducer: str = "") -> Iterator[Result]:
        """See `Runner`. JobFailed, too, if Spark gives up for reasons of its own.

        Spark's own scheduler gives the next row to whichever core is free. Where a cluster has, or may get,
        more cores than tasks may run, the rows are dealt out to as many tasks.
        """
        if rows:
            yield from _Step(self._spark.sparkContext, task, rows, self._at_once, reducer).results()


class _Step:
    """One Spark job. Results come by an accumulator: with the end of each task, while others run.

    Spark counts an update once for each task of the last stage, and may count it again for one of a stage
    before whose output was lost; `Inbox` counts each once.
    """

    def __init__(
        self, context: SparkContext, task: str, rows: Sequence[Row], at_once: int, reducer: str
    ) -> None:
        self._context, self._name = context, task
        limited = at_once and at_once < _cores_max(context)
        tasks = min(at_once, len(rows)) if limited else len(rows)
        common, texts = _apart(rows)
        dealt = [texts[number::tasks] for number in range(tasks)]
        reducers = min(at_once or context.defaultParallelism, tasks) if reducer else 0
        self._inbox = Inbox(tasks + reducers)
        how: Any = _Handing()
        handed: Any = context.accumulator(self._inbox, how)
        run = _RowsTask(task, common, tasks, reducers, handed)
        self._work: RDD[Any] = context.parallelize(dealt, tasks).mapPartitionsWithIndex(run)
        if reducers:
            sorted_parts: RDD[Any] = self._work.repartitionAndSortWithinPartitions(reducers, _reducer_number)
            self._work = sorted_parts.mapPartitionsWithIndex(_ReduceTask(reducer, tasks, handed))
        self._group = f"brokerset-{uuid.uuid4()}"
        self._error: Exception | None = None

    def results(self) -> Iterator[Result]:
        """Of all rows, as they come."""
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            for results in self._inbox.taken():
                for row, data in results:
                    yield Result(orjson.loads(row), data)
            thread.join()
            if self._error is not None:
                raise self._error
            if self._inbox.missing:
                advice = "start it again; Spark's log of the driver says why updates of accumulators failed"
                raise JobFailed(f"results of {self._inbox.missing} tasks of {self._name} were lost", advice)
        finally:
            self._inbox.close()
            while thread.is_alive():  # again and again: it may have been about to start the job
                with contextlib.suppress(Exception):  # Spark may be gone: then the thread ends by itself
                    self._context.cancelJobGroup(self._group)
                thread.join(CANCEL_SECONDS)

    def _run(self) -> None:
        try:
            self._context.setJobGroup(self._group, self._name, interruptOnCancel=True)
            self._context.runJob(self._work, list)
        except Exception as error:  # the edge of a thread: whoever started it shall know
            self._error = raised_by_task(self._name, error)
        finally:
            self._inbox.end()


class _Handing:
    """How Spark adds up what tasks hand over: a list on an executor, an `Inbox` on the driver.

    It is what pyspark calls an `AccumulatorParam`, whose class this module does not import.
    """

    def zero(self, value: object) -> list[Handed]:
        """Of a task."""
        return []

    def addInPlace(self, value: Inbox | list[Handed], more: list[Handed]) -> Inbox | list[Handed]:
        """Called by tasks with what they add, and on the driver when one has ended."""
        if isinstance(value, list):
            return value + more
        for number, packed in more:
            value.put(number, packed)
        return value


Handed = tuple[int, bytes]
"""Number of a task, and its results, pickled."""


def _apart(rows: Sequence[Row]) -> tuple[Row, list[str]]:
    """What all rows have in common, which is sent once, and the rest of each as JSON."""
    common, nothing = dict(rows[0]), object()
    for row in rows:
        values = {name: row.get(name, nothing) for name in common}
        for name, value in values.items():
            if value is not common[name] and value != common[name]:
                del common[name]
    return common, [
        orjson.dumps({name: row[name] for name in row if name not in common}).decode() for row in rows
    ]


def _cores_max(context: SparkContext) -> float:
    """Cores that the cluster has at most, whatever comes later."""
    conf = context.getConf()
    if str(context.master).partition("[")[0] == "local":
        return context.defaultParallelism
    limit = int(conf.get("spark.cores.max", "0") or 0)
    dynamic = conf.get("spark.dynamicAllocation.enabled", "false") == "true"
    executors = conf.get(
        "spark.dynamicAllocation.maxExecutors" if dynamic else "spark.executor.instances", ""
    )
    found = int(executors or 0) * int(conf.get("spark.executor.cores", "0") or 0)
    return limit or found or math.inf


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


class _RowsTask:
    """What executors run; pickled by the name of its class, so it needs this package there and nothing
    else."""

    def __init__(self, task: str, common: Row, tasks: int, reducers: int, handed: Any) -> None:
        self._task, self._common, self._tasks = task, common, tasks
        self._reducers, self._handed = reducers, handed

    def __call__(self, number: int, groups: Iterable[list[str]]) -> Iterator[tuple[tuple[int, int], bytes]]:
        """What reducers are to have, by their number and the row's; the rest is handed to the driver."""
        try:
            function = find_task(self._task)
            found: list[tuple[bytes, bytes]] = []
            keyed: dict[tuple[int, int], list[Row]] = {}
            for at, text in enumerate(chain.from_iterable(groups)):
                row_number = number + at * self._tasks  # as they were dealt
                for result in function(self._common | orjson.loads(text)):
                    if result.key is None or not self._reducers:
                        found.append((orjson.dumps(result.row), result.data))
                    else:
                        place = reducer_of(result.key, self._reducers), row_number
                        keyed.setdefault(place, []).append(result.row)
        except Exception as error:
            raise raised_in_task(error) from error
        self._handed.add([(number, pickle.dumps(found))])
        for place, rows in keyed.items():
            yield place, orjson.dumps(rows)


def _reducer_number(key: tuple[int, int]) -> int:
    """For Spark's shuffle: of (reducer, row)."""
    return key[0]


class _ReduceTask:
    """What executors run behind the tasks of a step; its results go to the driver."""

    def __init__(self, reducer: str, first: int, handed: Any) -> None:
        self._reducer, self._first, self._handed = reducer, first, handed

    def __call__(self, number: int, parts: Iterable[tuple[object, bytes]]) -> Iterator[object]:
        """Nothing but what is handed over."""
        try:
            reducer: Reducer = find_task(self._reducer)()
            for _, rows in parts:
                for row in orjson.loads(rows):
                    reducer.take(row)
            found = [(orjson.dumps(result.row), result.data) for result in reducer.finish()]
        except Exception as error:
            raise raised_in_task(error) from error
        self._handed.add([(self._first + number, pickle.dumps(found))])
        return iter(())


def reducer_of(key: str, reducers: int) -> int:
    """Which of so many has the rows of a key, on every executor: Python's own hash differs between them."""
    return zlib.crc32(key.encode()) % reducers
