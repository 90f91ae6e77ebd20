"""`brokerset store JOB …`: jobs on store files, in a process of their own.

They need the extra `brokerset[spark]`, and this program may not import their package; so it starts
`python -m brokerset_spark JOB …` and hands its signals, output and exit code through.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, Final

import click

from brokerset_cli.output import CommandFailed

PACKAGE: Final = "brokerset_spark"
PROGRAM_VARIABLE: Final = "BROKERSET_PROGRAM"
"""Tells the job by which name it was called, for its help."""

NEEDED: Final = ("numpy",)
"""What the extra brings and every job imports; the package itself is always installed."""

EXIT_FAILED: Final = 2
"""The jobs' own code for a job that could not be done."""

JOBS: Final = {
    "verify": "Check every record, queue unit and index entry.",
    "inspect": "Count messages and bytes by topic, queue and day.",
    "migrate": "Copy a store into another layout.",
    "audit": "Compare the replicas of one broker, byte by byte.",
    "export": "Write messages to Parquet files.",
    "lake": "Add what is new in topics of brokers to a Delta table.",
    "archive": "Copy sealed files to object storage.",
}
"""The jobs, and their lines in the help: those of `brokerset_spark.commands.table`."""

PASSED_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class NotInstalled(CommandFailed):
    """The extra is missing."""

    exit_code = EXIT_FAILED


def check_installed() -> None:
    """Raise `NotInstalled` if jobs cannot run."""
    missing = [name for name in (PACKAGE, *NEEDED) if importlib.util.find_spec(name) is None]
    if missing:
        message = f"jobs on store files need {', '.join(missing)}"
        raise NotInstalled(message, f'{sys.executable} -m pip install "brokerset[spark]"')


def run_job(arguments: list[str]) -> int:
    """Start a job and wait for it; signals go to it, and it decides when to end. Returns its exit code."""
    check_installed()
    child: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        if child is None:
            early.append(number)
        else:
            child.send_signal(number)

    before: Mapping[int, Callable[..., Any] | int | None] = {
        number: signal.signal(number, pass_on) for number in PASSED_SIGNALS
    }
    try:
        # In a process group of its own: Ctrl-C reaches it once, through us.
        command = [sys.executable, "-m", PACKAGE, *arguments]
        child = subprocess.Popen(
            command, env={**os.environ, PROGRAM_VARIABLE: "brokerset store"}, process_group=0
        )
        for number in early:
            child.send_signal(number)
        code = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 128 - code if code < 0 else code


class StoreGroup(click.Group):
    """Takes everything behind `store` as it is: options belong to the job."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of `JOBS`."""
        return list(JOBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command that passes its arguments on; None when there is no such job."""
        if cmd_name not in JOBS:
            return None

        @click.command(
            cmd_name,
            context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
            add_help_option=False,
        )
        @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
        def job(arguments: tuple[str, ...]) -> None:
            sys.exit(run_job([cmd_name, *arguments]))

        return job

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of jobs."""
        with formatter.section("Jobs"):
            formatter.write_dl(list(JOBS.items()))


@click.group(cls=StoreGroup, context_settings={"help_option_names": ["-h", "--help"]})
def store() -> None:
    """Check, count, move, compare, export and archive store files, of brokerset or Java, without a broker.

    The files of a source store are never written to. `brokerset store JOB --help` tells a job's options.
    Exit codes: 0 clean, 1 findings, 2 the job failed, 3 the input is missing or a broker runs on it.
    """


@click.command(
    "export",
    context_settings={
        "ignore_unknown_options": True,
        "allow_extra_args": True,
        "help_option_names": ["-h", "--help"],
    },
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS]")
def export(arguments: tuple[str, ...]) -> None:
    """Add what is new in topics of running brokers to a Delta table, each message once.

    \b
    brokerset export --name-servers 127.0.0.1:9876 --topic orders --target /data/lake
    brokerset export --name-servers 127.0.0.1:9876 --topic-pattern 'orders.*' --target s3://bucket/lake

    A run goes on where the last one's commit ended. `brokerset store lake --help` tells all options.
    """
    sys.exit(run_job(["lake", *arguments]))
