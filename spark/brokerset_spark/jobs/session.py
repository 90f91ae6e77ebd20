"""The Spark session of jobs, with the settings that they need, in one place."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from brokerset_spark.jobs.report import JobFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_FAILURES_MAX: Final = 3
"""Attempts of one task on this machine; `local[N]` alone would have one."""

SETTINGS: Final = {
    "spark.speculation": "false",  # two attempts of one task would write the same files
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",  # 0 is an assertion error in Spark 4.3
    "spark.python.worker.reuse": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.retainedTasks": "1000",  # kept by a driver without a UI, too: 100,000 of each stage
    "spark.driver.maxResultSize": "0",  # results of tasks are streamed to the driver
    "spark.executor.memoryOverhead": "1g",  # Python workers live in it; the default is 384 MiB
}
"""Whatever the master is. Sources: Spark's configuration page; figures in `DESIGN.md`."""

LOCAL_SETTINGS: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
}
"""On one machine: nothing listens outside, and the JVM, which moves no records, starts in half the time."""


def settings(workers: int, master: str | None, cores_max: int = 0) -> dict[str, str]:
    """What a session is started with; `master` None is this machine with so many tasks at once.

    How much a cluster does at once is its own affair, or `cores_max`, where its manager knows that.
    """
    found = dict(SETTINGS)
    if master is None or master.startswith("local"):
        found |= LOCAL_SETTINGS | {"spark.sql.shuffle.partitions": str(workers)}
        found["spark.master"] = master or f"local[{workers},{TASK_FAILURES_MAX}]"
    else:
        found["spark.master"] = master
    if cores_max and found["spark.master"].startswith(("spark://", "local-cluster")):
        found["spark.cores.max"] = str(cores_max)
    return found


def prepare_environment() -> None:
    """Workers shall run this interpreter: Spark's default is `python3` of the path, which lacks our
    packages."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


@contextmanager
def open_session(*, workers: int, master: str | None = None, cores_max: int = 0) -> Iterator[SparkSession]:
    """A session that ends with the context; one that is there already (a notebook's) is used and stays.

    JobFailed if pyspark is not installed, Java not found, or Spark does not start.
    """
    prepare_environment()
    try:
        from pyspark.errors import PySparkRuntimeError
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        advice = 'pip install "brokerset[spark]", or leave --engine at processes'
        raise JobFailed(f"{error.name} is not installed", advice) from error
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no types

    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    builder = SparkSession.builder.appName("brokerset store")
    said = os.environ.get("PYSPARK_SUBMIT_ARGS", "")
    for name, value in settings(workers, master, cores_max).items():
        if f"--conf {name}=" in said:
            continue  # who starts the job knows the size of its pods
        builder = builder.config(name, value)
    try:
        session = builder.getOrCreate()
    except (PySparkRuntimeError, FileNotFoundError) as error:
        advice = "install Java 17 or newer and set JAVA_HOME, or leave --engine at processes"
        raise JobFailed(f"Spark does not start: {error}", advice) from error
    except Py4JJavaError as error:
        advice = "look at what it wrote above; where executors are pods, at their logs and Events, too"
        raise JobFailed(f"Spark does not start: {error.java_exception.toString()}", advice) from error
    try:
        yield session
    except BaseException:
        with suppress(Exception):  # Java may be gone, which is why; that must not take the error's place
            session.stop()
        raise
    session.stop()
