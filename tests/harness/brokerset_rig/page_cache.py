"""A model of Linux's page cache below the files of a store: what a failed sync leaves, and what eviction takes.

After an input/output error the kernel calls a page clean: it can be read, no later sync writes it, and it is gone
when the page is evicted or the power fails. Only a page that is written to once more is written to the disk.
Direct input and output passes it by, after it has written what is dirty.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from brokerset_broker.store import consume_queue, mapping, segments
from brokerset_broker.store import index as index_service
from brokerset_formats import index_file
from brokerset_formats.queue_units import UNIT_SIZE

PAGE = mmap.PAGESIZE


@dataclass(slots=True)
class _File:
    inode: int
    disk: bytearray
    """What is there after an eviction, or a loss of power."""
    clean: bytearray
    """What the kernel believes the disk to have."""
    touched: set[int] = field(default_factory=set)
    """Pages that were written to, if only with what they had."""
    stale: set[int] = field(default_factory=set)
    """Pages that a failed sync dropped. Until they are evicted, ext4 does not bring them to the disk, though it
    says so: it takes a block that was only preallocated for one that is written."""

    def dirty(self, content: bytes) -> list[int]:
        """Positions of the pages that a sync would write."""
        return [
            at
            for at in range(0, len(content), PAGE)
            if at in self.touched or content[at : at + PAGE] != self.clean[at : at + PAGE]
        ]


class PageCache:
    """Stands between the store and its mapped files; other files count as durable at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, direct_io: bool = True) -> None:
        self._files: dict[str, _File] = {}
        self._paths: dict[int, str] = {}
        self.fails: Callable[[str], bool] = lambda path: False
        """Whether the sync of a path fails."""
        self.failed: list[str] = []
        cache = self

        class Mapped(mmap.mmap):
            def __new__(cls, descriptor: int, size: int) -> Mapped:
                made = super().__new__(cls, descriptor, size)
                cache._enter(made, descriptor)
                return made

            def __setitem__(self, key: Any, value: Any) -> None:
                begin, end, _ = key.indices(len(self))
                cache._touch(self, begin, end)
                super().__setitem__(key, value)

        class Module:
            MADV_NORMAL, MADV_RANDOM = mmap.MADV_NORMAL, mmap.MADV_RANDOM
            mmap = Mapped

        real_fsync = os.fsync

        def sync_range(mapped: mmap.mmap, begin: int, end: int) -> None:
            self._sync(self._paths[id(mapped)], begin, end)

        def fsync(descriptor: int) -> None:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            if path in self._files:
                self._sync(path, 0, len(self._files[path].disk))
            else:
                real_fsync(descriptor)

        real_pwrite = os.pwrite

        def pwrite(descriptor: int, data: Any, position: int) -> int:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            if path in self._files:
                begin = position - position % PAGE
                self._files[path].touched.update(range(begin, position + len(data), PAGE))
            return real_pwrite(descriptor, data, position)

        def fadvise(descriptor: int, position: int, size: int, advice: int) -> None:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            if path in self._files and advice == os.POSIX_FADV_DONTNEED:
                self._evict(path, position, position + size if size else len(self._files[path].disk))

        real_open, real_preadv, real_pwritev = os.open, os.preadv, os.pwritev

        def open_(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            if flags & os.O_DIRECT and not direct_io:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
            return real_open(path, flags, *args, **kwargs)

        def direct(descriptor: int) -> str | None:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            is_direct = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT
            return path if is_direct and path in self._files else None

        def preadv(descriptor: int, buffers: Any, position: int, *flags: int) -> int:
            path = direct(descriptor)
            if path is None:
                return real_preadv(descriptor, buffers, position, *flags)
            (buffer,) = buffers
            self._sync(path, position, position + len(buffer))
            content = self._files[path].disk[position : position + len(buffer)]
            buffer[: len(content)] = content
            return len(content)

        def pwritev(descriptor: int, buffers: Any, position: int, *flags: int) -> int:
            path = direct(descriptor)
            if path is None:
                return real_pwritev(descriptor, buffers, position, *flags)
            (buffer,) = buffers
            with Path(path).open("r+b") as stream:
                stream.seek(position)
                stream.write(buffer)
            file = self._files[path]
            end = position + len(buffer)
            file.disk[position:end] = file.clean[position:end] = buffer
            for at in range(position, end, PAGE):
                file.touched.discard(at)
                file.stale.discard(at)
            return len(buffer)

        def noting(module: Any, name: str, size: int) -> None:
            real = getattr(module, name)

            def write(buffer: Any, position: int, *values: int) -> None:
                mapped = buffer.obj if isinstance(buffer, memoryview) else buffer
                if isinstance(mapped, Mapped):
                    self._touch(mapped, position, position + size)
                real(buffer, position, *values)

            monkeypatch.setattr(module, name, write)

        for module in (segments, index_service):
            monkeypatch.setattr(module, "mmap", Module)
        monkeypatch.setattr(mapping, "sync_range", sync_range)
        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(os, "pwrite", pwrite)
        monkeypatch.setattr(os, "open", open_)
        monkeypatch.setattr(os, "preadv", preadv)
        monkeypatch.setattr(os, "pwritev", pwritev)
        monkeypatch.setattr(os, "posix_fadvise", fadvise)
        noting(consume_queue, "_pack_unit", UNIT_SIZE)
        noting(index_file, "_write_unit", 20)
        noting(index_file, "_write_slot", 4)
        noting(index_file, "_write_header", index_file.HEADER.size)

    def write_back_fails_unnoticed(self) -> None:
        """The kernel tries to write what is dirty, fails, and the process dies before it syncs again."""
        for path in self._there():
            self._drop(path, 0, len(self._files[path].disk))

    def evict(self) -> None:
        """Forget what is clean; the files must not be open."""
        for path in self._there():
            self._evict(path, 0, len(self._files[path].disk))

    def lose_power(self) -> None:
        """Forget everything that is not on the disk; the files must not be open."""
        for path in self._there():
            self._drop(path, 0, len(self._files[path].disk))
        self.evict()

    def _evict(self, path: str, begin: int, end: int) -> None:
        """Pages that lie wholly in the range, and are clean, are as they are on the disk from now on."""
        file = self._files[path]
        with Path(path).open("r+b") as stream:
            content = stream.read()
            dirty = set(file.dirty(content))
            for at in range(begin + -begin % PAGE, end - PAGE + 1, PAGE):
                if at not in dirty:
                    stream.seek(at)
                    stream.write(file.disk[at : at + PAGE])
                    file.clean[at : at + PAGE] = file.disk[at : at + PAGE]
                    file.stale.discard(at)

    def _there(self) -> list[str]:
        return [path for path in self._files if Path(path).exists()]

    def _enter(self, mapped: mmap.mmap, descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        status = os.fstat(descriptor)
        known = self._files.get(path)
        if known is None or known.inode != status.st_ino:
            empty = bytes(status.st_size)
            self._files[path] = _File(status.st_ino, bytearray(empty), bytearray(empty))
        self._paths[id(mapped)] = path

    def _touch(self, mapped: mmap.mmap, begin: int, end: int) -> None:
        touched = self._files[self._paths[id(mapped)]].touched
        touched.update(range(begin - begin % PAGE, end, PAGE))

    def _sync(self, path: str, begin: int, end: int) -> None:
        if self.fails(path):
            self.failed.append(path)
            self._drop(path, begin, end)
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        file = self._files[path]
        for at, page in self._cleaned(path, begin, end):
            if at not in file.stale:
                file.disk[at : at + PAGE] = page

    def _drop(self, path: str, begin: int, end: int) -> None:
        self._files[path].stale.update(at for at, _ in self._cleaned(path, begin, end))

    def _cleaned(self, path: str, begin: int, end: int) -> list[tuple[int, bytes]]:
        file, content = self._files[path], Path(path).read_bytes()
        pages = [
            (at, content[at : at + PAGE]) for at in file.dirty(content) if at < end and at + PAGE > begin
        ]
        for at, page in pages:
            file.clean[at : at + PAGE] = page
            file.touched.discard(at)
        return pages
