"""Which bytes of the log go next to a slave, and in which epoch. Pure."""

from __future__ import annotations

from brokerset_formats.epochs import END_UNBOUNDED, EpochHistory
from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_protocol.ha_packets import BODY_SIZE_MAX, EPOCHS_MAX


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes of one file and one epoch; without bytes, the place of a heartbeat."""

    offset: int
    size: int
    epoch: int
    epoch_start: int

    @property
    def end(self) -> int:
        """Offset of the first byte behind it."""
        return self.offset + self.size


def next_chunk(
    history: EpochHistory, offset: int, log_end: int, segment_bytes: int, size_max: int
) -> Chunk | None:
    """The bytes from `offset` on: at most `size_max`, never across a file or an epoch.

    Without bytes left the size is 0. None if no epoch is known at all. What lies before the first epoch (its
    log is older than the group) belongs to the first: its master vouches for it.
    """
    entries = history.entries
    if not entries:
        return None
    entry = entries[-1]
    if offset >= entry.start_offset:
        epoch_end = END_UNBOUNDED
    elif (found := history.find(offset)) is None:
        entry = entries[0]
        epoch_end = entry.start_offset
    else:
        entry = found
        epoch_end = history.end_of(entry.epoch)
    file_end = (offset // segment_bytes + 1) * segment_bytes
    size = min(log_end, epoch_end, file_end, offset + min(size_max, BODY_SIZE_MAX)) - offset
    return Chunk(offset, max(0, size), entry.epoch, entry.start_offset)


def first_offset(
    acknowledged: int, min_offset: int, max_offset: int, segment_bytes: int, *, last_file: bool
) -> int:
    """Where sending begins after a slave's first acknowledgement; 0 stands for an empty log."""
    if acknowledged > 0:
        return acknowledged
    if last_file:
        return max(min_offset, max_offset // segment_bytes * segment_bytes)
    return min_offset


def handshake_epochs(history: EpochHistory) -> tuple[tuple[int, int], ...]:
    """The epochs for a handshake: the newest ones, as many as fit."""
    return tuple((entry.epoch, entry.start_offset) for entry in history.entries[-EPOCHS_MAX:])
