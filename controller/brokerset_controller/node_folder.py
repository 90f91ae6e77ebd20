"""The folder of a controller: locked by one process, and marked with the node whose data it holds."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import structlog

from brokerset_runtime.files import FileLock, lock_file, write_atomically
from brokerset_runtime.settings import SettingsError, from_properties

log = structlog.get_logger(__name__)

NODE_FILE: Final = "node"
LOCK_FILE: Final = "lock"
RAFT_FOLDER: Final = "raft"
"""Name of the folder inside for the raft log and the snapshots."""


class WrongFolder(Exception):
    """The folder holds the data of another node, or its mark cannot be read: starting would mix two logs."""


class NodeFolder:
    """A folder that this process owns until `release`."""

    def __init__(self, path: Path, lock: FileLock) -> None:
        self.path = path
        self._lock: FileLock | None = lock

    @property
    def raft(self) -> Path:
        """The folder of the raft log."""
        return self.path / RAFT_FOLDER

    def release(self) -> None:
        """Let another process have the folder; may be called more than once."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()


def claim(path: Path, group: str, self_id: str) -> NodeFolder:
    """Create the folder if needed, lock it, check or write its mark. Blocks.

    Raises `FileLocked`, `WrongFolder`, or `OSError`.
    """
    path.mkdir(parents=True, exist_ok=True)
    lock = lock_file(path / LOCK_FILE)
    try:
        _check_mark(path, group, self_id)
    except BaseException:
        lock.release()
        raise
    return NodeFolder(path, lock)


def close_to_others(raft: Path) -> None:
    """Let only this process's user read the raft log, since passwords are in it. Blocks; raises `OSError`."""
    raft.mkdir(exist_ok=True)
    try:
        raft.chmod(0o700)
    except PermissionError as error:
        log.warning("others may read passwords in this folder: its owner must forbid it", reason=str(error))


def _check_mark(path: Path, group: str, self_id: str) -> None:
    mark = path / NODE_FILE
    wanted = {"controllerDLegerGroup": group, "controllerDLegerSelfId": self_id}
    try:
        text = mark.read_text(encoding="utf-8")
    except FileNotFoundError:
        raft = path / RAFT_FOLDER
        if raft.is_dir() and any(raft.iterdir()):
            raise WrongFolder(
                f"{mark} is missing, but {raft} holds data: restore the file with"
                f" controllerDLegerGroup={group} and controllerDLegerSelfId={self_id} if the data is this"
                " node's, or move the folder away"
            ) from None
        write_atomically(mark, "".join(f"{name}={value}\n" for name, value in wanted.items()).encode())
        return
    except UnicodeDecodeError:
        raise WrongFolder(f"{mark} is not text: the folder is damaged or belongs to something else") from None
    try:
        found = from_properties(text, label=str(mark))
    except SettingsError as error:
        raise WrongFolder(f"{error}: the folder is damaged or belongs to something else") from None
    if found != wanted:
        raise WrongFolder(
            f"{path} holds the data of node {found.get('controllerDLegerSelfId')} of group"
            f" {found.get('controllerDLegerGroup')}, not of {self_id} of {group}: set controllerStorePath to"
            " this node's own folder, or correct controllerDLegerGroup and controllerDLegerSelfId"
        )
