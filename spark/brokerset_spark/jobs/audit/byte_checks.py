"""Comparing the digests of replicas, pair by pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from brokerset_spark.jobs.audit.intervals import Interval, missing, smallest, union
from brokerset_spark.jobs.audit.replica_map import ReplicaMap
from brokerset_spark.jobs.audit.truncations import cut_between


@dataclass(frozen=True, slots=True)
class PairBytes:
    """Two replicas below what both have surely in common."""

    one: int
    other: int
    start: int
    limit: int
    """What lies between is compared."""

    differing: tuple[Interval, ...] = ()
    """The smallest stretches that both have a digest of, and not the same."""

    uncovered: tuple[Interval, ...] = ()
    """What they have no common digest of."""


def limit_of(maps: Sequence[ReplicaMap], one: int, other: int) -> int:
    """How far two replicas must be equal: up to what both know to be confirmed.

    Where one does not know, up to where their logs are sure, and not behind the offset where they part by
    their epochs: what lies there was never promised to anybody.
    """
    a, b = maps[one], maps[other]
    limits = [a.bound, b.bound]  # where something is known to be confirmed, the bound is that, or less
    if a.confirmed is None or b.confirmed is None:
        point = cut_between(maps, one, other).point
        if point is not None:
            limits.append(point)
        elif a.epochs.pairs and b.epochs.pairs:
            limits.append(0)
    return min(limits)


def compare_pair(maps: Sequence[ReplicaMap], one: int, other: int) -> PairBytes:
    """Compare the digests of two replicas."""
    a, b = maps[one], maps[other]
    start, limit = max(a.first, b.first), limit_of(maps, one, other)
    if start >= limit or a.is_ledger != b.is_ledger:
        return PairBytes(one, other, start, max(start, limit) if a.is_ledger == b.is_ledger else start)
    theirs = {(row.start, row.end): (row.records, row.digest) for row in b.digests}
    common: list[Interval] = []
    differing: list[Interval] = []
    for row in a.digests:
        key = (row.start, row.end)
        if start <= row.start and row.end <= limit and key in theirs:
            common.append(key)
            if theirs[key] != (row.records, row.digest):
                differing.append(key)
    torn = _torn(a, b) or _torn(b, a)
    if torn is not None:
        begin = max((end for _, end in union(common) if end <= torn[0]), default=start)
        limit = torn[1]
        differing.append((begin, limit))
        common.append((begin, limit))
    return PairBytes(
        one,
        other,
        start,
        limit,
        tuple(smallest(differing)),
        tuple(missing((start, limit), union(common))),
    )


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
    return [compare_pair(maps, one, other) for one in range(len(maps)) for other in range(one + 1, len(maps))]
