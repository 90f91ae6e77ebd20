"""Digests of stretches of a log: taking them in one pass, and keeping many of them in little room."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import xxhash

from brokerset_formats.dledger import ENTRY_HEAD_SIZE
from brokerset_formats.errors import FormatError
from brokerset_spark.jobs.audit.intervals import COARSE, SEGMENT, Interval
from brokerset_spark.stores.reading import Chunk

DIGEST_SIZE: Final = 16
ROWS_MAX: Final = 32_768
"""Digests in a map. With more, segments of the oldest part of the log leave their place to coarse
ones, so that
a map of a terabyte stays below a megabyte."""

_TABLE: Final = np.dtype([("start", "<i8"), ("length", "<i8"), ("count", "<u4"), ("digest", "V16")])


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
        still = []
        for interval, count, digest in self._open:
            if interval[1] <= first:
                self._close(interval, count[0], digest)
                continue
            low, high = np.searchsorted(starts, [interval[0] - chunk.base, interval[1] - chunk.base]).tolist()
            inner = breaks[(breaks > low) & (breaks < high)].tolist()
            if low < high:
                for begin, end in zip([low, *inner], [*inner, high], strict=True):
                    digest.update(view[int(starts[begin]) : int(ends[end - 1])])
                count[0] += high - low
            still.append((interval, count, digest))
        self._open = still

    def finish(self) -> list[SegmentDigest]:
        """All digests, sorted; of intervals without a record as well."""
        for interval, count, digest in self._open:
            self._close(interval, count[0], digest)
        for interval in self._waiting:
            self._close(interval, 0, xxhash.xxh3_128())
        self._open, self._waiting = [], []
        return sorted(self._done)

    def _close(self, interval: Interval, count: int, digest: xxhash.xxh3_128) -> None:
        self._done.append(SegmentDigest(*interval, count, digest.digest()))


def thin(rows: Sequence[SegmentDigest]) -> list[SegmentDigest]:
    """At most about `ROWS_MAX` of them: what lies in a coarse stretch goes, oldest first."""
    excess = len(rows) - ROWS_MAX
    if excess <= 0:
        return list(rows)
    coarse = [each for each in rows if SEGMENT < each.end - each.start <= COARSE]
    kept: list[SegmentDigest] = []
    number = 0
    for row in rows:
        while number < len(coarse) and coarse[number].end <= row.start:
            number += 1
        inside = (
            number < len(coarse)
            and coarse[number].start <= row.start
            and row.end <= coarse[number].end
            and row != coarse[number]
        )
        if inside and excess > 0:
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
    columns = b"".join(np.ascontiguousarray(table[name]).tobytes() for name in _TABLE.names or ())
    return base64.b85encode(zlib.compress(columns, 6)).decode()


def decode_digests(text: str) -> list[SegmentDigest]:
    """Read what `encode_digests` wrote; FormatError for anything else."""
    try:
        raw = zlib.decompress(base64.b85decode(text))
    except (ValueError, zlib.error) as error:
        raise FormatError(f"a table of digests that cannot be unpacked: {error}") from error
    count, rest = divmod(len(raw), _TABLE.itemsize)
    if rest:
        raise FormatError(f"a table of digests of {len(raw)} bytes, no multiple of {_TABLE.itemsize}")
    starts = np.cumsum(np.frombuffer(raw, "<i8", count)).tolist()
    lengths = np.frombuffer(raw, "<i8", count, 8 * count).tolist()
    counts = np.frombuffer(raw, "<u4", count, 16 * count).tolist()
    digests = raw[20 * count :]
    return [
        SegmentDigest(start, start + length, number, digests[at * DIGEST_SIZE : (at + 1) * DIGEST_SIZE])
        for at, (start, length, number) in enumerate(zip(starts, lengths, counts, strict=True))
    ]
