"""Mapping one replica: plan, tasks, and one `ReplicaMap` out of their results. Digests of files that will not
change any more are kept from one audit to the next.

Such a file is known again by path, size and modification time. After `FULL_READ_MS` it is read again all the
same: bits rot without anybody writing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import orjson

from brokerset_formats.errors import FormatError
from brokerset_spark.jobs.audit.digests import Interval, SegmentDigest, decode_digests, wanted_intervals
from brokerset_spark.jobs.audit.replica import (
    DAMAGES_MAX,
    Damage,
    EpochFacts,
    Observation,
    PlannedFile,
    ReplicaMap,
    observe,
)
from brokerset_spark.jobs.audit.scan import TASK, probe
from brokerset_spark.jobs.running import Progress, Row, Runner, quiet
from brokerset_spark.kernels import Stop
from brokerset_spark.stores.ending import LogWalk
from brokerset_spark.stores.folder import StoreFolder
from brokerset_spark.stores.layout import LogFile, look
from brokerset_spark.stores.opening import open_folder
from brokerset_spark.stores.reading import Range
from brokerset_spark.stores.searching import find_start

GONE: Final = "GONE"
CACHE_VERSION: Final = 1
FULL_READ_MS: Final = 7 * 24 * 3600 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class MapOptions:
    """How a replica is mapped."""

    confirmed: int | None = None
    """What the brokers confirmed; None for what the store tells."""

    cuts: tuple[int, ...] = ()
    """Offsets at which digests are divided as well: where other replicas begin, change epochs, or end."""

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


@dataclass(slots=True)
class _DigestCache:
    """What is known of the files of stores: URL -> path -> answer of the task that read it, and when."""

    path: Path
    now_ms: int
    stores: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read the file; a missing, damaged or foreign one is an empty cache."""
        try:
            value = orjson.loads(self.path.read_bytes())
        except (FileNotFoundError, orjson.JSONDecodeError):
            value = None
        if isinstance(value, dict) and value.get("cacheVersion") == CACHE_VERSION:
            self.stores = value["stores"] if isinstance(value.get("stores"), dict) else {}

    def forget(self, url: str, paths: set[str]) -> None:
        """Keep of a store what is known of these files; others are gone."""
        mine = self.stores.get(url, {})
        self.stores[url] = {path: known for path, known in mine.items() if path in paths}

    def save(self) -> None:
        """Replace the file as a whole."""
        part = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        with part.open("wb") as stream:
            stream.write(orjson.dumps({"cacheVersion": CACHE_VERSION, "stores": self.stores}))
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(self.path)

    def find(
        self, url: str, file: LogFile, intervals: list[Interval], epochs: list[int]
    ) -> dict[str, Any] | None:
        """What the task would answer; None if it must read."""
        known = self.stores.get(url, {}).get(file.path)
        if known is None or (known.get("size"), known.get("mtimeMs")) != (file.size, file.mtime_ms):
            return None
        try:
            age = self.now_ms - int(known["readAtMs"])
            answer: dict[str, Any] = known["answer"]
            have = {(each.start, each.end) for each in decode_digests(answer["digests"])}
            checked = set(known["epochs"])
        except (KeyError, TypeError, ValueError, FormatError):
            return None
        if not 0 <= age < FULL_READ_MS or not have.issuperset(intervals) or not checked.issuperset(epochs):
            return None
        return answer

    def keep(self, url: str, file: LogFile, epochs: list[int], answer: dict[str, Any]) -> None:
        """Remember an answer, if it found nothing wrong."""
        if not (answer["gone"] or answer["damages"] or answer["unresolved"]):
            self.stores.setdefault(url, {})[file.path] = {
                "size": file.size,
                "mtimeMs": file.mtime_ms,
                "readAtMs": self.now_ms,
                "epochs": epochs,
                "answer": answer,
            }


def map_replica(
    runner: Runner, url: str, options: MapOptions | None = None, *, progress: Progress = quiet
) -> ReplicaMap:
    """Map the store at a URL. NoInput if there is none; OSError if it cannot be read."""
    options = options or MapOptions()
    with closing(open_folder(url)) as folder:
        observed = observe(folder, options.confirmed)
        (found,) = map_observed(runner, [(folder, observed)], options, progress=progress)
        return found


