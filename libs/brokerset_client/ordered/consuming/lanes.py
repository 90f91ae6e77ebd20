"""The messages of one queue that were pulled: a lane for each logical partition, in queue order.

One message of a lane runs at a time, and the next one follows when it is done; a message that fails stays
the first of its lane. Other lanes go on, so a key that fails stops only what shares its logical partition.
Messages are numbered by pull sequences (see `consume_rules`), which are queue offsets in an Exclusive group.
What may be acknowledged is everything below the lowest message that is not done. Pull sequences that a pull
has passed without a message (filtered, or expired) count as done.

When memory is used up, what waits behind messages that have failed is shed: its pull sequences stay, and it
is pulled once more when its turn comes. So the lanes of others do not wait for room.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")

COMMON_LANE = -1
"""Lane of messages that say no logical partition: among each other they keep their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneLimits:
    """Bounds of one partition; at one of the first two nothing is pulled."""

    unhandled_max: int = 100
    """Messages that were pulled and are not done; a pull may exceed it by its batch, less one."""

    span_max: int = 200_000
    """Pull sequences from the acknowledged position to the end of what was pulled: what is handled twice
    after a crash at worst. It is reached only behind a lane that stands still, and then the partition
    does, too."""

    running_max: int = 32
    """Handlers at the same time."""


class Taken(NamedTuple, Generic[T]):
    """A message whose handler shall start now."""

    pull_sequence: int
    lane: int
    item: T
    attempt: int
    """From 1; counts in this process only."""


@dataclass(frozen=True, slots=True)
class BlockedLane:
    """A lane whose first message has failed."""

    lane: int
    pull_sequence: int
    attempts: int
    since: float
    """When it failed first, in seconds of the consumer's monotonic clock."""

    waiting: int
    """Messages behind it that were pulled."""


@dataclass(slots=True)
class _Lane:
    waiting: deque[int] = field(default_factory=deque)
    """Pull sequences, the running one first."""

    running: bool = False
    attempts: int = 0
    retry_at: float = 0.0
    since: float = 0.0


