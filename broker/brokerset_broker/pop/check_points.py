"""Which messages are out, with whom, and until when: the open check points.

They follow the queues of the revive topic: what a record there says is fed in, by whoever appended or read
it. Made for a million messages in flight: a check point is one small object, in a chain of those that begin
at the same message, and in the slot of the time when it is due.
"""

from __future__ import annotations

import heapq
import sys
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_formats.pop.records import MESSAGES_MAX, CheckPoint

SLOTS_PER_SECOND: Final = 20
"""A check point is due with the end of its slot of time: up to 50 ms late, and never early."""

EMPTY_SLOTS_MAX: Final = 1_024
"""So many slots of time may stay that have no check points any more."""

EARLY_MAX: Final = 100_000
"""Acks that wait for their check points, which a Java master has put into the timer wheel; one more replaces
the oldest."""

EARLY_MARGIN_MS: Final = 600_000
"""So long after its message became visible an early ack waits for a check point that never came."""

GIVEN_UP_MAX: Final = 100_000
"""Handles whose messages came back before their time by the wall clock, or may do so, because it was changed;
one more replaces the oldest."""

FORGET_AT_ONCE: Final = 256
"""Early acks, of those that came first, that `forget_early` examines; and handles."""

CROWD_FACTOR: Final = 4
"""A check point is copied at the earliest when so many records for each open one are behind it: else copies
would push each other on without end."""


class Source:
    """What one group has popped of one queue."""

    __slots__ = (
        "committed", "group", "in_flight", "invisible_ms", "position", "position_end", "queue_id", "starts",
        "topic",
    )  # fmt: skip

    def __init__(self, topic: str, group: str, queue_id: int) -> None:
        self.topic, self.group, self.queue_id = topic, group, queue_id
        self.starts: dict[int, OpenPoint] = {}
        """The newest open check point that begins at a message, by its queue offset."""
        self.in_flight = 0
        """Messages that are out."""
        self.invisible_ms = 0
        """Of the newest check point: one number for all that have the same."""
        self.position: int | None = None
        """Queue offset of the next message to give out."""
        self.position_end = 0
        """End of the record in the log that says so: the position is safe when that is."""
        self.committed: int | None = None
        """The group's consumer offset as it was seen or set last."""


class OpenPoint:
    """An open check point."""

    __slots__ = (
        "broker", "count", "distances", "due", "invisible_ms", "left", "next", "place", "pop_time",
        "revive_queue", "source", "start", "suspend",
    )  # fmt: skip

    def __init__(
        self, source: Source, record: CheckPoint, revive_queue: int, place: int, due: float, left: int
    ) -> None:
        self.source = source
        self.start = record.start_offset
        self.pop_time = record.pop_time
        if source.invisible_ms != record.invisible_time:
            source.invisible_ms = record.invisible_time
        self.invisible_ms = source.invisible_ms
        self.count = record.count
        distances = record.distances
        follows = distances is None or distances == _DENSE[len(distances)]
        self.distances = None if follows else distances
        self.broker = None if record.broker is None else sys.intern(record.broker)
        self.suspend = record.suspend
        self.revive_queue = revive_queue
        self.place = place
        """Queue offset of its record in the revive queue."""
        self.due = due
        """On the clock that is monotonic: when its messages become visible."""
        self.left = left
        """Bit i: message i is out."""
        self.next: OpenPoint | None = None
        """An older one that begins at the same message."""

    def bit_of(self, queue_offset: int) -> int:
        """The bit of a message; 0 if it is none of this check point."""
        distance = queue_offset - self.start
        if self.distances is None:
            return 1 << distance if 0 <= distance < self.count else 0
        try:
            return 1 << self.distances.index(distance)
        except ValueError:
            return 0

    def offsets(self, bits: int) -> tuple[int, ...]:
        """The queue offsets of the messages with these bits."""
        distances = self.distances
        return tuple(
            [
                self.start + (place if distances is None else distances[place])
                for place in range(self.count)
                if bits >> place & 1
            ]
        )

    @property
    def end(self) -> int:
        """Behind the last of its messages."""
        return self.start + (self.count if self.distances is None else max(self.distances) + 1)

    def record(self) -> CheckPoint:
        """As it is now: what a copy says."""
        everything = (1 << self.count) - 1
        return CheckPoint(
            topic=self.source.topic,
            group=self.source.group,
            queue_id=self.source.queue_id,
            start_offset=self.start,
            pop_time=self.pop_time,
            invisible_time=self.invisible_ms,
            broker=self.broker,
            count=self.count,
            distances=_DENSE[self.count] if self.distances is None else self.distances,
            acked=everything & ~self.left,
            suspend=self.suspend,
        )


