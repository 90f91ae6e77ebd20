"""Mapping one replica: plan, tasks, and one `ReplicaMap` out of what they say."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from brokerset_spark.jobs.audit.cache import DigestCache
from brokerset_spark.jobs.audit.digests import SegmentDigest, decode_digests
from brokerset_spark.jobs.audit.epoch_facts import EpochFacts
from brokerset_spark.jobs.audit.intervals import wanted_intervals
from brokerset_spark.jobs.audit.observation import Observation, PlannedFile, look_at, small_problems
from brokerset_spark.jobs.audit.replica_map import DAMAGES_MAX, Damage, ReplicaMap
from brokerset_spark.jobs.audit.scanning import TASK, begins_record
from brokerset_spark.jobs.running import Progress, Runner, quiet
from brokerset_spark.kernels import Stop
from brokerset_spark.stores.ending import walk_end
from brokerset_spark.stores.folder import StoreFolder
from brokerset_spark.stores.layout import look
from brokerset_spark.stores.opening import open_folder
from brokerset_spark.stores.reading import Range
from brokerset_spark.stores.searching import find_start

GONE: Final = "GONE"


@dataclass(frozen=True, slots=True, kw_only=True)
class MapOptions:
    """How a replica is mapped."""

    confirmed: int | None = None
    """What the brokers confirmed; None for what the store tells."""

    cuts: tuple[int, ...] = ()
    """Offsets at which digests are cut as well: where other replicas begin, change epochs, or end."""

    rate: int = 0
    """Bytes per second of each task; 0 for no limit."""

    drop_cache: bool = True
    """Whether pages are dropped from the page cache after reading: a serving broker wants it for itself."""

    cache: Path | None = None
    """File with the digests of sealed files."""

    full: bool = False
    """Read everything, whatever the cache knows."""

    now_ms: int | None = None
    """Time by which the cache's age is told; None for the clock."""


def map_replica(
    runner: Runner, url: str, options: MapOptions | None = None, *, progress: Progress = quiet
) -> ReplicaMap:
    """Map the store at a URL. NoInput if there is none; OSError if it cannot be read."""
    options = options or MapOptions()
    folder = open_folder(url)
    try:
        return map_sighted(runner, folder, look_at(folder, options.confirmed), options, progress=progress)
    finally:
        folder.close()


def map_sighted(
    runner: Runner,
    folder: StoreFolder,
    sight: Observation,
    options: MapOptions,
    *,
    progress: Progress = quiet,
) -> ReplicaMap:
    """Map a store that was looked at."""
    begun = time.monotonic()
    now_ms = time.time_ns() // 1_000_000 if options.now_ms is None else options.now_ms
    cache = DigestCache.load(options.cache) if options.cache else None
    url = folder.url
    answers: dict[int, dict[str, Any]] = {}
    rows: list[dict[str, Any]] = []
    planned = {each.file.base: each for each in sight.files()}
    starts = [start for _, start in sight.epochs.pairs]
    done = cached = 0
    for base, each in planned.items():
        end = min(each.file.end, sight.bound)
        intervals = wanted_intervals(base, end, epoch_starts=starts, cuts=options.cuts, bound=sight.bound)
        epochs = [start for start in starts if base <= start < end] if not each.entries else []
        known = None
        if cache is not None and each.sealed and not options.full:
            known = cache.find(url, each.file, intervals, epochs, now_ms)
        if known is not None:
            answers[base] = known
            cached += int(known["bytes"])
            continue
        rows.append(
            {
                "url": url,
                "path": each.file.path,
                "base": base,
                "size": each.file.size,
                "entries": each.entries,
                "bound": sight.bound,
                "intervals": intervals,
                "epochs": epochs,
                "rate": options.rate,
                "dropCache": options.drop_cache,
            }
        )
    total = sum(min(row["base"] + row["size"], sight.bound) - row["base"] for row in rows)
    asked = {row["base"]: row["epochs"] for row in rows}
    progress(f"mapping {url}", 0, total)
    for result in runner.run(TASK, rows):
        answer = result.row
        answers[answer["base"]] = answer
        done += answer["end"] - answer["base"]
        progress(f"mapping {url}", done, total)
        each = planned[answer["base"]]
        if (
            cache is not None
            and each.sealed
            and not (answer["gone"] or answer["damages"] or answer["unresolved"])
        ):
            cache.keep(url, each.file, asked[answer["base"]], answer, now_ms)
    if cache is not None:
        cache.forget_others(url, {each.file.path for each in planned.values()})
        cache.save()
    found = _joined(folder, sight, planned, answers)
    return replace(
        found, bytes_cached=cached, bytes_read=found.bytes_read - cached, seconds=time.monotonic() - begun
    )


