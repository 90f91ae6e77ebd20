"""`inspect STORE`."""

from __future__ import annotations

from typing import Any

import click

from brokerset_spark.commands.options import JobOptions, job_options, range_options


@click.command()
@click.argument("store")
@range_options
@job_options
def inspect(store: str, job: JobOptions, **given: Any) -> None:
    """Count the messages of STORE by topic, queue, day and size, and tell its layout.

    STORE is the folder that holds commitlog/ or dledger-…/.
    """
    from brokerset_spark.jobs.inspect import InspectOptions
    from brokerset_spark.jobs.inspect import inspect as inspect_store

    with job.running() as (runner, progress):
        options = InspectOptions(**given, rate=job.rate)
        report = inspect_store(runner, store, options, progress=progress)
    if not job.as_json:
        from brokerset_spark.commands.printing import tell_contents

        tell_contents(report)
    job.finish(report)