_DENSE: Final = tuple(tuple(range(count)) for count in range(33))
_ALL: Final = tuple((1 << count) - 1 for count in range(33))
"""All bits of so many messages: one number for all check points of which nothing is acked."""


class ReviveQueue:
    """The open check points of one queue of the revive topic, by their places."""

    __slots__ = ("end", "first", "open")

    def __init__(self) -> None:
        self.open: dict[int, OpenPoint] = {}
        self.first = 0
        """No open check point is before; see `advance`."""
        self.end = 0
        """Behind the last record that is known."""

    def advance(self, steps_max: int) -> int:
        """Move `first` towards the oldest open check point, by at most so many records; returns it."""
        first, end, open_points = self.first, self.end, self.open
        if not open_points:
            self.first = end
            return end
        stop = min(end, first + steps_max)
        while first < stop and first not in open_points:
            first += 1
        self.first = first
        return first

    def oldest_behind(self, distance: int) -> OpenPoint | None:
        """The oldest open check point, if it is to be appended again; `advance` comes first."""
        far = max(distance, CROWD_FACTOR * len(self.open))
        return self.open.get(self.first) if self.end - self.first > far else None


@dataclass(frozen=True, slots=True)
class EarlyKey:
    """Names a check point that is not there yet."""

    topic: str
    group: str
    queue_id: int
    start: int
    pop_time: int


