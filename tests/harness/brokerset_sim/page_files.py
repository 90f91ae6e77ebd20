"""Files of a simulated host, below the production store: what a power failure leaves of what was mapped.

The files are real, in a folder in memory. Each life of a process gets copies of its own: what is left of a
killed one may go on writing, and reaches nobody. Of a mapped file a power failure leaves what was synced, and
of the other pages those that the dice say. All other files are durable as soon as they are written, for their
writers sync them, and no simulated process can end in between.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import random
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any
from unittest import mock

from brokerset_broker.store import flush, mapping, message_store
from brokerset_broker.store import folder as store_folder
from brokerset_broker.store.segments import FILE_NAME, MappedFile
from brokerset_sim.loop import OWNER
from brokerset_sim.process import Process

PAGE = mmap.PAGESIZE
MAPPED_NAMES = ("timerwheel",)
"""Mapped files whose names are no offsets."""


class PageFiles:
    """The files of one host, of which its processes have one folder at a time."""

    def __init__(self, place: Path, random_source: random.Random) -> None:
        """`place` is for this host alone; its name is the host's."""
        self._place = place
        self._random = random_source
        self._life = 0
        self.folder = place / "0"
        """What the present process works on, or the next one will."""

        self.folder.mkdir(parents=True)
        self._synced: dict[str, bytearray] = {}
        self.syncs = 0
        self.fail_sync = False
        """The next sync fails with an input/output error, and brings nothing to the disk."""

        self.full = False
        """No file can be made, and none gets further blocks."""

        self.has_failed = False
        """Whether a sync has failed, or there was no room, in the life of the present process."""

    def _name(self, path: Path) -> str | None:
        """The file within the present folder; None for one of an earlier life."""
        text, folder = str(path), f"{self.folder}/"
        return text.removeprefix(folder) if text.startswith(folder) else None

    def synced(self, path: Path, size: int) -> bytearray:
        """What the disk has of a mapped file."""
        name = self._name(path)
        if name is None:
            return bytearray(size)
        found = self._synced.get(name)
        if found is None:
            found = self._synced[name] = bytearray(size)
        return found

    def sync(self, file: MappedFile, begin: int, end: int) -> None:
        """Pages of a mapped file come to the disk."""
        if self._name(file.path) is None or begin >= end:
            return
        self.syncs += 1
        if self.fail_sync:
            self.fail_sync, self.has_failed = False, True
            raise OSError(errno.EIO, "Input/output error", str(file.path))
        first, last = begin - begin % PAGE, min(file.size, end + -end % PAGE)
        self.synced(file.path, file.size)[first:last] = file.map[first:last]

    def need_room(self, path: Path) -> None:
        """A file is made, or gets blocks. Raises OSError on a full disk."""
        if self.full and self._name(path) is not None:
            self.has_failed = True
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    def forget(self, path: Path) -> None:
        """A mapped file is made, or deleted: what the disk had under its name is gone."""
        name = self._name(path)
        if name is not None:
            self._synced.pop(name, None)

    def end_life(self, *, power: bool) -> None:
        """The process has ended; with `power`, so has what the disk does not have."""
        before = self.folder
        self._life += 1
        self.fail_sync = self.has_failed = False
        self.folder = self._place / str(self._life)
        chance = self._random.choice((0.0, 0.5, 1.0))
        for path in sorted(before.rglob("*")):
            name = path.relative_to(before)
            if path.is_dir():
                (self.folder / name).mkdir(parents=True, exist_ok=True)
                continue
            content = path.read_bytes()
            if power and (FILE_NAME.fullmatch(path.name) or path.name in MAPPED_NAMES):
                content = self._survives(str(name), content, chance)
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_bytes(content)
        shutil.rmtree(before)

    def _survives(self, name: str, content: bytes, chance: float) -> bytes:
        found = self._synced.setdefault(name, bytearray(len(content)))
        if found != content:
            for at in range(0, len(content), PAGE):
                page = content[at : at + PAGE]
                if found[at : at + PAGE] != page and self._random.random() < chance:
                    found[at : at + PAGE] = page
        return bytes(found)


class Inline(Executor):
    """In place of the executors that make files ahead of their use, and flush an old log."""

    def __init__(self, *_: object) -> None:
        """However many threads it is told to have."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(function(*args, **kwargs))
        except Exception as error:  # the edge of a thread
            done.set_exception(error)
        return done


class InlineSync(flush.SyncThread):
    """In place of the thread that flushes a log."""

    def submit(self, work: Callable[[], None]) -> None:
        work()


@contextlib.contextmanager
def on_page_files(place: Path, hosts: dict[str, PageFiles]) -> Iterator[None]:
    """Production code within the block works on the files of these hosts, by the names of their places."""

    beginning = f"{place}/"

    def files_of(path: Path) -> PageFiles | None:
        text = str(path)
        return hosts.get(text[len(beginning) :].partition("/")[0]) if text.startswith(beginning) else None

    real_create, real_unlink = MappedFile.create.__func__, MappedFile.unlink  # type: ignore[attr-defined]  # of a method

    def sync(self: MappedFile, begin: int, end: int) -> None:
        files = files_of(self.path)
        if files is not None:
            files.sync(self, begin, end)

    def create(cls: type[MappedFile], path: Path, *arguments: Any) -> MappedFile:
        if (files := files_of(path)) is not None:
            files.need_room(path)
            files.forget(path)
        made: MappedFile = real_create(cls, path, *arguments)
        return made

    real_reserve = mapping.reserve

    def reserve(path: Path, begin: int, end: int) -> None:
        if begin < end and (files := files_of(path)) is not None:
            files.need_room(path)
        real_reserve(path, begin, end)

    def unlink(self: MappedFile) -> None:
        if (files := files_of(self.path)) is not None:
            files.forget(self.path)
        real_unlink(self)

    def boot_id() -> str:
        owner = OWNER.get()
        return owner.host.boot_id if isinstance(owner, Process) else ""

    with (
        mock.patch.object(MappedFile, "sync", sync),
        mock.patch.object(MappedFile, "create", classmethod(create)),
        mock.patch.object(MappedFile, "unlink", unlink),
        mock.patch.object(mapping, "settle", return_value=0),
        mock.patch.object(mapping, "reserve", reserve),
        mock.patch.object(store_folder, "boot_id", boot_id),
        mock.patch.object(message_store, "ThreadPoolExecutor", Inline),
        mock.patch.object(flush, "SyncThread", InlineSync),
    ):
        yield
