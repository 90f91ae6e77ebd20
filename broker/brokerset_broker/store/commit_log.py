"""The commit log: all messages of all topics in the order of their arrival, in files of one size."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from pathlib import Path

from brokerset_broker.store import mapping
from brokerset_broker.store.errors import PutStatus, StoreRefused
from brokerset_broker.store.recovery import scan
from brokerset_broker.store.segments import MappedFile, SegmentSequence
from brokerset_formats.cursors import LogCursor
from brokerset_formats.records import BLANK, BLANK_SIZE_MIN, MAGIC_BLANK, RecordHead

WARM_STEP_BYTES = 4 * 1024 * 1024
"""How far ahead of the writer pages are made, in a thread.

A page that a virtual machine has not used before costs 8 µs where this was measured (0.7 µs otherwise),
and four messages fill it. Steps are small, because a page made ahead may be written to the disk twice.
"""

CALLS_STEP_BYTES = 64 * 1024 * 1024
"""How far the limit is ahead of a writer that needs no pages made."""

PREPARE_AT = 0.5
"""Part of a file that is written when the next one is made, in a thread."""

_SIZE = struct.Struct(">i")


class CommitLog(LogCursor):
    """Where the log ends, and room for the next record. One thread writes; any may read what is written.

    The writer asks for room only when a record would end behind `limit`; in between it writes to `map`, at
    `max_offset - map_start`, and moves `max_offset` itself.
    """

    __slots__ = (
        "_by_calls",
        "_executor",
        "_file",
        "_warm_end",
        "_warming",
        "files",
        "flushed_offset",
        "flushed_timestamp",
    )

    def __init__(self, folder: Path, segment_bytes: int, executor: Executor | None = None) -> None:
        super().__init__()
        self.files = SegmentSequence(folder, segment_bytes)
        self._executor = executor
        self._file: MappedFile | None = None
        self._by_calls = False
        self._warm_end = 0
        self._warming: Future[bool] | None = None
        self.flushed_offset = 0
        """Everything below is on disk."""
        self.flushed_timestamp = 0
        """Store time of the last record that is on disk."""

    @property
    def min_offset(self) -> int:
        """Offset of the oldest byte there is."""
        return self.files.start

    def use_calls(self) -> None:
        """Let records be written by system calls, too (`LogCursor`); then pages need not be made ahead."""
        self._by_calls = True
        self.limit = -1
        if self._file is not None:
            self.write_to(str(self._file.path))

    def written(self, end: int, store_timestamp: int) -> None:
        """The record that room was made for is in `map`, and ends at `end`."""
        self.max_offset = end
        self.store_timestamp = store_timestamp

    def records(self, offset: int) -> Iterator[RecordHead]:
        """All records from `offset`, where one begins, to the end of the log."""
        while offset < self.max_offset:
            file = self.files.find(offset)
            if file is None:
                return
            for head in scan(file.view, file.start, offset - file.start, verify_crc=False):
                if not isinstance(head, RecordHead) or head.offset >= self.max_offset:
                    break  # what was received behind the end is not dispatched yet
                yield head
            offset = file.end

    def detach_first(self) -> MappedFile:
        """Take the oldest file out of the log; whoever asked deletes it."""
        return self.files.files.pop(0)

    def begin_at(self, offset: int, store_timestamp: int) -> None:
        """Take `offset` for the end of the log; everything behind it is zeros or not there."""
        self.max_offset = offset
        self.store_timestamp = store_timestamp
        self.limit = -1
        self._file = None
        self._warming = None
        self.map = memoryview(bytearray())
        self.write_to(None)

    def make_room(self, size: int) -> int:
        """Make sure that `size` bytes can be written in one piece; returns the offset where.

        Begins the next file if they do not fit into this one. StoreRefused when the disk has no space;
        nothing has changed then, and a later call may find some.
        """
        if size + BLANK_SIZE_MIN > self.files.segment_bytes:
            raise StoreRefused(
                PutStatus.MESSAGE_ILLEGAL,
                f"{size} bytes do not fit into a commit log file of {self.files.segment_bytes}",
            )
        try:
            self._make_room(size)
        except OSError as error:
            raise StoreRefused(
                PutStatus.SERVICE_NOT_AVAILABLE,
                f"no room for the commit log in {self.files.folder}: {error.strerror}; free some disk space",
            ) from error
        return self.max_offset

    def _make_room(self, size: int) -> None:
        file = self._file
        if file is None:
            file = self.files.find(self.max_offset) or self.files.add(self.max_offset)
            self._enter(file, self.max_offset)
        if self.max_offset + size + BLANK_SIZE_MIN > file.end:
            following = self.files.add()
            BLANK.pack_into(
                self.map, self.max_offset - self.map_start, file.end - self.max_offset, MAGIC_BLANK
            )
            self.max_offset = file.end
            file = following
            self._enter(file, self.max_offset)
        self._look_ahead(file, self.max_offset, self.max_offset + size)

    def receiving_file(self, offset: int) -> MappedFile:
        """The file for bytes from `offset` on, the end of what was received.

        OSError when the disk has no space; nothing has changed then. Behind `max_offset` only one may
        write: who receives, or who appends.
        """
        file = self.files.find(offset)
        if file is None:
            assert not self.files.files or self.files.end == offset, "files of the log have no gaps"
            file = self.files.add(offset)
        if file.reserved < file.size:
            self.files.reserve(file, file.size)
        if self._executor is not None and offset - file.start >= file.size * PREPARE_AT:
            self.files.prepare_next(self._executor)
        return file

    def _enter(self, file: MappedFile, offset: int) -> None:
        if file.reserved < file.size:
            self.files.reserve(file, file.size)
        self._file = file
        self.map = memoryview(file.map)
        self.map_start = file.start
        if self._by_calls:
            self.write_to(str(file.path))
        self._warm_end = offset

    def _look_ahead(self, file: MappedFile, offset: int, end: int) -> None:
        """Have pages and the next file made in time, and set the limit to where to look again."""
        step = CALLS_STEP_BYTES if self._by_calls else WARM_STEP_BYTES
        last = file.end - BLANK_SIZE_MIN
        prepare_at = file.start + int(file.size * PREPARE_AT)
        self.limit = min(last, max(end, offset + step))
        if end < prepare_at:
            self.limit = min(self.limit, prepare_at)
        if self._executor is None:
            return
        warm_end = min(self.limit + step, file.end)
        if not self._by_calls and warm_end > self._warm_end:
            begin = max(self._warm_end, offset) - file.start
            self._warming = self._executor.submit(mapping.populate, file.map, begin, warm_end - file.start)
            self._warm_end = warm_end
        if end >= prepare_at:
            self.files.prepare_next(self._executor)

    def read(self, offset: int, size: int) -> memoryview | None:
        """The bytes at `offset`; None if they are not all in one file of the log."""
        file = self.files.find(offset)
        if file is None or size < 0 or offset + size > self.max_offset:
            return None
        position = offset - file.start
        return file.view[position : position + size] if position + size <= file.size else None

    def read_record(self, offset: int) -> memoryview | None:
        """The record at `offset`, by the size in its first bytes; nothing else of it is checked."""
        head = self.read(offset, _SIZE.size)
        if head is None:
            return None
        (size,) = _SIZE.unpack(head)
        return self.read(offset, size) if size > 0 else None
