"""Keeps a node's log, hard state and snapshots in one folder of a `Disk`, and reads them again after a crash.

Every method blocks, and none may run next to another: the driver calls them one after the other, from one
thread. Any error of the disk while writing is final: what is on the disk is unknown then, so everything is
refused after it.
"""

from __future__ import annotations

import bisect
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import structlog

from brokerset_raft import log_records
from brokerset_raft.configuration import Configuration
from brokerset_raft.log_records import Damaged, RecordKind, SegmentStart, Torn
from brokerset_raft.messages import Entry, HardState, SnapshotMeta
from brokerset_runtime.disk import Disk, replace_file

log = structlog.get_logger(__name__)

SEGMENT_BYTES = 16 << 20
"""A segment that has so many bytes is closed before the next save. A start writes the last again."""

SNAPSHOTS_KEPT = 2
"""The newest, and one to fall back on; the log is kept from the oldest of them on."""

SEGMENT_PREFIX = "log-"
SNAPSHOT_PREFIX = "snapshot-"
PARTIAL_NAME = "snapshot.partial"
INITIAL_NAME = "initial-members"


class LogDamaged(Exception):
    """What had been synced cannot be read. The node must not start: it would break promises that it made."""

    def __init__(self, name: str, position: int, reason: str) -> None:
        super().__init__(
            f"{name} is damaged at byte {position}: {reason}. This node must not take part with "
            "what is left: remove it from the group, empty its folder, and add it again under a new id"
        )
        self.name = name
        self.position = position
        self.reason = reason


class StorageStopped(OSError):
    """Refused, because the disk failed before; `__cause__` is that error."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a node starts with."""

    hard_state: HardState
    snapshot: SnapshotMeta | None
    entries: tuple[Entry, ...]
    """Those after the snapshot."""


class Layout:
    """Which entries are valid, their terms, and in which segment each lies."""

    def __init__(self) -> None:
        self.base_index = 0
        self.last_index = 0
        self._terms: list[tuple[int, int | None]] = [(0, 0)]
        self._segments: list[tuple[int, int]] = []

    def reset(self, index: int, term: int | None) -> None:
        """Forget all; the next entry is the one after `index`."""
        self.base_index = self.last_index = index
        self._terms = [(index, term)]
        self._segments = []

    def term(self, index: int) -> int | None:
        """The term of an entry, or of the one before the first; None when it is not known."""
        if not self.base_index <= index <= self.last_index:
            return None
        return self._terms[bisect.bisect_right(self._terms, index, key=_first) - 1][1]

    def place(self, index: int, term: int, sequence: int) -> None:
        """Note an entry that follows the last, or makes those at and above its index void."""
        assert index <= self.last_index + 1, f"entry {index} after {self.last_index}"
        if index <= self.base_index:
            self.reset(index - 1, None)
        self.truncate_after(index - 1)
        if self._terms[-1][1] != term:
            self._terms.append((index, term))
        if not self._segments or self._segments[-1][1] != sequence:
            self._segments.append((index, sequence))
        self.last_index = index

    def truncate_after(self, index: int) -> None:
        """Make the entries above `index` void."""
        while len(self._terms) > 1 and self._terms[-1][0] > index:
            self._terms.pop()
        while self._segments and self._segments[-1][0] > index:
            self._segments.pop()
        self.last_index = min(self.last_index, index)

    def oldest_needed(self, index: int) -> int | None:
        """The segment that holds the first entry after `index`; None when there is no such entry."""
        if index >= self.last_index or not self._segments:
            return None
        return self._segments[max(0, bisect.bisect_right(self._segments, index + 1, key=_first) - 1)][1]


