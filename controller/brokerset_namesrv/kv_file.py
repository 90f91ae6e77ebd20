"""Keeps the key-value configuration in its file; changes that come together share one write."""

from __future__ import annotations

import asyncio
from pathlib import Path

import structlog

from brokerset_formats.errors import FormatError
from brokerset_namesrv import kv_config
from brokerset_namesrv.kv_config import KvTable
from brokerset_runtime.files import read_with_backup, write_atomically

log = structlog.get_logger(__name__)


class KvFileDamaged(Exception):
    """The file is there and cannot be read: nothing is guessed, the name server does not start."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"{path} cannot be read: {reason}. Restore it from {path}.bak or move it away to start empty."
        )
        self.path = path
        self.reason = reason


def load(path: Path) -> KvTable:
    """The table in the file, an empty one if there is no file. Raises `KvFileDamaged`; blocks."""
    try:
        data = read_with_backup(path)
        return kv_config.decode(data) if data is not None else KvTable()
    except (FormatError, OSError) as error:
        raise KvFileDamaged(path, str(error)) from error


class KvFile:
    """Writes a table whenever it is told that the table has changed."""

    def __init__(self, path: Path, table: KvTable) -> None:
        self._path = path
        self._table = table
        self._changes = 0
        self._written = 0
        self._writing: asyncio.Task[OSError | None] | None = None

    async def save(self) -> None:
        """Return when the table as it is now is on the disk. Raises `OSError`.

        Who waits while a write runs shares the next one with all others who wait. A write goes on when those
        who wait for it are cancelled: two must not run at once.
        """
        self._changes += 1
        change = self._changes
        while self._written < change:
            if self._writing is None:
                self._writing = asyncio.get_running_loop().create_task(self._write())
            error = await asyncio.shield(self._writing)
            if error is not None:
                raise error

    async def close(self) -> None:
        """Wait for the write that may still run."""
        if self._writing is not None:
            await asyncio.shield(self._writing)

    async def _write(self) -> OSError | None:
        covered = self._changes
        data = self._table.encode()
        try:
            await asyncio.to_thread(self._replace, data)
        except OSError as error:
            log.error("cannot write key-value configuration", path=str(self._path), reason=str(error))
            return error
        else:
            self._written = covered
            return None
        finally:
            self._writing = None

    def _replace(self, data: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path, data, backup=True)
