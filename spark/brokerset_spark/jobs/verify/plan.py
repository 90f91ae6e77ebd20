"""What there is to verify: the log and where it ends, its queues, its index files."""

from __future__ import annotations

from dataclasses import dataclass, replace

from brokerset_formats.dledger import ENTRY_HEAD_SIZE
from brokerset_spark.jobs.dispatch import parse_delays
from brokerset_spark.jobs.report import NoInput
from brokerset_spark.jobs.running import Row
from brokerset_spark.jobs.verify.ending import Ending, Witness, find_end
from brokerset_spark.jobs.verify.files import usual_sizes
from brokerset_spark.jobs.verify.index_files import count_slots
from brokerset_spark.jobs.verify.options import VerifyOptions
from brokerset_spark.kernels import Stop, chosen
from brokerset_spark.stores.ending import LogEnd, LogWalk, Lost
from brokerset_spark.stores.folder import FileFacts, LocalFolder, StoreFolder
from brokerset_spark.stores.layout import Log, StoreFacts, look
from brokerset_spark.stores.reading import split
from brokerset_spark.stores.tail import bound_of, committed_entry, state_of
from brokerset_spark.stores.units import BATCH, QUEUE, QueueReader, is_blank, queues_of


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

    def scan_rows(self, index: list[Row]) -> list[Row]:
        """A row for each range of the log."""
        size, rows = self.options.range_bytes, []
        for log, entries in ((self.facts.commit_log, False), (self.facts.ledger, True)):
            bound = min(self.end, log.end)
            for each in split(log.files, size, entries=entries, bound=bound, start=self.begin):
                rows.append(self.row(each.path, each.base, each.size, each.start, each.end, entries, index))
        return rows

    def row(
        self, path: str, base: int, size: int, start: int, end: int, entries: bool, index: list[Row]
    ) -> Row:
        """The row of a task that reads `[start, end)` of one file."""
        history = self.facts.epochs
        return {
            "url": self.facts.url,
            "path": path,
            "base": base,
            "size": size,
            "start": start,
            "end": end,
            "entries": entries,
            "bound": self.ending.claimed,
            "exact": not self.live,
            "rate": self.options.rate,
            "drop": self.options.drop_cache,
            "kernels": self.options.kernels,
            "queues": self.options.queues,
            "light": self.light,
            "batched": list(self.batched),
            "topics": list(self.options.topics),
            "indexed": self.options.index and bool(index),
            "index": [each for each in index if each["end"] >= start and each["begin"] < end + size],
            "delays": parse_delays(self.options.delay_levels),
            "epochs": [
                each.start_offset for each in history.entries if start <= each.start_offset < end + size
            ]
            if history
            else [],
            "ledgerIndex": [[f.path, f.base, f.size, f.mtime_ms] for f in self.facts.ledger_index.files]
            if entries
            else [],
        }


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
    kernels = chosen(options.kernels)
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
        tail = bound_of(folder, facts, kernels=kernels)
        bound = min(tail.offset, log.end)
        return Target(facts, options, True, Ending(bound, bound), (), exact=tail.exact)
    witnesses = tuple(find_witnesses(folder, facts))
    ending = find_end(folder, log, list(witnesses), kernels=kernels, entries=entries, crash=facts.aborted)
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
