"""The file of master epochs: which epoch begins where in the log (Java: `EpochFileCache`)."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Final

import structlog

from brokerset_formats.epochs import EpochEntry, EpochHistory, decode_epoch_file, encode_epoch_file
from brokerset_formats.errors import FormatError
from brokerset_runtime.disk import Disk, replace_file

log = structlog.get_logger(__name__)

BACKUP_SUFFIX: Final = ".bak"
"""Java reads the file of this name when the first one is missing."""


INCOMPLETE_SUFFIX: Final = ".incomplete"
"""Of the file that says that the log lacks something it had; Java does not know it."""

INCOMPLETE_BYTES_MAX: Final = 4_096
"""Of that file's text; what is longer is truncated."""


class EpochsDamaged(Exception):
    """The epoch file and its backup cannot be read, or disagree with the log."""


class EpochFile:
    """Epochs of one log. `load` first; methods that touch files block, in any thread, and raise `OSError`."""

    def __init__(self, disk: Disk, name: str = "epochFileCheckpoint") -> None:
        self._disk = disk
        self.name = name
        self.history = EpochHistory()
        self.highest_read = 0
        """The highest epoch that the file had when it was loaded, 0 without any: the group has had it,
        whatever is left of it in the log."""
        self._changing = threading.RLock()
        self._is_whole = False
        """Whether the file, and not only its backup, is known to hold `history`."""
        self.incomplete = ""
        """What was wrong with the log when it lost something that it may have acknowledged, and has not got
        again from a master since; empty when it has all. Such a log must not lead."""
        self._incomplete_is_written = True
        """Whether that is on the disk: a disk that did not take it is asked again."""

    def load(self, log_end: int) -> None:
        """Read the file, else its backup. Raises `EpochsDamaged` if neither can be read though one is there.

        Epochs that begin behind `log_end` go: a crash of the machine took what they held.
        """
        self._incomplete_is_written = True
        try:
            text = self._disk.read(self.name + INCOMPLETE_SUFFIX).decode(errors="replace").strip()
            self.incomplete = text or "the log was damaged"
        except FileNotFoundError:
            self.incomplete = ""
        problems: list[str] = []
        for name in (self.name, self.name + BACKUP_SUFFIX):
            try:
                history = decode_epoch_file(self._disk.read(name))
            except FileNotFoundError:
                continue
            except FormatError as error:
                problems.append(f"{name}: {error}")
                continue
            if problems:
                log.warning("the epoch file is read from its backup", problems=problems)
            self.highest_read = max((entry.epoch for entry in history.entries), default=0)
            kept = EpochHistory(tuple(e for e in history.entries if e.start_offset <= log_end))
            if kept != history:
                log.warning(
                    "epochs behind the end of the log are dropped",
                    log_end=log_end,
                    epochs=[e.epoch for e in history.entries[len(kept.entries) :]],
                )
            self.history = kept
            self._is_whole = name == self.name and kept == history
            return
        if problems:
            raise EpochsDamaged(
                f"{'; '.join(problems)}; restore the file, or empty the folder to join as a new replica"
            )

    def append(self, epoch: int, start_offset: int) -> bool:
        """Begin an epoch at the end of the log; False if the log has passed it already.

        An epoch that is the last one already began earlier: nothing is written.
        """
        with self._changing:
            if epoch == self.history.last_epoch:
                return True
            history = self.history.append(epoch, start_offset)
            if history is None:
                return False
            self._write(history)
            return True

    def begin_at(self, epoch: int, *, log_begin: int, log_end: int) -> bool:
        """Begin an epoch as its master; False if the log has passed it already.

        Without any epoch the log is older than the group: all of it belongs to its first master's epoch, so
        that replicas know whose it is.
        """
        return self.append(epoch, log_end if self.history.entries else log_begin)

    def replace(self, history: EpochHistory) -> None:
        """Have these epochs from now on: after a truncation, and as a master's handshake told them.

        An empty history deletes the backup first, so that no reader falls back to epochs that are gone.
        """
        with self._changing:
            if history == self.history:
                return
            if not history.entries:
                self._disk.delete(self.name + BACKUP_SUFFIX)
                replace_file(self._disk, self.name, encode_epoch_file(history))
                self.history, self._is_whole = history, True
                return
            self._write(history)

    def extend(self, entries: Iterable[EpochEntry]) -> None:
        """Append epochs that a master told, all at once; those that are not newer are left out."""
        with self._changing:
            history = self.history
            for entry in entries:
                history = history.append(entry.epoch, entry.start_offset) or history
            self.replace(history)

    def forget_before(self, offset: int) -> None:
        """Forget epochs of which the log has nothing any more: it begins at `offset`."""
        with self._changing:
            self.replace(self.history.truncate_before(offset))

    def set_incomplete(self, reason: str) -> None:
        """Write down that the log lacks something, before it is truncated; empty when it is whole."""
        with self._changing:
            if reason == self.incomplete and self._incomplete_is_written:
                return
            name = self.name + INCOMPLETE_SUFFIX
            if reason:
                self.incomplete, self._incomplete_is_written = reason, False
                replace_file(self._disk, name, reason.encode()[:INCOMPLETE_BYTES_MAX])
                self._incomplete_is_written = True
            else:
                self._disk.delete(name)
                self._disk.sync_folder()
                self.incomplete, self._incomplete_is_written = "", True

    def _write(self, history: EpochHistory) -> None:
        """The file becomes the backup, and the new one takes its place: two syncs, a change of role waits for
        them. A crash in between leaves the backup alone, and that is what is in force then."""
        disk, temporary = self._disk, self.name + ".tmp"
        disk.write(temporary, encode_epoch_file(history))
        disk.sync(temporary)
        was_whole, self._is_whole = self._is_whole, False
        if was_whole and self.history.entries:
            disk.rename(self.name, self.name + BACKUP_SUFFIX)
        disk.rename(temporary, self.name)
        disk.sync_folder()
        self.history, self._is_whole = history, True

    def entries(self) -> tuple[EpochEntry, ...]:
        """All epochs, oldest first."""
        return self.history.entries