def _joined(
    folder: StoreFolder,
    sight: Observation,
    planned: dict[int, PlannedFile],
    answers: dict[int, dict[str, Any]],
) -> ReplicaMap:
    """One map out of the answers of the tasks."""
    first = sight.first
    if any(answers[base]["gone"] for base in answers):
        now = look(folder)
        first = now.commit_log.first if now.commit_log.files else now.ledger.first
    damages: list[Damage] = []
    digests: list[SegmentDigest] = []
    sound: set[int] = set()
    terms: list[tuple[int, int]] = []
    reached = max(first, 0)
    open_end: tuple[int, str, bool] | None = None
    records = read = damages_total = 0
    for base in sorted(answers):
        answer, each = answers[base], planned[base]
        if answer["gone"]:
            if base >= first:
                damages.append(Damage(base, answer["end"], GONE, each.file.path))
            continue
        read += int(answer["bytes"])
        if answer["records"] and open_end is not None:
            damages.append(Damage(open_end[0], reached, open_end[1], _path(planned, open_end[0])))
            open_end = None
        records += int(answer["records"])
        damages += [Damage(begin, end, why, each.file.path) for begin, end, why in answer["damages"]]
        digests += decode_digests(answer["digests"])
        sound.update(answer["sound"])
        terms += [(term, start) for term, start in answer["terms"] if not terms or terms[-1][0] != term]
        reached = answer["end"]
        if open_end is None and answer["unresolved"] is not None:
            begin, why, straddles = answer["unresolved"]
            open_end = (begin, why, straddles)
    bound = min(sight.bound, reached)
    beyond = bound
    if open_end is not None:
        begin, why, straddles = open_end
        following = -1 if straddles else _behind(folder, sight, begin)
        broken = (
            not straddles and why != Stop.EMPTY.name
        )  # bytes are there, and wrong: not a log that was cut
        if sight.confirmed is not None and (following >= 0 or broken):
            damages.append(Damage(begin, max(following, bound), why, _path(planned, begin)))
            beyond = max(following, begin)
        else:
            bound = beyond = begin
    digests = [each._replace(end=min(each.end, bound)) for each in digests if first <= each.start < bound]
    last = _last(folder, sight, beyond)
    at_ms = time.time_ns() // 1_000_000
    damages = [each for each in damages if each.end > first]
    damages_total = len(damages)
    epochs = sight.epochs
    if sight.facts.ledger.files:
        epochs = EpochFacts(tuple(terms), "terms", epochs.problems)
    facts = sight.facts
    identity = facts.identity
    return ReplicaMap(
        url=folder.url,
        name=f"{identity.broker_name}/{identity.broker_id}" if identity else folder.url,
        layout=facts.layout,
        identity=identity,
        epochs=epochs,
        bad_boundaries=_bad_boundaries(folder, sight, sound, damages, first, bound, last),
        file_sizes=tuple(sorted({each.size for each in (*facts.commit_log.files, *facts.ledger.files)})),
        first=first,
        last=last,
        confirmed=sight.confirmed,
        confirmed_by=sight.confirmed_by,
        bound=bound,
        written=sight.written,
        leftover=sight.leftover,
        checkpoint=_checkpoint(sight),
        damages=tuple(sorted(damages)[:DAMAGES_MAX]),
        damages_total=damages_total,
        problems=small_problems(facts),
        records=records,
        digests=tuple(sorted(set(digests))),
        confirmed_at_ms=sight.confirmed_at_ms,
        last_at_ms=at_ms,
        bytes_read=read,
    )


def _path(planned: dict[int, PlannedFile], offset: int) -> str:
    return next((p.file.path for p in planned.values() if p.file.base <= offset < p.file.end), "")


def _behind(folder: StoreFolder, sight: Observation, offset: int) -> int:
    """The first sure record behind a bad one in its file, also behind the bound; -1 if there is none."""
    each = sight.file_at(offset)
    if each is None:
        return -1
    file = each.file
    wanted = Range(file.path, file.base, file.size, offset, file.end, each.entries)
    following = find_start(folder, wanted, offset + 1)
    return following if following < file.end else -1


def _last(folder: StoreFolder, sight: Observation, beyond: int) -> int:
    """Where the log ends, walking from a place where a record begins or the log ends."""
    if sight.end is not None:
        return sight.end.offset
    log, entries = sight.log, bool(sight.facts.ledger.files)
    if beyond < log.first and sight.facts.commit_log.files:
        log, entries = sight.facts.commit_log, False
    return walk_end(folder, log, max(beyond, log.first), entries=entries, crc=True).offset


def _bad_boundaries(
    folder: StoreFolder,
    sight: Observation,
    sound: set[int],
    damages: list[Damage],
    first: int,
    bound: int,
    last: int,
) -> tuple[int, ...]:
    """Starts of epochs inside the log where no record begins; damage that lies there is told as such."""
    found = []
    for _, start in sight.epochs.pairs:
        if not first < start < last or start in sound or sight.facts.ledger.files:
            continue
        if any(each.begin <= start < each.end for each in damages):
            continue
        each = sight.file_at(start)
        if each is None or start == each.file.base:
            continue
        file = each.file
        if start < bound or not begins_record(folder, file.path, file.base, file.size, start, entries=False):
            found.append(start)
    return tuple(sorted(set(found)))


def _checkpoint(sight: Observation) -> dict[str, int]:
    stored = sight.facts.checkpoint
    if stored is None:
        return {}
    found = {
        "physicMsgTimestamp": stored.physic_msg_timestamp,
        "logicsMsgTimestamp": stored.logics_msg_timestamp,
        "indexMsgTimestamp": stored.index_msg_timestamp,
        "masterFlushedOffset": stored.master_flushed_offset,
        "confirmPhyOffset": stored.confirm_phy_offset,
    }
    if stored.marks is not None:
        found["flushedOffset"] = stored.marks.flushed_offset
    return found
