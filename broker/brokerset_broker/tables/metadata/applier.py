"""Goes along the queue of the metadata topic and applies its records, up to an offset that it is given.

It knows no clock and no tasks: whoever drives it says how far it may go, and how much at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Protocol

import structlog

from brokerset_broker.store.errors import StoreRefused
from brokerset_broker.tables.metadata import records
from brokerset_broker.tables.metadata.records import (
    Change,
    Entry,
    Kind,
    Skipped,
    SnapshotBegin,
    SnapshotChunk,
    SnapshotEnd,
)
from brokerset_broker.tables.metadata.snapshot import Assembly, ChunkCheck, MetadataState
from brokerset_formats.errors import FormatError
from brokerset_formats.hashing import java_hash
from brokerset_formats.queue_units import UNIT_SIZE

log = structlog.get_logger(__name__)

TURN_RECORDS_MAX: Final = 64
"""Records applied in one turn of the loop."""

TURN_BYTES_MAX: Final = 512 * 1024
"""Bytes of records applied in one turn of the loop, after the first."""

UNITS_AT_ONCE: Final = 1_024
"""Units of the queue that are read together when a snapshot is searched."""

_END_CODE: Final = java_hash(records.tag(Kind.SNAPSHOT_END))


class RecordSource(Protocol):
    """The metadata topic's queue, and the bounds of the log."""

    @property
    def min_offset(self) -> int:
        """Offset of the oldest byte of the log."""

    @property
    def queue_min(self) -> int:
        """Number of the oldest record that is still there."""

    @property
    def queue_max(self) -> int:
        """The number that the next record gets."""

    def units(self, queue_offset: int, count: int) -> Sequence[tuple[int, int, int]]:
        """Offset in the log, size and tags code of up to `count` records from `queue_offset` on."""

    def read(self, offset: int, size: int) -> bytes | None:
        """The body of the record at an offset; `None` if it is not there (any more).

        Raises FormatError if it is damaged.
        """


class Target(Protocol):
    """What changes are applied to."""

    def apply(self, change: Change, offset: int) -> None:
        """Apply what the record at `offset` of the log says; doing it twice is doing it once."""

    def begin_queues(self, topic: str, ends: Mapping[int, int]) -> None:
        """Let queues that nothing is known of go on with these numbers. Raises `StoreRefused`."""

    def take_over(self, state: MetadataState) -> None:
        """Become `state`, but for its queues, touching only what differs."""


