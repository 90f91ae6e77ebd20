"""Where an export begins and ends, and which ranges its tasks read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Final

from brokerset_spark.jobs.export.options import ExportOptions
from brokerset_spark.jobs.report import JobFailed, NoInput
from brokerset_spark.sources.batches import Filter, reason_of
from brokerset_spark.sources.options import MessageOptions
from brokerset_spark.sources.plan import (
    StorePlan,
    cut,
    follow_text,
    held_back_text,
    open_store,
    owner_of,
    plan_store,
    within,
)
from brokerset_spark.stores.folder import StoreFolder
from brokerset_spark.stores.layout import StoreFacts
from brokerset_spark.stores.reading import Range, gaps, split

TASKS_MAX: Final = 100_000
"""Tasks of one export; each is a line of its plan."""


@dataclass(frozen=True, slots=True)
class Told:
    """Something about the end of the log that the report says, whatever the tasks find."""

    code: str
    """`torn-tail`, `held-back`, `tail-missing`; `hole` explains damage that a task finds."""

    text: str
    file: str
    begin: int
    end: int
    is_damage: bool = False
    """Whether it counts as damage: messages are surely lost."""


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
    told: tuple[Told, ...] = ()
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
    ranges: list[Range] = []
    missing: list[tuple[str, int, int]] = []
    for log, entries in store.logs:  # an earlier export ended where a record begins
        found = split(within(log.files), options.split_size, entries=entries, bound=end, start=start)
        exact, until = store.bound.exact, store.bound.offset
        ranges += [
            replace(each, bound=until, exact_start=each.start == since, exact_bound=exact) for each in found
        ]
        missing += gaps(log, start, end)
    if len(ranges) > TASKS_MAX:
        raise JobFailed(f"{len(ranges)} tasks, more than {TASKS_MAX}", "give a larger --split-size")
    return Plan(
        identity,
        start,
        max(start, end),
        store.bound.reason,
        wanted,
        tuple(missing),
        tuple(ranges),
        store.epochs,
        tuple(_told(store, start, end)),
    )


def _told(store: StorePlan, start: int, end: int) -> Iterator[Told]:
    bound, path = store.bound, store.logs[-1][0].files[-1].path if store.logs else ""
    if bound.end is not None:
        for hole in bound.end.holes:
            if start <= hole.begin < end:
                yield Told("hole", follow_text(bound.end.behind), hole.path, hole.begin, hole.end)
    if end < bound.offset:
        return
    if bound.lost is not None:
        lost = bound.lost
        yield Told("tail-missing", lost.text(), path, lost.begin, lost.end, is_damage=not lost.crash)
    if bound.held_back:
        text = f"{held_back_text(bound)}; if no broker has it open, --tail-bound end takes them"
        yield Told("held-back", text, path, bound.offset, bound.offset)
    if bound.end is not None and bound.end.debris:
        reason = reason_of(bound.end.stop)
        text = (
            f"no record can be read at {bound.end.offset} ({reason}), and none follows, but other bytes than "
            "zeros: a record was torn or truncated there, or its beginning is damaged"
        )
        yield Told("torn-tail", text, path, bound.end.offset, bound.end.offset)


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
