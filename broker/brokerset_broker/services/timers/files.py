"""The files of timer messages on the disk: `timerwheel`, `timerlog/`, `config/timercheck`.

All blocks that are written through a mapping are reserved before, so that a full disk is an error and never a
SIGBUS. What is here can be made again from the wheel's topic; only the checkpoint has something of its own.
"""

from __future__ import annotations

import contextlib
import struct
import threading
from pathlib import Path
from typing import Final

import structlog

from brokerset_broker.store.errors import StoreCorrupt
from brokerset_broker.store.segments import MappedFile, SegmentSequence
from brokerset_broker.timers.progress import Progress
from brokerset_broker.timers.settings import TimerSettings
from brokerset_broker.timers.timer_log import TimerLog
from brokerset_broker.timers.wheel import TimerWheel
from brokerset_formats.errors import FormatError
from brokerset_formats.timer_files import (
    TIMER_UNIT_SIZE,
    Buffer,
    TimerCheckpoint,
    decode_timer_checkpoint,
    decode_timer_unit,
    last_unit_position,
)
from brokerset_runtime.files import write_atomically

log = structlog.get_logger(__name__)

WHEEL_FILE: Final = "timerwheel"
LOG_FOLDER: Final = "timerlog"
CHECKPOINT_FILE: Final = "timercheck"

RESERVE_STEP_BYTES: Final = 1024 * 1024
"""Blocks of the timer log are taken in such steps: 20,164 messages."""

_PRECISION: Final = struct.Struct(">I")
"""Stands before the progress in our part of the checkpoint: a wheel of another precision means nothing."""


