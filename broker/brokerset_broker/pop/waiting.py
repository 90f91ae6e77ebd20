"""Long polling: which requests wait for messages, whom an arrival wakes, and whose time is over.

Source: `PopLongPollingService` of 5.5.0. One message wakes one request of any queue and one of its queue in
each group, the one that has waited longest among those that want it. Other than there a request that does
not want a message keeps no other from being woken, and the arrival at a retry topic is found by its name,
which is noted when somebody waits: names of retry topics cannot be taken apart for sure.

The table is pure: it is given what happened and hands back who is due. `requests/pop/polls` runs it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from itertools import islice
from typing import Final

from brokerset_broker.pop.choice import ANY_QUEUE

SLOT_MS: Final = 20
"""Granularity of deadlines, as in Java."""

POLL_MS_MAX: Final = 60_000
"""Longest wait, whatever a client asks for; Java's clients ask for 15 or 20 s."""

LATE_MS: Final = 500
"""A request that is so much older than it wanted to wait is not served: nobody reads the answer any more."""

EARLY_MS: Final = 50
"""A waiting request is answered so long before its time is over, so that the client still waits."""


class Waiter:
    """One waiting request. Whoever serves requests derives from it what it needs to go on."""

    __slots__ = ("codes", "deadline_ms", "group", "line", "ordered", "owner", "queue_id", "ticket", "topic")

    topic: str
    group: str
    queue_id: int
    """`ANY_QUEUE` or the one queue."""

    codes: frozenset[int] | None
    """Hash codes of the wanted tags; None is woken by every message."""

    ordered: bool
    """Whether retry topics mean nothing to it."""

    owner: object
    """The connection that waits; `drop` takes all of its requests."""

    deadline_ms: int
    line: _Line | None
    """Where it waits; None while it does not."""

    ticket: int


_Kind = tuple[frozenset[int] | None, bool]


class _Line:
    """Those of a group that wait for the same queue, by what they want, in the order in which they came."""

    __slots__ = ("by_kind", "count", "place", "queue_id")

    def __init__(self, place: _Place, queue_id: int) -> None:
        self.place = place
        self.queue_id = queue_id
        self.by_kind: dict[_Kind, OrderedDict[Waiter, None]] = {}  # a dict's first key is found slowly
        self.count = 0

    def first(self, wants: Callable[[_Kind], bool], kinds_max: int) -> Waiter | None:
        """Who came first of those that want it; kinds beyond `kinds_max` are taken to want everything."""
        found: Waiter | None = None
        for number, (kind, waiting) in enumerate(self.by_kind.items()):
            if number < kinds_max and not wants(kind):
                continue
            waiter = next(iter(waiting))
            if found is None or waiter.ticket < found.ticket:
                found = waiter
        return found


class _Place:
    """A group that waits for messages of a topic."""

    __slots__ = ("group", "lines", "retries", "topic")

    def __init__(self, topic: str, group: str, retries: tuple[str, ...]) -> None:
        self.topic = topic
        self.group = group
        self.retries = retries
        self.lines: dict[int, _Line] = {}


