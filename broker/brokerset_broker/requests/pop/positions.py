"""Where pops of a group begin in a queue: where the last one ended, at a reset, or at the initial place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.requests.pop.log import PopLog
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.tables.offsets import OffsetManager

IN_MEMORY_PERCENT: Final = 40
"""Share of the machine's memory that the newest part of the log is taken to lie in
(`accessMessageInMemoryMaxRatio`)."""


class PopPositions:
    """The next queue offset of each group, topic and queue."""

    def __init__(
        self,
        *,
        live: LiveSettings,
        store: MessageStore,
        offsets: OffsetManager,
        log: PopLog,
        memory_bytes: int,
    ) -> None:
        """`memory_bytes`: of the machine."""
        self._live = live
        self._store = store
        self._offsets = offsets
        self._log = log
        self._in_memory_bytes = memory_bytes * IN_MEMORY_PERCENT // 100

    def start(self, topic: str, group: str, queue_id: int, *, from_newest: bool) -> int:
        """Where a pop begins. Resets are taken, and the place of a group that had none is noted."""
        if self._offsets.resets:
            reset = self._offsets.take_reset(group, topic, queue_id)
            if reset is not None:
                self._log.move(topic, group, queue_id, reset)
                return reset
        position = self._log.position(topic, group, queue_id)
        if position is None:
            position = (
                self._newest(topic, queue_id) if from_newest else self._store.queue_min(topic, queue_id)
            )
            self._log.move(topic, group, queue_id, position)
        return position

    def unread(self, topic: str, group: str, queue_ids: Sequence[int]) -> Sequence[tuple[int, int | None]]:
        """Those of the queues that may have something to give, in order, with how many messages each has:
        0 if that is not simple to say, None if the group's position is to be found first.

        Most queues are empty when a pop comes, and a topic may have thousands: they are passed over by two
        comparisons each, and it is as if `start` and a read had found nothing.
        """
        if self._offsets.resets:
            return [(queue_id, 0) for queue_id in queue_ids]
        committed = self._offsets.committed(group, topic).get
        known = self._log.points.sources.get
        positions: list[tuple[int, int | None]] = []
        for queue_id in queue_ids:
            source = known((topic, group, queue_id))
            if source is not None and committed(queue_id) == source.committed:
                positions.append((queue_id, source.position))
            else:
                positions.append((queue_id, None))
        return self._store.unread(topic, positions)

    def present(self, topic: str, group: str, queue_id: int) -> int:
        """The same without a change: a reset that waits counts, and who has none begins at the oldest."""
        if self._log.is_known and not self._offsets.has_reset(group, topic, queue_id):
            position = self._log.position(topic, group, queue_id)
        else:
            position = self._offsets.query(group, topic, queue_id)
        return self._store.queue_min(topic, queue_id) if position is None else position

    def _newest(self, topic: str, queue_id: int) -> int:
        """Where a group begins that wants what is new: at the last message; but at the first one as long as
        that is new, too. So a consumer that starts after its first message was sent gets it."""
        store = self._store
        if self._live.current.init_pop_offset_by_check_msg_in_mem and store.queue_min(topic, queue_id) <= 0:
            unit = store.unit(topic, queue_id, 0)
            if unit is not None and store.max_offset - unit[0] <= self._in_memory_bytes:
                return 0
        return max(0, store.queue_max(topic, queue_id) - 1)
