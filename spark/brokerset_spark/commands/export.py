"""`export`: messages as Parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import click

from brokerset_spark.commands.options import ByteCount, JobOptions, LocalPath, job_options

_COMPRESSIONS = ("zstd", "snappy", "lz4", "gzip", "none")
_TAIL_BOUNDS = ("auto", "confirm", "checkpoint", "crc", "end")


def moment(text: str) -> int:
    """Milliseconds since 1970, or ISO 8601, in UTC if it names no zone; BadParameter for anything else."""
    from datetime import UTC, datetime

    text = text.strip()
    if text.isascii() and text.isdigit() and len(text) <= 15:
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        said = f"{text!r} is no time; write 2026-11-22, 2026-11-22T10:00:00Z, or milliseconds since 1970"
        raise click.BadParameter(said) from None
    return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)


@click.command()
@click.argument("store")
@click.argument("target", type=LocalPath(file_okay=False))
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Only this one; may be repeated.")
@click.option("--topic-pattern", default="", metavar="REGEX", help="Only topics that match as a whole.")
@click.option(
    "--include-system-topics", is_flag=True, help="Those of the system, retries and dead letters, too."
)
@click.option("--from", "start_ms", type=moment, metavar="TIME", help="Stored at or after this time.")
@click.option("--until", "end_ms", type=moment, metavar="TIME", help="Stored before this time.")
@click.option(
    "--from-offset", type=click.IntRange(0), metavar="OFFSET", help="From this offset of the log on."
)
@click.option(
    "--until-offset", type=click.IntRange(0), metavar="OFFSET", help="Before this offset of the log."
)
@click.option(
    "--since-manifest",
    type=LocalPath(dir_okay=False),
    metavar="FILE",
    help="Go on where the export of this _manifest.json ended; if it is the one in TARGET, add to it.",
)
@click.option("--columns", metavar="A,B,…", help="Only these columns. [default: all]")
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
@click.option("--split-size", type=ByteCount(), default="512M", show_default=True, metavar="BYTES",
              help="Bytes of the log for one task, and so the most for one file.")  # fmt: skip
@click.option(
    "--tail-bound",
    type=click.Choice(_TAIL_BOUNDS),
    default="auto",
    show_default=True,
    help="How far a store that a broker writes is read.",
)
@click.option("--confirmed-offset", type=click.IntRange(0), metavar="OFFSET", help="As the broker tells it.")
@job_options
def export(
    store: str,
    target: Path,
    topics: tuple[str, ...],
    topic_pattern: str,
    include_system_topics: bool,
    start_ms: int | None,
    end_ms: int | None,
    from_offset: int | None,
    until_offset: int | None,
    since_manifest: Path | None,
    columns: str | None,
    decompress: bool,
    compression: str,
    on_corrupt: str,
    no_crc: bool,
    broker_name: str | None,
    split_size: int,
    tail_bound: str,
    confirmed_offset: int | None,
    job: JobOptions,
) -> None:
    """Write the messages of STORE to Parquet files below TARGET, by topic and day (UTC).

    STORE is a folder, or a broker's read-only stream (http://HOST:PORT/store). TARGET appears when everything
    is written, by one rename; an export that was interrupted goes on where it was.
    """
    from brokerset_spark.jobs.export.exporting import export as run_export
    from brokerset_spark.jobs.export.options import Compression, ExportOptions, OnCorrupt
    from brokerset_spark.stores.tail import TailBound

    options = ExportOptions(
        topics=topics,
        topic_pattern=topic_pattern,
        system_topics=include_system_topics,
        start_ms=start_ms,
        end_ms=end_ms,
        start_offset=from_offset,
        end_offset=until_offset,
        columns=tuple(name.strip() for name in columns.split(",") if name.strip()) if columns else (),
        decompress=decompress,
        compression=cast("Compression", compression),
        on_corrupt=cast("OnCorrupt", on_corrupt),
        verify_crc=not no_crc,
        broker_name=broker_name,
        split_size=split_size,
        tail_bound=cast("TailBound", tail_bound),
        confirmed_offset=confirmed_offset,
        bytes_per_second=job.rate,
    )
    with job.running() as (runner, progress):
        report = run_export(runner, store, target, options, since_manifest=since_manifest, progress=progress)
    job.finish(report)
