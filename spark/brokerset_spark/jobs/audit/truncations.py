"""What each replica would cut if it followed each other one, and what would be lost under each master."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from brokerset_formats.epochs import EpochEntry, EpochHistory, truncation_point
from brokerset_spark.jobs.audit.replica_map import ReplicaMap


@dataclass(frozen=True, slots=True)
class Cut:
    """What a handshake between a replica and a master would do."""

    replica: int
    master: int
    """Numbers of the maps."""

    point: int | None
    """The replica's log would be cut here; None if the two have no epoch in common."""

    bytes: int
    """How much that would remove; 0 without a point."""

    confirmed_bytes: int
    """How much of it the replica knows to be confirmed."""

    forked: bool
    """Whether both go on behind the point: two masters wrote there."""


@dataclass(frozen=True, slots=True)
class Election:
    """What would be lost if a replica became master."""

    candidate: int
    lost_from: int | None
    """Confirmed data from here on is not in its log; None if nothing would be lost."""

    lost_to: int | None
    damaged_at: int | None
    """The first damage below what is confirmed."""

    may_have_grown: bool
    """Whether the candidate was read before what it lacks was confirmed, and is still written."""


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


def cut_between(maps: Sequence[ReplicaMap], replica: int, master: int) -> Cut:
    """What the handshake would cut, as `brokerset_formats.epochs.truncation_point` tells."""
    own, other = maps[replica], maps[master]
    mine, theirs = histories(own, other)
    if not mine.entries or not theirs.entries:
        return Cut(replica, master, None, 0, 0, False)
    point = truncation_point(mine, own.last, theirs, other.last)
    if point is None:
        return Cut(replica, master, None, 0, 0, False)
    return Cut(
        replica,
        master,
        point,
        max(0, own.last - point),
        max(0, min(own.confirmed or 0, own.last) - point),
        point < own.last and point < other.last,
    )


def matrix(maps: Sequence[ReplicaMap]) -> list[Cut]:
    """Every replica with every other one as its master."""
    numbers = range(len(maps))
    return [
        cut_between(maps, replica, master) for replica in numbers for master in numbers if replica != master
    ]


def may_have_grown(maps: Sequence[ReplicaMap], candidate: int, holder: int) -> bool:
    """Whether one may have got since what the other has confirmed."""
    return maps[candidate].written and maps[candidate].last_at_ms <= maps[holder].confirmed_at_ms


def elections(maps: Sequence[ReplicaMap]) -> list[Election]:
    """For each replica, what of that which anybody knows to be confirmed is not in its log."""
    known = [number for number, each in enumerate(maps) if each.confirmed is not None]
    holder = max(known, key=lambda number: (maps[number].confirmed or 0, maps[number].last), default=-1)
    found = []
    for number, each in enumerate(maps):
        damaged = min((damage.begin for damage in each.damages), default=None)
        if holder < 0:
            found.append(Election(number, None, None, damaged, False))
            continue
        confirmed = maps[holder].confirmed or 0
        start = each.last
        if number != holder:
            point = cut_between(maps, number, holder).point
            mine, theirs = histories(each, maps[holder])
            if point is not None:
                start = min(start, point)
            elif mine.entries and theirs.entries:
                start = max(each.first, maps[holder].first)
        grown = number != holder and may_have_grown(maps, number, holder)
        lost = start < confirmed
        found.append(
            Election(number, start if lost else None, confirmed if lost else None, damaged, lost and grown)
        )
    return found
