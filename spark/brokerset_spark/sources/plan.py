"""What is read of which store: from options and the facts of store folders to pieces for tasks."""

from __future__ import annotations

import glob
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

from brokerset_formats.dledger import ENTRY_HEAD_SIZE
from brokerset_formats.hosts import HOST_SIZE_V6
from brokerset_formats.records import STORE_TIMESTAMP_POSITION, store_timestamp_at
from brokerset_spark.sources.batches import Filter
from brokerset_spark.sources.options import EARLIEST, LATEST, MessageOptions, QueueOffsets, StoreOptions
from brokerset_spark.stores.folder import StoreFolder, open_folder
from brokerset_spark.stores.layout import Log, LogFile, StoreFacts, look
from brokerset_spark.stores.places import check_store, is_stream, local_path
from brokerset_spark.stores.queues import QueueSpan, measure_queue, read_unit
from brokerset_spark.stores.reading import Range, split
from brokerset_spark.stores.tail import Bound, LogEnd, bound_of, find_newer, walk_end

CLOCK_SLACK_MS: Final = 10 * 60 * 1000
"""By how much store times may go back, when a clock is set or another master takes over: files are passed
over for their times only if they are further away."""

_HEAD_SIZE: Final = STORE_TIMESTAMP_POSITION + HOST_SIZE_V6 + 8
_RESUMES_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Piece:
    """What one task reads: ranges of one store, one after the other."""

    url: str
    ranges: tuple[Range, ...]
    wanted: Filter
    broker_name: str | None = None
    epochs: tuple[tuple[int, int], ...] = ()
    missing: tuple[tuple[str, int, int], ...] = ()
    """Ranges of the log that no file holds: path of the file before, begin, end."""


@dataclass(frozen=True, slots=True)
class StorePlan:
    """A store as the sources see it."""

    url: str
    facts: StoreFacts
    broker_name: str | None
    epochs: tuple[tuple[int, int], ...]
    logs: tuple[tuple[Log, bool], ...]
    """Logs in the order of their offsets; whether they have entries of a DLedger."""

    bound: Bound

    @property
    def first(self) -> int:
        """Offset of the first byte."""
        return self.logs[0][0].first if self.logs else 0


def expand(paths: tuple[str, ...]) -> list[str]:
    """Store folders behind paths, globs and URLs; FileNotFoundError, with a hint, for what is no store,
    NotServed for other URLs."""
    found: list[str] = []
    for each in paths:
        if is_stream(check_store(each)):
            found.append(each)
            continue
        path = local_path(each)
        matching = sorted(glob.glob(path)) if glob.has_magic(path) else [path]
        folders = [name for name in matching if Path(name).is_dir()]
        if not folders:
            raise FileNotFoundError(
                f"{each}: no such folder; give the root of a store, which holds commitlog/"
            )
        found += folders
    return list(dict.fromkeys(found))


def open_store(url: str) -> tuple[StoreFolder, StoreFacts]:
    """A store and what there is in it; FileNotFoundError if it is none."""
    folder = open_folder(url)
    facts = look(folder)
    if facts.layout == "empty" and facts.checkpoint is None and not facts.queues:
        if facts.commit_log.problems or folder.files("") or folder.folders(""):
            hint = _hint(folder, url)
        else:
            hint = "it is empty"
        folder.close()
        raise FileNotFoundError(f"{url} is no store: there is no commitlog/ and no dledger-*/ in it; {hint}")
    return folder, facts


def _hint(folder: StoreFolder, url: str) -> str:
    if folder.folders("store"):
        return f"{url}/store looks like one"
    if any(len(each.path) == 20 and each.path.isdigit() for each in folder.files("")):
        return "this looks like a log itself: give the folder above it"
    return "give the folder that storePathRootDir names"


def broker_name_of(options: StoreOptions, facts: StoreFacts) -> str | None:
    """The option, else what the store's identity says."""
    return options.broker_name or (facts.identity.broker_name if facts.identity else None)


