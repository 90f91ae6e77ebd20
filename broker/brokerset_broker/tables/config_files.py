"""One JSON file of a manager: loaded once, written whole, many changes in one write."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import structlog

from brokerset_formats.errors import FormatError
from brokerset_runtime.files import write_atomically

log = structlog.get_logger(__name__)

T = TypeVar("T")


class ConfigDamaged(Exception):
    """Neither a configuration file nor its backup can be read: somebody must look before the start."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} and its .bak cannot be read: {reason}; restore or remove them")
        self.path = path


class ConfigFile:
    """A file with `.bak` next to it, as Java's `ConfigManager` keeps them.

    `snapshot` is called on the loop's thread and returns the work of encoding, which runs in a thread
    together with the write; what it returns must therefore not change later.
    """

    def __init__(self, path: Path, snapshot: Callable[[], Callable[[], bytes]], *, mode: int = 0o644) -> None:
        """`mode`: who may read the file."""
        self._mode = mode
        self.path = path
        self._snapshot = snapshot
        self._changes = 0
        self._written = 0
        self._lock = asyncio.Lock()
        self._writing = threading.Lock()
        self._changed = asyncio.Event()

    def load(self, decode: Callable[[bytes], T]) -> T | None:
        """Decode the file, or its backup if it is missing, empty or damaged; `None` if there is neither.

        Raises `ConfigDamaged`: a broker without its topics would tell producers that they are gone.
        """
        problem: str | None = None
        for candidate in (self.path, self.path.with_name(self.path.name + ".bak")):
            try:
                data = candidate.read_bytes()
            except FileNotFoundError:
                continue
            if not data.strip():
                continue
            try:
                return decode(data)
            except FormatError as error:
                log.error("configuration file is damaged", path=str(candidate), reason=str(error))
                problem = problem or str(error)
        if problem is not None:
            raise ConfigDamaged(self.path, problem)
        return None

    @property
    def unsaved(self) -> bool:
        """Whether something changed that is not on the disk."""
        return self._written < self._changes

    @property
    def changed_ns(self) -> int:
        """When the file was written last; 0 if there is none."""
        try:
            return self.path.stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def touch(self) -> None:
        """Note a change: `run` or `saved` writes it."""
        self._changes += 1
        self._changed.set()

    def persist(self) -> None:
        """Write now, in this thread: at start and at the end, when no loop has to go on."""
        self._write(self._snapshot(), self._changes)

    async def saved(self) -> None:
        """Return when everything changed so far is on the disk; callers at the same time share a write."""
        wanted = self._changes
        async with self._lock:
            if self._written >= wanted:
                return
            await asyncio.to_thread(self._write, self._snapshot(), self._changes)

    async def run(self, pause_seconds: float) -> None:
        """Write changes as they come, at most once in `pause_seconds`, for as long as the task runs."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self.saved()
            except OSError as error:
                log.error("configuration file cannot be written", path=str(self.path), reason=str(error))
                self._changed.set()
            await asyncio.sleep(pause_seconds)

    def _write(self, encode: Callable[[], bytes], changes: int) -> None:
        """Write unless something newer is there: a cancelled task leaves its thread behind."""
        with self._writing:
            if changes < self._written:
                return
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path, encode(), backup=True, mode=self._mode)
            self._written = changes
