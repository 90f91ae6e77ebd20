"""Open files of the log for `sendfile`: opened when a slave needs one, closed when nobody does any more."""

from __future__ import annotations

import os
from weakref import WeakValueDictionary

from brokerset_broker.store.commit_log import CommitLog
from brokerset_broker.store.replica_log import LogSource
from brokerset_broker.store.segments import MappedFile


class _OpenFile:
    """A descriptor that is closed with the last reference to this object."""

    __slots__ = ("__weakref__", "descriptor", "file")

    def __init__(self, file: MappedFile) -> None:
        self.file = file
        self.descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        os.close(self.descriptor)


class LogSources:
    """Parts of the log as open files. The file used last stays open, others as long as someone holds them."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._open: WeakValueDictionary[int, _OpenFile] = WeakValueDictionary()
        self._latest: _OpenFile | None = None

    def source(self, file: MappedFile, position: int, size: int) -> LogSource:
        """A part of a file of the log; OSError if the file cannot be opened."""
        opened = self._open.get(file.start)
        if opened is None or opened.file is not file:
            opened = self._open[file.start] = _OpenFile(file)
        self._latest = opened
        return LogSource(opened.descriptor, position, size, opened)

    def forget_deleted(self) -> None:
        """Let go of the files that the log does not have any more."""
        if self._latest is not None and self._latest.file not in self._log.files.files:
            self._latest = None

    def close(self) -> None:
        """Let go of all files; a descriptor that is in use stays open until its user lets go."""
        self._latest = None
