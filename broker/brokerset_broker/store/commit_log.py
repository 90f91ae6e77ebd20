"""The commit log: all messages of all topics in the order of their arrival, in files of one size."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from concurrent.futures import Executor
from pathlib import Path

from brokerset_broker.store.errors import PutStatus, StoreRefused
from brokerset_broker.store.recovery import scan
from brokerset_broker.store.segments import MappedFile, SegmentSequence
from brokerset_formats.cursors import LogCursor
from brokerset_formats.records import BLANK, BLANK_SIZE_MIN, MAGIC_BLANK, RecordHead

PREPARE_AT = 0.5
"""Part of a file that is written when the next one is made, in a thread."""

_SIZE = struct.Struct(">i")


class CommitLog(LogCursor):
    """Where the log ends, and room for the next record. One thread writes; any may read what is written.

    The writer asks for room only when its records would end behind `limit`; then it gives them to `put`.
    """

    __slots__ = (
        "_cursor_writes",
        "_executor",
        "_file",
        "files",
        "flushed_offset",
        "flushed_timestamp",
    )

    def __init__(self, folder: Path, segment_bytes: int, executor: Executor | None = None) -> None:
        super().__init__()
        self.files = SegmentSequence(folder, segment_bytes)
        self._executor = executor
        self._file: MappedFile | None = None
        self._cursor_writes = False
        self.flushed_offset = 0
        """Everything below is on disk."""
        self.flushed_timestamp = 0
        """Store time of the last record that is on disk."""

    @property
    def min_offset(self) -> int:
        """Offset of the oldest byte there is."""
        return self.files.start

    def use_calls(self) -> None:
        """Let the native core write records, too (`LogCursor.write_to`)."""
        self._cursor_writes = True
        self.limit = -1
        if self._file is not None:
            self.write_to(str(self._file.path))

    def put(self, offset: int, records: bytes, store_timestamp: int) -> None:
        """Write records that room was made for at `offset`, the end of the log, by one call.

        OSError if the file does not take them. The log has not changed then, but it cannot be told what the
        file has behind its end: nothing may be put any more.
        """
        file = self._file
        assert file is not None, "room was made"
        file.write(offset - file.start, records)
        self.max_offset = offset + len(records)
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
        self._leave_file()
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
            self._enter(file)
        if self.max_offset + size + BLANK_SIZE_MIN > file.end:
            following = self.files.find(file.end) or self.files.add()  # it is there if entering it failed
            last, position = self.map, self.max_offset - self.map_start
            self._enter(following)
            BLANK.pack_into(last, position, file.end - self.max_offset, MAGIC_BLANK)
            self.max_offset = file.end
            file = following
        self._look_ahead(file, self.max_offset + size)

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

    def _enter(self, file: MappedFile) -> None:
        """Write to this file from now on. OSError: nothing has changed."""
        if file.reserved < file.size:
            self.files.reserve(file, file.size)
        mapped = memoryview(file.map)
        file.begin_writing()
        if self._cursor_writes:
            self.write_to(str(file.path))
        if file is not self._file:
            self._leave_file()
        self._file, self.map, self.map_start = file, mapped, file.start

    def close(self) -> None:
        """Put nothing any more: let go of the file that is written."""
        self.limit = -1
        self._leave_file()
        self.write_to(None)

    def _leave_file(self) -> None:
        """Write no more to the present file."""
        if self._file is not None:
            self._file.end_writing()
            self._file = None

    def _look_ahead(self, file: MappedFile, end: int) -> None:
        """Have the next file made in time, and set the limit to where to look again."""
        prepare_at = file.start + int(file.size * PREPARE_AT)
        self.limit = prepare_at if end < prepare_at else file.end - BLANK_SIZE_MIN
        if end >= prepare_at and self._executor is not None:
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
