"""The records of a file by topic and queue: which group each belongs to, and sums over each group. No I/O.

Groups get numbers as they appear. Names are kept once for a file, not for each chunk, so that small chunks,
which stay in the processor's cache, cost no more than large ones.
"""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from brokerset_spark.jobs.dispatch import topic_text
from brokerset_spark.jobs.migrate import pure_loops
from brokerset_spark.jobs.migrate.tallies import Names, Tallies, Tally, group_topics
from brokerset_spark.kernels import KERNELS
from brokerset_spark.kernels.contract import Bools, Bytes, Heads, Int32s, Int64s

SUMS: Final = 7
"""Columns of a group: records, bytes, sums of CRCs and of queue offsets, lowest and highest queue offset,
last offset."""

_EMPTY: Final = (0, 0, 0, 0, 2**63 - 1, -1, -1)
_GROUPS_FIRST: Final = 64
_NAME_BYTES_FIRST: Final = 4096


class Loops(Protocol):
    """What `loops` and `pure_loops` both have."""

    def find_crcs(self, data: Bytes, starts: Int64s, sizes: Int32s, found: Int64s) -> int:
        """See `loops.find_crcs`."""
        ...

    def pack(
        self, data: Bytes, starts: Int64s, sizes: Int32s, out: Bytes, total: int
    ) -> tuple[int, int, int]:
        """See `loops.pack`."""
        ...


class Groups:
    """The plain way: whole columns at a time."""

    def __init__(self) -> None:
        self.topics: Names = []
        """Names in the order of their numbers."""

        self.queue_ids: list[int] = []
        """Of each group."""

        self.topic_numbers: list[int] = []
        """Number of the topic of each group."""

        self._sums = np.empty((0, SUMS), np.int64)
        self._numbers: dict[bytes, int] = {}
        self._groups: dict[tuple[bytes, int], int] = {}

    def number(self, data: Bytes, heads: Heads) -> Int64s:
        """The group of each of these records."""
        names, ids = group_topics(data, heads)
        keys = (ids.astype(np.int64) << 32) | (heads.queue_id.astype(np.int64) + 2**31)
        _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        numbers = np.empty(len(first), np.int64)
        for place in np.argsort(first).tolist():
            row = int(first[place])
            name, queue_id = names[ids[row]], int(heads.queue_id[row])
            if (group := self._groups.get((name, queue_id))) is None:
                group = self._groups[name, queue_id] = len(self._groups)
                self._learn(name, queue_id)
            numbers[place] = group
        found: Int64s = numbers[inverse.reshape(-1)]
        return found

    def add(self, groups: Int64s, heads: Heads, sizes: Int32s, wanted: Bools) -> int:
        """Count the wanted ones of these records; tells how many there are."""
        self._make_room()
        rows = np.flatnonzero(wanted)
        at, sums = groups[rows], self._sums
        np.add.at(sums[:, 0], at, 1)
        for column, values in ((1, sizes), (2, heads.body_crc), (3, heads.queue_offset)):
            np.add.at(sums[:, column], at, values[rows].astype(np.int64))
        np.minimum.at(sums[:, 4], at, heads.queue_offset[rows])
        np.maximum.at(sums[:, 5], at, heads.queue_offset[rows])
        np.maximum.at(sums[:, 6], at, heads.offset[rows])
        return len(rows)

    def tallies(self) -> Tallies:
        """What was counted; groups without a wanted record are left out."""
        found: Tallies = {}
        for group, values in enumerate(self._sums.tolist()):
            if values[0]:
                topic = topic_text(self.topics[self.topic_numbers[group]])
                found.setdefault((topic, self.queue_ids[group]), Tally()).add(Tally(*values))
        return found

    def _learn(self, name: bytes, queue_id: int) -> None:
        self.queue_ids.append(queue_id)
        number = self._numbers.setdefault(name, len(self._numbers))
        self.topic_numbers.append(number)
        if number == len(self.topics):
            self.topics.append(name)

    def _make_room(self) -> None:
        more = len(self.queue_ids) - len(self._sums)
        if more > 0:
            more = max(more, len(self._sums), _GROUPS_FIRST)
            self._sums = np.concatenate((self._sums, np.tile(np.array(_EMPTY, np.int64), (more, 1))))


if KERNELS.NAME == "compiled":
    from brokerset_spark.jobs.migrate import loops

    LOOPS: Loops = loops

    class CompiledGroups(Groups):
        """One pass over the records; the same numbers and sums as the plain way."""

        def __init__(self) -> None:
            super().__init__()
            self._table = np.zeros(4 * _GROUPS_FIRST, np.int32)
            self._queues = np.empty(_GROUPS_FIRST, np.int64)
            self._starts = np.empty(_GROUPS_FIRST, np.int64)
            self._sizes = np.empty(_GROUPS_FIRST, np.int32)
            self._names = np.empty(_NAME_BYTES_FIRST, np.uint8)
            self._used = 0

        def number(self, data: Bytes, heads: Heads) -> Int64s:
            """See `Groups`."""
            groups = np.empty(len(heads.topic), np.int64)
            row = 0
            while True:
                known = len(self.queue_ids)
                row, count, self._used = loops.number_groups(
                    data, heads.topic, heads.topic_size, heads.queue_id, row, groups,
                    self._table, self._queues, self._starts, self._sizes, self._names, known, self._used,
                )  # fmt: skip
                if row < 0:
                    raise ValueError("the name of a topic leaves the data")
                for group in range(known, count):
                    start = int(self._starts[group])
                    name = self._names[start : start + int(self._sizes[group])].tobytes()
                    self._learn(name, int(self._queues[group]))
                if row == len(groups):
                    return groups
                self._grow(int(heads.topic_size[row]))

        def add(self, groups: Int64s, heads: Heads, sizes: Int32s, wanted: Bools) -> int:
            """See `Groups`."""
            self._make_room()
            return loops.sum_groups(
                groups, wanted, sizes, heads.body_crc, heads.queue_offset, heads.offset, self._sums
            )

        def _grow(self, name_size: int) -> None:
            """Make room for another group: twice as much of what is short."""
            count = len(self.queue_ids)
            if count == len(self._queues):
                self._queues = np.concatenate((self._queues, np.empty_like(self._queues)))
                self._starts = np.concatenate((self._starts, np.empty_like(self._starts)))
                self._sizes = np.concatenate((self._sizes, np.empty_like(self._sizes)))
                self._table = np.zeros(2 * len(self._table), np.int32)
                mask = len(self._table) - 1
                for group in range(count):
                    place = loops.hash_of(
                        self._names,
                        int(self._starts[group]),
                        int(self._sizes[group]),
                        int(self._queues[group]),
                    )
                    while self._table[place & mask]:
                        place += 1
                    self._table[place & mask] = group + 1
            if self._used + name_size > len(self._names):
                self._names = np.concatenate((self._names, np.empty(len(self._names) + name_size, np.uint8)))

    new_groups: type[Groups] = CompiledGroups
else:
    LOOPS = pure_loops
    new_groups = Groups


def topic_ids(groups: Groups, numbers: Int64s) -> NDArray[np.intp]:
    """The number of the topic of each record, from that of its group."""
    found: NDArray[np.intp] = np.array(groups.topic_numbers, np.intp)[numbers]
    return found
