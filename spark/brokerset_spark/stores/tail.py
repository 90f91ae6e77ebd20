"""How far a store may be read: where its log ends (`ending`), and what of that is sure while a broker
writes."""

from __future__ import annotations

import fcntl
import os
import struct
from dataclasses import dataclass, field
from typing import Final, Literal

from brokerset_formats.dledger import INDEX_UNIT_SIZE, LedgerCheckpoint, LedgerUnit
from brokerset_formats.errors import FormatError
from brokerset_spark.kernels import PROBLEMS, Stop
from brokerset_spark.stores.ending import HOLES_MAX, LogEnd, LogWalk, Lost, StoreState
from brokerset_spark.stores.folder import LocalFolder, StoreFolder, read_all
from brokerset_spark.stores.layout import Log, StoreFacts, read_log
from brokerset_spark.stores.reading import Range
from brokerset_spark.stores.searching import find_whole

TailBound = Literal["auto", "confirm", "checkpoint", "crc", "end"]
"""`confirm`: what the broker confirmed. `checkpoint`: what its checkpoint file says. `crc`: the last record
with a right CRC, held back until another follows while a broker may write. `end`: that record as well.
`auto`: see `bound_of`."""

TAIL_BOUNDS: Final[tuple[TailBound, ...]] = ("auto", "confirm", "checkpoint", "crc", "end")

_LOCK: Final = struct.Struct("hhqqi")
"""`struct flock` of Linux on 64 bits: type, whence, start, length, process; the compiler's padding
included."""


@dataclass(frozen=True, slots=True)
class Bound:
    """How far a log may be read, and for what reason."""

    offset: int
    reason: str
    """`end`: nothing is written any more. `confirm`, `checkpoint`, `committed`, `crc`: see `TailBound`."""

    end: LogEnd | None = None
    lost: Lost | None = field(default=None, compare=False)
    """What is known to have been behind the end; only where the end was measured, or nobody surely writes."""

    state: StoreState = field(default="live", compare=False)
    held_back: int = field(default=0, compare=False)
    """Whole records behind the bound of a store that was not closed and that nobody here has open."""

    @property
    def exact(self) -> bool:
        """Whether a record surely ends there; what is confirmed may end inside one."""
        return self.reason not in ("confirm", "checkpoint")


def align(
    folder: StoreFolder, log: Log, bound: int, *, since: int | None = None, entries: bool = False
) -> int:
    """The end of the last whole record below a bound; walks from `since` or from the beginning of a file.

    Below a bound is what somebody vouches for, so damage on the way is walked over.
    """
    for file in reversed(log.files):
        if file.base < bound:
            start = since if since is not None and file.base <= since <= bound else file.base
            return _walk_over(folder, log, start, bound, entries)
    return bound


def _walk_over(folder: StoreFolder, log: Log, start: int, bound: int, entries: bool) -> int:
    walk = LogWalk(folder, log, entries)
    end = walk.walk(start, bound)
    for _ in range(HOLES_MAX):
        file = log.at(end.offset)
        if file is None or end.offset >= bound or end.stop not in (*PROBLEMS, Stop.EMPTY):
            break
        wanted = Range(file.path, file.base, file.size, end.offset, file.end, entries, bound)
        found, _ = find_whole(folder, wanted, end.offset + 1)
        if found >= wanted.limit:
            break
        end = walk.walk(found, bound)
    return end.offset


def is_written(folder: StoreFolder, facts: StoreFacts) -> bool:
    """Whether a broker may be writing the store now.

    A broker holds a lock on the file `lock` and leaves a file `abort` while it runs. Who sees the lock of
    another process knows; elsewhere (another machine, a copy) `abort` decides, which a killed broker
    leaves, too.
    """
    locked = _is_locked(folder)
    return facts.aborted if locked is None else locked


