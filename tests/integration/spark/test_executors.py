"""Jobs on executors outside the driver's process: a Spark cluster of two workers on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from brokerset_rig.replica_stores import Log, flip, write_replica
from brokerset_rig.spark_session import missing_java
from brokerset_rig.wide_stores import write_wide_store

pytestmark = pytest.mark.long  # of these, some are slow as well

PROGRAM = """
import json, sys
from brokerset_spark.jobs.report import JobFailed
from brokerset_spark.jobs.running import LocalRunner, SparkRunner
from brokerset_spark.jobs.session import open_session
from brokerset_spark.jobs.verify import VerifyOptions, verify

store = sys.argv[1]
options = VerifyOptions(range_bytes=1 << 16)
row = {"url": store, "target": store + "-archive", "path": "commitlog/missing", "size": 1, "rate": 0}
with open_session(workers=2, master="local-cluster[2,1,1024]") as spark:
    runner = SparkRunner(spark)
    report = verify(runner, store, options)
    executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size()
    try:
        list(runner.run("brokerset_spark.jobs.archive.job:archive_file", [{**row, "sha256": ""}]))
    except JobFailed as error:
        missing = str(error)
local = verify(LocalRunner(1), store, options)
same = report.counters == local.counters and report.findings == local.findings
ranges = report.counters["ranges"]
print(json.dumps({"same": same, "ranges": ranges, "executors": executors, "missing": missing}))
"""


@pytest.fixture(autouse=True)
def java() -> None:
    """It is there; else tests are skipped, and fail with CI=true."""
    problem = missing_java()
    if problem is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(problem)
        pytest.skip(problem)


def test_a_job_runs_on_executors_outside_the_driver(tmp_path: Path) -> None:
    """The same counters and findings as in this process, and an error of a task comes as it was raised."""
    log = Log()
    log.fill(200)
    store = write_replica(tmp_path / "store", log)

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(store)], capture_output=True, text=True, timeout=110, check=False
    )

    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["same"]
    assert said["ranges"] > 1
    assert said["executors"] >= 2, "the driver and at least one executor of its own"
    assert "commitlog/missing is gone" in said["missing"]


def said(timeout: float, *cases: str) -> list[Any]:
    """What cases of `spark_steps` print, in one session."""
    done = subprocess.run(
        [sys.executable, "-m", "brokerset_rig.spark_steps", *cases],
        capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-8_000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_an_executor_that_is_killed_changes_nothing(tmp_path: Path) -> None:
    """`kill -9` in the middle of each large step of `verify`, `audit` and `migrate`: what the reports say
    and each file of the target is as without Spark."""
    for number, name in enumerate(("a", "b"), 1):
        write_wide_store(tmp_path / name, files=20, file_bytes=1 << 16, queues=64, broker_id=number)
    flip(tmp_path / "b", 700_000)

    (found,) = said(500, f"kills:{tmp_path}")

    assert {name: each["same"] for name, each in found.items()} == dict.fromkeys(found, True)
    assert {name: each["killed"] > 0 for name, each in found.items()} == dict.fromkeys(
        ("verify", "audit", "migrate"), True
    )


@pytest.mark.slow
def test_the_driver_needs_no_more_memory_for_more_data(tmp_path: Path) -> None:
    """Eight times the files, queues and records, after as much: its Python has at most 24 MiB more, and its
    Java stays in its heap."""
    for times in (1, 8):
        store = tmp_path / str(times) / "a"
        write_wide_store(store, files=50 * times, file_bytes=1 << 16, queues=100 * times)

    small, large = said(500, *(f"driver:{tmp_path}/{times}" for times in (1, 8)))

    assert large["verify"]["counters"]["records"] > 7 * small["verify"]["counters"]["records"]
    assert large["python MiB"] <= small["python MiB"] + 24
    assert large["java MiB"] <= small["java MiB"] + 200


@pytest.mark.slow
def test_a_thousandth_of_100_tb_on_executors_of_their_own(tmp_path: Path) -> None:
    """As many files as 100 GB have, 100, and 4,000 queues, in small: one Spark job for each step, on
    executors outside the driver. Figures: docs/spark-scale.md."""
    records = 0
    for number, name in enumerate(("a", "b"), 1):
        store = tmp_path / name
        records = write_wide_store(store, files=100, file_bytes=1 << 20, queues=4_000, broker_id=number)

    (found,) = said(900, f"driver:{tmp_path}")

    verified, audited = found["verify"], found["audit"]
    assert (verified["errors"], audited["errors"]) == (0, 0), found
    assert verified["counters"]["records"] == verified["counters"]["queue.units"] == records
    assert (verified["jobs"], audited["jobs"]) == (len(verified["steps"]), len(audited["steps"]))
    assert (verified["steps"][0], audited["steps"][0]) == (100, 200)
    assert audited["counters"]["records"] == 2 * records
    assert found["python MiB"] < 400
    print(json.dumps(found, indent=1))  # figures for the page