class _Mapping:
    """One replica: what is to be read of it, and what was."""

    def __init__(
        self, folder: StoreFolder, observed: Observation, options: MapOptions, cache: _DigestCache | None
    ) -> None:
        self._folder, self._observed, self._cache = folder, observed, cache
        self._answers: dict[int, dict[str, Any]] = {}
        self._planned = {each.file.base: each for each in observed.files()}
        self.rows: dict[int, Row] = {}
        bound, starts = observed.known.bound, [start for _, start in observed.known.epochs.pairs]
        for base, each in self._planned.items():
            end = min(each.file.end, bound)
            intervals = wanted_intervals(base, end, epoch_starts=starts, cuts=options.cuts, bound=bound)
            epochs = [start for start in starts if base <= start < end] if not each.entries else []
            known = None
            if cache is not None and each.sealed and not options.full:
                known = cache.find(folder.url, each.file, intervals, epochs)
            if known is not None:
                self._answers[base] = known
                continue
            self.rows[base] = {
                "url": folder.url,
                "path": each.file.path,
                "base": base,
                "size": each.file.size,
                "entries": each.entries,
                "bound": bound,
                "intervals": intervals,
                "epochs": epochs,
                "rate": options.rate,
                "dropCache": options.drop_cache,
            }
        self._cached = sum(int(known["bytes"]) for known in self._answers.values())

    @property
    def bytes(self) -> int:
        """That are to be read."""
        return sum(min(base + row["size"], row["bound"]) - base for base, row in self.rows.items())

    def take(self, answer: dict[str, Any]) -> None:
        """Of the task that has read a file."""
        base = answer["base"]
        self._answers[base] = answer
        if self._cache is not None and self._planned[base].sealed:
            file, epochs = self._planned[base].file, self.rows[base]["epochs"]
            self._cache.keep(self._folder.url, file, epochs, answer)

    def finish(self) -> ReplicaMap:
        """The map, when all tasks have answered."""
        if self._cache is not None:
            self._cache.forget(self._folder.url, {each.file.path for each in self._planned.values()})
        found = _joined(self._folder, self._observed, self._planned, self._answers)
        return replace(found, bytes_cached=self._cached, bytes_read=found.bytes_read - self._cached)


def map_observed(
    runner: Runner,
    observed: Sequence[tuple[StoreFolder, Observation]],
    options: MapOptions,
    *,
    progress: Progress = quiet,
) -> list[ReplicaMap]:
    """Map stores that were observed, all in one step."""
    begun = time.monotonic()
    now_ms = time.time_ns() // 1_000_000 if options.now_ms is None else options.now_ms
    cache = _DigestCache(options.cache, now_ms) if options.cache else None
    mappings = [_Mapping(folder, each, options, cache) for folder, each in observed]
    rows = [row | {"replica": number} for number, each in enumerate(mappings) for row in each.rows.values()]
    done, total = 0, sum(each.bytes for each in mappings)
    label = f"mapping {', '.join(folder.url for folder, _ in observed)}"
    progress(label, done, total)
    for result in runner.run(TASK, rows):
        mappings[result.row["replica"]].take(result.row)
        done += result.row["end"] - result.row["base"]
        progress(label, done, total)
    found = [each.finish() for each in mappings]
    if cache is not None:
        cache.save()
    seconds = round(time.monotonic() - begun, 3)
    return [replace(each, seconds=seconds) for each in found]


