"""One `brokerset upgrade` at a time on a store, from its first look to its last act."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from brokerset_cli.output import CommandFailed
from brokerset_cli.takeover.old_store import BACKUP, COMMIT_LOG
from brokerset_cli.takeover.upgrade_files import disk_told
from brokerset_runtime.files import FileLock, FileLocked, lock_file

COMMAND_LOCK: Final = "command.lock"
"""File in a store's backup folder. It is not RocketMQ's `lock`, which a broker has to get meanwhile."""


class CommandLock:
    """What a call holds of its stores; it ends with the process, however that ends.

    Nothing else may open these files meanwhile: closing one gives its lock up.
    """

    def __init__(self) -> None:
        self._held: dict[Path, FileLock] = {}

    def hold(self, stores: Iterable[Path]) -> bool:
        """Take the locks that are not held yet; whether there were any. Ends the command when another one has
        a store. Raises `OSError`."""
        wanted = sorted({each.resolve() for each in stores} - set(self._held))
        for store in wanted:
            try:
                self._held[store] = lock_file(store / BACKUP / COMMAND_LOCK)
            except FileLocked as error:
                who = f"process {error.holder_pid}" if error.holder_pid else "another process"
                raise CommandFailed(
                    f"another `brokerset upgrade` works on {store}: {who}; this one has changed nothing",
                    "wait until it has ended, or end it; then repeat this. `--look` works meanwhile",
                ) from None
        return bool(wanted)

    def release(self) -> None:
        """Give all of them back."""
        while self._held:
            self._held.popitem()[1].release()


@contextmanager
def command_lock(stores: Iterable[Path]) -> Iterator[CommandLock]:
    """Hold the stores that there are while a command acts."""
    lock = CommandLock()
    try:
        with disk_told():
            lock.hold(each for each in stores if may_be_store(each))
        yield lock
    finally:
        lock.release()


def may_be_store(path: Path) -> bool:
    """Whether a folder looks like a store: in others nothing is made, not even a lock."""
    return (path / COMMIT_LOG).is_dir() or (path / "config").is_dir()
