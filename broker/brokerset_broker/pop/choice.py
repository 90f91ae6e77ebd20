"""Which queues a pop reads, in which order.

Source: `PopMessageProcessor` of 5.5.0. Other than there, the two percentages and the start do not come from
one number below 100, which leaves queues beyond the first hundred behind and ties retries to priorities; and
with `enableRetryTopicV2` a pop reads both retry topics, not one of them by chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from brokerset_formats.lazy_dataclasses import dataclass

DRAWN_BITS: Final = 40
"""Whoever asks draws a number of so many bits."""

ANY_QUEUE: Final = -1
"""Queue id of a pop that takes messages of any queue."""


class Source(NamedTuple):
    """Queues of one topic, in the order in which they are read."""

    topic: str
    queue_ids: Sequence[int]
    is_retry: bool


@dataclass(frozen=True, slots=True)
class Chances:
    """What the settings say about the order."""

    retry_percent: int
    """Pops of a hundred that read the retry topics first (`popFromRetryProbability`)."""

    retry_percent_by_priority: int
    """The same of those that read by priority (`popFromRetryProbabilityForPriority`)."""

    highest_first: bool
    """Whether a higher queue has the higher priority (`priorityOrderAsc`)."""


def choose(
    topic: str,
    queue_id: int,
    queues: int,
    retries: Sequence[tuple[str, int]],
    chances: Chances,
    *,
    drawn: int,
    priority_factor: int | None = None,
    ordered: bool = False,
) -> list[Source]:
    """The queues that one pop reads; retry topics come first or last, never in an ordered pop.

    `retries`: the retry topics that exist, with their read queues. `priority_factor`: pops of a hundred that
    read by priority, None if the topic has none. `drawn`: a random number of `DRAWN_BITS` bits.
    """
    drawn, percent = divmod(drawn, 100)
    by_priority = priority_factor is not None and not ordered and percent < priority_factor
    drawn, percent = divmod(drawn, 100)
    start = 0 if by_priority else drawn
    if queue_id >= 0:
        own: Sequence[int] = (queue_id,)
    elif queues == 1:
        own = (0,)
    else:
        own = queue_order(queues, start, chances.highest_first)
    source = Source(topic, own, False)
    if ordered or not retries:
        return [source]
    again = [
        Source(name, (0,) if count == 1 else queue_order(count, start, chances.highest_first), True)
        for name, count in retries
    ]
    retry_percent = chances.retry_percent_by_priority if by_priority else chances.retry_percent
    return [*again, source] if percent < retry_percent else [source, *again]


def queue_order(queues: int, start: int, highest_first: bool) -> Sequence[int]:
    """All queues from a place on: upward, or downward from the one before it."""
    if queues <= 0:
        return ()
    start %= queues
    if highest_first:
        return (*range(start - 1, -1, -1), *range(queues - 1, start - 1, -1))
    return (*range(start, queues), *range(start))