def plan_store(
    folder: StoreFolder,
    facts: StoreFacts,
    options: MessageOptions,
    *,
    since: int | None = None,
    bound: Bound | None = None,
) -> StorePlan:
    """How far one store can be read (or `bound`), and which logs of it.

    `since` is where the log was found to end earlier, so that it need not be walked from further back.
    ValueError if the tail cannot be told as asked.
    """
    if options.layout == "commitlog":
        facts = replace(facts, ledger=Log(()), ledger_index=Log(()))
    elif options.layout == "dledger":
        facts = replace(facts, commit_log=Log(()))
    logs = tuple(
        (log, entries) for log, entries in ((facts.commit_log, False), (facts.ledger, True)) if log.files
    )
    if bound is None:
        mode, confirmed = options.tail_bound, options.confirmed_offset
        bound = bound_of(folder, facts, mode=mode, confirmed=confirmed, since=since)
        if logs and bound.end is not None and bound.reason == "end":
            bound = Bound(_behind_damage(folder, logs[-1], bound.end), "end", bound.end)
    epochs = tuple((each.epoch, each.start_offset) for each in (facts.epochs.entries if facts.epochs else ()))
    return StorePlan(facts.url, facts, broker_name_of(options, facts), epochs, logs, bound)


def _behind_damage(folder: StoreFolder, last: tuple[Log, bool], end: LogEnd) -> int:
    """Where the log ends when damage in its last file is not taken for the end."""
    log, entries = last
    for _ in range(_RESUMES_MAX):
        newer = find_newer(folder, log, end, entries=entries)
        if newer < 0:
            break
        end = walk_end(folder, log, newer, entries=entries)
    return end.offset


def plan_pieces(folder: StoreFolder, store: StorePlan, options: MessageOptions) -> list[Piece]:
    """Pieces for the tasks of a batch query. ValueError if files are missing and that is to be told."""
    wanted, start, end = cut(folder, store, options)
    found: list[Piece] = []
    for log, entries in store.logs:
        missing = gaps(log, start, end)
        if missing and options.on_corrupt == "fail" and options.fail_on_data_loss:
            path, begin, until = missing[0]
            raise ValueError(
                f"{store.url}: the log has nothing from {begin} to {until}, behind {path}. Read what there "
                "is with failOnDataLoss=false, or see the gaps with damagedRanges=rows"
            )
        if missing and options.damage_rows:
            found.append(Piece(store.url, (), wanted, store.broker_name, store.epochs, missing))
        ranges = split(
            within(log.files),
            options.split_size,
            entries=entries,
            bound=store.bound.offset,
            start=start,
            end=end,
        )
        found += [Piece(store.url, (each,), wanted, store.broker_name, store.epochs) for each in ranges]
    if (
        options.on_corrupt == "stop"
    ):  # what lies behind the first damage is not wanted: one task knows where that is
        everything = tuple(each for piece in found for each in piece.ranges)
        gone = tuple(each for piece in found for each in piece.missing)
        return [Piece(store.url, everything, wanted, store.broker_name, store.epochs, gone)] if found else []
    return found


def within(files: tuple[LogFile, ...]) -> tuple[LogFile, ...]:
    """The files, none of them longer than to the next one."""
    nexts = [each.base for each in files[1:]] + [2**63 - 1]
    return tuple(
        replace(each, size=min(each.size, following - each.base))
        for each, following in zip(files, nexts, strict=True)
    )


def gaps(log: Log, start: int, end: int) -> tuple[tuple[str, int, int], ...]:
    """Ranges of `[start, end)` that no file of the log holds: path of the file before, begin, end."""
    found = []
    for before, after in pairwise(log.files):
        begin, until = max(before.end, start), min(after.base, end)
        if begin < until:
            found.append((before.path, begin, until))
    return tuple(found)


