"""`audit`: compare the replicas of one broker; in one command, or by maps that were made near each store."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from brokerset_runtime.files import write_atomically
from brokerset_spark.commands.audit_order import order
from brokerset_spark.commands.options import (
    JobOptions,
    LocalPath,
    file_option,
    job_options,
    offset_option,
    with_options,
)
from brokerset_spark.commands.outputs import check_places
from brokerset_spark.jobs.audit import (
    Answer,
    AuditOptions,
    ControllerView,
    MapOptions,
    Query,
    ReplicaMap,
    answer,
    audit_with_maps,
    map_replica,
    parse_view,
)
from brokerset_spark.jobs.report import JobFailed, NoInput, Report

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


class _AuditGroup(click.Group):
    """`audit A B C` is `audit run A B C`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The subcommand, or `run` if the first argument is none."""
        if args and args[0] not in self.commands:
            args = ["run", *args]
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Options may come before the stores."""
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_AuditGroup, context_settings={"help_option_names": ["-h", "--help"]})
def audit() -> None:
    """Compare the replicas of one broker: epochs, ends, and every confirmed byte.

    `audit STORE STORE STORE` reads all of them. Where they are on different machines, `audit map STORE` runs
    near each, and `audit reduce MAP MAP MAP` needs only the maps. What differs is named after `audit look
    STORE` has answered what the reduce's summary asks each store.

    `audit order STORE STORE` is about ordered subjects instead: it takes one store of each broker group.
    """


_KEEP_PAGES = click.option(
    "--keep-page-cache", is_flag=True, help="Leave what is read in the page cache; no broker needs the room."
)
_MAP_OPTIONS: Final = (
    offset_option(
        "--confirm-offset",
        "confirmed",
        help="What the broker says is confirmed. [default: what each store's checkpoint says]",
    ),
    file_option(
        "--cache", help="Keep digests of files that do not change any more; they are read again once a week."
    ),
    click.option("--full", is_flag=True, help="Read everything, whatever the cache knows."),
    _KEEP_PAGES,
)
_REPORT_OPTIONS: Final = (
    click.option(
        "--controller",
        type=LocalPath(dir_okay=False, exists=True),
        metavar="FILE",
        help="What the controllers say: `brokerset status --json`, or masterEpoch and syncStateSet.",
    ),
    file_option("--page", help="Write the page there. [default: next to the report, or audit.html]"),
    click.option("--no-page", is_flag=True, help="Write no page."),
)


def _output(what: str) -> Callable[[F], F]:
    return file_option("-o", "--output", help=f"Write the {what} there. [default: standard output, one line]")


@audit.command("run")
@click.argument("stores", nargs=-1, required=True)
@with_options(_MAP_OPTIONS)
@with_options(_REPORT_OPTIONS)
@job_options
def run(
    stores: tuple[str, ...],
    controller: Path | None,
    page: Path | None,
    no_page: bool,
    keep_page_cache: bool,
    job: JobOptions,
    **given: Any,
) -> None:
    """Read the stores of all replicas, and name the first record that differs."""
    check_places((given["cache"], page, job.report), stores)
    view = _view(controller, _broker_of(stores)) if controller else None
    options = AuditOptions(**given, view=view, rate=job.rate, drop_cache=not keep_page_cache)
    with job.running() as (runner, progress):
        report, maps = audit_with_maps(runner, stores, options, progress=progress)
    _hand_out(report, maps, job, page, no_page, stores)


@audit.command("map")
@click.argument("store")
@_output("map")
@with_options(_MAP_OPTIONS)
@offset_option("--cut", "cuts", multiple=True,
              help="Begin a digest here as well: what other replicas confirmed, or begin with.")  # fmt: skip
@job_options
def map_command(
    store: str, output: Path | None, keep_page_cache: bool, job: JobOptions, **given: Any
) -> None:
    """Read one store, and write what a comparison needs to know of it: less than a megabyte."""
    check_places((given["cache"], output), [store])
    options = MapOptions(**given, rate=job.rate, drop_cache=not keep_page_cache)
    with job.running() as (runner, progress):
        found = map_replica(runner, store, options, progress=progress)
    if _write(output, found.to_json() + b"\n"):
        click.echo(f"{output}: {found.records:,} records of {found.name}, {found.first:,} to {found.bound:,}")


class _Pair(click.ParamType):  # type: ignore[type-arg]  # click 8.1 has no arguments here
    """Two numbers, as `0:16777216`."""

    name = "pair"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """Read them; UsageError for anything else."""
        if isinstance(value, tuple):
            return int(value[0]), int(value[1])
        one, _, other = str(value).partition(":")
        if not (one.isdecimal() and other.isdecimal() and max(len(one), len(other)) <= 18):
            self.fail(f"{value!r} is no pair of numbers; write it like 0:16777216", param, ctx)
        return int(one), int(other)


