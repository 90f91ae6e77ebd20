"""Long polling: pulls that wait for messages, by queue and by deadline (Java: ManyPullRequest).

The table is pure: it is told what happened and hands back the pulls that are due. `parked_pulls` runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeVar

K = TypeVar("K")

SLOT_MS: Final = 100
"""Granularity of the deadlines; a pull ends up to so much late. Clients give 15 s and wait 30 s."""

PARKED_PULLS_MAX: Final = 100_000
"""Pulls that may wait at once; one more is answered at once with PULL_NOT_FOUND."""

PARK_MS_MAX: Final = 60_000
"""Longest wait, whatever a client asks for; Java's clients give up after 30 s."""

Key = tuple[str, int]


class ParkedPull:
    """One waiting pull: it resumes when a message at or behind `queue_offset` may match `codes`."""

    __slots__ = ("codes", "key", "owner", "queue_offset", "resume", "slot", "until_ends_known")

    def __init__(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        codes: frozenset[int] | None,
        owner: object,
        resume: Callable[[], None],
        *,
        until_ends_known: bool = False,
    ) -> None:
        self.key: Key = (topic, queue_id)
        self.queue_offset = queue_offset
        self.codes = codes
        """Hash codes of the wanted tags; `None` wants every message."""
        self.owner = owner
        """The connection that waits; `drop` takes all of its pulls."""
        self.resume = resume
        """Called once, without being in the table any more."""
        self.until_ends_known = until_ends_known
        """Whether it waits only until the broker knows where its queues end."""
        self.slot = 0

    def wants(self, next_queue_offset: int, tags_code: int | None) -> bool:
        """Whether messages up to `next_queue_offset` (exclusive) may be what this pull waits for.

        `tags_code` is `None` when several messages came, or nobody knows which.
        """
        if next_queue_offset <= self.queue_offset:
            return False
        codes = self.codes
        return codes is None or tags_code is None or _as_int32(tags_code) in codes


def _as_int32(code: int) -> int:
    return ((code & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


class ParkedPullTable:
    """Holds by queue, and by slot of time; adding and removing cost the same however many there are."""

    def __init__(self, parked_max: int = PARKED_PULLS_MAX) -> None:
        self._max = parked_max
        self._by_key: dict[Key, dict[ParkedPull, None]] = {}
        self._by_slot: dict[int, dict[ParkedPull, None]] = {}
        self._by_owner: dict[object, dict[ParkedPull, None]] = {}
        self._count = 0
        self._next_slot = 0

    def __len__(self) -> int:
        return self._count

    def add(self, parked: ParkedPull, now_ms: int, timeout_ms: int) -> bool:
        """Keep `hold` until something wakes it or `timeout_ms` are over; `False` when the table is full."""
        if self._count >= self._max:
            return False
        slot = (now_ms + min(max(timeout_ms, 0), PARK_MS_MAX)) // SLOT_MS + 1
        if not self._by_slot:
            self._next_slot = now_ms // SLOT_MS
        parked.slot = slot
        self._put(parked)
        return True

    def add_again(self, parked: ParkedPull, now_ms: int) -> bool:
        """Keep a pull that was taken out until its old deadline; `False` when that is over, or it is full."""
        if self._count >= self._max or parked.slot <= now_ms // SLOT_MS:
            return False
        self._put(parked)
        return True

    def _put(self, parked: ParkedPull) -> None:
        _put(self._by_key, parked.key, parked)
        _put(self._by_slot, parked.slot, parked)
        _put(self._by_owner, parked.owner, parked)
        self._count += 1

    def arrived(self, key: Key, next_queue_offset: int, tags_code: int | None) -> list[ParkedPull]:
        """Take out the holds of one queue that want what has come."""
        waiting = self._by_key.get(key)
        if waiting is None:
            return []
        woken = [parked for parked in waiting if parked.wants(next_queue_offset, tags_code)]
        for parked in woken:
            self._remove(parked)
        return woken

    def expired(self, now_ms: int) -> list[ParkedPull]:
        """Take out the holds whose time is over."""
        end = now_ms // SLOT_MS + 1
        if not self._by_slot:
            self._next_slot = end
            return []
        due: list[ParkedPull] = []
        if end - self._next_slot > len(self._by_slot):  # the clock was not read for long
            slots: Iterator[int] = iter(sorted(slot for slot in self._by_slot if slot < end))
        else:
            slots = iter(range(self._next_slot, end))
        for slot in slots:
            due.extend(self._by_slot.get(slot, ()))
        self._next_slot = max(self._next_slot, end)
        for parked in due:
            self._remove(parked)
        return due

    def drop(self, owner: object) -> list[ParkedPull]:
        """Take out all holds of one connection."""
        parked_pulls = list(self._by_owner.get(owner, ()))
        for parked in parked_pulls:
            self._remove(parked)
        return parked_pulls

    def ends_known(self) -> list[ParkedPull]:
        """Take out the holds that waited for the broker to know where its queues end."""
        known = [parked for waiting in self._by_key.values() for parked in waiting if parked.until_ends_known]
        for parked in known:
            self._remove(parked)
        return known

    def drop_all(self) -> list[ParkedPull]:
        """Take out every hold."""
        parked_pulls = [parked for waiting in self._by_key.values() for parked in waiting]
        for parked in parked_pulls:
            self._remove(parked)
        return parked_pulls

    def waited_for(self) -> list[Key]:
        """The queues that somebody waits for."""
        return list(self._by_key)

    def _remove(self, parked: ParkedPull) -> None:
        _take(self._by_key, parked.key, parked)
        _take(self._by_slot, parked.slot, parked)
        _take(self._by_owner, parked.owner, parked)
        self._count -= 1


def _put(table: dict[K, dict[ParkedPull, None]], key: K, parked: ParkedPull) -> None:
    group = table.get(key)
    if group is None:
        table[key] = {parked: None}
    else:
        group[parked] = None


def _take(table: dict[K, dict[ParkedPull, None]], key: K, parked: ParkedPull) -> None:
    group = table[key]
    del group[parked]
    if not group:
        del table[key]
