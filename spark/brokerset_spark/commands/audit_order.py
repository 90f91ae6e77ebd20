"""`audit order`: whether the messages of ordered subjects are stored in order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from brokerset_formats.errors import FormatError
from brokerset_spark.commands.options import ByteCount, JobOptions, LocalPath, job_options
from brokerset_spark.commands.outputs import check_places
from brokerset_spark.jobs.report import NoInput
from brokerset_spark.jobs.verify.options import RANGE_BYTES


@click.command("order")
@click.argument("stores", nargs=-1, required=True)
@click.option(
    "--subject", "subjects", multiple=True, metavar="NAME",
    help="This subject only; may be repeated. [default: those of --states, else all with order stamps]",
)  # fmt: skip
@click.option(
    "--states", type=LocalPath(dir_okay=False, exists=True), metavar="FILE",
    help="What the controllers agreed on: `brokerset subject describe --json`. Partitions are compared then.",
)  # fmt: skip
@click.option(
    "--range", "range_bytes", type=ByteCount(least=1 << 16), default=RANGE_BYTES, metavar="BYTES",
    show_default="128M", help="Log of one task.",
)  # fmt: skip
@click.option(
    "--keep-page-cache", is_flag=True, help="Leave what is read in the page cache; no broker needs the room."
)
@job_options
def order(
    stores: tuple[str, ...], states: Path | None, keep_page_cache: bool, job: JobOptions, **given: Any
) -> None:
    """Judge the order stamps of all messages in STORES, one store of each broker group of the subjects.

    STORE is the folder that holds commitlog/ or dledger-…/, or a broker's http://HOST:PORT/store. Nothing
    lost, nothing twice, nothing behind what a newer epoch of its producer has stored, nothing behind a sealed
    end. docs/spark.md says what each code means.
    """
    from brokerset_spark.jobs.order import OrderOptions, audit_order, parse_states

    check_places((job.report, job.findings), stores)
    known = {}
    if states is not None:
        try:
            known = parse_states(states.read_bytes())
        except FormatError as error:
            advice = "give the output of `brokerset subject describe --json`"
            raise NoInput(f"{states}: {error}", advice) from error
    options = OrderOptions(**given, states=known, rate=job.rate, drop_cache=not keep_page_cache)
    with job.running() as (runner, progress):
        report = audit_order(runner, stores, options, progress=progress)
    if not job.as_json:
        from brokerset_spark.commands.printing import tell_subjects

        tell_subjects(report)
    job.finish(report)
