"""An audit: observe all replicas, map each, compare the maps, read again what differs, and report.

The reduce (`compare`) is pure and needs nothing but maps.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import orjson

from brokerset_formats.errors import FormatError
from brokerset_spark.jobs.audit.comparison import PairBytes, compare_bytes, elections, matrix
from brokerset_spark.jobs.audit.findings import (
    ControllerView,
    check_bytes,
    check_confirmed,
    check_epochs,
    check_identities,
    check_own_log,
    check_truncations,
    read_of,
    uncompared,
    verdict_of,
)
from brokerset_spark.jobs.audit.mapping import MapOptions, map_observed
from brokerset_spark.jobs.audit.records import Answer, PairRecords, join, read_again
from brokerset_spark.jobs.audit.replica import Observation, ReplicaMap, observe
from brokerset_spark.jobs.report import NoInput, Report
from brokerset_spark.jobs.running import Progress, Runner, quiet
from brokerset_spark.json_values import to_value
from brokerset_spark.stores.opening import open_folder

JOB: Final = "audit"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions(MapOptions):
    """How replicas are audited: each is mapped with the same options."""

    view: ControllerView | None = None
    answers: Sequence[Answer] = ()
    """What replicas of which there is a map only have answered to the `further` of an earlier report."""


def map_replicas(
    runner: Runner, urls: Sequence[str], options: MapOptions, *, progress: Progress = quiet
) -> list[ReplicaMap]:
    """Map replicas that are at hand together, so that every digest has its counterpart."""
    if len(set(urls)) < len(urls):
        raise NoInput("a store is named twice", "name every replica once")
    with ExitStack() as stack:
        folders = [stack.enter_context(closing(open_folder(url))) for url in urls]
        observed = [observe(folder, options.confirmed) for folder in folders]
        options = replace(options, cuts=common_cuts(observed))
        pairs = list(zip(folders, observed, strict=True))
        return map_observed(runner, pairs, options, progress=progress)


def common_cuts(observed: Sequence[Observation]) -> tuple[int, ...]:
    """Where any of the replicas begins, ends, starts a file or an epoch."""
    files = [each.file for replica in observed for each in replica.files()]
    sizes = {each.size for each in files}
    found = {each.base for each in files if each.size == min(sizes)} if len(sizes) > 1 else set()
    for each in observed:
        found |= {each.facts.first, each.known.bound, *(start for _, start in each.known.epochs.pairs)}
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
    the report says in `further` what their stores are to be asked, until `options.answers` has the answers.
    """
    return audit_with_maps(runner, sources, options, progress=progress)[0]


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
    read = read_again(
        runner, maps, local, rate=options.rate, drop_cache=options.drop_cache, progress=progress
    )
    remote = [pair for pair in pairs if min(pair.one, pair.other) >= len(urls)]
    answered, queries = join(maps, remote, options.answers)
    report = compare(maps, options.view, [*read, *answered], pairs)
    report.further = [asdict(each) for each in queries]
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


# -- the reduce ------------------------------------------------------------------------------------------


def compare(
    maps: Sequence[ReplicaMap],
    view: ControllerView | None = None,
    read: Sequence[PairRecords] = (),
    pairs: Sequence[PairBytes] | None = None,
) -> Report:
    """All checks. `read` is what was read again by record; `pairs` saves comparing the digests again."""
    pairs = compare_bytes(maps) if pairs is None else pairs
    cuts, elected = matrix(maps), elections(maps)
    report = Report(JOB, inputs={"stores": [each.url for each in maps]})
    for finding in (
        *check_identities(maps),
        *check_epochs(maps, view),
        *check_truncations(maps, cuts, view),
        *check_confirmed(maps, view),
        *check_own_log(maps),
        *check_bytes(maps, pairs, read),
    ):
        report.add(finding)
    gaps = [gap for pair in pairs for gap in uncompared(pair, read)]
    report.bytes_read = sum(each.bytes_read for each in maps)
    report.counters["records"] = sum(each.records for each in maps)
    report.counters["bytesFromCache"] = sum(each.bytes_cached for each in maps)
    report.counters["bytesNotCompared"] = sum(end - start for start, end in gaps)
    names = [each.name for each in maps]
    report.facts = {
        "replicas": [_replica(each, view) for each in maps],
        "pairs": [_pair(names, pair, read) for pair in pairs],
        "matrix": [
            to_value(each) | {"replica": names[each.replica], "master": names[each.master]} for each in cuts
        ],
        "elections": [to_value(each) | {"candidate": names[each.candidate]} for each in elected],
        "controller": None
        if view is None
        else {"brokerName": view.broker_name, "masterId": view.master_id, "masterEpoch": view.master_epoch,
              "syncStateSet": sorted(view.in_sync)},
        "verdict": verdict_of(maps, report, pairs, elected),
    }  # fmt: skip
    return report


def _replica(each: ReplicaMap, view: ControllerView | None) -> dict[str, Any]:
    number = each.identity.broker_id if each.identity else None
    known = ("name", "url", "layout", "first", "last", "confirmed", "confirmed_by", "bound", "records",
             "written", "damages", "damages_total", "bytes_read")  # fmt: skip
    return to_value(each, *known) | {
        "brokerId": number,
        "epochs": [list(pair) for pair in each.epochs.pairs],
        "epochsFrom": each.epochs.source,
        "isMaster": None if view is None else number == view.master_id,
        "inSync": None if view is None else number in view.in_sync,
        "bytesFromCache": each.bytes_cached,
    }


def _pair(names: Sequence[str], pair: PairBytes, read: Sequence[PairRecords]) -> dict[str, Any]:
    found = read_of(pair, read)
    return {
        "one": names[pair.one],
        "other": names[pair.other],
        "from": pair.start,
        "to": pair.limit,
        "differing": [list(each) for each in pair.differing],
        "uncovered": [list(each) for each in pair.uncovered],
        "notCompared": sum(end - start for start, end in uncompared(pair, read)),
        "firstDifference": asdict(found.first) if found is not None and found.first is not None else None,
        "recordsThatDiffer": found.records if found is not None else None,
    }


def parse_view(data: bytes, broker_name: str | None) -> ControllerView:
    """Read what `brokerset status --json` wrote, or one object with `masterEpoch` and `syncStateSet`.

    `broker_name` chooses among several groups. FormatError if it is neither, or the broker is not in it.
    """
    try:
        value = orjson.loads(data)
        groups: list[dict[str, Any]] = value.get("groups", [value])
        found = [each for each in groups if broker_name in (None, each.get("brokerName"))]
        if not found and len(groups) == 1 and "brokerName" not in groups[0]:
            found = groups
        if len(found) != 1:
            names = ", ".join(str(each.get("brokerName")) for each in groups)
            raise FormatError(f"{len(found)} groups fit broker {broker_name}; the view has {names or 'none'}")
        (group,) = found
        return ControllerView(
            str(group.get("brokerName") or broker_name or ""),
            None if group.get("masterId") is None else int(group["masterId"]),
            int(group["masterEpoch"]),
            frozenset(map(int, group["syncStateSet"])),
        )
    except FormatError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise FormatError(f"no view of the controllers: {error!r}") from error
