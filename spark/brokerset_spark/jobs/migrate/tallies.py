"""Counting records by topic and queue, whole arrays at a time. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brokerset_spark.kernels.contract import Bytes, Heads

Names = list[bytes]
_MIX: Final = np.random.default_rng(20_260_101).integers(1, 2**63, 65_536, np.uint64) | np.uint64(1)
"""Multipliers that tell names apart; what they do not is compared byte by byte."""


def group_topics(data: Bytes, heads: Heads) -> tuple[Names, NDArray[np.intp]]:
    """The topics of some records, and for each record which of them it has."""
    names: Names = []
    ids = np.zeros(len(heads.topic), np.intp)
    known: dict[bytes, int] = {}
    for size in np.unique(heads.topic_size).tolist():
        rows = np.flatnonzero(heads.topic_size == size)
        matrix = data[heads.topic[rows][:, None] + np.arange(size)]
        mixed = (matrix.astype(np.uint64) * _MIX[:size]).sum(axis=1, dtype=np.uint64)
        _, first, inverse = np.unique(mixed, return_index=True, return_inverse=True)
        if not np.array_equal(matrix[first][inverse], matrix):
            _, first, inverse = np.unique(matrix, axis=0, return_index=True, return_inverse=True)
            inverse = inverse.reshape(-1)
        places = np.empty(len(first), np.intp)
        for number, row in enumerate(first.tolist()):
            name = matrix[row].tobytes()
            places[number] = known.setdefault(name, len(known))
            if places[number] == len(names):
                names.append(name)
        ids[rows] = places[inverse]
    return names, ids


@dataclass(slots=True)
class Tally:
    """Sums over the records of one queue."""

    count: int = 0
    size: int = 0
    """Bytes of the records, without entry heads."""

    crc_sum: int = 0
    queue_offset_sum: int = 0
    queue_offset_min: int = 2**63 - 1
    queue_offset_max: int = -1
    last: int = -1
    """Offset of the last record in the log."""

    def add(self, other: Tally) -> None:
        """Take in another one that lies behind."""
        self.count += other.count
        self.size += other.size
        self.crc_sum += other.crc_sum
        self.queue_offset_sum += other.queue_offset_sum
        self.queue_offset_min = min(self.queue_offset_min, other.queue_offset_min)
        self.queue_offset_max = max(self.queue_offset_max, other.queue_offset_max)
        self.last = max(self.last, other.last)

    @property
    def content(self) -> tuple[int, ...]:
        """What a migration does not change."""
        return (
            self.count,
            self.size,
            self.crc_sum,
            self.queue_offset_sum,
            self.queue_offset_min,
            self.queue_offset_max,
        )


Queue = tuple[str, int]
Tallies = dict[Queue, Tally]


def merge(tallies: Tallies, rows: Iterable[list[Any]]) -> None:
    """Take in what `to_rows` gave elsewhere."""
    for topic, queue_id, *values in rows:
        tallies.setdefault((topic, queue_id), Tally()).add(Tally(*values))


def to_rows(tallies: Tallies) -> list[list[Any]]:
    """As JSON values."""
    return [
        [topic, queue_id, *tally.content, tally.last] for (topic, queue_id), tally in sorted(tallies.items())
    ]


def differences(before: Tallies, after: Tallies, describe: Callable[[Queue], str] = str) -> list[str]:
    """Where two of them do not agree, each a sentence."""
    found = []
    for queue in sorted(before.keys() | after.keys()):
        one, other = before.get(queue, Tally()), after.get(queue, Tally())
        if one.content != other.content:
            found.append(f"queue {describe(queue)}: {one.content} before, {other.content} after")
    return found
