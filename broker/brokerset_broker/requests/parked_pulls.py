"""Runs the table of parked pulls on the event loop: wakes them by arrivals, by time, and by a slow sweep."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from brokerset_broker.requests.parked_pull_table import SLOT_MS, Key, ParkedPull, ParkedPullTable
from brokerset_runtime.clock import Clock

log = structlog.get_logger(__name__)

SWEEP_MS: Final = 5_000
"""How often parked pulls are compared with their queues, as Java does: consumers of rare tags move on."""


class ParkedPulls:
    """Parks pulls until `store` tells of messages, or their time is over.

    The timer runs only while somebody waits.
    """

    def __init__(
        self, clock: Clock, queue_max: Callable[[str, int], int], table: ParkedPullTable | None = None
    ) -> None:
        self._clock = clock
        self._queue_max = queue_max
        self._table = table if table is not None else ParkedPullTable()
        self._timer: asyncio.TimerHandle | None = None
        self._next_sweep_ms = 0
        self._closed = False

    def __len__(self) -> int:
        return len(self._table)

    def park(self, pull: ParkedPull, timeout_ms: int) -> bool:
        """Keep a pull; `False` when it must be answered now (too many wait, or the broker shuts down)."""
        now_ms = self._now_ms()
        if self._closed or not self._table.add(pull, now_ms, timeout_ms):
            return False
        if self._timer is None:
            self._next_sweep_ms = now_ms + SWEEP_MS
            self._arm()
        return True

    def park_again(self, pull: ParkedPull) -> bool:
        """Keep a pull that was woken for nothing; `False` when its time is over, so it must be answered."""
        return not self._closed and self._table.add_again(pull, self._now_ms())

    def arrived(self, topic: str, queue_id: int, next_queue_offset: int, tags_code: int | None) -> None:
        """The store's messages below `next_queue_offset` of one queue can be read."""
        woken = self._table.arrived((topic, queue_id), next_queue_offset, tags_code)
        if woken:
            self._resume(woken)

    def drop(self, owner: object) -> None:
        """Forget what a closed connection waited for."""
        self._table.drop(owner)

    def wake_topic(self, topic: str) -> None:
        """Let the pulls of a topic run again, because it was changed or deleted."""
        for key in self._table.waited_for():
            if key[0] == topic:
                self._resume(self._table.arrived(key, _EVERYTHING, None))

    def wake_queue(self, topic: str, queue_id: int) -> None:
        """Let the pulls of one queue run again, because an offset was reset."""
        self._resume(self._table.arrived((topic, queue_id), _EVERYTHING, None))

    def ends_known(self) -> None:
        """The broker knows where its queues end: answer the pulls that waited for no more than that."""
        self._resume(self._table.ends_known())

    def tick(self) -> None:
        """Do what is due by now; the service's own timer calls it."""
        now_ms = self._now_ms()
        self._resume(self._table.expired(now_ms))
        if now_ms >= self._next_sweep_ms:
            self._next_sweep_ms = now_ms + SWEEP_MS
            self._sweep(self._table.waited_for())

    def close(self) -> None:
        """Answer everything that waits with what there is now, and hold nothing any more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._resume(self._table.drop_all())

    def _sweep(self, keys: list[Key]) -> None:
        for topic, queue_id in keys:
            self._resume(self._table.arrived((topic, queue_id), self._queue_max(topic, queue_id), None))

    def _resume(self, pulls: list[ParkedPull]) -> None:
        for pull in pulls:
            try:
                pull.resume()
            except Exception as error:  # the edge of a session: one that fails delays no other
                log.error("parked pull failed", topic=pull.key[0], queue_id=pull.key[1], exc_info=error)

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(SLOT_MS / 1000, self._fire)

    def _fire(self) -> None:
        self._timer = None
        self.tick()
        if len(self._table) and self._timer is None and not self._closed:
            self._arm()

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)


_EVERYTHING: Final = 1 << 62
