"""What a slave does with the master's handshake: follow, truncate, start from scratch, or refuse. Pure."""

from __future__ import annotations

from dataclasses import replace

from brokerset_formats.epochs import EpochEntry, EpochHistory, common_entry, truncation_point
from brokerset_formats.lazy_dataclasses import dataclass

REPLACE_ADVICE = (
    "if this replica's log may be thrown away, run `brokerset replica replace`; "
    "else find out which broker wrote it"
)


class CannotFollow(Exception):
    """Trying again soon will not help; the text is the problem, `advice` what to do."""

    def __init__(self, problem: str, advice: str = "") -> None:
        super().__init__(problem)
        self.advice = advice


@dataclass(frozen=True, slots=True)
class OwnLog:
    """The slave's log. It ends with a whole record."""

    min_offset: int
    end: int
    confirmed: int
    history: EpochHistory

    @property
    def empty(self) -> bool:
        """Whether it has no bytes."""
        return self.end <= self.min_offset


@dataclass(frozen=True, slots=True)
class Follow:
    """Both logs are the same up to our end, and `history` has our epochs up to there."""

    offset: int
    history: EpochHistory


@dataclass(frozen=True, slots=True)
class Truncate:
    """The log is to be truncated at `offset`, and then has the epochs of `history`."""

    offset: int
    history: EpochHistory
    needs_proof: bool
    """What is truncated was confirmed, as far as we know: only for who is surely not in the in-sync set."""


@dataclass(frozen=True, slots=True)
class FullResync:
    """The log begins with what the master sends first; what there is goes."""

    needs_proof: bool = False


@dataclass(frozen=True, slots=True)
class Refuse:
    """It must not be followed."""

    problem: str
    advice: str


Decision = Follow | Truncate | FullResync | Refuse


def decide_following(own: OwnLog, master: EpochHistory, master_end: int) -> Decision:
    """How `own` becomes a prefix of the master's log, which ends at `master_end`."""
    if own.empty:
        return FullResync()
    if not own.history.entries:
        return Refuse(
            f"the log, from {own.min_offset} to {own.end}, has no epochs: nobody knows whose it is",
            REPLACE_ADVICE,
        )
    point = truncation_point(own.history, own.end, master, master_end)
    common = common_entry(own.history, master)
    if point is None or common is None:
        if _is_older(own, master):
            return FullResync(needs_proof=True)
        if own.confirmed <= own.min_offset:
            # The first master of a group wrote alone what nobody confirmed, and the next one began with an
            # empty log, in which an epoch without bytes is forgotten.
            return Truncate(own.min_offset, EpochHistory(), needs_proof=True)
        if _log_restarted(own, master):
            return Truncate(own.min_offset, EpochHistory(), needs_proof=True)
        if _is_older(replace(own, end=min(own.end, own.confirmed)), master):
            # What we have behind that was never confirmed, and the master's log has something else there.
            return FullResync(needs_proof=True)
        return Refuse(
            f"the log has no epoch in common with the master's: ours {_shown(own.history)},"
            f" the master's {_shown(master)}",
            REPLACE_ADVICE,
        )
    if point <= own.min_offset:
        return FullResync(needs_proof=own.confirmed > own.min_offset)
    if point >= own.end:
        return Follow(own.end, own.history.truncate_from_epoch(common.epoch + 1))
    return Truncate(point, own.history.truncate_from_epoch(common.epoch + 1), point < own.confirmed)


def _is_older(own: OwnLog, master: EpochHistory) -> bool:
    """Whether the master has thrown away all that we could have in common with it."""
    if not master.entries:
        return False
    first = master.entries[0]
    return own.history.last_epoch < first.epoch and own.end <= first.start_offset


def _log_restarted(own: OwnLog, master: EpochHistory) -> bool:
    """Whether the group started its log from scratch: in a newer epoch, and before our first byte.

    Its first master since then had nothing of what we have: the record of a possible loss says from where on.
    Epochs only grow, so nothing of ours can get into that log again; who has the proof that the group does
    not count on it may follow, and keeps a copy for people.
    """
    if not master.entries:
        return False
    first = master.entries[0]
    return own.history.last_epoch < first.epoch and first.start_offset <= own.min_offset


def due_entries(own: EpochHistory, master: EpochHistory, offset: int) -> tuple[EpochEntry, ...]:
    """The master's epochs that `own` must have before the byte at `offset` is taken."""
    last = own.last_epoch
    return tuple(e for e in master.entries if e.epoch > last and e.start_offset <= offset)


def with_label(master: EpochHistory, epoch: int, epoch_start: int) -> EpochHistory | None:
    """The master's epochs, with the one that a packet names if it is newer; None if it contradicts them.

    A Java master labels the last bytes of an epoch with the next one, so a label ahead of the bytes is taken
    for what it says about epochs, not about these bytes.
    """
    if epoch > master.last_epoch:
        return master.append(epoch, epoch_start) if epoch_start >= master.last_start else None
    known = next((e for e in master.entries if e.epoch == epoch), None)
    return master if known is not None and known.start_offset == epoch_start else None


def crosses_epoch(master: EpochHistory, offset: int, size: int) -> bool:
    """Whether bytes lie in more than one epoch."""
    return any(offset < e.start_offset < offset + size for e in master.entries)


def proves_absence(own_id: int, epoch: int, known_epoch: int, known_set: frozenset[int]) -> bool:
    """Whether the controllers' last word says that we are not in sync under the master of `epoch`."""
    return known_epoch == epoch and bool(known_set) and own_id not in known_set


def _shown(history: EpochHistory) -> str:
    shown = [f"{e.epoch}@{e.start_offset}" for e in history.entries[-5:]]
    return ("…, " if len(history.entries) > 5 else "") + (", ".join(shown) or "none")
