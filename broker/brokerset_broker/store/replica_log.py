"""What replication needs of a message store, as a protocol: a simulated log can stand in for files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from brokerset_formats.lazy_dataclasses import dataclass


class ReplicaLogFailed(Exception):
    """The log cannot take what was received: no room, a failing disk, or bytes that are no records."""


@dataclass(frozen=True, slots=True)
class LogSource:
    """Bytes of the log as part of an open file, for `sendfile`."""

    descriptor: int
    """Open as long as the caller holds this object's `keep`."""

    position: int
    """Of the first byte in the file."""

    size: int
    """How many bytes there are, at most as many as were asked for; never across a file of the log."""

    keep: object
    """Keeps the descriptor open."""


class ReplicaLog(Protocol):
    """A commit log with its queues. All methods are called on the loop; what blocks is a coroutine.

    A log *leads* (records are appended to it) or *follows* (bytes are received into it), never both.
    """

    @property
    def min_offset(self) -> int:
        """Offset of the oldest byte; 0 for a log that never had any."""

    @property
    def max_offset(self) -> int:
        """End of the whole records that are in their queues."""

    @property
    def received_end(self) -> int:
        """End of the bytes that are there; at or behind `max_offset`."""

    @property
    def acknowledged_end(self) -> int:
        """What a slave may acknowledge: `received_end`, with synchronous flush only what is on the disk.

        Of a log that leads it is what counts as the master's own part.
        """

    @property
    def confirmed_offset(self) -> int:
        """Consumers read what lies below; between two records."""

    @property
    def segment_bytes(self) -> int:
        """Bytes of one file of the log."""

    def confirm(self, offset: int, *, partial: bool = False) -> None:
        """Let consumers read up to `offset` as well; a smaller one than before changes nothing.

        An offset behind `max_offset` counts up to there, and for the rest as soon as it is dispatched.
        `partial`: the offset may lie in the middle of a record (a Java master's); then that is left out.
        """

    def on_confirmed(self, listener: Callable[[int], None]) -> None:
        """Have `listener` called with the new confirmed offset, at most once in a turn of the loop."""

    # -- leading ------------------------------------------------------------------------------------------

    def lead(self) -> None:
        """Take appends from now on; everything received must be finished."""

    def on_appended(self, listener: Callable[[int], None]) -> None:
        """Have `listener` called with `max_offset` at the end of each turn of the loop with appends."""

    def confirm_appends(self, on: bool) -> None:
        """Whether everything appended is confirmed at once, what is there already included: nobody else is
        in sync. Off at first, and again after `follow`."""

    def view(self, offset: int, size: int) -> memoryview:
        """Up to `size` bytes from `offset`, less at the end of a file or of the log; for small chunks."""

    def source(self, offset: int, size: int) -> LogSource:
        """The same as part of an open file; for big chunks."""

    # -- following ----------------------------------------------------------------------------------------

    def follow(self) -> None:
        """Refuse appends, and take bytes, from now on."""

    def room(self, size: int) -> memoryview:
        """Writable memory for the next bytes at `received_end`: at least one and at most `size`.

        It ends with a file of the log, so a caller may have to ask again. Raises `ReplicaLogFailed`.
        """

    def received(self, size: int) -> None:
        """`size` bytes of what `room` gave are in. They are dispatched soon, whole records only."""

    def on_acknowledged(self, listener: Callable[[], None]) -> None:
        """Have `listener` called when `acknowledged_end` has grown for another reason than `received` or an
        append: after a flush, also of a log that leads. Several listeners may be added."""

    def failure(self) -> str | None:
        """What is wrong behind `max_offset` (a record that was received, or one that the start found); None
        while all is well. Nothing is received then before the log is truncated there, or fully resynced."""

    async def finish_received(self) -> int:
        """Dispatch everything that was received, drop a record that is not whole; returns `max_offset`.

        Raises `ReplicaLogFailed`.
        """

    async def truncate(self, offset: int, *, keep_copy: bool) -> None:
        """Remove everything from `offset` on, for good: after a crash at any moment the log ends there or
        where it ended before, and nothing removed comes back.

        `offset` lies between two records; `keep_copy` keeps what is removed in the folder of damaged logs.
        Lowers the confirmed offset if it lies behind. Raises `ReplicaLogFailed`.
        """

    async def begin_at(self, offset: int) -> None:
        """Remove everything and begin an empty log at `offset`, a file's start. As durable as `truncate`."""
