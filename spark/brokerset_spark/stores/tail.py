"""How far a store may be read: where its log ends, and what of that is sure while a broker writes.

Bytes behind the end of a log mean nothing: zeros, or records that were cut off and never wiped. The end is
therefore found by walking from a place where a record surely begins, never by searching.
"""

from __future__ import annotations

import fcntl
import os
import struct
from dataclasses import dataclass
from typing import Final, Literal

from brokerset_formats.dledger import ENTRY_HEAD_SIZE, INDEX_UNIT_SIZE, LedgerCheckpoint, LedgerUnit
from brokerset_formats.errors import FormatError
from brokerset_formats.hosts import HOST_SIZE_V6
from brokerset_formats.records import STORE_TIMESTAMP_POSITION, store_timestamp_at
from brokerset_spark.kernels import KERNELS, PROBLEMS, Kernels, Stop
from brokerset_spark.stores.folder import LocalFolder, StoreFolder, read_all
from brokerset_spark.stores.layout import Log, StoreFacts, read_log
from brokerset_spark.stores.reading import Chunk, Outcome, Range, Throttle, read_range
from brokerset_spark.stores.searching import find_start

TailBound = Literal["auto", "confirm", "checkpoint", "crc", "end"]
"""`confirm`: what the broker confirmed. `checkpoint`: what its checkpoint file says. `crc`: the last record
with a right CRC, held back until another follows while a broker may write. `end`: that record as well.
`auto`: see `bound_of`."""

TAIL_BOUNDS: Final[tuple[TailBound, ...]] = ("auto", "confirm", "checkpoint", "crc", "end")

HEAD_BYTES: Final = 4096
"""Bytes at the beginning of a file that tell whether a record begins there."""

ZEROS_MAX: Final = 4 << 20
"""How far behind zeros more records are looked for: a hole that a file system left is shorter, and the rest
of a file that was made in advance is long."""

_STALE_MAX: Final = 100_000
"""Records that are looked at behind the end of a log."""

_HEAD_SIZE: Final = STORE_TIMESTAMP_POSITION + HOST_SIZE_V6 + 8

