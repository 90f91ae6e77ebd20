"""System calls on mapped files that Python does not offer, or only while it holds up all other threads.

`mmap.flush` and `mmap.madvise` keep the interpreter lock, so that one slow disk write would stop the event
loop; calls through ctypes give it up. Everything here may block and belongs into a thread, except `reserve`
of a small range.
"""

from __future__ import annotations

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
