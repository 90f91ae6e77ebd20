"""What the checks of queues need of records: columns, from a chunk of the log."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import numpy as np

from brokerset_formats.names import SCHEDULE_TOPIC
from brokerset_formats.records import SysFlag
from brokerset_spark.jobs.dispatch import is_dispatched, tags_codes
from brokerset_spark.kernels import KERNELS, Heads, Texts
from brokerset_spark.kernels.contract import Bools, Bytes, Int32s, Int64s
from brokerset_spark.stores.reading import Chunk


@dataclass(slots=True)
class Topics:
    """Topics by number, in the order in which they were met."""

    names: list[bytes] = field(default_factory=list)
    numbers: dict[bytes, int] = field(default_factory=dict)

    def number(self, name: bytes) -> int:
        """Of this topic, a new one for a new topic."""
        found = self.numbers.get(name)
        if found is None:
            found = self.numbers[name] = len(self.names)
            self.names.append(name)
        return found


@dataclass(frozen=True, slots=True)
class Columns:
    """Records in the order of the log."""

    topic: Int32s
    """Number in `Topics`."""

    queue_id: Int32s
    queue_offset: Int64s
    offset: Int64s
    size: Int32s
    time: Int64s
    tags_code: Int64s
    """What the unit must have."""

    delayed: Bools
    """Whether `tags_code` is a time of delivery."""

    queued: Bools
    """Whether the record must have a unit of 20 bytes: no half or rolled back record, no inner batch."""

    @classmethod
    def joined(cls, parts: list[Self]) -> Self:
        """One behind the other."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__slots__))

    def of(self, rows: Int64s) -> Columns:
        """Some of the records."""
        return Columns(*(getattr(self, name)[rows] for name in self.__slots__))


def topic_numbers(data: Bytes, heads: Heads, topics: Topics) -> Int32s:
    """The number of each record's topic."""
    codes, firsts = KERNELS.number_texts(data, Texts(heads.topic, heads.topic_size))
    bounds = zip(heads.topic[firsts].tolist(), heads.topic_size[firsts].tolist(), strict=True)
    numbers = [topics.number(data[start : start + size].tobytes()) for start, size in bounds]
    if numbers == list(range(len(numbers))):
        return codes
    found: Int32s = np.array(numbers, np.int32)[codes]
    return found


def columns_of(chunk: Chunk, heads: Heads, topics: Topics, delays: list[int]) -> Columns:
    """The columns of a chunk's records."""
    numbers = topic_numbers(chunk.data, heads, topics)
    delayed = np.flatnonzero(numbers == topics.numbers.get(SCHEDULE_TOPIC.encode(), -1))
    codes, is_time = tags_codes(chunk.data, heads, delayed, delays)
    return Columns(
        topic=numbers,
        queue_id=heads.queue_id.copy(),
        queue_offset=heads.queue_offset.copy(),
        offset=chunk.base + chunk.starts,
        size=chunk.sizes.copy(),
        time=heads.store_timestamp.copy(),
        tags_code=codes,
        delayed=is_time,
        queued=is_dispatched(heads) & ((heads.sys_flag & SysFlag.INNER_BATCH) == 0),
    )
