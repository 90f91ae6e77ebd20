"""Which records of a source are taken, and in what form they can be compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from brokerset_formats.records import PROPERTY_CRC_SIZE, property_crc_of
from brokerset_spark.jobs.migrate.options import MigrateOptions, is_chosen
from brokerset_spark.jobs.migrate.tallies import Groups
from brokerset_spark.kernels import KERNELS
from brokerset_spark.kernels.contract import Bools, Bytes, Heads, Int32s, Int64s
from brokerset_spark.stores.reading import Chunk

PREPARED_BEFORE_BODY = 12
"""preparedTransactionOffset stands so many bytes before the body: it, and the body's length."""

PIECE: Final = 1 << 20
"""Bytes of a log that are read at once. Fewer than in other jobs: what is read stays in the processor's cache
until it is written."""

BLOCK: Final = 256 << 10
"""Bytes that are made, hashed and written at once, for the same reason."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What `MigrateOptions` choose, with offsets instead of times."""

    keep: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    start: int = 0
    end: int = 2**63 - 1

    @classmethod
    def of(
        cls, options: MigrateOptions, start: int, end: int, *, also_drop: tuple[str, ...] = ()
    ) -> Selection:
        """Between these offsets."""
        return cls(options.keep_topics, (*options.drop_topics, *also_drop), start, end)

    @property
    def by_topic(self) -> bool:
        """Whether topics decide."""
        return bool(self.keep or self.drop)

    def chooses(self, topic: str) -> bool:
        """Whether a topic stays."""
        return is_chosen(topic, self.keep, self.drop)


class Chooser:
    """Applies a selection to the chunks of one file, and knows their topics and queues."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self.groups = Groups()
        self._chosen = np.empty(0, np.bool_)

    def choose(self, chunk: Chunk, heads: Heads, dropped: dict[str, int]) -> tuple[Int64s, Bools]:
        """The group of each record, and whether it stays; `dropped` counts those that go for their topic."""
        numbers = self.groups.number(chunk.data, heads)
        mask = self._inside(heads.offset)
        if self._selection.by_topic:
            chosen = self._chosen_groups()[numbers]
            if not chosen.all():
                gone = np.bincount(numbers[mask & ~chosen], minlength=len(self._chosen))
                for group in np.flatnonzero(gone).tolist():
                    topic = self.groups.queues[group][0]
                    dropped[topic] = dropped.get(topic, 0) + int(gone[group])
                mask &= chosen
        return numbers, mask

    def rows(self, chunk: Chunk) -> Int64s | None:
        """Which records of a chunk stay; None for all of them."""
        selection = self._selection
        if not selection.by_topic and selection.start <= chunk.begin and chunk.end <= selection.end:
            return None
        mask = self._inside(chunk.base + chunk.starts)
        if selection.by_topic and len(mask):
            heads = KERNELS.heads(chunk.data, chunk.starts)
            numbers = self.groups.number(chunk.data, heads)
            mask &= self._chosen_groups()[numbers]
        rows = np.flatnonzero(mask)
        return None if len(rows) == len(mask) else rows

    def _inside(self, offsets: Int64s) -> Bools:
        found: Bools = (offsets >= self._selection.start) & (offsets < self._selection.end)
        return found

    def _chosen_groups(self) -> Bools:
        """For each group, whether its topic stays."""
        more = self.groups.queues[len(self._chosen) :]
        if more:
            chosen = np.array([self._selection.chooses(topic) for topic, _ in more], np.bool_)
            self._chosen = np.concatenate((self._chosen, chosen))
        return self._chosen


def renew_property_crcs(out: Bytes, positions: Int64s, sizes: Int32s) -> int:
    """Make the CRCs of whole records right again after their offsets have changed; gives how many."""
    found = KERNELS.find_crcs(out, positions, sizes)
    ends = positions[found] + sizes[found]
    view = out.data
    for start, end in zip(positions[found].tolist(), ends.tolist(), strict=True):
        crc = end - PROPERTY_CRC_SIZE
        view[crc:end] = property_crc_of(view[start:crc])
    return len(found)


def put_longs(out: Bytes, at: Int64s, values: Int64s) -> None:
    """Write big-endian numbers of 8 bytes to these positions."""
    out[at[:, None] + np.arange(8)] = values.astype(">i8").view(np.uint8).reshape(-1, 8)


class ContentDigest:
    """xxh3 over records without what a migration changes: their offsets, and CRCs that cover those.

    The same records give the same digest, however they are divided into chunks.
    """

    def __init__(self) -> None:
        self._digest = xxhash.xxh3_128()
        self._total = 0
        self._packed = np.empty(BLOCK, np.uint8)

    def add(self, data: Bytes, starts: Int64s, sizes: Int32s) -> tuple[int, int]:
        """Take records in; how many of them name a half message, and how many have a CRC over all of them."""
        named = crcs = 0
        for rows, size in blocks(sizes):
            if size > len(self._packed):
                self._packed = np.empty(size, np.uint8)
            packed = KERNELS.pack(data, starts[rows], sizes[rows], self._packed, self._total)
            self._digest.update(self._packed.data[:size])
            self._total += size
            named, crcs = named + packed.named, crcs + packed.crcs
        return named, crcs

    def hexdigest(self) -> str:
        """The digest so far."""
        return self._digest.hexdigest()


def blocks(sizes: NDArray[Any]) -> Iterator[tuple[slice, int]]:
    """Rows, some `BLOCK` bytes at a time, with the bytes that they take; a longer one stands alone."""
    ends: NDArray[np.int64] = np.cumsum(sizes, dtype=np.int64)
    first = begin = 0
    while first < len(sizes):
        last = max(int(np.searchsorted(ends, begin + BLOCK, "right")), first + 1)
        end = int(ends[last - 1])
        yield slice(first, last), end - begin
        first, begin = last, end