def cut(folder: StoreFolder, store: StorePlan, options: MessageOptions) -> tuple[Filter, int, int]:
    """The filter with queue offsets in it, and between which offsets of the log files must be read."""
    wanted = options.wanted
    start, end = max(store.first, wanted.start_offset), min(store.bound.offset, wanted.end_offset)
    starts, from_offset = queue_limits(folder, store, options.starting_offsets, wanted, is_start=True)
    ends, _ = queue_limits(folder, store, options.ending_offsets, wanted, is_start=False)
    start = max(start, from_offset)
    if wanted.start_ms > -(2**63) or wanted.end_ms < 2**63 - 1:
        first, last = time_span(folder, store, wanted.start_ms, wanted.end_ms)
        start, end = max(start, first), min(end, last)
    return replace(wanted, queue_starts=starts, queue_ends=ends), start, end


def queue_limits(
    folder: StoreFolder, store: StorePlan, offsets: QueueOffsets | int, wanted: Filter, *, is_start: bool
) -> tuple[tuple[tuple[str, int, int], ...], int]:
    """Limits of queue offsets, and an offset of the log before which none of the wanted messages lies.

    ValueError for a topic, broker or queue that the store does not have.
    """
    if isinstance(offsets, int):
        return (), 0
    problems: list[str] = []
    found: list[tuple[str, int, int]] = []
    places: list[int] = []
    queues = {(each.topic, each.queue_id): each for each in store.facts.queues}
    for topic, brokers in offsets.items():
        broker = store.broker_name or (next(iter(brokers)) if len(brokers) == 1 else None)
        if broker is None:
            problems.append(f"{topic}: name this store's broker with the option brokerName")
            continue
        for queue_id, offset in brokers.get(broker, {}).items():
            queue = queues.get((topic, queue_id))
            if queue is None:
                problems.append(f"{topic}: there is no queue {queue_id} in {store.url}")
                continue
            span = measure_queue(folder, queue, store.first)
            limit = _absolute(offset, span)
            found.append((topic, queue_id, limit))
            unit = read_unit(folder, queue, max(limit, span.first)) if limit < span.end else None
            places.append(unit.offset if unit is not None else store.bound.offset)
    if problems:
        raise ValueError(f"{'starting' if is_start else 'ending'}Offsets: {'; '.join(problems)}")
    covered = {(topic, queue_id) for topic, queue_id, _ in found}
    rest = [key for key in queues if key[0] in wanted.topics and key not in covered]
    only_these = bool(wanted.topics) and not rest and set(wanted.topics) <= {topic for topic, _ in covered}
    return tuple(found), min(places) if is_start and only_these and places else 0


def _absolute(offset: int, span: QueueSpan) -> int:
    return {EARLIEST: span.first, LATEST: span.end}.get(offset, offset)


def time_span(folder: StoreFolder, store: StorePlan, start_ms: int, end_ms: int) -> tuple[int, int]:
    """Between which offsets messages of `[start_ms, end_ms)` can be: whole files, told by their first
    records."""
    first, last = store.first, store.bound.offset
    for log, entries in store.logs:
        for file in log.files:
            time = first_time(folder, file, entries)
            if time is None or file.base >= store.bound.offset:
                continue
            if time + CLOCK_SLACK_MS < start_ms:
                first = max(first, file.base)
            if time - CLOCK_SLACK_MS >= end_ms:
                last = min(last, file.base)
    return first, last


def first_time(folder: StoreFolder, file: LogFile, entries: bool) -> int | None:
    """Store time of the record at a file's beginning; None if that cannot be told."""
    inside = ENTRY_HEAD_SIZE if entries else 0
    raw = bytearray(inside + _HEAD_SIZE)
    try:
        if folder.read_into(file.path, 0, memoryview(raw)) < len(raw):
            return None
    except FileNotFoundError:
        return None
    time = store_timestamp_at(raw, inside)
    return time if time > 0 and any(raw) else None
