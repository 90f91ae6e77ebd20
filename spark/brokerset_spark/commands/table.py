"""The jobs by name; only the module of the one that is called is loaded."""

from __future__ import annotations

import importlib
from typing import Final

import click

JOBS: Final = {
    "verify": ("brokerset_spark.commands.verify:verify", "Check every record, queue unit and index entry."),
    "inspect": (
        "brokerset_spark.commands.inspect:inspect",
        "Count messages and bytes by topic, queue and day.",
    ),
    "migrate": ("brokerset_spark.commands.migrate:migrate", "Copy a store into another layout."),
    "audit": ("brokerset_spark.commands.audit:audit", "Compare the replicas of one broker, byte by byte."),
    "export": ("brokerset_spark.commands.export:export", "Write messages to Parquet files."),
    "lake": ("brokerset_spark.commands.lake:lake", "Add what is new in topics of brokers to a Delta table."),
    "archive": ("brokerset_spark.commands.archive:archive", "Copy sealed files to object storage."),
}
"""Where each job is, and its line in the help. `libs/brokerset_cli/store.py` has the same names."""


class JobGroup(click.Group):
    """A group that knows its jobs by name and loads one when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of `JOBS`."""
        return list(JOBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a job; None when there is none of this name."""
        if cmd_name not in JOBS:
            return None
        module, _, attribute = JOBS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command), f"{attribute} of {module} is a command"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of jobs without loading them."""
        with formatter.section("Jobs"):
            formatter.write_dl([(name, line) for name, (_, line) in JOBS.items()])


@click.group(cls=JobGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="brokerset", prog_name="brokerset store")
def main() -> None:
    """Jobs on RocketMQ store files, without a broker. Nothing is ever written into a source store.

    Exit codes: 0 clean, 1 findings, 2 the job failed, 3 the input is missing or a broker runs on it.
    """
    from brokerset_runtime.logs import configure_logs

    configure_logs("warning", json=False)  # to standard error: reports go to standard output
