"""The real message store as the log that holds metadata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.tables.metadata.applier import RecordSource
from brokerset_broker.tables.metadata.records import METADATA_QUEUE_ID, METADATA_TOPIC, Kind, properties
from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_formats.records import decode_record
from brokerset_runtime.clock import Clock


@dataclass(frozen=True, slots=True)
class Written:
    """A record that was appended."""

    offset: int
    end: int
    queue_offset: int


class MetadataStore(RecordSource, Protocol):
    """A log that metadata is written to and read from."""

    @property
    def max_offset(self) -> int:
        """End of the whole records that are in their queues."""

    @property
    def confirmed_offset(self) -> int:
        """What lies below may be applied; between two records."""

    def append(self, kind: Kind, body: bytes) -> Written:
        """Write a record. Raises `StoreRefused`."""

    def forget_topic(self, topic: str, before: int) -> None:
        """Delete the queues of a topic that have no message at or behind an offset of the log."""

    def resting_queues(self, before: int) -> Iterable[tuple[str, dict[int, int]]]:
        """The queues without a message at or behind an offset of the log: the next number, by topic."""

    def begin_queues(self, topic: str, ends: Mapping[int, int]) -> bool:
        """Let queues that nothing is known of go on with these numbers; whether any was one.

        Raises `StoreRefused`.
        """

    async def checkpoint(self) -> None:
        """Make sure that deleted queues do not come back after a crash, and that begun ones do."""


class StoreSource:
    """Implements `MetadataStore` over a `MessageStore`."""

    def __init__(self, store: MessageStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    @property
    def min_offset(self) -> int:
        return self._store.min_offset

    @property
    def max_offset(self) -> int:
        return self._store.max_offset

    @property
    def confirmed_offset(self) -> int:
        return self._store.confirmed_offset

    @property
    def queue_min(self) -> int:
        return self._store.queue_min(METADATA_TOPIC, METADATA_QUEUE_ID)

    @property
    def queue_max(self) -> int:
        return self._store.queue_end(METADATA_TOPIC, METADATA_QUEUE_ID)

    def units(self, queue_offset: int, count: int) -> Sequence[tuple[int, int, int]]:
        found: list[tuple[int, int, int]] = []
        for number in range(queue_offset, queue_offset + count):
            unit = self._store.unit(METADATA_TOPIC, METADATA_QUEUE_ID, number)
            if unit is None:
                break
            found.append(unit)
        return found

    def read(self, offset: int, size: int) -> bytes | None:
        data = self._store.read(offset)
        if data is None or len(data) != size:
            return None
        record = decode_record(data, verify_crc=True)
        return record.body if record.topic == METADATA_TOPIC else None

    def append(self, kind: Kind, body: bytes) -> Written:
        appended = self._store.append(
            METADATA_TOPIC,
            METADATA_QUEUE_ID,
            body,
            properties(kind),
            flag=0,
            sys_flag=0,
            born_timestamp=self._clock.now_ms(),
            born_host=self._store.store_host.encode(),
        )
        return Written(appended.offset, appended.end, appended.queue_offset)

    def forget_topic(self, topic: str, before: int) -> None:
        self._store.forget_queues(topic, before)

    def resting_queues(self, before: int) -> Iterable[tuple[str, dict[int, int]]]:
        return self._store.resting_queues(before)

    def begin_queues(self, topic: str, ends: Mapping[int, int]) -> bool:
        return self._store.begin_queues(topic, ends)

    async def checkpoint(self) -> None:
        await self._store.checkpoint()
