"""What a job that fails leaves for Kubernetes: one sentence, whatever stands in the log."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from brokerset_spark import termination
from brokerset_spark.jobs.running import raised_by_task
from brokerset_spark.termination import SENTENCE_CHARACTERS_MAX, one_line, sentence

PY4J = """An error occurred while calling o71.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times
Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.$anonfun$abortStage$2(DAGScheduler.scala:2785)
\tat java.base/java.lang.Thread.run(Thread.java:840)
Caused by: java.lang.OutOfMemoryError: Java heap space
\tat java.base/java.util.Arrays.copyOf(Arrays.java:3537)
\t... 21 more
"""

DELTA = """the tables cannot be opened: Generic S3 error
          \x1b[31m↳\x1b[0m Error performing GET http://127.0.0.1:1/lake in 1.7s, after 10 retries, max_retries
           \x1b[31m↳\x1b[0m 10, retry_timeout
            \x1b[31m↳\x1b[0m tcp connect error
             \x1b[31m↳\x1b[0m Connection refused (os error 111)
"""


def run(
    log: Path, arguments: Sequence[str], **environment: str
) -> tuple[subprocess.CompletedProcess[str], str]:
    """A job in a process of its own; what it says at its end, and what it leaves."""
    done = subprocess.run(
        [sys.executable, "-m", "brokerset_spark", *arguments],
        env={**os.environ, termination.TERMINATION_LOG: str(log), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done, log.read_text() if log.exists() else ""


def test_a_job_that_fails_says_what_happened_where_and_what_to_do(tmp_path: Path) -> None:
    """In one sentence with the name of the job and of the store, for operators and for `kubectl describe`."""
    store = tmp_path / "store"

    done, said = run(tmp_path / "log", ["audit", "map", str(store)])

    assert done.returncode == 3, done.stderr
    assert said.startswith(f"audit map of {store} failed: ")
    assert "What to do: " in said
    assert "\n" not in said


def test_keys_that_a_storage_repeats_are_in_no_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 answers a wrong key with the key; conditions and Events are read by more people than Secrets are."""
    log = tmp_path / "log"
    monkeypatch.setenv(termination.TERMINATION_LOG, str(log))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA-17")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "")

    termination.leave("403: <AWSAccessKeyId>AKIA-17</AWSAccessKeyId>")

    assert log.read_text() == "403: <AWSAccessKeyId>***</AWSAccessKeyId>"


def test_wrong_options_are_told_as_failures_are(tmp_path: Path) -> None:
    """An operator of another release may give options that this image does not know."""
    done, said = run(tmp_path / "log", ["verify", "--no-such-option", "x"])

    assert done.returncode == 2
    assert said.startswith("verify failed: ")
    assert "--no-such-option" in said


def test_a_job_that_cannot_be_loaded_is_told_as_well(tmp_path: Path) -> None:
    """Here the command line itself is missing, so that nothing of it can tell anything."""
    (tmp_path / "click.py").write_text("raise ImportError('click is broken')")

    done, said = run(tmp_path / "log", ["verify", "x"], PYTHONPATH=str(tmp_path))

    assert done.returncode == 2
    assert said.startswith("the job failed: ImportError: click is broken. What to do: ")


def test_a_job_that_is_ended_while_it_is_loaded_says_so(tmp_path: Path) -> None:
    """As the first process of a container it would not even notice without a handler."""
    (tmp_path / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n")

    done, said = run(tmp_path / "log", ["verify", "x"], PYTHONPATH=str(tmp_path))

    assert done.returncode == 128 + signal.SIGTERM
    assert said.startswith("the job failed: it was told to end (SIGTERM) before it began. What to do: ")


def test_nothing_is_left_by_a_job_that_came_to_a_result(tmp_path: Path) -> None:
    """Its summary is what the operator reads there."""
    done, said = run(tmp_path / "log", ["--help"])

    assert (done.returncode, said) == (0, "")


def test_a_job_that_is_ended_leaves_that_before_it_lets_go_of_its_workers(tmp_path: Path) -> None:
    """Pods have seconds to end, and Spark takes longer than that."""
    program = (
        "import os, signal, sys\n"
        "from brokerset_spark.jobs import inspect\n"
        "inspect.inspect = lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM)\n"
        "sys.argv = ['x', 'inspect', '/stores/a']\n"
        "from brokerset_spark.__main__ import run\n"
        "run()\n"
    )
    log = tmp_path / "log"

    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, termination.TERMINATION_LOG: str(log)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 128 + signal.SIGTERM, done.stderr
    assert log.read_text().startswith(
        "inspect of /stores/a failed: it was told to end (SIGTERM). What to do: "
    )


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("no store there", "no store there"),
        (
            PY4J,
            "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 4"
            " times; caused by java.lang.OutOfMemoryError: Java heap space",
        ),
        (DELTA, "the tables cannot be opened: Generic S3 error; caused by Connection refused (os error 111)"),
        ("\n\n", ""),
    ],
)
def test_stacks_are_no_part_of_a_sentence(said: str, line: str) -> None:
    """The first thing that is said stays, and the last cause."""
    assert one_line(said) == line


def test_what_spark_gave_up_names_the_cause() -> None:
    """Py4J's first line only says which of its objects was called."""
    assert "Java heap space" in str(raised_by_task("a:b", RuntimeError(PY4J)))


def test_a_sentence_keeps_what_to_do_however_long_the_error_is() -> None:
    """It fits the room that the operator has for each replica."""
    found = sentence("audit map", ["/stores/orders-0-0/store"], "x" * 5000, "look there.")

    assert len(found) == SENTENCE_CHARACTERS_MAX
    assert found.startswith("audit map of /stores/orders-0-0/store failed: xxx")
    assert found.endswith("…. What to do: look there")
