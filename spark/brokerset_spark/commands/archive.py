"""`archive STORE TARGET`."""

from __future__ import annotations

import click

from brokerset_spark.commands.options import JobOptions, job_options


@click.command()
@click.argument("store")
@click.argument("target")
@click.option("--check", is_flag=True, help="Also read what TARGET has, and compare it with its manifest.")
@job_options
def archive(store: str, target: str, check: bool, job: JobOptions) -> None:
    """Copy the sealed files of STORE's log to TARGET, and read them back.

    STORE may be a running broker's: only files that are full and confirmed are copied. TARGET is a path or
    a URL of object storage (s3://, gs://, abfss://, hdfs://); a second run adds what is new. `verify`,
    `inspect`, `export` and Spark read an archive like a store.
    """
    from brokerset_spark.jobs.archive import ArchiveOptions
    from brokerset_spark.jobs.archive import archive as archive_store

    with job.running() as (runner, progress):
        options = ArchiveOptions(check=check, rate=job.rate)
        report = archive_store(runner, store, target, options, progress=progress)
    job.finish(report)
