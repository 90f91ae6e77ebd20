"""A disk that forgets: what was not synced is lost, torn or kept when the power fails, as the seed wants."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from errno import EIO
from typing import Final

PAGE_BYTES: Final = 256
"""Unit of the page cache: a write to a part makes all of it dirty. Small, as simulated files are."""

SECTOR_BYTES: Final = 512
"""Unit that reaches the disk whole. What was not synced of one is there, or cut off, or reads as zeros."""


class ProcessGone(BaseException):
    """The process that used the disk no longer exists; nothing it does can have an effect."""


@dataclass(slots=True)
class _File:
    """One file, whatever its names are."""

    content: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    lowest: int = 0
    """Bytes at the start of `content` that count as written to the disk; but for `dropped` they are."""
    dropped: set[int] = field(default_factory=set)
    """Pages that a failed sync called clean, and nobody wrote to since: no sync brings them to the disk."""

    def write(self, data: bytes) -> None:
        self.content = bytearray(data)
        self.lowest = 0
        self.dropped.clear()

    def append(self, data: bytes) -> None:
        self.dropped.discard(len(self.content) // PAGE_BYTES)
        self.content.extend(data)

    def truncate(self, size: int) -> None:
        self.dropped = {page for page in self.dropped if page < size // PAGE_BYTES}
        if size < len(self.content):
            del self.content[size:]
        else:
            self.content.extend(bytes(size - len(self.content)))
        self.lowest = min(self.lowest, size)

    def sync(self) -> None:
        self.synced = self._without_dropped()
        self.lowest = len(self.content)

    def sync_fails(self) -> None:
        """As Linux does it: what was dirty can still be read, and counts as clean. A later sync succeeds."""
        self.dropped.update(range(self.lowest // PAGE_BYTES, -(-len(self.content) // PAGE_BYTES)))
        self.lowest = len(self.content)

    def _without_dropped(self) -> bytes:
        found = bytearray(self.content)
        for page in self.dropped:
            begin, end = page * PAGE_BYTES, min((page + 1) * PAGE_BYTES, len(found))
            found[begin:end] = self.synced[begin:end].ljust(end - begin, b"\0")
        return bytes(found)

    @property
    def dirty(self) -> bool:
        return len(self.content) != self.lowest or len(self.synced) != self.lowest

    def lose_power(self, random_source: random.Random) -> None:
        if self.dropped:
            self.content = bytearray(self._without_dropped())
            self.lowest = min(self.lowest, len(self.synced))
            self.dropped.clear()
        if self.dirty:
            self.content = bytearray(self._torn(random_source))
        self.sync()

    def _torn(self, random_source: random.Random) -> bytes:
        choice = random_source.random()
        if choice < 0.2:
            return self.synced
        fresh = bytes(self.content[self.lowest :])
        kept = fresh if choice < 0.4 else fresh[: random_source.randint(0, len(fresh))]
        begin = self.lowest
        if choice > 0.85:  # the new length reached the disk, and of the end no sector did
            kept = kept[: max(0, (begin + len(kept)) // SECTOR_BYTES * SECTOR_BYTES - begin)]
            kept += bytes(random_source.randint(0, len(fresh) - len(kept)))
        if choice > 0.7:  # some sectors did not make it; the file is as long as if they had
            sectors = bytearray(self.content[:begin]) + kept
            for start in range(begin // SECTOR_BYTES * SECTOR_BYTES, len(sectors), SECTOR_BYTES):
                if random_source.random() < 0.3:
                    lost = range(max(start, begin), min(start + SECTOR_BYTES, len(sectors)))
                    sectors[lost.start : lost.stop] = bytes(len(lost))
            kept = bytes(sectors[begin:])
        return bytes(self.content[:begin]) + kept


_NameOp = tuple[str, str, _File | None]
"""(name that gets the file, name that loses it or '', the file or None for a deletion)."""


class SimDisk:
    """One folder. Processes use it through a `handle`, which dies with them."""

    def __init__(self, random_source: random.Random) -> None:
        self._random = random_source
        self._names: dict[str, _File] = {}
        self._durable: dict[str, _File] = {}
        self._pending: list[_NameOp] = []
        self.version = 0
        """Grows whenever something may have become durable."""

        self.operations = 0
        self.syncs = 0
        self.fail_sync = False
        """The next sync fails with an input/output error; a later one succeeds without what this one lost."""

    # -- for processes ------------------------------------------------------------------------------------

    def handle(self, before: Callable[[], None] | None = None) -> DiskHandle:
        """Access for one process; `before` is called ahead of each operation that changes something."""
        return DiskHandle(self, before)

    # -- for the world ------------------------------------------------------------------------------------

    def lose_power(self) -> None:
        """Keep what was synced, and of the rest what the dice say."""
        kept = self._random.randint(0, len(self._pending))
        for name, old, file in self._pending[:kept]:
            _rename(self._durable, name, old, file)
        self._pending.clear()
        self._names = dict(self._durable)
        for name in sorted(self._names):
            self._names[name].lose_power(self._random)
        self.version += 1

    def durable(self) -> dict[str, bytes]:
        """What would surely be there after a power failure now, in its worst case."""
        return {name: file.synced for name, file in self._durable.items()}

    def content(self) -> dict[str, bytes]:
        """What a process reads now."""
        return {name: bytes(file.content) for name, file in self._names.items()}

    def put(self, files: dict[str, bytes]) -> None:
        """Replace everything, durably, as a restored backup does."""
        self._names = {}
        for name, data in files.items():
            file = self._names[name] = _File()
            file.write(data)
            file.sync()
        self._durable = dict(self._names)
        self._pending.clear()
        self.version += 1

    def damage(self, name: str, position: int) -> None:
        """Flip bits of one durable byte."""
        file = self._names[name]
        file.content[position] ^= 0x5A
        file.sync()
        self.version += 1

    def _change(self, name: str, old: str, file: _File | None) -> None:
        _rename(self._names, name, old, file)
        self._pending.append((name, old, file))


def _rename(names: dict[str, _File], name: str, old: str, file: _File | None) -> None:
    if old:
        names.pop(old, None)
    if file is None:
        names.pop(name, None)
    else:
        names[name] = file


class DiskHandle:
    """Implements `brokerset_runtime.disk.Disk` for one process."""

    def __init__(self, disk: SimDisk, before: Callable[[], None] | None = None) -> None:
        self._disk = disk
        self._before = before
        self.gone = False

    def names(self) -> list[str]:
        self._check()
        return sorted(self._disk._names)

    def read(self, name: str) -> bytes:
        return bytes(self._file(name).content)

    def read_at(self, name: str, position: int, size: int) -> bytes:
        return bytes(self._file(name).content[position : position + size])

    def size(self, name: str) -> int:
        return len(self._file(name).content)

    def write(self, name: str, data: bytes) -> None:
        self._changes()
        self._made(name).write(data)

    def append(self, name: str, data: bytes) -> None:
        self._changes()
        self._made(name).append(data)

    def truncate(self, name: str, size: int) -> None:
        self._changes()
        self._made(name).truncate(size)

    def sync(self, name: str) -> None:
        self._changes()
        file = self._file(name)
        self._disk.syncs += 1
        if self._disk.fail_sync:
            self._disk.fail_sync = False
            file.sync_fails()
            raise OSError(EIO, "Input/output error", name)
        file.sync()
        self._disk.version += 1

    def rename(self, old: str, new: str) -> None:
        self._changes()
        self._disk._change(new, old, self._file(old))

    def delete(self, name: str) -> None:
        self._changes()
        if name in self._disk._names:
            self._disk._change(name, "", None)

    def sync_folder(self) -> None:
        self._changes()
        disk = self._disk
        disk.syncs += 1
        if disk.fail_sync:
            disk.fail_sync = False
            raise OSError(EIO, "Input/output error", ".")
        for name, old, file in disk._pending:
            _rename(disk._durable, name, old, file)
        disk._pending.clear()
        disk.version += 1

    def close(self) -> None:
        """Nothing is open."""

    def _check(self) -> None:
        if self.gone:
            raise ProcessGone

    def _changes(self) -> None:
        self._check()
        self._disk.operations += 1
        if self._before is not None:
            self._before()
            self._check()

    def _file(self, name: str) -> _File:
        self._check()
        file = self._disk._names.get(name)
        if file is None:
            raise FileNotFoundError(2, "No such file or directory", name)
        return file

    def _made(self, name: str) -> _File:
        file = self._disk._names.get(name)
        if file is None:
            file = _File()
            self._disk._change(name, "", file)
        return file


class FrozenDisk:
    """A read-only look at files, for checkers that read what a crash would leave; changes go nowhere."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self._files = {name: bytearray(data) for name, data in files.items()}

    def names(self) -> list[str]:
        return sorted(self._files)

    def read(self, name: str) -> bytes:
        return bytes(self._get(name))

    def read_at(self, name: str, position: int, size: int) -> bytes:
        return bytes(self._get(name)[position : position + size])

    def size(self, name: str) -> int:
        return len(self._get(name))

    def write(self, name: str, data: bytes) -> None:
        self._files[name] = bytearray(data)

    def append(self, name: str, data: bytes) -> None:
        self._files.setdefault(name, bytearray()).extend(data)

    def truncate(self, name: str, size: int) -> None:
        del self._get(name)[size:]

    def sync(self, name: str) -> None:
        """Nothing can be lost."""

    def rename(self, old: str, new: str) -> None:
        self._files[new] = self._files.pop(old)

    def delete(self, name: str) -> None:
        self._files.pop(name, None)

    def sync_folder(self) -> None:
        """Nothing can be lost."""

    def _get(self, name: str) -> bytearray:
        if name not in self._files:
            raise FileNotFoundError(2, "No such file or directory", name)
        return self._files[name]
