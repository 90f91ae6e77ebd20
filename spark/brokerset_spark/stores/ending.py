"""Where a log ends: the one decision that all jobs and data sources share.

Bytes behind the end of a log mean nothing: zeros, or records that were truncated and never wiped. The end is
therefore found by walking from a place where a record surely begins. A place without a record is the end only
if no whole record that was stored later follows: otherwise it is a hole, which is damage, and the log goes on
behind it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from brokerset_formats.checkpoints import SAFETY_MS, StoreCheckpoint
from brokerset_formats.dledger import ENTRY_HEAD_SIZE
from brokerset_formats.hosts import HOST_SIZE_V6
from brokerset_formats.queue_units import QueueUnit
from brokerset_formats.records import (
    BLANK_SIZE_MIN,
    OFFSET_POSITION,
    STORE_TIMESTAMP_POSITION,
    store_timestamp_at,
)
from brokerset_spark.kernels import PROBLEMS, Stop
from brokerset_spark.stores.folder import StoreFolder
from brokerset_spark.stores.layout import Log, LogFile, StoreFacts
from brokerset_spark.stores.reading import Outcome, Range, Throttle, read_range
from brokerset_spark.stores.searching import find_whole
from brokerset_spark.stores.units import is_written, units_of

StoreState = Literal["closed", "left", "live"]
"""`closed`: in order. `left`: with the file `abort`, and nobody here holds the lock: its broker crashed, or
runs elsewhere. `live`: a broker holds the lock."""

HEAD_BYTES: Final = 4096
"""Bytes at the beginning of a file that tell whether a record begins there."""

ZEROS_MAX: Final = 4 << 20
"""How far behind zeros newer records are searched in a store that is written or followed: a hole that a
file system left is shorter, and the rest of a file that was made in advance is long. Elsewhere: to the end of
the files."""

HOLES_MAX: Final = 10_000
"""Holes of one log that are walked over; behind the last of them the log is taken to end."""

_STALE_MAX: Final = 100_000
"""Records that are read behind the end of a log."""

_BYTES_AT_ONCE: Final = 64 << 10

_RETRIES_MAX: Final = 100
"""How often the place that a broker is writing is walked again before it counts as a hole."""

_HEAD_SIZE: Final = STORE_TIMESTAMP_POSITION + HOST_SIZE_V6 + 8


@dataclass(frozen=True, slots=True)
class Hole:
    """A place where no record can be read though the log goes on behind it."""

    begin: int
    end: int
    """Offset of the first whole record behind it, or where the log goes on."""

    stop: Stop
    """What is there instead of a record."""

    path: str


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Where a log ends."""

    offset: int
    """Behind its last whole record; behind a file that a blank record closes."""

    last: int
    """Offset of the last record that was walked over; -1 if none was."""

    stop: Stop
    """What is there instead of a record."""

    records: int = field(default=0, compare=False)
    """Whole records (in a DLedger entries with a message) that were walked over."""

    holes: tuple[Hole, ...] = ()
    """Damage before `offset`, from where the walk began."""

    behind: int = 0
    """Whole records behind the first hole."""

    debris: bool = field(default=False, compare=False)
    """Whether bytes that are no record lie behind the end of a store that nobody surely writes: of a record
    that was torn or truncated, or whose beginning is damaged."""

    @property
    def held_back(self) -> int:
        """The end without the last record, unless something that was written later follows it."""
        followed = self.stop is Stop.BLANK or (bool(self.holes) and self.last < self.holes[-1].begin)
        return self.offset if followed or self.last < 0 else self.last

    @property
    def whole(self) -> int:
        """Up to where records follow each other without a hole."""
        return self.holes[0].begin if self.holes else self.offset


@dataclass(frozen=True, slots=True)
class Lost:
    """Messages that somebody knows of and that no file has, behind the end of the log."""

    begin: int
    end: int
    """Up to where they are known to reach."""

    messages: int
    """How many queues have; 0 if only the checkpoint says so."""

    who: str
    """Who knows; nobody if the last file is shorter than the others."""

    crash: bool
    """Whether a crash of the machine explains it: nobody says that they were on disk."""

    def text(self) -> str:
        """For people."""
        if not self.who:
            return f"the last file ends at {self.begin}, {self.end - self.begin} bytes too early"
        many = f"{self.messages} messages" if self.messages else "messages"
        said = f"the log ends at {self.begin}, and {self.who} knows of {many} behind it, up to {self.end}"
        return (
            f"{said}: a crash lost them before they were on disk" if self.crash else f"{said}: they are lost"
        )


