"""What the maps of replicas say of each other: which bytes differ, what a handshake between two would
truncate, and what would be lost under each master. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from brokerset_formats.epochs import EpochEntry, EpochHistory, truncation_point
from brokerset_spark.jobs.audit.digests import Interval, missing, smallest, union
from brokerset_spark.jobs.audit.replica import ReplicaMap
from brokerset_spark.json_values import CAMEL


@dataclass(frozen=True, slots=True)
class Truncation:
    """What a handshake between a replica and a master would do."""

    __pydantic_config__: ClassVar = CAMEL

    replica: int
    master: int
    """Numbers of the maps."""

    point: int | None
    """The replica's log would be truncated here; None if the two have no epoch in common."""

    cut_bytes: int = 0
    """How much that would remove; 0 without a point."""

    cut_confirmed_bytes: int = 0
    """How much of it the replica knows to be confirmed."""

    forked: bool = False
    """Whether both go on behind the point: two masters wrote there."""


@dataclass(frozen=True, slots=True)
class Election:
    """What would be lost if a replica became master."""

    __pydantic_config__: ClassVar = CAMEL

    candidate: int
    lost_from: int | None
    """Confirmed data from here on is not in its log; None if nothing would be lost."""

    lost_to: int | None
    damaged_at: int | None
    """The first damage below what is confirmed."""

    may_have_grown: bool
    """Whether the candidate was read before what it lacks was confirmed, and is still written."""


@dataclass(frozen=True, slots=True)
class PairBytes:
    """Two replicas below what both know to be confirmed."""

    one: int
    other: int
    start: int
    limit: int
    """What lies between is compared."""

    differing: tuple[Interval, ...] = ()
    """The smallest stretches that both have a digest of, and not the same."""

    uncovered: tuple[Interval, ...] = ()
    """What they have no common digest of."""


# -- epochs ----------------------------------------------------------------------------------------------


def histories(one: ReplicaMap, other: ReplicaMap) -> tuple[EpochHistory, EpochHistory]:
    """Of two replicas. A DLedger that expired its head does not know where its first term began."""
    mine, theirs = one.epochs.history, other.epochs.history
    if one.epochs.source != "terms" or other.epochs.source != "terms":
        return mine, theirs
    return _aligned(mine, theirs), _aligned(theirs, mine)


def _aligned(history: EpochHistory, other: EpochHistory) -> EpochHistory:
    if not history.entries:
        return history
    first, *rest = history.entries
    for entry in other.entries:
        if entry.epoch == first.epoch and entry.start_offset < first.start_offset:
            return EpochHistory((EpochEntry(first.epoch, entry.start_offset), *rest))
    return history


def truncation_between(maps: Sequence[ReplicaMap], replica: int, master: int) -> Truncation:
    """What the handshake would truncate, as `brokerset_formats.epochs.truncation_point` says."""
    own, other = maps[replica], maps[master]
    mine, theirs = histories(own, other)
    point = None
    if mine.entries and theirs.entries:
        point = truncation_point(mine, own.last, theirs, other.last)
    if point is None:
        return Truncation(replica, master, None)
    lost, confirmed = own.last - point, min(own.confirmed or 0, own.last) - point
    return Truncation(
        replica, master, point, max(0, lost), max(0, confirmed), point < own.last and point < other.last
    )


def matrix(maps: Sequence[ReplicaMap]) -> list[Truncation]:
    """Every replica with every other one as its master."""
    return [truncation_between(maps, *pair) for pair in itertools.permutations(range(len(maps)), 2)]


def may_have_grown(maps: Sequence[ReplicaMap], candidate: int, holder: int) -> bool:
    """Whether one may have got since what the other has confirmed."""
    return maps[candidate].written and maps[candidate].last_at_ms <= maps[holder].confirmed_at_ms


def elections(maps: Sequence[ReplicaMap]) -> list[Election]:
    """For each replica, what of that which anybody knows to be confirmed is not in its log."""
    known = [number for number, each in enumerate(maps) if each.confirmed is not None]
    holder = max(known, key=lambda number: (maps[number].confirmed or 0, maps[number].last), default=None)
    confirmed = 0 if holder is None else maps[holder].confirmed or 0
    found = []
    for number, each in enumerate(maps):
        damaged = min((damage.begin for damage in each.damages), default=None)
        start = each.last
        if holder is not None and number != holder:
            point = truncation_between(maps, number, holder).point
            mine, theirs = histories(each, maps[holder])
            if point is not None:
                start = min(start, point)
            elif mine.entries and theirs.entries:
                start = max(each.first, maps[holder].first)
        if holder is None or start >= confirmed:
            found.append(Election(number, None, None, damaged, False))
        else:
            grown = number != holder and may_have_grown(maps, number, holder)
            found.append(Election(number, start, confirmed, damaged, grown))
    return found


# -- bytes -----------------------------------------------------------------------------------------------


def limit_of(maps: Sequence[ReplicaMap], one: int, other: int) -> int:
    """How far two replicas must be equal: up to what both know to be confirmed.

    Where one does not know, up to where their logs are sure, and not behind the offset where they part by
    their epochs: what lies there was never promised to anybody.
    """
    a, b = maps[one], maps[other]
    limit = min(a.bound, b.bound)  # where something is known to be confirmed, the bound is that, or less
    if a.confirmed is not None and b.confirmed is not None:
        return limit
    point = truncation_between(maps, one, other).point
    if point is None and a.epochs.pairs and b.epochs.pairs:
        return 0
    return limit if point is None else min(limit, point)


def compare_pair(maps: Sequence[ReplicaMap], one: int, other: int) -> PairBytes:
    """Compare the digests of two replicas."""
    a, b = maps[one], maps[other]
    start, limit = max(a.first, b.first), limit_of(maps, one, other)
    if start >= limit or a.is_ledger != b.is_ledger:
        return PairBytes(one, other, start, start)
    mine, theirs = (
        {(row.start, row.end): (row.records, row.digest) for row in each.digests} for each in (a, b)
    )
    common = [key for key in mine.keys() & theirs.keys() if start <= key[0] and key[1] <= limit]
    differing = [key for key in common if mine[key] != theirs[key]]
    torn = _torn(a, b) or _torn(b, a)
    if torn is not None:
        limit = torn[1]
        begin = max((end for _, end in union(common) if end <= torn[0]), default=start)
        differing.append((begin, limit))
        common.append((begin, limit))
    uncovered = missing((start, limit), common)
    return PairBytes(one, other, start, limit, tuple(smallest(differing)), tuple(uncovered))


def _torn(a: ReplicaMap, b: ReplicaMap) -> Interval | None:
    """Where a record of `a` goes on over the confirmed offset at which one of `b` ends: equal logs do not."""
    if a.confirmed is None or b.confirmed is None:
        return None
    confirmed = min(a.confirmed, b.confirmed)
    if a.bound < confirmed <= a.last and b.bound == confirmed and b.confirmed == confirmed:
        return a.bound, confirmed
    return None


def compare_bytes(maps: Sequence[ReplicaMap]) -> list[PairBytes]:
    """All pairs."""
    return [compare_pair(maps, *pair) for pair in itertools.combinations(range(len(maps)), 2)]
