"""`migrate`: a store in another layout, next to the old one."""

from __future__ import annotations

from typing import Any, Final

import click

from brokerset_spark.commands.options import JobOptions, Moment, bytes_option, job_options

_TARGETS: Final = ("controller", "commitlog", "dledger")


@click.command()
@click.argument("source")
@click.argument("target")
@click.option("--to", type=click.Choice(_TARGETS), required=True, help="Layout of the new store.")
@click.option("--plan", "plan_only", is_flag=True, help="Say what would be done, and write nothing.")
@click.option(
    "--rewrite",
    is_flag=True,
    help="Write records again where files could be copied; to a DLedger: entries only, no old files.",
)
@bytes_option("--file-size", help="Size of the log's files. [default: as before]")
@bytes_option("--queue-file-size", help="Size of queue files. [default: as before]")
@click.option(
    "--from-time",
    "from_time_ms",
    type=Moment(needs_zone=True),
    metavar="TIME",
    help="Only messages stored at this time or later.",
)
@click.option(
    "--until-time",
    "until_time_ms",
    type=Moment(needs_zone=True),
    metavar="TIME",
    help="Only messages stored before this time.",
)
@click.option(
    "--from-offset", type=click.IntRange(0), help="Only records at this offset of the log or behind."
)
@click.option("--until-offset", type=click.IntRange(1), help="Only records before this offset of the log.")
@click.option(
    "--keep-topic",
    "keep_topics",
    multiple=True,
    metavar="PATTERN",
    help="Only these topics (*, ?); repeat it.",
)
@click.option(
    "--drop-topic", "drop_topics", multiple=True, metavar="PATTERN", help="Without these topics; repeat it."
)
@click.option(
    "--ledger-id", default="n0", show_default=True, help="dLegerSelfId of the node that gets the store."
)
@click.option(
    "--term", type=click.IntRange(0), default=1, show_default=True, help="Term of a DLedger's entries."
)
@click.option("--take-uncommitted", is_flag=True, help="Take entries of a DLedger that may not be committed.")
@click.option(
    "--epochs",
    type=click.Choice(("auto", "single", "terms")),
    default="auto",
    show_default=True,
    help="Of controller mode: the source's, else a single one; a single one; one for each term of a DLedger.",
)
@click.option(
    "--identity", metavar="CLUSTER#BROKER#ID", help="Of a replica that its controllers know already."
)
@click.option("--index/--no-index", default=True, show_default=True, help="Whether to make key index files.")
@click.option(
    "--index-slots", type=click.IntRange(1), help="The broker's maxHashSlotNum. [default: as before]"
)
@click.option("--index-units", type=click.IntRange(2), help="The broker's maxIndexNum. [default: as before]")
@click.option("--drop-timers", is_flag=True, help="Give up messages that wait in the timer wheel.")
@click.option(
    "--accept-queue-faults",
    is_flag=True,
    help="Put place holders where no record has a queue offset, and let the newer of two count.",
)
@click.option(
    "--delay-levels", metavar="LEVELS", help="The broker's messageDelayLevel. [default: RocketMQ's]"
)
@job_options
def migrate(
    source: str, target: str, plan_only: bool, delay_levels: str | None, job: JobOptions, **given: Any
) -> None:
    """Build the store TARGET from the store SOURCE, in the layout of controller mode, of a plain broker or of
    DLedger.

    SOURCE is never changed and its broker must be stopped. TARGET must not exist; it appears, complete and
    checked, at the end. A run that was interrupted goes on when it is started again.
    """
    from brokerset_spark.jobs.migrate import DELAY_LEVELS, MigrateOptions
    from brokerset_spark.jobs.migrate import migrate as migrate_store

    options = MigrateOptions(**given, delay_levels=delay_levels or DELAY_LEVELS)
    with job.running() as (runner, progress):
        report = migrate_store(
            runner, source, target, options, plan_only=plan_only, rate=job.rate, progress=progress
        )
    job.finish(report)