@audit.command("look")
@click.argument("store")
@_output("answer")
@offset_option("--bound", required=True,
              help="Up to where the store was mapped.")  # fmt: skip
@click.option("--list", "lists", type=_Pair(), multiple=True, metavar="FROM:TO",
              help="List the records of this stretch, each with a hash.")  # fmt: skip
@click.option("--show", "shows", type=_Pair(), multiple=True, metavar="OFFSET:BYTES",
              help="Show what stands there: the record, or as many bytes.")  # fmt: skip
@_KEEP_PAGES
@job_options
def look_command(
    store: str,
    output: Path | None,
    bound: int,
    lists: tuple[tuple[int, int], ...],
    shows: tuple[tuple[int, int], ...],
    keep_page_cache: bool,
    job: JobOptions,
) -> None:
    """Answer what a reduce's summary asks of a store, so that the next one names the record that differs."""
    check_places((output,), [store])
    query = Query(store, bound, lists, shows)
    with job.running() as (runner, _):
        found = answer(runner, query, rate=job.rate, drop_cache=not keep_page_cache)
    if _write(output, found.to_json() + b"\n"):
        click.echo(f"{output}: {len(found.records):,} records listed, {len(found.shown)} shown")


@audit.command("reduce")
@click.argument("maps", nargs=-1, required=True, type=LocalPath(dir_okay=False))
@file_option("--look", "looks", multiple=True, help="What a store has answered to an earlier reduce.")
@with_options(_REPORT_OPTIONS)
@job_options
def reduce_command(
    maps: tuple[Path, ...],
    looks: tuple[Path, ...],
    controller: Path | None,
    page: Path | None,
    no_page: bool,
    job: JobOptions,
) -> None:
    """Compare replicas by their maps. A stretch that differs is named, and with answers the record in it.

    What is to be asked of which store is in the summary (`--summary FILE`), under `further`.
    """
    found = [_parsed(path, ReplicaMap.from_json, "make it with `audit map STORE -o FILE`") for path in maps]
    answers = [_parsed(path, Answer.from_json, "make it with `audit look STORE -o FILE`") for path in looks]
    names = {each.identity.broker_name for each in found if each.identity}
    view = _view(controller, names.pop() if len(names) == 1 else None) if controller else None
    with job.running() as (runner, progress):
        options = AuditOptions(view=view, answers=answers)
        report, found = audit_with_maps(runner, found, options, progress=progress)
    _hand_out(report, found, job, page, no_page, ())


audit.add_command(order)


def _parsed(path: Path, parse: Callable[[bytes], T], advice: str) -> T:
    """What a file holds; NoInput if it is something else."""
    try:
        return parse(path.read_bytes())
    except ValueError as error:
        raise NoInput(f"{path}: {error}", advice) from error


def _write(output: Path | None, text: bytes) -> bool:
    """To a file as a whole, or to standard output; returns whether it was a file."""
    if output is None:
        sys.stdout.buffer.write(text)
        sys.stdout.buffer.flush()
        return False
    write_atomically(output, text)
    return True


def _view(path: Path, broker_name: str | None) -> ControllerView:
    advice = "give the output of `brokerset status --json`"
    return _parsed(path, lambda text: parse_view(text, broker_name), advice)


def _broker_of(stores: Sequence[str]) -> str | None:
    """The broker whose replicas these are, if all that know their name agree."""
    from brokerset_spark.stores.layout import look
    from brokerset_spark.stores.opening import open_folder

    names = set()
    for url in stores:
        with closing(open_folder(url)) as folder:
            identity = look(folder).identity
            names |= {identity.broker_name} if identity else set()
    return names.pop() if len(names) == 1 else None


def _hand_out(
    report: Report,
    maps: Sequence[ReplicaMap],
    job: JobOptions,
    page: Path | None,
    no_page: bool,
    stores: Sequence[str],
) -> None:
    """The page first, so that its place is told even if the report ends the process."""
    from brokerset_spark.pages.audit_page import render

    if not no_page:
        path = page or (job.report.with_suffix(".html") if job.report else Path("audit.html"))
        check_places((path,), stores)
        try:
            path.write_text(render(report, maps), encoding="utf-8")
        except OSError as error:
            advice = "choose a place with --page, or --no-page"
            raise JobFailed(f"the page cannot be written: {error}", advice) from error
        click.echo(f"page: {path.resolve()}", err=True)
    if not job.as_json:
        click.echo(str(report.facts["verdict"]))
    job.finish(report)
