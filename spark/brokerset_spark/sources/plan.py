"""What is read of which store: from options and the facts of store folders to pieces for tasks."""

from __future__ import annotations

import glob
import logging
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from brokerset_formats.dledger import ENTRY_HEAD_SIZE
from brokerset_formats.hosts import HOST_SIZE_V6
from brokerset_formats.records import STORE_TIMESTAMP_POSITION, store_timestamp_at
from brokerset_spark.sources.batches import Filter, reason_of
from brokerset_spark.sources.by_queue import GROUP_BYTES, UnitGroup, has_record, plan_queues, readable_end
from brokerset_spark.sources.options import EARLIEST, LATEST, MessageOptions, QueueOffsets, StoreOptions
from brokerset_spark.stores.folder import StoreFolder, read_bytes
from brokerset_spark.stores.layout import Log, LogFile, QueueFiles, StoreFacts, look
from brokerset_spark.stores.opening import open_folder
from brokerset_spark.stores.places import check_store, is_remote, local_path
from brokerset_spark.stores.reading import Range, gaps, split
from brokerset_spark.stores.tail import Bound, bound_of
from brokerset_spark.stores.units import units_of

_LOG: Final = logging.getLogger("brokerset_spark")

CLOCK_SLACK_MS: Final = 10 * 60 * 1000
"""By how much store times may go back, when a clock is set or another master takes over: files are passed
over for their times only if they are further away."""

_HEAD_SIZE: Final = STORE_TIMESTAMP_POSITION + HOST_SIZE_V6 + 8


class StoreDamaged(ValueError):
    """A range of a log cannot be read, and the query asked to be told."""


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

    others: tuple[str, ...] = ()
    """Replicas with the same files, for further attempts of a task."""

    groups: tuple[UnitGroup, ...] = ()
    """What is found by queues, without ranges of its own."""

    log: Log | None = None
    """The log in which `groups` are."""

    bound: int = 0


@dataclass(frozen=True, slots=True)
class StorePlan:
    """A store as the sources see it."""

    url: str
    facts: StoreFacts
    broker_name: str | None
    epochs: tuple[tuple[int, int], ...]
    bound: Bound

    @property
    def logs(self) -> tuple[tuple[Log, bool], ...]:
        """The logs that are read, in the order of their offsets; whether they have entries of a DLedger."""
        return self.facts.logs

    @property
    def first(self) -> int:
        """Offset of the first byte."""
        return self.facts.first


@dataclass(frozen=True, slots=True)
class EndNote:
    """Something unusual at the end of a log."""

    code: str
    """`hole`: damage that a task finds; `tail-missing`, `held-back`, `torn-tail`."""

    text: str
    file: str
    begin: int
    end: int
    is_damage: bool = False
    """Whether messages are surely lost there that no task can miss."""

    reason: str = ""
    """Why there is no record, of a hole."""


def expand(paths: tuple[str, ...]) -> list[str]:
    """Store folders behind paths, globs and URLs; FileNotFoundError, with a hint, for what is no store,
    NotServed for other URLs."""
    found: list[str] = []
    for each in paths:
        if is_remote(check_store(each)):
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


@contextmanager
def opened_store(url: str) -> Iterator[tuple[StoreFolder, StoreFacts]]:
    """The same, closed with the context."""
    folder, facts = open_store(url)
    with closing(folder):
        yield folder, facts


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
    if bound is None:
        mode, confirmed = options.tail_bound, options.confirmed_offset
        bound = bound_of(
            folder, facts, mode=mode, confirmed=confirmed, since=since, claims=options.layout == "auto"
        )
    epochs = tuple((each.epoch, each.start_offset) for each in (facts.epochs.entries if facts.epochs else ()))
    return StorePlan(facts.url, facts, broker_name_of(options, facts), epochs, bound)