class CheckPoints:
    """All open check points of a master."""

    def __init__(self) -> None:
        self.sources: dict[tuple[str, str, int], Source] = {}
        self._by_topic: dict[str, dict[Source, None]] = {}
        self.queues: dict[int, ReviveQueue] = {}
        self.count = 0
        """Open check points."""
        self.in_flight = 0
        """Messages that are out."""
        self.came_back_ms = 0
        """The latest wall clock time at which a message came back. The clock may be set back behind that; no
        handle whose time was over is good again then."""
        self._slots: dict[int, dict[OpenPoint, None]] = {}
        self._slot_heap: list[int] = []
        self._empty_slots = 0
        self._due_now: deque[OpenPoint] = deque()
        self._early: dict[EarlyKey, tuple[set[int], int]] = {}
        self._given_up: dict[tuple[EarlyKey, int], int] = {}

    # -- records ------------------------------------------------------------------------------------------

    def queue(self, revive_queue: int) -> ReviveQueue:
        """A queue of the revive topic."""
        found = self.queues.get(revive_queue)
        if found is None:
            found = self.queues[revive_queue] = ReviveQueue()
        return found

    def note_record(self, revive_queue: int, place: int) -> None:
        """A record is at this place of a revive queue."""
        queue = self.queue(revive_queue)
        queue.end = max(queue.end, place + 1)

    def add(self, record: CheckPoint, revive_queue: int, place: int, due: float) -> OpenPoint | None:
        """A check point was stored; None if none of its messages is out.

        One with the name of an open one is a copy of it and takes its place: acks count for both.
        """
        self.note_record(revive_queue, place)
        source = self.source(record.topic, record.group, record.queue_id)
        left = _ALL[record.count] & ~record.acked if record.acked else _ALL[record.count]
        copied = self.find(source, record.start_offset, record.pop_time)
        if copied is not None:
            due = min(due, copied.due)
            if copied.count == record.count:
                left &= copied.left
            self._close(copied)
        point = OpenPoint(source, record, revive_queue, place, due, left)
        early = self._early.pop(_early_key(record), None) if self._early else None
        for offset in early[0] if early is not None else ():
            point.left &= ~point.bit_of(offset)
        if not point.left:
            return None
        point.next = source.starts.get(point.start)
        source.starts[point.start] = point
        queue = self.queue(revive_queue)
        queue.open[place] = point
        queue.first = min(queue.first, place)  # one that timers bring is read after what is behind it
        self._enter_slot(point)
        self.count += 1
        messages = point.left.bit_count()
        source.in_flight += messages
        self.in_flight += messages
        return point

    def ack(self, point: OpenPoint, bits: int) -> None:
        """Messages of a check point are acked, or were given out again; the last one closes it."""
        gone = (point.left & bits).bit_count()
        point.left &= ~bits
        point.source.in_flight -= gone
        self.in_flight -= gone
        if not point.left:
            self._close(point)

    def replace(self, point: OpenPoint, queue_offset: int) -> None:
        """A message is about to be acked in this check point. If it is out in another one, whose time ends
        sooner, it may come back while the handle seems to be good: that is to be known."""
        other = point.source.starts.get(queue_offset)
        while other is not None:
            if other is not point and other.due < point.due and other.left & other.bit_of(queue_offset):
                self.give_up(point, queue_offset, point.pop_time + point.invisible_ms)
                return
            other = other.next

    def give_up(self, point: OpenPoint, queue_offset: int, until_ms: int) -> None:
        """Acks of the message with this check point's handle are late, whatever the clock says until then."""
        source = point.source
        key = EarlyKey(source.topic, source.group, source.queue_id, point.start, point.pop_time)
        self._given_up[key, queue_offset] = until_ms
        if len(self._given_up) > GIVEN_UP_MAX:
            del self._given_up[next(iter(self._given_up))]

    def is_given_up(self, key: EarlyKey, queue_offset: int) -> bool:
        """Whether the message came back, or was given another handle whose time ends sooner."""
        return (key, queue_offset) in self._given_up

    def ack_early(self, key: EarlyKey, offsets: tuple[int, ...], visible_ms: int) -> None:
        """Acks of a check point that is not there yet; messages are visible from `visible_ms` on."""
        known, _ = self._early.pop(key, (set[int](), 0))
        self._early[key] = (known | set(offsets), visible_ms)
        if len(self._early) > EARLY_MAX:
            del self._early[next(iter(self._early))]

    def is_early_acked(self, key: EarlyKey, offset: int) -> bool:
        """Whether an ack of the message waits for its check point."""
        return key in self._early and offset in self._early[key][0]

    def has_all_early(self, key: EarlyKey) -> bool:
        """Whether as many messages have acks that wait for the check point as one can have."""
        return key in self._early and len(self._early[key][0]) >= MESSAGES_MAX

    @property
    def early_count(self) -> int:
        """Check points that are not there and have acks."""
        return len(self._early)

    def forget_early(self, now_ms: int) -> None:
        """Forget acks whose check points should have come long ago, and handles that have expired."""
        for handle, until_ms in [*islice(self._given_up.items(), FORGET_AT_ONCE)]:
            if until_ms > now_ms:
                break
            del self._given_up[handle]
        oldest = islice(self._early.items(), FORGET_AT_ONCE)
        gone = [key for key, (_, visible) in oldest if visible + EARLY_MARGIN_MS < now_ms]
        for key in gone:
            del self._early[key]

    def move(self, point: OpenPoint, place: int) -> None:
        """A copy of a check point is at this place of its queue, and stands for it."""
        queue = self.queue(point.revive_queue)
        del queue.open[point.place]
        point.place = place
        queue.open[place] = point
        self.note_record(point.revive_queue, place)

    # -- finding ------------------------------------------------------------------------------------------

    def source(self, topic: str, group: str, queue_id: int) -> Source:
        """What a group has of a queue; made if there is nothing yet."""
        key = (topic, group, queue_id)
        found = self.sources.get(key)
        if found is None:
            found = self.sources[key] = Source(topic, group, queue_id)
            self._by_topic.setdefault(topic, {})[found] = None
        return found

    def sources_of(self, is_meant: Callable[[str], bool]) -> list[Source]:
        """What groups have of some topics, by their names."""
        return [source for topic, found in self._by_topic.items() if is_meant(topic) for source in found]

    def remove(self, source: Source) -> None:
        """Forget a source of which nothing is out."""
        assert not source.starts, "its check points name it"
        del self.sources[source.topic, source.group, source.queue_id]
        of_topic = self._by_topic[source.topic]
        del of_topic[source]
        if not of_topic:
            del self._by_topic[source.topic]

    @staticmethod
    def find(source: Source, start: int, pop_time: int) -> OpenPoint | None:
        """The open check point of that name."""
        point = source.starts.get(start)
        while point is not None and point.pop_time != pop_time:
            point = point.next
        return point

    @staticmethod
    def is_out_elsewhere(source: Source, queue_offset: int, than: OpenPoint | None) -> bool:
        """Whether a message is out with a check point that begins with it: its invisible time was changed."""
        point = source.starts.get(queue_offset)
        while point is not None:
            if point is not than and point.left & point.bit_of(queue_offset):
                return True
            point = point.next
        return False

    # -- time ---------------------------------------------------------------------------------------------

    def due(self, now: float) -> Iterator[OpenPoint]:
        """Check points whose time is over, the oldest first; each one given is to be closed or put off."""
        slot_now = int(now * SLOTS_PER_SECOND)
        while True:
            while self._due_now:
                point = self._due_now.popleft()
                if point.left and point.due <= now:
                    yield point
            if not self._slot_heap or self._slot_heap[0] >= slot_now:
                return
            self._due_now.extend(self._take_slot())

    def overdue(self, now: float) -> Iterator[OpenPoint]:
        """Check points that `due` would give, in any order; nothing changes."""
        for point in self._due_now:
            if point.left and point.due <= now:
                yield point
        slot_now, heap = int(now * SLOTS_PER_SECOND), self._slot_heap
        places = [0] if heap else []
        while places:
            place = places.pop()
            if heap[place] < slot_now:  # else nothing below it in the heap is due
                yield from self._slots.get(heap[place], ())
                places.extend(child for child in (2 * place + 1, 2 * place + 2) if child < len(heap))

    def put_off(self, point: OpenPoint, due: float) -> None:
        """Have it due later."""
        self._leave_slot(point)
        point.due = due
        self._enter_slot(point)

    def next_due(self) -> float | None:
        """When the next slot with a check point ends; None if nothing is open."""
        if self._due_now:
            return self._due_now[0].due
        while self._slot_heap and not self._slots[self._slot_heap[0]]:
            self._take_slot()
        return (self._slot_heap[0] + 1) / SLOTS_PER_SECOND if self._slot_heap else None

    # -- inside -------------------------------------------------------------------------------------------

    def _take_slot(self) -> dict[OpenPoint, None]:
        """The first slot, which is no more."""
        slot = self._slots.pop(heapq.heappop(self._slot_heap))
        if not slot:
            self._empty_slots -= 1
        return slot

    def _enter_slot(self, point: OpenPoint) -> None:
        number = int(point.due * SLOTS_PER_SECOND)
        slot = self._slots.get(number)
        if slot is None:
            slot = self._slots[number] = {}
            heapq.heappush(self._slot_heap, number)
        elif not slot:
            self._empty_slots -= 1
        slot[point] = None

    def _forget_empty_slots(self) -> None:
        """They would stay until their time: with invisible times of hours those of hours."""
        self._slots = {number: slot for number, slot in self._slots.items() if slot}
        self._slot_heap = list(self._slots)
        heapq.heapify(self._slot_heap)
        self._empty_slots = 0

    def _leave_slot(self, point: OpenPoint) -> None:
        slot = self._slots.get(int(point.due * SLOTS_PER_SECOND))
        if not slot or point not in slot:
            return
        del slot[point]
        if not slot:
            slot.clear()  # gives the table's memory back
            self._empty_slots += 1
            if self._empty_slots > max(EMPTY_SLOTS_MAX, len(self._slots) // 2):
                self._forget_empty_slots()

    def _close(self, point: OpenPoint) -> None:
        source = point.source
        messages = point.left.bit_count()
        source.in_flight -= messages
        self.in_flight -= messages
        point.left = 0
        self.count -= 1
        self.queue(point.revive_queue).open.pop(point.place, None)
        self._leave_slot(point)
        newest = source.starts.get(point.start)
        if newest is point:
            if point.next is None:
                del source.starts[point.start]
            else:
                source.starts[point.start] = point.next
            return
        while newest is not None and newest.next is not point:
            newest = newest.next
        if newest is not None:
            newest.next = point.next


def _early_key(record: CheckPoint) -> EarlyKey:
    return EarlyKey(record.topic, record.group, record.queue_id, record.start_offset, record.pop_time)