class WaitingTable:
    """Waiting requests by topic, group and queue, by slot of time, and by connection."""

    def __init__(self, retry_topics: Callable[[str, str], tuple[str, ...]]) -> None:
        """`retry_topics`: the names of the retry topics that a topic and a group have, present or not."""
        self._retry_topics = retry_topics
        self._topics: dict[str, dict[str, _Place]] = {}
        self._retries: dict[str, _Place] = {}
        self._slots: dict[int, dict[Waiter, None]] = {}
        self._due: list[int] = []
        self._owners: dict[object, dict[Waiter, None]] = {}
        self._count = 0
        self._tickets = 0
        self.total_max = 100_000
        """Requests that wait at once (`maxPopPollingSize`)."""
        self.line_max = 1_024
        """Requests that wait for one queue of a group (`popPollingSize`)."""
        self.is_locked: Callable[[str, str, int], bool] = lambda _topic, _group, _queue_id: False
        """Whether ordered pops of a group get nothing of a queue of a topic now; who frees it wakes them."""
        self.kinds_max = 64
        """Subscriptions that a message is compared with (`maxMessageFilterNumForNotification`)."""

    def __len__(self) -> int:
        return self._count

    # -- waiting ------------------------------------------------------------------------------------------

    def add(self, waiter: Waiter) -> bool:
        """Let it wait until its deadline; False when too many wait."""
        if self._count >= self.total_max:
            return False
        groups = self._topics.get(waiter.topic)
        place = groups.get(waiter.group) if groups is not None else None
        line = place.lines.get(waiter.queue_id) if place is not None else None
        if line is not None and line.count >= self.line_max:
            return False
        if place is None:
            place = self._new_place(waiter.topic, waiter.group)
        if line is None:
            line = place.lines[waiter.queue_id] = _Line(place, waiter.queue_id)
        self._tickets += 1
        waiter.ticket = self._tickets
        waiter.line = line
        line.count += 1
        kind = waiter.codes, waiter.ordered
        waiting = line.by_kind.get(kind)
        if waiting is None:
            line.by_kind[kind] = OrderedDict({waiter: None})
        else:
            waiting[waiter] = None
        slot = waiter.deadline_ms // SLOT_MS
        in_slot = self._slots.get(slot)
        if in_slot is None:
            self._slots[slot] = {waiter: None}
            heappush(self._due, slot)
        else:
            in_slot[waiter] = None
        owned = self._owners.get(waiter.owner)
        if owned is None:
            self._owners[waiter.owner] = {waiter: None}
        else:
            owned[waiter] = None
        self._count += 1
        return True

    def _new_place(self, topic: str, group: str) -> _Place:
        place = _Place(topic, group, self._retry_topics(topic, group))
        self._topics.setdefault(topic, {})[group] = place
        for retry in place.retries:
            self._retries[retry] = place
        return place

    def remove(self, waiter: Waiter) -> None:
        """Take one out that waits."""
        line = waiter.line
        assert line is not None, "it waits"
        waiter.line = None
        self._count -= 1
        kind = waiter.codes, waiter.ordered
        waiting = line.by_kind[kind]
        del waiting[waiter]
        if not waiting:
            del line.by_kind[kind]
        line.count -= 1
        if not line.count:
            self._close_line(line)
        del self._slots[waiter.deadline_ms // SLOT_MS][waiter]  # an empty slot stays until it is due
        owned = self._owners[waiter.owner]
        del owned[waiter]
        if not owned:
            del self._owners[waiter.owner]

    def _close_line(self, line: _Line) -> None:
        place = line.place
        del place.lines[line.queue_id]
        if place.lines:
            return
        groups = self._topics[place.topic]
        del groups[place.group]
        if not groups:
            del self._topics[place.topic]
        for retry in place.retries:
            if self._retries.get(retry) is place:
                del self._retries[retry]

    # -- who is due ---------------------------------------------------------------------------------------

    def arrived(
        self, topic: str, queue_id: int, tags_code: int | None, *, force: bool = False
    ) -> list[Waiter]:
        """Take out whom a message of a queue wakes.

        `tags_code` is None when several came, or nobody knows which; with `force` it wakes by any code.
        """
        groups = self._topics.get(topic)
        retried = self._retries.get(topic)
        if groups is None and retried is None:
            return []
        code = None if tags_code is None or force else _as_int32(tags_code)
        found: list[Waiter] = []
        if groups is not None:
            for place in groups.values():
                for key in (ANY_QUEUE, queue_id) if queue_id >= 0 else (ANY_QUEUE,):
                    line = place.lines.get(key)
                    if line is None or (waiter := self._first(line, code)) is None:
                        continue
                    if not (waiter.ordered and self.is_locked(topic, place.group, queue_id)):
                        found.append(waiter)
                    elif (other := line.first(_not_ordered(code), self.kinds_max)) and not other.ordered:
                        found.append(other)
        if retried is not None and (waiter := self._first_for_retry(retried, code)) is not None:
            found.append(waiter)
        for waiter in found:
            self.remove(waiter)
        return found

    def next(self, topic: str, group: str, queue_id: int) -> Waiter | None:
        """Take out who waits longest for a queue, or for any: there is more than another one could take."""
        place = self._place(topic, group)
        line = place.lines.get(queue_id) if place is not None else None
        waiter = self._first(line, None) if line is not None else None
        if waiter is not None:
            self.remove(waiter)
        return waiter

    def one_of_each(self, topic: str, group: str) -> list[Waiter]:
        """Take out one for each queue, and one for any: what the group may take has changed."""
        place = self._place(topic, group)
        lines = list(place.lines.values()) if place is not None else []
        found = [waiter for line in lines if (waiter := self._first(line, None)) is not None]
        for waiter in found:
            self.remove(waiter)
        return found

    def _first(self, line: _Line, code: int | None) -> Waiter | None:
        if code is None:
            return line.first(_everybody, self.kinds_max)
        return line.first(lambda kind: kind[0] is None or code in kind[0], self.kinds_max)

    def _first_for_retry(self, place: _Place, code: int | None) -> Waiter | None:
        """One of any queue, else one of some queue: every pop that is not ordered reads the retry topics."""
        lines = place.lines
        any_queue = lines.get(ANY_QUEUE)
        for line in (any_queue, *lines.values()) if any_queue is not None else lines.values():
            waiter = line.first(_not_ordered(code), self.kinds_max)
            if waiter is not None and not waiter.ordered:
                return waiter
        return None

    def expired(self, now_ms: int, count_max: int) -> list[Waiter]:
        """Take out those whose time is over, but not more than that many at once."""
        found: list[Waiter] = []
        while self._due and self._due[0] * SLOT_MS <= now_ms:
            in_slot = self._slots[self._due[0]]
            if not in_slot:
                del self._slots[heappop(self._due)]
            elif len(found) < count_max:
                found += self._taken(islice(in_slot, count_max - len(found)))
            else:
                break
        return found

    def next_due_ms(self) -> int | None:
        """When `expired` is to be called, at the latest; None if nobody waits."""
        return self._due[0] * SLOT_MS if self._count else None

    def of_topic(self, topic: str) -> list[Waiter]:
        """Take out everybody that waits for a topic: it was changed or deleted."""
        groups = self._topics.get(topic, {})
        return self._taken(waiter for place in groups.values() for waiter in _everyone(place))

    def drop(self, owner: object) -> None:
        """Forget what a closed connection waited for."""
        self._taken(self._owners.get(owner, ()))

    def leave(self, owner: object, group: str) -> list[Waiter]:
        """Take out what a connection waits for as a member of a group."""
        return self._taken(waiter for waiter in self._owners.get(owner, ()) if waiter.group == group)

    def drop_all(self) -> list[Waiter]:
        """Take out everybody."""
        return self._taken(waiter for owned in self._owners.values() for waiter in owned)

    def _taken(self, waiters: Iterable[Waiter]) -> list[Waiter]:
        found = list(waiters)
        for waiter in found:
            self.remove(waiter)
        return found

    # -- queries ------------------------------------------------------------------------------------------

    def count(self, topic: str, group: str, queue_id: int) -> int:
        """How many wait for a queue of a group, or for any."""
        place = self._place(topic, group)
        line = place.lines.get(queue_id) if place is not None else None
        return line.count if line is not None else 0

    def topics(self) -> list[str]:
        """What somebody waits for."""
        return list(self._topics)

    def _place(self, topic: str, group: str) -> _Place | None:
        groups = self._topics.get(topic)
        return groups.get(group) if groups is not None else None


def _not_ordered(code: int | None) -> Callable[[_Kind], bool]:
    return lambda kind: not kind[1] and (code is None or kind[0] is None or code in kind[0])


def _everybody(_kind: _Kind) -> bool:
    return True


def _everyone(place: _Place) -> Iterator[Waiter]:
    for line in place.lines.values():
        for waiting in line.by_kind.values():
            yield from waiting


def _as_int32(code: int) -> int:
    return ((code & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


def wait_ms(poll_ms: int, born_ms: int, now_ms: int) -> int | None:
    """How long a request waits that wants to wait so long from its birth on; None if it comes too late.

    `born_ms` is by the client's clock, 0 if it does not say. A clock that is ahead makes no wait longer.
    """
    if born_ms == 0:
        born_ms = now_ms
    if now_ms - born_ms - poll_ms > LATE_MS:
        return None
    return max(0, min(poll_ms, born_ms + poll_ms - now_ms, POLL_MS_MAX) - EARLY_MS)