def plan_pieces(folder: StoreFolder, store: StorePlan, options: MessageOptions) -> list[Piece]:
    """Pieces for the tasks of a batch query. ValueError if files are missing and that is to be told."""
    wanted, start, end = cut(folder, store, options)
    _check_end(store, options, start, end)
    missing = [gap for log, _ in store.logs for gap in gaps(log, start, end)]
    if missing and options.on_corrupt == "fail" and options.fail_on_data_loss:
        path, begin, until = missing[0]
        raise ValueError(
            f"{store.url}: the log has nothing from {begin} to {until}, behind {path}. Read what there is "
            "with failOnDataLoss=false, or see the gaps with damagedRanges=rows"
        )
    lost = store.bound.lost
    if lost is not None and not lost.crash and end >= store.bound.offset and store.logs:
        missing.append((store.logs[-1][0].files[-1].path, lost.begin, lost.end))
    by_queue = None
    if _may_read_queues(store, options) and not missing:
        by_queue = plan_queues(folder, store.facts, wanted.topics, wanted.queue_ids, start, end)
    if by_queue is not None:
        found = [*_queue_pieces(store, options, wanted, by_queue.groups)]
        start = by_queue.log_from
    else:
        found = []
    found += make_pieces(store, options, wanted, start, end, missing, exact_bound=store.bound.exact)
    if options.on_corrupt == "stop" and found:
        # What lies behind the first damage is not wanted: one task knows where that is.
        everything = tuple(each for piece in found for each in piece.ranges)
        return [replace(found[0], ranges=everything)]
    return found


def _may_read_queues(store: StorePlan, options: MessageOptions) -> bool:
    """Damage anywhere in the log is asked for with `damagedRanges=rows`, and `stop` ends at the first one."""
    asked = options.read_by == "auto" and options.on_corrupt != "stop" and not options.damage_rows
    return asked and bool(options.wanted.topics) and (store.bound.lost is None or store.bound.lost.crash)


