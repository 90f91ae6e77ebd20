"""`verify STORE`."""

from __future__ import annotations

from typing import Any

import click

from brokerset_spark.commands.options import JobOptions, job_options, range_options


@click.command()
@click.argument("store")
@range_options
@click.option(
    "--topic", "topics", multiple=True, help="Check the queues of this topic only; may be repeated."
)
@click.option("--no-queues", is_flag=True, help="Leave consume queues out.")
@click.option("--no-index", is_flag=True, help="Leave index files out.")
@click.option(
    "--delay-levels",
    metavar="LEVELS",
    help="`messageDelayLevel` of the broker, if it is set. [default: RocketMQ's]",
)
@job_options
def verify(
    store: str, no_queues: bool, no_index: bool, delay_levels: str | None, job: JobOptions, **given: Any
) -> None:
    """Check every record, queue unit, index entry and small file of STORE, and whether they agree.

    STORE is the folder that holds commitlog/ or dledger-…/. A running broker's store is checked up to what is
    confirmed. Findings name file and offset; docs/spark.md says what each code means.
    """
    from brokerset_spark.jobs.dispatch import DELAY_LEVELS, parse_delays
    from brokerset_spark.jobs.verify import VerifyOptions
    from brokerset_spark.jobs.verify import verify as verify_store

    levels = delay_levels or DELAY_LEVELS
    try:
        parse_delays(levels)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--delay-levels") from error
    options = VerifyOptions(
        **given, queues=not no_queues, index=not no_index, rate=job.rate, delay_levels=levels
    )
    with job.running() as (runner, progress):
        report = verify_store(runner, store, options, progress=progress)
    job.finish(report)
