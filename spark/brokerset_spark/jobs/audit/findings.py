"""What an audit says: a finding for each thing that is not as it should be, and one sentence on top. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from brokerset_formats.identity import BrokerIdentity
from brokerset_spark.jobs.audit.comparison import (
    Election,
    PairBytes,
    Truncation,
    histories,
    may_have_grown,
    truncation_between,
)
from brokerset_spark.jobs.audit.digests import FINE, missing
from brokerset_spark.jobs.audit.records import FirstDifference, PairRecords, RecordFacts
from brokerset_spark.jobs.audit.replica import EPOCH_BACKUP, EPOCH_FILE, ReplicaMap
from brokerset_spark.jobs.report import Finding, Level, Report

_ORDER: Final = ("damage", "bytes", "confirm", "truncate-point", "files", "identity", "layout")
"""What is said first: what costs messages."""

_KNOWN_BY: Final = {
    "given": "you say",
    "broker": "its broker says",
    "checkpoint": "its checkpoint says",
    "committed": "its DLedger checkpoint says",
}


@dataclass(frozen=True, slots=True)
class ControllerView:
    """What the controllers say of one broker: who is master, in which epoch, and who is in sync."""

    broker_name: str
    master_id: int | None
    master_epoch: int
    in_sync: frozenset[int]


# -- who they are ----------------------------------------------------------------------------------------


def check_identities(maps: Sequence[ReplicaMap]) -> Iterator[Finding]:
    """Findings `identity`, `layout`, `file-size`."""
    known = [(each.identity, each) for each in maps if each.identity is not None]
    names = {(identity.cluster_name, identity.broker_name) for identity, _ in known}
    if len(names) > 1:
        said = ", ".join(f"{cluster}/{name}" for cluster, name in sorted(names))
        yield Finding("identity", Level.ERROR, f"these are replicas of different brokers: {said}")
    seen: dict[BrokerIdentity, ReplicaMap] = {}
    for identity, each in known:
        if identity in seen:
            text = (
                f"{seen[identity].name} and {each.name} have the same identity: one is a copy of the other. "
            )
            text += "Never start both"
            yield Finding("identity", Level.WARNING, text, each.url, "brokerIdentity")
        seen.setdefault(identity, each)
    if len({each.is_ledger for each in maps if each.layout != "empty"}) > 1:
        text = "some stores are a DLedger and some are not: they cannot be compared"
        yield Finding("layout", Level.ERROR, text)
    if len({each.file_sizes for each in maps if each.file_sizes}) > 1:
        said = "; ".join(f"{each.name} has {', '.join(f'{s:,}' for s in each.file_sizes)}" for each in maps)
        text = f"the files of the logs have different sizes: {said}. Replicas need the same "
        yield Finding("file-size", Level.WARNING, f"{text}mappedFileSizeCommitLog")


# -- epochs ----------------------------------------------------------------------------------------------


def check_epochs(maps: Sequence[ReplicaMap], view: ControllerView | None) -> Iterator[Finding]:
    """Findings `epoch-file`, `-order`, `-start`, `-missing`, `-ahead`, `-boundary`."""
    for each in maps:
        yield from _epoch_file(each, any(other.epochs.pairs for other in maps if other is not each))
        for start in each.bad_boundaries:
            epoch = next(epoch for epoch, begin in each.epochs.pairs if begin == start)
            text = (
                f"{each.name}: epoch {epoch} starts at {start:,}, where no record begins: the epoch file was "
            )
            text += "changed, or belongs to another log"
            yield Finding("epoch-boundary", Level.ERROR, text, each.url, each.epochs.source, start)
        newest = each.epochs.history
        if view is not None and not each.is_ledger and newest.last_epoch > view.master_epoch:
            text = f"{each.name} has epoch {newest.last_epoch}, the controllers only know of "
            text += f"{view.master_epoch}: they lost their data, or the store belongs to another group"
            yield Finding("epoch-ahead", Level.ERROR, text, each.url, EPOCH_FILE, newest.last_start)
    yield from _epoch_starts(maps)
    for number, each in enumerate(maps):
        yield from _missing_epochs(maps, number, each)


def _epoch_file(each: ReplicaMap, others: bool) -> Iterator[Finding]:
    used, problems = each.epochs.source, each.epochs.problems
    saved_by = "its backup is used, which lacks the newest change"
    for name, problem in problems:
        saved = name == EPOCH_FILE and used == EPOCH_BACKUP
        text = f"{each.name}: {name} cannot be read: {problem}{f'; {saved_by}' if saved else ''}"
        yield Finding("epoch-file", Level.WARNING if saved else Level.ERROR, text, each.url, name)
    if used == EPOCH_BACKUP and not problems:
        text = f"{each.name}: {EPOCH_FILE} is missing or empty; {saved_by}"
        yield Finding("epoch-file", Level.WARNING, text, each.url, EPOCH_FILE)
    if used == "none" and not problems and others and each.last > each.first and not each.is_ledger:
        text = f"{each.name} has a log up to {each.last:,} and no epochs: it would follow any master without "
        text += "cutting what differs. Let it be rebuilt from another replica"
        yield Finding("epoch-file", Level.ERROR, text, each.url, EPOCH_FILE)
    if each.epochs.disorder:
        text = f"{each.name}: the epochs are out of order: {each.epochs.disorder}"
        yield Finding("epoch-order", Level.ERROR, text, each.url, used)


def _epoch_starts(maps: Sequence[ReplicaMap]) -> Iterator[Finding]:
    known: dict[int, dict[int, int]] = defaultdict(dict)  # epoch -> number of the replica -> start
    for number, each in enumerate(maps):
        in_a_term = each.epochs.source == "terms"  # the log may begin in the middle of the first one
        known_starts = each.epochs.pairs[1:] if in_a_term else each.epochs.pairs
        for epoch, start in known_starts:
            known[epoch][number] = start
    for epoch, starts in sorted(known.items()):
        votes = Counter(starts.values()).most_common()
        if len(votes) < 2:
            continue
        alone = [number for number, start in starts.items() if start != votes[0][0]]
        sole = alone[0] if len(alone) == 1 and votes[0][1] > votes[1][1] else None
        said = ", ".join(f"{start:,} on {maps[number].name}" for number, start in starts.items())
        text = (
            f"epoch {epoch} starts at different offsets: {said}. A replica with the wrong one is cut in the "
        )
        text += "wrong place when it follows"
        url, at = ("", min(starts.values())) if sole is None else (maps[sole].url, starts[sole])
        yield Finding("epoch-start", Level.ERROR, text, url, EPOCH_FILE, at)


def _missing_epochs(maps: Sequence[ReplicaMap], number: int, each: ReplicaMap) -> Iterator[Finding]:
    known = {epoch for epoch, _ in each.epochs.pairs}
    lacking: dict[tuple[int, int], list[str]] = defaultdict(list)
    for other_number, other in enumerate(maps):
        point = truncation_between(maps, number, other_number).point if other_number != number else None
        if point is None or not known:
            continue
        _, history = histories(each, other)
        for entry in history.entries:
            expired = history.end_of(entry.epoch) <= each.first  # with its data
            if entry.epoch not in known and entry.start_offset < point and not expired:
                lacking[entry.epoch, entry.start_offset].append(other.name)
    for (epoch, start), holders in sorted(lacking.items()):
        text = f"{each.name} does not know epoch {epoch}, which starts at {start:,} on {', '.join(holders)}, "
        text += "though its log goes on behind it. Java slaves skip an epoch that fits into one packet"
        yield Finding("epoch-missing", Level.WARNING, text, each.url, each.epochs.source, start)


# -- ends ------------------------------------------------------------------------------------------------


def check_truncations(
    maps: Sequence[ReplicaMap], cuts: Sequence[Truncation], view: ControllerView | None
) -> Iterator[Finding]:
    """Findings `truncate-point`."""
    by_pair = {(each.replica, each.master): each for each in cuts}
    for cut in cuts:
        replica, master = maps[cut.replica], maps[cut.master]
        if not replica.epochs.pairs or not master.epochs.pairs:
            continue
        if cut.point is None:
            if cut.replica < cut.master and replica.last > replica.first and master.last > master.first:
                text = f"{replica.name} and {master.name} have no epoch in common: neither can follow the "
                text += "other, a handshake fails permanently. Rebuild the one that is wrong from the other"
                yield Finding("truncate-point", Level.ERROR, text)
        elif cut.forked:
            if cut.replica < cut.master:
                yield _fork(replica, master, cut, by_pair[cut.master, cut.replica], view)
        elif cut.cut_bytes and not (replica.written and master.written) and _is_master(master, view):
            text = f"{replica.name} would cut {cut.cut_bytes:,} bytes from {cut.point:,} on if it followed "
            text += f"{master.name}, whose log ends there; {cut.cut_confirmed_bytes:,} of them are confirmed"
            yield Finding("truncate-point", Level.INFO, text, replica.url, "", cut.point, replica.last)


def _is_master(replica: ReplicaMap, view: ControllerView | None) -> bool:
    """Whether it is the one that the others follow; any may be if nobody says."""
    if view is None or view.master_id is None or replica.identity is None:
        return True
    return replica.identity.broker_id == view.master_id


def _fork(
    replica: ReplicaMap, master: ReplicaMap, cut: Truncation, back: Truncation, view: ControllerView | None
) -> Finding:
    """One of the two must be able to give up its tail without losing what is confirmed: the one that
    follows."""
    confirmed = min(cut.cut_confirmed_bytes, back.cut_confirmed_bytes)
    if view is not None and view.master_id is not None:
        if _is_master(master, view):
            confirmed = cut.cut_confirmed_bytes
        elif _is_master(replica, view):
            confirmed = back.cut_confirmed_bytes
    at = cut.point or 0
    text = f"{replica.name} and {master.name} part at {at:,}: following, the first would cut "
    text += f"{cut.cut_bytes:,} bytes ({cut.cut_confirmed_bytes:,} of them confirmed), the second "
    text += f"{back.cut_bytes:,} ({back.cut_confirmed_bytes:,}). "
    if confirmed:
        text += "Confirmed messages would be lost: do not let them meet before one is chosen"
        return Finding("truncate-point", Level.ERROR, text, "", "", at, replica.last)
    text += (
        "That is what a master leaves which was replaced before its last messages were confirmed; the next "
    )
    text += "handshake cuts them"
    return Finding("truncate-point", Level.WARNING, text, "", "", at, replica.last)


def check_confirmed(maps: Sequence[ReplicaMap], view: ControllerView | None) -> Iterator[Finding]:
    """Findings `confirm`: who lacks what is confirmed."""
    for number, each in enumerate(maps):
        if each.confirmed is not None and each.confirmed > each.last:
            text = (
                f"{each.name} ends at {each.last:,}, and {_KNOWN_BY.get(each.confirmed_by, 'it says')} that "
            )
            text += (
                f"everything below {each.confirmed:,} is confirmed: {each.confirmed - each.last:,} bytes are "
            )
            text += "gone from its end. Do not elect it; rebuild it"
            yield Finding("confirm", Level.ERROR, text, each.url, "", each.last, each.confirmed)
            continue
        others = [
            other for other in range(len(maps)) if maps[other].confirmed is not None and other != number
        ]
        holder = max(others, key=lambda other: maps[other].confirmed or 0, default=None)
        confirmed = 0 if holder is None else maps[holder].confirmed or 0
        if holder is None or confirmed <= each.last or may_have_grown(maps, number, holder):
            continue
        if view is None:
            level, advice = (
                Level.WARNING,
                "That is right for a replica out of sync, and an error for one in sync: ",
            )
            advice += "give the controllers' view"
        elif each.identity is not None and each.identity.broker_id in view.in_sync:
            level, advice = (
                Level.ERROR,
                "The controllers take it for in sync: it may be elected, and lose them",
            )
        else:
            level, advice = Level.INFO, "The controllers do not take it for in sync"
        text = (
            f"{each.name} ends at {each.last:,}; {maps[holder].name} knows everything below {confirmed:,} to "
        )
        yield Finding("confirm", level, f"{text}be confirmed. {advice}", each.url, "", each.last, confirmed)


# -- bytes -----------------------------------------------------------------------------------------------


def check_own_log(maps: Sequence[ReplicaMap]) -> Iterator[Finding]:
    """Findings `damage` and `files`: what is wrong with a replica whatever the others have."""
    for each in maps:
        for path, problem in each.problems:
            text = f"{each.name}: {path + ': ' if path else ''}{problem}"
            yield Finding("files", Level.ERROR, text, each.url, path)
        for bad in each.damages:
            text = f"{each.name}: no sound record at {bad.begin:,} ({bad.reason}); the next one begins at "
            text += f"{bad.end:,}. Rebuild the replica from one that is whole"
            yield Finding("damage", Level.ERROR, text, each.url, bad.file, bad.begin, bad.end)
        hidden = each.damages_total - len(each.damages)
        if hidden > 0:
            yield Finding("damage", Level.ERROR, f"{each.name}: {hidden:,} more damaged stretches", each.url)
        if each.leftover is not None:
            bad = each.leftover
            further = [other.name for other in maps if other.last > bad.begin]
            text = f"{each.name}: its log ends at {bad.begin:,} with a bad record ({bad.reason}), and sound "
            text += f"ones follow at {bad.end:,}: damaged, "
            if further:
                text += f"since {', '.join(further)} go on there"
            else:
                text += "or what was left when a tail was cut off; nothing tells what was confirmed"
            level = Level.ERROR if further else Level.WARNING
            yield Finding("damage", level, text, each.url, bad.file, bad.begin, bad.end)


def read_of(pair: PairBytes, read: Sequence[PairRecords]) -> PairRecords | None:
    """What of a pair was read by record."""
    return next((each for each in read if (each.one, each.other) == (pair.one, pair.other)), None)


def uncompared(pair: PairBytes, read: Sequence[PairRecords]) -> list[tuple[int, int]]:
    """What of a pair has no common digest, and was not read by record."""
    found = read_of(pair, read)
    return [gap for each in pair.uncovered for gap in missing(each, found.covered if found else ())]


def check_bytes(
    maps: Sequence[ReplicaMap], pairs: Sequence[PairBytes], read: Sequence[PairRecords]
) -> Iterator[Finding]:
    """Findings `bytes`, for each pair that differs, and `not-compared`."""
    for pair in pairs:
        found = read_of(pair, read)
        one, other = maps[pair.one], maps[pair.other]
        if found is not None and found.first is not None:
            yield _difference(maps, pairs, pair, found, found.first)
        elif pair.differing:
            begin, end = pair.differing[0]
            if found is not None:
                text = (
                    f"{one.name} and {other.name} have different digests between {begin:,} and {end:,}, but "
                )
                text += (
                    "no record differs now: a store was changed meanwhile, or a digest is out of date. Audit "
                )
                text += "again with --full"
            else:
                text = f"{one.name} and {other.name} differ between {begin:,} and {end:,}"
                more = len(pair.differing) - 1
                text += f" and in {more:,} more stretches" if more else ""
                text += ". Audit both stores in one command to name the record"
            yield Finding("bytes", Level.ERROR, text, "", "", begin, end)
        left = uncompared(pair, read)
        if left:
            total, begin, end = sum(end - begin for begin, end in left), left[0][0], left[-1][1]
            text = (
                f"{one.name} and {other.name}: {total:,} bytes between {begin:,} and {end:,} have no common "
            )
            text += "digest. Map all replicas with the same --confirm-offset, or audit them in one command"
            level = Level.INFO if total <= FINE else Level.WARNING
            yield Finding("not-compared", level, text, "", "", begin, end)


def _difference(
    maps: Sequence[ReplicaMap],
    pairs: Sequence[PairBytes],
    pair: PairBytes,
    read: PairRecords,
    first: FirstDifference,
) -> Finding:
    one, other = maps[pair.one], maps[pair.other]
    where = f" ({first.field}, byte {first.byte:,} of the record)" if first.byte >= 0 and first.field else ""
    text = f"{one.name} and {other.name} differ from {first.offset:,} on{where}: "
    text += f"{one.name} has {describe(first.one)}; {other.name} has {describe(first.other)}. "
    guilty = blame(maps, pairs, pair, first)
    if guilty is not None:
        text += f"{guilty.name} is wrong: rebuild it"
    elif first.one.problem or first.other.problem:
        text += "Neither copy is sound"
    elif read.records == 1:
        text += "Both pass their checks and all else is equal: a disk changed what no checksum covers"
    else:
        text += "Both are whole: two masters wrote here; one of them must be given up"
    if read.records > 1:
        text += f" ({read.records:,} records differ in what was read again)"
    return Finding("bytes", Level.ERROR, text, guilty.url if guilty else "", "", first.offset, pair.limit)


def describe(facts: RecordFacts) -> str:
    """A record in words."""
    if not facts.size:
        return f"no record ({facts.problem})"
    text = f"topic {facts.topic}, queue {facts.queue_id}, queue offset {facts.queue_offset:,}, "
    text += f"{facts.size:,} bytes, stored {facts.store_timestamp}"
    return f"{text}, damaged ({facts.problem})" if facts.problem else text


def blame(
    maps: Sequence[ReplicaMap], pairs: Sequence[PairBytes], pair: PairBytes, first: FirstDifference
) -> ReplicaMap | None:
    """Which of the two is wrong: the damaged one, else the one that more of the others contradict; None if
    even."""
    if bool(first.one.problem) != bool(first.other.problem):
        return maps[pair.one] if first.one.problem else maps[pair.other]
    against = {pair.one: 0, pair.other: 0}
    for each in pairs:
        if (each.one, each.other) == (pair.one, pair.other) or not each.start <= first.offset < each.limit:
            continue
        differs = any(begin <= first.offset < end for begin, end in each.differing)
        for number in against.keys() & {each.one, each.other}:
            against[number] += 1 if differs else -1
    if against[pair.one] == against[pair.other]:
        return None
    return maps[max(against, key=lambda number: against[number])]


# -- the sentence on top ---------------------------------------------------------------------------------


def verdict_of(
    maps: Sequence[ReplicaMap], report: Report, pairs: Sequence[PairBytes], elected: Sequence[Election]
) -> str:
    """What to think, and whom not to elect."""
    errors = [each for each in report.findings if each.level is Level.ERROR]
    if errors:
        return _worst(maps, errors)
    if not maps:
        return "No replica was audited."
    if len(maps) == 1:
        only = maps[0]
        return f"{only.name} is sound from {only.first:,} to {only.bound:,}; nothing to compare it with."
    start, limit = max(pair.start for pair in pairs), min(pair.limit for pair in pairs)
    who = "Both" if len(maps) == 2 else f"All {len(maps)}"
    sound = f"{who} replicas hold the same bytes from {start:,} to {max(start, limit):,}"
    losers = [each.candidate for each in elected if each.lost_from is not None and not each.may_have_grown]
    if losers:
        verb = "lack" if len(losers) > 1 else "lacks"
        named = ", ".join(maps[each].name for each in losers)
        return f"{sound}; {named} {verb} confirmed messages, and must not be elected."
    if report.counters.get("findings.warning"):
        return f"{sound}; {report.counters['findings.warning']} warning(s) below."
    return f"{sound}; no confirmed message would be lost whoever becomes master."


def _worst(maps: Sequence[ReplicaMap], errors: Sequence[Finding]) -> str:
    worst = min(errors, key=lambda each: _ORDER.index(each.code) if each.code in _ORDER else len(_ORDER))
    names = {each.url: each.name for each in maps}
    wrong = sorted(
        {names[each.store] for each in errors if each.store in names and each.code != "epoch-start"}
    )
    about = f"{', '.join(wrong)} must not become master: " if wrong and len(wrong) < len(maps) else ""
    sentence = worst.text.split(". ")[0].rstrip(".")
    if about and len(wrong) == 1:
        sentence = sentence.removeprefix(f"{wrong[0]}: ")
    if worst.offset is not None and f"{worst.offset:,}" not in worst.text:
        sentence += f" (offset {worst.offset:,})"
    rest = len(errors) - 1
    more = f"; {rest} more error{'s' if rest > 1 else ''} below" if rest else ""
    return f"{about}{sentence}{more}."
