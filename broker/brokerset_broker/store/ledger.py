"""A DLedger's log on the disk: entries in `data/`, where each is in `index/`, `currterm` and `checkpoint`.

Source: `DLedgerMmapFileStore` and `MmapFileList` of DLedger 0.3.1.2, byte for byte. What Java lacks: a
truncation is on the disk before anything is written in its place.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from threading import Lock

from brokerset_broker.store.errors import StoreCorrupt
from brokerset_broker.store.segments import MappedFile, SegmentSequence
from brokerset_dledger.ledger import LedgerRefused
from brokerset_formats.dledger import (
    BLANK,
    ENTRY_HEAD,
    ENTRY_HEAD_SIZE,
    INDEX_UNIT,
    INDEX_UNIT_SIZE,
    MAGIC_BLANK,
    MAGIC_NORMAL,
    CurrentTerm,
    LedgerCheckpoint,
    LedgerEntry,
    LedgerRun,
    LedgerUnit,
    RunUnits,
    decode_entry,
)
from brokerset_formats.errors import FormatError
from brokerset_protocol.bodies.dledger import DLedgerCode
from brokerset_runtime.files import read_with_backup, sync_folder, write_atomically

DATA_FILE_BYTES = 1024 * 1024 * 1024
INDEX_FILE_BYTES = INDEX_UNIT_SIZE * 5 * 1024 * 1024
"""Sizes of Java's files; DLedgerCommitLog sets that of the data to the commit log's."""

INDEX_RESERVE_BYTES = 1024 * 1024
"""Blocks that an index file gets at a time."""

FILES_WALKED = 3
"""A start reads from the third last data file on, as Java's, or from one before that the index confirms."""

IsWhole = Callable[[bytes], bool]
"""Whether a record is what was written, by its own checksum: an entry has none."""

Patch = Callable[[memoryview, int], None]
"""Completes a record of this member's own (its bytes, the position of the entry) before it is written."""


