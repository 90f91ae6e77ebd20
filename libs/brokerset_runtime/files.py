"""Files that are complete or absent after a crash, and locks that end with their process."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import BinaryIO, Self


class FileLocked(Exception):
    """Another process holds the lock on a file."""

    def __init__(self, path: Path, holder_pid: int | None) -> None:
        who = f"process {holder_pid}" if holder_pid else "another process"
        super().__init__(f"{path} is locked by {who}")
        self.path = path
        self.holder_pid = holder_pid


def write_atomically(path: Path, data: bytes, *, backup: bool = False, mode: int = 0o644) -> None:
    """Replace the content of `path` so that after a crash either the old or the new one is there, whole.

    With `backup` the old content is kept in `<path>.bak`, as Java's `ConfigManager` does.
    Blocks for two fsyncs; raises `OSError`.
    """
    temporary = path.with_name(path.name + ".tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        with open(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        if backup:
            _keep_backup(path)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


def _keep_backup(path: Path) -> None:
    spare = path.with_name(path.name + ".bak.tmp")
    with contextlib.suppress(FileNotFoundError):
        spare.unlink()
    try:
        os.link(path, spare)
    except FileNotFoundError:
        return
    os.replace(spare, path.with_name(path.name + ".bak"))


def sync_folder(path: Path) -> None:
    """Make renames, new files and deletions in a folder survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_with_backup(path: Path) -> bytes | None:
    """Return the content of `path`, of `<path>.bak` if it is missing or empty, or `None`."""
    for candidate in (path, path.with_name(path.name + ".bak")):
        with contextlib.suppress(FileNotFoundError):
            data = candidate.read_bytes()
            if data:
                return data
    return None


class FileLock:
    """An exclusive lock on a file, held until `release` or the end of the process."""

    __slots__ = ("_stream", "path")

    def __init__(self, path: Path, stream: BinaryIO) -> None:
        self.path = path
        self._stream = stream

    def release(self) -> None:
        """Give the lock back; the file stays, since deleting it would let two processes hold "the" lock."""
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def lock_file(path: Path) -> FileLock:
    """Create `path` if needed and lock it; raises `FileLocked`, which names the holder when the system tells.

    It is a POSIX record lock (`fcntl`), the kind that Java's `FileChannel.lock` takes, so that a Java
    process and this one see each other's locks. Such a lock belongs to the process, not to the
    descriptor: closing *any* descriptor of the file gives it up, so nothing else may open it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    stream = open(path, "a+b")  # noqa: SIM115  # lives as long as the lock
    try:
        fcntl.lockf(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = lock_holder(path)
        stream.close()
        if isinstance(error, (BlockingIOError, PermissionError)):
            raise FileLocked(path, holder) from None
        raise
    return FileLock(path, stream)


def lock_holder(path: Path) -> int | None:
    """Return the process that holds a POSIX lock on `path`, or `None` when the system does not tell."""
    try:
        status = path.stat()
        wanted = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            if len(fields) >= 6 and fields[1] == "POSIX" and fields[5] == wanted:
                return int(fields[4])
    except (OSError, ValueError):
        pass
    return None
