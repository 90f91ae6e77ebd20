"""Which objects are reconciled, and when: one reconcile of each at a time, back-off, requeueing.

`Schedule` decides and knows no clock; `ReconcileQueue` runs reconciles as it says.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import structlog

from brokerset_kube.errors import KubeError

log = structlog.get_logger(__name__)

KEYS_MAX: Final = 50_000
"""Most sets and topics that are known at once; further ones are dropped, counted, and logged."""

BACK_OFF_SECONDS_FIRST: Final = 1.0
BACK_OFF_SECONDS_MAX: Final = 60.0
"""Longest pause after a reconcile that failed; it doubles from the first one on."""

BACK_OFF_JITTER: Final = 0.2
"""By how much, at most, a pause is made longer or shorter, so that many sets do not come back at once."""

GAP_SECONDS: Final = 0.5
"""Least time between two starts for one set: a pod that starts is several events a second."""

RECONCILE_SECONDS_MAX: Final = 120.0
"""A reconcile that takes longer is broken off and counts as failed."""

REQUEUE_SECONDS_MIN: Final = 0.2
"""Shortest pause that a reconcile may ask for."""


STALE_FACTOR: Final = 4
"""The heap is made again when it has so many times more items than keys: most are overtaken then."""


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """One object that is reconciled."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.namespace}/{self.name}"


@dataclass(slots=True)
class _Entry:
    due: float | None = None
    """When the next reconcile may start; None while nothing is to be done."""

    ticket: int = 0
    """Of the heap's item that counts; older ones are skipped."""

    running: bool = False
    again: float | None = None
    """When it was enqueued during its reconcile."""

    failures: int = 0
    started: float | None = None
    waiting_since: float | None = None
    """Since when a change waits to be served."""

    serving_since: float | None = None
    """Of the change that is being served: it goes on waiting when that fails."""


@dataclass(slots=True)
class Schedule:
    """Who is next. Pure: every method is told the time."""

    randomness: random.Random = field(default_factory=random.Random)
    keys_max: int = KEYS_MAX
    gap: float = GAP_SECONDS
    dropped: int = 0
    """Keys that were dropped because there were too many keys."""

    _entries: dict[Key, _Entry] = field(default_factory=dict)
    _heap: list[tuple[float, int, Key]] = field(default_factory=list)
    _tickets: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def enqueue(self, key: Key, now: float, *, fresh: bool = False) -> bool:
        """Something about this object has changed; False if there are too many to remember it.

        After a failure the pause is waited out all the same, lest its own traces make it run again and again,
        unless the change is `fresh`: a person changed what is wanted.
        """
        entry = self._entries.get(key)
        if entry is None:
            if len(self._entries) >= self.keys_max:
                self.dropped += 1
                return False
            entry = self._entries[key] = _Entry()
        if entry.waiting_since is None:
            entry.waiting_since = now
        if entry.running:
            if fresh:
                entry.failures = 0
            entry.again = now
            return True
        if fresh:
            entry.failures = 0
        elif entry.failures and entry.due is not None:
            return True
        self._plan(key, entry, self._earliest(entry, now))
        return True

    def requeue(self, key: Key, at: float) -> None:
        """Start a reconcile at `at` unless one comes before."""
        entry = self._entries.get(key)
        if entry is not None and not entry.running and (entry.due is None or at < entry.due):
            self._plan(key, entry, at)

    def take(self, now: float) -> Key | None:
        """The object whose reconcile starts now: of those that are due, the one that is due the longest."""
        while self._heap:
            due, ticket, key = self._heap[0]
            entry = self._entries.get(key)
            if entry is None or entry.ticket != ticket:
                heapq.heappop(self._heap)
                continue
            if due > now:
                return None
            heapq.heappop(self._heap)
            entry.due, entry.running, entry.again, entry.started = None, True, None, now
            entry.serving_since, entry.waiting_since = entry.waiting_since, None
            return key
        return None

    def next_at(self) -> float | None:
        """When `take` should be asked next; None when only an event can change anything."""
        while self._heap:
            due, ticket, key = self._heap[0]
            entry = self._entries.get(key)
            if entry is not None and entry.ticket == ticket:
                return due
            heapq.heappop(self._heap)
        return None

    def succeeded(self, key: Key, now: float, requeue_seconds: float | None) -> None:
        """A reconcile is over; None: nothing to do again without an event."""
        entry = self._entries[key]
        entry.running, entry.failures = False, 0
        if entry.again is not None:
            self._plan(key, entry, self._earliest(entry, entry.again))
        elif requeue_seconds is not None:
            self._plan(key, entry, now + max(requeue_seconds, REQUEUE_SECONDS_MIN))

    def failed(self, key: Key, now: float, wait: float | None = None) -> float:
        """A reconcile has failed; returns after how many seconds it is tried again, at least `wait`."""
        entry = self._entries[key]
        entry.running = False
        entry.failures += 1
        longest = min(BACK_OFF_SECONDS_FIRST * 2 ** min(entry.failures - 1, 16), BACK_OFF_SECONDS_MAX)
        spread = 1 + BACK_OFF_JITTER * (2 * self.randomness.random() - 1)
        pause: float = max(longest * spread, wait or 0.0)
        if entry.serving_since is not None:
            entry.waiting_since = entry.serving_since
        elif entry.waiting_since is None:
            entry.waiting_since = now
        self._plan(key, entry, now + pause)
        return pause

    def forget(self, key: Key) -> None:
        """The object is gone; while its reconcile runs this may only be called by that reconcile's end."""
        self._entries.pop(key, None)

    def known(self, key: Key) -> bool:
        """Whether the object has been enqueued and not been forgotten."""
        return key in self._entries

    def enqueued_meanwhile(self, key: Key) -> bool:
        """Whether it was enqueued while its reconcile runs."""
        entry = self._entries.get(key)
        return entry is not None and entry.again is not None

    def all_known(self) -> tuple[Key, ...]:
        """All that are known."""
        return tuple(self._entries)

    def waiting(self, now: float) -> int:
        """How many are due and do not run."""
        return sum(1 for entry in self._entries.values() if entry.due is not None and entry.due <= now)

    def oldest_seconds(self, now: float) -> float:
        """How long the change that waits for the longest time has waited, back-off included."""
        since = (entry.waiting_since for entry in self._entries.values() if entry.waiting_since is not None)
        return max(0.0, now - min(since, default=now))

    def _earliest(self, entry: _Entry, now: float) -> float:
        return now if entry.started is None else max(now, entry.started + self.gap)

    def _plan(self, key: Key, entry: _Entry, due: float) -> None:
        if entry.due is not None and entry.due <= due and not entry.failures:
            return  # sooner already
        entry.due, entry.ticket = due, next(self._tickets)
        heapq.heappush(self._heap, (due, entry.ticket, key))
        if len(self._heap) > STALE_FACTOR * (len(self._entries) + 16):
            live = ((one.due, one.ticket, name) for name, one in self._entries.items() if one.due is not None)
            self._heap = [(due, ticket, name) for due, ticket, name in live if due is not None]
            heapq.heapify(self._heap)


