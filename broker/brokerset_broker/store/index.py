"""The key index of a store: which messages have a given key or client-made id.

Index files are derived data: whatever is missing can be put again from the commit log. One thread puts,
queries, truncates and closes; `flush` may run in another at the same time.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock

from brokerset_broker.store.errors import PutStatus, StoreCorrupt, StoreRefused
from brokerset_formats.errors import FormatError
from brokerset_formats.hashing import KeyHasher, index_hash
from brokerset_formats.index_file import SLOTS_DEFAULT, UNITS_DEFAULT, IndexTable, file_size
from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_runtime.clock import Clock

QUERY_COUNT_MAX = 64
"""Messages that one query can find, whatever it asks for (`maxMsgsNumBatch` of Java)."""

RESERVE_UNITS = 65_536
"""Disk blocks of a file are taken in steps of so many units (1.3 MB), those of the slots with the first.

Writing to a hole of a mapped file on a full disk would end the process (SIGBUS).
"""

_NAME_DIGITS = 17


@dataclass(frozen=True, slots=True)
class IndexAnswer:
    """Offsets of messages that may have the key, newest first; then how far the index goes (ms, offset)."""

    offsets: list[int]
    last_timestamp: int
    last_offset: int


class IndexService:
    """All index files of a store, in the folder `index`.

    Files have a fixed size and are sparse behind what is in use. A new one is begun when the last is full;
    files are deleted as a whole when the commit log no longer has their messages.
    """

    def __init__(
        self, folder: Path, *, clock: Clock, hash_slots: int = SLOTS_DEFAULT, indexes_max: int = UNITS_DEFAULT
    ) -> None:
        self.folder = folder
        self._slots = hash_slots
        self._units = indexes_max
        self._clock = clock
        self._files: list[_IndexFile] = []
        self.table: IndexTable | None = None
        """The file that is written; None before the first put."""
        self._hash = KeyHasher().hash
        self._descriptors = Lock()  # between flush, which duplicates descriptors, and close
        self._flushed_timestamp = 0

    def load(self, index_msg_timestamp: int | None = None) -> int | None:
        """Open all files; returns the offset from which messages have to be put again, if any are missing.

        After an abnormal exit `index_msg_timestamp` is the checkpoint's: newer files may have lost pages, so
        they are deleted, and recovery puts their messages again. None after a clean exit. StoreCorrupt for a
        file with another size than the settings say, or an impossible header.
        """
        if not self.folder.is_dir():
            return None
        missing_from: int | None = None
        for path in sorted(entry for entry in self.folder.iterdir() if entry.is_file()):
            file = _IndexFile.open(path, self._slots, self._units)
            if index_msg_timestamp is not None and file.table.end_timestamp > index_msg_timestamp:
                start = file.table.begin_offset
                missing_from = start if missing_from is None else min(start, missing_from)
                file.delete()
                continue
            self._files.append(file)
            self.table = file.table
        if self._files:
            self._flushed_timestamp = self._files[-1].table.end_timestamp
        return missing_from

    @property
    def end_offset(self) -> int:
        """Offset of the newest message put; messages before it are not put again. 0 if there is none."""
        return self.table.end_offset if self.table is not None else 0

    @property
    def flushed_timestamp(self) -> int:
        """Store time (ms) up to which the files are on disk: the checkpoint's indexMsgTimestamp."""
        return self._flushed_timestamp

    @property
    def paths(self) -> list[Path]:
        """The files, oldest first."""
        return [file.path for file in self._files]

    def put_keys(
        self, topic: str, uniq_key: bytes | None, keys: bytes | None, offset: int, store_timestamp: int
    ) -> None:
        """Index one message under its client-made id and each of its keys (`keys` are separated by spaces).

        Messages before `end_offset` are skipped, so a log can be dispatched again. StoreRefused if a new file
        is needed and cannot be made; nothing is lost then, the same call works once there is room.
        """
        table = self.table
        if table is not None and offset < table.end_offset:
            return
        if uniq_key:
            if table is None or table.next_unit >= table.room:
                table = self._make_room()
            table.put(self._hash(topic, uniq_key), offset, store_timestamp)
        if keys:
            for key in keys.split(b" "):
                if key:
                    if table is None or table.next_unit >= table.room:
                        table = self._make_room()
                    table.put(self._hash(topic, key), offset, store_timestamp)
        if table is not None:
            table.write_header()

    def put_batch(
        self, topic: str, messages: Sequence[tuple[bytes | None, bytes | None, int]], store_timestamp: int
    ) -> None:
        """Index several neighbours of the log, each (client-made id, keys, offset), at once; see `put_keys`.

        StoreRefused as there; then some of the first of them may be in the index, and the same call works
        later.
        """
        table = self.table
        end_offset = table.end_offset if table is not None else -1
        key_hash = self._hash
        entries: list[tuple[int, int]] = []
        for uniq_key, keys, offset in messages:
            if offset < end_offset:
                continue
            if uniq_key:
                entries.append((key_hash(topic, uniq_key), offset))
            if keys:
                entries += [(key_hash(topic, key), offset) for key in keys.split(b" ") if key]
        if not entries:
            return
        if table is not None and table.next_unit + len(entries) <= table.room:
            table.put_many(entries, store_timestamp)
            table.write_header()
            return
        for entry_hash, offset in entries:
            table = self.table
            if table is None or table.next_unit >= table.room:
                table = self._make_room()
            table.put(entry_hash, offset, store_timestamp)
            table.write_header()

    def put_run(self, messages: Sequence[tuple[str, bytes | None, bytes | None, int, int]]) -> None:
        """Index neighbours of the log: topic, client-made id, keys, offset, store time; see `put_keys`.

        What has one second in the index goes in at once. StoreRefused as there; then some of the first may be
        in the index, and the same call works later.
        """
        done = 0
        while done < len(messages):
            done = self._put_second(messages, done)

    def _put_second(
        self, messages: Sequence[tuple[str, bytes | None, bytes | None, int, int]], first: int
    ) -> int:
        """Put `messages` from `first` on that have one second in the last file; returns where to go on."""
        table = self.table
        if table is None or table.empty:  # the first one gives its time to the file
            self.put_keys(*messages[first])
            return first + 1
        key_hash, end_offset = self._hash, table.end_offset
        newest_ms = messages[first][4]
        begin_ms = newest_ms - max(newest_ms - table.begin_timestamp, 0) % 1000
        limit_ms = begin_ms + 1000
        entries: list[tuple[int, int]] = []
        end = first
        for topic, uniq_key, keys, offset, store_timestamp in messages if not first else messages[first:]:
            if not begin_ms <= store_timestamp < limit_ms:
                break
            newest_ms = store_timestamp
            end += 1
            if offset < end_offset:
                continue
            if uniq_key:
                entries.append((key_hash(topic, uniq_key), offset))
            if keys:
                entries += [(key_hash(topic, key), offset) for key in keys.split(b" ") if key]
        if table.next_unit + len(entries) > table.room:
            for message in messages[first:end]:
                self.put_keys(*message)
        elif entries:
            table.put_many(entries, newest_ms)
            table.write_header()
        return end

    def put_entries(self, entries: bytes) -> None:
        """Put packed `index_file.ENTRY` of neighbours of the log, by the native core; see `put_keys`.

        StoreRefused as there; then some of the first may be in the index, and the same call works later.
        """
        table, done = self.table, 0
        while True:
            if table is not None:
                done = table.put_entries(entries, done, table.room)
            if done >= len(entries):
                return
            table = self._make_room()

    def query(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> IndexAnswer:
        """Offsets of messages whose key has the same hash; the caller reads them and compares the keys."""
        count_max = min(max_count, QUERY_COUNT_MAX)
        key_hash = index_hash(f"{topic}#{key}")
        found: dict[int, None] = {}  # a message dispatched twice is there twice
        for file in reversed(self._files):
            table = file.table
            if len(found) >= count_max:
                break
            if table.covers(begin_ms, end_ms):
                found.update(dict.fromkeys(table.query(key_hash, count_max, begin_ms, end_ms)))
            if not table.empty and table.begin_timestamp < begin_ms:
                break
        last = self.table
        return IndexAnswer(
            list(found)[: max(count_max, 0)],
            last.end_timestamp if last is not None else 0,
            last.end_offset if last is not None else 0,
        )

    def delete_before(self, min_offset: int) -> int:
        """Delete files, never the last, with messages before `min_offset` only; returns how many."""
        kept = [file for file in self._files[:-1] if file.table.end_offset >= min_offset] + self._files[-1:]
        expired = [file for file in self._files if file not in kept]
        self._files = kept
        for file in expired:
            self._delete(file)
        return len(expired)

    def truncate(self, offset: int) -> None:
        """Forget messages that begin at `offset` or later: the commit log was truncated there."""
        while self._files and self._files[-1].table.end_offset >= offset:
            file = self._files[-1]
            try:
                file.table.truncate(offset)
            except FormatError as error:
                raise StoreCorrupt(file.path, error.position, error.reason) from error
            file.dirty = True
            if not file.table.empty:
                break
            self._files.pop()
            self._delete(file)
        self.table = self._files[-1].table if self._files else None
        if self.table is not None:
            self.table.room = 0
        newest = self.table.end_timestamp if self.table is not None else 0
        self._flushed_timestamp = min(self._flushed_timestamp, newest)

    def rebuild_from(self, offset: int) -> int | None:
        """Take back what was put from `offset` on, so that each page it touched is written again.

        Returns where messages have to be put again from if that is earlier: a damaged file goes as a whole.
        """
        missing_from: int | None = None
        while self.end_offset >= offset and self._files:
            try:
                self.truncate(offset)
                break
            except StoreCorrupt:
                file = self._files.pop()
                missing_from = file.table.begin_offset
                self._delete(file)
                self.table = self._files[-1].table if self._files else None
        return missing_from

    def forget_all(self) -> None:
        """Let go of all files; they are deleted elsewhere."""
        files, self._files, self.table = self._files, [], None
        self._flushed_timestamp = 0
        with self._descriptors:
            for file in files:
                file.close()

    def flush(self) -> None:
        """Write everything put before this call to disk. Takes long: call it in a thread."""
        with self._descriptors:
            dirty = [(file, os.dup(file.descriptor)) for file in self._files if file.changed()]
            timestamp = self._files[-1].table.end_timestamp if self._files else self._flushed_timestamp
        try:
            for _, descriptor in dirty:
                os.fsync(
                    descriptor
                )  # also writes mapped pages; unlike msync of mmap, it lets other threads run
        except OSError:
            for file, _ in dirty:
                file.dirty = True
            raise
        finally:
            for _, descriptor in dirty:
                os.close(descriptor)
        self._flushed_timestamp = max(self._flushed_timestamp, timestamp)

    def close(self) -> None:
        """Flush and unmap all files."""
        self.flush()
        files, self._files, self.table = self._files, [], None
        with self._descriptors:
            for file in files:
                file.close()

    def _delete(self, file: _IndexFile) -> None:
        with self._descriptors:
            file.delete()

    def _make_room(self) -> IndexTable:
        """Make sure that the last file, or a new one, has disk blocks for the next unit."""
        if self.table is None or self.table.full:
            return self._add_file()
        file = self._files[-1]
        try:
            file.table.room = file.reserve()
        except OSError as error:
            reason = f"no room for index file {file.path}: {error.strerror}; free some disk space"
            raise StoreRefused(PutStatus.SERVICE_NOT_AVAILABLE, reason) from error
        return file.table

    def _add_file(self) -> IndexTable:
        last = self.table
        path = self.folder / self._next_name()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = _IndexFile.create(path, self._slots, self._units)
            room = self._first_room(file)
        except OSError as error:
            reason = f"cannot create index file {path}: {error}; make room or repair the disk"
            raise StoreRefused(PutStatus.SERVICE_NOT_AVAILABLE, reason) from error
        if last is not None:
            last.write_header()
            file.table.continue_from(last.end_timestamp, last.end_offset)
        self._files.append(file)
        self.table = file.table
        file.table.room = room
        return file.table

    def _first_room(self, file: _IndexFile) -> int:
        """Give a new file its first blocks, before anything is written to it. On OSError it is removed."""
        try:
            return file.reserve()
        except OSError:
            self._delete(file)
            raise

    def _next_name(self) -> str:
        """The local time with 17 digits; one more than the last file's where that is not later."""
        now_ms = self._clock.now_ms()
        local = datetime.fromtimestamp(now_ms // 1000, tz=UTC).astimezone()
        name = f"{local:%Y%m%d%H%M%S}{now_ms % 1000:03d}"
        last = self._files[-1].path.name if self._files else ""
        if last.isdigit() and name <= last:  # the clock went back, for instance by an hour in autumn
            return f"{int(last) + 1:0{_NAME_DIGITS}d}"
        return name


class _IndexFile:
    """One mapped file. The table writes to the map; the descriptor is for fsync."""

    __slots__ = (
        "_flushed_unit",
        "_map",
        "_reserved",
        "_slots",
        "_units",
        "descriptor",
        "dirty",
        "path",
        "table",
    )

    def __init__(self, path: Path, descriptor: int, slots: int, units: int) -> None:
        self.path = path
        self.descriptor = descriptor
        self._slots = slots
        self._units = units
        self._reserved = 0
        self._map = mmap.mmap(descriptor, file_size(slots, units))
        self._map.madvise(mmap.MADV_RANDOM)  # slots are: else each page comes with megabytes of neighbours
        self.table = IndexTable(self._map, slots, units)
        self.dirty = False
        self._flushed_unit = self.table.next_unit

    @classmethod
    def create(cls, path: Path, slots: int, units: int) -> _IndexFile:
        """A new file, sparse and full of zeros. On OSError no file is left."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(descriptor, file_size(slots, units))
            return cls(path, descriptor, slots, units)
        except OSError:
            os.close(descriptor)
            path.unlink()
            raise

    @classmethod
    def open(cls, path: Path, slots: int, units: int) -> _IndexFile:
        """An existing file; a file without bytes (the process died while it was made) is made again."""
        wanted = file_size(slots, units)
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            if size == 0:
                os.ftruncate(descriptor, wanted)
            elif size != wanted:
                advice = "restore maxHashSlotNum and maxIndexNum, or remove the folder to have it built again"
                raise StoreCorrupt(path, -1, f"{size} bytes instead of {wanted}: {advice}")
            file = cls(path, descriptor, slots, units)
            file.dirty = True  # a process that was killed may have left pages that no disk has yet
            return file
        except FormatError as error:
            os.close(descriptor)
            raise StoreCorrupt(path, error.position, error.reason) from error
        except BaseException:
            os.close(descriptor)
            raise

    def reserve(self) -> int:
        """Take disk blocks for the next units; returns the number below which they may be put. OSError."""
        room = min(self.table.next_unit + RESERVE_UNITS, self._units)
        end = file_size(self._slots, room)
        if end > self._reserved:
            os.posix_fallocate(self.descriptor, self._reserved, end - self._reserved)
            self._reserved = end
        return room

    def changed(self) -> bool:
        """Whether there were puts or truncations since the last call; notes that the caller flushes them."""
        changed = self.dirty or self.table.next_unit != self._flushed_unit
        self.dirty = False
        self._flushed_unit = self.table.next_unit
        return changed

    def close(self) -> None:
        """Unmap; what was put is in the page cache."""
        self.table.release()
        self._map.close()
        os.close(self.descriptor)

    def delete(self) -> None:
        """Unmap and remove the file."""
        self.close()
        self.path.unlink()
