"""Recovers an opened store: find the end of the log, truncate, dispatch what is missing."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from itertools import count, islice
from pathlib import Path

import structlog

from brokerset_broker.store import mapping
from brokerset_broker.store.commit_log import CommitLog
from brokerset_broker.store.consume_queues import ConsumeQueues
from brokerset_broker.store.dispatch import Dispatcher
from brokerset_broker.store.errors import StoreCorrupt
from brokerset_broker.store.index import IndexService
from brokerset_broker.store.missing_units import TAIL_BYTES, put_missing_units
from brokerset_broker.store.plain_records import PlainRecords, put_runs, take_plain
from brokerset_broker.store.recovery import (
    SEARCH_CHUNK_BYTES,
    Verdict,
    first_record,
    judge_end,
    record_within,
    scan,
    start_after_clean_exit,
    start_after_crash,
)
from brokerset_broker.store.segments import MappedFile, file_name
from brokerset_formats.checkpoints import StoreCheckpoint
from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_formats.records import Blank, RecordHead, RecordProblem
from brokerset_runtime.files import sync_folder

log = structlog.get_logger(__name__)

DAMAGED_FOLDER = "commitlog.damaged"
"""Next to the log, not in it: what had to be truncated although whole records follow."""

PARTIAL_SUFFIX = ".partial"
"""Of a copy that is not complete; there is one at most."""

LOOK_BACK_BYTES = 64 * 1024 * 1024
"""After a crash, so much of the log that was surely on disk is read and checked again; takes about 0.2 s."""


NATIVE_RECORDS = 10_000
"""Plain records that the native core takes at once."""

RECORDS_IN_PYTHON = 400
"""Records that Python reads from the first on that is not plain, before the native core is asked again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryOptions:
    """How the store was left, and what may be done about it."""

    clean: bool
    """The last process closed the store in order (no file `abort`)."""
    sync_failed: bool = False
    """The last process may have seen a sync fail: the disk need not have what is read of any queue."""
    verify_crc: bool = True
    accept_damage: bool = False
    """Go on without what is behind a damage; it is kept in `commitlog.damaged`."""
    leave_damage: bool = False
    """Leave everything from a damage on where it is, for others may have it: see `LogRecovery.damage`."""


@dataclass(frozen=True, slots=True)
class LogDamage:
    """Something that was surely on the disk cannot be read any more; nothing of it was touched."""

    offset: int
    """Where the log ends now: behind its last whole record."""
    files_end: int
    """Behind the last file of the log."""
    problem: str
    """Which file, where, what is wrong, and what follows."""


@dataclass(frozen=True, slots=True)
class _LogEnd:
    offset: int
    store_timestamp: int
    problem: str


