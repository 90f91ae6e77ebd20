"""Taking back the end of a log, or all of it, so that a crash in between cannot leave half of it done.

What is to be removed is written to the file `removal` first. Whoever finds it when the store is opened
finishes what it says; a Java broker does not know the file, so it should not open a store that has one.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from brokerset_broker.store.checkpointing import CheckpointFile, lowered
from brokerset_broker.store.errors import StoreCorrupt
from brokerset_broker.store.segments import FILE_NAME, MappedFile, file_name
from brokerset_formats.checkpoints import StoreCheckpoint, SyncedOffsets
from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_runtime.files import sync_folder, write_atomically


@dataclass(frozen=True, slots=True)
class Removal:
    """What is to go: everything from `offset` on, or everything there is."""

    offset: int
    """Where the log ends afterwards."""

    first: int
    """Offset of the file with which the log begins; that one is emptied rather than deleted."""

    everything: bool = False
    """Queues, index and all of the log go; an empty log begins at `offset`, the start of a file."""

    def encode(self) -> bytes:
        """One line of text."""
        return f"{'begin' if self.everything else 'cut'} {self.offset} {self.first}\n".encode()


@dataclass(frozen=True, slots=True)
class StorePaths:
    """Where the files of a store are."""

    log: Path
    segment_bytes: int
    queues: Path
    index: Path


class RemovalFile:
    """The file `removal` in the folder of a store; it is there while a removal is not finished."""

    def __init__(self, root: Path) -> None:
        self._path = root / "removal"

    def load(self) -> Removal | None:
        """What the last process did not finish; StoreCorrupt if the file says nothing that makes sense."""
        try:
            words = self._path.read_text(errors="replace").split()
        except FileNotFoundError:
            return None
        if len(words) == 3 and words[0] in ("cut", "begin") and words[1].isdigit() and words[2].isdigit():
            return Removal(int(words[1]), int(words[2]), words[0] == "begin")
        raise StoreCorrupt(
            self._path,
            -1,
            "does not tell what is to be removed; have the replica replaced, or delete the file",
        )

    def write(self, removal: Removal) -> None:
        """Make sure that it will be done; blocks; raises OSError, and then it will not."""
        try:
            write_atomically(self._path, removal.encode())
        except OSError:
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()
            raise

    def remove(self) -> None:
        """It is done, and on the disk; blocks; raises OSError."""
        if self._path.exists():
            self._path.unlink()
            sync_folder(self._path.parent)


def finish_removal(
    removal: Removal, paths: StorePaths, checkpoint: CheckpointFile, *, again: bool = False
) -> None:
    """Change the files of the log and the checkpoint; done twice it does no harm. Blocks; raises OSError.

    `again`: an earlier attempt may have failed, so zeros that are read may not be on the disk.
    Queues and index still have what a truncation took from the log: that goes next, by recovery or in place.
    """
    if removal.everything:
        _start_empty(removal.offset, paths, checkpoint)
        return
    content = lowered(checkpoint.content, removal.offset)
    if content != checkpoint.content:
        checkpoint.write(content)
    last: MappedFile | None = None
    for path in sorted(_log_files(paths.log), reverse=True):
        start = int(path.name)
        if start >= removal.offset and start > removal.first:
            path.unlink()
        elif start + paths.segment_bytes > removal.offset:
            last = MappedFile(path, start, path.stat().st_size)
    if last is not None:
        begin = removal.offset - last.start
        if last.clear(begin, again=again):
            last.sync(begin, last.size)
    sync_folder(paths.log)


def _start_empty(offset: int, paths: StorePaths, checkpoint: CheckpointFile) -> None:
    for path in sorted(_log_files(paths.log), reverse=True):
        path.unlink()
    for folder in (paths.queues, paths.index):
        if folder.exists():
            shutil.rmtree(folder)
            sync_folder(folder.parent)
    paths.log.mkdir(parents=True, exist_ok=True)
    sync_folder(paths.log)
    MappedFile.create(paths.log / file_name(offset), offset, paths.segment_bytes, paths.segment_bytes)
    sync_folder(paths.log)
    checkpoint.write(StoreCheckpoint(confirm_phy_offset=offset, marks=SyncedOffsets(offset, offset, offset)))


def _log_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if FILE_NAME.fullmatch(path.name)]