class FileLedger:
    """The log of one member, in its folder `dledger-<id>`. `open` comes first; one thread uses it."""

    def __init__(
        self,
        folder: Path,
        *,
        data_file_bytes: int = DATA_FILE_BYTES,
        index_file_bytes: int = INDEX_FILE_BYTES,
        record_of_term: Callable[[], bytes],
        patch: Patch | None = None,
        is_whole: IsWhole | None = None,
        first_position: int = 0,
        executor: Executor | None = None,
    ) -> None:
        """`record_of_term` gives the record with which a leader begins its term.

        A start ends the log before an entry whose record is not whole: pages come to the disk in any order,
        so a power failure may leave a head without its record. Without `is_whole` nobody can tell.
        `first_position` is where an empty log begins: behind old CommitLog files.
        """
        self.folder = folder
        self.begin_index = -1
        self.end_index = -1
        self.end_term = -1
        self.committed_index = -1
        self.synced_index = -1
        self.committed_position = first_position
        """Behind the last committed entry: nothing from here on may be read."""

        self.write_position = first_position
        """Behind the last entry."""

        self._record_of_term = record_of_term
        self._patch = patch
        self._is_whole = is_whole
        self._executor = executor
        self.files = SegmentSequence(folder / "data", data_file_bytes)
        """The data files: the entries, one behind the other."""

        self._index = SegmentSequence(
            folder / "index", index_file_bytes, INDEX_RESERVE_BYTES // INDEX_UNIT_SIZE * INDEX_UNIT_SIZE
        )
        self._synced_position = first_position
        self._trusted_index = -1
        self._checkpoint_lock = Lock()
        self._failure: OSError | None = None
        """What a truncation raised: the disk may have anything, and nothing is written any more."""

        self.generation = 0
        """Grows when all entries are dropped because the leader's log begins elsewhere."""

        self._truncations = 0
        self._recovering = folder / "recovering"

    # Opening.

    def open(self, *, keeps: bool = False, settle: bool = False) -> CurrentTerm:
        """Load and recover; returns the term on the disk. Blocks. Raises `StoreCorrupt`, OSError.

        `keeps`: all that was written can be read, so entries that are known as committed must be there, and
        their records need not be checked again. `settle`: the page cache may have what the disk has not, or
        has lost it: entries that were not synced may be gone, however many files they filled.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self.files.load()
        self._index.load()
        if settle:
            self.files.settle(self.files.start)
        checkpoint = self._read_checkpoint()
        self._trusted_index = checkpoint.committed_index if keeps else -1
        self._recover(may_lack_unsynced=settle)
        self._sync_now()
        if checkpoint.committed_index >= self.begin_index >= 0:
            self.commit(checkpoint.committed_index)
        elif self.begin_index >= 0:
            self.committed_position = self._unit(self.begin_index).position
        return self._read_term()

    def _recover(self, *, may_lack_unsynced: bool) -> None:
        files = self.files.files
        if not files:
            self._index.remove_all()
            return
        number = max(0, len(files) - FILES_WALKED)
        while number > 0 and not self._begins_as_indexed(files[number]):
            number -= 1
        position, last = self._walk(files[number])
        if last is None and number > 0:
            raise StoreCorrupt(files[number].path, 0, "has no entry at its beginning, and files follow")
        ends_early = files[-1].start - position > files[-1].size
        if ends_early and not (may_lack_unsynced and self._no_entries_behind(position)):
            raise StoreCorrupt(
                files[-1].path, -1, f"the entries end at {position}, more than a file before it"
            )
        if (last_index := -1 if last is None else last.index) < self._trusted_index:
            file = self.files.find(position)
            raise StoreCorrupt(
                files[-1].path if file is None else file.path,
                position - (files[-1].start if file is None else file.start),
                f"the entries end with {last_index}, though those up to {self._trusted_index} were committed."
                " While the other members run, remove this one's folder: the leader sends all that it has. Or"
                " start once with acceptDamagedStore=true, to go on without what is behind the damage",
            )
        self._cut_files(position, 0 if last is None else last.index + 1)
        self.write_position = position
        if last is None:
            self.files.remove_first(len(self.files.files))
            self.write_position = files[0].start if files else self.write_position
            return
        self.end_index, self.end_term = last.index, last.term
        self._read_begin()

    def _no_entries_behind(self, position: int) -> bool:
        """Whether later files were only made: a power failure took what was written there and not synced."""
        return all(
            _unit_at(file, file.start, None) is None for file in self.files.files if file.start >= position
        )

    def _begins_as_indexed(self, file: MappedFile) -> bool:
        try:
            entry = decode_entry(file.view)
            return (
                isinstance(entry, LedgerEntry)
                and entry.position == file.start
                and self._unit(entry.index) == LedgerUnit.of(entry)
            )
        except (FormatError, LedgerRefused):
            return False

    def _walk(self, file: MappedFile) -> tuple[int, LedgerUnit | None]:
        """Follow the entries from a file's beginning, and write the index where it differs.

        Returns the position behind the last entry and its unit; None if there is none.
        """
        last: LedgerUnit | None = None
        position = file.start
        while True:
            unit = _unit_at(file, position, last)
            if unit is not None and not self._has_whole_record(file, unit):
                return position, last
            if unit is None:
                following = self.files.find(file.end) if _is_blank(file, position) else None
                if following is None:
                    return position, last
                file, position = following, following.start
                continue
            try:
                known = self._unit(unit.index) == unit
            except (FormatError, LedgerRefused):
                known = False
            if not known:
                self._write_unit(unit)
            position += unit.size
            last = unit

    def _has_whole_record(self, file: MappedFile, unit: LedgerUnit) -> bool:
        if self._is_whole is None or unit.index <= self._trusted_index:
            return True
        start = unit.position - file.start
        return self._is_whole(bytes(file.view[start + ENTRY_HEAD_SIZE : start + unit.size]))

    def _read_begin(self) -> None:
        first = decode_entry(self.files.files[0].view)
        if not isinstance(first, LedgerEntry):
            raise StoreCorrupt(self.files.files[0].path, 0, "has no entry at its beginning")
        self.begin_index = first.index

    # Terms and checkpoint.

    def write_term(self, term: CurrentTerm) -> None:
        """Put term and vote on the disk. Blocks; raises OSError."""
        write_atomically(self.folder / "currterm", term.encode(), backup=True)

    def write_checkpoint(self) -> None:
        """Note what is committed; a start knows it then without a leader. Blocks; raises OSError."""
        self._note_committed(self.committed_index)

    def _note_committed(self, index: int) -> None:
        with self._checkpoint_lock:
            checkpoint = LedgerCheckpoint(index, self.end_index)
            write_atomically(self.folder / "checkpoint", checkpoint.encode(), backup=True)

    def _read_term(self) -> CurrentTerm:
        data = read_with_backup(self.folder / "currterm")
        if data is None:
            if self.end_index >= 0:
                raise StoreCorrupt(self.folder / "currterm", -1, "is missing, and this member may have voted")
            return CurrentTerm()
        try:
            return CurrentTerm.decode(data)
        except FormatError as error:
            raise StoreCorrupt(self.folder / "currterm", -1, str(error)) from error

    def _read_checkpoint(self) -> LedgerCheckpoint:
        data = read_with_backup(self.folder / "checkpoint")
        try:
            return LedgerCheckpoint() if data is None else LedgerCheckpoint.decode(data)
        except FormatError:  # a leader tells again what is committed
            return LedgerCheckpoint()

    # Recovery of a member that may lack what it has acknowledged.

    @property
    def recovering(self) -> bool:
        """Whether the file `recovering` is there: of ours, and nothing to Java."""
        return self._recovering.exists()

    def begin_recovery(self) -> None:
        """Note that this log may lack entries that were acknowledged. Blocks; raises OSError."""
        write_atomically(self._recovering, b"")

    def end_recovery(self) -> None:
        """Note that it has all of them again. Blocks; raises OSError."""
        self._recovering.unlink(missing_ok=True)
        sync_folder(self.folder)

    # Reading.

    def _unit(self, index: int) -> LedgerUnit:
        file = self._index.find(index * INDEX_UNIT_SIZE)
        if file is None:
            raise LedgerRefused(DLedgerCode.INDEX_OUT_OF_RANGE, f"entry {index} has no index unit")
        return LedgerUnit.decode(file.view, index * INDEX_UNIT_SIZE - file.start)

    def _require(self, index: int) -> None:
        if not 0 <= self.begin_index <= index <= self.end_index:
            below = 0 <= index < self.begin_index
            raise LedgerRefused(
                DLedgerCode.INDEX_LESS_THAN_LOCAL_BEGIN if below else DLedgerCode.INDEX_OUT_OF_RANGE,
                f"entry {index} is not among {self.begin_index} to {self.end_index}",
            )

    def _place(self, index: int) -> tuple[int, int]:
        """Where an entry that is here begins and ends, as the index has it."""
        file = self._index.find(index * INDEX_UNIT_SIZE)
        if file is not None:
            unit = INDEX_UNIT.unpack_from(file.view, index * INDEX_UNIT_SIZE - file.start)
            magic, position, size, found, _ = unit
            if magic == MAGIC_NORMAL and found == index and size >= ENTRY_HEAD_SIZE:
                return position, position + size
        raise LedgerRefused(DLedgerCode.DISK_ERROR, f"entry {index} of {self.folder} has no index unit")

    def position(self, index: int) -> int:
        """Where the entry at an index begins. Raises `LedgerRefused`."""
        self._require(index)
        return self._place(index)[0]

    def run(self, first: int, last: int, bytes_max: int) -> LedgerRun:
        """Entries from `first` on, up to `last`, as bytes of one file. Raises `LedgerRefused`.

        Entries stand one behind the other in a file, so two index units tell the bytes of all between them.
        """
        self._require(first)
        self._require(last)
        position, end = self._place(first)
        file = self.files.find(position)
        if file is None:
            raise LedgerRefused(DLedgerCode.DISK_ERROR, f"entry {first} of {self.folder} has no file")
        limit = min(file.end, position + bytes_max)
        end_of_last = self._place(last)[1]
        if end_of_last <= limit:
            end = end_of_last
        else:
            fits, exceeds = first, last
            while exceeds - fits > 1:
                middle = (fits + exceeds) // 2
                end_of_middle = self._place(middle)[1]
                if end_of_middle <= limit:
                    fits, end = middle, end_of_middle
                else:
                    exceeds = middle
            last = fits
        if not position < end <= file.end:
            raise LedgerRefused(
                DLedgerCode.DISK_ERROR, f"entry {first} of {self.folder} is not at {position}"
            )
        data = bytes(file.view[position - file.start : end - file.start])
        return LedgerRun(first, last - first + 1, position, data)

    def entry(self, index: int) -> LedgerEntry:
        """The entry at an index. Raises `LedgerRefused`."""
        self._require(index)
        try:
            unit = self._unit(index)
            file = self.files.find(unit.position)
            entry = None if file is None else decode_entry(file.view, unit.position - file.start)
        except FormatError as error:
            raise LedgerRefused(DLedgerCode.DISK_ERROR, f"entry {index} of {self.folder}: {error}") from error
        if not isinstance(entry, LedgerEntry) or LedgerUnit.of(entry) != unit:
            raise LedgerRefused(
                DLedgerCode.DISK_ERROR, f"entry {index} of {self.folder} is not at {unit.position}"
            )
        return entry

    def end_of(self, index: int) -> int:
        """The position behind an entry. Raises `LedgerRefused` when it is not there."""
        if not 0 <= self.begin_index <= index <= self.end_index:
            raise LedgerRefused(DLedgerCode.INDEX_OUT_OF_RANGE, f"entry {index} is not there")
        unit = self._unit(index)
        return unit.position + unit.size

    def read(self, position: int, size: int) -> memoryview | None:
        """Bytes of the log below what is committed; None where they are not, or not in one file."""
        file = self.files.find(position)
        if file is None or size < 0 or position + size > min(self.committed_position, file.end):
            return None
        return file.view[position - file.start : position - file.start + size]

    # Writing.

    def append(self, entry: LedgerEntry) -> None:
        """Append the leader's next entry. Raises `LedgerRefused`."""
        if self.end_index >= 0 and entry.index != self.end_index + 1:
            raise LedgerRefused(
                DLedgerCode.INCONSISTENT_INDEX, f"{entry.index} does not follow {self.end_index}"
            )
        position = self._room(entry.size)
        if position != entry.position:
            raise LedgerRefused(
                DLedgerCode.DISK_ERROR,
                f"entry {entry.index} belongs at {entry.position}, this log is at {position}",
            )
        self._write(LedgerUnit.of(entry), entry.encode())

    def append_run(self, run: LedgerRun, units: RunUnits) -> None:
        """Append a run of the leader's that was checked: all of it or nothing. Raises `LedgerRefused`."""
        if self.end_index >= 0 and run.first_index != self.end_index + 1:
            raise LedgerRefused(
                DLedgerCode.INCONSISTENT_INDEX, f"{run.first_index} does not follow {self.end_index}"
            )
        _, _, first_size, _, _ = INDEX_UNIT.unpack_from(units.units)
        position = self._room(first_size)
        size = len(run.data)
        file_bytes = self.files.segment_bytes
        if position != run.position or position % file_bytes + size + BLANK.size > file_bytes:
            raise LedgerRefused(
                DLedgerCode.DISK_ERROR,
                f"entries {run.first_index} to {run.last_index} do not belong at {run.position}: "
                f"this log is at {position}, its files have {file_bytes} bytes",
            )
        file = self._prepare(position, run.first_index, run.last_index)
        start = position - file.start
        data = memoryview(run.data)
        file.map[start + BLANK.size : start + size] = data[BLANK.size :]
        file.map[start : start + BLANK.size] = data[: BLANK.size]  # last: without it, nothing stands there
        self._write_units(run.first_index, units.units)
        if self.begin_index < 0:
            self.begin_index = run.first_index
        self._ends_with(run.last_index, units.last_term, position + size)

    def append_body(self, term: int, body: bytes) -> LedgerEntry:
        """Append a record as leader. Raises `LedgerRefused` (disk full, too large)."""
        file, position = self.prepare(len(body))
        if self._patch is not None:
            patched = bytearray(body)
            self._patch(memoryview(patched), position)
            body = bytes(patched)
        begin = position - file.start + ENTRY_HEAD_SIZE
        file.map[begin : begin + len(body)] = body
        self.complete(term, position, len(body))
        return LedgerEntry(self.end_index, term, position, body)

    def room(self, record_size: int) -> int:
        """Position of the next entry, whose record has so many bytes. Raises `LedgerRefused` (too large)."""
        return self._room(ENTRY_HEAD_SIZE + record_size)

    def begin_term(self, term: int) -> LedgerEntry:
        """Append the record with which a leader begins its term. Raises `LedgerRefused`."""
        return self.append_body(term, self._record_of_term())

    def prepare(self, record_size: int) -> tuple[MappedFile, int]:
        """Make room for the leader's next entry: the file that gets it, and its position. `complete` follows.

        Raises `LedgerRefused` (disk full, too large); nothing has changed then.
        """
        self._require_disk()
        position = self.room(record_size)
        try:
            file = self._file_at(self.files, position)
            self._reserve_index(self.end_index + 1)
        except OSError as error:
            raise self._full(error) from error
        return file, position

    def reserve(self, count: int, record_bytes: int) -> None:
        """Make room for so many entries of the leader. Raises `LedgerRefused` (disk full)."""
        self._require_disk()
        left_blank = record_bytes  # at most: the entry that does not fit into the rest of a file
        end = self.write_position + record_bytes + left_blank + count * ENTRY_HEAD_SIZE + BLANK.size
        try:
            for position in (self.write_position, end):
                self._file_at(self.files, position)
            self._reserve_units(self.end_index + 1, self.end_index + count)
        except OSError as error:
            raise self._full(error) from error

    def complete(self, term: int, position: int, record_size: int) -> None:
        """The record stands where `prepare` said: give it its head and its index unit."""
        if position > self.write_position:
            self._close_file(position)
        file = self.files.find(position)
        assert file is not None, "room was made"
        index, size = self.end_index + 1, ENTRY_HEAD_SIZE + record_size
        ENTRY_HEAD.pack_into(
            file.map, position - file.start, MAGIC_NORMAL, size, index, term, position, 0, 0, 0, record_size
        )
        place = index * INDEX_UNIT_SIZE
        units = self._index.find(place)
        assert units is not None, "it was reserved"
        INDEX_UNIT.pack_into(units.map, place - units.start, MAGIC_NORMAL, position, size, index, term)
        self._ends_with(index, term, position + size)

    def _ends_with(self, index: int, term: int, end: int) -> None:
        self.write_position = end
        self.end_index, self.end_term = index, term
        if self.begin_index < 0:
            self.begin_index = index

    def _require_disk(self) -> None:
        if self._failure is not None:
            raise LedgerRefused(DLedgerCode.DISK_ERROR, f"{self.folder}: the disk failed: {self._failure}")

    def _full(self, error: OSError) -> LedgerRefused:
        return LedgerRefused(
            DLedgerCode.DISK_FULL, f"no room in {self.folder}: {error.strerror}; free some disk space"
        )

    def _room(self, size: int, end: int | None = None) -> int:
        """Where an entry of so many bytes stands behind `end`: at once, or in the next file."""
        end = self.write_position if end is None else end
        file_bytes = self.files.segment_bytes
        if size + BLANK.size > file_bytes:
            raise LedgerRefused(
                DLedgerCode.UNEXPECTED_ARGUMENT, f"an entry of {size} bytes does not fit into {file_bytes}"
            )
        free = -end % file_bytes or file_bytes
        return end + free if size + BLANK.size > free else end

    def _write(self, unit: LedgerUnit, data: bytes) -> None:
        file = self._prepare(unit.position, unit.index, unit.index)
        start = unit.position - file.start
        file.map[start : start + len(data)] = data
        self._write_unit(unit)
        self._ends_with(unit.index, unit.term, unit.position + len(data))

    def _prepare(self, position: int, first_index: int, last_index: int) -> MappedFile:
        """The file for entries that begin at `position`, with room for them and their units."""
        self._require_disk()
        try:
            file = self._file_at(self.files, position)
            self._reserve_index(first_index)
            if last_index > first_index:
                self._reserve_units(first_index, last_index)
        except OSError as error:
            raise self._full(error) from error
        if position > self.write_position:
            self._close_file(position)
        return file

    def _reserve_units(self, index: int, last_index: int) -> None:
        """Reserve the units of a run, which may be in several files, one file after the other."""
        units_of_file = self._index.segment_bytes // INDEX_UNIT_SIZE
        while index <= last_index:
            last_of_file = index - index % units_of_file + units_of_file - 1
            self._reserve_index(min(last_index, last_of_file))
            index = last_of_file + 1

    def _close_file(self, end: int) -> None:
        """Mark the rest of the last file as blank; what follows the mark are zeros already."""
        before = self.files.find(self.write_position)
        if before is not None:
            BLANK.pack_into(
                before.map, self.write_position - before.start, MAGIC_BLANK, end - self.write_position
            )

    def _file_at(self, sequence: SegmentSequence, position: int) -> MappedFile:
        file = sequence.find(position)
        if file is None:
            file = sequence.add(position - position % sequence.segment_bytes)
        if sequence is self.files:
            if file.reserved < file.size:
                sequence.reserve(file, file.size)
            if self._executor is not None and position - file.start > file.size // 2:
                sequence.prepare_next(self._executor)
        return file

    def _reserve_index(self, index: int) -> MappedFile:
        position = index * INDEX_UNIT_SIZE
        file = self._file_at(self._index, position)
        end = position - file.start + INDEX_UNIT_SIZE
        if end > file.reserved:
            self._index.reserve(file, end)
        return file

    def _write_unit(self, unit: LedgerUnit) -> None:
        file = self._reserve_index(unit.index)
        start = unit.index * INDEX_UNIT_SIZE - file.start
        file.map[start : start + INDEX_UNIT_SIZE] = unit.encode()

    def _write_units(self, first: int, units: bytes) -> None:
        """Write the units of consecutive entries, which may be those of several index files."""
        position, done = first * INDEX_UNIT_SIZE, 0
        while done < len(units):
            file = self._index.find(position + done)
            assert file is not None, "it was reserved"
            start = position + done - file.start
            size = min(len(units) - done, file.size - start)
            file.map[start : start + size] = units[done : done + size]
            done += size

    def truncate(self, entry: LedgerEntry) -> None:
        """Drop everything behind the entry; put it here if this log lacks it. Blocks for the disk.

        Raises `LedgerRefused`. After a failure of the disk it may be done half: what reads as cleared may be
        on the disk still, so no further attempt counts, and the next start recovers what there is.
        """
        self._require_disk()
        try:
            known = self.entry(entry.index) == entry
        except LedgerRefused:
            known = False
        position = entry.position + entry.size if known else entry.position
        index = entry.index + 1 if known else entry.index
        try:
            if index <= self.committed_index:  # else a start after a crash would miss what was committed
                self._note_committed(index - 1)
            if not known and not self._continues(entry):
                self._begin_again(position)
            self._cut_files(position, index)
        except OSError as error:
            self._failure = error
            raise LedgerRefused(
                DLedgerCode.DISK_ERROR, f"{self.folder} cannot be truncated: {error}"
            ) from error
        self._truncations += 1
        self.write_position = position
        self.end_index = index - 1 if 0 <= self.begin_index < index else -1
        self.end_term = self._unit(self.end_index).term if self.end_index >= 0 else -1
        if self.end_index < 0:
            self.begin_index = -1
        self.synced_index = min(self.synced_index, self.end_index)
        self._synced_position = min(self._synced_position, position)
        if self.committed_index > self.end_index:  # a leader of Java may ask for that
            self.committed_index, self.committed_position = -1, position
            self.commit(self.end_index)
        if not known:
            self._write(LedgerUnit.of(entry), entry.encode())

    def _continues(self, entry: LedgerEntry) -> bool:
        """Whether all before the entry is here and committed, and the entry belongs behind that."""
        before = entry.index - 1
        if not 0 <= self.begin_index <= before <= min(self.end_index, self.committed_index):
            return False
        unit = self._unit(before)
        return entry.position == self._room(entry.size, unit.position + unit.size)

    def _begin_again(self, position: int) -> None:
        """Nothing of this log is the leader's: begin an empty one there, at the beginning of a file.

        A leader begins at a whole file, as retention deletes such. Elsewhere no start would find the entry.
        """
        if position % self.files.segment_bytes:
            raise LedgerRefused(
                DLedgerCode.INCONSISTENT_STATE,
                f"the leader's log begins at {position}, in the middle of a file of "
                f"{self.files.segment_bytes} bytes: do all members have the same file size?",
            )
        self.generation += self.begin_index >= 0
        self.files.forget_prepared()
        self.files.remove_first(len(self.files.files))
        self._index.remove_first(len(self._index.files))
        self.files.add(position)
        self.begin_index = self.end_index = self.committed_index = -1
        self.committed_position = position

    def _cut_files(self, position: int, index: int) -> None:
        """Clear everything from here on, and bring that to the disk before anything is written there again.

        Else a stale entry could stand behind new ones after a power failure, and be taken for one of them.
        """
        for sequence, end in ((self._index, index * INDEX_UNIT_SIZE), (self.files, position)):
            sequence.truncate(end)
            file = sequence.find(end)
            if file is not None and file.clear(end - file.start):
                file.sync(end - file.start, file.size)

    def commit(self, index: int) -> None:
        """Everything up to the index may be read. Never exceeds the end; falls only by a truncation."""
        index = min(index, self.end_index)
        if index > self.committed_index:
            unit = self._unit(index)
            self.committed_index = index
            self.committed_position = unit.position + unit.size

    # The disk.

    @property
    def needs_sync(self) -> bool:
        """Whether entries are not on the disk yet, or a truncation failed: all that was synced does not show
        that."""
        return self.synced_index < self.end_index or self._failure is not None

    def begin_sync(self) -> LedgerSync | None:
        """What is not on the disk yet; None if there is nothing.

        After a truncation that failed its `run` raises that failure.
        """
        return LedgerSync(self) if self.needs_sync else None

    def delete_first_files(self, count: int) -> int:
        """Retention: delete the oldest data files, never the last; returns how many. The index follows."""
        count = max(0, min(count, len(self.files.files) - 1))
        for _ in range(count):
            self.detach_first().unlink()
        return count

    def detach_first(self) -> MappedFile:
        """Take the oldest data file out of the log, which is not the last; whoever asked deletes it."""
        removed = self.files.files.pop(0)
        self._read_begin()
        gone = sum(file.end <= self.begin_index * INDEX_UNIT_SIZE for file in self._index.files[:-1])
        self._index.remove_first(gone)
        return removed

    def close(self) -> None:
        """Write what is not on the disk. Blocks; raises OSError."""
        self.files.forget_prepared()
        self._sync_now()
        self.write_checkpoint()

    def _sync_now(self) -> None:
        if (sync := self.begin_sync()) is not None:
            sync.run()
            sync.finish()


