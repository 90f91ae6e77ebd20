"""Files of one fixed size that together are one endless sequence of bytes; names tell the first offset."""

from __future__ import annotations

import contextlib
import mmap
import os
import re
from concurrent.futures import Executor, Future
from pathlib import Path

from brokerset_broker.store import mapping
from brokerset_broker.store.errors import StoreCorrupt
from brokerset_runtime.files import sync_folder

FILE_NAME = re.compile(r"[0-9]{20}")

ZERO_CHUNK_BYTES = 1024 * 1024
"""How much is compared with zeros, or overwritten by them, at a time."""

GROWN_STEPS = 16
"""Steps grow with what a file has, up to this part of the file.

A send that finds no room is one for the Python path: 800 µs for a batch of 32 x 1 KB instead of 33 with the
native core. With steps of 64 KiB alone that was one batch in 102.
"""

_ZEROS = bytes(ZERO_CHUNK_BYTES)
_PAGE = mmap.PAGESIZE


def file_name(start: int) -> str:
    """The name of the file whose first byte has the offset `start` (`UtilAll.offset2FileName`)."""
    return f"{start:020d}"


class MappedFile:
    """One file, mapped when it is first used, and unmapped when the last view of it is gone."""

    __slots__ = (
        "_advice",
        "_descriptor",
        "_map",
        "_view",
        "end",
        "filled",
        "path",
        "reserved",
        "size",
        "start",
    )

    def __init__(self, path: Path, start: int, size: int, advice: int = mmap.MADV_NORMAL) -> None:
        """`advice` is what the kernel is to expect of the mapping, one of `mmap.MADV_…`."""
        self.path = path
        self.start = start
        """Offset of the first byte in the sequence."""
        self.size = size
        self.end = start + size
        """Offset behind the last byte."""
        self._advice = advice
        self.reserved = 0
        """Below this position the file surely has its blocks; only there it may be written."""
        self.filled = 0
        """Up to where `fill` has written."""
        self._map: mmap.mmap | None = None
        self._view: memoryview | None = None
        self._descriptor = -1

    def __del__(self) -> None:
        self.end_writing()

    @classmethod
    def create(
        cls, path: Path, start: int, size: int, reserved: int, advice: int = mmap.MADV_NORMAL
    ) -> MappedFile:
        """Make the file at its full length, with blocks for the first `reserved` bytes.

        Raises OSError (ENOSPC when the disk is full) and leaves nothing behind then. The length is set first:
        a crash leaves an empty or a complete file, and both are harmless as last file of a folder.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(descriptor, size)
            if reserved:
                os.posix_fallocate(descriptor, 0, reserved)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            raise
        finally:
            os.close(descriptor)
        file = cls(path, start, size, advice)
        file.reserved = reserved
        return file

    @property
    def map(self) -> mmap.mmap:
        """The writable mapping."""
        if self._map is None:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            try:
                self._map = mmap.mmap(descriptor, self.size)
            finally:
                os.close(descriptor)
            if self._advice != mmap.MADV_NORMAL:
                self._map.madvise(self._advice)
        return self._map

    @property
    def view(self) -> memoryview:
        """The content for readers. Slices of it keep the file mapped."""
        if self._view is None:
            self._view = memoryview(self.map).toreadonly()
        return self._view

    def write(self, position: int, data: bytes | memoryview) -> None:
        """Write to the file by a system call, which makes no page that it then overwrites. OSError: whoever
        reads the mapping finds any part of `data`. The descriptor is kept until `end_writing`."""
        self.begin_writing()
        written = os.pwrite(self._descriptor, data, position)
        while written < len(data):
            written += os.pwrite(self._descriptor, data[written:], position + written)

    def begin_writing(self) -> None:
        """Open the file for `write`, so that a lack of descriptors is no failure of the disk. OSError."""
        if self._descriptor < 0:
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)

    def end_writing(self) -> None:
        """Let go of what `write` needs; it opens the file again."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def reserve(self, end: int, step: int) -> None:
        """Make sure that positions up to `end` may be written, and some more; OSError if the disk is full."""
        more = max(step, min(self.reserved, self.size // GROWN_STEPS))
        target = min(self.size, max(end, self.reserved + more))
        mapping.reserve(self.path, self.reserved, target)
        self.reserved = target

    def fill(self, position: int, size: int) -> None:
        """Write zeros from `position` on, up to `size` bytes and `ZERO_CHUNK_BYTES`, once those of the last
        call are used up.

        Nothing may be behind `position` yet. A block that was never written is changed in the file system's
        journal as well when it is synced, one that holds zeros is not. An error means no more than that the
        next syncs take longer.
        """
        if position <= self.filled:
            return
        begin = position + -position % _PAGE
        self.filled = end = min(begin + min(size, ZERO_CHUNK_BYTES), self.size)
        if begin >= end:
            return
        try:
            self.write(begin, memoryview(_ZEROS)[: end - begin])
        except OSError:
            self.filled = self.size

    def sync(self, begin: int, end: int) -> None:
        """Bring positions from `begin` to `end` to the disk; blocks; raises OSError.

        A file that nobody has used yet is not mapped for this: a process may have 65,530 mappings.
        """
        with contextlib.suppress(FileNotFoundError):  # deleted since: there is nothing to keep
            if self._map is not None:
                mapping.sync_range(self.map, begin, max(end, self.filled))
                return
            descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def clear(self, begin: int, *, again: bool = False) -> int:
        """Overwrite what is not zero from position `begin` on, without a sync; returns bytes written.

        `again`: also what reads as zeros, for the disk may have something else. A truncation waits for this,
        so it compares bytes: a memoryview compares item by item, 20 times slower.
        """
        written = 0
        for data_begin, data_end in mapping.data_ranges(self.path, begin, self.size):
            for position in range(data_begin, data_end, ZERO_CHUNK_BYTES):
                end = min(position + ZERO_CHUNK_BYTES, data_end)
                if again or self.map[position:end] != _ZEROS[: end - position]:
                    self.map[position:end] = _ZEROS[: end - position]
                    written += end - position
        return written

    def evict(self) -> None:
        """Read the file from the disk from now on, whatever the page cache has; nobody may have views."""
        self._map = self._view = None
        mapping.evict(self.path)

    def unlink(self) -> None:
        """Delete the file; views that were handed out stay readable."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
        self._map = self._view = None
        self.end_writing()


class SegmentSequence:
    """The files of one folder, without gaps."""

    def __init__(
        self,
        folder: Path,
        segment_bytes: int,
        reserve_step: int | None = None,
        advice: int = mmap.MADV_NORMAL,
    ) -> None:
        """Blocks are taken in steps of `reserve_step` bytes, by default whole files; `advice` as above."""
        self.folder = folder
        self._advice = advice
        self.segment_bytes = segment_bytes
        self._reserve_step = min(reserve_step or segment_bytes, segment_bytes)
        self.files: list[MappedFile] = []
        self._coming: Future[MappedFile] | None = None

    def load(self) -> None:
        """Take the files that are there; StoreCorrupt names what does not belong.

        The rules are Java's: an empty last file is deleted, any other length is an error. So are gaps.
        """
        found: list[tuple[str, int]] = []
        with contextlib.suppress(FileNotFoundError), os.scandir(self.folder) as entries:
            found = sorted((entry.name, entry.stat().st_size) for entry in entries if entry.is_file())
        if found and found[-1][1] == 0:
            (self.folder / found.pop()[0]).unlink()
        for name, size in found:
            path = self.folder / name
            if not FILE_NAME.fullmatch(name):
                raise StoreCorrupt(path, -1, "is no file of a message store; move it elsewhere")
            if size != self.segment_bytes:
                raise StoreCorrupt(
                    path,
                    -1,
                    f"has {size} bytes instead of {self.segment_bytes}; is the configured size right?",
                )
            start = int(name)
            if start % self.segment_bytes:
                raise StoreCorrupt(path, -1, f"its name is no multiple of the file size {self.segment_bytes}")
            if self.files and start != self.files[-1].end:
                raise StoreCorrupt(
                    path, -1, f"follows {self.files[-1].path.name} with a gap; a file is missing"
                )
            self.files.append(MappedFile(path, start, size, self._advice))

    @property
    def start(self) -> int:
        """Offset of the first byte there is; 0 without files."""
        return self.files[0].start if self.files else 0

    @property
    def end(self) -> int:
        """Offset behind the last file; 0 without files."""
        return self.files[-1].end if self.files else 0

    def find(self, offset: int) -> MappedFile | None:
        """The file that holds `offset`."""
        files = self.files
        if not files or offset < files[0].start:
            return None
        number = (offset - files[0].start) // self.segment_bytes
        return files[number] if number < len(files) else None

    def prepare_next(self, executor: Executor) -> None:
        """Make the file after the last one in a thread, so that nobody has to wait for it later."""
        if self._coming is None and self.files:
            self._coming = executor.submit(self._create_mapped, self.end)

    def add(self, start: int | None = None) -> MappedFile:
        """Append the next file, the one that was prepared if there is one; raises OSError.

        `start` is given for the first file. If preparing failed, or has not begun because the thread has
        other work, the file is made here.
        """
        coming, self._coming = self._coming, None
        if coming is not None and not coming.cancel():
            with contextlib.suppress(OSError):
                file = coming.result()
                self.files.append(file)
                return file
        file = self._create(self.end if self.files else start or 0)
        self.files.append(file)
        return file

    def _create_mapped(self, start: int) -> MappedFile:
        file = self._create(start)
        try:
            _ = file.map
        except OSError:
            file.unlink()
            raise
        return file

    def _create(self, start: int) -> MappedFile:
        self.folder.mkdir(parents=True, exist_ok=True)
        file = MappedFile.create(
            self.folder / file_name(start), start, self.segment_bytes, self._reserve_step, self._advice
        )
        if self._reserve_step == self.segment_bytes:  # the log itself, not what can be made from it
            try:
                sync_folder(self.folder)
            except OSError:
                file.unlink()
                raise
        return file

    def forget_prepared(self) -> None:
        """Delete the file that was prepared and is not needed any more."""
        coming, self._coming = self._coming, None
        if coming is not None and not coming.cancel():
            with contextlib.suppress(OSError):
                coming.result().unlink()

    def reserve(self, file: MappedFile, end: int) -> None:
        """Make sure that positions of `file` up to `end` may be written; OSError if the disk is full."""
        file.reserve(end, self._reserve_step)

    def truncate(self, offset: int) -> list[MappedFile]:
        """Delete the files that begin at or behind `offset`; the caller clears the rest of the last one."""
        self.forget_prepared()
        removed = [file for file in self.files if file.start >= offset]
        self.files = [file for file in self.files if file.start < offset]
        for file in reversed(removed):
            file.unlink()
        return removed

    def detach(self, offset: int) -> list[MappedFile]:
        """Forget the files, but never the first, that begin at or behind `offset`; they stay on the disk."""
        first = self.files[:1]
        removed = [file for file in self.files[1:] if file.start >= offset]
        self.files = first + [file for file in self.files[1:] if file.start < offset]
        return removed

    def remove_first(self, count: int) -> None:
        """Delete the oldest `count` files."""
        removed, self.files = self.files[:count], self.files[count:]
        for file in removed:
            file.unlink()

    def remove_all(self) -> None:
        """Delete all files and the folder."""
        self.forget_prepared()
        self.remove_first(len(self.files))
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def settle(self, begin: int) -> int:
        """See `mapping.settle`, for offsets from `begin` on; call it before any file is used."""
        return sum(
            mapping.settle(file.path, max(begin - file.start, 0)) for file in self.files if file.end > begin
        )

    def fill(self, offset: int, size: int) -> None:
        """Write zeros from `offset` on, as `MappedFile.fill`."""
        file = self.find(offset)
        if file is not None:
            file.fill(offset - file.start, size)

    def sync(self, begin: int, end: int) -> None:
        """Bring offsets from `begin` to `end` to the disk; blocks; raises OSError."""
        for file in list(self.files):
            if file.start < end and file.end > begin:
                file.sync(max(begin - file.start, 0), min(end - file.start, file.size))
