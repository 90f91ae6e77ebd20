"""Bytes of a master on their way into the log's file: received into a buffer, and written by one call."""

from __future__ import annotations

import os
from typing import Final

from brokerset_broker.store.commit_log import CommitLog
from brokerset_broker.store.segments import MappedFile

BUFFER_BYTES: Final = 256 * 1024
"""Size of the buffer unless more is asked for: what our masters send at a time, and what stays in a cache."""


class ReceivedBytes:
    """Writes at the end of what was received.

    Not through the mapping: there every new page is zeroed and faulted in before it is overwritten, which
    costs several times as much as the copy. Readers of the mapping see what was written.
    """

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._file: MappedFile | None = None
        self._descriptor = -1

    def room(self, offset: int, size: int) -> memoryview:
        """Writable memory for up to `size` bytes that belong at `offset`; it ends with the file.

        Valid until the next call. OSError when the disk has no space; nothing has changed then.
        """
        file = self._log.receiving_file(offset)
        if file is not self._file:
            descriptor = os.open(file.path, os.O_RDWR | os.O_CLOEXEC)
            self.close()
            self._file, self._descriptor = file, descriptor
        size = min(size, file.end - offset)
        if size > len(self._buffer):
            self._buffer = memoryview(bytearray(size))
        return self._buffer[:size]

    def write(self, offset: int, size: int) -> int:
        """Write the first `size` bytes of the memory that `room` gave last to `offset`.

        Returns how many were written: less than `size` only if the disk took no more. OSError when it took
        none.
        """
        file = self._file
        assert file is not None, "there was room"
        position, written = offset - file.start, 0
        while written < size:
            try:
                written += os.pwrite(self._descriptor, self._buffer[written:size], position + written)
            except OSError:
                if not written:
                    raise
                break
        return written

    def close(self) -> None:
        """Let go of the file; the next `room` opens what it needs."""
        if self._file is not None:
            self._file = None
            os.close(self._descriptor)
