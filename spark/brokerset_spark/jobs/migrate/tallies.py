"""Counting the records of a file by topic and queue, whole arrays at a time. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from brokerset_spark.jobs.dispatch import topic_text
from brokerset_spark.kernels import GROUP_SUMS, KERNELS, Heads, Texts
from brokerset_spark.kernels.contract import Bools, Bytes, Int32s, Int64s

_EMPTY: Final = (0, 0, 0, 0, 2**63 - 1, -1, -1)
assert len(_EMPTY) == GROUP_SUMS


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


class Groups:
    """The groups (topic and queue id) of the records of one file, numbered as they appear, and their sums."""

    def __init__(self) -> None:
        self._groups = KERNELS.new_groups()
        self._sums = np.empty((0, GROUP_SUMS), np.int64)
        self._topic_numbers: dict[bytes, int] = {}
        self.queues: list[Queue] = []
        """Of each group."""

        self.topics: list[int] = []
        """Number of the topic of each group."""

    @property
    def names(self) -> list[bytes]:
        """Topics in the order of their numbers."""
        return list(self._topic_numbers)

    def number(self, data: Bytes, heads: Heads) -> Int64s:
        """The group of each of these records."""
        found = self._groups.number(data, Texts(heads.topic, heads.topic_size), heads.queue_id)
        for group in range(len(self.queues), len(self._groups)):
            name, queue_id = self._groups.group(group)
            self.queues.append((topic_text(name), queue_id))
            self.topics.append(self._topic_numbers.setdefault(name, len(self._topic_numbers)))
        return found

    def add(self, groups: Int64s, heads: Heads, sizes: Int32s, wanted: Bools) -> int:
        """Count the wanted ones of these records; gives how many there are."""
        more = len(self.queues) - len(self._sums)
        if more > 0:
            rows = np.tile(np.array(_EMPTY, np.int64), (max(more, len(self._sums)), 1))
            self._sums = np.concatenate((self._sums, rows))
        return KERNELS.sum_groups(groups, wanted, sizes, heads, self._sums)

    def tallies(self) -> Tallies:
        """What was counted; groups without a wanted record are left out."""
        found: Tallies = {}
        for queue, values in zip(self.queues, self._sums.tolist(), strict=False):
            if values[0]:
                found.setdefault(queue, Tally()).add(Tally(*values))
        return found
