"""Notices to consumers whose offsets were reset, and that do not pull: RESET_CONSUMER_CLIENT_OFFSET (220).

A reset waits for the next pull of its queue. A consumer that has fetched as much as it may does not pull:
an orderly one that cannot get past a bad message never would, and the reset that is meant to get it past
that message would wait as long. So the members of the group are sent what still waits after
`resetNoticeMillis`. Java's brokers do either this (`useServerSideResetOffset=false`) or the other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.tables.channels import Client
from brokerset_broker.tables.consumers import ConsumerTable
from brokerset_broker.tables.offsets import OffsetManager
from brokerset_protocol import headers
from brokerset_protocol.bodies.heartbeat import ConsumeType
from brokerset_protocol.bodies.queues import (
    MessageQueue,
    ResetOffsetBody,
    ResetOffsetBodyForCpp,
    ResetQueueForCpp,
)
from brokerset_protocol.codes import Language, RequestCode
from brokerset_protocol.commands import Command

log = structlog.get_logger(__name__)

WAITING_MAX: Final = 10_000
"""Pairs of topic and group whose notices can wait; for further ones pulls alone count."""

MEMBERS_AT_ONCE: Final = 50
"""Members that are sent a notice in one turn of the loop."""

Resets = Mapping[str, Mapping[int, int]]
"""Queue offsets by `topic@group` and queue id."""


class ResetNotices:
    """Sends each reset that no pull has taken in time, once. A `RoleService`."""

    name: Final = "reset notices"

    def __init__(
        self,
        *,
        live: LiveSettings,
        offsets: OffsetManager,
        consumers: ConsumerTable,
        wake: Callable[[str, int], None] = lambda _topic, _queue_id: None,
    ) -> None:
        """`wake` has the parked pulls of a queue run again."""
        self._wake_pulls = wake
        self._live = live
        self._offsets = offsets
        self._consumers = consumers
        self._waiting: deque[tuple[float, str, Mapping[int, int]]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._running = False
        self.sent = 0
        """Notices sent since start, one for each member and reset."""

    def start(self) -> None:
        """Work from now on; also for resets from before that nobody has taken.

        Pulls may have been parked here while this broker followed, and pulls of followers are told nothing.
        """
        self._running = True
        waiting = {key: dict(queues) for key, queues in self._offsets.resets.items()}
        for key, queues in waiting.items():
            for queue_id in queues:
                self._wake_pulls(key.partition("@")[0], queue_id)
        self.reset(waiting)

    async def drain(self) -> None:
        """Nothing is half done between two turns of the loop."""

    def stop(self) -> None:
        """Send nothing any more; the next master starts with the resets that wait."""
        self._running = False
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def reset(self, resets: Resets) -> None:
        """Offsets were reset: watch whether pulls take them."""
        wait_ms = self._live.current.reset_notice_millis
        if not self._running or not wait_ms:
            return
        due = asyncio.get_running_loop().time() + wait_ms / 1000
        for key, queues in resets.items():
            if len(self._waiting) >= WAITING_MAX:
                log.warning("too many resets at once: consumers hear of them when they pull", key=key)
                break
            self._waiting.append((due, key, dict(queues)))
        self._wake()

    def _wake(self) -> None:
        if self._waiting and self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(self._waiting[0][0], self._turn)

    def _turn(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        if self._waiting and self._waiting[0][0] <= now:
            _, key, queues = self._waiting.popleft()
            self._send(key, queues)
        self._wake()

    def _send(self, key: str, queues: Mapping[int, int]) -> None:
        pending = self._offsets.resets.get(key, {})
        untaken = {queue: offset for queue, offset in queues.items() if pending.get(queue) == offset}
        topic, _, group = key.partition("@")
        entry = self._consumers.group(group)
        if (
            not untaken
            or entry is None
            or entry.is_broadcasting
            or entry.consume_type is not ConsumeType.CONSUME_PASSIVELY
        ):
            return
        ext = headers.ResetOffset(group=group, topic=topic, timestamp=-1, is_force=True).to_ext()
        plain, cpp = bodies(topic, self._live.current.broker_name, untaken)
        log.info("members are sent a reset that no pull took", group=group, topic=topic, offsets=untaken)
        self._notify(deque(entry.members.values()), ext, plain, cpp)

    def _notify(self, clients: deque[Client], ext: Mapping[str, str], plain: bytes, cpp: bytes) -> None:
        """Send to some members now, and to the others in later turns of the loop."""
        for _ in range(min(len(clients), MEMBERS_AT_ONCE)):
            client = clients.popleft()
            body = cpp if client.language == Language.CPP else plain
            client.channel.notify(Command(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, dict(ext), body))
            self.sent += 1
        if clients and self._running:
            asyncio.get_running_loop().call_soon(self._notify, clients, ext, plain, cpp)


def bodies(topic: str, broker_name: str, queues: Mapping[int, int]) -> tuple[bytes, bytes]:
    """The offsets as all clients read them, and as those in C++ do, which cannot read queues as keys."""
    plain = {MessageQueue(topic, broker_name, queue): offset for queue, offset in queues.items()}
    cpp = tuple(ResetQueueForCpp(topic, broker_name, queue, offset) for queue, offset in queues.items())
    return ResetOffsetBody(plain).to_json(), ResetOffsetBodyForCpp(cpp).to_json()