@dataclass(frozen=True, slots=True)
class LogWalk:
    """A log that is walked over, and how its records are checked. OSError as from the folder."""

    folder: StoreFolder
    log: Log
    entries: bool = False
    crc: bool = False

    @property
    def shift(self) -> int:
        """Where a record begins in what the log consists of."""
        return ENTRY_HEAD_SIZE if self.entries else 0

    def _range(self, file: LogFile, start: int, end: int, bound: int, *, exact_start: bool = False) -> Range:
        return Range(file.path, file.base, file.size, start, end, self.entries, bound, exact_start)

    def walk(self, start: int, bound: int = 2**63 - 1, throttle: Throttle | None = None) -> LogEnd:
        """Walk from `start`, where a record begins (or the log ends), over files and their blank records.

        Files without a record at their beginning do not belong to the log yet: brokers make them in advance.
        """
        end, records = LogEnd(start, -1, Stop.EMPTY), 0
        for file in self.log.files:
            if file.end <= start or file.base >= bound:
                continue
            begin = max(file.base, start)
            outcome = Outcome(begin, begin)
            wanted = self._range(file, begin, file.end, bound, exact_start=True)
            last = -1
            chunks = read_range(self.folder, wanted, outcome, crc=self.crc, throttle=throttle)
            for chunk in chunks:
                last = chunk.base + int(chunk.starts[-1]) - self.shift if len(chunk.starts) else last
                records += len(chunk.starts)
            if last < 0 and outcome.stop is Stop.EMPTY and begin == file.base and end.stop is Stop.BLANK:
                return replace(end, records=records)
            closed = outcome.stop is Stop.BLANK or outcome.end == file.end
            end = LogEnd(
                file.end if closed else outcome.end,
                last if last >= 0 else end.last,
                Stop.BLANK if closed else outcome.stop,
                records,
            )
            if not closed:
                return end
        return end

    def measure(self, since: int | None = None) -> LogEnd:
        """Where the first place without a record is: walks the last file that begins with a record, or from
        `since`.

        For the end of a log use `find_end`.
        """
        for file in reversed(self.log.files):
            if since is not None and file.base <= since < file.end:
                return self.walk(since)
            head = Outcome(file.base, file.base)
            wanted = self._range(file, file.base, file.base + 1, file.base + HEAD_BYTES)
            try:
                for _ in read_range(self.folder, wanted, head, piece=HEAD_BYTES):
                    pass
            except FileNotFoundError:
                continue
            if head.found or head.stop in (Stop.BLANK, Stop.SHORT):
                return self.walk(file.base)
        return self.walk(self.log.first)

    def find_end(self, state: StoreState, since: int | None = None) -> LogEnd:
        """The end of the log. A bad place with newer whole records behind it is a hole; the end lies behind
        those.

        In a `closed` store a bad record at the very end is damage, too, up to the end of its file. In a
        `live` one the place is walked again first, as the broker may have written it meanwhile. `since`,
        where a record begins or the log was found to end earlier, saves walking from further back.
        """
        near = state == "live" or since is not None
        return self.follow(self.measure(since), state, near=near)

    def follow(
        self,
        end: LogEnd,
        state: StoreState,
        *,
        near: bool = False,
        tell_debris: bool = True,
        throttle: Throttle | None = None,
    ) -> LogEnd:
        """The end of a log of which a walk has found the first place without a record; see `find_end`.

        With `near` records behind zeros are searched as far as `ZEROS_MAX`. Without `tell_debris` nothing is
        read to find out about it.
        """
        holes: list[Hole] = []
        records, behind, retries = end.records, 0, 0
        while len(holes) < HOLES_MAX:
            newer = self.find_newer(end, near=near, throttle=throttle)
            if newer < 0:
                break
            if state != "closed" and retries < _RETRIES_MAX:
                again = self.walk(end.offset)
                if again.offset > end.offset:  # it was being written
                    retries += 1
                    records += again.records
                    behind += again.records if holes else 0
                    end = replace(again, last=again.last if again.last >= 0 else end.last)
                    continue
            at = self.log.at(end.offset) or self.log.files[-1]
            holes.append(Hole(end.offset, newer, end.stop, at.path))
            on = self.walk(newer)
            records, behind = records + on.records, behind + on.records
            end = replace(on, last=on.last if on.last >= 0 else end.last)
        for file in self.log.files:
            if not file.base <= end.offset < file.end:
                continue
            bad = end.stop in PROBLEMS and self._is_damage(file, end, state)
            # A file made in advance has zeros only. Of a closed store queues and checkpoint tell.
            at_base = state == "left" and end.offset == file.base
            debris = (
                state != "live" and (tell_debris or at_base) and self._has_bytes(file, end.offset, throttle)
            )
            if not bad and not (debris and at_base):
                end = replace(end, debris=debris)
                break
            holes.append(Hole(end.offset, file.end, end.stop, file.path))
            on = self.walk(file.end)
            end = replace(on, offset=max(on.offset, file.end), last=end.last)
        return replace(end, records=records, holes=tuple(holes), behind=behind)

    def find_newer(self, end: LogEnd, *, near: bool = False, throttle: Throttle | None = None) -> int:
        """Offset of the first whole record behind the end that was not stored earlier than what lies before
        it (or of the blank record that closes the file): damage lies between; -1 if there is none.

        Records behind the end are normal after a log was truncated, but those are older than what was written
        since, which their store times tell.
        """
        if end.stop in (Stop.SHORT, Stop.RANGE_END):
            return -1
        newest: int | None = None
        left, took = _STALE_MAX, throttle.took if throttle is not None else None
        for file in self.log.files:
            if file.end <= end.offset:
                continue
            at = max(file.base, end.offset + (end.stop is not Stop.BLANK))
            limit = min(file.end, at + ZEROS_MAX) if near and end.stop not in PROBLEMS else file.end
            wanted = self._range(file, at, limit, limit)
            stale = file.base > end.offset or end.stop is Stop.BLANK
            while at < limit and left:
                at, is_blank = find_whole(self.folder, wanted, at, took=took)
                if at >= limit:
                    break
                if is_blank:  # behind it nothing counts; behind old records it is as old
                    if not stale:
                        return at
                    break
                newest = self.newest_time(end) if newest is None else newest
                if self._store_time(file, at) >= newest:
                    return at
                stale, at, left = True, at + 1, left - 1
        return -1

    def newest_time(self, end: LogEnd) -> int:
        """Store time of the last whole record before the end, also if the walk began there; 0 without one."""
        last, file = end.last, self.log.at(max(end.offset - 1, self.log.first))
        if last < 0 and file is not None:
            last = replace(self, crc=False).walk(file.base, end.offset).last
        file = self.log.at(last) if last >= 0 else None
        return self._store_time(file, last) if file is not None else 0

    def _store_time(self, file: LogFile, offset: int) -> int:
        raw = bytearray(_HEAD_SIZE + self.shift)
        self.folder.read_into(file.path, offset - file.base, memoryview(raw))
        return store_timestamp_at(raw, self.shift)

    def _is_damage(self, file: LogFile, end: LogEnd, state: StoreState) -> bool:
        """Whether bad bytes behind which nothing newer follows are a damaged record, and no end.

        In a store that was closed: if they say that they are a record of this place, and not the middle of
        one that was truncated. At the beginning of a file there can be no such middle; a torn record begins
        as one there.
        """
        if state == "live":
            return False
        # What is checked before these is right; the magic of a record is not in the middle of one.
        ours = end.stop in (Stop.BAD_LENGTHS, Stop.BAD_OFFSET, Stop.BAD_CRC, Stop.BAD_INDEX)
        if not ours and file.end - end.offset >= BLANK_SIZE_MIN:
            place = (
                24 if self.entries else OFFSET_POSITION
            )  # of pos in an entry, of physicalOffset in a record
            raw = bytearray(place + 8)
            self.folder.read_into(file.path, end.offset - file.base, memoryview(raw))
            ours = int.from_bytes(raw[place:], "big") == end.offset
        at_base = end.offset == file.base
        return ours or at_base if state == "closed" else at_base and not ours and end.stop is Stop.BAD_MAGIC

    def _has_bytes(self, file: LogFile, offset: int, throttle: Throttle | None) -> bool:
        """Whether something else than zeros follows an offset, as far as `ZEROS_MAX`."""
        end = min(file.end, offset + ZEROS_MAX)
        while offset < end:
            raw = bytearray(min(end - offset, _BYTES_AT_ONCE))
            count = self.folder.read_into(file.path, offset - file.base, memoryview(raw))
            if throttle is not None:
                throttle.took(count)
            if raw.count(0, 0, count) < count:
                return True
            if count < len(raw):
                return False
            offset += count
        return False

    def find_lost(
        self, facts: StoreFacts, end: LogEnd, state: StoreState, newest_ms: int | None = None
    ) -> Lost | None:
        """What queues and the checkpoint know of behind the end of a log that nobody surely writes; None if
        nothing.
        """
        if state == "live" or not self.log.files:
            return None
        claims = queue_claims(self.folder, facts, end.offset)
        newest = self.newest_time(end) if newest_ms is None else newest_ms
        found = decide_lost(
            end.offset + self.shift, self.log.end + self.shift, claims, facts.checkpoint, newest, state
        )
        if found is not None and state == "left":  # a broker of another machine may have gone on
            again = replace(self, crc=True).walk(end.offset)
            if again.offset > end.offset:
                return None
        last, usual = self.log.files[-1], max(each.size for each in self.log.files)
        if last.size < usual and (found is None or found.crash):
            return Lost(last.end, last.base + usual, 0, "", False)
        return found


