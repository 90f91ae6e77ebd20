"""A folder of small durable files, as a protocol, so that tests can put a failing disk in its place.

Everything written is lost at a power failure until `sync` (content) or `sync_folder` (names: created, renamed
and deleted files) has returned. A file may then hold any prefix of the appends that were not synced, in which
all that was appended to a sector may read as zeros; what was synced before stays as it was. After a `write`
that was not synced, the file may be old, empty, or any prefix. Changes of names that were not synced may have
happened or not, each by itself.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol, TypeVar

OPEN_FILES_MAX = 8
"""Most files that a `RealDisk` keeps open; the one that was used longest ago is closed for another."""

T = TypeVar("T")


class Disk(Protocol):
    """Files by plain name (no folders in it). All methods block; `OSError` for what the system refuses."""

    def names(self) -> list[str]:
        """All files, sorted."""

    def read(self, name: str) -> bytes:
        """The whole content. Raises `FileNotFoundError`."""

    def read_at(self, name: str, position: int, size: int) -> bytes:
        """Up to `size` bytes from `position`. Raises `FileNotFoundError`."""

    def size(self, name: str) -> int:
        """Bytes of the file. Raises `FileNotFoundError`."""

    def write(self, name: str, data: bytes) -> None:
        """Create the file, or replace its content; neither atomic nor synced."""

    def append(self, name: str, data: bytes) -> None:
        """Add to the end of the file, which is created if it is missing; not synced."""

    def truncate(self, name: str, size: int) -> None:
        """Truncate the file; not synced."""

    def sync(self, name: str) -> None:
        """Make the content durable. After an error the content is unknown: stop, do not try again."""

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, replacing the file that had it; durable after `sync_folder`."""

    def delete(self, name: str) -> None:
        """Remove a file; it may be missing. Durable after `sync_folder`."""

    def sync_folder(self) -> None:
        """Make names durable."""


class RunBlocking(Protocol):
    """Carries out blocking work without holding up the loop; one piece after the other, in order."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]:
        """Start the work now, even if nobody awaits it; what is awaited returns or raises what it did."""


class DiskThread:
    """The real `RunBlocking`: one thread of its own, so that a slow disk holds up nobody else's threads."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(self._executor, work)

    def close(self) -> None:
        """Wait until the work that was started is done, and end the thread; may be called again.

        Close the disk only after this: work goes on in the thread when the task that asked is cancelled.
        """
        self._executor.shutdown(wait=True, cancel_futures=True)


def replace_file(disk: Disk, name: str, data: bytes) -> None:
    """Write a file so that a crash at any instant leaves the old content or the new, whole and synced."""
    temporary = name + ".tmp"
    disk.write(temporary, data)
    disk.sync(temporary)
    disk.rename(temporary, name)
    disk.sync_folder()


class RealDisk:
    """A folder of the file system; it is created when missing. Files that are appended to stay open."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._open: dict[str, int] = {}

    def names(self) -> list[str]:
        with os.scandir(self.folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_file(follow_symlinks=False))

    def read(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()

    def read_at(self, name: str, position: int, size: int) -> bytes:
        with (self.folder / name).open("rb") as stream:
            stream.seek(position)
            return stream.read(size)

    def size(self, name: str) -> int:
        return (self.folder / name).stat().st_size

    def write(self, name: str, data: bytes) -> None:
        self._forget(name)
        with (self.folder / name).open("wb") as stream:
            stream.write(data)

    def append(self, name: str, data: bytes) -> None:
        descriptor = self._descriptor(name)
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]

    def truncate(self, name: str, size: int) -> None:
        os.truncate(self.folder / name, size)

    def sync(self, name: str) -> None:
        descriptor = self._open.get(name)
        if descriptor is not None:
            # The size that an append changed is part of what fdatasync makes durable.
            os.fdatasync(descriptor)
            return
        descriptor = os.open(self.folder / name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, old: str, new: str) -> None:
        self._forget(old)
        self._forget(new)
        (self.folder / old).replace(self.folder / new)

    def delete(self, name: str) -> None:
        self._forget(name)
        (self.folder / name).unlink(missing_ok=True)

    def sync_folder(self) -> None:
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Close open files; may be called again."""
        for name in list(self._open):
            self._forget(name)

    def _descriptor(self, name: str) -> int:
        descriptor = self._open.pop(name, None)
        if descriptor is None:
            if len(self._open) >= OPEN_FILES_MAX:
                self._forget(next(iter(self._open)))
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            descriptor = os.open(self.folder / name, flags, 0o644)
        self._open[name] = descriptor
        return descriptor

    def _forget(self, name: str) -> None:
        descriptor = self._open.pop(name, None)
        if descriptor is not None:
            os.close(descriptor)
