"""What the jobs' commands share: options, engine, progress, errors, and how a report is handed out.

A command of a job looks like this:

    @click.command()
    @click.argument("store")
    @job_options
    def verify(store: str, job: JobOptions) -> None:
        with job.running() as (runner, progress):
            report = verify_store(runner, store, …, progress=progress)
        job.finish(report)

`job_options` turns whatever a job raises into a message and an exit code that is not that of findings.
"""

from __future__ import annotations

import functools
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Final, NoReturn, TypeVar

import click

from brokerset_runtime.files import write_atomically
from brokerset_spark.commands.ending import told_to_end
from brokerset_spark.jobs.report import EXIT_FAILED, EXIT_NO_INPUT, JobFailed, NoInput, Report
from brokerset_spark.jobs.running import LocalRunner, Progress, Runner, quiet
from brokerset_spark.sources.option_values import since_1970
from brokerset_spark.stores.places import NotServed, local_path

ENGINES: Final = ("processes", "spark")
EXIT_INTERRUPTED: Final = 128 + signal.SIGINT
"""As shells tell it; click alone would end with the code of findings."""

F = TypeVar("F", bound=Callable[..., Any])

_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class ByteCount(click.ParamType):  # type: ignore[type-arg]  # click 8.1 has no arguments here
    """A number of bytes: `1000000`, `64K`, `200M`, `2G` (powers of 1024)."""

    name = "bytes"

    def __init__(self, least: int = 0) -> None:
        """Less than `least` counts as `least`."""
        self._least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read it; UsageError for anything else."""
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"(\d{1,15})([KMGT]?)(?:i?B)?", str(value).strip(), re.IGNORECASE)
        if found is None:
            self.fail(f"{value!r} is no number of bytes; write 1000000, 64K, 200M or 2G", param, ctx)
        return max(self._least, int(found[1]) * _UNITS[found[2].upper()])


class Moment(click.ParamType):  # type: ignore[type-arg]  # click 8.1 has no arguments here
    """A time: ISO 8601, or milliseconds since 1970. It names its zone, or is in UTC where that is allowed."""

    name = "time"

    def __init__(self, *, needs_zone: bool = False) -> None:
        self._needs_zone = needs_zone

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read it as milliseconds since 1970; UsageError for anything else."""
        text = str(value).strip()
        if re.fullmatch(r"[0-9]{1,15}", text):
            return int(text)
        try:
            found = datetime.fromisoformat(text)
        except ValueError:
            found = None
        if found is None or (found.tzinfo is None and self._needs_zone):
            shown = "2026-11-22T07:00:00Z" if self._needs_zone else "2026-11-22, 2026-11-22T10:00:00Z,"
            self.fail(f"{value!r} is no time; write {shown} or milliseconds since 1970", param, ctx)
        return since_1970(found)