class LogRecovery:
    """One recovery. The log's files, the queues and the index are loaded, but do not agree yet."""

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueues,
        index: IndexService | None,
        dispatcher: Dispatcher,
        checkpoint: StoreCheckpoint,
        damaged_folder: Path,
        options: RecoveryOptions,
    ) -> None:
        self._log = log
        self._queues = queues
        self._index = index
        self._dispatcher = dispatcher
        self._checkpoint = checkpoint
        self._damaged_folder = damaged_folder
        self._options = options
        self.damage: LogDamage | None = None
        """What was left where it is, if that was asked for. Log, queues and index end before it."""

    def run(self, index_missing_from: int | None) -> None:
        """Make log, queues and index agree, and leave the log ready for writing.

        StoreCorrupt if something that was surely on disk is damaged, unless that is accepted or left.
        """
        marks = self._checkpoint.marks
        if self._options.clean and marks is not None and marks.dispatched_offset < marks.flushed_offset:
            missing = marks.dispatched_offset  # the index had no room until the end
            index_missing_from = missing if index_missing_from is None else min(missing, index_missing_from)
        if self._is_complete() and index_missing_from is None and marks is not None:
            self._log.begin_at(marks.flushed_offset, self._checkpoint.physic_msg_timestamp)
            put_missing_units(self._log, self._queues, self._dispatcher, self._tail_begin())
        else:
            self._recover(index_missing_from)
        self._queues.correct_min_offsets(self._log.min_offset)

    def _is_complete(self) -> bool:
        """Whether the store was closed by us, and nobody has written since: then there is nothing to read."""
        marks = self._checkpoint.marks
        if not self._options.clean or marks is None or marks.flushed_offset != marks.dispatched_offset:
            return False
        end = marks.flushed_offset
        file = self._log.files.find(end)
        if file is None:
            return bool(self._log.files.files) and end == self._log.files.end
        return not any(file.view[end - file.start : end - file.start + 8]) and self._queues.last_end <= end

    def _recover(self, index_missing_from: int | None) -> None:
        files = self._log.files
        begin = self._first_offset()
        dispatch_from = self._dispatch_from(begin)
        if not self._options.clean:
            self._queues.rebuild_from(dispatch_from, cache_wrong=self._options.sync_failed)
        if index_missing_from is not None:
            begin = max(files.start, min(begin, index_missing_from))
        index_from = dispatch_from if index_missing_from is None else min(dispatch_from, index_missing_from)
        end = self._scan(begin, dispatch_from, index_from)
        self._truncate(end)
        self._log.begin_at(end.offset, end.store_timestamp)
        log.info(
            "store recovered",
            clean=self._options.clean,
            read_from=begin,
            end=end.offset,
            stopped_by=end.problem,
        )

    def _tail_begin(self) -> int:
        """Where the last part of the log begins, with a whole record, that is compared with the queues."""
        offset = max(self._log.max_offset - TAIL_BYTES, self._log.files.start)
        file = self._log.files.find(offset)
        return _first_record_from(file, offset) if file is not None else offset

    def _first_offset(self) -> int:
        """Offset of the record to begin reading with."""
        files = self._log.files.files
        marks = self._checkpoint.marks
        if marks is not None and not self._options.clean:
            look_back = max(marks.dispatched_offset - LOOK_BACK_BYTES, self._log.files.start)
            file = self._log.files.find(look_back)
            if file is not None:
                return _first_record_from(file, look_back)
        firsts = [first_record(file.view, file.start) for file in files]
        if self._options.clean:
            return start_after_clean_exit(firsts, self._queues.last_end)
        return start_after_crash(firsts, self._checkpoint.min_timestamp)

    def _dispatch_from(self, begin: int) -> int:
        """Records at or behind this offset may lack their queue unit."""
        if self._options.clean:
            return max(begin, self._queues.last_end)
        marks = self._checkpoint.marks
        return begin if marks is None else max(begin, marks.dispatched_offset)

    def _scan(self, begin: int, dispatch_from: int, index_from: int) -> _LogEnd:
        """Read and dispatch records from `begin` up to where no whole record follows.

        Queues are left alone below `dispatch_from`: they may belong to a topic that was deleted since.
        """
        end, store_timestamp, problem = begin, 0, "no file"
        for file in self._log.files.files:
            if file.end <= begin:
                continue
            position = max(begin - file.start, 0)
            last: RecordHead | Blank | RecordProblem | None = None
            while last is None or isinstance(last, RecordHead):
                taken = self._take_plain(file, position, dispatch_from, index_from)
                if taken is not None:
                    position = taken.end
                    end = file.start + position
                    store_timestamp = max(store_timestamp, taken.store_timestamp)
                    continue
                records = scan(file.view, file.start, position, verify_crc=self._options.verify_crc)
                for last in islice(records, RECORDS_IN_PYTHON):
                    if isinstance(last, RecordHead):
                        end = last.offset + last.size
                        position = end - file.start
                        store_timestamp = max(store_timestamp, last.store_timestamp)
                        if last.offset >= dispatch_from:
                            self._dispatcher.put(last)
                        elif last.offset >= index_from:
                            self._dispatcher.put_index_of(last)
            if isinstance(last, RecordProblem):
                return _LogEnd(end, store_timestamp, "end of the log" if last.is_empty else last.reason)
            end, problem = file.end, "end of the last file"
        return _LogEnd(end, store_timestamp, problem)

    def _take_plain(
        self, file: MappedFile, position: int, dispatch_from: int, index_from: int
    ) -> PlainRecords | None:
        """Read, and put, what the native core can from `position` of a file on; None if that is nothing."""
        offset = file.start + position
        bounds = [bound for bound in (index_from, dispatch_from) if bound > offset]
        taken = take_plain(
            file,
            position,
            self._queues,
            stop=min([*bounds, file.end]) - file.start,
            limit=file.size,
            records_max=NATIVE_RECORDS,
            verify_crc=self._options.verify_crc,
            units=offset >= dispatch_from,
            index=offset >= index_from and self._dispatcher.has_index,
        )
        if taken is not None:
            put_runs(taken.runs)
            self._dispatcher.put_index_entries(taken.index_entries)
        return taken

    def _truncate(self, end: _LogEnd) -> None:
        """Remove everything behind the end, or refuse to."""
        following = self._record_behind(end.offset)
        verdict = judge_end(end.offset, following, self._checkpoint)
        if verdict is Verdict.DAMAGE and self._options.leave_damage and not self._options.accept_damage:
            self._leave(end, following)
            return
        if verdict is not Verdict.END or following is not None:
            self._keep_or_refuse(end, following, verdict)
        files = self._log.files
        for file in reversed(files.detach(end.offset)):
            file.unlink()
        if files.files and files.files[-1].end > end.offset:
            last = files.files[-1]
            again = not self._options.clean
            if last.clear(
                end.offset - last.start, again=again
            ):  # or old records could come back behind new ones
                last.sync(end.offset - last.start, last.size)
        self._truncate_derived(end)

    def _truncate_derived(self, end: _LogEnd) -> None:
        self._queues.truncate(end.offset)
        if self._index is not None and self._index.end_offset >= end.offset:
            self._index.truncate(end.offset)

    def _leave(self, end: _LogEnd, following: RecordHead | None) -> None:
        """Let the log end before its damage, and keep everything behind it."""
        file = self._log.files.find(end.offset)
        path = file.path if file is not None else self._log.files.folder / file_name(end.offset)
        position = end.offset - (file.start if file is not None else 0)
        self.damage = LogDamage(
            end.offset,
            self._log.files.end,
            f"{path} at byte {position} (offset {end.offset} of the log): {end.problem}, though everything up"
            f" to offset {self._surely_flushed()} was on disk"
            + (f"; whole records follow from offset {following.offset}" if following is not None else ""),
        )
        self._truncate_derived(end)

    def _record_behind(self, end: int) -> RecordHead | None:
        """A whole record of this log somewhere behind `end`."""
        for file in self._log.files.files:
            if file.end <= end:
                continue
            begin = max(end - file.start, 0)
            for data_begin, data_end in mapping.data_ranges(file.path, begin, file.size):
                found = record_within(file.view, file.start, data_begin, data_end)
                if found is not None:
                    return found
        return None

    def _keep_or_refuse(self, end: _LogEnd, following: RecordHead | None, verdict: Verdict) -> None:
        file = self._log.files.find(end.offset)
        path = file.path if file is not None else self._log.files.folder / file_name(end.offset)
        next_offset = following.offset if following is not None else None
        log.error(
            "the commit log is damaged",
            offset=end.offset,
            reason=end.problem,
            next_whole_record=next_offset,
            was_on_disk=verdict is Verdict.DAMAGE,
            file=str(path),
        )
        kept = keep_behind(self._log.files.files, end.offset, self._damaged_folder)
        if verdict is Verdict.DAMAGE and not self._options.accept_damage:
            raise StoreCorrupt(
                path,
                end.offset - (file.start if file is not None else 0),
                f"{end.problem}, though everything up to offset {self._surely_flushed()} was on disk"
                + (f"; whole records follow from offset {next_offset}" if next_offset is not None else "")
                + f". A copy of what follows is in {kept}. Get the store from a replica or a backup, or "
                "start once with acceptDamagedStore=true to go on without the messages behind the damage",
            )

    def _surely_flushed(self) -> str:
        marks = self._checkpoint.marks
        return str(marks.flushed_offset) if marks is not None else "of later messages"