class Lanes(Generic[T]):
    """One partition from the position at which this session began."""

    def __init__(self, position: int, limits: LaneLimits) -> None:
        self._limits = limits
        self._items: dict[int, tuple[int, T]] = {}
        self._shed: dict[int, int] = {}
        """Lanes of messages that are not done, and not in memory, by pull sequence."""

        self._wanted: dict[int, int] = {}
        """Lanes whose first message was shed, with its pull sequence."""

        self._order: deque[int] = deque()
        self._lanes: dict[int, _Lane] = {}
        self._ready: deque[int] = deque()
        self._retries: list[tuple[float, int]] = []
        self.position = position
        """Acknowledged, and confirmed by the broker: the next one is unhandled for the group."""

        self.pulled_to = position
        """Where the next pull begins."""

        self.running = 0

    # -- pulling ------------------------------------------------------------------------------------------

    @property
    def unhandled(self) -> int:
        """Messages in memory: pulled, and not done."""
        return len(self._items)

    @property
    def has_room(self) -> bool:
        """Whether a pull may start."""
        return (
            len(self._items) < self._limits.unhandled_max
            and self.pulled_to - self.position < self._limits.span_max
        )

    def add(self, messages: Iterable[tuple[int, int, T]], next_sequence: int) -> None:
        """Take what a pull at `pulled_to` found: (pull sequence, lane, item), ascending.

        What is below `pulled_to` came before and is dropped. Everything up to `next_sequence` is
        accounted for, so what is missing counts as done.
        """
        for pull_sequence, number, item in messages:
            if pull_sequence < self.pulled_to:
                continue
            self.pulled_to = pull_sequence + 1
            self._items[pull_sequence] = number, item
            self._order.append(pull_sequence)
            lane = self._lanes.get(number)
            if lane is None:
                lane = self._lanes[number] = _Lane()
            lane.waiting.append(pull_sequence)
            if len(lane.waiting) == 1:
                self._ready.append(number)
        self.pulled_to = max(self.pulled_to, next_sequence)

    def shed(self) -> int:
        """Drop from memory what waits behind messages that have failed, or were shed; how many that were."""
        before = len(self._items)
        for number, lane in self._lanes.items():
            if lane.attempts or number in self._wanted:
                for pull_sequence in islice(lane.waiting, 1, None):
                    if self._items.pop(pull_sequence, None) is not None:
                        self._shed[pull_sequence] = number
        return before - len(self._items)

    @property
    def shed_count(self) -> int:
        """Messages that are not done, and not in memory."""
        return len(self._shed)

    @property
    def wanted(self) -> int | None:
        """Lowest pull sequence of a message that was shed and is the next one of its lane."""
        return min(self._wanted.values(), default=None)

    def refill(self, messages: Iterable[tuple[int, int, T]], first: int, next_sequence: int) -> int:
        """Take back what a pull at `first` found again; how many that is.

        What was shed between the two pull sequences and is not there any more counts as done.
        """
        found = {pull_sequence: item for pull_sequence, _, item in messages if pull_sequence in self._shed}
        gone = [each for each in self._shed if first <= each < next_sequence and each not in found]
        for pull_sequence, item in found.items():
            number = self._shed.pop(pull_sequence)
            self._items[pull_sequence] = number, item
            if self._wanted.get(number) == pull_sequence:
                del self._wanted[number]
                self._ready.append(number)
        for pull_sequence in gone:
            number = self._shed.pop(pull_sequence)
            lane = self._lanes[number]
            if self._wanted.pop(number, None) == pull_sequence:
                lane.waiting.popleft()
                self._go_on(number, lane)
            else:
                lane.waiting.remove(pull_sequence)
        self._drop_done()
        return len(found)

    # -- handling -----------------------------------------------------------------------------------------

    def has_ready(self, now: float) -> bool:
        """Whether `take` would give a message."""
        self._wake_retries(now)
        return bool(self._ready) and self.running < self._limits.running_max

    def take(self, now: float) -> Taken[T] | None:
        """The message whose handler shall start next; None if each lane runs, waits or is empty."""
        self._wake_retries(now)
        if not self._ready or self.running >= self._limits.running_max:
            return None
        number = self._ready.popleft()
        lane = self._lanes[number]
        assert not lane.running, "one message of a lane runs at a time"
        lane.running = True
        self.running += 1
        pull_sequence = lane.waiting[0]
        return Taken(pull_sequence, number, self._items[pull_sequence][1], lane.attempts + 1)

    def done(self, pull_sequence: int) -> None:
        """The running message needs nothing more; the next one of its lane may start."""
        number, lane = self._stop_running(pull_sequence)
        del self._items[pull_sequence]
        lane.waiting.popleft()
        lane.attempts = 0
        self._go_on(number, lane)
        self._drop_done()

    def is_running(self, pull_sequence: int) -> bool:
        """Whether the message was taken, and its result is not known."""
        found = self._items.get(pull_sequence)
        if found is None:
            return False
        lane = self._lanes[found[0]]
        return lane.running and lane.waiting[0] == pull_sequence

    def failed(self, pull_sequence: int, now: float, retry_at: float) -> None:
        """The running message failed: it stays first, and may start again at `retry_at`."""
        number, lane = self._stop_running(pull_sequence)
        if not lane.attempts:
            lane.since = now
        lane.attempts += 1
        lane.retry_at = retry_at
        heapq.heappush(self._retries, (retry_at, number))

    def put_back(self, pull_sequence: int) -> None:
        """The running message was not handled, which is no failure: it stays first, and may start again."""
        number, _ = self._stop_running(pull_sequence)
        self._ready.append(number)

    def retry_now(self) -> None:
        """Let lanes that wait after a failure start again at once."""
        self._retries = [(-1.0, number) for _, number in self._retries]
        heapq.heapify(self._retries)

    @property
    def next_retry(self) -> float | None:
        """When the next lane that waits after a failure may start again."""
        return self._retries[0][0] if self._retries else None

    # -- acknowledging ------------------------------------------------------------------------------------

    @property
    def handled_to(self) -> int:
        """Everything below is done."""
        return self._order[0] if self._order else self.pulled_to

    @property
    def ack_range(self) -> tuple[int, int] | None:
        """First and last pull sequence that are done and not acknowledged, without a gap."""
        end = self.handled_to
        return (self.position, end - 1) if end > self.position else None

    def acknowledged(self, position: int) -> None:
        """The broker has confirmed everything below `position`."""
        assert position <= self.handled_to, "only what is done is acknowledged"
        self.position = max(self.position, position)

    def blocked(self) -> Iterator[BlockedLane]:
        """Lanes whose first message has failed."""
        for number, lane in self._lanes.items():
            if lane.attempts:
                yield BlockedLane(number, lane.waiting[0], lane.attempts, lane.since, len(lane.waiting) - 1)

    def item(self, pull_sequence: int) -> T:
        """A message that is not done."""
        return self._items[pull_sequence][1]

    def _go_on(self, number: int, lane: _Lane) -> None:
        """The first message of a lane is another one."""
        if not lane.waiting:
            del self._lanes[number]
        elif lane.waiting[0] in self._items:
            self._ready.append(number)
        else:
            self._wanted[number] = lane.waiting[0]

    def _drop_done(self) -> None:
        while self._order and self._order[0] not in self._items and self._order[0] not in self._shed:
            self._order.popleft()

    def _stop_running(self, pull_sequence: int) -> tuple[int, _Lane]:
        number = self._items[pull_sequence][0]
        lane = self._lanes[number]
        assert lane.running, "only what was taken ends"
        assert lane.waiting[0] == pull_sequence, "the first of a lane runs"
        lane.running = False
        self.running -= 1
        return number, lane

    def _wake_retries(self, now: float) -> None:
        while self._retries and self._retries[0][0] <= now:
            self._ready.append(heapq.heappop(self._retries)[1])
