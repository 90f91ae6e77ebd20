"""What there is to verify: the log and where it ends, its queues, its index files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, overload

from brokerset_formats.dledger import ENTRY_HEAD_SIZE
from brokerset_spark.jobs.dispatch import parse_delays
from brokerset_spark.jobs.report import NoInput
from brokerset_spark.jobs.running import Row
from brokerset_spark.jobs.verify.ending import Ending, Witness, find_end
from brokerset_spark.jobs.verify.files import usual_sizes
from brokerset_spark.jobs.verify.index_files import count_slots
from brokerset_spark.jobs.verify.options import VerifyOptions
from brokerset_spark.kernels import Stop
from brokerset_spark.stores.ending import LogEnd, LogWalk, Lost
from brokerset_spark.stores.folder import FileFacts, LocalFolder, StoreFolder
from brokerset_spark.stores.layout import Log, StoreFacts, look
from brokerset_spark.stores.reading import Range, split
from brokerset_spark.stores.tail import bound_of, committed_entry, state_of
from brokerset_spark.stores.units import BATCH, QUEUE, QueueReader, is_blank, queues_of

RANGES_MAX: Final = 50_000
"""Ranges of a log, each a task, above which they are made longer, up to a file. Spark's driver starts some
hundred tasks a second."""


@dataclass(frozen=True, slots=True)
class Target:
    """A store, and how far it is to be verified."""

    facts: StoreFacts
    options: VerifyOptions
    live: bool
    """Whether a broker may be writing now: what lies behind the bound is nobody's business."""

    ending: Ending
    witnesses: tuple[Witness, ...]
    light: bool = False
    """Whether there are light queues."""

    batched: tuple[str, ...] = ()
    """Topics with batch queues."""

    lost: Lost | None = None
    """What is known to have been behind the end."""

    exact: bool = False
    """Whether a record surely ends where a live store is read to; what is confirmed may end inside one."""

    @property
    def crash(self) -> bool:
        """Whether the store was not closed: a start will truncate and complete it."""
        return self.facts.aborted

    @property
    def repairs(self) -> bool:
        """Whether what is missing at the end is what a crash takes, and the next start repairs."""
        return self.crash and (self.lost is None or self.lost.crash)

    @property
    def first(self) -> int:
        """Offset of the log's first byte."""
        return self.facts.commit_log.first if self.facts.commit_log.files else self.facts.ledger.first

    @property
    def begin(self) -> int:
        """Offset from which on it is read."""
        return max(self.first, self.options.start or 0)

    @property
    def end(self) -> int:
        """Offset up to which it is read; behind the log's end if somebody knows of more."""
        asked = self.options.end
        return self.ending.claimed if asked is None else min(asked, self.ending.claimed)

    def scan_rows(self, index: list[Row]) -> ScanRows:
        """A row for each range of the log."""
        size, ranges = self.options.range_bytes, list[Range]()
        while (self.end - self.begin) // size > RANGES_MAX:
            size *= 2
        for log, entries in ((self.facts.commit_log, False), (self.facts.ledger, True)):
            bound = min(self.end, log.end)
            ranges += split(log.files, size, entries=entries, bound=bound, start=self.begin)
        return ScanRows(self, ranges, index)

    def row(
        self, path: str, base: int, size: int, start: int, end: int, entries: bool, index: list[Row]
    ) -> Row:
        """The row of a task that reads `[start, end)` of one file."""
        each = Range(path, base, size, start, end, entries)
        return next(iter(ScanRows(self, [each], index)))


class ScanRows(Sequence[Row]):
    """Made when they are asked for: the driver keeps a range for each task, and no row."""

    def __init__(self, target: Target, ranges: list[Range], index: list[Row]) -> None:
        self._ranges, self._index, options, facts = ranges, index, target.options, target.facts
        self._epochs = [each.start_offset for each in facts.epochs.entries] if facts.epochs else []
        self._shared: Row = {
            "url": facts.url,
            "bound": target.ending.claimed,
            "exact": not target.live,
            "rate": options.rate,
            "drop": options.drop_cache,
            "queues": options.queues,
            "light": target.light,
            "batched": list(target.batched),
            "topics": list(options.topics),
            "indexed": options.index and bool(index),
            "delays": parse_delays(options.delay_levels),
        }
        self._ledger: Row = {
            "ledgerIndexed": facts.archive is None,
            "ledgerIndex": [[f.path, f.base, f.size, f.mtime_ms] for f in facts.ledger_index.files],
        }
        self._plain: Row = {"ledgerIndexed": False, "ledgerIndex": []}

    def __len__(self) -> int:
        return len(self._ranges)

    @overload
    def __getitem__(self, at: int) -> Row: ...

    @overload
    def __getitem__(self, at: slice) -> list[Row]: ...

    def __getitem__(self, at: int | slice) -> Row | list[Row]:
        if isinstance(at, slice):
            return [self[number] for number in range(*at.indices(len(self)))]
        each = self._ranges[at]
        behind = each.end + each.size
        return {
            **self._shared,
            **(self._ledger if each.entries else self._plain),
            "path": each.path,
            "base": each.base,
            "size": each.size,
            "start": each.start,
            "end": each.end,
            "entries": each.entries,
            "index": [file for file in self._index if file["end"] >= each.start and file["begin"] < behind],
            "epochs": [start for start in self._epochs if each.start <= start < behind],
        }

    @property
    def bytes(self) -> int:
        """That all tasks read."""
        return sum(each.end - each.start for each in self._ranges)