def _joined(
    folder: StoreFolder,
    observed: Observation,
    planned: dict[int, PlannedFile],
    answers: dict[int, dict[str, Any]],
) -> ReplicaMap:
    """One map out of the answers of the tasks."""
    facts = observed.facts
    gone = any(each["gone"] for each in answers.values())
    first = look(folder).first if gone else facts.first
    damages: list[Damage] = []
    digests: list[SegmentDigest] = []
    sound: set[int] = set()
    terms: list[tuple[int, int]] = []
    reached = max(first, 0)
    open_end: tuple[int, str, bool] | None = None
    records = read = 0
    for base, answer in sorted(answers.items()):
        path = planned[base].file.path
        if answer["gone"]:
            damages += [Damage(base, answer["end"], GONE, path)] if base >= first else []
            continue
        if answer["records"] and open_end is not None:
            damages.append(Damage(open_end[0], reached, open_end[1], _path(planned, open_end[0])))
            open_end = None
        read += int(answer["bytes"])
        records += int(answer["records"])
        damages += [Damage(begin, end, why, path) for begin, end, why in answer["damages"]]
        digests += decode_digests(answer["digests"])
        sound.update(answer["sound"])
        terms += [(term, start) for term, start in answer["terms"] if not terms or terms[-1][0] != term]
        reached = answer["end"]
        open_end = open_end or answer["unresolved"]
    bound = beyond = min(observed.known.bound, reached)
    if open_end is not None:
        begin, why, straddles = open_end
        following = -1 if straddles else _behind(folder, observed, begin)
        broken = not straddles and why != Stop.EMPTY.name  # bytes are there, and wrong: not a truncated log
        if observed.known.confirmed is not None and (following >= 0 or broken):
            damages.append(Damage(begin, max(following, bound), why, _path(planned, begin)))
            beyond = max(following, begin)
        else:
            bound = beyond = begin
    last = _last(folder, observed, beyond)
    last_at_ms = time.time_ns() // 1_000_000
    damages = sorted(each for each in damages if each.end > first)
    epochs = observed.known.epochs
    if facts.ledger.files:
        epochs = EpochFacts(tuple(terms), "terms", epochs.problems)
    inside = (each._replace(end=min(each.end, bound)) for each in digests if first <= each.start < bound)
    return replace(
        observed.known,
        epochs=epochs,
        bad_boundaries=_bad_boundaries(folder, observed, sound, damages, range(first + 1, last), bound),
        first=first,
        last=last,
        bound=bound,
        damages=tuple(damages[:DAMAGES_MAX]),
        damages_total=len(damages),
        records=records,
        digests=tuple(sorted(set(inside))),
        last_at_ms=last_at_ms,
        bytes_read=read,
    )


def _path(planned: dict[int, PlannedFile], offset: int) -> str:
    return next((p.file.path for p in planned.values() if p.file.base <= offset < p.file.end), "")


def _range(each: PlannedFile, start: int) -> Range:
    return Range(each.file.path, each.file.base, each.file.size, start, each.file.end, each.entries)


def _behind(folder: StoreFolder, observed: Observation, offset: int) -> int:
    """The first sure record behind a bad one in its file, also behind the bound; -1 if there is none."""
    each = observed.file_at(offset)
    following = -1 if each is None else find_start(folder, _range(each, offset), offset + 1)
    return following if each is not None and following < each.file.end else -1


def _last(folder: StoreFolder, observed: Observation, beyond: int) -> int:
    """Where the log ends, walking from a place where a record begins or the log ends."""
    if observed.end is not None:
        return observed.end.offset
    log, entries = observed.facts.current
    if beyond < log.first:
        log, entries = observed.facts.logs[0]
    return LogWalk(folder, log, entries, crc=True).walk(max(beyond, log.first)).offset


def _bad_boundaries(
    folder: StoreFolder,
    observed: Observation,
    sound: set[int],
    damages: list[Damage],
    inside: range,
    bound: int,
) -> tuple[int, ...]:
    """Starts of epochs inside the log where no record begins; damage that lies there is found as such."""
    found = set()
    for _, start in () if observed.facts.ledger.files else observed.known.epochs.pairs:
        each = observed.file_at(start)
        damaged = any(damage.begin <= start < damage.end for damage in damages)
        if start not in inside or start in sound or damaged or each is None or start == each.file.base:
            continue
        stands = None if start < bound else probe(folder, _range(each, start), start)
        if stands is None or not (stands.found or stands.stop is Stop.BLANK):
            found.add(start)
    return tuple(sorted(found))
