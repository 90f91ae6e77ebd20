"""Exit codes: 1 means that there is a report with findings, and nothing else ever ends with it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from brokerset_spark import __main__ as program
from brokerset_spark.commands import table
from brokerset_spark.commands.options import EXIT_INTERRUPTED, JobOptions, job_options
from brokerset_spark.jobs.report import (
    EXIT_CLEAN,
    EXIT_FAILED,
    EXIT_FINDINGS,
    EXIT_NO_INPUT,
    Finding,
    JobFailed,
    Level,
    NoInput,
    Report,
)


def ends_with(error: BaseException) -> click.testing.Result:
    @click.command()
    @job_options
    def job(job: JobOptions) -> None:
        with job.running():
            raise error

    return CliRunner().invoke(job, ["--workers", "1"])


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (NoInput("no store"), EXIT_NO_INPUT, "no store"),
        (FileNotFoundError(errno.ENOENT, "No such file", "x"), EXIT_NO_INPUT, "check the path"),
        (PermissionError(errno.EACCES, "denied", "x"), EXIT_NO_INPUT, "user of the broker"),
        (JobFailed("damaged", "look there"), EXIT_FAILED, "look there"),
        (OSError(errno.EIO, "the disk is gone"), EXIT_FAILED, "the disk is gone"),
        (ValueError("it has changed"), EXIT_FAILED, "it has changed"),
        (ModuleNotFoundError(name="pyspark"), EXIT_FAILED, "pyspark is not installed"),
        (MemoryError(), EXIT_FAILED, "the memory is used up"),
        (KeyError("path"), EXIT_FAILED, "error of its own, KeyError: 'path'"),
        (AssertionError("never"), EXIT_FAILED, "error of its own, AssertionError: never"),
        (RuntimeError("a lost JVM"), EXIT_FAILED, "error of its own, RuntimeError: a lost JVM"),
        (click.UsageError("no such option"), EXIT_FAILED, "no such option"),
        (KeyboardInterrupt(), EXIT_INTERRUPTED, ""),
        (click.Abort(), EXIT_INTERRUPTED, ""),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_no_error_ends_as_findings_do(error: BaseException, code: int, said: str) -> None:
    """Whatever a job raises, foreseen or not, has a code of its own and is told on standard error."""
    done = ends_with(error)

    assert done.exit_code == code != EXIT_FINDINGS
    assert said in done.stderr


def test_what_nobody_foresaw_is_told_with_its_stack() -> None:
    """Whoever reads the log can report it; errors that were foreseen have no stack."""
    assert "Traceback" in ends_with(KeyError("path")).stderr
    assert "Traceback" not in ends_with(JobFailed("damaged")).stderr


@pytest.mark.parametrize(
    ("level", "code"), [(None, EXIT_CLEAN), (Level.WARNING, EXIT_CLEAN), (Level.ERROR, EXIT_FINDINGS)]
)
def test_a_report_decides_between_clean_and_findings(level: Level | None, code: int) -> None:
    """Only errors count; warnings end as nothing does."""

    @click.command()
    @job_options
    def job(job: JobOptions) -> None:
        report = Report("verify")
        if level is not None:
            report.add(Finding("x", level, "y"))
        job.finish(report)

    assert CliRunner().invoke(job).exit_code == code


def test_a_report_that_cannot_be_written_is_a_failed_job(tmp_path: Path) -> None:
    """The findings were not handed out, so the code does not claim it."""

    @click.command()
    @job_options
    def job(job: JobOptions) -> None:
        report = Report("verify")
        report.add(Finding("x", Level.ERROR, "y"))
        job.finish(report)

    done = CliRunner().invoke(job, ["--summary", str(tmp_path)])

    assert done.exit_code == EXIT_FAILED


def test_what_gets_through_everything_is_a_failed_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own code for an exception is that of findings; the program never lets one through."""

    def broken(**_: object) -> None:
        raise RuntimeError("outside of any job")

    monkeypatch.setattr(table, "main", broken)

    with pytest.raises(SystemExit) as ended:
        program.run()
    assert ended.value.code == EXIT_FAILED


@pytest.mark.parametrize("job", list(table.JOBS))
def test_a_job_that_cannot_be_loaded_is_a_failed_job(job: str, tmp_path: Path) -> None:
    """As when a package that it needs is missing or broken: a real process, for each job."""
    (tmp_path / "numpy.py").write_text("raise ImportError('numpy is broken')")
    (tmp_path / "click").mkdir()
    (tmp_path / "click" / "__init__.py").write_text("raise ImportError('click is broken')")

    for broken in ("numpy", "click"):
        folder = tmp_path if broken == "click" else tmp_path / "only-numpy"
        folder.mkdir(exist_ok=True)
        (folder / "numpy.py").write_text("raise ImportError('numpy is broken')")
        store = str(tmp_path)
        arguments = {
            "migrate": [store, str(tmp_path / "x"), "--to", "controller"],
            "export": [store, "x"],
            "archive": [store, "x"],
            "lake": ["--name-servers", "127.0.0.1:1", "--target", store, "--topic", "orders"],
        }.get(job, [store])
        done = subprocess.run(
            [sys.executable, "-m", "brokerset_spark", job, *arguments],
            env={**os.environ, "PYTHONPATH": str(folder)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == EXIT_FAILED, done.stderr
        assert f"{broken} is broken" in done.stderr