_LOCK: Final = struct.Struct("hhqqi")
"""`struct flock` of Linux on 64 bits: type, whence, start, length, process; the compiler's padding
included."""


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Where a log ends."""

    offset: int
    """Behind its last whole record; behind a file that a blank record closes."""

    last: int
    """Offset of the last record that was walked over; -1 if none was."""

    stop: Stop
    """What is there instead of a record."""

    @property
    def held_back(self) -> int:
        """The end without the last record, unless something that was written later follows it."""
        return self.offset if self.stop is Stop.BLANK or self.last < 0 else self.last


@dataclass(frozen=True, slots=True)
class Bound:
    """How far a log may be read, and for what reason."""

    offset: int
    reason: str
    """`end`: nothing is written any more. `confirm`, `checkpoint`, `committed`, `crc`: see `TailBound`."""

    end: LogEnd | None = None


def walk_end(
    folder: StoreFolder,
    log: Log,
    start: int,
    *,
    entries: bool = False,
    crc: bool = False,
    bound: int = 2**63 - 1,
    kernels: Kernels = KERNELS,
    throttle: Throttle | None = None,
) -> LogEnd:
    """Walk from `start`, where a record begins (or the log ends), over files and their blank records.

    Files without a record at their beginning do not belong to the log yet: brokers make them in advance.
    """
    end = LogEnd(start, -1, Stop.EMPTY)
    for file in log.files:
        if file.end <= start or file.base >= bound:
            continue
        begin = max(file.base, start)
        outcome = Outcome(begin, begin)
        wanted = Range(file.path, file.base, file.size, begin, file.end, entries, bound, exact_start=True)
        last = -1
        for chunk in read_range(folder, wanted, outcome, crc=crc, kernels=kernels, throttle=throttle):
            last = _last(chunk, entries) if len(chunk.starts) else last
        if last < 0 and outcome.stop is Stop.EMPTY and begin == file.base and end.stop is Stop.BLANK:
            return end
        closed = outcome.stop is Stop.BLANK or outcome.end == file.end
        end = LogEnd(
            file.end if closed else outcome.end,
            last if last >= 0 else end.last,
            Stop.BLANK if closed else outcome.stop,
        )
        if not closed:
            return end
    return end


def _last(chunk: Chunk, entries: bool) -> int:
    """Where the last record of a chunk begins; in a DLedger its entry."""
    return chunk.base + int(chunk.starts[-1]) - (ENTRY_HEAD_SIZE if entries else 0)


def measure_end(
    folder: StoreFolder,
    log: Log,
    *,
    entries: bool = False,
    crc: bool = False,
    since: int | None = None,
    kernels: Kernels = KERNELS,
) -> LogEnd:
    """Where a log ends: walks its last file that begins with a record, or from `since`. OSError as from the
    folder."""
    for file in reversed(log.files):
        if since is not None and file.base <= since < file.end:
            return walk_end(folder, log, since, entries=entries, crc=crc, kernels=kernels)
        head = Outcome(file.base, file.base)
        wanted = Range(
            file.path, file.base, file.size, file.base, file.base + 1, entries, file.base + HEAD_BYTES
        )
        try:
            for _ in read_range(folder, wanted, head, kernels=kernels, piece=HEAD_BYTES):
                pass
        except FileNotFoundError:
            continue
        if head.found or head.stop in (Stop.BLANK, Stop.SHORT):
            return walk_end(folder, log, file.base, entries=entries, crc=crc, kernels=kernels)
    return LogEnd(log.first, -1, Stop.EMPTY)


def align(
    folder: StoreFolder, log: Log, bound: int, *, since: int | None = None, entries: bool = False
) -> int:
    """The end of the last whole record below a bound; walks from `since` or from the beginning of a file."""
    for file in reversed(log.files):
        if file.base < bound:
            start = since if since is not None and file.base <= since <= bound else file.base
            return walk_end(folder, log, start, entries=entries, bound=bound).offset
    return bound


def find_newer(
    folder: StoreFolder, log: Log, end: LogEnd, *, entries: bool = False, kernels: Kernels = KERNELS
) -> int:
    """Offset of the first record behind the end that must have been written later: damage lies between;
    else -1.

    Records behind the end are normal after a log was cut, but those are older than what was written since,
    which their store times tell. Behind zeros only the next `ZEROS_MAX` bytes are looked at.
    """
    file = log.at(end.offset)
    if file is None or end.stop in (Stop.BLANK, Stop.SHORT, Stop.RANGE_END):
        return -1
    limit = file.end if end.stop in PROBLEMS else min(file.end, end.offset + ZEROS_MAX)
    wanted = Range(file.path, file.base, file.size, end.offset, limit, entries, limit)
    newest = 0 if end.last < 0 else _store_time(folder, log, end.last, entries)
    offset = end.offset
    for _ in range(_STALE_MAX):
        offset = find_start(folder, wanted, offset + 1, kernels)
        if offset >= limit:
            return -1
        if _store_time(folder, log, offset, entries) > newest:
            return offset
    return -1


def _store_time(folder: StoreFolder, log: Log, offset: int, entries: bool) -> int:
    file = log.at(offset)
    if file is None:
        return 0
    raw = bytearray(_HEAD_SIZE + (ENTRY_HEAD_SIZE if entries else 0))
    folder.read_into(file.path, offset - file.base, memoryview(raw))
    return store_timestamp_at(raw, ENTRY_HEAD_SIZE if entries else 0)


def find_end(folder: StoreFolder, log: Log, *, entries: bool = False) -> int:
    """Offset behind the last record of a log; see `measure_end`. Give it to `split` as `bound`."""
    return measure_end(folder, log, entries=entries).offset


def is_written(folder: StoreFolder, facts: StoreFacts) -> bool:
    """Whether a broker may be writing the store now.

    A broker holds a lock on the file `lock` and leaves a file `abort` while it runs. Who sees the lock of
    another process knows; elsewhere (another machine, a copy) `abort` decides, which a killed broker
    leaves, too.
    """
    locked = _is_locked(folder)
    return facts.aborted if locked is None else locked


def _is_locked(folder: StoreFolder) -> bool | None:
    """Whether another process of this machine holds the store's lock; None if that cannot be known."""
    if not isinstance(folder, LocalFolder):
        return None
    try:
        descriptor = os.open(folder.root / "lock", os.O_RDONLY)
    except OSError:
        return None
    try:
        asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, asked)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    # Nobody holds it here. That says nothing about a broker on another machine that shares the volume.
    return True if _LOCK.unpack(answer)[0] != fcntl.F_UNLCK else None


