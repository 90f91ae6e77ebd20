"""What the tables of topics and groups have in common: named settings with a data version, in a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Generic, TypeVar

from brokerset_broker.tables.config_files import ConfigFile
from brokerset_formats.config import DataVersion

T = TypeVar("T")

SAVE_PAUSE_SECONDS: Final = 1.0
"""Shortest time between two writes of a table that nobody waits for."""


class ConfigTable(Generic[T]):
    """Settings by name. `snapshot` is the file's, see `ConfigFile`."""

    def __init__(self, path: Path, snapshot: Callable[[], Callable[[], bytes]], now_ms: int) -> None:
        self.items: dict[str, T] = {}
        """All of them by name; to read."""
        self._version = DataVersion(0, 0, now_ms)
        self._file = ConfigFile(path, snapshot)
        self.state_version = 0
        """Epoch of the master, in controller mode; it goes into the data version."""

    # -- file ---------------------------------------------------------------------------------------------

    def persist(self) -> None:
        """Write the file now, in this thread."""
        self._file.persist()

    async def saved(self) -> None:
        """Return when every change so far is on the disk."""
        await self._file.saved()

    async def run(self) -> None:
        """Write changes down, for as long as this task runs."""
        await self._file.run(SAVE_PAUSE_SECONDS)

    # -- queries ------------------------------------------------------------------------------------------

    @property
    def data_version(self) -> DataVersion:
        """Grows with every change; name servers and slaves compare it."""
        return self._version

    def get(self, name: str) -> T | None:
        """The settings of this name, `None` if this broker does not have it."""
        return self.items.get(name)

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[T]:
        return iter(self.items.values())