class LedgerSync:
    """What a log has that is not on the disk, as of the moment when this was made."""

    def __init__(self, ledger: FileLedger) -> None:
        self._ledger = ledger
        self._positions = ledger._synced_position, ledger.write_position
        self._indexes = max(0, ledger.synced_index), ledger.end_index
        self._truncations = ledger._truncations

    def run(self) -> None:
        """Wait for the disk, in a thread. An OSError is final: nothing tells what is on the disk then."""
        if self._ledger._failure is not None:
            raise self._ledger._failure
        first, last = self._indexes
        self._ledger.files.sync(*self._positions)
        self._ledger._index.sync(first * INDEX_UNIT_SIZE, (last + 1) * INDEX_UNIT_SIZE)

    def finish(self) -> None:
        """It is on the disk, unless the log was truncated meanwhile."""
        ledger = self._ledger
        if self._truncations == ledger._truncations:
            ledger.synced_index = max(ledger.synced_index, self._indexes[1])
            ledger._synced_position = max(ledger._synced_position, self._positions[1])


def _is_blank(file: MappedFile, position: int) -> bool:
    if position >= file.end:
        return True
    try:
        magic, _ = BLANK.unpack_from(file.view, position - file.start)
    except struct.error:
        return False
    return bool(magic == MAGIC_BLANK)


def _unit_at(file: MappedFile, position: int, last: LedgerUnit | None) -> LedgerUnit | None:
    """The entry that begins there and follows the last one; None if there is none."""
    start = position - file.start
    if start + ENTRY_HEAD_SIZE > file.size:
        return None
    magic, size, index, term, place, _, _, _, body_size = ENTRY_HEAD.unpack_from(file.view, start)
    if magic != MAGIC_NORMAL or size < ENTRY_HEAD_SIZE or body_size != size - ENTRY_HEAD_SIZE:
        return None
    if place != position or start + size > file.size or index < 0 or term < 0:
        return None
    if last is not None and (index != last.index + 1 or term < last.term):
        return None
    return LedgerUnit(place, size, index, term, magic)
