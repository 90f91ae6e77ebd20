"""System calls on mapped files that Python does not offer, or only while it holds up all other threads.

`mmap.flush` and `mmap.madvise` keep the interpreter lock, so that one slow disk write would stop the event
loop; calls through ctypes give it up. Everything here may block and belongs into a thread, except `reserve`
of a small range.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_libc.msync.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

_MS_SYNC = 4
_MADV_POPULATE_WRITE = (
    23  # Linux 5.14; older kernels answer EINVAL, then pages are made when they are written
)
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


def populate(mapped: mmap.mmap, begin: int, end: int) -> bool:
    """Make the pages of a range writable ahead of use; False if the kernel cannot."""
    begin -= begin % _PAGE
    end = min(end, len(mapped))
    return begin >= end or _libc.madvise(address_of(mapped) + begin, end - begin, _MADV_POPULATE_WRITE) == 0


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
    it leaves marked as unwritten (Linux 6.18), so it reads as zeros once the page is gone. Therefore the page
    cache is told to forget the file, and what the disk then lacks is written and compared once more. The
    file must not be mapped. Blocks; raises OSError.
    """
    lacking = 0
    begin -= begin % SETTLE_CHUNK_BYTES
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # of earlier writes: what was not written shows below
            os.fsync(descriptor)
        for data_begin, data_end in data_ranges(path, begin, os.fstat(descriptor).st_size):
            for position in range(data_begin, data_end, SETTLE_CHUNK_BYTES):
                size = min(SETTLE_CHUNK_BYTES, data_end - position)
                content = os.pread(descriptor, size, position)
                if _on_disk(descriptor, content, position):
                    continue
                os.pwrite(descriptor, content, position)
                os.fsync(descriptor)
                if not _on_disk(descriptor, content, position):
                    raise OSError(errno.EIO, "the disk does not keep what is written to it", str(path))
                lacking += size
    finally:
        os.close(descriptor)
    return lacking


def _on_disk(descriptor: int, content: bytes, position: int) -> bool:
    _forget(descriptor, position, len(content))
    return os.pread(descriptor, len(content), position) == content


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
