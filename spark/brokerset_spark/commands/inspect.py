"""`inspect STORE`."""

from __future__ import annotations

import click

from brokerset_spark.commands.offsets import range_options
from brokerset_spark.commands.options import JobOptions, job_options


@click.command()
@click.argument("store")
@range_options
@job_options
def inspect(
    store: str,
    start: int | None,
    end: int | None,
    bound: int | None,
    drop_cache: bool,
    range_bytes: int,
    job: JobOptions,
) -> None:
    """Count the messages of STORE by topic, queue, day and size, and tell its layout.

    STORE is the folder that holds commitlog/ or dledger-…/.
    """
    from brokerset_spark.jobs.inspect import InspectOptions
    from brokerset_spark.jobs.inspect import inspect as inspect_store

    options = InspectOptions(
        start=start,
        end=end,
        bound=bound,
        rate=job.rate,
        drop_cache=drop_cache,
        range_bytes=max(range_bytes, 1 << 16),
    )
    with job.running() as (runner, progress):
        report = inspect_store(runner, store, options, progress=progress)
    if not job.as_json:
        from brokerset_spark.commands.printing import tell_contents

        tell_contents(report)
    job.finish(report)
