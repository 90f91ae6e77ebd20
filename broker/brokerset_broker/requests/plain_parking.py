"""Plain pulls that wait for messages: parked and answered without a command object; for `PullLane`.

A pull of the next message of a queue is what every consumer that keeps up sends, so how soon it is answered
is the latency from end to end. Whatever is unusual when it wakes is left to `PullProcessor`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.requests.ordered_access import OrderedAccess
from brokerset_broker.requests.parked_pull_table import ParkedPull
from brokerset_broker.requests.parked_pulls import ParkedPulls
from brokerset_broker.requests.pull import FLAG_SUSPEND, PullProcessor
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.tables.offsets import OffsetManager
from brokerset_runtime.remoting import Connection
from brokerset_spec.broker_settings import BrokerSettings

PARKED: Final = b""
"""What the lane has instead of an answer to a pull that waits."""


class PlainPull:
    """What is needed to answer a checked pull of messages of every tag."""

    __slots__ = (
        "bytes_max",
        "connection",
        "group",
        "group_sys_flag",
        "messages_max",
        "opaque",
        "queue_id",
        "queue_offset",
        "topic",
        "topic_sys_flag",
    )

    def __init__(
        self,
        connection: Connection,
        opaque: int,
        group: str,
        topic: str,
        queue_id: int,
        queue_offset: int,
        messages_max: int,
        bytes_max: int,
        group_sys_flag: int,
        topic_sys_flag: int,
    ) -> None:
        self.connection = connection
        self.opaque = opaque
        self.group = group
        self.topic = topic
        self.queue_id = queue_id
        self.queue_offset = queue_offset
        self.messages_max = messages_max
        self.bytes_max = bytes_max
        self.group_sys_flag = group_sys_flag
        self.topic_sys_flag = topic_sys_flag


class PlainParking:
    """Parks plain pulls of the next message of a queue."""

    def __init__(
        self,
        find: Callable[[PlainPull], bytes | None],
        *,
        live: LiveSettings,
        store: MessageStore,
        offsets: OffsetManager,
        parked_pulls: ParkedPulls,
        processor: PullProcessor,
        access: OrderedAccess | None,
    ) -> None:
        """`find` counts and answers a pull that finds messages, or does nothing and gives None."""
        self._find = find
        self._store = store
        self._offsets = offsets
        self._parked_pulls = parked_pulls
        self._processor = processor
        self._access = access
        self._use(live.current)
        live.on_change(lambda settings, _changed: self._use(settings))

    def _use(self, settings: BrokerSettings) -> None:
        self._park_ms = None if settings.long_polling_enable else settings.short_polling_time_mills

    def park(self, pull: PlainPull, sys_flag: int, suspend_ms: int) -> bool:
        """Whether the pull waits now; if not, nothing has been done."""
        topic, queue_id, queue_offset = pull.topic, pull.queue_id, pull.queue_offset
        if not sys_flag & FLAG_SUSPEND or not self._store.is_next(topic, queue_id, queue_offset):
            return False
        parked = ParkedPull(topic, queue_id, queue_offset, None, pull.connection, partial(self._resume, pull))
        return self._parked_pulls.park(parked, suspend_ms if self._park_ms is None else self._park_ms)

    def _resume(self, pull: PlainPull) -> None:
        """Answer a parked pull, whatever it yields."""
        access, topic = self._access, pull.topic
        if (access is None or not access.ordered.has_fences(topic)) and not self._offsets.has_reset(
            pull.group, topic, pull.queue_id
        ):
            reply = self._find(pull)
            if reply is not None:
                pull.connection.answer_at_once(reply)
                return
        self._processor.resume(
            pull.connection,
            pull.opaque,
            pull.group,
            topic,
            pull.queue_id,
            pull.queue_offset,
            messages_max=pull.messages_max,
            bytes_max=pull.bytes_max,
            group_sys_flag=pull.group_sys_flag,
            topic_sys_flag=pull.topic_sys_flag,
        )
