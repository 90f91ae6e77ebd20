"""One small Spark for all tests that need one: a JVM takes seconds to start."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN: Final = 17
_SETTINGS: Final = {
    "spark.master": "local[2]",
    "spark.driver.memory": "512m",
    # Half the processor time of the defaults: what lives a minute need not be compiled twice.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.worker.reuse": "true",
    "spark.speculation": "false",
}


def missing_java() -> str | None:
    """Why Spark cannot start here; None if it can."""
    home = os.environ.get("JAVA_HOME")
    program = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if program is None or not os.access(program, os.X_OK):
        return f"Spark needs Java {JAVA_MIN} or later, and there is no java (PATH, JAVA_HOME)"
    told = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30).stderr
    found = re.search(r'version "(\d+)', told)
    if found is None or int(found[1]) < JAVA_MIN:
        return (
            f"Spark needs Java {JAVA_MIN} or later; {program} is {told.splitlines()[0] if told else 'silent'}"
        )
    return None


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    """A session for tests; without Java they are skipped, and fail with CI=true."""
    problem = missing_java()
    if problem is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(problem)
        pytest.skip(problem)
    # Workers must be the same Python with the same path; a missing module there shows only
    # as an EOFException.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("brokerset-tests")
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()
