"""An audit in one command: look at all replicas, map each, compare, read again what differs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from brokerset_spark.jobs.audit.byte_checks import compare_bytes
from brokerset_spark.jobs.audit.comparing import compare
from brokerset_spark.jobs.audit.controller_view import ControllerView
from brokerset_spark.jobs.audit.drilling import drill
from brokerset_spark.jobs.audit.inspection import Look, join
from brokerset_spark.jobs.audit.mapping import MapOptions, map_sighted
from brokerset_spark.jobs.audit.observation import Observation, look_at
from brokerset_spark.jobs.audit.replica_map import ReplicaMap
from brokerset_spark.jobs.report import NoInput, Report
from brokerset_spark.jobs.running import Progress, Runner, quiet
from brokerset_spark.stores.opening import open_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions:
    """How replicas are audited."""

    confirmed: int | None = None
    view: ControllerView | None = None
    rate: int = 0
    """Bytes per second of each task; 0 for no limit."""

    drop_cache: bool = True
    cache: Path | None = None
    full: bool = False
    looks: Sequence[Look] = ()
    """What replicas of which there is a map only have answered to the `further` of an earlier report."""


def map_replicas(
    runner: Runner, urls: Sequence[str], options: AuditOptions, *, progress: Progress = quiet
) -> list[ReplicaMap]:
    """Map replicas that are at hand together, so that every digest has its counterpart."""
    if len(set(urls)) < len(urls):
        raise NoInput("a store is named twice", "name every replica once")
    with ExitStack() as stack:
        folders = [open_folder(url) for url in urls]
        for folder in folders:
            stack.callback(folder.close)
        sights = [look_at(folder, options.confirmed) for folder in folders]
        cuts = common_cuts(sights)
        found = []
        for folder, sight in zip(folders, sights, strict=True):
            wanted = MapOptions(
                confirmed=options.confirmed,
                cuts=cuts,
                rate=options.rate,
                drop_cache=options.drop_cache,
                cache=options.cache,
                full=options.full,
            )
            found.append(map_sighted(runner, folder, sight, wanted, progress=progress))
        return found


def common_cuts(sights: Sequence[Observation]) -> tuple[int, ...]:
    """Where any of the replicas begins, ends, starts a file or an epoch."""
    found: set[int] = set()
    smallest = min((each.file.size for sight in sights for each in sight.files()), default=0)
    sizes = {each.file.size for sight in sights for each in sight.files()}
    for sight in sights:
        found |= {sight.first, sight.bound}
        found |= {start for _, start in sight.epochs.pairs}
        if len(sizes) > 1:
            found |= {each.file.base for each in sight.files() if each.file.size == smallest}
    return tuple(sorted(found))


def audit(
    runner: Runner,
    sources: Sequence[str | ReplicaMap],
    options: AuditOptions | None = None,
    *,
    progress: Progress = quiet,
) -> Report:
    """Audit stores by their URLs, or maps that were made before. NoInput, OSError as from the stores.

    What differs is read again only where the stores were given, since a map may come from elsewhere. For maps
    the report says in `further` what their stores are to be asked, until `options.looks` has the answers.
    """
    report, _ = audit_with_maps(runner, sources, options, progress=progress)
    return report


def audit_with_maps(
    runner: Runner,
    sources: Sequence[str | ReplicaMap],
    options: AuditOptions | None = None,
    *,
    progress: Progress = quiet,
) -> tuple[Report, list[ReplicaMap]]:
    """The same, and the maps that it was made from."""
    options = options or AuditOptions()
    begun = time.monotonic()
    urls = [each for each in sources if isinstance(each, str)]
    maps = map_replicas(runner, urls, options, progress=progress)
    maps += [each for each in sources if isinstance(each, ReplicaMap)]
    if not maps:
        raise NoInput("no replica to audit", "name the stores of all replicas of one broker")
    maps = with_own_names(maps)
    pairs = compare_bytes(maps)
    local = [pair for pair in pairs if max(pair.one, pair.other) < len(urls)]
    drilled = drill(runner, maps, local, rate=options.rate, drop_cache=options.drop_cache, progress=progress)
    remote = [pair for pair in pairs if min(pair.one, pair.other) >= len(urls)]
    looked, requests = join(maps, remote, options.looks)
    report = compare(maps, options.view, [*drilled, *looked], pairs)
    report.further = [each.to_value() for each in requests]
    report.seconds = time.monotonic() - begun
    return report, maps


def with_own_names(maps: Sequence[ReplicaMap]) -> list[ReplicaMap]:
    """The same; replicas of one name are told apart by their URL."""
    names = [each.name for each in maps]
    return [
        replace(each, name=f"{each.name} ({each.url})")
        if names.count(each.name) > 1 and each.name != each.url
        else each
        for each in maps
    ]