GONE: Final = -1.0
"""What a reconcile returns when its object is not there any more."""

Reconcile = Callable[[Key], Awaitable[float | None]]
"""Reconciles one object; returns after how many seconds to do it again."""


class RetryAfter(Exception):
    """A reconcile failed, as the text says; `seconds` is the least pause, if the cause names one."""

    def __init__(self, reason: str, seconds: float | None = None) -> None:
        super().__init__(reason)
        self.seconds = seconds


class ReconcileQueue:
    """Runs reconciles with so many workers; to be used in the loop's thread only."""

    def __init__(
        self,
        reconcile: Reconcile,
        *,
        workers: int,
        schedule: Schedule | None = None,
        on_reconciled: Callable[[Key, float, bool], None] | None = None,
    ) -> None:
        """`on_reconciled` is told the seconds of each reconcile and whether it succeeded."""
        self._reconcile = reconcile
        self._workers = workers
        self.schedule = schedule or Schedule()
        self._on_reconciled = on_reconciled
        self._changed = asyncio.Event()
        self._running: dict[Key, asyncio.Task[None]] = {}
        self._stopping = False

    @property
    def running(self) -> tuple[Key, ...]:
        """Those whose reconciles are on."""
        return tuple(self._running)

    def enqueue(self, key: Key, *, fresh: bool = False) -> None:
        """Something about this object has changed."""
        if not self.schedule.enqueue(key, self._now(), fresh=fresh) and self.schedule.dropped % 1000 == 1:
            log.error("too many objects to reconcile", limit=self.schedule.keys_max, dropped=str(key))
        self._changed.set()

    def enqueue_all(self) -> None:
        """Enqueue every object that is known."""
        for key in self.schedule.all_known():
            self.enqueue(key)

    async def run(self) -> None:
        """Run reconciles until `stop`, or until this task is cancelled, which breaks reconciles off."""
        try:
            async with asyncio.TaskGroup() as group:
                while not self._stopping:
                    self._start_due(group)
                    self._changed.clear()
                    await self._until_changed()
        finally:
            self._running.clear()

    def stop(self) -> None:
        """Start no further one; `run` returns when those that are on have ended."""
        self._stopping = True
        self._changed.set()

    def _start_due(self, group: asyncio.TaskGroup) -> None:
        while len(self._running) < self._workers and (key := self.schedule.take(self._now())) is not None:
            self._running[key] = group.create_task(self._work(key), name=f"reconcile {key}")

    async def _until_changed(self) -> None:
        at = self.schedule.next_at() if len(self._running) < self._workers else None
        try:
            async with asyncio.timeout_at(at):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _work(self, key: Key) -> None:
        started = self._now()
        problem: str | None = None
        wait: float | None = None
        again: float | None = None
        try:
            async with asyncio.timeout(RECONCILE_SECONDS_MAX):
                again = await self._reconcile(key)
        except RetryAfter as error:
            problem, wait = str(error), error.seconds
        except KubeError as error:
            problem, wait = str(error), error.retry_after
        except TimeoutError:
            problem = f"took longer than {RECONCILE_SECONDS_MAX:g} s"
        except Exception as error:  # the edge of a task: one set must not stop the others
            problem = f"{type(error).__name__}: {error}"
            log.exception("reconcile failed unexpectedly", key=str(key))
        finally:
            self._running.pop(key, None)
            self._changed.set()
        now = self._now()
        if problem is not None:
            pause = self.schedule.failed(key, now, wait)
            log.warning("reconcile failed", key=str(key), reason=problem, again_seconds=round(pause, 1))
        elif again == GONE and not self.schedule.enqueued_meanwhile(key):
            self.schedule.forget(key)
        else:
            self.schedule.succeeded(key, now, None if again == GONE else again)
        if self._on_reconciled is not None:
            self._on_reconciled(key, now - started, problem is None)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