def bound_of(
    folder: StoreFolder,
    facts: StoreFacts,
    *,
    mode: TailBound = "auto",
    confirmed: int | None = None,
    since: int | None = None,
    kernels: Kernels = KERNELS,
) -> Bound:
    """How far the store may be read now. What brokers confirm may end inside a record.

    `since`, where a record begins or the log was found to end earlier, saves walking from further back.

    With `auto`: what the broker confirmed if that is given or the folder's broker tells it, a DLedger up to
    its committed entry, a store that nobody writes to its end, another up to the confirmed offset of its
    checkpoint, else up to its last record, exclusive. ValueError if `confirm` or `checkpoint` is asked for
    and there is no such offset.
    """
    entries = bool(facts.ledger.files)
    log = facts.ledger if entries else facts.commit_log
    if mode in ("auto", "confirm"):
        confirmed = folder.confirmed_offset() if confirmed is None else confirmed
        if confirmed is not None:
            return Bound(confirmed, "confirm")
    if mode == "confirm":
        raise ValueError(
            "tailBound=confirm needs the confirmed offset of the broker (option confirmedOffset)"
        )
    if entries and mode in ("auto", "checkpoint"):
        committed = committed_end(folder, facts)
        if committed is not None:
            return Bound(committed, "committed")
    stored = _checkpointed(facts)
    if mode == "checkpoint":
        if entries or stored is None:
            raise ValueError(f"{facts.url}: its checkpoint has no confirmed offset; use tailBound=crc")
        return Bound(stored, "checkpoint")
    live = mode != "end" and is_written(folder, facts)
    if live and mode == "auto" and stored is not None and not entries:
        return Bound(stored, "checkpoint")
    end = measure_end(
        folder, log, entries=entries, crc=live or mode in ("crc", "end"), since=since, kernels=kernels
    )
    if live:
        return Bound(end.held_back, "crc", end)
    return Bound(end.offset, "end", end)


def _checkpointed(facts: StoreFacts) -> int | None:
    if facts.checkpoint is None:
        return None
    return facts.checkpoint.confirm_phy_offset or None


def committed_end(folder: StoreFolder, facts: StoreFacts) -> int | None:
    """Offset behind the committed entry of a DLedger; None if that cannot be told."""
    raw = read_all(folder, f"dledger-{facts.ledger_id}/checkpoint")
    if raw is None:
        return None
    try:
        index = LedgerCheckpoint.decode(raw).committed_index
    except FormatError:
        return None
    if index < 0:
        return None
    file = facts.ledger_index.at(index * INDEX_UNIT_SIZE)
    if file is None:
        return None
    unit = bytearray(INDEX_UNIT_SIZE)
    if folder.read_into(file.path, index * INDEX_UNIT_SIZE - file.base, memoryview(unit)) < len(unit):
        return None
    try:
        found = LedgerUnit.decode(unit)
    except FormatError:
        return None
    return found.position + found.size if found.index == index else None


def is_expired(folder: StoreFolder, wanted: Range) -> bool:
    """Whether the file of a range that is gone was deleted for its age: the log begins behind it now."""
    log = read_log(folder, wanted.path.rpartition("/")[0])
    return bool(log.files) and log.first >= wanted.base + wanted.size
