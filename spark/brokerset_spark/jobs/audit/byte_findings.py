"""What the comparison of bytes, and each replica's own log, say in words. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from brokerset_spark.jobs.audit.byte_checks import PairBytes
from brokerset_spark.jobs.audit.drilling import DrilledPair, FirstDifference, RecordFacts
from brokerset_spark.jobs.audit.intervals import MARK, missing, union
from brokerset_spark.jobs.audit.replica_map import ReplicaMap
from brokerset_spark.jobs.report import Finding, Level


def check_own_log(maps: Sequence[ReplicaMap]) -> Iterator[Finding]:
    """Findings `damage` and `files`: what is wrong with a replica whatever the others have."""
    for each in maps:
        for path, text in each.problems:
            yield Finding(
                "files", Level.ERROR, f"{each.name}: {path + ': ' if path else ''}{text}", each.url, path
            )
        for damage in each.damages:
            yield Finding(
                "damage",
                Level.ERROR,
                f"{each.name}: no sound record at {damage.begin:,} ({damage.reason}); the next one begins at "
                f"{damage.end:,}. Rebuild the replica from one that is whole",
                each.url,
                damage.file,
                damage.begin,
                damage.end,
            )
        hidden = each.damages_total - len(each.damages)
        if hidden > 0:
            yield Finding("damage", Level.ERROR, f"{each.name}: {hidden:,} more damaged stretches", each.url)
        if each.leftover is not None:
            further = [other.name for other in maps if other.last > each.leftover.begin]
            yield Finding(
                "damage",
                Level.ERROR if further else Level.WARNING,
                f"{each.name}: its log ends at {each.leftover.begin:,} with a bad record "
                f"({each.leftover.reason}), "
                f"and sound ones follow at {each.leftover.end:,}: "
                + (
                    f"damaged, since {', '.join(further)} go on there"
                    if further
                    else "damaged, or what was left when a tail was cut off; nothing tells what was confirmed"
                ),
                each.url,
                each.leftover.file,
                each.leftover.begin,
                each.leftover.end,
            )


def check_bytes(
    maps: Sequence[ReplicaMap], pairs: Sequence[PairBytes], drilled: Sequence[DrilledPair]
) -> Iterator[Finding]:
    """Findings `bytes`, for each pair that differs, and `not-compared`."""
    by_pair = {(each.one, each.other): each for each in drilled}
    for pair in pairs:
        read = by_pair.get((pair.one, pair.other))
        one, other = maps[pair.one], maps[pair.other]
        if read is not None and read.first is not None:
            yield _difference(maps, pairs, pair, read, read.first)
        elif pair.differing and read is not None:
            begin, end = pair.differing[0]
            yield Finding(
                "bytes",
                Level.ERROR,
                f"{one.name} and {other.name} have different digests between {begin:,} and {end:,}, but "
                "no record "
                "differs now: a store was changed meanwhile, or a digest is out of date. Audit again "
                "with --full",
                "",
                "",
                begin,
                end,
            )
        elif pair.differing:
            begin, end = pair.differing[0]
            yield Finding(
                "bytes",
                Level.ERROR,
                f"{one.name} and {other.name} differ between {begin:,} and {end:,}"
                + (f" and in {len(pair.differing) - 1:,} more stretches" if len(pair.differing) > 1 else "")
                + ". Audit both stores in one command to name the record",
                "",
                "",
                begin,
                end,
            )
        left = [gap for each in pair.uncovered for gap in missing(each, union(read.covered if read else ()))]
        if left:
            total = sum(end - begin for begin, end in left)
            yield Finding(
                "not-compared",
                Level.INFO if total <= MARK else Level.WARNING,
                f"{one.name} and {other.name}: {total:,} bytes between {left[0][0]:,} and {left[-1][1]:,} "
                "have no "
                "common digest. Map all replicas with the same --confirm-offset, or audit them in one "
                "command",
                "",
                "",
                left[0][0],
                left[-1][1],
            )


def _difference(
    maps: Sequence[ReplicaMap],
    pairs: Sequence[PairBytes],
    pair: PairBytes,
    read: DrilledPair,
    first: FirstDifference,
) -> Finding:
    one, other = maps[pair.one], maps[pair.other]
    where = f" ({first.field}, byte {first.byte:,} of the record)" if first.byte >= 0 and first.field else ""
    text = (
        f"{one.name} and {other.name} differ from {first.offset:,} on{where}: {one.name} has "
        f"{describe(first.one)}; {other.name} has {describe(first.other)}. "
    )
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
    told = (
        f"topic {facts.topic}, queue {facts.queue_id}, queue offset {facts.queue_offset:,}, "
        f"{facts.size:,} bytes, "
        f"stored {facts.store_timestamp}"
    )
    return f"{told}, damaged ({facts.problem})" if facts.problem else told


def blame(
    maps: Sequence[ReplicaMap], pairs: Sequence[PairBytes], pair: PairBytes, first: FirstDifference
) -> ReplicaMap | None:
    """Which of the two is wrong: the damaged one, else the one that more of the others contradict;
    None if even."""
    if bool(first.one.problem) != bool(first.other.problem):
        return maps[pair.one] if first.one.problem else maps[pair.other]
    against = {pair.one: 0, pair.other: 0}
    for each in pairs:
        if (each.one, each.other) == (pair.one, pair.other) or not each.start <= first.offset < each.limit:
            continue
        differs = any(begin <= first.offset < end for begin, end in each.differing)
        for number in (each.one, each.other):
            if number in against:
                against[number] += 1 if differs else -1
    if against[pair.one] == against[pair.other]:
        return None
    return maps[max(against, key=lambda number: against[number])]
