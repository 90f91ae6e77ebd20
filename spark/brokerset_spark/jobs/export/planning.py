"""Where an export begins and ends, and which ranges its tasks read."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Final

from brokerset_spark.jobs.export.options import ExportOptions
from brokerset_spark.jobs.report import JobFailed, NoInput
from brokerset_spark.sources.batches import Filter
from brokerset_spark.sources.options import MessageOptions
from brokerset_spark.sources.plan import (
    EndNote,
    cut,
    end_notes,
    make_pieces,
    open_store,
    plan_store,
)
from brokerset_spark.stores.folder import StoreFolder
from brokerset_spark.stores.layout import StoreFacts
from brokerset_spark.stores.owner import owner_of
from brokerset_spark.stores.reading import Range, gaps

TASKS_MAX: Final = 100_000
"""Tasks of one export; each is a line of its plan."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is read. Offsets are those of the log."""

    store: dict[str, Any]
    """Whose it is: `clusterName`, `brokerName`, `brokerId`, `layout`."""

    start: int
    end: int
    bound: str
    """Why it ends there; see `stores.tail.Bound`."""

    wanted: Filter
    missing: tuple[tuple[str, int, int], ...]
    """Ranges that no file holds: path of the file before, begin, end."""

    ranges: tuple[Range, ...] = ()
    epochs: tuple[tuple[int, int], ...] = ()
    told: tuple[EndNote, ...] = ()
    """What is to be said about the end of the log."""


def plan_export(url: str, options: ExportOptions, since: int | None) -> Plan:
    """Look at the store; `since` is where an earlier export ended. NoInput without a store, JobFailed if the
    earlier end is not in it."""
    try:
        folder, facts = open_store(url)
    except FileNotFoundError as error:
        advice = "give the folder that storePathRootDir names, or a broker's stream"
        raise NoInput(str(error), advice) from error
    with closing(folder):
        return _plan(folder, facts, options, since)


def _plan(folder: StoreFolder, facts: StoreFacts, options: ExportOptions, since: int | None) -> Plan:
    cluster, broker, number = owner_of(folder, facts)
    broker = options.broker_name or broker
    identity = {"clusterName": cluster, "brokerName": broker, "brokerId": number, "layout": facts.layout}
    wanted = options.wanted
    if since is not None:
        wanted = replace(wanted, start_offset=max(wanted.start_offset, since))
    reading = MessageOptions(
        paths=(facts.url,),
        broker_name=broker,
        wanted=wanted,
        split_size=options.split_size,
        tail_bound=options.tail_bound,
        confirmed_offset=options.confirmed_offset,
    )
    store = plan_store(folder, facts, reading)
    if since is not None:
        _check_since(facts.url, since, store.first, store.bound.offset, options)
    wanted, start, end = cut(folder, store, reading)
    exact_start = start == since  # an earlier export ended where a record begins
    pieces = make_pieces(
        store, reading, wanted, start, end, (), exact_start=exact_start, exact_bound=store.bound.exact
    )
    ranges = tuple(each for piece in pieces for each in piece.ranges)
    advice = "; if no broker has it open, --tail-bound end takes them"
    notes = (
        replace(each, text=each.text + advice) if each.code == "held-back" else each
        for each in end_notes(store, start, end)
    )
    if len(ranges) > TASKS_MAX:
        raise JobFailed(f"{len(ranges)} tasks, more than {TASKS_MAX}", "give a larger --split-size")
    missing = tuple(gap for log, _ in store.logs for gap in gaps(log, start, end))
    until, why = max(start, end), store.bound.reason
    return Plan(identity, start, until, why, wanted, missing, ranges, store.epochs, tuple(notes))


def _check_since(url: str, since: int, first: int, end: int, options: ExportOptions) -> None:
    if since > end:
        raise JobFailed(
            f"{url} can be read up to {end}, but the earlier export went to {since}",
            "export from the replica that was exported before, or wait until this one has caught up",
        )
    if since < first and options.on_corrupt == "fail":
        raise JobFailed(
            f"{url} begins at {first} now: the {first - since} bytes behind {since}, where the earlier "
            "export ended, have expired",
            "--on-corrupt skip goes on with what there is; or export everything into a new folder",
        )