def _queue_pieces(
    store: StorePlan, options: MessageOptions, wanted: Filter, groups: tuple[UnitGroup, ...]
) -> Iterator[Piece]:
    """Groups of units for tasks, as many for each as make `splitSize` bytes of records."""
    log, _ = store.facts.current
    whole = Piece(store.url, (), wanted, store.broker_name, store.epochs, log=log, bound=store.bound.offset)
    many = max(1, options.split_size // GROUP_BYTES)
    for at in range(0, len(groups), many):
        yield replace(whole, groups=groups[at : at + many])


def make_pieces(
    store: StorePlan,
    options: MessageOptions,
    wanted: Filter,
    start: int,
    end: int,
    missing: Sequence[tuple[str, int, int]],
    *,
    exact_start: bool = False,
    exact_bound: bool = False,
) -> list[Piece]:
    """A piece for each range of at most `splitSize` bytes, and one for what is missing if that is to be rows.

    `exact_start`, `exact_bound`: a record surely begins at `start`, or ends at the store's bound.
    """
    whole = Piece(store.url, (), wanted, store.broker_name, store.epochs)
    found = [replace(whole, missing=tuple(missing))] if missing and options.damage_rows else []
    for log, entries in store.logs:
        ranges = split(
            within(log.files),
            options.split_size,
            entries=entries,
            bound=store.bound.offset,
            start=start,
            end=end,
            exact_bound=exact_bound,
        )
        for each in ranges:
            known = replace(each, exact_start=exact_start and each.start == start)
            found.append(replace(whole, ranges=(known,)))
    return found


def _check_end(store: StorePlan, options: MessageOptions, start: int, end: int) -> None:
    """StoreDamaged for damage at the end of the log that is to be told; a warning for what else is not
    read."""
    fails = options.on_corrupt == "fail"
    for note in end_notes(store, start, end):
        if note.code == "hole" and fails:
            raise StoreDamaged(
                f"{store.url}/{note.file}: no record can be read at {note.begin} ({note.reason}), and "
                f"{note.text}: this is damage, and not the end of the log. Read around it with "
                "onCorrupt=skip, see it with damagedRanges=rows, or look closer with `brokerset store verify`"
            )
        if note.is_damage and fails and options.fail_on_data_loss:
            raise StoreDamaged(
                f"{store.url}: {note.text}. Read what there is with failOnDataLoss=false, or see the gap "
                "with damagedRanges=rows"
            )
        if note.code == "tail-missing":
            _LOG.warning("%s: %s", store.url, note.text)
        elif note.code == "held-back":
            _LOG.warning("%s: %s; tailBound=end reads them, too", store.url, note.text)


def end_notes(store: StorePlan, start: int, end: int) -> Iterator[EndNote]:
    """What is unusual at the end of a log of which `[start, end)` is read."""
    bound, path = store.bound, store.logs[-1][0].files[-1].path if store.logs else ""
    if bound.end is not None:
        many = bound.end.behind
        text = f"{many} whole records follow that were stored later" if many > 1 else "a whole record follows"
        text = text if many else "the store was closed in order"
        for hole in bound.end.holes:
            if start <= hole.begin < end:
                yield EndNote("hole", text, hole.path, hole.begin, hole.end, reason=reason_of(hole.stop))
    if end < bound.offset:
        return
    if bound.lost is not None:
        lost = bound.lost
        yield EndNote("tail-missing", lost.text(), path, lost.begin, lost.end, is_damage=not lost.crash)
    if bound.held_back:
        by_checkpoint = bound.reason == "checkpoint"
        why = (
            "its checkpoint does not confirm them"
            if by_checkpoint
            else "nothing that follows proves them whole"
        )
        records = f"{bound.held_back} records" if bound.held_back != 1 else "one record"
        text = f"the store was not closed, and {records} from {bound.offset} on left out, as a broker may be "
        yield EndNote("held-back", f"{text}writing there and {why}", path, bound.offset, bound.offset)
    if bound.end is not None and bound.end.debris:
        at, reason = bound.end.offset, reason_of(bound.end.stop)
        text = f"no record can be read at {at} ({reason}), and none follows, but other bytes than zeros: a "
        text += "record was torn or truncated there, or its beginning is damaged"
        yield EndNote("torn-tail", text, path, at, at)


def within(files: tuple[LogFile, ...]) -> tuple[LogFile, ...]:
    """The files, none of them longer than to the next one."""
    nexts = [each.base for each in files[1:]] + [2**63 - 1]
    return tuple(
        replace(each, size=min(each.size, following - each.base))
        for each, following in zip(files, nexts, strict=True)
    )


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
            files = units_of(folder, queue)
            first, end = files.pointing(store.first)
            limit = {EARLIEST: first, LATEST: end}.get(offset, offset)
            found.append((topic, queue_id, limit))
            # What is not dispatched yet lies behind the last unit.
            number = max(limit, first) if limit < end else end - 1
            place = _place_of(folder, store, queue, number) if first <= number else 0
            places.append(store.bound.offset if offset == LATEST else place)
    if problems:
        raise ValueError(f"{'starting' if is_start else 'ending'}Offsets: {'; '.join(problems)}")
    covered = {(topic, queue_id) for topic, queue_id, _ in found}
    rest = [key for key in queues if key[0] in wanted.topics and key not in covered]
    only_these = bool(wanted.topics) and not rest and set(wanted.topics) <= {topic for topic, _ in covered}
    return tuple(found), min(places) if is_start and only_these and places else 0


def _place_of(folder: StoreFolder, store: StorePlan, queue: QueueFiles, number: int) -> int:
    """Offset of a unit's record; 0 if it is not there, as what the unit says is wrong."""
    unit = units_of(folder, queue).read(number, 1)
    offset = int(unit["offset"][0])
    right = offset >= readable_end(folder) or any(
        has_record(folder, log, queue, number, unit) for log, _ in store.logs
    )
    return offset if right else 0


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
    try:
        raw = read_bytes(folder, file.path, 0, inside + _HEAD_SIZE)
    except FileNotFoundError:
        return None
    time = store_timestamp_at(raw, inside) if len(raw) == inside + _HEAD_SIZE else 0
    return time if time > 0 else None
