"""Where the bytes of a store come from.

Jobs and tasks get a URL and open it themselves: `LocalFolder` for a path. Everything is read-only.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")

READ_MAX: Final = 64 << 20
"""Bytes of a small file that is read as a whole (`read_all`); more is refused."""


@dataclass(frozen=True, slots=True, order=True)
class FileFacts:
    """A file of a store."""

    path: str
    """Below the store's root, with `/`."""

    size: int
    mtime_ms: int


class StoreFolder(Protocol):
    """A store's root folder."""

    url: str

    def files(self, folder: str) -> list[FileFacts]:
        """Files directly in a folder below the root, by name; empty if there is no such folder."""

    def folders(self, folder: str) -> list[str]:
        """Names of the folders directly in a folder below the root, sorted."""

    def listed(self) -> StoreFolder:
        """The same store with the names that there are now: over a network they are asked for once."""
        return self

    def forget_names(self) -> None:
        """Ask for names again that were kept: who knows more of a store now looks for new files."""
        return  # nothing is kept of a folder that answers at once

    def read_into(self, path: str, position: int, target: memoryview) -> int:
        """Fill `target` from this position of a file; fewer bytes only at its end. FileNotFoundError."""

    def confirmed_offset(self) -> int | None:
        """How far the broker that gives the store out lets its log be read now; None for files of a disk."""
        return None

    def max_offset(self) -> int | None:
        """Where the log ends, as the broker that gives the store out says; None for files of a disk."""
        return None

    def close(self) -> None:
        """Let open files go."""


def read_all(folder: StoreFolder, path: str) -> bytes | None:
    """A small file; None if it does not exist. ValueError if it has more than `READ_MAX` bytes."""
    piece = bytearray(1 << 16)
    parts: list[bytes] = []
    total = 0
    while True:
        try:
            count = folder.read_into(path, total, memoryview(piece))
        except (FileNotFoundError, NotADirectoryError):
            return None
        parts.append(bytes(piece[:count]))
        total += count
        if total > READ_MAX:
            raise ValueError(f"{folder.url}/{path} has more than {READ_MAX} bytes")
        if count < len(piece):
            return b"".join(parts)


def read_bytes(folder: StoreFolder, path: str, position: int, count: int) -> bytes:
    """A piece of a file; fewer bytes only at its end. FileNotFoundError."""
    buffer = bytearray(max(0, count))
    return bytes(memoryview(buffer)[: folder.read_into(path, position, memoryview(buffer))])


class LocalFolder(StoreFolder):
    """A folder of this machine. The newest file of a log that was read stays open; small files are opened
    again each time, because brokers replace them."""

    def __init__(self, root: str | Path) -> None:
        """OSError if there is no such folder."""
        self.root = Path(root)
        self.url = str(root)
        self._begin = f"{self.root}/"  # a `Path` takes longer to make than a file to open
        if not self.root.is_dir():
            raise FileNotFoundError(f"{root} is no folder")
        self._open: tuple[str, int] | None = None

    def files(self, folder: str) -> list[FileFacts]:
        found = []
        try:
            with os.scandir(f"{self._begin}{folder}") as entries:
                for entry in entries:
                    if entry.is_file(follow_symlinks=False):
                        facts = entry.stat(follow_symlinks=False)
                        path = f"{folder}/{entry.name}" if folder else entry.name
                        found.append(FileFacts(path, facts.st_size, facts.st_mtime_ns // 1_000_000))
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(found)

    def folders(self, folder: str) -> list[str]:
        try:
            with os.scandir(f"{self._begin}{folder}") as entries:
                return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def read_into(self, path: str, position: int, target: memoryview) -> int:
        if not path[-20:].isdigit():
            descriptor = os.open(f"{self._begin}{path}", os.O_RDONLY)
            try:
                return _read_fully(descriptor, position, target)
            finally:
                os.close(descriptor)
        return _read_fully(self._descriptor(path), position, target)

    def forget(self, path: str, position: int, size: int) -> None:
        """Tell the kernel that these pages are not needed again: a serving broker wants its cache.

        The page that was read in part before is given back as a whole: the kernel ignores parts of pages.
        """
        rest = position % _PAGE
        os.posix_fadvise(self._descriptor(path), position - rest, size + rest, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        if self._open is not None:
            os.close(self._open[1])
            self._open = None

    def _descriptor(self, path: str) -> int:
        if self._open is None or self._open[0] != path:
            descriptor = os.open(f"{self._begin}{path}", os.O_RDONLY)
            self.close()
            self._open = (path, descriptor)
        return self._open[1]


def _read_fully(descriptor: int, position: int, target: memoryview) -> int:
    total = 0
    while total < len(target):
        count = os.preadv(descriptor, [target[total:]], position + total)
        if count == 0:
            break
        total += count
    return total