class LocalPath(click.Path):
    """A path of this machine, or a `file:` URL; what has another scheme is refused."""

    def __init__(self, *, exists: bool = False, file_okay: bool = True, dir_okay: bool = True) -> None:
        super().__init__(exists=exists, file_okay=file_okay, dir_okay=dir_okay, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path; UsageError for anything else."""
        try:
            return super().convert(local_path(str(value)), param, ctx)
        except NotServed as error:
            self.fail(str(error), param, ctx)


class Stopped(click.ClickException):
    """The job did not come to a result; says why and what to do."""

    def __init__(self, message: str, advice: str, exit_code: int) -> None:
        super().__init__(message)
        self.advice = advice
        self.ctx = click.get_current_context(silent=True)
        self.exit_code = exit_code  # type: ignore[misc]  # click declares it for the class, and reads it here

    def show(self, file: IO[Any] | None = None) -> None:
        """Write the error to standard error, the advice on a line of its own."""
        click.secho("Error: ", fg="red", bold=True, nl=False, err=True, file=file)
        click.echo(self.format_message(), err=True, file=file)
        if self.advice:
            click.secho("What to do: ", bold=True, nl=False, err=True, file=file)
            click.echo(self.advice, err=True, file=file)


def stopped(error: Exception) -> Stopped:
    """What is said, and with which code the process ends, for an error that a job let through.

    Never `EXIT_FINDINGS`: that code promises a report. What nobody foresaw is told with its stack.
    """
    match error:
        case NoInput():
            return Stopped(str(error), error.advice, EXIT_NO_INPUT)
        case JobFailed():
            return Stopped(str(error), error.advice, EXIT_FAILED)
        case FileNotFoundError() | NotADirectoryError():
            advice = "check the path; a store is the folder that holds commitlog/"
            return Stopped(str(error), advice, EXIT_NO_INPUT)
        case PermissionError():
            advice = "run as the user of the broker, or as one that may read its files"
            return Stopped(str(error), advice, EXIT_NO_INPUT)
        case ModuleNotFoundError():
            advice = 'install the missing part: pip install "brokerset[spark]"'
            return Stopped(f"{error.name} is not installed", advice, EXIT_FAILED)
        case OSError() | ValueError():
            return Stopped(str(error), "", EXIT_FAILED)
        case MemoryError():
            return Stopped("the memory is used up", "run it with fewer --workers", EXIT_FAILED)
    traceback.print_exception(error)
    said = f"the job ended by an error of its own, {type(error).__name__}: {error}"
    return Stopped(
        said, "report it, with what stands above; nothing was found out about the store", EXIT_FAILED
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """What `job_options` read."""

    engine: str
    """`processes` or `spark`."""

    workers: int
    master: str | None
    """Of Spark; None for `local[workers]`, or what spark-submit says."""

    max_bytes_per_second: int
    """0 for no limit; of all workers together."""

    report: Path | None
    findings: Path | None
    summary: Path | None
    as_json: bool
    all_cores: bool = False
    """Whether nobody said how many workers: on Spark, as many tasks at once as the cluster has cores."""

    @property
    def tasks_at_once(self) -> int:
        """For Spark; 0 for what the cluster has. A rate is divided among a number of tasks that must be
        known."""
        return 0 if self.all_cores and not self.max_bytes_per_second else self.workers

    @property
    def rate(self) -> int:
        """Bytes per second of one worker; 0 for no limit. As many tasks run at once as there are workers."""
        return max(1, self.max_bytes_per_second // self.workers) if self.max_bytes_per_second else 0

    def _check_rate(self) -> None:
        """UsageError if a rate would be divided by the cores of this machine, though others do the work."""
        elsewhere = self.master is not None and not self.master.startswith("local")
        if elsewhere and self.max_bytes_per_second and self.all_cores:
            raise click.UsageError(
                "--max-bytes-per-second is divided among the tasks of a cluster: say --workers, too"
            )

    @contextmanager
    def running(self) -> Iterator[tuple[Runner, Progress]]:
        """The chosen engine and a progress bar; both end with the context."""
        with _ending_gently(), _bar() as progress:
            if self.engine == "spark":
                from brokerset_spark.jobs.running import SparkRunner
                from brokerset_spark.jobs.session import open_session

                self._check_rate()
                limit = self.tasks_at_once
                with open_session(workers=self.workers, master=self.master, cores_max=limit) as spark:
                    yield SparkRunner(spark, self.tasks_at_once), progress
            else:
                runner = LocalRunner(self.workers)
                try:
                    yield runner, progress
                finally:
                    runner.close()

    def finish(self, report: Report) -> NoReturn:
        """Write the report where it was asked for, tell it, and end the process with its code."""
        from brokerset_spark.commands.printing import tell

        text = report.to_json()
        if self.report is not None:
            write_atomically(self.report, text + b"\n")
        if self.summary is not None:
            self.summary.write_bytes(report.summary())  # as it is: mostly it is a device or a mounted file
        if self.findings is not None:
            from brokerset_spark.jobs.report import write_findings

            write_findings(report, self.findings)
        if self.as_json:
            click.echo(text)
        else:
            tell(report, full=self.report)
        sys.exit(report.exit_code)


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0))


def job_options(function: Callable[..., None]) -> Callable[..., None]:
    """The options of all jobs; the command gets them as `job: JobOptions`."""

    @functools.wraps(function)
    def command(**given: Any) -> None:
        given["all_cores"] = not given["workers"]
        given["workers"] = given["workers"] or cores()
        job = JobOptions(**{each.name: given.pop(each.name) for each in fields(JobOptions)})
        try:
            function(**given, job=job)
        except (click.ClickException, click.exceptions.Exit):
            raise
        except (KeyboardInterrupt, click.Abort):
            sys.exit(EXIT_INTERRUPTED)
        except Exception as error:
            raise stopped(error) from error

    return with_options(_OPTIONS)(command)


def with_options(options: Sequence[Callable[[F], F]]) -> Callable[[F], F]:
    """Several options that belong together, as one decorator."""
    return lambda command: functools.reduce(lambda inner, option: option(inner), reversed(options), command)


def range_options(function: F) -> F:
    """For jobs that read one store: which part of it, and how gently."""
    return with_options(_RANGE_OPTIONS)(function)


offset_option: Final = functools.partial(click.option, type=click.IntRange(0), metavar="OFFSET")
file_option: Final = functools.partial(click.option, type=LocalPath(dir_okay=False), metavar="FILE")
bytes_option: Final = functools.partial(click.option, type=ByteCount(), metavar="BYTES")

_OPTIONS: Final = (
    click.option(
        "--engine",
        type=click.Choice(ENGINES),
        default="processes",
        show_default=True,
        help=(
            "Processes of this machine start at once; Spark needs Java and some seconds, and knows clusters."
        ),
    ),
    click.option(
        "--workers",
        type=click.IntRange(1, 1024),
        help="Tasks at once. [default: processors; on Spark those of the cluster]",
    ),
    click.option("--master", metavar="URL", help="Spark master. [default: this machine]"),
    bytes_option(
        "--max-bytes-per-second",
        default=0,
        help="Read no faster, all workers together, for a broker's sake: 100M. [default: no limit]",
    ),
    file_option("--report", help="Write report.json."),
    file_option("--findings", help="Write the findings as a Parquet file."),
    file_option("--summary", help="Write a summary of at most 4096 bytes, as /dev/termination-log takes it."),
    click.option("--json", "as_json", is_flag=True, help="Write report.json to standard output."),
)


_RANGE_OPTIONS: Final = (
    offset_option("--start", help="From this offset of the log on."),
    offset_option("--end", help="Up to this offset."),
    offset_option(
        "--bound",
        help="The confirmed offset of a running broker: nothing behind it is looked at. [default: from its "
        "checkpoint]",
    ),
    click.option(
        "--drop-cache", is_flag=True, help="Let the kernel forget what was read: for a serving broker."
    ),
    click.option(
        "--range",
        "range_bytes",
        type=ByteCount(least=1 << 16),
        default=128 << 20,
        metavar="BYTES",
        show_default="128M",
        help="Log of one task.",
    ),
)


@contextmanager
def _ending_gently() -> Iterator[None]:
    """SIGTERM unwinds the stack as Ctrl-C does, so that workers, sessions and staging folders are let go."""

    context = click.get_current_context(silent=True)

    def stop(number: int, _frame: object) -> NoReturn:
        signal.signal(number, signal.SIG_DFL)  # a second one ends at once
        told_to_end(context, signal.Signals(number).name)
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _bar() -> Iterator[Progress]:
    """A bar on standard error; nothing when nobody looks at a terminal."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield quiet
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("", total=None)

        def show(label: str, done: int, total: int) -> None:
            bars.update(task, description=label, completed=done, total=total)

        yield show
