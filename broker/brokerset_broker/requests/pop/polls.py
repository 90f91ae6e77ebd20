"""Runs a table of waiting requests on the event loop: wakes them by arrivals and by time.

Who is woken is served in later turns of the loop, a millisecond's worth at a time: an arrival is noticed in
the middle of the store's work, and thousands may be due at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from itertools import islice
from typing import Final

import structlog

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.pop.waiting import Waiter, WaitingTable
from brokerset_formats.pop.names import RETRY_V1, RETRY_V2, pop_retry_topic
from brokerset_runtime.clock import Clock
from brokerset_spec.broker_settings import BrokerSettings

log = structlog.get_logger(__name__)

TURN_SECONDS: Final = 0.001
"""How long waiting requests are served in one turn of the loop."""

EXPIRED_AT_ONCE: Final = 64
"""Requests whose time is over that are taken out at once."""

Serve = Callable[[Waiter], None]


class Parked(Enum):
    """What became of a request that found nothing."""

    WAITS = "it waits"
    FULL = "too many wait"
    OVER = "its time is over"


class Polls:
    """Requests of one kind that wait for messages. A `RoleService`: only who leads lets them wait."""

    def __init__(self, *, name: str, live: LiveSettings, clock: Clock, resume: Serve, expire: Serve) -> None:
        """`resume` serves a request that was woken, `expire` answers one whose time is over."""
        self.name: Final = name
        self._clock = clock
        self._resume = resume
        self._expire = expire
        self.table = WaitingTable(retry_topics)
        self._woken: deque[Waiter] = deque()
        self._turn: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_ms = 0
        self._running = False
        self._use(live.current)
        live.on_change(lambda settings, _changed: self._use(settings))

    def _use(self, settings: BrokerSettings) -> None:
        self.table.total_max = settings.max_pop_polling_size
        self.table.line_max = settings.pop_polling_size
        self.table.kinds_max = settings.max_message_filter_num_for_notification
        self._force_interval = settings.pop_long_polling_force_notify_interval

    def __len__(self) -> int:
        return len(self.table) + len(self._woken)

    # -- role ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Let requests wait from now on."""
        self._running = True

    async def drain(self) -> None:
        """Nothing is half done between two turns of the loop."""

    def stop(self) -> None:
        """Answer everybody that waits as if its time were over, from the next turn of the loop on; clients
        then find who leads."""
        self._running = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.serve_soon(self.table.drop_all())

    # -- waiting ------------------------------------------------------------------------------------------

    def deadline_ms(self, wait_ms: int) -> int:
        """When the time of a request is over that may wait so long from now on."""
        return self._now_ms() + wait_ms

    def has_time(self, waiter: Waiter) -> bool:
        """Whether its time is not over."""
        return self._running and waiter.deadline_ms > self._now_ms()

    def park(self, waiter: Waiter) -> Parked:
        """Let a request wait until its deadline; also again, when it was woken for nothing."""
        if not self.has_time(waiter):
            return Parked.OVER
        if not self.table.add(waiter):
            return Parked.FULL
        self._arm()
        return Parked.WAITS

    def serve_soon(self, waiters: Iterable[Waiter]) -> None:
        """Serve requests that are not in the table in a later turn of the loop."""
        self._woken.extend(waiters)
        if self._woken and self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._serve_woken)

    def drop(self, owner: object) -> None:
        """Forget what a closed connection waited for."""
        self.table.drop(owner)

    def leave(self, owner: object, group: str) -> None:
        """A member has left its group: it gets nothing more of what comes, and its requests are answered."""
        self._end(iter(self.table.leave(owner, group)))

    def _end(self, waiters: Iterator[Waiter]) -> None:
        some = list(islice(waiters, EXPIRED_AT_ONCE))
        for waiter in some:
            self._serve(self._expire, waiter)
        if len(some) == EXPIRED_AT_ONCE:
            asyncio.get_running_loop().call_soon(self._end, waiters)

    # -- waking -------------------------------------------------------------------------------------------

    def arrived(self, topic: str, queue_id: int, next_queue_offset: int, tags_code: int | None) -> None:
        """The store's messages below `next_queue_offset` of one queue can be read."""
        if not len(self.table):
            return
        interval = self._force_interval
        force = interval > 0 and next_queue_offset % interval == 0
        woken = self.table.arrived(topic, queue_id, tags_code, force=force)
        if woken:
            self.serve_soon(woken)

    def wake_next(self, topic: str, group: str, queue_id: int) -> None:
        """There is more than somebody took who wanted this queue, or any: it is somebody else's turn."""
        waiter = self.table.next(topic, group, queue_id)
        if waiter is not None:
            self.serve_soon((waiter,))

    def wake_group(self, topic: str, group: str) -> None:
        """A group may take more than before: messages were in flight, a queue was locked, or reset."""
        self.serve_soon(self.table.one_of_each(topic, group))

    def wake_topic(self, topic: str) -> None:
        """A topic was changed or deleted: everybody that waits for it is served again."""
        self.serve_soon(self.table.of_topic(topic))

    # -- turns --------------------------------------------------------------------------------------------

    def _serve_woken(self) -> None:
        self._turn = None
        end = self._clock.monotonic() + TURN_SECONDS
        while self._woken:
            self._serve(self._resume if self._running else self._expire, self._woken.popleft())
            if self._clock.monotonic() >= end:  # the loop's clock may count whole milliseconds
                break
        if self._woken and self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._serve_woken)

    def _serve_expired(self) -> None:
        self._timer = None
        end = self._clock.monotonic() + TURN_SECONDS
        while due := self.table.expired(self._now_ms(), EXPIRED_AT_ONCE):
            for waiter in due:
                self._serve(self._expire, waiter)
            if self._clock.monotonic() >= end:
                break
        self._arm()

    def _arm(self) -> None:
        due_ms = self.table.next_due_ms()
        if due_ms is None or not self._running:
            return
        if self._timer is not None:
            if self._timer_due_ms <= due_ms:
                return
            self._timer.cancel()
        self._timer_due_ms = due_ms
        pause = max(0, due_ms - self._now_ms()) / 1000
        self._timer = asyncio.get_running_loop().call_later(pause, self._serve_expired)

    def _serve(self, serve: Serve, waiter: Waiter) -> None:
        try:
            serve(waiter)
        except Exception as error:  # the edge of a session: one that fails delays no other
            log.error(
                "a waiting request failed",
                kind=self.name,
                topic=waiter.topic,
                group=waiter.group,
                exc_info=error,
            )

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)


def retry_topics(topic: str, group: str) -> tuple[str, ...]:
    """The names of the retry topics of a topic and a group, whichever of them there are."""
    return pop_retry_topic(group, topic, RETRY_V1), pop_retry_topic(group, topic, RETRY_V2)
