"""From offsets to tasks: how much of each queue goes into a batch, and how that is divided among tasks.

The rules are those of Spark's Kafka source (`KafkaMicroBatchStream.rateLimit`, `KafkaOffsetRangeCalculator`);
short ranges are put together, as a task costs more than they do.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from brokerset_spark.topics.offsets import Mark, QueueKey

SHORT: Final = 2000
"""Records up to which ranges share a task; starting a task costs about as much as to read so many."""


@dataclass(frozen=True, slots=True)
class Range:
    """Records `[start, end)` of a queue."""

    key: QueueKey
    start: int
    end: int
    partition: int = 0
    """Number of the queue within its topic."""

    mark: Mark | None = None
    """Of the record before `start`, if it is to be compared."""

    holes: bool = False
    """Whether records may be missing in between: the topic is compacted."""

    def __len__(self) -> int:
        return max(0, self.end - self.start)


def limited(begins: Mapping[QueueKey, int], ends: Mapping[QueueKey, int], most: int) -> dict[QueueKey, int]:
    """Ends for at most `most` records in sum, in proportion to what each queue has.

    A queue with anything gets at least one record of a share below one, so the sum may exceed `most` by the
    number of queues at the utmost, as with Kafka.
    """
    sizes = {key: max(0, end - begins.get(key, end)) for key, end in ends.items()}
    total = sum(sizes.values())
    if total <= most:
        return dict(ends)
    found = {}
    for key, end in ends.items():
        share = most * sizes[key] / total
        count = math.ceil(share) if share < 1 else math.floor(share)
        found[key] = min(end, begins[key] + count) if sizes[key] else end
    return found


def divided(ranges: Iterable[Range], *, tasks_min: int = 0, records_max: int = 0) -> list[tuple[Range, ...]]:
    """Ranges for each task. Neither bound (0: none) makes an empty range.

    `records_max` divides each range into equal parts of at most so many records; `tasks_min` divides large
    ranges further, in proportion to their sizes. Without both short ranges share tasks.
    """
    pieces = [part for each in ranges if len(each) for part in parts(each, records_max)]
    if pieces and tasks_min > len(pieces):
        return [(part,) for part in _more(pieces, tasks_min)]
    if tasks_min or records_max:
        return [(piece,) for piece in pieces]
    return _shared(pieces)


def parts(wanted: Range, records_max: int) -> list[Range]:
    """Equal parts of at most so many records (0: one part)."""
    return _parts(wanted, math.ceil(len(wanted) / records_max) if records_max else 1)


def _parts(wanted: Range, count: int) -> list[Range]:
    cuts = [wanted.start + len(wanted) * number // count for number in range(count + 1)]
    found = [replace(wanted, start=start, end=end) for start, end in itertools.pairwise(cuts) if end > start]
    # Only the first one borders on what was read before.
    return [found[0], *(replace(each, mark=None) for each in found[1:])]


def _more(pieces: Sequence[Range], tasks_min: int) -> list[Range]:
    """Small ranges stay whole, and are left out when the others get their parts in proportion."""
    total = sum(map(len, pieces))
    small = [_nearest(tasks_min * len(each) / total) <= 1 for each in pieces]
    large_total = sum(len(each) for each, is_small in zip(pieces, small, strict=True) if not is_small)
    left = max(1, tasks_min - sum(small))
    counts = [
        1 if is_small else max(1, min(len(each), _nearest(left * len(each) / large_total)))
        for each, is_small in zip(pieces, small, strict=True)
    ]
    while sum(counts) < tasks_min:
        growing = [n for n, each in enumerate(pieces) if counts[n] < len(each)]
        if not growing:
            break
        counts[max(growing, key=lambda n: len(pieces[n]) / counts[n])] += 1
    return [part for each, count in zip(pieces, counts, strict=True) for part in _parts(each, count)]


def _nearest(value: float) -> int:
    """As Java's `Math.round`: halves go up."""
    return math.floor(value + 0.5)


def _shared(pieces: Sequence[Range]) -> list[tuple[Range, ...]]:
    found: list[tuple[Range, ...]] = []
    together: list[Range] = []
    size = 0
    for each in pieces:
        if len(each) >= SHORT:
            found.append((each,))
            continue
        if together and size + len(each) > SHORT:
            found.append(tuple(together))
            together, size = [], 0
        together.append(each)
        size += len(each)
    return [*found, tuple(together)] if together else found
