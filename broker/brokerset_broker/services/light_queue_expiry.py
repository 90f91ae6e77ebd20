"""Deletes light queues that nobody needs any more, since nobody else does.

These are queues without a message whose record is still there, and those of lite topics whose last message
is older than their parent says (`lite.topic.expiration`, minutes). The deletion is a change like that of a
topic, so replicas delete the same.

Source: `AbstractLiteLifecycleManager`, `ConsumeQueueStore.cleanExpired`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import structlog

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.requests.changes import ChangeLog, topic_key
from brokerset_broker.requests.message_types import EXPIRATION, MessageType, type_of_topic
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.tables.metadata.records import Change, TopicsDeleted
from brokerset_broker.tables.topics import TopicManager
from brokerset_formats.light_queues import QUEUE_ID, lite_topic_of
from brokerset_protocol.errors import Rejected
from brokerset_runtime.clock import Clock

log = structlog.get_logger(__name__)

QUEUES_OF_TURN_MAX: Final = 20
"""Light queues that are examined, or deleted, before others get their turn of the loop; less than 1 ms."""


class LightQueueExpiry:
    """A `RoleService`: it runs where the broker leads."""

    name: Final = "light queue expiry"

    def __init__(
        self,
        *,
        live: LiveSettings,
        store: MessageStore,
        topics: TopicManager,
        clock: Clock,
        changes: Callable[[], ChangeLog],
    ) -> None:
        """`changes` makes deletions safe; asked for when the first is due."""
        self._live = live
        self._store = store
        self._topics = topics
        self._clock = clock
        self._changes = changes
        self._last: dict[str, tuple[int, int]] = {}
        """Of each lite topic the number of its messages, and when the last one was stored (ms)."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Search from now on; first when lite topics that waited for this start have had their time."""
        if self._live.current.enable_lmq:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def drain(self) -> None:
        """Nothing is half done: a deletion that is on its way comes about or does not."""

    def stop(self) -> None:
        """See `RoleService`."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    async def _run(self) -> None:
        pause_ms = self._live.current.min_lite_ttl
        while True:
            await asyncio.sleep(max(pause_ms, self._live.current.lite_ttl_check_interval) / 1000)
            pause_ms = 0
            try:
                await self.expire()
            except Rejected as rejected:
                log.warning("light queues that expired stay for now", reason=rejected.remark)
            except Exception:  # the edge of a task that nobody awaits: the next search tries again
                log.error("the search for expired light queues failed", exc_info=True)

    async def expire(self) -> int:
        """Delete what has expired by now; returns how many. Raises `Rejected` if that cannot be written."""
        names = list(self._store.queues_table.light)
        self._last = {name: self._last[name] for name in names if name in self._last}
        deleted = 0
        for begin in range(0, len(names), QUEUES_OF_TURN_MAX):
            part = [name for name in names[begin : begin + QUEUES_OF_TURN_MAX] if self._has_expired(name)]
            if part:
                await self._changes().change([topic_key(name) for name in part], partial(self._decide, part))
                deleted += len(part)
            await asyncio.sleep(0)
        if deleted:
            log.info("light queues expired", deleted=deleted, left=len(self._store.queues_table.light))
        return deleted

    def _decide(self, names: Sequence[str]) -> Sequence[Change]:
        gone = tuple(name for name in names if self._has_expired(name))
        return [TopicsDeleted(gone)] if gone else []

    def _has_expired(self, name: str) -> bool:
        if name in self._topics.items:  # somebody has made it, perhaps with more queues than the light one
            return False
        queue = self._store.queues_table.light.get(name)
        if queue is None or self._store.tail(name, QUEUE_ID)[0] != queue.next_offset:
            return False
        if queue.min_offset >= queue.next_offset:
            return True
        pair = lite_topic_of(name)
        parent = self._topics.get(pair[0]) if pair is not None else None
        if parent is None or type_of_topic(parent) is not MessageType.LITE:
            return False
        minutes = int(parent.attributes.get(EXPIRATION, "-1"))
        if minutes <= 0:
            return False
        lived_ms = max(minutes * 60_000, self._live.current.min_lite_ttl)
        return self._clock.now_ms() - self._last_stored(name, queue.next_offset) > lived_ms

    def _last_stored(self, name: str, number: int) -> int:
        """When the last message, before `number`, was stored."""
        known = self._last.get(name)
        if known is None or known[0] != number:
            stored_ms = self._store.store_time_at(name, QUEUE_ID, number - 1)
            known = self._last[name] = number, self._clock.now_ms() if stored_ms is None else stored_ms
        return known[1]
