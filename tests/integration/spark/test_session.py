"""A session that cannot be had ends the job in order."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from brokerset_rig.replica_stores import Log, write_replica
from brokerset_rig.spark_session import missing_java
from brokerset_spark.jobs.report import EXIT_FAILED

pytestmark = pytest.mark.long


def test_a_job_says_why_spark_does_not_start(tmp_path: Path) -> None:
    """The exit code is not that of findings, and the reason is Spark's own, without a stack."""
    problem = missing_java()
    if problem is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(problem)
        pytest.skip(problem)
    log = Log()
    log.fill(10)
    store = write_replica(tmp_path / "store", log, confirmed=log.end)

    done = subprocess.run(
        [sys.executable, "-m", "brokerset_spark", "verify", str(store), "--engine", "spark"],
        env={**os.environ, "PYSPARK_SUBMIT_ARGS": "--conf spark.testing.memory=1 pyspark-shell"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    said = next(line for line in done.stderr.splitlines() if "Spark does not start" in line)
    assert done.returncode == EXIT_FAILED
    assert "System memory 1 must be at least" in said
    assert "brokerset_spark/jobs/session.py" not in done.stderr, "a stack says nothing to users"


def test_a_java_that_is_gone_does_not_hide_why_a_job_fails() -> None:
    """Spark cannot be stopped then; the error that is told is still the one that came first."""
    problem = missing_java()
    if problem is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(problem)
        pytest.skip(problem)
    program = """
from brokerset_spark.jobs.report import JobFailed
from brokerset_spark.jobs.session import open_session

try:
    with open_session(workers=1) as spark:
        java = spark.sparkContext._gateway.proc
        java.kill()
        java.wait()
        raise JobFailed("too many executors failed")
except Exception as error:
    print(f"told: {error}")
"""

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False
    )

    assert "told: too many executors failed\n" in done.stdout, done.stderr
