"""Which records of a source are taken, and in what form they can be compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from brokerset_formats.hashing import crc31
from brokerset_spark.jobs.migrate import tallies
from brokerset_spark.jobs.migrate.options import MigrateOptions, is_chosen
from brokerset_spark.jobs.migrate.tallies import topic_text
from brokerset_spark.kernels import KERNELS, Kernels
from brokerset_spark.kernels.contract import Bools, Bytes, Heads, Int32s, Int64s
from brokerset_spark.stores.reading import Chunk

PREPARED_BEFORE_BODY = 12
"""preparedTransactionOffset stands so many bytes before the body: it, and the body's length."""

_CRC_NAME = np.frombuffer(b"__CRC32#\x01", np.uint8)
_CRC_SIZE = len(_CRC_NAME) + 11
_TENS = 10 ** np.arange(10, dtype=np.int64)


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

    def to_row(self) -> dict[str, Any]:
        """As JSON values."""
        return {"keep": list(self.keep), "drop": list(self.drop), "start": self.start, "end": self.end}

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Selection:
        """What `to_row` gave."""
        return cls(tuple(row["keep"]), tuple(row["drop"]), row["start"], row["end"])

    @property
    def by_topic(self) -> bool:
        """Whether topics decide."""
        return bool(self.keep or self.drop)

    def chooses(self, topic: str) -> bool:
        """Whether a topic stays."""
        return is_chosen(topic, self.keep, self.drop)

    def mask(self, chunk: Chunk, kernels: Kernels = KERNELS) -> Bools:
        """Which records of a chunk stay."""
        offsets = chunk.base + chunk.starts
        wanted: Bools = (offsets >= self.start) & (offsets < self.end)
        if self.by_topic and len(offsets):
            names, ids = tallies.group_topics(chunk.data, kernels.heads(chunk.data, chunk.starts))
            wanted &= np.array([self.chooses(topic_text(name)) for name in names], np.bool_)[ids]
        return wanted


def property_crcs(data: Bytes, ends: NDArray[np.int64], sizes: Int32s) -> Int64s:
    """Which records (their numbers) end with a CRC over the whole record, as `enabledAppendPropCRC` makes
    it."""
    if not len(ends):
        return np.empty(0, np.int64)
    marks = np.maximum(ends - _CRC_SIZE, 0)
    found = np.flatnonzero((sizes > _CRC_SIZE) & (data[marks] == _CRC_NAME[0]) & (data[ends - 1] == 2))
    if len(found):
        same = data[marks[found][:, None] + np.arange(len(_CRC_NAME))] == _CRC_NAME
        found = found[same.all(axis=1)]
    return found.astype(np.int64)


def renew_property_crcs(out: Bytes, positions: Int64s, sizes: Int32s) -> int:
    """Make the CRCs of whole records right again after their offsets have changed; tells how many there are.

    One call for each: they cover whole records, and few brokers write them.
    """
    ends = positions + sizes
    found = property_crcs(out, ends, sizes)
    for start, end in zip(positions[found].tolist(), ends[found].tolist(), strict=True):
        value = crc31(out.data[start : end - _CRC_SIZE])
        out[end - 11 : end - 1] = value // _TENS % 10 + ord("0")
    return len(found)


def put_longs(out: Bytes, at: Int64s, values: Int64s) -> None:
    """Write big-endian numbers of 8 bytes to these positions."""
    out[at[:, None] + np.arange(8)] = values.astype(">i8").view(np.uint8).reshape(-1, 8)


class ContentDigest:
    """xxh3 over records without what a migration changes: their offsets, and CRCs that cover those.

    The same records give the same digest, however they are cut into chunks.
    """

    def __init__(self, kernels: Kernels = KERNELS) -> None:
        self._kernels = kernels
        self._digest = xxhash.xxh3_128()
        self._total = 0

    def add(self, data: Bytes, starts: Int64s, sizes: Int32s) -> Heads | None:
        """Take records in; gives their heads (of the data), None without records."""
        if not len(starts):
            return None
        ends: NDArray[np.int64] = np.cumsum(sizes, dtype=np.int64)
        positions = ends - sizes
        packed = np.empty(int(ends[-1]), np.uint8)
        self._kernels.to_records(data, starts, sizes, packed, positions, self._total)
        heads = self._kernels.heads(data, starts)
        with_prepared = np.flatnonzero(heads.prepared_transaction_offset)
        at = (
            heads.body[with_prepared]
            - starts[with_prepared]
            + positions[with_prepared]
            - PREPARED_BEFORE_BODY
        )
        put_longs(packed, at, np.zeros(len(at), np.int64))
        digits = ends[property_crcs(packed, ends, sizes)] - 11
        packed[digits[:, None] + np.arange(10)] = 0
        self._digest.update(packed.data)
        self._total += len(packed)
        return heads

    def hexdigest(self) -> str:
        """The digest so far."""
        return self._digest.hexdigest()
