"""The store that is migrated: which files its log has, how far it may be read, and where a time begins."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from brokerset_formats.dledger import ENTRY_HEAD_SIZE
from brokerset_spark.jobs.migrate.options import MigrateOptions
from brokerset_spark.jobs.migrate.queues import QueueEnd, read_end
from brokerset_spark.jobs.migrate.selecting import Selection
from brokerset_spark.jobs.migrate.tallies import Queue, Tallies
from brokerset_spark.jobs.report import JobFailed, NoInput
from brokerset_spark.kernels import KERNELS
from brokerset_spark.stores.folder import LocalFolder, StoreFolder
from brokerset_spark.stores.layout import COMMIT_LOG, DLEDGER_PREFIX, INDEX, QUEUES, LogFile, StoreFacts, look
from brokerset_spark.stores.reading import Outcome, Range, Throttle, read_range
from brokerset_spark.stores.tail import committed_end

NO_END: Final = 2**63 - 1

LEFT_TO_BROKERS: Final = frozenset(
    {
        "lock",
        "abort",
        "abort.bak",
        "checkpoint",
        "epochFileCheckpoint",
        "epochFileCheckpoint.bak",
        "brokerIdentity",
        "brokerIdentity-temp",
        "brokerIdentity-start",
    }
)
"""Files at the top of a store that are never copied: they are made again, or belong to one process or
replica."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of the log, and up to where it counts."""

    file: LogFile
    entries: bool
    bound: int


@dataclass(slots=True)
class Source:
    """What is known before anything is read in full."""

    root: Path
    folder: StoreFolder
    facts: StoreFacts
    files: tuple[SourceFile, ...]
    queue_ends: dict[Queue, QueueEnd]
    dispatched: int
    """Behind the last message that is in a queue: the log reaches there, surely."""

    throttle: Throttle
    """For what is read before tasks run."""

    uncommitted: int = 0
    """Entries of a DLedger that are not known to be committed."""

    @property
    def file_size(self) -> int:
        """Bytes of the log's files."""
        return self.files[0].file.size

    @property
    def first(self) -> int:
        """Offset of the log's first byte."""
        return self.files[0].file.base

    @property
    def has_ledger(self) -> bool:
        """Whether a part of the log is a DLedger."""
        return any(each.entries for each in self.files)


def open_source(root: Path, options: MigrateOptions, throttle: Throttle) -> Source:
    """Inspect a store. NoInput if there is none; JobFailed if it cannot be migrated as it is."""
    if not root.is_dir():
        raise NoInput(f"{root} is no folder", "give the folder that holds commitlog/ or dledger-<id>/")
    folder = LocalFolder(root)
    facts = look(folder)
    if facts.layout == "empty":
        raise NoInput(f"{root} holds no log", "give the folder that holds commitlog/ or dledger-<id>/")
    for path, problem in facts.problems:
        raise JobFailed(f"{root}/{path}: {problem}", "repair or remove that file")
    for problem in (*facts.commit_log.problems, *facts.ledger.problems):
        raise JobFailed(f"{root}: {problem}", "run `brokerset store verify` to see what is damaged")
    if (root / "removal").exists():
        raise JobFailed(
            f"{root}: a cut of the log was begun and not finished", "start its broker once and stop it"
        )
    ends = {(each.topic, each.queue_id): read_end(folder, each, throttle=throttle) for each in facts.queues}
    dispatched = max((each.log_end for each in ends.values()), default=-1)
    files = [SourceFile(each, False, each.end) for each in facts.commit_log.files]
    uncommitted = 0
    if facts.ledger.files:
        if files and files[-1].file.end != facts.ledger.first:
            raise JobFailed(
                f"{root}: the DLedger begins at {facts.ledger.first}, not at {files[-1].file.end}",
                "run `brokerset store verify` to see what is damaged",
            )
        bound = _committed(root, folder, facts, dispatched, options)
        files += [SourceFile(each, True, max(each.base, min(each.end, bound))) for each in facts.ledger.files]
        uncommitted = 0 if options.take_uncommitted else _count_entries(folder, files, bound, throttle)
    if len({each.file.size for each in files}) > 1:
        raise JobFailed(f"{root}: log and DLedger have files of different sizes", "they must be the same")
    return Source(root, folder, facts, tuple(files), ends, dispatched, throttle, uncommitted)


def _committed(
    root: Path, folder: StoreFolder, facts: StoreFacts, dispatched: int, options: MigrateOptions
) -> int:
    """Up to where a DLedger is taken: what it says is committed, and what is in queues, which never runs
    ahead."""
    if options.take_uncommitted:
        return NO_END
    known = committed_end(folder, facts)
    bound = max(known if known is not None else -1, dispatched)
    if bound <= facts.ledger.first and known is None:
        raise JobFailed(
            f"{root}: neither the DLedger's checkpoint nor its queues tell which entries are committed",
            "choose another node's store, or take all entries with --take-uncommitted",
        )
    return max(bound, facts.ledger.first)


