"""`export`: messages as Parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from brokerset_spark.commands.options import (
    JobOptions,
    LocalPath,
    Moment,
    bytes_option,
    file_option,
    job_options,
    offset_option,
)

_COMPRESSIONS = ("zstd", "snappy", "lz4", "gzip", "none")
_TAIL_BOUNDS = ("auto", "confirm", "checkpoint", "crc", "end")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


@click.command()
@click.argument("store")
@click.argument("target", type=LocalPath(file_okay=False))
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Only this one; may be repeated.")
@click.option("--topic-pattern", default="", metavar="REGEX", help="Only topics that match as a whole.")
@click.option(
    "--include-system-topics",
    "system_topics",
    is_flag=True,
    help="Those of the system, retries and dead letters, too.",
)
@click.option("--from", "start_ms", type=Moment(), metavar="TIME", help="Stored at or after this time.")
@click.option("--until", "end_ms", type=Moment(), metavar="TIME", help="Stored before this time.")
@offset_option("--from-offset", "start_offset", help="From this offset of the log on.")
@offset_option("--until-offset", "end_offset", help="Before this offset of the log.")
@file_option(
    "--since-manifest",
    help="Go on where the export of this _manifest.json ended; if it is the one in TARGET, add to it.",
)
@click.option(
    "--columns", type=_names, default="", metavar="A,B,…", help="Only these columns. [default: all]"
)
@click.option("--decompress", is_flag=True, help="Open compressed bodies.")
@click.option("--compression", type=click.Choice(_COMPRESSIONS), default="zstd", show_default=True)
@click.option(
    "--on-corrupt",
    type=click.Choice(("fail", "skip")),
    default="fail",
    show_default=True,
    help="What to do with parts that cannot be read: write nothing, or leave them out and tell which.",
)
@click.option("--no-crc", is_flag=True, help="Do not check bodies against their CRC.")
@click.option(
    "--broker-name", metavar="NAME", help="Column brokerName. [default: as the store's identity says]"
)
@bytes_option("--split-size", default="512M", show_default=True,
              help="Bytes of the log for one task, and so the most for one file.")  # fmt: skip
@click.option(
    "--tail-bound",
    type=click.Choice(_TAIL_BOUNDS),
    default="auto",
    show_default=True,
    help="How far a store that a broker writes is read.",
)
@offset_option("--confirmed-offset", help="As the broker tells it.")
@job_options
def export(
    store: str, target: Path, since_manifest: Path | None, no_crc: bool, job: JobOptions, **given: Any
) -> None:
    """Write the messages of STORE to Parquet files below TARGET, by topic and day (UTC).

    STORE is a folder, or a broker's read-only stream (http://HOST:PORT/store). TARGET appears when everything
    is written, by one rename; an export that was interrupted goes on where it was.
    """
    from brokerset_spark.jobs.export.exporting import export as run_export
    from brokerset_spark.jobs.export.options import ExportOptions

    options = ExportOptions(**given, verify_crc=not no_crc, bytes_per_second=job.rate)
    with job.running() as (runner, progress):
        report = run_export(runner, store, target, options, since_manifest=since_manifest, progress=progress)
    job.finish(report)
