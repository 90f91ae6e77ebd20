"""What the message store answers: appended messages, found messages."""

from __future__ import annotations

from enum import Enum

from brokerset_formats.lazy_dataclasses import dataclass


class Appended:
    """One stored message. Treat it as read-only; no frozen dataclass, because one is made for each send."""

    __slots__ = ("offset", "queue_offset", "size", "store_timestamp")

    def __init__(self, offset: int, size: int, queue_offset: int, store_timestamp: int) -> None:
        self.offset = offset
        """Byte address of the record in the commit log."""
        self.size = size
        """Bytes of the record."""
        self.queue_offset = queue_offset
        """Number of the message in its queue."""
        self.store_timestamp = store_timestamp
        """Milliseconds since 1970, by this broker's clock; never decreases along the log."""

    @property
    def end(self) -> int:
        """Offset behind the record: the message is on disk when the log is flushed up to here."""
        return self.offset + self.size

    def __repr__(self) -> str:
        return (
            f"Appended(offset={self.offset}, size={self.size}, queue_offset={self.queue_offset}, "
            f"store_timestamp={self.store_timestamp})"
        )


@dataclass(frozen=True, slots=True)
class AppendedBatch:
    """The stored messages of one batch: neighbours in the log and in their queue."""

    offsets: list[int]
    """Byte address of each record."""

    queue_offset: int
    """Number of the first message in its queue; the others follow without gaps."""

    end: int
    """Offset behind the last record."""

    store_timestamp: int
    """Of all records, milliseconds since 1970."""

    @property
    def offset(self) -> int:
        """Byte address of the first record."""
        return self.offsets[0]

    @property
    def size(self) -> int:
        """Bytes of all records."""
        return self.end - self.offsets[0]

    @property
    def count(self) -> int:
        """Number of messages."""
        return len(self.offsets)


class GetStatus(Enum):
    """What became of a `get` (`GetMessageStatus` of Java)."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    """There were messages, but none with a wanted tag; go on at `next_queue_offset`."""
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    """The units are there, their records are not any more; go on at `next_queue_offset`."""
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    """The queue has no unit there, though the number lies inside its bounds."""
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    """The next message of the queue is asked for; it is not there yet."""
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    """There is no such queue."""
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


class GetResult:
    """Messages of one queue, as parts of the log that can be written to a socket one after the other.

    The parts are views of mapped files: write or copy them soon, because each keeps its file mapped, even
    when retention has deleted it. Treat the object as read-only.
    """

    __slots__ = (
        "max_queue_offset",
        "message_count",
        "min_queue_offset",
        "next_queue_offset",
        "parts",
        "size",
        "status",
    )

    def __init__(
        self,
        status: GetStatus,
        next_queue_offset: int,
        min_queue_offset: int,
        max_queue_offset: int,
        parts: list[memoryview],
        message_count: int,
        size: int,
    ) -> None:
        self.status = status
        self.next_queue_offset = next_queue_offset
        """Where the consumer should go on."""
        self.min_queue_offset = min_queue_offset
        self.max_queue_offset = max_queue_offset
        """The number that the next message of the queue gets."""
        self.parts = parts
        """Whole records, in order; neighbours in the log are one part."""
        self.message_count = message_count
        self.size = size
        """Bytes of all parts."""

    def __repr__(self) -> str:
        return (
            f"GetResult({self.status.name}, next={self.next_queue_offset}, min={self.min_queue_offset}, "
            f"max={self.max_queue_offset}, messages={self.message_count}, size={self.size})"
        )


class Boundary(Enum):
    """Which message a search by time means when none, or several, have exactly that time."""

    LOWER = "LOWER"
    """The first one stored at or after the time."""
    UPPER = "UPPER"
    """The last one stored at or before the time."""


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Records that may have a key, oldest first; hashes can collide, so the asker compares the keys."""

    records: list[memoryview]
    index_timestamp: int
    """Store time of the newest indexed message, 0 if there is none."""

    index_offset: int
    """Commit log offset of the newest indexed message, 0 if there is none."""

    @property
    def size(self) -> int:
        """Bytes of all records."""
        return sum(len(record) for record in self.records)
