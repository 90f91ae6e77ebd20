"""Epochs of masters: which master wrote from which offset on, and where two logs part.

Sources: RocketMQ's `EpochFileCache`, `EpochEntry`, `CheckpointFile`. Where Java's cache forgets an epoch
without data, this one replaces it: see `EpochHistory.append`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from brokerset_formats.errors import FormatError
from brokerset_formats.hashing import crc31
from brokerset_formats.lazy_dataclasses import dataclass

END_UNBOUNDED = 0x7FFFFFFFFFFFFFFF
"""End of the newest epoch, whose master is still writing."""

EPOCHS_MAX = 1_000
"""Entries that a Java master can take in a handshake."""

_EPOCH_MAX = 0x7FFFFFFF


@dataclass(frozen=True, slots=True, order=True)
class EpochEntry:
    """The log from `start_offset` to the next entry's was written by the master of `epoch`."""

    epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class EpochHistory:
    """Entries with growing epochs and starts, oldest first. Never changed: operations make a new one."""

    entries: tuple[EpochEntry, ...] = ()

    def __post_init__(self) -> None:
        for older, newer in zip(self.entries, self.entries[1:], strict=False):
            if newer.epoch <= older.epoch or newer.start_offset <= older.start_offset:
                raise FormatError(f"epoch {newer} does not follow {older}")
        if self.entries and (self.entries[0].epoch < 0 or self.entries[0].start_offset < 0):
            raise FormatError(f"{self.entries[0]} has a negative number")

    @property
    def last_epoch(self) -> int:
        """The newest epoch, -1 if there is none."""
        return self.entries[-1].epoch if self.entries else -1

    @property
    def last_start(self) -> int:
        """Where the newest epoch starts, -1 if there is none."""
        return self.entries[-1].start_offset if self.entries else -1

    def append(self, epoch: int, start_offset: int) -> EpochHistory | None:
        """The history with one more epoch; None if `epoch` is not newer than the last.

        Entries that start at `start_offset` or later have no data and go. Java refuses the new epoch instead,
        after which two masters can write different data under one epoch and nobody notices.
        """
        if epoch <= self.last_epoch:
            return None
        kept = tuple(entry for entry in self.entries if entry.start_offset < start_offset)
        return EpochHistory((*kept, EpochEntry(epoch, start_offset)))

    def end_of(self, epoch: int) -> int:
        """Where the epoch ends: the next one's start, `END_UNBOUNDED` for the last; -1 if it is unknown."""
        for number, entry in enumerate(self.entries):
            if entry.epoch == epoch:
                last = number + 1 == len(self.entries)
                return END_UNBOUNDED if last else self.entries[number + 1].start_offset
        return -1

    def find(self, offset: int) -> EpochEntry | None:
        """The epoch that holds `offset`; None if it lies before all."""
        number = bisect_right(self.entries, offset, key=lambda entry: entry.start_offset)
        return self.entries[number - 1] if number else None

    def next_after(self, epoch: int) -> EpochEntry | None:
        """The oldest entry that is newer than `epoch`."""
        return next((entry for entry in self.entries if entry.epoch > epoch), None)

    def truncate_from_offset(self, offset: int) -> EpochHistory:
        """Without entries that start at `offset` or later: after the log was truncated there."""
        return EpochHistory(tuple(entry for entry in self.entries if entry.start_offset < offset))

    def truncate_from_epoch(self, epoch: int) -> EpochHistory:
        """Without that epoch and newer ones."""
        return EpochHistory(tuple(entry for entry in self.entries if entry.epoch < epoch))

    def truncate_before(self, offset: int) -> EpochHistory:
        """Without epochs that end at `offset` or before, after segments were deleted. The last one stays."""
        kept = tuple(entry for entry in self.entries[:-1] if self.end_of(entry.epoch) > offset)
        return EpochHistory((*kept, *self.entries[-1:]))


def truncation_point(own: EpochHistory, own_end: int, other: EpochHistory, other_end: int) -> int | None:
    """Up to where two logs are the same: our log must be truncated there before it can follow the other.

    The newest epoch of ours that the other log has with the same start decides: both logs agree until the
    first of its two ends. `own_end` and `other_end` are the ends of the logs. None if they have no epoch in
    common.
    """
    starts = {entry.epoch: entry.start_offset for entry in other.entries}
    for entry in reversed(own.entries):
        if starts.get(entry.epoch) == entry.start_offset:
            return min(own.end_of(entry.epoch), own_end, other.end_of(entry.epoch), other_end)
    return None


def common_entry(own: EpochHistory, other: EpochHistory) -> EpochEntry | None:
    """The newest epoch that both histories have with the same start; None if there is none."""
    starts = {entry.epoch: entry.start_offset for entry in other.entries}
    return next((e for e in reversed(own.entries) if starts.get(e.epoch) == e.start_offset), None)


def encode_epoch_file(history: EpochHistory) -> bytes:
    """The file's text: number of entries, checksum of the entry lines, the entries."""
    lines = "".join(f"{entry.epoch}-{entry.start_offset}\n" for entry in history.entries).encode()
    return b"%d\n%d\n%s" % (len(history.entries), crc31(lines), lines)


def decode_epoch_file(data: bytes) -> EpochHistory:
    """Read the file; a checksum of 0 is not compared, as in Java."""
    head = data.split(b"\n", 2)
    if len(head) < 3:
        raise FormatError("an epoch file of fewer than two lines")
    count, checksum = _number(head[0], "number of epochs"), _number(head[1], "checksum")
    if checksum and crc31(head[2]) != checksum:
        raise FormatError(f"checksum {crc31(head[2])} of the epochs instead of {checksum}")
    entries = tuple(_entry(line) for line in head[2].splitlines() if line)
    if len(entries) != count:
        raise FormatError(f"{len(entries)} epochs instead of {count}")
    return EpochHistory(entries)


def history_of(pairs: Iterable[tuple[int, int]]) -> EpochHistory:
    """A history from (epoch, start offset) pairs, as a handshake has them; FormatError if out of order."""
    return EpochHistory(tuple(EpochEntry(epoch, start) for epoch, start in pairs))


def _entry(line: bytes) -> EpochEntry:
    epoch, separator, start = line.partition(b"-")
    if not separator:
        raise FormatError(f"epoch line {line[:60]!r} is not epoch-offset")
    return EpochEntry(_number(epoch, "epoch", _EPOCH_MAX), _number(start, "start offset"))


def _number(text: bytes, what: str, maximum: int = END_UNBOUNDED) -> int:
    text = text.strip()
    if not text.isdigit() or len(text) > 19 or int(text) > maximum:
        raise FormatError(f"{what} {text[:60]!r} is no number")
    return int(text)
