"""Disks that really fail: a file system on too little space, one that is full, and syncs that fail at will."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

SOURCE = Path(__file__).with_name("failing_syncs.c")
UNMOUNT_SECONDS_MAX = 20.0
LOCK_INTERVAL_S = 0.002
"""A store makes its next file long before it writes to it."""
NAMESPACE = "BROKERSET_DISKS_NAMESPACE"
MIB = 1024 * 1024

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mlock.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


class DiskError(Exception):
    """The system does not give what a failing disk is made of; the text says what is missing."""


def run(*command: str) -> str:
    """Run a command to its end. Raises `DiskError` with what it said."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except FileNotFoundError as error:
        raise DiskError(f"{command[0]} is not installed") from error
    if done.returncode != 0:
        raise DiskError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout.strip()


def missing() -> str | None:
    """What keeps this process from making disks, if anything does: root, loop devices, tools."""
    if os.geteuid() != 0:
        return "only root can mount"
    tools = [
        tool for tool in ("losetup", "mkfs.ext4", "mount", "umount", "unshare") if shutil.which(tool) is None
    ]
    if tools:
        return f"{', '.join(tools)} are not installed"
    try:
        run("losetup", "-f")
    except DiskError as error:
        return str(error)
    return None


def enter_own_namespace() -> None:
    """Run this program again with mounts of its own; returns in the one that has them.

    A container that is started meanwhile elsewhere would take a copy of every mount, and keep the devices busy.
    """
    if os.environ.get(NAMESPACE) is None:
        os.environ[NAMESPACE] = "1"
        os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", sys.executable, *sys.argv])


def _unmount(folder: Path) -> None:
    deadline = time.monotonic() + UNMOUNT_SECONDS_MAX
    while True:
        try:
            run("umount", str(folder))
            return
        except DiskError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.1)


class SmallDisk:
    """A tmpfs. A context manager; `fill` takes the space away, `make_room` gives it back."""

    def __init__(self, folder: Path, mib: int) -> None:
        self.folder = folder
        self._mib = mib
        self._ballast = folder / "ballast"

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        run("mount", "-t", "tmpfs", "-o", f"size={self._mib}m", "tmpfs", str(self.folder))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _unmount(self.folder)

    def fill(self, left_bytes: int = 0) -> None:
        """Leave so many bytes, rounded down to pages."""
        with (
            self._ballast.open("wb", buffering=0) as stream,
            contextlib.suppress(OSError),
        ):  # others write, too
            while (left := self._free_bytes() - left_bytes) > 0:
                stream.write(bytes(min(left, MIB)))

    def _free_bytes(self) -> int:
        status = os.statvfs(self.folder)
        return status.f_bavail * status.f_frsize

    def make_room(self) -> None:
        """Give back what `fill` took."""
        self._ballast.unlink(missing_ok=True)


class ThinDisk:
    """An ext4 of more bytes than its backing file can get: when that is full, writing back fails with EIO.

    A context manager; `folder` is where it is mounted. The journal and all tables have their blocks from the
    beginning, so it is the data that is lost, as on a device with bad sectors.
    """

    def __init__(self, work: Path, *, mib: int = 128, backing_mib: int = 64) -> None:
        self.folder = work / "thin"
        self._image = work / "backing" / "image"
        self._backing = SmallDisk(work / "backing", backing_mib)
        self._mib = mib
        self._device = ""

    def __enter__(self) -> Self:
        self._backing.__enter__()
        try:
            with self._image.open("wb") as stream:
                stream.truncate(self._mib * MIB)
            self._device = run("losetup", "-f", "--show", str(self._image))
            self._fail_whole()
            run("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard", "-J", "size=4",
                self._device)  # fmt: skip
            self.folder.mkdir()
            self._mount()
        except BaseException:
            self._detach()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.make_room()
        try:
            _unmount(self.folder)
        finally:
            self._detach()

    def fill(self) -> None:
        """From now on blocks that were never written cannot be."""
        self._backing.fill()

    def make_room(self) -> None:
        """Writing works again."""
        self._backing.make_room()

    def evict(self) -> None:
        """Unmount and mount: what is read afterwards comes from the disk, and of the page cache nothing is left."""
        _unmount(self.folder)
        self._mount()

    def _fail_whole(self) -> None:
        """Keep each request within a page: the loop driver calls one that was written in part a success."""
        queue = Path("/sys/block", Path(self._device).name, "queue")
        try:
            (queue / "max_sectors_kb").write_text("4")
        except OSError as error:
            raise DiskError(f"{queue}/max_sectors_kb cannot be set: {error.strerror}") from error

    def _mount(self) -> None:
        run("mount", self._device, str(self.folder))

    def _detach(self) -> None:
        if self._device:
            run("losetup", "-d", self._device)
        self._backing.__exit__(None, None, None)


class KeptPages:
    """Keeps all that the page cache has of the files of a folder, also of files to come. A context manager.

    The kernel may drop pages that it calls clean at any time, also with much memory left and while they are mapped (a
    kernel with DAMON pages out what was not used for a second). It keeps those that are locked.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kept-pages")
        self._mapped: dict[Path, mmap.mmap] = {}

    def __enter__(self) -> Self:
        self._lock_new_files()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()
        for mapped in self._mapped.values():
            mapped.close()

    def _run(self) -> None:
        while not self._end.wait(LOCK_INTERVAL_S):
            self._lock_new_files()

    def _lock_new_files(self) -> None:
        for path in self._folder.glob("*"):
            if path in self._mapped or not path.stat().st_size:
                continue
            with path.open("r+b") as stream:
                mapped = self._mapped[path] = mmap.mmap(stream.fileno(), 0)
            _lock(mapped)


def _lock(mapped: mmap.mmap) -> None:
    """Keep a mapping in memory until it is closed. Raises `DiskError`."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    if _libc.mlock(address, len(mapped)) != 0:
        raise DiskError(f"mlock of {len(mapped)} bytes: {os.strerror(ctypes.get_errno())}")


class FailingSyncs:
    """fsync, fdatasync, msync and pwrite of a process fail while this says so; needs a C compiler."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._control = folder / "failing-syncs"
        library = folder / "failing_syncs.so"
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise DiskError("a C compiler is needed (cc): apt-get install gcc libc6-dev")
        run(compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl")
        self.environment = {"LD_PRELOAD": str(library), "FAILING_SYNCS": str(self._control)}
        """For the process whose calls shall fail."""

    def begin(self, part: str, thousandths: int = 1000) -> None:
        """Of files with `part` in their paths so many calls of a thousand fail from now on."""
        temporary = self._control.with_suffix(".tmp")
        temporary.write_text(f"{thousandths} {part}\n")
        temporary.replace(self._control)

    def end(self) -> None:
        """All calls work again."""
        self._control.unlink(missing_ok=True)