def keep_behind(
    files: Sequence[MappedFile], end: int, folder: Path, *, until: int | None = None, replace: bool = True
) -> Path:
    """Copy what `files` of the log have behind `end` to a file of its own, holes left out; returns the file.

    `until` is where the copy ends at the latest. Unless it may `replace` an earlier copy from the same place,
    it gets a name of its own. Blocks; raises OSError, at once when there is no room for all of it, and leaves
    nothing behind then.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for left in sorted(folder.glob("*" + PARTIAL_SUFFIX)):  # of a process that died
        left.unlink()
    target = folder / file_name(end)
    for number in count(1):
        if replace or not target.exists():
            break
        target = folder / f"{file_name(end)}.{number}"
    last = files[-1].end if files else end
    if until is not None:
        last = min(last, until)
    parts = [
        (file, max(end, file.start), min(file.end, last))
        for file in files
        if file.end > end and file.start < last
    ]
    _check_room(folder, parts)
    partial = target.with_name(target.name + PARTIAL_SUFFIX)
    try:
        with partial.open("wb") as stream:
            for file, begin, stop in parts:
                _copy_data(file, begin, stop, end, stream.fileno())
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(target)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    sync_folder(folder)
    return target


def _check_room(folder: Path, parts: Sequence[tuple[MappedFile, int, int]]) -> None:
    """Raise OSError if a copy does not fit on the disk: who tries again and again must not fill it."""
    size = 0
    for file, begin, stop in parts:
        ranges = mapping.data_ranges(file.path, begin - file.start, stop - file.start)
        size += sum(data_end - data_begin for data_begin, data_end in ranges)
    status = os.statvfs(folder)
    if size > status.f_bavail * status.f_frsize:
        raise OSError(errno.ENOSPC, f"no room for a copy of {size} bytes of the log", str(folder))


def _first_record_from(file: MappedFile, offset: int) -> int:
    """Offset of the first whole record of a file at or behind `offset`."""
    if offset <= file.start:
        return file.start
    begin = offset - file.start
    found = record_within(file.view, file.start, begin, file.size)
    return found.offset if found is not None else file.start


def _copy_data(file: MappedFile, begin: int, end: int, base: int, descriptor: int) -> None:
    """Write the parts of a file that are no holes to the same distances from `base`."""
    for data_begin, data_end in mapping.data_ranges(file.path, begin - file.start, end - file.start):
        for position in range(data_begin, data_end, SEARCH_CHUNK_BYTES):
            part = file.view[position : min(position + SEARCH_CHUNK_BYTES, data_end)]
            os.pwrite(descriptor, part, file.start + position - base)