class Applier:
    """The cursor of one replica."""

    def __init__(self, source: RecordSource, target: Target) -> None:
        self._source = source
        self._target = target
        self._restoring: Iterator[int] | None = None
        self._older_below = -1
        self._passing: ChunkCheck | None = None
        self.position = 0
        """Number of the next record to read."""
        self.applied = 0
        """Everything below this offset of the log is in the tables."""
        self.exact = False
        """Whether the tables are precisely what the log below `applied` says."""
        self.problem: str | None = None
        """Why records are not applied any more."""
        self.own: dict[int, None] = {}
        """Numbers of records that are in the tables already, because this broker wrote them there first."""
        self.snapshot_from = -1
        """Where replaying begins for the newest complete snapshot that was passed; -1 without one."""
        self.snapshot_end = -1
        """Offset behind that snapshot."""

    # -- where to begin -----------------------------------------------------------------------------------

    def begin_at(self, offset: int, *, exact: bool) -> None:
        """The tables have what the log says below `offset`; go on from there."""
        self._restoring = None
        self._older_below = -1
        self.problem = None
        self.own.clear()
        self.applied = offset
        self.exact = exact
        self.position = self._first_from(offset)

    def _first_from(self, offset: int) -> int:
        """The number of the first record at or behind an offset of the log."""
        low, high = self._source.queue_min, self._source.queue_max
        while low < high:
            middle = (low + high) // 2
            found = self._source.units(middle, 1)
            if not found or found[0][0] < offset:
                low = middle + 1
            else:
                high = middle
        return low

    def has_gap(self) -> bool:
        """Whether the log begins behind what is in the tables, so that records may be missing between."""
        return self.applied < self._source.min_offset

    def find_snapshot(self, limit: int) -> tuple[int, SnapshotEnd, int] | None:
        """The newest complete snapshot that ends at or below `limit`: number of its END, END, offset behind.

        Only such whose records are all there count; whether they match END shows when they are read.
        """
        source = self._source
        stop = source.queue_max
        while stop > source.queue_min:
            start = max(source.queue_min, stop - UNITS_AT_ONCE)
            units = source.units(start, stop - start)
            for number in range(start + len(units) - 1, start - 1, -1):
                offset, size, code = units[number - start]
                if code != _END_CODE or offset + size > limit:
                    continue
                end = self._read_end(offset, size)
                if end is not None and self._is_whole(end):
                    return number, end, offset + size
            stop = start
        return None

    def _read_end(self, offset: int, size: int) -> SnapshotEnd | None:
        try:
            entry = self._read(offset, size)
        except FormatError as error:
            log.warning("a snapshot's end cannot be read", offset=offset, reason=error.reason)
            return None
        return entry if isinstance(entry, SnapshotEnd) else None

    def _is_whole(self, end: SnapshotEnd) -> bool:
        return end.begin >= self._source.queue_min and end.replay_from >= self._source.min_offset

    def restore_newest(self, limit: int) -> bool:
        """Begin to restore the newest snapshot that ends at or below `limit`; False if there is none.

        `advance` carries it out.
        """
        found = self.find_snapshot(limit)
        if found is None:
            return False
        number, end, behind = found
        log.info("metadata is restored from a snapshot", begin=end.begin, replay_from=end.replay_from)
        self.problem = None
        self.exact = False
        self.own.clear()
        self.position = number + 1
        self.applied = behind
        self._restoring = self._restore(number, end, behind)
        self._older_below = behind - 1
        return True

    # -- going on -----------------------------------------------------------------------------------------

    @property
    def restoring(self) -> bool:
        """Whether a snapshot is being read; the tables are not what `applied` says until that is done."""
        return self._restoring is not None

    def advance(self, limit: int) -> bool:
        """Apply records that end at or below `limit`, a turn's worth; whether there are more of them."""
        spent = count = 0
        while self.problem is None:
            if self._restoring is not None:
                cost = next(self._restoring, None)
                if cost is None:
                    self._restored()
                    continue
            else:
                cost = self._step(limit)
                if cost is None:
                    if limit > self.applied:
                        self.applied = limit
                    return False
            spent += cost
            count += 1
            if count >= TURN_RECORDS_MAX or spent >= TURN_BYTES_MAX:
                return self._restoring is not None or self._has_next(limit)
        return False

    def pass_over(self, limit: int) -> bool:
        """Note that there is no further record below `limit`; False if there may be one, or more to do."""
        if (
            self.position != self._source.queue_max
            or self._restoring is not None
            or self.problem is not None
            or self.has_gap()
        ):
            return False
        if limit > self.applied:
            self.applied = limit
        return True

    def _restored(self) -> None:
        """The end of a snapshot's restoration. If it was no good, an older one has to do, or all records."""
        self._restoring = None
        below, self._older_below = self._older_below, -1
        if self.exact or below < 0 or self.restore_newest(below):
            return
        log.warning("no snapshot can be read: records are applied to what the files say")
        self.begin_at(self._source.min_offset, exact=False)

    def _has_next(self, limit: int) -> bool:
        found = self._source.units(self.position, 1)
        if found and found[0][0] + found[0][1] <= limit:
            return True
        self.applied = max(self.applied, limit)
        return False

    def _step(self, limit: int) -> int | None:
        """Examine the next record; its size, or `None` if there is none below `limit`."""
        source = self._source
        if self.position < source.queue_min:
            self.position = source.queue_min
        found = source.units(self.position, 1)
        if not found:
            return None
        offset, size, code = found[0]
        if offset + size > limit:
            return None
        if self.position in self.own:
            del self.own[self.position]
            if code == _END_CODE:
                self._passed_end(self._read_end(offset, size), offset + size)
        else:
            try:
                self._take(self._read(offset, size), offset, offset + size)
            except FormatError as error:
                self.problem = f"metadata record at offset {offset} of the commit log: {error}"
                log.error("metadata is not applied any more", offset=offset, reason=str(error))
                return None
        self.position += 1
        self.applied = max(self.applied, offset + size)
        return size

    def _take(self, entry: Entry | Skipped | None, offset: int, behind: int) -> None:
        match entry:
            case None:
                log.warning("a metadata record is gone", offset=offset)
            case Skipped():
                log.warning("a metadata record is skipped", offset=offset, reason=entry.reason)
            case SnapshotBegin():
                self._passing = ChunkCheck(self.position)
            case SnapshotChunk():
                if self._passing is not None:
                    self._passing.add(entry)
            case SnapshotEnd():
                if self.exact and not entry.replaces:
                    if self._passing is not None and self._passing.matches(entry):
                        self._passed_end(entry, behind)
                elif self._is_whole(entry):
                    self._restoring = self._restore(self.position, entry, behind)
            case _:
                self._target.apply(entry, offset)

    def _passed_end(self, end: SnapshotEnd | None, behind: int) -> None:
        if end is not None and self._is_whole(end):
            self.snapshot_from, self.snapshot_end = end.replay_from, behind

    def _read(self, offset: int, size: int) -> Entry | Skipped | None:
        data = self._source.read(offset, size)
        return None if data is None else records.decode(data)

    def _restore(self, end_number: int, end: SnapshotEnd, behind: int) -> Iterator[int]:
        """Read a snapshot, replay what lies next to it, take that over; yields the size of what was read."""
        assembly = Assembly(end.begin)
        later: list[tuple[int, Change]] = []
        try:
            first = min(end.begin, self._first_from(end.replay_from))
            for number in range(first, end_number):
                found = self._source.units(number, 1)
                if not found:
                    continue
                offset, size, _ = found[0]
                entry = self._read(offset, size)
                if isinstance(entry, SnapshotChunk):
                    assembly.add(entry)
                elif isinstance(entry, Change) and offset >= end.replay_from:
                    later.append((offset, entry))
                yield size
        except FormatError as error:
            log.warning("a snapshot is ignored: a record cannot be read", begin=end.begin, reason=str(error))
            return
        problem = assembly.problem(end)
        if problem is not None:
            log.warning("a snapshot is ignored: it is not whole", begin=end.begin, reason=problem)
            return
        for _, change in later:
            assembly.state.apply(change)
            yield 0
        try:
            for topic, ends in assembly.state.queue_ends.items():
                self._target.begin_queues(topic, ends)
                yield UNIT_SIZE * sum(ends.values())  # so much may be written, as blank units
        except StoreRefused as refused:
            log.error("a snapshot cannot be taken over", begin=end.begin, reason=refused.reason)
            return
        self._target.take_over(assembly.state)
        self.exact = True
        self._passed_end(end, behind)
