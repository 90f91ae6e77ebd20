"""The first look at a replica: everything but the content of its log. Of all replicas before any is read, so
that what one has confirmed can be asked of all."""

from __future__ import annotations

import time
from dataclasses import dataclass

from brokerset_spark.jobs.audit.epoch_facts import EPOCH_BACKUP, EPOCH_FILE, EpochFacts, read_epochs
from brokerset_spark.jobs.audit.replica_map import Damage
from brokerset_spark.jobs.report import NoInput
from brokerset_spark.stores.ending import LogEnd, follow_log, measure_end
from brokerset_spark.stores.folder import StoreFolder
from brokerset_spark.stores.layout import Log, LogFile, StoreFacts, look
from brokerset_spark.stores.tail import committed_end, is_written, state_of


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """One file that is to be read."""

    file: LogFile
    entries: bool
    sealed: bool
    """Whether nothing will be written into it again: another one follows, and all of it is below the
    bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A replica before its log is read."""

    facts: StoreFacts
    epochs: EpochFacts
    confirmed: int | None
    confirmed_by: str
    confirmed_at_ms: int
    bound: int
    """Digests are taken up to here."""

    end: LogEnd | None
    """Measured where nothing tells what is confirmed."""

    written: bool
    leftover: Damage | None

    @property
    def log(self) -> Log:
        """The log that is being written, or was last."""
        return self.facts.ledger if self.facts.ledger.files else self.facts.commit_log

    @property
    def first(self) -> int:
        """Offset of the first byte."""
        return self.facts.commit_log.first if self.facts.commit_log.files else self.facts.ledger.first

    def files(self) -> list[PlannedFile]:
        """What is to be read, in the order of the log."""
        found = []
        for log, entries in ((self.facts.commit_log, False), (self.facts.ledger, True)):
            last = log.files[-1] if log is self.log and log.files else None
            found += [
                PlannedFile(each, entries, each is not last and each.end <= self.bound)
                for each in log.files
                if each.base < self.bound
            ]
        return found

    def file_at(self, offset: int) -> PlannedFile | None:
        """The file that holds an offset, below the bound or not."""
        for log, entries in ((self.facts.commit_log, False), (self.facts.ledger, True)):
            file = log.at(offset)
            if file is not None:
                return PlannedFile(file, entries, False)
        return None


def look_at(folder: StoreFolder, confirmed: int | None = None) -> Observation:
    """Look at a store. NoInput if the folder is none; OSError as from the folder."""
    asked_at_ms = time.time_ns() // 1_000_000
    facts = look(folder)
    if facts.layout == "empty" and facts.identity is None and facts.checkpoint is None:
        raise NoInput(
            f"{folder.url} is no store: neither commitlog/ nor dledger-…/ has files, and there is no "
            "checkpoint",
            "give the folder that holds commitlog/ (storePathRootDir of the broker)",
        )
    by = "given"
    entries = bool(facts.ledger.files)
    if confirmed is None and entries:
        confirmed, by = committed_end(folder, facts), "committed"
    elif confirmed is None and (told := folder.confirmed_offset()) is not None:
        confirmed, by = told, "broker"
    elif confirmed is None:
        stored = facts.checkpoint.confirm_phy_offset if facts.checkpoint else 0
        confirmed, by = (stored or None), "checkpoint"
    log = facts.ledger if entries else facts.commit_log
    written = is_written(folder, facts)
    end, leftover = None, None
    if confirmed is None:
        end = measure_end(folder, log, entries=entries, crc=True)
        state = state_of(folder, facts)
        leftover = _leftover(
            follow_log(folder, log, end, state=state, entries=entries, crc=True, tell_debris=False)
        )
    bound = confirmed if end is None else end.held_back if written else end.offset
    assert bound is not None
    return Observation(
        facts=facts,
        epochs=read_epochs(folder),
        confirmed=confirmed,
        confirmed_by=by if confirmed is not None else "nobody",
        confirmed_at_ms=asked_at_ms,
        bound=bound,
        end=end,
        written=written,
        leftover=leftover,
    )


def _leftover(end: LogEnd) -> Damage | None:
    """The first damage that the log goes on behind."""
    if not end.holes:
        return None
    hole = end.holes[0]
    return Damage(hole.begin, hole.end, hole.stop.name, hole.path)


def small_problems(facts: StoreFacts) -> tuple[tuple[str, str], ...]:
    """What is wrong with files, but for the epoch files, which `EpochFacts` knows better."""
    found = [each for each in facts.problems if each[0] not in (EPOCH_FILE, EPOCH_BACKUP)]
    for log in (facts.commit_log, facts.ledger):
        found += [("", text) for text in log.problems]
    return tuple(found)
