"""What a task says of one range of a log: tables instead of records, on their way to the driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brokerset_spark.jobs.order.tables import LOGICAL, QUEUE, RUN, Table

RUNS_MAX: Final = 100_000
"""Runs of one range that are kept: 8 MB. A range of a sound log has one for each queue, producer and epoch;
what is beyond is counted, and its queues are reported as not judged."""

EXAMPLES_MAX: Final = 200
"""Bad records of one range that are named."""

EXAMPLES_EACH_MAX: Final = 3
"""Of one kind in one queue."""

KEYS_NAMED_MAX: Final = 10_000
"""Runs of one range whose first message's key is kept, so that a finding can name it."""

KEY_SHOWN: Final = 80
"""Characters of a key that are shown."""


@dataclass(frozen=True, slots=True)
class Example:
    """A record that has no stamp, one that cannot be read, or one that does not fit its key."""

    kind: str
    """`absent`, `unreadable` or `misplaced`."""

    group: int
    """Number of its queue."""

    place: int
    """Queue offset."""

    offset: int
    """In the log."""

    text: str


@dataclass(frozen=True, slots=True)
class RangePart:
    """One range. Queues and producers are numbers in `groups` and `producers`."""

    number: int
    """Of the range, in the order of the log."""

    groups: tuple[tuple[str, int], ...]
    """Topic and queue id."""

    producers: tuple[str, ...]
    queues: Table
    runs: Table
    logical: Table
    run_keys: Mapping[int, str]
    """By the run's offset."""

    hashes: Mapping[str, NDArray[np.uint64]]
    """By the topic, of its keys."""

    examples: tuple[Example, ...]
    unjudged: Mapping[int, int]
    """Messages by queue whose runs were not kept."""

    read: dict[str, Any]
    """Bytes that were read, what was damaged, whether the file went."""

    def pack(self) -> tuple[dict[str, Any], bytes]:
        """For the way to the driver: JSON values, and the tables as bytes."""
        tables: list[tuple[str, Table | NDArray[np.uint64]]] = [
            ("queues", self.queues), ("runs", self.runs), ("logical", self.logical),
            *self.hashes.items(),
        ]  # fmt: skip
        row = {
            "number": self.number,
            "groups": [list(each) for each in self.groups],
            "producers": list(self.producers),
            "lengths": [table.nbytes for _, table in tables],
            "topics": list(self.hashes),
            "runKeys": [[offset, key] for offset, key in self.run_keys.items()],
            "examples": [[e.kind, e.group, e.place, e.offset, e.text] for e in self.examples],
            "unjudged": [list(each) for each in self.unjudged.items()],
            "read": self.read,
        }
        return row, b"".join(table.tobytes() for _, table in tables)

    @classmethod
    def unpack(cls, row: Mapping[str, Any], data: bytes) -> RangePart:
        """The reverse."""
        at, pieces = 0, []
        for length in row["lengths"]:
            pieces.append(data[at : at + length])
            at += length
        kinds: tuple[Any, ...] = (QUEUE, RUN, LOGICAL, *(np.dtype("<u8") for _ in row["topics"]))
        tables = [np.frombuffer(piece, kind) for piece, kind in zip(pieces, kinds, strict=True)]
        return cls(
            number=row["number"],
            groups=tuple((topic, queue_id) for topic, queue_id in row["groups"]),
            producers=tuple(row["producers"]),
            queues=tables[0],
            runs=tables[1],
            logical=tables[2],
            run_keys=dict(row["runKeys"]),
            hashes=dict(zip(row["topics"], tables[3:], strict=True)),
            examples=tuple(Example(*each) for each in row["examples"]),
            unjudged=dict(row["unjudged"]),
            read=row["read"],
        )
