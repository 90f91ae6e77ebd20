"""System calls on mapped files that Python does not offer, or only while it holds up all other threads.

`mmap.flush` and `mmap.madvise` keep the interpreter lock, so that one slow disk write would stop the event
loop; calls through ctypes give it up. Everything here may block and belongs into a thread, except `reserve`
and `will_read` of a small range.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
from pathlib import Path
from types import TracebackType
from typing import Self

_libc = ctypes.CDLL(None, use_errno=True)
_libc.msync.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

_MS_SYNC = 4
_MADV_WILLNEED = 3
_PAGE = mmap.PAGESIZE

SETTLE_CHUNK_BYTES = 4 * 1024 * 1024
"""How much `settle` compares at a time: a multiple of the largest page that a page cache has."""


def address_of(mapped: mmap.mmap) -> int:
    """Where the mapping begins in memory; valid while `mapped` lives."""
    return ctypes.addressof(ctypes.c_char.from_buffer(mapped))


def sync_range(mapped: mmap.mmap, begin: int, end: int) -> None:
    """Write the bytes from `begin` to `end` to the disk and wait: `msync`, for a file an fsync of the range.

    Raises OSError; after that nothing tells which pages are on disk, so never simply try again.
    """
    begin -= begin % _PAGE
    if begin < end and _libc.msync(address_of(mapped) + begin, end - begin, _MS_SYNC) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def will_read(mapped: mmap.mmap, begin: int, end: int) -> None:
    """Have the pages of a range read from the disk, without a wait; a request that the kernel may ignore."""
    begin -= begin % _PAGE
    end = min(end, len(mapped))
    if begin < end:
        _libc.madvise(address_of(mapped) + begin, end - begin, _MADV_WILLNEED)


def reserve(path: Path, begin: int, end: int) -> None:
    """Give a range of a file its blocks, so that writing through a mapping cannot meet a full disk.

    That would be a SIGBUS, the end of the process. Raises OSError (ENOSPC, EDQUOT, EFBIG).
    """
    if begin >= end:
        return
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.posix_fallocate(descriptor, begin, end - begin)
    finally:
        os.close(descriptor)


def settle(path: Path, begin: int) -> int:
    """Bring what can be read of a file behind position `begin` to the disk; returns how much was not there.

    After an input/output error the kernel calls a page clean that the disk does not have: it can be read, and
    a sync does not write it. Writing to it again is not enough: ext4 then writes to a preallocated block that
    it leaves marked as unwritten (Linux 6.18), so it reads as zeros once the page is gone. Therefore the disk
    is asked past the page cache (`Disk`), and what it lacks is written and compared once more. In the end the
    page cache forgets the range: a page of zeros that was not written is as the disk has it, but the next
    record in it would be lost. Nobody may write to the file meanwhile. Blocks; raises OSError.
    """
    lacking = 0
    begin -= begin % SETTLE_CHUNK_BYTES
    with Disk(path) as disk:
        with contextlib.suppress(OSError):  # of earlier writes: what was not written shows below
            os.fsync(disk.cached)
        size = os.fstat(disk.cached).st_size
        for data_begin, data_end in data_ranges(path, begin, size):
            # Whole pages, as only those are written past the page cache; blocks may be smaller.
            data_end = min(data_end + -data_end % _PAGE, size)
            for position in range(data_begin - data_begin % _PAGE, data_end, SETTLE_CHUNK_BYTES):
                content = os.pread(disk.cached, min(SETTLE_CHUNK_BYTES, data_end - position), position)
                if disk.read(position, len(content)) == content:
                    continue
                disk.write(position, content)
                os.fsync(disk.cached)
                if disk.read(position, len(content)) != content:
                    raise OSError(errno.EIO, "the disk does not keep what is written to it", str(path))
                lacking += len(content)
        os.posix_fadvise(disk.cached, begin, 0, os.POSIX_FADV_DONTNEED)
    return lacking


class Disk:
    """A file past the page cache, by direct input and output. A context manager; everything raises OSError.

    A file system that has none is told to forget its pages first. That is second best: it keeps those that
    somebody has mapped or just uses, and they are then taken for what the disk has.
    """

    def __init__(self, path: Path) -> None:
        self.cached = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        """Descriptor that reads and writes through the page cache."""
        self._direct: int | None = None
        self._buffer = mmap.mmap(-1, SETTLE_CHUNK_BYTES)  # aligned, as direct calls need it
        try:
            self._direct = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_DIRECT)
            os.preadv(self._direct, [memoryview(self._buffer)[:_PAGE]], 0)
        except OSError as error:  # another number tells of a write that failed before, and tells it once
            if error.errno == errno.EINVAL:
                self._close_direct()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close_direct()
        os.close(self.cached)

    def _close_direct(self) -> None:
        if self._direct is not None:
            os.close(self._direct)
            self._direct = None

    def read(self, position: int, size: int) -> bytes:
        """Up to `SETTLE_CHUNK_BYTES` from a position that is a multiple of a page on."""
        if self._direct is None:
            _forget(self.cached, position, size)
            return os.pread(self.cached, size, position)
        got = os.preadv(self._direct, [memoryview(self._buffer)[: size + -size % _PAGE]], position)
        return self._buffer[: min(size, got)]

    def write(self, position: int, content: bytes) -> None:
        """As `read`; a sync is still needed. Bytes behind the last whole page go through the page cache."""
        whole = 0 if self._direct is None else len(content) - len(content) % _PAGE
        if self._direct is not None and whole:
            self._buffer[:whole] = content[:whole]
            os.pwritev(self._direct, [memoryview(self._buffer)[:whole]], position)
        if rest := content[whole:]:
            _forget(self.cached, position + whole, len(rest))
            os.pwrite(self.cached, rest, position + whole)


def _forget(descriptor: int, position: int, size: int) -> None:
    """Drop clean pages of a range; a large page only goes as a whole."""
    begin = position - position % SETTLE_CHUNK_BYTES
    os.posix_fadvise(descriptor, begin, position + size - begin, os.POSIX_FADV_DONTNEED)


def evict(path: Path) -> None:
    """Have the page cache forget a file that is not mapped, so that it is read from the disk. OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # what the disk did not take is read as it is there
            os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def data_ranges(path: Path, begin: int, end: int) -> list[tuple[int, int]]:
    """The parts of a range of a file that are not holes: what is outside reads as zeros.

    All at once, because reading a hole through a mapping turns it into data for the kernel. File systems that
    do not know holes answer with everything.
    """
    found: list[tuple[int, int]] = []
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        position = begin
        while position < end:
            data = os.lseek(descriptor, position, os.SEEK_DATA)
            position = min(os.lseek(descriptor, data, os.SEEK_HOLE), end)
            if data < end:
                found.append((data, position))
    except OSError as error:
        if error.errno != errno.ENXIO:  # no data behind this position
            raise
    finally:
        os.close(descriptor)
    return found