class TimerFiles:
    """Life: `load`, `open` when there is something to keep, `close`."""

    def __init__(self, root: Path, settings: TimerSettings, log_file_bytes: int) -> None:
        """Touches nothing. `root` is the folder of the store."""
        self._root = root
        self._settings = settings
        self._segments = SegmentSequence(root / LOG_FOLDER, log_file_bytes, RESERVE_STEP_BYTES)
        self._wheel_file: MappedFile | None = None
        self._checkpoint_path = root / "config" / CHECKPOINT_FILE
        self.checkpoint = TimerCheckpoint()
        """What was on the disk when it was loaded, or was written since."""
        self.log = TimerLog(log_file_bytes, self._file_at)
        self._wheel: TimerWheel | None = None
        self._writing = threading.Lock()
        self.is_new = True
        """Whether there was no wheel, or none that is of use: all messages must be taken again."""

    @property
    def wheel(self) -> TimerWheel:
        """The wheel, once open."""
        assert self._wheel is not None, "the files are not open"
        return self._wheel

    # -- the checkpoint -----------------------------------------------------------------------------------

    def load(self) -> bool:
        """Read the checkpoint; whether any file of timers is there. Blocks; raises OSError."""
        has_wheel = (self._root / WHEEL_FILE).exists()
        try:
            self.checkpoint = decode_timer_checkpoint(self._checkpoint_path.read_bytes())
        except FileNotFoundError:
            return has_wheel
        except FormatError as error:
            log.error(
                "the checkpoint of timer messages cannot be read: what was due lately may come again",
                path=str(self._checkpoint_path),
                reason=error.reason,
            )
            return has_wheel
        return True

    def saved_progress(self) -> Progress | None:
        """The progress in our part of the checkpoint; `None` if a Java broker wrote the file last."""
        own = self.checkpoint.own
        if not own:
            return None
        try:
            return Progress.decode(own[_PRECISION.size :])
        except FormatError as error:
            log.error("the progress of timer messages cannot be read", reason=error.reason)
            return None

    def write_checkpoint(self, checkpoint: TimerCheckpoint, progress: Progress) -> None:
        """Replace `config/timercheck`. Blocks; raises OSError."""
        own = _PRECISION.pack(self._settings.slot_ms) + progress.encode()
        self.checkpoint = TimerCheckpoint(
            checkpoint.last_read_ms,
            checkpoint.log_flush_position,
            checkpoint.queue_offset,
            checkpoint.master_queue_offset,
            checkpoint.version,
            own,
        )
        with self._writing:  # a task that was cancelled leaves its thread behind
            self._checkpoint_path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._checkpoint_path, self.checkpoint.encode())

    # -- wheel and log ------------------------------------------------------------------------------------

    def open(self) -> None:
        """Map wheel and log, and make them if they are missing. Blocks; raises OSError.

        Files of another size, or of another precision, are made again from scratch.
        """
        if not self._fits():
            log.warning("wheel and log of timer messages are made again from the messages")
            self._remove()
        try:
            self._segments.load()
        except StoreCorrupt as error:
            log.error("the timer log is made again from the messages", reason=str(error))
            self._remove()
        path = self._root / WHEEL_FILE
        size = self._settings.wheel_bytes
        self.is_new = not path.exists() or not self._segments.files
        if self.is_new:
            self._remove()
            self._wheel_file = MappedFile.create(path, 0, size, size)
        else:
            self._wheel_file = MappedFile(path, 0, size)
            self._wheel_file.reserve(size, size)
        self.log.begin = self._segments.start
        self._wheel = TimerWheel(memoryview(self._wheel_file.map), self._settings)

    def start_over(self) -> None:
        """The same without what is there."""
        self._wheel = self._wheel_file = None
        self._remove()
        self.open()

    def _fits(self) -> bool:
        path = self._root / WHEEL_FILE
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size != self._settings.wheel_bytes:
                return False
        own = self.checkpoint.own
        return not own or _PRECISION.unpack_from(own)[0] == self._settings.slot_ms

    def is_of_another_precision(self) -> bool:
        """Whether a Java broker wrote the wheel with another one: then it does not know the newest unit.

        Raises FormatError if the log is damaged.
        """
        if self.checkpoint.own:
            return False
        start = max(self.log.begin, self.log.place(self.checkpoint.log_flush_position).position)
        newest = self.log.before(self.log.valid_end(start))
        if newest is None:
            return False
        slot_ms = self.log.unit(newest).slot_ms
        return self.wheel.last_position(slot_ms) < newest and not self.wheel.is_over(slot_ms)

    def _remove(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            (self._root / WHEEL_FILE).unlink()
        self._segments.files.clear()
        folder = self._root / LOG_FOLDER
        for file in sorted(folder.glob("*")) if folder.is_dir() else []:
            if file.is_file():
                file.unlink()

    def _file_at(self, start: int) -> Buffer | None:
        file = self._segments.find(start)
        return None if file is None or file.start != start else file.view

    def end_file(self, position: int) -> MappedFile | None:
        """The file in which the log ends at `position`; None if it has to be made."""
        return self._segments.find(position)

    def write(self, position: int, data: bytes) -> None:
        """Write into the log at `position`, its end or behind it. OSError if the disk is full."""
        segments = self._segments
        if not segments.files:
            segments.add(position - position % self.log.file_bytes)
            self.log.begin = segments.start
        while segments.end <= position:
            segments.add()
        file = segments.find(position)
        assert file is not None, "the log has no gaps"
        inside = position - file.start
        if inside + len(data) > file.reserved:
            segments.reserve(file, inside + len(data))
        file.map[inside : inside + len(data)] = data

    def truncate(self, end: int, old_end: int | None = None) -> None:
        """End the log at `end`, with zeros behind it up to `old_end`, where it ended so far.

        Without `old_end` nobody knows what is behind `end`; then this reads all of it, and blocks.
        """
        self._segments.truncate(end)
        file = self._segments.find(end)
        if file is None:
            return
        begin = end - file.start
        if old_end is None:
            file.clear(begin)
        else:
            stop = max(begin, min(old_end - file.start, file.size))
            file.map[begin:stop] = bytes(stop - begin)

    def remove_before(self, record_offset: int, end: int) -> None:
        """Delete files of the log, but not that of its `end`, whose messages all lie before an offset of the
        commit log."""
        files = self._segments.files
        count = 0
        for file in files[:-1]:
            if file.end > end or not self._is_before(file, record_offset):
                break
            count += 1
        if count:
            self._segments.remove_first(count)
            self.log.begin = self._segments.start
            log.info("timer log files are deleted", count=count, begin=self.log.begin)

    def _is_before(self, file: MappedFile, record_offset: int) -> bool:
        try:
            last = decode_timer_unit(file.view, last_unit_position(file.size))
        except FormatError:
            return False
        return last.offset < record_offset

    def sync(self, begin: int, end: int) -> None:
        """Bring the log from `begin` to `end`, then the wheel, to the disk. Blocks; raises OSError."""
        self._segments.sync(begin, end + TIMER_UNIT_SIZE)
        if self._wheel_file is not None:
            self._wheel_file.sync(0, self._wheel_file.size)
