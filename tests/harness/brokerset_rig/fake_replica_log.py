"""A replica log without records: mapped files of any bytes, so that links can be tested without a store."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path

from brokerset_broker.store.replica_log import LogSource, ReplicaLogFailed


class _File:
    """One file, open and mapped until nobody uses it."""

    def __init__(self, path: Path, size: int) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.ftruncate(self._descriptor, size)
        os.posix_fallocate(self._descriptor, 0, size)
        self.map = mmap.mmap(self._descriptor, size)
        self.view = memoryview(self.map)

    @property
    def descriptor(self) -> int:
        """Of the open file."""
        return self._descriptor

    def __del__(self) -> None:
        os.close(self._descriptor)


class FakeReplicaLog:
    """A `ReplicaLog` in which every byte is a record of its own."""

    def __init__(self, folder: Path, *, segment_bytes: int = 1024 * 1024, begin: int = 0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._files: dict[int, _File] = {}
        self._confirmed = begin
        self.begin = begin
        self.end = begin
        self.problem: str | None = None
        """What `room` fails with."""
        self.rooms: list[int] = []
        """Sizes that `received` was called with."""
        self.listeners: list[Callable[[int], None]] = []

    def append(self, data: bytes) -> int:
        """Add bytes; returns the end."""
        view = memoryview(data)
        while view:
            room = self.room(len(view))
            room[:] = view[: len(room)]
            view = view[len(room) :]
            self.end += len(room)
        for listener in self.listeners:
            listener(self.end)
        return self.end

    def content(self) -> bytes:
        """Everything that is there."""
        parts: list[bytes] = []
        offset = self.begin
        while offset < self.end:
            parts.append(bytes(self.view(offset, self.end - offset)))
            offset += len(parts[-1])
        return b"".join(parts)

    def _file(self, offset: int) -> tuple[_File, int]:
        start = offset - offset % self._segment_bytes
        if start not in self._files:
            self._files[start] = _File(self._folder / f"{start:020d}", self._segment_bytes)
        return self._files[start], offset - start

    # -- ReplicaLog ---------------------------------------------------------------------------------------

    @property
    def min_offset(self) -> int:
        return self.begin

    @property
    def max_offset(self) -> int:
        return self.end

    @property
    def received_end(self) -> int:
        return self.end

    @property
    def acknowledged_end(self) -> int:
        return self.end

    @property
    def confirmed_offset(self) -> int:
        return self._confirmed

    @property
    def segment_bytes(self) -> int:
        return self._segment_bytes

    def confirm(self, offset: int, *, partial: bool = False) -> None:
        self._confirmed = max(self._confirmed, min(offset, self.end))

    def on_confirmed(self, listener: Callable[[int], None]) -> None:
        pass

    def lead(self) -> None:
        pass

    def on_appended(self, listener: Callable[[int], None]) -> None:
        self.listeners.append(listener)

    def confirm_appends(self, on: bool) -> None:
        pass

    def view(self, offset: int, size: int) -> memoryview:
        file, position = self._file(offset)
        size = min(size, self._segment_bytes - position, self.end - offset)
        return file.view[position : position + size].toreadonly()

    def source(self, offset: int, size: int) -> LogSource:
        file, position = self._file(offset)
        size = min(size, self._segment_bytes - position, self.end - offset)
        return LogSource(file.descriptor, position, size, file)

    def follow(self) -> None:
        pass

    def room(self, size: int) -> memoryview:
        if self.problem is not None:
            raise ReplicaLogFailed(self.problem)
        file, position = self._file(self.end)
        return file.view[position : position + min(size, self._segment_bytes - position)]

    def received(self, size: int) -> None:
        self.end += size
        self.rooms.append(size)

    def on_acknowledged(self, listener: Callable[[], None]) -> None:
        pass

    def failure(self) -> str | None:
        return None

    async def finish_received(self) -> int:
        return self.end

    async def truncate(self, offset: int, *, keep_copy: bool) -> None:
        self.end = offset

    async def begin_at(self, offset: int) -> None:
        self._files.clear()
        self.begin = self.end = self._confirmed = offset
