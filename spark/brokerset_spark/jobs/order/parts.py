"""What a task says of one range of a log: tables instead of records, on their way to the fold."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from brokerset_spark.jobs.order.tables import Table

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

    def pack(self) -> str:
        """For the way to the reducer, whose rows are JSON."""
        return base64.b64encode(pickle.dumps(self)).decode()

    @classmethod
    def unpack(cls, packed: str) -> RangePart:
        """The reverse, in another process of the same job."""
        found = pickle.loads(base64.b64decode(packed))
        assert isinstance(found, cls)
        return found
