"""What requests about ordered subjects need of the store, as narrow as it can be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from brokerset_broker.store.results import Appended, AppendedBatch, GetResult
from brokerset_formats.batches import BatchItem


class QueueReads(Protocol):
    """Bounds of queues, and records by their number."""

    def queue_min(self, topic: str, queue_id: int) -> int:
        """The number of the oldest message that is still there; 0 for an unknown queue."""

    def queue_max(self, topic: str, queue_id: int) -> int:
        """The number that the next message gets, as consumers are told; 0 for an unknown queue."""

    def tail(self, topic: str, queue_id: int) -> tuple[int, int]:
        """What was appended: the number of the next message, and the offset behind the last one."""

    def unit(self, topic: str, queue_id: int, queue_offset: int) -> tuple[int, int, int] | None:
        """Offset, size and tags code of a message; None if it is not there."""

    def read(self, offset: int, size: int | None = None) -> memoryview | None:
        """The record at an offset of the log; None if it is not there."""


class MessageReads(QueueReads, Protocol):
    """Queues as pulls read them."""

    def get(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_messages: int,
        max_bytes: int,
        codes: frozenset[int] | None = None,
    ) -> GetResult:
        """Messages from a queue offset on that may be read, with one of the tags codes."""


class OrderedStore(QueueReads, Protocol):
    """The log, written and read by the queue."""

    @property
    def properties_size_max(self) -> int:
        """Bytes of properties that a client may send."""

    def append(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: bytes,
        *,
        flag: int,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        reconsume_times: int = 0,
    ) -> Appended:
        """Store one message. Raises `StoreRefused`; then nothing has changed."""

    def append_batch(
        self,
        topic: str,
        queue_id: int,
        items: Sequence[BatchItem],
        *,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        reconsume_times: int = 0,
    ) -> AppendedBatch:
        """Store several messages of one queue, all or none. Raises `StoreRefused`."""
