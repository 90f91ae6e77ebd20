"""What will be done, decided from what was seen. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from brokerset_formats.epochs import EpochHistory, history_of
from brokerset_spark.jobs.migrate.options import MigrateOptions
from brokerset_spark.jobs.migrate.tallies import Queue, Tallies
from brokerset_spark.kernels.contract import Stop
from brokerset_spark.stores.ending import Hole, Lost


@dataclass(frozen=True, slots=True)
class Way:
    """How records get into the target."""

    copies: bool
    """Files are copied as they are; else records are rewritten."""

    ledger: bool
    """The target's log is a DLedger from its beginning."""

    closes: bool
    """The last file is closed, so that a DLedger begins behind it."""

    reason: str
    """Why records are rewritten, or why not; for people."""


def decide_way(layout: str, file_size: int, options: MigrateOptions) -> Way:
    """Copy whenever nothing forbids it: that is the fastest, and keeps all offsets."""
    has_ledger = layout != "commitlog"
    ledger = options.to == "dledger" and (options.rewrite or has_ledger)
    closes = options.to == "dledger" and not ledger
    if has_ledger or ledger:
        reason = "entries of a DLedger have 48 bytes before each record, so all offsets change"
    elif options.selects:
        reason = "records are left out, so the others move up"
    elif options.file_size not in (None, file_size):
        reason = f"files get {options.file_size} bytes instead of {file_size}"
    elif options.rewrite:
        reason = "a rewrite was asked for"
    else:
        return Way(True, False, closes, "records and offsets stay as they are, so files are copied")
    return Way(False, ledger, closes, reason)


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Where the source's log ends, as the scan saw it."""

    offset: int
    clean: bool
    """Whether nothing but zeros, a blank record or the bound follows."""

    problem: str = ""
    """Why nothing may be migrated; empty if all is well."""

    lost: Lost | None = None
    """What a crash took from behind the end."""


@dataclass(frozen=True, slots=True)
class ScanEnd:
    """Up to where the scan could read."""

    offset: int
    stop: Stop
    path: str
    """The file in which it ended; empty if all files are closed by blank records."""

    problem: str = ""


def scan_end(results: Sequence[Mapping[str, Any]]) -> ScanEnd:
    """Put together what the scan of each file, in order, found.

    The log ends where a file is not closed by a blank record; files behind are made in advance and hold
    nothing.
    """
    end, stop, ended_in = 0, 0, ""
    for result in results:
        if ended_in and result["records"]:
            text = f"{ended_in}: no record can be read at {end}, and {result['path']} goes on behind"
            return ScanEnd(end, Stop(stop), ended_in, text)
        if not ended_in:
            end, stop = result["end"], result["stop"]
            ended_in = "" if result["closed"] else result["path"]
    return ScanEnd(end, Stop(stop), ended_in)


def find_log_end(
    scan: ScanEnd,
    *,
    until: int,
    dispatched: int,
    aborted: bool,
    committed: int | None,
    holes: Sequence[Hole] = (),
    behind: int = 0,
    lost: Lost | None = None,
    debris: bool = False,
) -> LogEnd:
    """Judge where the scan ended. `holes` are damage from there on, with `behind` whole records behind it,
    `lost` what others know of, `debris` bytes behind the end that are no record; `committed` is the end of a
    DLedger that is not read further.

    A store that was closed never ends before what its queues point to.
    """
    end, place = scan.offset, scan.path or "the log"
    if scan.problem:
        return LogEnd(end, False, scan.problem)
    if end >= until:
        return LogEnd(end, True)
    if committed is not None and end < committed:
        text = f"{place}: no entry can be read at {end}, and what lies before {committed} is committed"
        return LogEnd(end, False, text)
    if holes:
        follow = f"{behind} whole records follow" if behind != 1 else "a whole record follows"
        text = f"{holes[0].path}: no record can be read at {holes[0].begin}"
        text += (
            f", and {follow} that were stored later" if behind else ", in a store that was closed in order"
        )
        return LogEnd(end, False, text)
    if dispatched > end and not aborted:
        text = f"{place}: no record can be read at {end}, and queues point behind it (to {dispatched})"
        return LogEnd(end, False, text)
    if lost is not None and not lost.crash:
        return LogEnd(end, False, lost.text())
    clean = not debris and (scan.stop is Stop.EMPTY or not scan.path or committed is not None)
    return LogEnd(end, clean, "", lost)


def starts_at_zero(tallies: Tallies, floors: Mapping[Queue, int], without: Iterable[str]) -> bool:
    """Whether all queues begin with their first message and have no gaps; then the new log may begin at 0.

    Else it begins one file later: blank units of queues point to offset 0, which must lie before the log.
    """
    left_out = frozenset(without)
    dense = all(
        tally.queue_offset_min == 0 and tally.count == tally.queue_offset_max + 1
        for (topic, _), tally in tallies.items()
        if topic not in left_out
    )
    return dense and not floors


def first_epochs(
    options: MigrateOptions,
    known: EpochHistory | None,
    terms: Sequence[tuple[int, int]],
    moved: Mapping[int, int] | None,
    first: int,
    end: int,
) -> EpochHistory:
    """The epochs of a target in controller mode.

    `terms` are changes of a DLedger's term (term, offset), `moved` new offsets of old ones, None if they
    stayed.
    Epochs without a record are left out, and the first one begins with the log.
    """
    if options.epochs == "terms" and terms:
        pairs = [(number + 1, start) for number, (_, start) in enumerate(terms)]
    elif options.epochs == "auto" and known is not None and known.entries:
        pairs = [(entry.epoch, entry.start_offset) for entry in known.entries]
    else:
        pairs = [(1, first)]
        moved = None
    placed: list[tuple[int, int]] = []
    for epoch, start in pairs:
        new = max(first, min(moved[start] if moved is not None else start, end))
        while placed and placed[-1][1] >= new:
            placed.pop()
        placed.append((epoch, new))
    return history_of([(placed[0][0], first), *placed[1:]])


def join_terms(results: Iterable[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """Changes of the term over all files."""
    found: list[tuple[int, int]] = []
    for result in results:
        for term, offset in result["terms"]:
            if not found or found[-1][0] != term:
                found.append((term, offset))
    return found


def batches(queues: Sequence[dict[str, Any]], units_max: int, queues_max: int) -> list[list[dict[str, Any]]]:
    """Queues in groups for one task each."""
    found: list[list[dict[str, Any]]] = []
    units = 0
    for queue in queues:
        count = sum(each[3] for each in queue["slices"])
        if not found or len(found[-1]) >= queues_max or units + count > units_max:
            found.append([])
            units = 0
        found[-1].append(queue)
        units += count
    return found