# -- what others know of ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QueueClaim:
    """Units of one queue that point behind the end of the log."""

    name: str
    units: tuple[QueueUnit, ...]
    """The first one or two of them, and the last."""

    messages: int


def queue_claims(folder: StoreFolder, facts: StoreFacts, end: int) -> list[QueueClaim]:
    """Queues with units that point at or behind an offset of the log; each is searched by halves."""
    found = []
    for queue in facts.queues:
        files = units_of(folder, queue)
        first, last = files.pointing(end)
        if first >= last:
            continue
        read = (files.read(each, 1)[0] for each in sorted({first, min(first + 1, last - 1), last - 1}))
        # Halves are led astray by damaged units, and find some that do not point there.
        units = tuple(
            QueueUnit(*each.item()) for each in read if is_written(each) and int(each["offset"]) >= end
        )
        if units:
            found.append(QueueClaim(f"queue {queue.topic}/{queue.queue_id}", units, last - first))
    return found


def decide_lost(
    end: int,
    files_end: int,
    claims: Iterable[QueueClaim],
    checkpoint: StoreCheckpoint | None,
    newest_ms: int,
    state: StoreState,
) -> Lost | None:
    """Judge claims on what lies behind the end of a log. Pure.

    One unit alone may be damaged itself: it is believed if it points exactly where the log ends or where the
    next file begins, or if a unit follows that fits. After a crash what was in memory only may be gone; what
    the checkpoint says was on disk may not, and files do not vanish.
    """
    messages, reach, who = 0, end, []
    for claim in claims:
        first, fits = claim.units[0], False
        if len(claim.units) > 1:
            fits = all(
                a.offset + a.size <= b.offset for a, b in zip(claim.units, claim.units[1:], strict=False)
            )
        if first.offset in (end, files_end) or fits:
            messages += claim.messages
            reach = max(reach, *(each.offset + each.size for each in claim.units if fits or each is first))
            who.append(claim.name)
    crash = state != "closed" and reach <= files_end
    if checkpoint is not None:
        marks = checkpoint.marks
        if marks is not None and marks.flushed_offset > end:
            reach, crash = max(reach, marks.flushed_offset), False
            who.append("the checkpoint's mark of what is on disk")
        elif newest_ms < checkpoint.physic_msg_timestamp - SAFETY_MS and who:
            crash = False
            who.append("the checkpoint")
    if not who:
        return None
    return Lost(end, reach, messages, ", ".join(who[:3]), crash)
