"""Digests of stretches of a log: which stretches have one, taking them in one pass, and keeping many in
little room.

A stretch `[start, end)` stands for the records that begin in it. Two replicas are compared where both have
the same stretch, so there are four sizes of them, from coarse ones that all replicas share to fine ones near
the end, where replicas differ in how far they are confirmed.
"""

from __future__ import annotations

import base64
import itertools
import zlib
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
import xxhash

from brokerset_formats.dledger import ENTRY_HEAD_SIZE
from brokerset_formats.errors import FormatError
from brokerset_spark.stores.reading import Chunk

SEGMENT: Final = 16 << 20
"""Bytes of the stretches; they begin at multiples of it."""

COARSE: Final = 256 << 20
"""Bytes of those that remain of the oldest part of a log with very many."""

FINE: Final = 256 << 10
"""Bytes of the finest, in the last `SEGMENT` before the bound."""

ROWS_MAX: Final = 32_768
"""Digests in a map. With more, segments of the oldest part of the log leave their place to coarse ones, so
that a map of a terabyte stays below a megabyte."""

_TABLE: Final = np.dtype([("start", "<i8"), ("length", "<i8"), ("count", "<u4"), ("digest", "V16")])

Interval = tuple[int, int]


def wanted_intervals(
    begin: int, end: int, *, epoch_starts: Iterable[int] = (), cuts: Iterable[int] = (), bound: int
) -> list[Interval]:
    """Stretches for one file `[begin, end)` of a log that is read up to `bound` (not before `end`); sorted.

    Coarse ones, segments, segments divided at the starts of epochs and at `cuts`, and the same divided at
    each `FINE` where the bound is near.
    """
    near = range(_up(max(begin, bound - SEGMENT), FINE), end, FINE)
    coarse, segments = range(_up(begin, COARSE), end, COARSE), range(_up(begin, SEGMENT), end, SEGMENT)
    borders, found = {begin, end}, set()
    for further in (coarse, segments, (*epoch_starts, *cuts), near):
        borders |= {each for each in further if begin < each < end}
        found |= set(itertools.pairwise(sorted(borders)))
    return sorted(found)


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same without overlaps, sorted; neighbours are joined."""
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        elif start < end:
            found.append((start, end))
    return found


def missing(whole: Interval, covered: Iterable[Interval]) -> list[Interval]:
    """What of `whole` is not covered."""
    ends = [whole[0], *itertools.chain.from_iterable(union(covered)), whole[1]]
    gaps = (
        (max(start, whole[0]), min(end, whole[1])) for start, end in zip(ends[::2], ends[1::2], strict=True)
    )
    return [each for each in gaps if each[0] < each[1]]


def smallest(intervals: Iterable[Interval]) -> list[Interval]:
    """Those that contain no other one of them, sorted."""
    found: list[Interval] = []
    for start, end in sorted(set(intervals), key=lambda each: (each[0], -each[1])):
        while found and found[-1][0] <= start and end <= found[-1][1]:
            found.pop()
        found.append((start, end))
    return found


class SegmentDigest(NamedTuple):
    """What is known of the records that begin in `[start, end)`."""

    start: int
    end: int
    records: int
    digest: bytes
    """xxh3_128 of their bytes, one after the other; in a DLedger with the heads of their entries."""


class IntervalDigester:
    """Takes the digests of sorted intervals from the records of a file, in their order."""

    def __init__(self, intervals: Sequence[Interval], *, entries: bool = False) -> None:
        self._waiting = list(reversed(intervals))
        self._head = ENTRY_HEAD_SIZE if entries else 0
        self._open: list[tuple[Interval, list[int], xxhash.xxh3_128]] = []
        self._done: list[SegmentDigest] = []

    def take(self, chunk: Chunk) -> None:
        """The next records."""
        if not len(chunk.starts):
            return
        starts = chunk.starts - self._head
        ends = chunk.starts + chunk.sizes
        first, behind = chunk.base + int(starts[0]), chunk.base + int(ends[-1])
        while self._waiting and self._waiting[-1][0] < behind:
            self._open.append((self._waiting.pop(), [0], xxhash.xxh3_128()))
        breaks = np.flatnonzero(starts[1:] != ends[:-1]) + 1
        view = chunk.data.data
        self._close(first)
        for interval, count, digest in self._open:
            low, high = np.searchsorted(starts, [interval[0] - chunk.base, interval[1] - chunk.base]).tolist()
            inner = breaks[(breaks > low) & (breaks < high)].tolist()
            if low < high:
                for begin, end in itertools.pairwise([low, *inner, high]):
                    digest.update(view[int(starts[begin]) : int(ends[end - 1])])
                count[0] += high - low

    def finish(self) -> list[SegmentDigest]:
        """All digests, sorted; of intervals without a record as well."""
        self._open += [(interval, [0], xxhash.xxh3_128()) for interval in self._waiting]
        self._waiting = []
        self._close(2**63)
        return sorted(self._done)

    def _close(self, offset: int) -> None:
        """Finish the intervals that end there or before."""
        ended = [each for each in self._open if each[0][1] <= offset]
        self._open = [each for each in self._open if each[0][1] > offset]
        self._done += [
            SegmentDigest(*interval, count, digest.digest()) for interval, (count,), digest in ended
        ]


def thin(rows: Sequence[SegmentDigest]) -> list[SegmentDigest]:
    """At most about `ROWS_MAX` of them: what lies in a coarse stretch goes, oldest first."""
    excess = len(rows) - ROWS_MAX
    if excess <= 0:
        return list(rows)
    coarse = iter([each for each in rows if SEGMENT < each.end - each.start <= COARSE])
    around = next(coarse, None)
    kept: list[SegmentDigest] = []
    for row in rows:
        while around is not None and around.end <= row.start:
            around = next(coarse, None)
        if (
            excess > 0
            and around is not None
            and around.start <= row.start
            and row.end <= around.end
            and row != around
        ):
            excess -= 1
        else:
            kept.append(row)
    return kept


def encode_digests(rows: Sequence[SegmentDigest]) -> str:
    """Text for JSON: columns, compressed where that helps, in base 85."""
    table = np.zeros(len(rows), _TABLE)
    table["start"] = np.diff([0, *(each.start for each in rows)])
    table["length"] = [each.end - each.start for each in rows]
    table["count"] = [each.records for each in rows]
    table["digest"] = np.frombuffer(b"".join(each.digest for each in rows), "V16")
    return pack_columns(table)


def decode_digests(text: str) -> list[SegmentDigest]:
    """Read what `encode_digests` wrote; FormatError for anything else."""
    table = unpack_columns(text, _TABLE, "table of digests")
    starts, lengths = np.cumsum(table["start"]), table["length"]
    columns = starts.tolist(), (starts + lengths).tolist(), table["count"].tolist(), table["digest"].tolist()
    return list(map(SegmentDigest, *columns))


def pack_columns(table: np.ndarray[tuple[int], np.dtype[np.void]]) -> str:
    """The columns of a table, one after the other, compressed and in base 85."""
    columns = b"".join(np.ascontiguousarray(table[name]).tobytes() for name in table.dtype.names or ())
    return base64.b85encode(zlib.compress(columns, 6)).decode()


def unpack_columns(
    text: str, kind: np.dtype[np.void], what: str
) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """The reverse; FormatError for anything else."""
    try:
        raw = zlib.decompress(base64.b85decode(text))
    except (ValueError, zlib.error) as error:
        raise FormatError(f"a {what} that cannot be unpacked: {error}") from error
    count, rest = divmod(len(raw), kind.itemsize)
    if rest:
        raise FormatError(f"a {what} of {len(raw)} bytes, no multiple of {kind.itemsize}")
    table, at = np.empty(count, kind), 0
    for name in kind.names or ():
        table[name] = np.frombuffer(raw, kind[name], count, at)
        at += count * kind[name].itemsize
    return table
