"""The fields that every append changes, in classes of their own: the native core has the same ones.

`CommitLog`, `ConsumeQueue` and `IndexTable` inherit them, so the Python path and the native core change the
same memory. With a native core they are classes of that module; their fields are attributes here as there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from brokerset_formats import native


class Buffer(Protocol):
    """Bytes in memory that can be changed in place: a bytearray, or a mapped file."""

    def __len__(self) -> int: ...

    def __buffer__(self, flags: int, /) -> memoryview: ...


class LogCursor:
    """Where a commit log ends, and where the next record goes."""

    __slots__ = ("limit", "map", "map_start", "max_offset", "store_timestamp")

    def __init__(self) -> None:
        self.map: memoryview = memoryview(bytearray())
        """The file that is written, as a mapping; empty before the first append."""
        self.map_start = 0
        """Offset of its first byte."""
        self.max_offset = 0
        """Where the next record begins."""
        self.limit = -1
        """A record that ends behind this needs `make_room` first."""
        self.store_timestamp = 0
        """Of the last record; the next one gets no smaller one, whatever the clock says."""

    def write_to(self, path: str | None) -> None:
        """Name the file of `map`, for who writes with system calls."""


class QueueCursor:
    """Where a consume queue ends, and where the next unit goes."""

    __slots__ = (
        "arrival_pending",
        "arrival_tags",
        "last_end",
        "map",
        "map_start",
        "next_offset",
        "position",
        "room_end",
    )

    def __init__(self) -> None:
        self.map: memoryview = memoryview(bytearray())
        """The file that is written, as a mapping; empty before the first unit."""
        self.map_start = 0
        """Position in the queue of its first byte."""
        self.next_offset = 0
        """Number of the next message."""
        self.position = 0
        """Where its unit goes, in bytes from the beginning of the queue."""
        self.room_end = -1
        """Units that end before or at this position may be written without `make_room`."""
        self.last_end = 0
        """Commit log offset behind the last message of the queue; 0 if there never was one."""
        self.arrival_pending = False
        """Whether messages came that were not announced yet."""
        self.arrival_tags: int | None = 0
        """Their tags code; None if there are several."""


class IndexCursor:
    """The header's fields of an index file, and its memory."""

    __slots__ = (
        "begin_offset",
        "begin_timestamp",
        "buffer",
        "end_offset",
        "end_timestamp",
        "next_unit",
        "room",
        "slots",
        "slots_used",
        "units",
    )

    def __init__(self) -> None:
        self.buffer: Buffer = bytearray()
        """Header, slots and units."""
        self.slots = 0
        """How many slots there are."""
        self.units = 0
        """How many units there are, the first one included, which is never used."""
        self.begin_timestamp = 0
        self.end_timestamp = 0
        self.begin_offset = 0
        self.end_offset = 0
        self.slots_used = 0
        self.next_unit = 1
        self.room = 0
        """Units with a smaller number have their disk blocks."""


if not TYPE_CHECKING and native.core is not None:
    LogCursor = native.core.LogCursor
    QueueCursor = native.core.QueueCursor
    IndexCursor = native.core.IndexCursor
