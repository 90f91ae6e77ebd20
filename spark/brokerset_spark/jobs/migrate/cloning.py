"""Files below the staging folder: copies that share nothing with their source, and digests of what was
written."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import DTypeLike, NDArray

from brokerset_runtime.files import sync_folder
from brokerset_spark.jobs.migrate.output import Output
from brokerset_spark.jobs.running import Result, Row
from brokerset_spark.stores.reading import Throttle

TASK: Final = "brokerset_spark.jobs.migrate.cloning:clone"
PIECE: Final = 256 << 10
"""Bytes that are read at once: they are still in the processor's cache when they are hashed and written."""


def clone(row: Row) -> Iterator[Result]:
    """Copy files of the source into the staging folder and read them back: a task."""
    files = []
    total = shared = 0
    throttle = Throttle(row["rate"])
    for each in row["files"]:
        source, target = Path(row["source"]) / each["from"], Path(row["staging"]) / each["to"]
        target.parent.mkdir(parents=True, exist_ok=True)
        with opened(source) as reading, Output(part_of(target)) as output:
            facts = os.fstat(reading)
            shared += output.share(reading)
            copy_rest(reading, output, facts.st_size, throttle)
            read_back(output, each["from"], throttle)
            output.finish(facts.st_size, times_ns=(facts.st_atime_ns, facts.st_mtime_ns))
            output.publish(target)
        files.append(output.described(each["to"], facts.st_size))
        total += facts.st_size
    yield Result({"key": row["key"], "files": files, "bytesRead": total, "shared": shared})


@contextlib.contextmanager
def opened(path: Path) -> Iterator[int]:
    """A file of the source, for reading."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


PART: Final = ".part"
"""End of the names of files that are being written."""


def part_of(target: Path) -> Path:
    """Name of a file while it is written, another one for each attempt: the worker of an executor that is
    gone may still be writing when its task runs elsewhere."""
    return target.with_name(f"{target.name}.{uuid.uuid4().hex}{PART}")


def copy_rest(reading: int, output: Output, end: int, throttle: Throttle) -> None:
    """Copy what lies from the output's position to `end`, holes included. OSError if the file is shorter."""
    view = memoryview(bytearray(PIECE))
    while output.position < end:
        until, is_hole = _extent(reading, output.position, end)
        while output.position < until:
            count = os.preadv(reading, [view[: until - output.position]], output.position)
            if count == 0:
                raise OSError(errno.EIO, f"the source ends at {output.position} of {end} bytes")
            throttle.took(count)
            output.take(view[:count], is_hole=is_hole)


def _extent(reading: int, position: int, end: int) -> tuple[int, bool]:
    """Up to where a hole, or none, reaches from here."""
    try:
        data = os.lseek(reading, position, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return end, True  # nothing but a hole follows
    if data > position:
        return min(data, end), True
    return min(os.lseek(reading, position, os.SEEK_HOLE), end), False


def read_back(output: Output, name: str, throttle: Throttle) -> None:
    """Read what was written, and compare it with what should have been; OSError if it is not the same."""
    output.trim()
    if digest_open(output.descriptor, output.position, throttle) != output.digest.hexdigest():
        raise OSError(errno.EIO, f"the copy of {name} reads back differently", str(output.part))


def digest_file(path: Path, upto: int | None = None, throttle: Throttle | None = None) -> str:
    """xxh3 (128 bits) of a file, or of its first bytes."""
    with opened(path) as descriptor:
        return digest_open(descriptor, os.fstat(descriptor).st_size if upto is None else upto, throttle)


def digest_open(descriptor: int, upto: int, throttle: Throttle | None = None) -> str:
    """The same of an open file."""
    digest = xxhash.xxh3_128()
    view = memoryview(bytearray(min(PIECE, max(upto, 1))))
    position = 0
    while position < upto:
        count = os.preadv(descriptor, [view[: upto - position]], position)
        if not count:
            break
        if throttle is not None:
            throttle.took(count)
        digest.update(view[:count])
        position += count
    return digest.hexdigest()


def described(
    staging: str, path: Path, *, used: int | None = None, throttle: Throttle | None = None
) -> dict[str, Any]:
    """A file as the journal names it: path below the staging folder, size, and the digest of its used
    bytes."""
    size = path.stat().st_size
    used = size if used is None else used
    relative = path.relative_to(staging).as_posix()
    return {"path": relative, "size": size, "used": used, "digest": digest_file(path, used, throttle)}


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
    part = part_of(path)
    with open(part, "wb") as stream:
        for each in parts:
            stream.write(each if isinstance(each, bytes) else np.ascontiguousarray(each).tobytes())
        stream.flush()
        if size is not None:
            os.ftruncate(stream.fileno(), size)
        os.fsync(stream.fileno())
    os.replace(part, path)
    sync_folder(path.parent)


def read_slice(path: Path, kind: DTypeLike, count: int, offset: int) -> NDArray[Any]:
    """So many values of a scratch file, and not a byte more. OSError if they are not all there."""
    found = np.empty(count, kind)
    view, position = found.view(np.uint8).data, 0
    with opened(path) as descriptor:
        while position < len(view):
            read = os.preadv(descriptor, [view[position:]], offset + position)
            if read == 0:
                raise OSError(errno.EIO, f"there are no {len(view)} bytes at {offset}", str(path))
            position += read
    return found


def write_scratch(
    staging: str, name: str, parts: Sequence[bytes | NDArray[Any]], throttle: Throttle | None = None
) -> dict[str, Any]:
    """Write a scratch file; gives what the journal needs."""
    path = Path(staging) / name
    write_file(path, parts)
    return described(staging, path, throttle=throttle)
