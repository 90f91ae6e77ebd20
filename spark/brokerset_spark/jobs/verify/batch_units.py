"""Units of batch queues (`batchconsumequeue`, topics with `queue.type=BatchCQ`): one of 46 bytes for each
record, an inner batch or a single message.

A batch queue has no place for each queue offset: its units follow each other without a hole, in the order of
the log, and each says with which queue offset its batch begins (`msgBaseOffset`) and how many messages it
has. In reports the offset of a unit is that of its first byte in the files of its queue.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from brokerset_formats.queue_units import BATCH_UNIT_SIZE
from brokerset_spark.jobs.verify.ending import Witness
from brokerset_spark.jobs.verify.units import legal_topic
from brokerset_spark.kernels.contract import Int64s
from brokerset_spark.stores.folder import StoreFolder

BATCH_QUEUES: Final = "batchconsumequeue"

UNIT: Final = np.dtype(
    [
        ("offset", ">i8"), ("size", ">i4"), ("tags", ">i8"), ("time", ">i8"), ("base", ">i8"),
        ("count", ">i2"), ("compacted", ">i4"), ("reserved", ">i4"),
    ]
)  # fmt: skip
assert UNIT.itemsize == BATCH_UNIT_SIZE

Units = NDArray[np.void]
Queue = tuple[str, int]

BLOCK: Final = 32_768
"""Units that are read at once."""

SLACK: Final = 16
"""Units that are read besides those that are expected, before a whole queue is searched."""

_NAME: Final = re.compile(r"\d{20}")


@dataclass(frozen=True, slots=True)
class BatchFile:
    """One file of a batch queue; `first` and `end` are numbers of units."""

    path: str
    first: int
    end: int


class BatchReader:
    """Units of any batch queue of a store; lists of files are read once."""

    def __init__(self, folder: StoreFolder) -> None:
        self._folder = folder
        self._files: dict[tuple[str, int], list[BatchFile]] = {}

    def files(self, topic: str, queue_id: int) -> list[BatchFile]:
        """The files of a queue in their order; none if there is no such queue."""
        key = (topic, queue_id)
        if key not in self._files:
            found = []
            if legal_topic(topic) and queue_id >= 0:
                for facts in self._folder.files(f"{BATCH_QUEUES}/{topic}/{queue_id}"):
                    name = facts.path.rpartition("/")[2]
                    if _NAME.fullmatch(name):
                        first = int(name) // BATCH_UNIT_SIZE
                        found.append(BatchFile(facts.path, first, first + facts.size // BATCH_UNIT_SIZE))
            self._files[key] = found
        return self._files[key]

    def file_of(self, topic: str, queue_id: int, number: int) -> str:
        """Path of the file that has this unit, or must have it."""
        files = self.files(topic, queue_id)
        for each in reversed(files):
            if each.first <= number:
                return each.path
        return files[0].path if files else f"{BATCH_QUEUES}/{topic}/{queue_id}"

    def read(self, topic: str, queue_id: int, first: int, count: int) -> Units:
        """Units from number `first` on; zeros where there is no file."""
        found = np.zeros(count, UNIT)
        raw = found.view(np.uint8).data
        for each in self.files(topic, queue_id):
            begin, end = max(first, each.first), min(first + count, each.end)
            if begin < end:
                target = raw[(begin - first) * BATCH_UNIT_SIZE : (end - first) * BATCH_UNIT_SIZE]
                self._folder.read_into(each.path, (begin - each.first) * BATCH_UNIT_SIZE, target)
        return found

    def blocks(self, topic: str, queue_id: int) -> Iterator[tuple[int, Units]]:
        """All units, piece by piece, with the number of the first one; pieces of zeros are left out."""
        for file in self.files(topic, queue_id):
            for first in range(file.first, file.end, BLOCK):
                units = self.read(topic, queue_id, first, min(BLOCK, file.end - first))
                if units.view(np.uint8).any():
                    yield first, units

    def first_unit(self, topic: str, queue_id: int) -> tuple[int, np.void] | None:
        """The number of the first unit that was written, and the unit."""
        for first, units in self.blocks(topic, queue_id):
            at = int(np.argmax(units["size"] > 0))
            if units["size"][at] > 0:
                return first + at, units[at]
        return None

    def last_unit(self, topic: str, queue_id: int) -> tuple[int, np.void] | None:
        """The number of the last unit that was written, found by halving, and the unit."""
        for file in reversed(self.files(topic, queue_id)):
            low, high = file.first, file.end  # units below `low` are there, from `high` on they are not
            while low < high:
                middle = (low + high) // 2
                if self.read(topic, queue_id, middle, 1)[0]["size"] > 0:
                    low = middle + 1
                else:
                    high = middle
            if low > file.first:
                return low - 1, self.read(topic, queue_id, low - 1, 1)[0]
        return None

    def place_of(self, topic: str, queue_id: int, offset: int, wrong: Collection[int]) -> int:
        """The number that the unit of a record at this offset should have: behind the last one that points
        before it. Units that are `wrong` do not count. Looks at all units."""
        files = self.files(topic, queue_id)
        place = files[0].first if files else 0
        for first, units in self.blocks(topic, queue_id):
            before = np.flatnonzero((units["size"] > 0) & (units["offset"] < offset))
            right = [first + at for at in before[-len(wrong) - 1 :].tolist() if first + at not in wrong]
            place = max(place, right[-1] + 1) if right else place
        return place

    def match(self, topic: str, queue_id: int, offsets: Int64s) -> tuple[Int64s, Units]:
        """For records at these offsets of the log, ascending: the number of the unit that points to each, -1
        for none; and the units, zeros for none.

        Units are searched by halves first. Only if that misses some, which takes a damaged unit or one that
        is not there, all units are looked at.
        """
        numbers = np.full(len(offsets), -1, np.int64)
        found = np.zeros(len(offsets), UNIT)
        at = self._search(topic, queue_id, int(offsets[0]))
        self._take(offsets, numbers, found, at, self.read(topic, queue_id, at, len(offsets) + SLACK))
        if (numbers < 0).any():
            for first, units in self.blocks(topic, queue_id):
                self._take(offsets, numbers, found, first, units)
        return numbers, found

    def _search(self, topic: str, queue_id: int, offset: int) -> int:
        """The first unit that points to this offset or behind it, or was never written."""
        files = self.files(topic, queue_id)
        low, high = (files[0].first, files[-1].end) if files else (0, 0)
        while low < high:
            middle = (low + high) // 2
            unit = self.read(topic, queue_id, middle, 1)[0]
            if unit["size"] <= 0 or unit["offset"] >= offset:
                high = middle
            else:
                low = middle + 1
        return low

    @staticmethod
    def _take(offsets: Int64s, numbers: Int64s, found: Units, first: int, units: Units) -> None:
        """Note which of the offsets these units point to, for those without a unit so far."""
        pointed = units["offset"].astype(np.int64)
        places = np.searchsorted(offsets, pointed)
        inside = np.flatnonzero((places < len(offsets)) & (units["size"] > 0))
        inside = inside[offsets[places[inside]] == pointed[inside]]
        inside = inside[numbers[places[inside]] < 0]
        chosen, at = np.unique(places[inside], return_index=True)  # of several units the first one counts
        numbers[chosen], found[chosen] = first + inside[at], units[inside[at]]


def batch_queues(folder: StoreFolder) -> list[Queue]:
    """All batch queues of a store."""
    return [
        (topic, int(name))
        for topic in folder.folders(BATCH_QUEUES)
        for name in folder.folders(f"{BATCH_QUEUES}/{topic}")
        if name.isdigit()
    ]


def batch_folders(folder: StoreFolder) -> list[tuple[str, str]]:
    """Folders of batch queues, and what they are for people."""
    return [
        (f"{BATCH_QUEUES}/{topic}/{queue_id}", f"batch queue {topic}/{queue_id}")
        for topic, queue_id in batch_queues(folder)
    ]


def batch_witnesses(folder: StoreFolder) -> list[Witness]:
    """The last unit of each batch queue: the log has its record."""
    reader = BatchReader(folder)
    found = []
    for topic, queue_id in batch_queues(folder):
        last = reader.last_unit(topic, queue_id)
        if last is not None and last[1]["offset"] >= 0:
            who = f"batch queue {topic}/{queue_id}, byte {last[0] * BATCH_UNIT_SIZE}"
            place = (topic, queue_id, int(last[1]["base"]))
            found.append(Witness(int(last[1]["offset"]), int(last[1]["size"]), who, place))
    return found
