"""Files below the staging folder: copies that share nothing with their source, and digests of what was
written."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from brokerset_runtime.files import sync_folder
from brokerset_spark.jobs.running import Result, Row

TASK: Final = "brokerset_spark.jobs.migrate.cloning:clone"
PIECE: Final = 4 << 20

_FICLONE: Final = 0x40049409
_CANNOT: Final = frozenset(
    {errno.EXDEV, errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.ENOSYS, errno.EBADF, errno.EPERM}
)
"""What a file system says that cannot share blocks, or not between these two files."""


def clone(row: Row) -> Iterator[Result]:
    """Copy files of the source into the staging folder and read them back: a task.

    What lies behind `upto` of a file becomes zeros; with a mark these bytes are written there.
    """
    files = []
    total = shared = 0
    for each in row["files"]:
        source, target = Path(row["source"]) / each["from"], Path(row["staging"]) / each["to"]
        upto = each.get("upto")
        shared += clone_file(source, target, upto=upto, mark=bytes.fromhex(each.get("mark", "")))
        if each.get("mtimeMs") is not None:
            set_mtime(target, each["mtimeMs"])
        size = target.stat().st_size
        compared = size if upto is None else upto
        if digest_file(source, compared) != digest_file(target, compared):
            raise OSError(errno.EIO, f"the copy of {each['from']} reads back differently", str(target))
        files.append(described(row["staging"], target))
        total += size
    yield Result({"key": row["key"], "files": files, "bytesRead": total, "shared": shared})


def clone_file(source: Path, target: Path, *, upto: int | None = None, mark: bytes = b"") -> bool:
    """Copy a file, holes included, with its times; tells whether the blocks are shared copy-on-write.

    Never a hard link: a broker that changes the copy must not change the source.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    reading = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        writing = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            facts = os.fstat(reading)
            end = facts.st_size if upto is None else upto
            shared = _share(reading, writing)
            if not shared:
                _copy_data(reading, writing, end)
            os.ftruncate(writing, end)
            if mark:
                os.pwrite(writing, mark, end)
            os.ftruncate(writing, facts.st_size)
            os.fsync(writing)
            os.utime(writing, ns=(facts.st_atime_ns, facts.st_mtime_ns))
        finally:
            os.close(writing)
    finally:
        os.close(reading)
    os.replace(part, target)
    sync_folder(target.parent)
    return shared


def _share(reading: int, writing: int) -> bool:
    try:
        fcntl.ioctl(writing, _FICLONE, reading)
    except OSError as error:
        if error.errno in _CANNOT:
            return False
        raise
    return True


def _copy_data(reading: int, writing: int, end: int) -> None:
    """Copy what is not a hole, up to `end`."""
    position = 0
    while position < end:
        try:
            position = os.lseek(reading, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole follows
                return
            raise
        stop = min(os.lseek(reading, position, os.SEEK_HOLE), end)
        while position < stop:
            count = _copy_piece(reading, writing, position, min(stop - position, 1 << 30))
            if count == 0:
                return
            position += count


def _copy_piece(reading: int, writing: int, position: int, count: int) -> int:
    try:
        return os.copy_file_range(reading, writing, count, position, position)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
    data = os.pread(reading, min(count, PIECE), position)
    write_all(writing, data, position)
    return len(data)


def write_all(descriptor: int, data: bytes | bytearray | memoryview, position: int) -> None:
    """Write all of it there; OSError if the disk is full."""
    view = memoryview(data)
    while len(view):
        count = os.pwrite(descriptor, view, position)
        view, position = view[count:], position + count


def digest_file(path: Path, upto: int | None = None) -> str:
    """xxh3 (128 bits) of a file, or of its first bytes."""
    digest = xxhash.xxh3_128()
    buffer = bytearray(PIECE)
    view = memoryview(buffer)
    left = path.stat().st_size if upto is None else upto
    with open(path, "rb", buffering=0) as stream:
        while left > 0:
            count = stream.readinto(view[: min(left, PIECE)])
            if not count:
                break
            digest.update(view[:count])
            left -= count
    return digest.hexdigest()


def described(staging: str, path: Path, *, used: int | None = None) -> dict[str, Any]:
    """A file as the journal names it: path below the staging folder, size, and the digest of its used
    bytes."""
    size = path.stat().st_size
    used = size if used is None else used
    relative = path.relative_to(staging).as_posix()
    return {"path": relative, "size": size, "used": used, "digest": digest_file(path, used)}


def is_whole(staging: Path, file: dict[str, Any]) -> bool:
    """Whether a file is what the journal says of it."""
    path = staging / file["path"]
    try:
        return bool(path.stat().st_size == file["size"] and digest_file(path, file["used"]) == file["digest"])
    except FileNotFoundError:
        return False


def set_mtime(path: Path, mtime_ms: int) -> None:
    """Brokers delete files by their time of change."""
    os.utime(path, ns=(mtime_ms * 1_000_000, mtime_ms * 1_000_000))


def write_file(path: Path, parts: Sequence[bytes | NDArray[Any]], *, size: int | None = None) -> None:
    """Write a whole new file and bring it to the disk; with `size`, zeros up to there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    with open(part, "wb") as stream:
        for each in parts:
            stream.write(each if isinstance(each, bytes) else np.ascontiguousarray(each).tobytes())
        stream.flush()
        if size is not None:
            os.ftruncate(stream.fileno(), size)
        os.fsync(stream.fileno())
    os.replace(part, path)
    sync_folder(path.parent)


def write_scratch(staging: str, name: str, parts: Sequence[bytes | NDArray[Any]]) -> dict[str, Any]:
    """Write a scratch file; gives what the journal needs."""
    path = Path(staging) / name
    write_file(path, parts)
    return described(staging, path)
