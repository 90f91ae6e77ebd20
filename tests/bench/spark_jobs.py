"""Whole jobs as cases of `spark.py`: they share their work among processes themselves."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from brokerset_spark.jobs.export.exporting import export
from brokerset_spark.jobs.export.options import ExportOptions
from brokerset_spark.jobs.migrate.job import migrate
from brokerset_spark.jobs.migrate.options import MigrateOptions
from brokerset_spark.jobs.report import Report
from brokerset_spark.jobs.running import LocalRunner
from brokerset_spark.jobs.session import prepare_environment, settings
from brokerset_spark.jobs.verify.job import verify
from brokerset_spark.jobs.verify.options import VerifyOptions
from brokerset_spark.sources import register
from brokerset_spark.stores.folder import LocalFolder
from brokerset_spark.stores.layout import read_log


def log_bytes(store: Path) -> int:
    """Bytes of the commit log's files."""
    return read_log(LocalFolder(store), "commitlog").total


def runner(kept: dict[str, Any], stack: ExitStack, workers: int) -> LocalRunner:
    """The same one in each run, so that its processes stay warm."""
    if "runner" not in kept:
        kept["runner"] = LocalRunner(workers)
        stack.callback(kept["runner"].close)
    found: LocalRunner = kept["runner"]
    return found


def checked(report: Report) -> int:
    """Records (or messages) of a report; the store has nothing to find."""
    assert report.clean, report.findings[:3]
    counters = report.counters
    return counters["records"] if "records" in counters else counters["messages"]


def run_verify(store: Path, scratch: Path, run: LocalRunner) -> int:
    return checked(verify(run, str(store), VerifyOptions()))


def run_copy(store: Path, scratch: Path, run: LocalRunner) -> int:
    return checked(migrate(run, str(store), str(scratch / "target"), MigrateOptions(to="controller")))


def run_rewrite(store: Path, scratch: Path, run: LocalRunner) -> int:
    options = MigrateOptions(to="dledger", rewrite=True, index=False)
    return checked(migrate(run, str(store), str(scratch / "target"), options))


def run_export(store: Path, scratch: Path, run: LocalRunner) -> int:
    return checked(export(run, str(store), scratch / "target", ExportOptions()))


def open_notebook(stack: ExitStack, workers: int) -> Any:
    """A session as people have it who read DataFrames: with the JVM's full compiler, as rows go through it.

    Sessions of jobs leave that out: no record enters their JVM, and it starts faster.
    """
    from pyspark.sql import SparkSession

    prepare_environment()
    builder = SparkSession.builder.appName("bench")
    found = settings(workers, None) | {"spark.driver.extraJavaOptions": "-XX:+UseSerialGC"}
    for name, value in found.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    stack.callback(session.stop)
    return session


def run_frame(kept: dict[str, Any], stack: ExitStack, store: Path, workers: int) -> int:
    """All columns of all messages, as Spark hands them on; the store stays in the page cache."""
    if "spark" not in kept:
        kept["spark"] = open_notebook(stack, workers)
        register(kept["spark"])
    reader = kept["spark"].read.format("rocketmq-store").option("dropCache", "false")
    frame = reader.load(str(store))
    if "records" not in kept:  # the first run is not measured
        kept["records"] = frame.select("queueId").count()
    frame.write.format("noop").mode("overwrite").save()
    records: int = kept["records"]
    return records