def find_target(folder: StoreFolder, options: VerifyOptions) -> Target:
    """Inspect a store, and find its end. NoInput if there is no log."""
    facts = look(folder)
    facts = replace(
        facts,
        commit_log=usual_sizes(facts.commit_log),
        ledger=usual_sizes(facts.ledger),
        ledger_index=usual_sizes(facts.ledger_index),
    )
    if facts.layout == "empty":
        advice = (
            "give the folder that holds commitlog/ or dledger-…/; in a broker's "
            "settings it is storePathRootDir"
        )
        raise NoInput(f"{facts.url} has no commit log", advice)
    log, entries = facts.current
    if options.bound is not None:
        bound = min(options.bound, log.end)
        return Target(facts, options, True, Ending(bound, bound), ())
    confirmed = folder.confirmed_offset()
    if confirmed is not None:  # a broker gives the store out, so it runs, whatever its file `abort` says
        bound = min(confirmed, log.end)
        return Target(facts, options, True, Ending(bound, bound), ())
    state = state_of(folder, facts)
    if state == "live" or (state == "left" and not isinstance(folder, LocalFolder)):
        tail = bound_of(folder, facts)
        bound = min(tail.offset, log.end)
        return Target(facts, options, True, Ending(bound, bound), (), exact=tail.exact)
    witnesses = tuple(find_witnesses(folder, facts))
    ending = find_end(folder, log, list(witnesses), entries=entries, crash=facts.aborted)
    end = LogEnd(ending.whole, -1, Stop.EMPTY)
    lost = LogWalk(folder, log, entries).find_lost(facts, end, state, ending.newest_ms)
    return Target(facts, options, False, ending, witnesses, lost=lost)


def find_witnesses(folder: StoreFolder, facts: StoreFacts) -> list[Witness]:
    """Last units of all queues, what a checkpoint says was flushed, and the committed entry of a DLedger."""
    found = []
    plain = [(each.topic, each.queue_id) for each in facts.queues]
    for kind, queues in ((QUEUE, plain), (BATCH, queues_of(folder, BATCH))):
        reader = QueueReader(folder, kind)
        for topic, queue_id in queues:
            number, unit = reader.of(topic, queue_id).last_written() or (-1, None)
            if unit is None or unit["offset"] < 0 or (kind is QUEUE and is_blank(unit)):
                continue
            place = f"unit {number}" if kind is QUEUE else f"byte {number * kind.size}"
            who = f"{kind.name} {topic}/{queue_id}, {place}"
            first = number if kind is QUEUE else int(unit["base"])
            found.append(Witness(int(unit["offset"]), int(unit["size"]), who, (topic, queue_id, first)))
    if facts.checkpoint is not None and facts.checkpoint.marks is not None:
        found.append(
            Witness(facts.checkpoint.marks.flushed_offset, 0, "the checkpoint's mark of what is on disk")
        )
    entry = committed_entry(folder, facts) if facts.ledger.files else None
    if entry is not None and entry.size > ENTRY_HEAD_SIZE:
        offset, size = entry.position + ENTRY_HEAD_SIZE, entry.size - ENTRY_HEAD_SIZE
        found.append(Witness(offset, size, f"the DLedger's checkpoint, entry {entry.index}"))
    return found


def index_rows(folder: StoreFolder, facts: StoreFacts) -> tuple[list[Row], list[FileFacts]]:
    """A row for each index file, and the files whose number of slots is not known."""
    known: dict[int, int] = {}
    slots: dict[str, int | None] = {}
    for file in facts.index_files:
        slots[file.path] = count_slots(folder, file.path, file.size)
        found = slots[file.path]
        if found is not None:
            known.setdefault(file.size, found)
    rows: list[Row] = []
    unknown = []
    for file in facts.index_files:
        count = slots[file.path] or known.get(file.size)
        if count is None:
            unknown.append(file)
            continue
        rows.append({"url": facts.url, "path": file.path, "size": file.size, "slots": count})
    return rows, unknown


def log_of(facts: StoreFacts, offset: int) -> tuple[Log, bool]:
    """The log that an offset belongs to, and whether it is a DLedger."""
    if facts.ledger.files and offset >= facts.ledger.first:
        return facts.ledger, True
    return facts.commit_log, False
