"""A file of the new log while it is written: room first, then one write for each block, then the disk.

The kernel is asked to bring what was written to the disk while later blocks are still being made, so that
`fsync` at the end finds little to wait for.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import xxhash

from brokerset_runtime.files import sync_folder

WRITEBACK_BYTES: Final = 16 << 20
"""After so many bytes the kernel is asked to write them, which keeps the disk at work meanwhile."""

ALIGNMENT: Final = 64 << 10
"""Writes end at multiples of it: the kernel then keeps the file in large pages, at 0.8 of the cost."""

_SYNC_FILE_RANGE_WRITE: Final = 2
_NO_ROOM_AHEAD: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
_FICLONE: Final = 0x40049409
_CANNOT_SHARE: Final = frozenset(
    {errno.EXDEV, errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.ENOSYS, errno.EBADF, errno.EPERM}
)
"""What a file system says that cannot share blocks, or not between these two files."""

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LIBC.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
_LIBC.sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


class Output:
    """Written from its beginning to its end, under another name until `publish`."""

    def __init__(self, part: Path, *, room: int = 0, eager: bool = True) -> None:
        """OSError if the disk lacks so much room; with `eager` it begins to write before the end."""
        self.part = part
        self.position = 0
        """Behind what was written."""

        self.digest = xxhash.xxh3_128()
        """Of what was written."""

        self.shared = False
        """Whether it has the blocks of another file, copy-on-write."""

        self._waiting = b""
        self._written = self._started = 0
        self._eager = eager
        self._descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            allocate(self._descriptor, room)
        except OSError:
            self.close()
            raise

    def put(self, data: bytes | memoryview) -> None:
        """Append."""
        self.digest.update(data)
        end = self.position + len(data)
        written = max(end // ALIGNMENT * ALIGNMENT, self._written)
        if written > self._written:
            now = written - self.position
            write_all(self._descriptor, [self._waiting, data[:now]], self._written)
            self._waiting, self._written = bytes(data[now:]), written
            self._start_writeback()
        else:
            self._waiting += bytes(data)
        self.position = end

    def flush(self) -> None:
        """Write what waits for a whole block."""
        if self._waiting:
            write_all(self._descriptor, [self._waiting], self._written)
        self._waiting, self._written = b"", self.position

    def _start_writeback(self) -> None:
        if self._eager and self._written - self._started >= WRITEBACK_BYTES:
            start_writeback(self._descriptor, self._started, self._written - self._started)
            self._started = self._written

    def share(self, reading: int) -> bool:
        """Take all blocks of a file, if the file system can, so that `take` has nothing to write.

        Never a hard link: a broker that changes the copy must not change the source.
        """
        assert self.position == 0, "nothing was written"
        try:
            fcntl.ioctl(self._descriptor, _FICLONE, reading)
        except OSError as error:
            if error.errno not in _CANNOT_SHARE:
                raise
            return False
        self.shared = True
        return True

    def take(self, data: memoryview, *, is_hole: bool = False) -> None:
        """Append what the other file has at the same place; a hole stays one."""
        if self.shared or is_hole:
            self.flush()
            self.digest.update(data)
            self.position += len(data)
            self._written = self.position
        else:
            self.put(data)

    def trim(self) -> None:
        """Let the file end where it was written to: without room that was not needed, with a last hole."""
        self.flush()
        os.ftruncate(self._descriptor, self.position)

    def finish(self, size: int, *, times_ns: tuple[int, int] | None = None) -> None:
        """Give the file its size, with zeros behind what was written, and bring it to the disk."""
        self.trim()
        os.ftruncate(self._descriptor, size)
        os.fsync(self._descriptor)
        if times_ns is not None:
            os.utime(self._descriptor, ns=times_ns)

    def described(self, path: str, size: int) -> dict[str, Any]:
        """The file as the journal names it: path below the staging folder, size, digest of its used bytes."""
        return {"path": path, "size": size, "used": self.position, "digest": self.digest.hexdigest()}

    def publish(self, path: Path) -> None:
        """Give it its name."""
        os.replace(self.part, path)
        sync_folder(path.parent)

    def close(self) -> None:
        """Let go of it; what was not published stays where it is until another attempt."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    @property
    def descriptor(self) -> int:
        """For reading and sharing blocks."""
        return self._descriptor

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def at_ms(time_ms: int) -> tuple[int, int]:
    """A time for `finish`: brokers delete files by their time of change."""
    return time_ms * 1_000_000, time_ms * 1_000_000


def allocate(descriptor: int, size: int) -> None:
    """Reserve room for a file's first bytes; where a file system cannot, writing finds out later.

    Not `os.posix_fallocate`: where a file system cannot, that writes into every block.
    """
    if size > 0 and _LIBC.fallocate(descriptor, 0, 0, size) != 0:
        number = ctypes.get_errno()
        if number not in _NO_ROOM_AHEAD:
            raise OSError(number, f"{os.strerror(number)} ({size:,} bytes are needed)")


def start_writeback(descriptor: int, position: int, count: int) -> None:
    """Let the kernel begin to write; only `fsync` tells whether it could, so nothing is said here."""
    _LIBC.sync_file_range(descriptor, position, count, _SYNC_FILE_RANGE_WRITE)


def write_all(descriptor: int, parts: Sequence[bytes | memoryview], position: int) -> None:
    """Write all of them there, one behind the other; OSError if the disk is full."""
    left = [memoryview(part) for part in parts if len(part)]
    while left:
        count = os.pwritev(descriptor, left, position)
        position += count
        while left and count >= len(left[0]):
            count -= len(left.pop(0))
        if left:
            left[0] = left[0][count:]