class Storage:
    """The disk of one node. Call `load` first."""

    def __init__(self, disk: Disk, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._disk = disk
        self._segment_bytes = segment_bytes
        self._failure: OSError | None = None
        self._hard_state = HardState()
        self._layout = Layout()
        self._sequences: list[int] = []
        self._size = 0
        self._start: SegmentStart | None = None
        self._tail = b""
        self._roll = True
        self._snapshots: list[SnapshotMeta] = []
        self._partial: tuple[SnapshotMeta, int] | None = None

    @property
    def snapshots(self) -> tuple[SnapshotMeta, ...]:
        """Snapshots on the disk, synced, oldest first."""
        return tuple(self._snapshots)

    def load(self) -> Loaded:
        """Read everything, truncate a torn end, and make durable what was read.

        What a process wrote and did not sync before it died is still readable, but a power failure would take
        it; and what a failed sync left in the page cache is not on the disk although it can be read. So the
        segment that was written last is written again.
        Raises `LogDamaged`, `OSError`.
        """
        names = self._disk.names()
        self._load_snapshots(names)
        entries = self._load_segments(names)
        snapshot = self._snapshots[-1] if self._snapshots else None
        after = self._join(snapshot, entries)
        with self._writing():
            self._repair(names)
            self._begin_if_void()
        return Loaded(self._hard_state, snapshot, after)

    def initial_members(self, given: Configuration) -> Configuration:
        """The members that the group began with, as this node took them when its folder was empty.

        `given` is what its settings say today. That is no answer once the node has taken part, for no entry
        of the log names the first members; only new addresses of the same members are taken from it. Nor do
        settings that tell it to join make a first member forget what it is.
        Call it after `load`. Raises `LogDamaged`, `OSError`.
        """
        known = self._known_initial()
        took_part = self._hard_state.term > 0 or self._layout.last_index > 0
        if known is not None and (not given.members or (took_part and _ids(known) != _ids(given))):
            return known
        if known is None and took_part and not given.members:
            return given  # written before this was remembered; its settings may still be put right
        if known != given:
            with self._writing():
                replace_file(self._disk, INITIAL_NAME, log_records.encode_initial(given))
        return given

    def _known_initial(self) -> Configuration | None:
        if INITIAL_NAME not in self._disk.names():
            return None
        try:
            return log_records.decode_initial(self._disk.read(INITIAL_NAME))
        except ValueError as error:
            raise LogDamaged(INITIAL_NAME, 0, str(error)) from error

    def save(self, hard_state: HardState | None, entries: Sequence[Entry]) -> None:
        """Write a hard state and entries, and sync them with one sync.

        Entries on the disk at and above the index of each given entry become void once it is on the disk, not
        before: a crash leaves the old ones, or the old ones below and some of the new.
        """
        if hard_state is None and not entries:
            return
        for entry in entries:
            if len(entry.data) > log_records.ENTRY_BYTES_MAX:
                raise ValueError(f"entry {entry.index} is larger than {log_records.ENTRY_BYTES_MAX} bytes")
        with self._writing():
            if self._roll or self._size >= self._segment_bytes:
                self._open_segment()
            records: list[log_records.Record] = []
            if hard_state is not None:
                records.append(log_records.hard_state_record(hard_state))
                self._hard_state = hard_state
            for entry in entries:
                self._layout.place(entry.index, entry.term, self._sequences[-1])
                records.append(log_records.entry_record(entry))
            self._write(records)

    def snapshot_data(self, meta: SnapshotMeta) -> bytes:
        """The state of a snapshot. Raises `LogDamaged` if it is not as it was written."""
        name = _snapshot_name(meta.index)
        try:
            found, data = log_records.check_snapshot(self._disk.read(name))
        except (ValueError, FileNotFoundError) as error:
            raise LogDamaged(name, 0, str(error)) from error
        if found != meta:
            raise LogDamaged(name, 0, "it is another snapshot than the one that was loaded")
        return data

    def read_chunk(self, meta: SnapshotMeta, offset: int, size: int) -> bytes:
        """Up to `size` bytes of a snapshot's state. Raises `FileNotFoundError` when it has been replaced."""
        if meta not in self._snapshots:
            raise FileNotFoundError(f"snapshot {meta.index} has been replaced by a newer one")
        begin = len(log_records.encode_snapshot_header(meta))
        wanted = min(size, meta.size - offset)
        return self._disk.read_at(_snapshot_name(meta.index), begin + offset, wanted) if wanted > 0 else b""

    def write_snapshot(self, meta: SnapshotMeta, data: bytes) -> None:
        """Keep a snapshot of the applied state; it is durable when this returns."""
        with self._writing():
            self._need_segment()
            header = log_records.encode_snapshot_header(meta)
            replace_file(self._disk, _snapshot_name(meta.index), header + data)
            self._add_snapshot(meta)

    def store_chunk(self, meta: SnapshotMeta, offset: int, data: bytes) -> int:
        """Keep a piece of a leader's snapshot, synced; returns where the next one begins.

        A piece that does not follow what is there is not stored; the first piece of another snapshot drops
        what is there.
        """
        have = self._partial[1] if self._partial is not None and self._partial[0] == meta else 0
        if offset != have or offset + len(data) > meta.size:
            return have
        with self._writing():
            if offset == 0:
                self._disk.write(PARTIAL_NAME, log_records.encode_snapshot_header(meta) + data)
                self._disk.sync(PARTIAL_NAME)
                self._disk.sync_folder()
            else:
                self._disk.append(PARTIAL_NAME, data)
                self._disk.sync(PARTIAL_NAME)
            self._partial = (meta, offset + len(data))
        return offset + len(data)

    def install_partial(self, meta: SnapshotMeta) -> bytes | None:
        """Make the stored pieces the newest snapshot, and return its state; None: it is not what was sent.

        Entries after it stay if the log agrees with the snapshot at its index; else the whole log is void.
        """
        with self._writing():
            try:
                found, data = log_records.check_snapshot(self._disk.read(PARTIAL_NAME))
            except (ValueError, FileNotFoundError) as error:
                log.error("received snapshot is damaged", index=meta.index, reason=str(error))
                self._discard_partial()
                return None
            if found != meta:
                self._discard_partial()
                return None
            self._need_segment()
            self._disk.rename(PARTIAL_NAME, _snapshot_name(meta.index))
            self._disk.sync_folder()
            self._partial = None
            self._add_snapshot(meta)
            self._align(meta)
            self._begin_if_void()
            return data

    def drop_below(self, index: int) -> None:
        """Delete whole segments whose entries are below `index`, as far as a durable snapshot has them."""
        if not self._snapshots:
            return
        with self._writing():
            for meta in self._snapshots[:-SNAPSHOTS_KEPT]:
                self._disk.delete(_snapshot_name(meta.index))
            del self._snapshots[:-SNAPSHOTS_KEPT]
            needed = self._layout.oldest_needed(min(index, self._snapshots[0].index))
            keep = self._sequences[-1] if needed is None else needed
            for sequence in [each for each in self._sequences if each < keep]:
                self._disk.delete(_segment_name(sequence))
                self._sequences.remove(sequence)
            self._disk.sync_folder()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Refuse after a failure, and remember the first one."""
        if self._failure is not None:
            problem = f"the disk failed before ({self._failure}); restart the node once the disk is repaired"
            raise StorageStopped(problem) from self._failure
        try:
            yield
        except OSError as error:
            self._failure = error
            raise

    def _open_segment(self) -> None:
        """Begin a segment; it is written with what is saved next."""
        last = self._layout.last_index
        self._sequences.append(self._sequences[-1] + 1 if self._sequences else 1)
        self._start = SegmentStart(self._sequences[-1], last, self._layout.term(last) or 0, self._hard_state)
        self._size = 0
        self._roll = False

    def _write(self, records: list[log_records.Record]) -> None:
        name = _segment_name(self._sequences[-1])
        if self._start is not None:
            records = [log_records.segment_record(self._start), *records]
        data = log_records.encode_save(records, sequence=self._sequences[-1], position=self._size)
        while log_records.ends_in_one_bit(data, position=self._size):
            records = [*records, log_records.hard_state_record(self._hard_state)]
            data = log_records.encode_save(records, sequence=self._sequences[-1], position=self._size)
        self._disk.append(name, data)
        self._disk.sync(name)
        if self._start is not None:
            self._disk.sync_folder()
            self._start = None
        self._size += len(data)

    def _begin_if_void(self) -> None:
        """Write down that the log goes on after a snapshot, before older segments are deleted."""
        if self._roll and self._sequences:
            self._open_segment()
            self._write([])

    def _need_segment(self) -> None:
        """A snapshot without a segment looks like a node that lost its votes, so there must be one first."""
        if not self._sequences:
            self._open_segment()
            self._write([])

    def _discard_partial(self) -> None:
        self._partial = None
        self._disk.delete(PARTIAL_NAME)
        self._disk.sync_folder()

    def _add_snapshot(self, meta: SnapshotMeta) -> None:
        others = [known for known in self._snapshots if known.index != meta.index]
        self._snapshots = sorted([*others, meta], key=lambda each: each.index)

    def _align(self, meta: SnapshotMeta) -> bool:
        """Make all entries void unless they agree with the snapshot at its index; returns whether they do."""
        layout = self._layout
        if layout.base_index <= meta.index <= layout.last_index:
            known = layout.term(meta.index)
            if known is None or known == meta.term:
                return True
        layout.reset(meta.index, meta.term)
        self._roll = True
        return False

    def _join(self, snapshot: SnapshotMeta | None, entries: list[Entry]) -> tuple[Entry, ...]:
        """The entries after the snapshot; raises `LogDamaged` if some between them are missing."""
        last_known = snapshot.index if snapshot is not None else 0
        if self._layout.base_index > last_known:
            name = _segment_name(self._sequences[0])
            have = f"snapshot {last_known}" if snapshot is not None else "no snapshot"
            raise LogDamaged(
                name, 0, f"the log begins after entry {self._layout.base_index}, and there is {have}"
            )
        if snapshot is None:
            return tuple(entries)
        if not self._align(snapshot):
            return ()
        return tuple(entries[snapshot.index - self._layout.base_index :])

    def _load_snapshots(self, names: Sequence[str]) -> None:
        self._snapshots = []
        for name in names:
            if not name.startswith(SNAPSHOT_PREFIX) or not name[len(SNAPSHOT_PREFIX) :].isdigit():
                continue
            try:
                meta, _ = log_records.check_snapshot(self._disk.read(name))
            except ValueError as error:
                log.error("snapshot is damaged and passed over", name=name, reason=str(error))
                continue
            self._add_snapshot(meta)

    def _load_segments(self, names: Sequence[str]) -> list[Entry]:
        prefix = len(SEGMENT_PREFIX)
        found = sorted(
            int(n[prefix:]) for n in names if n.startswith(SEGMENT_PREFIX) and n[prefix:].isdigit()
        )
        # Segments are deleted oldest first, but a crash may keep an old one and lose the deletion of its
        # neighbours: what counts is the run up to the newest. Whether that is enough, `_join` checks.
        begin = len(found) - 1
        while begin > 0 and found[begin - 1] == found[begin] - 1:
            begin -= 1
        self._sequences = found[max(0, begin) :]
        self._roll = not self._sequences
        entries: list[Entry] = []
        for sequence in list(self._sequences):
            self._load_segment(sequence, entries)
        if not self._sequences and self._snapshots:
            name = _snapshot_name(self._snapshots[-1].index)
            raise LogDamaged(
                name, 0, "there is no segment next to the snapshot, so the node's votes are lost"
            )
        return entries

    def _load_segment(self, sequence: int, entries: list[Entry]) -> None:
        name = _segment_name(sequence)
        content = self._disk.read(name)
        last = sequence == self._sequences[-1]
        scan = log_records.scan_segment(content, sequence=sequence, last=last)
        match scan.fault:
            case Damaged(position, reason):
                raise LogDamaged(name, position, reason)
            case Torn(position, reason):
                log.warning(
                    "truncate the torn end of the log",
                    name=name,
                    position=position,
                    bytes=len(content) - position,
                    reason=reason,
                )
            case None:
                pass
        if not scan.records and not last:
            raise LogDamaged(name, 0, "the segment is empty, but there is a newer one")
        for position, record in scan.records:
            problem = self._replay(sequence, position, record, entries)
            if problem is not None:
                raise LogDamaged(name, position, problem)
        if last:
            self._tail = content[: scan.end]

    def _repair(self, names: Sequence[str]) -> None:
        """Once it is clear that nothing is missing: remove leftovers, write the last segment again."""
        kept = {_segment_name(sequence) for sequence in self._sequences}
        for name in names:
            stale = name.startswith(SEGMENT_PREFIX) and name not in kept
            if stale or name.endswith(".tmp") or name == PARTIAL_NAME:
                self._disk.delete(name)
        if self._sequences and self._tail:
            replace_file(self._disk, _segment_name(self._sequences[-1]), self._tail)
            self._size = len(self._tail)
        elif self._sequences:
            self._disk.delete(_segment_name(self._sequences.pop()))
            self._roll = True
        self._tail = b""
        self._disk.sync_folder()

    def _replay(
        self, sequence: int, position: int, record: log_records.Record, entries: list[Entry]
    ) -> str | None:
        """Carry out one record at the start; returns what is wrong with it."""
        layout = self._layout
        if position == 0 or record.kind is RecordKind.SEGMENT:
            try:
                start = log_records.record_segment(record)
            except ValueError as error:
                return str(error)
            if position != 0 or start.sequence != sequence:
                return "a segment's header stands where it does not belong"
            if start.hard_state.term < self._hard_state.term:
                return f"term {start.hard_state.term} follows {self._hard_state.term}"
            self._begin(start, entries)
            return None
        if record.kind is RecordKind.HARD_STATE:
            try:
                state = log_records.record_hard_state(record)
            except ValueError as error:
                return str(error)
            if state.term < self._hard_state.term:
                return f"term {state.term} follows {self._hard_state.term}"
            self._hard_state = state
            return None
        if not 0 < record.index <= layout.last_index + 1:
            return f"entry {record.index} follows {layout.last_index}"
        layout.place(record.index, record.term, sequence)
        del entries[record.index - 1 - layout.base_index :]
        entries.append(log_records.record_entry(record))
        return None

    def _begin(self, start: SegmentStart, entries: list[Entry]) -> None:
        layout = self._layout
        self._hard_state = start.hard_state
        known = layout.term(start.base_index)
        if (
            start.sequence == self._sequences[0]
            or known not in (None, start.base_term)
            or (not layout.base_index <= start.base_index <= layout.last_index)
        ):
            layout.reset(start.base_index, start.base_term)
            entries.clear()
        else:
            layout.truncate_after(start.base_index)
            del entries[start.base_index - layout.base_index :]


def _first(pair: tuple[int, int | None]) -> int:
    return pair[0]


def _segment_name(sequence: int) -> str:
    return f"{SEGMENT_PREFIX}{sequence:016d}"


def _snapshot_name(index: int) -> str:
    return f"{SNAPSHOT_PREFIX}{index:020d}"


def _ids(members: Configuration) -> list[int]:
    return [member.node_id for member in members.members]
