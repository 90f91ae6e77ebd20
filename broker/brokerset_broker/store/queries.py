"""The message store as administration asks it: -1 for what is not there, and lists of queue units."""

from __future__ import annotations

from collections.abc import Sequence

from brokerset_broker.store.message_store import MessageStore

NONE: int = -1
"""Java's timestamp of what is not there."""


class StoreQueries:
    """A `MessageStore` as requests of administrators see it."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self.queues, self.delete_topic = store.queues, store.delete_topic
        self.queue_min, self.queue_max = store.queue_min, store.queue_max
        self.queue_offset_by_time = store.queue_offset_by_time

    @property
    def min_offset(self) -> int:
        """First byte of the commit log."""
        return self._store.min_offset

    @property
    def max_offset(self) -> int:
        """End of the commit log."""
        return self._store.max_offset

    @property
    def flushed_offset(self) -> int:
        """End of what is on the disk."""
        return self._store.flushed_offset

    def earliest_store_time(self, topic: str, queue_id: int) -> int:
        """Milliseconds of the oldest message of a queue, -1 if it is empty."""
        found = self._store.earliest_store_time(topic, queue_id)
        return NONE if found is None else found

    def store_time_at(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Milliseconds of one message, -1 if it is not there."""
        found = self._store.store_time_at(topic, queue_id, queue_offset)
        return NONE if found is None else found

    def read(self, offset: int, size: int | None = None) -> memoryview | None:
        """The record at a commit log offset, if it can be read by clients."""
        return self._store.read_announced(offset) if size is None else self._store.read(offset, size)

    def units(
        self, topic: str, queue_id: int, queue_offset: int, count: int
    ) -> Sequence[tuple[int, int, int]]:
        """Commit log offset, size and tags code of the messages from a queue offset on, as far as they can be
        read."""
        found: list[tuple[int, int, int]] = []
        end = self._store.queue_max(topic, queue_id)
        for number in range(queue_offset, min(queue_offset + count, end)):
            unit = self._store.unit(topic, queue_id, number)
            if unit is None:
                break
            found.append(unit)
        return found

    async def delete_expired(self) -> None:
        """Delete expired files now, whatever the hour."""
        self._store.retention.request()
        await self._store.retention.check()
