"""The part of the message store that clients' questions and administration need."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from brokerset_broker.store.results import Boundary


class StoreView(Protocol):
    """What `MessageStore` offers beside sending and pulling. Unknown queues are empty ones: 0 to 0."""

    @property
    def min_offset(self) -> int:
        """First byte of the commit log."""
        ...

    @property
    def max_offset(self) -> int:
        """End of the commit log."""
        ...

    @property
    def flushed_offset(self) -> int:
        """End of what is on the disk."""
        ...

    def queue_max(self, topic: str, queue_id: int) -> int:
        """The queue offset that the next message gets."""
        ...

    def queue_min(self, topic: str, queue_id: int) -> int:
        """The queue offset of the oldest message."""
        ...

    def queue_offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: Boundary = Boundary.LOWER
    ) -> int:
        """The queue offset of the message stored at a time."""
        ...

    def earliest_store_time(self, topic: str, queue_id: int) -> int:
        """Milliseconds of the oldest message of a queue, -1 if it is empty."""
        ...

    def store_time_at(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Milliseconds of one message, -1 if it is not there."""
        ...

    def read(self, offset: int, size: int | None = None) -> memoryview | None:
        """The record at a commit log offset."""
        ...

    def delete_topic(self, topic: str) -> None:
        """Drop the queues of a topic; its records go with their segments."""
        ...

    def queues(self) -> Mapping[str, Collection[int]]:
        """The queues that have files, by topic."""
        ...

    def units(
        self, topic: str, queue_id: int, queue_offset: int, count: int
    ) -> Sequence[tuple[int, int, int]]:
        """Commit log offset, size and tags code of the messages from a queue offset on."""
        ...

    async def delete_expired(self) -> None:
        """Delete expired files now, whatever the hour."""
        ...