def state_of(folder: StoreFolder, facts: StoreFacts) -> StoreState:
    """Whether a broker has the store open here, or it was closed, or neither is known."""
    if _is_locked(folder):
        return "live"
    return "left" if facts.aborted else "closed"


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
    claims: bool = True,
) -> Bound:
    """How far the store may be read now. What brokers confirm may end inside a record.

    `since`, where a record begins or the log was found to end earlier, saves walking from further back; then,
    and without `claims`, nobody is asked for what is lost behind the end.

    With `auto`: what the broker confirmed if that is given or the folder's broker tells it, a DLedger up to
    its committed entry, a store that nobody writes to its end, another up to the confirmed offset of its
    checkpoint, else up to its last record, exclusive. ValueError if `confirm` or `checkpoint` is asked for
    and there is no such offset.
    """
    log, entries = facts.current
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
    if mode == "checkpoint" and (entries or stored is None):
        raise ValueError(f"{facts.url}: its checkpoint has no confirmed offset; use tailBound=crc")
    state = state_of(folder, facts)
    live = mode != "end" and is_written(folder, facts)
    if stored is not None and not entries and (mode == "checkpoint" or (live and mode == "auto")):
        return _checkpoint_bound(folder, facts, log, stored, state, claims and since is None)
    if mode == "end" and state == "live":
        state = "left"  # whoever asks for it says that nobody writes
    walk = LogWalk(folder, log, entries, crc=live or mode in ("crc", "end"))
    end = walk.find_end(state, since)
    lost = None
    if claims and since is None:
        lost = walk.find_lost(facts, end, state)
    if not live:
        return Bound(end.offset, "end", end, lost, state)
    held = int(end.held_back < end.offset and state == "left")
    return Bound(end.held_back, "crc", end, lost, state, held)


def _checkpoint_bound(
    folder: StoreFolder, facts: StoreFacts, log: Log, stored: int, state: StoreState, claims: bool
) -> Bound:
    """Up to what the checkpoint confirms; of a store that nobody surely writes also what there is behind."""
    if state == "live" or not claims or not log.files:
        return Bound(stored, "checkpoint", state=state)
    aligned = align(folder, log, min(stored, log.end))
    walk = LogWalk(folder, log, crc=True)
    behind = walk.follow(walk.walk(aligned), state)
    lost = walk.find_lost(facts, behind, state)
    if stored > log.end:
        messages = lost.messages if lost is not None else 0
        lost = Lost(behind.offset, stored, messages, "the checkpoint's confirmed offset", False)
    return Bound(stored, "checkpoint", None, lost, state, behind.records)


def _checkpointed(facts: StoreFacts) -> int | None:
    if facts.checkpoint is None:
        return None
    return facts.checkpoint.confirm_phy_offset or None


def committed_entry(folder: StoreFolder, facts: StoreFacts) -> LedgerUnit | None:
    """The committed entry of a DLedger; None if that cannot be told."""
    raw = read_all(folder, f"dledger-{facts.ledger_id}/checkpoint")
    try:
        index = LedgerCheckpoint.decode(raw).committed_index if raw is not None else -1
        file = facts.ledger_index.at(index * INDEX_UNIT_SIZE)
        if file is None:
            return None
        unit = bytearray(INDEX_UNIT_SIZE)
        folder.read_into(file.path, index * INDEX_UNIT_SIZE - file.base, memoryview(unit))
        found = LedgerUnit.decode(unit)
    except FormatError:
        return None
    return found if found.index == index else None


def committed_end(folder: StoreFolder, facts: StoreFacts) -> int | None:
    """Offset behind the committed entry of a DLedger; None if that cannot be told."""
    found = committed_entry(folder, facts)
    return found.position + found.size if found is not None else None


def is_expired(folder: StoreFolder, wanted: Range) -> bool:
    """Whether the file of a range that is gone was deleted for its age: the log begins behind it now."""
    log = read_log(folder, wanted.path.rpartition("/")[0])
    return bool(log.files) and log.first >= wanted.base + wanted.size