def _count_entries(folder: StoreFolder, files: list[SourceFile], bound: int, throttle: Throttle) -> int:
    total = 0
    for each in files:
        if each.entries and each.file.end > bound:
            start = max(bound, each.file.base)
            wanted = Range(
                each.file.path, each.file.base, each.file.size, start, each.file.end, True, exact_start=True
            )
            for chunk in read_range(folder, wanted, Outcome(start, start), throttle=throttle):
                total += len(chunk.starts)
    return total


def find_time(source: Source, time_ms: int) -> int:
    """Offset of the first record that was stored at this time or later; `NO_END` if there is none.

    Store times never go back along a log, so only the file in which the time lies is read.
    """
    low, high = 0, len(source.files)  # the last file that begins before that time
    while high - low > 1:
        middle = (low + high) // 2
        first = next(_stored(source, source.files[middle], first_only=True), None)
        if first is None or first[1] >= time_ms:
            high = middle
        else:
            low = middle
    for each in source.files[low : low + 2]:  # the time may lie between their records
        for offset, stored in _stored(source, each):
            if stored >= time_ms:
                return offset
    return NO_END


def _stored(source: Source, each: SourceFile, *, first_only: bool = False) -> Iterator[tuple[int, int]]:
    """Offsets and store times of records, those of each chunk that are first or begin a new time."""
    file = each.file
    wanted = Range(file.path, file.base, file.size, file.base, each.bound, each.entries, each.bound)
    for chunk in read_range(source.folder, wanted, Outcome(file.base, file.base), throttle=source.throttle):
        if not len(chunk.starts):
            continue
        heads = KERNELS.heads(chunk.data, chunk.starts[:1] if first_only else chunk.starts)
        times = heads.store_timestamp
        rows = np.flatnonzero(np.concatenate(([True], times[1:] > times[:-1])))
        yield from zip(heads.offset[rows].tolist(), times[rows].tolist(), strict=True)
        if first_only:
            return


def bounds(source: Source, options: MigrateOptions) -> tuple[int, int]:
    """Offsets between which records are taken, times turned into offsets."""
    start = options.from_offset or 0
    end = options.until_offset if options.until_offset is not None else NO_END
    if options.from_time_ms is not None:
        start = max(start, find_time(source, options.from_time_ms))
    if options.until_time_ms is not None:
        end = min(end, find_time(source, options.until_time_ms))
    if start >= end:
        raise JobFailed(f"{source.root}: no record lies between the given times and offsets", "widen them")
    return start, end


def is_without_queue(source: Source, topic: str, known_topics: set[str] | None) -> bool:
    """Whether records of a topic are left over from its deletion: they lie in the log, and no queue has them.

    After a crash the folder of a new queue may be missing; then the list of topics decides as well.
    """
    topics = {name for name, _ in source.queue_ends}
    if not topics or topic in topics:
        return False
    return not source.facts.aborted or (known_topics is not None and topic not in known_topics)


def find_floors(
    source: Source, tallies: Tallies, selection: Selection, throttle: Throttle
) -> dict[Queue, int]:
    """Queues without messages, and the queue offset at which they go on."""
    found = {}
    for queue, known in source.queue_ends.items():
        if queue in tallies or not selection.chooses(queue[0]):
            continue
        end = known.end
        if selection.end < NO_END:
            files = next(each for each in source.facts.queues if (each.topic, each.queue_id) == queue)
            end = read_end(source.folder, files, below=selection.end, throttle=throttle).end
        if end > 0:
            found[queue] = end
    return found


def queues_are_whole(source: Source, tallies: Tallies, without: Collection[str]) -> bool:
    """Whether every message is in its queue, so that the files of queues may be copied."""
    if source.facts.aborted:
        return False
    for queue, tally in tallies.items():
        known = source.queue_ends.get(queue)
        if queue[0] not in without and (
            known is None or known.end != tally.queue_offset_max + 1 or known.offset != tally.last
        ):
            return False
    return True


def other_entries(source: Source) -> tuple[list[str], list[str]]:
    """Files at the top of the store and folders, without the log and what this job makes itself."""
    made = {COMMIT_LOG, QUEUES, INDEX, "commitlog.damaged"}
    files = [each.path for each in source.folder.files("") if each.path not in LEFT_TO_BROKERS]
    folders = [
        name for name in source.folder.folders("") if name not in made and not name.startswith(DLEDGER_PREFIX)
    ]
    return files, folders


def is_idle(source: Source, folder: str) -> bool:
    """Whether a folder is one that brokers always make and have written nothing to."""
    paths = tree(source, folder)
    if folder == "compaction":
        return paths in ([], ["compaction/position-checkpoint"])
    if folder == "rocksdbstore":
        tables = [each for each in source.folder.files(folder) if each.path.endswith((".sst", ".log"))]
        return not source.folder.folders(folder) and not any(each.size for each in tables)
    return not paths


def tree(source: Source, folder: str) -> list[str]:
    """All files below a folder."""
    found = [each.path for each in source.folder.files(folder)]
    for name in source.folder.folders(folder):
        found += tree(source, f"{folder}/{name}")
    return found


def entry_head(each: SourceFile) -> int:
    """Bytes before each record."""
    return ENTRY_HEAD_SIZE if each.entries else 0
