"""The file of master epochs: which epoch begins where in the log (Java: `EpochFileCache`)."""

from __future__ import annotations

from typing import Final

import structlog

from brokerset_formats.epochs import EpochEntry, EpochHistory, decode_epoch_file, encode_epoch_file
from brokerset_formats.errors import FormatError
from brokerset_runtime.disk import Disk, replace_file

log = structlog.get_logger(__name__)

BACKUP_SUFFIX: Final = ".bak"
"""Java reads the file of this name when the first one is missing."""


class EpochsDamaged(Exception):
    """The epoch file and its backup cannot be read, or disagree with the log."""


class EpochFile:
    """Epochs of one log. `load` first; methods that touch files block and raise `OSError`."""

    def __init__(self, disk: Disk, name: str = "epochFileCheckpoint") -> None:
        self._disk = disk
        self.name = name
        self.history = EpochHistory()

    def load(self, log_end: int) -> None:
        """Read the file, else its backup. Raises `EpochsDamaged` if neither can be read though one is there.

        Epochs that begin behind `log_end` go: a crash of the machine took what they held.
        """
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
            kept = EpochHistory(tuple(e for e in history.entries if e.start_offset <= log_end))
            if kept != history:
                log.warning(
                    "epochs behind the end of the log are dropped",
                    log_end=log_end,
                    epochs=[e.epoch for e in history.entries[len(kept.entries) :]],
                )
            self.history = kept
            return
        if problems:
            raise EpochsDamaged(
                f"{'; '.join(problems)}; restore the file, or empty the folder to join as a new replica"
            )

    def append(self, epoch: int, start_offset: int) -> bool:
        """Begin an epoch at the end of the log; False if the log has passed it already.

        An epoch that is the last one already began earlier: nothing is written.
        """
        if epoch == self.history.last_epoch:
            return True
        history = self.history.append(epoch, start_offset)
        if history is None:
            return False
        if self.history.entries:
            replace_file(self._disk, self.name + BACKUP_SUFFIX, encode_epoch_file(self.history))
        replace_file(self._disk, self.name, encode_epoch_file(history))
        self.history = history
        return True

    def entries(self) -> tuple[EpochEntry, ...]:
        """All epochs, oldest first."""
        return self.history.entries
