"""The files of an open store as readers elsewhere may see them: how much of each, and nothing besides."""

from __future__ import annotations

import errno
import os
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from brokerset_broker.member.membership.membership import epoch_path, identity_path
from brokerset_broker.outside.store_stream import names
from brokerset_broker.outside.store_stream.names import Kind, Wanted
from brokerset_broker.store.message_store import MessageStore
from brokerset_formats.errors import FormatError
from brokerset_formats.identity import IDENTITY_SIZE_MAX, BrokerIdentity
from brokerset_formats.index_file import HEADER, UNIT, IndexHeader
from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_formats.queue_units import UNIT_SIZE
from brokerset_spec.broker_settings import BrokerSettings

LISTED_MAX: Final = 2_000
"""Files in one answer; making one takes about 2 ms of the interpreter."""

_PAUSE_EVERY: Final = 64
_PAUSE_SECONDS: Final = 0.001
"""A thread that examines many files leaves the interpreter to the event loop in between."""

_NO_FILE: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ENAMETOOLONG)
"""Nothing there, or nothing that a store would have there: a symbolic link, a socket."""

_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far everything may be read, at one moment."""

    first: int
    """Offset of the oldest byte of the log."""

    end: int
    """Nothing of the log at or behind this offset is given out, nor what points there."""

    segments: tuple[tuple[str, int, int], ...]
    """Files of the log that are in use: name, offset of the first byte, bytes."""


@dataclass(frozen=True, slots=True)
class Facts:
    """A file as it is listed."""

    path: str
    size: int
    """Bytes of the file."""

    readable: int | None
    """Bytes that may be read now; None where that is decided when it is read."""

    sealed: bool
    """Whether it does not change any more, until it is deleted."""

    mtime_ms: int


class OpenFile:
    """A file that was found and may be read up to `readable`; `close` it."""

    __slots__ = ("descriptor", "readable", "sealed", "status")

    def __init__(self, descriptor: int, readable: int, sealed: bool, status: os.stat_result) -> None:
        self.descriptor = descriptor
        self.readable = readable
        self.sealed = sealed
        self.status = status

    @property
    def etag(self) -> str:
        """Strong: of a file that grows it changes with each write."""
        facts = self.status
        return f'"{facts.st_ino:x}-{facts.st_mtime_ns:x}-{facts.st_size:x}-{self.readable:x}"'

    def close(self) -> None:
        """Let it go."""
        os.close(self.descriptor)


class StoreFiles:
    """Bounds are taken on the event loop, `open` and `listed` block and belong into a thread."""

    def __init__(self, store: MessageStore, settings: BrokerSettings) -> None:
        self._store = store
        self._root = settings.store_path_root_dir
        self._log_folder = settings.store_path_commit_log or self._root / names.LOG_FOLDER
        epochs = epoch_path(settings)
        self._small = {name: self._root / name for name in names.ROOT_FILES} | {
            "brokerIdentity": identity_path(settings),
            "epochFileCheckpoint": epochs,
            "epochFileCheckpoint.bak": epochs.with_name(epochs.name + ".bak"),
        }

    # -- on the event loop ----------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        """What all in-sync replicas have; with synchronous flushing, what is on the disk besides."""
        store = self._store
        end = store.confirmed_offset
        return min(end, store.flushed_offset) if store.flushes_synchronously else end

    def bounds(self) -> Bounds:
        """How far everything may be read now."""
        return Bounds(
            self._store.min_offset,
            self.end,
            tuple((each.path.name, each.start, each.size) for each in self._store.log.files.files),
        )

    def queue_end(self, wanted: Wanted, bounds: Bounds) -> int | None:
        """The end of a queue in bytes, of what may be read; None if there is no such queue."""
        queue = self._store.queues_table.table.get((wanted.parts[1], int(wanted.parts[2])))
        return queue.end_below(bounds.end) * UNIT_SIZE if queue is not None else None

    # -- in a thread ----------------------------------------------------------------------------------------

    def open(self, wanted: Wanted, bounds: Bounds, queue_end: int | None) -> OpenFile | None:
        """Find a file; None if there is none that may be read. OSError for what the system refuses."""
        try:
            descriptor = self._descriptor(wanted)
        except OSError as error:
            if error.errno in _NO_FILE:
                return None
            raise
        try:
            found = self._limited(wanted, descriptor, bounds, queue_end)
        except BaseException:
            os.close(descriptor)
            raise
        if found is None:
            os.close(descriptor)
        return found

    def _limited(
        self, wanted: Wanted, descriptor: int, bounds: Bounds, queue_end: int | None
    ) -> OpenFile | None:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return None
        match wanted.kind:
            case Kind.LOG:
                sizes = {name: size for name, _, size in bounds.segments}
                size = sizes.get(wanted.parts[-1])
                if size is None:
                    return None
                readable = min(max(bounds.end - wanted.start, 0), size, status.st_size)
                sealed = wanted.start + size <= bounds.end and wanted.parts[-1] != bounds.segments[-1][0]
                return OpenFile(descriptor, readable, sealed, status)
            case Kind.QUEUE:
                readable = min(max((queue_end or 0) - wanted.start, 0), status.st_size)
                return OpenFile(descriptor, readable, False, status)
            case Kind.INDEX:
                is_full = wanted in self._full_indexes()
                if not is_full or not self._is_below(descriptor, status.st_size, bounds):
                    return None
                return OpenFile(descriptor, status.st_size, True, status)
            case Kind.SMALL:
                if wanted.parts[-1] == "brokerIdentity" and not _granted(descriptor):
                    return None
                return OpenFile(descriptor, status.st_size, False, status)

    def _is_below(self, descriptor: int, size: int, bounds: Bounds) -> bool:
        """Whether all entries of an index file are about what may be read; else it is left out as a whole.

        The last entry is read besides the header, which is written after the entries of a message: the
        next file may be there before that. Its record must end at or below the bound: replicas confirm bytes,
        and may have half a record.
        """
        try:
            header = IndexHeader.decode(os.pread(descriptor, HEADER.size, 0))
            _, last, _, _ = UNIT.unpack(os.pread(descriptor, UNIT.size, max(0, size - UNIT.size)))
        except (FormatError, struct.error):
            return False
        newest = max(header.end_offset, last)
        return header.next_unit > 1 and newest < bounds.end and self._record_end(newest, bounds) <= bounds.end

    def _record_end(self, offset: int, bounds: Bounds) -> int:
        """Where the record at an offset of the log ends; the offset itself if its file has expired."""
        for name, start, size in bounds.segments:
            if start <= offset < start + size:
                try:
                    file = _open_below(self._log_folder, [], name)
                except FileNotFoundError:
                    return offset
                try:
                    return offset + int.from_bytes(os.pread(file, 4, offset - start), "big")
                finally:
                    os.close(file)
        return offset

    def _descriptor(self, wanted: Wanted) -> int:
        """Open without following a symbolic link below the folders that the settings name."""
        *folders, name = wanted.parts
        if wanted.kind is Kind.LOG:
            return _open_below(self._log_folder, [], name)
        if not folders:
            path = self._small[name]
            return _open_below(path.parent, [], path.name)
        return _open_below(self._root, folders, name)

    def listed(
        self, under: tuple[str, ...], after: tuple[str, ...], bounds: Bounds
    ) -> tuple[list[Facts], bool]:
        """Files below a folder and behind a name, in the order of their parts; whether there are more.

        At most `LISTED_MAX`.
        """
        found: list[Facts] = []
        seen = 0
        for wanted, sealed in self._names(under, after, bounds):
            seen += 1
            if seen % _PAUSE_EVERY == 0:
                time.sleep(_PAUSE_SECONDS)
            facts = self._facts(wanted, sealed, bounds)
            if facts is None:
                continue
            if len(found) == LISTED_MAX:
                return found, True
            found.append(facts)
        return found, False

    def _facts(self, wanted: Wanted, sealed: bool, bounds: Bounds) -> Facts | None:
        if wanted.kind in (Kind.INDEX, Kind.SMALL):
            opened = self.open(wanted, bounds, None)
            if opened is None:
                return None
            opened.close()
            status, readable = opened.status, opened.readable
        else:
            try:
                status = os.stat(self._path(wanted), follow_symlinks=False)
            except (FileNotFoundError, NotADirectoryError):
                return None
            if not stat.S_ISREG(status.st_mode):
                return None
            readable = None
            if wanted.kind is Kind.LOG:
                readable = min(max(bounds.end - wanted.start, 0), status.st_size)
        return Facts(wanted.path, status.st_size, readable, sealed, status.st_mtime_ns // 1_000_000)

    def _path(self, wanted: Wanted) -> Path:
        if wanted.kind is Kind.LOG:
            return self._log_folder / wanted.parts[-1]
        return self._root.joinpath(*wanted.parts)

    def _names(
        self, under: tuple[str, ...], after: tuple[str, ...], bounds: Bounds
    ) -> Iterator[tuple[Wanted, bool]]:
        """Names that may exist, with whether the file is sealed."""
        for name in sorted((*names.ROOT_FILES, *names.FOLDERS)):
            prefix = (name,)
            if under[:1] not in ((), prefix) or prefix < after[:1]:
                continue
            if name in names.ROOT_FILES:
                found = [(Wanted(Kind.SMALL, prefix), False)] if not under else []
            elif name == names.LOG_FOLDER:
                found = [
                    (
                        Wanted(Kind.LOG, (name, each)),
                        start + size <= bounds.end and each != bounds.segments[-1][0],
                    )
                    for each, start, size in bounds.segments
                ]
            elif name == names.CONFIG_FOLDER:
                found = [(Wanted(Kind.SMALL, (name, each)), False) for each in names.CONFIG_FILES]
            elif name == names.INDEX_FOLDER:
                found = [(each, True) for each in self._full_indexes()]
            else:
                yield from self._queue_names(under, after)
                continue
            for each, sealed in found:
                if each.parts > after and each.parts[: len(under)] == under:
                    yield each, sealed

    def _full_indexes(self) -> list[Wanted]:
        """Index files to which nothing is added any more: all but the newest."""
        children = _children(self._root / names.INDEX_FOLDER, folders=False)
        found = [names.wanted((names.INDEX_FOLDER, each)) for each in children]
        return [each for each in found if each is not None][:-1]

    def _queue_names(self, under: tuple[str, ...], after: tuple[str, ...]) -> Iterator[tuple[Wanted, bool]]:
        root = self._root / names.QUEUES_FOLDER
        # Of one topic the others are not listed: a reader that asks queue by queue would pay for all of them.
        topics = _only(root, under[1]) if len(under) > 1 else _children(root, folders=True)
        for topic in topics:
            if (names.QUEUES_FOLDER, topic) < after[:2]:
                continue
            queues = (
                _only(root / topic, under[2]) if len(under) > 2 else _children(root / topic, folders=True)
            )
            for queue in queues:
                prefix = (names.QUEUES_FOLDER, topic, queue)
                if prefix < after[:3]:
                    continue
                files = _children(root / topic / queue, folders=False)
                newest = _newest_with_units(root / topic / queue, files)
                for name in files:
                    found = names.wanted((*prefix, name))
                    if found is not None and found.parts > after and len(under) < 4:
                        yield found, name < newest


def _open_below(folder: Path, folders: list[str], name: str) -> int:
    parent = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for each in folders:
            deeper = os.open(each, _FLAGS | os.O_DIRECTORY, dir_fd=parent)
            os.close(parent)
            parent = deeper
        return os.open(name, _FLAGS, dir_fd=parent)
    finally:
        os.close(parent)


def _newest_with_units(folder: Path, files: list[str]) -> str:
    """The file of a queue that is written: the last one, or that before it if the last was made ahead."""
    if len(files) < 2:
        return files[0] if files else ""
    try:
        descriptor = os.open(folder / files[-1], _FLAGS)
    except OSError:  # it is gone since
        return files[-2]
    try:
        return files[-1] if any(os.pread(descriptor, UNIT_SIZE, 0)) else files[-2]
    finally:
        os.close(descriptor)


def _children(folder: Path, *, folders: bool) -> list[str]:
    """Names in a folder, sorted; symbolic links are neither files nor folders."""
    if folder.is_symlink():
        return []
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        return sorted(
            each.name
            for each in entries
            if each.name.isprintable()  # else it is no UTF-8, or nothing that a client could have sent
            and (each.is_dir(follow_symlinks=False) if folders else each.is_file(follow_symlinks=False))
        )
    return []


def _only(folder: Path, name: str) -> list[str]:
    """This name if `_children` would have it among the folders."""
    if not name.isprintable() or name in (".", "..") or "/" in name or folder.is_symlink():
        return []
    with suppress(FileNotFoundError, NotADirectoryError, ValueError):
        return [name] if stat.S_ISDIR((folder / name).lstat().st_mode) else []
    return []


def _granted(descriptor: int) -> bool:
    """Whether an identity file is one without a check code, with which the id could be claimed."""
    try:
        return not BrokerIdentity.decode(os.pread(descriptor, IDENTITY_SIZE_MAX + 1, 0)).check_code
    except FormatError:
        return False
