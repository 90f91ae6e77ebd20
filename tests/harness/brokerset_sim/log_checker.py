"""Judges the logs of one broker group from outside: what was acknowledged, confirmed, read, and truncated.

It compares bytes and numbers that left processes; it asks no rule of the product. A record that an election
was recorded to have lost, maybe, is one of an older epoch that ends behind the offset of that loss: nothing
is demanded of it, of all others everything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from brokerset_sim.history import Violation
from brokerset_sim.replica_log import SimRecord

ACKED_KEPT = "7 acknowledged messages stay"
ACKED_BY_ALL = "7 who is in sync has what is confirmed"
ENOUGH_COPIES = "7 an acknowledged message has minInSyncReplicas copies"
ONE_ANSWER = "7 an attempt is stored once, and acknowledged where it is"
OLD_MASTER = "7 a master whose epoch is over takes no sends that it acknowledges alone"
CONFIRMED_KEPT = "8 a new master has what was confirmed"
CONFIRMED_WHOLE = "8 the confirmed offset lies between two records"
ENDS_CURRENT = "8 no answer ends the log before what was acknowledged"
READ_CONFIRMED = "8 consumers read confirmed messages only"
CONFIRMED = "8 a slave confirms what a master has confirmed"
CONFIRMED_SAME = "9 replicas agree below the confirmed offset"
TRUNCATED_IN_SYNC = "9 nobody in sync truncates what is confirmed"
FOLLOWS_NEWEST = "9 a slave follows no older master"
ACK_TRUE = "9 a slave has what it acknowledges, and it is its master's"
ONE_EPOCH = "10 a transferred piece lies in one epoch"
EPOCH_START = "10 an epoch begins where its master's log ends"
EPOCH_ON_DISK = "10 an epoch is on the disk before its messages count"
QUEUE_DENSE = "11 queue offsets are dense and given once"
ONE_WRITER = "4 one master writes in an epoch"


@dataclass(frozen=True, slots=True)
class Placed:
    """A record, and the epoch in which it was written."""

    record: SimRecord
    epoch: int


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A send that a broker says is stored."""

    attempt: int
    message: int
    offset: int
    end: int
    epoch: int
    weak: bool = False
    """The master alone has it, maybe."""


@dataclass(frozen=True, slots=True)
class _Loss:
    epoch: int
    begin: int


class LogChecker:
    """The checker of one group."""

    def __init__(self, name: str, counts: Counter[str]) -> None:
        self.name = name
        self.acknowledged: dict[int, Acknowledged] = {}
        """By attempt: what must stay."""

        self.counts = counts
        self.retired = 0
        """Retention has deleted below, somewhere."""

        self.epoch_starts: dict[int, int] = {}
        self._answered: dict[int, list[Acknowledged]] = {}
        self._attempts: dict[int, SimRecord] = {}
        self._weak: dict[int, Acknowledged] = {}
        self._confirmed: dict[int, Placed] = {}
        self._by_number: dict[int, int] = {}
        self._confirmed_end = 0
        self._client_answered: Acknowledged | None = None
        """Of what clients were told to be stored, that which lies furthest."""

        self._led_end = 0
        """The highest offset that a master has confirmed."""

        self._losses: list[_Loss] = []
        self._elected = 0
        self._writers: dict[int, str] = {}
        self._newest: tuple[int, str, dict[int, SimRecord], int] | None = None
        """The last epoch that began: its master, what its log had, and from where on."""

    # -- losses that the controllers have recorded --------------------------------------------------------

    def loss_recorded(self, epoch: int, from_offset: int) -> None:
        """The election of `epoch` may have lost what lies at and behind `from_offset`."""
        loss = _Loss(epoch, max(from_offset, 0))
        self._losses.append(loss)
        for table in (self.acknowledged, self._weak):
            for key in [key for key, acked in table.items() if self._may_be_lost(acked.end, acked.epoch)]:
                del table[key]
        for offset, placed in list(self._confirmed.items()):
            if self._may_be_lost(placed.record.end, placed.epoch):
                del self._confirmed[offset]
                self._by_number.pop(placed.record.number, None)
        self._confirmed_end = max((each.record.end for each in self._confirmed.values()), default=0)
        self.counts["loss recorded"] += 1

    def _may_be_lost(self, end: int, epoch: int) -> bool:
        return any(loss.epoch > epoch and end > loss.begin for loss in self._losses)

    @property
    def lost_everything(self) -> bool:
        """Whether a loss was recorded that goes back to the first byte: logs may have nothing in common."""
        return any(loss.begin == 0 for loss in self._losses)

    def controllers_lost(self, epoch: int) -> None:
        """The controllers forgot everything; epochs above `epoch` may be given again."""
        self.epoch_starts = {key: start for key, start in self.epoch_starts.items() if key <= epoch}
        self._writers = {key: who for key, who in self._writers.items() if key <= epoch}
        self._elected = min(self._elected, epoch)

    # -- sends --------------------------------------------------------------------------------------------

    def stored(self, who: str, attempt: int, record: SimRecord, *, doubled: bool) -> None:
        """A master stores a send; `doubled`: the network may have delivered it twice."""
        known = self._attempts.setdefault(attempt, record)
        if known is not record:
            self.counts["attempt stored twice"] += 1
            if not doubled:
                raise Violation(ONE_ANSWER, f"{self.name}: {who} stores {record}, which was {known} before")

    def taken(self, who: str, epoch: int) -> None:
        """A master takes a send that it will acknowledge alone."""
        if epoch < self._elected:
            raise Violation(
                OLD_MASTER, f"{self.name}: {who} takes sends in {epoch}, there is a master of {self._elected}"
            )

    def promised(self, who: str, acked: Acknowledged) -> None:
        """A broker acknowledges a send."""
        self.counts["acknowledged send"] += 1
        self._answered.setdefault(acked.attempt, []).append(acked)
        if self._may_be_lost(acked.end, acked.epoch):
            return
        if acked.weak:
            self._weak[acked.attempt] = acked
            return
        self.acknowledged[acked.attempt] = acked
        newest = self._newest
        if newest is not None and newest[0] > acked.epoch:
            self.counts["acknowledged by an old master"] += 1
            self._look_for(acked, newest[2], newest[3], f"the master of {newest[0]}, {newest[1]}")

    def client_answered(self, attempt: int, message: int, offset: int) -> None:
        """A client was told that an attempt is stored."""
        answered = self._answered.get(attempt, [])
        if (message, offset) not in [(each.message, each.offset) for each in answered]:
            raise Violation(
                ONE_ANSWER, f"{self.name}: message {message} is said to be at {offset}; promised: {answered}"
            )
        kept = self.acknowledged.get(attempt)
        last = self.furthest_answered()
        if kept is not None and (last is None or kept.end > last.end):
            self._client_answered = kept

    def furthest_answered(self) -> Acknowledged | None:
        """What every later answer about the end of the log must have behind it; None where a loss took it."""
        last = self._client_answered
        return None if last is None or last.attempt not in self.acknowledged else last

    def ends_at(self, who: str, offset: int, before: Acknowledged | None) -> None:
        """A broker says that the log ends at `offset`; `before` is `furthest_answered` as it was asked."""
        self.counts["told where the log ends"] += 1
        if before is not None and before.attempt in self.acknowledged and offset < before.end:
            raise Violation(
                ENDS_CURRENT, f"{self.name}: {who} says that the log ends at {offset}, but {before} was told"
            )

    def copies(self, acked: Acknowledged, having: Mapping[str, bool], needed: int) -> None:
        """Which brokers have an acknowledged message, or may have had it."""
        if sum(having.values()) < needed:
            raise Violation(ENOUGH_COPIES, f"{self.name}: {acked} is acknowledged, it is with {dict(having)}")

    # -- what is confirmed --------------------------------------------------------------------------------

    def confirmed(
        self, who: str, before: int, after: int, found: Sequence[Placed], end: int, *, leads: bool
    ) -> None:
        """A process lets consumers read from `before` to `after`, where it has records up to `end`."""
        if leads:
            self._led_end = max(self._led_end, after)
        elif after > self._led_end:
            raise Violation(
                CONFIRMED,
                f"{self.name}: {who} confirms {after}, no master more than {self._led_end}",
            )
        if end != after:
            raise Violation(
                CONFIRMED_WHOLE, f"{self.name}: {who} confirms {before} to {after}, its records end at {end}"
            )
        for placed in found:
            record = placed.record
            if self._may_be_lost(record.end, placed.epoch):
                continue
            known = self._confirmed.get(record.offset)
            if known is not None:
                if known != placed:
                    raise Violation(CONFIRMED_SAME, f"{self.name}: {who} has {placed}, another had {known}")
                continue
            if self._first_known() <= record.offset < self._confirmed_end:
                raise Violation(
                    CONFIRMED_SAME, f"{self.name}: {who} has {placed}, others confirmed something else there"
                )
            self._check_number(who, record)
            self._confirmed[record.offset] = placed
            self._by_number[record.number] = record.offset
            self._confirmed_end = max(self._confirmed_end, record.end)

    def _check_number(self, who: str, record: SimRecord) -> None:
        other = self._by_number.get(record.number)
        if other is not None:
            raise Violation(
                QUEUE_DENSE, f"{self.name}: {who} has {record}, but {record.number} is given at {other}"
            )

    def _first_known(self) -> int:
        return next(iter(self._confirmed), self._confirmed_end)  # the first confirmed, with rare exceptions

    def in_sync_has(self, who: str, what: str, offset: int, ends: Mapping[str, int]) -> None:
        """What counts as there for everybody who may be elected without a loss ends at `ends`."""
        lacking = {name: end for name, end in ends.items() if end < offset}
        if lacking:
            raise Violation(
                ACKED_BY_ALL, f"{self.name}: {what} of {who} is {offset}, in sync are also {lacking}"
            )

    def read(self, who: str, found: Sequence[Placed]) -> None:
        """A consumer got records."""
        before: SimRecord | None = None
        for placed in found:
            record = placed.record
            if before is not None and record.number != before.number + 1:
                raise Violation(QUEUE_DENSE, f"{self.name}: {who} served {record} right behind {before}")
            before = record
            if self._may_be_lost(record.end, placed.epoch):
                continue
            known = self._confirmed.get(record.offset)
            if known != placed:
                raise Violation(READ_CONFIRMED, f"{self.name}: {who} served {placed}, confirmed is {known}")

    # -- mastership ---------------------------------------------------------------------------------------

    def elected(self, epoch: int, before: int, *, handed_over: bool) -> None:
        """The controllers have named a master for `epoch`; the one before it had `before`.

        A master that hands over has had its sends answered, and its successor has them; after any other
        election only what was confirmed is sure, when the master alone acknowledges.
        """
        self._elected = epoch
        for key, acked in list(self._weak.items()):
            if acked.epoch < epoch:
                del self._weak[key]
                if handed_over and acked.epoch == before:
                    self.acknowledged[key] = acked
                    self.counts["weak send handed over"] += 1

    def epoch_begun(
        self, who: str, epoch: int, start: int, end: int, placed: Sequence[Placed], begin: int, *, first: bool
    ) -> None:
        """A process leads an epoch that begins at `start`; its log has records from `begin` to `end`."""
        writer = self._writers.setdefault(epoch, who)
        if writer != who:
            raise Violation(ONE_WRITER, f"{self.name}: {who} and {writer} are masters in {epoch}")
        if start != end and not (first and start == begin):
            raise Violation(
                EPOCH_START, f"{self.name}: {who} begins {epoch} at {start}, its log ends at {end}"
            )
        self.epoch_starts[epoch] = start
        there = {each.record.offset: each.record for each in placed}
        if self._newest is None or epoch > self._newest[0]:
            self._newest = (epoch, who, there, begin)
        self._check_all(f"{who}, master in {epoch}", there, begin, epoch)

    def chunk(self, who: str, epoch: int, offset: int, size: int, entries: Sequence[tuple[int, int]]) -> None:
        """A master sends a piece of the log, labelled with an epoch; `entries` is its epoch file."""
        starts = dict(entries)
        if epoch not in starts:
            raise Violation(ONE_EPOCH, f"{self.name}: {who} sends in epoch {epoch}, which it does not have")
        following = [start for number, start in entries if number > epoch]
        before = offset < starts[epoch] and epoch != entries[0][0]
        if size and (before or (following and offset + size > min(following))):
            raise Violation(
                ONE_EPOCH, f"{self.name}: {who} sends {offset}+{size} as epoch {epoch} of {entries}"
            )
        for number, start in entries:
            if self.epoch_starts.get(number, start) != start:
                known = self.epoch_starts[number]
                raise Violation(
                    EPOCH_START, f"{self.name}: {who} says that {number} begins at {start}, not {known}"
                )

    # -- slaves -------------------------------------------------------------------------------------------

    def follows(self, who: str, own_epoch: int, master_epoch: int) -> None:
        """A slave that knows an epoch takes or acknowledges something of a master."""
        if master_epoch < own_epoch:
            raise Violation(
                FOLLOWS_NEWEST, f"{self.name}: {who} knows {own_epoch}, its master {master_epoch}"
            )

    def acknowledges(self, who: str, offset: int, end: int, same: bool) -> None:
        """A slave acknowledges `offset`; what it has ends at `end` and is the master's, or not."""
        if offset > end:
            raise Violation(ACK_TRUE, f"{self.name}: {who} acknowledges {offset} and has {end}")
        if not same:
            raise Violation(ACK_TRUE, f"{self.name}: {who} acknowledges {offset}, its master has other bytes")

    def epoch_known(self, who: str, epoch: int, on_disk: Iterable[int]) -> None:
        """Bytes of an epoch are acknowledged, or written, by who has these epochs on its disk."""
        known = list(on_disk)
        if epoch not in known:
            raise Violation(EPOCH_ON_DISK, f"{self.name}: {who} uses epoch {epoch}, on its disk are {known}")

    def truncated(self, who: str, offset: int, confirmed: int, in_sync: bool, *, from_scratch: bool) -> None:
        """A slave cuts its log at `offset`, or throws all of it away."""
        self.counts["started from scratch" if from_scratch else "truncated"] += 1
        if offset < confirmed:
            self.counts["truncated below confirmed"] += 1
            if in_sync:
                what = f"{who} truncates at {offset}, {confirmed} is confirmed"
                raise Violation(TRUNCATED_IN_SYNC, f"{self.name}: {what}")

    # -- at the end ---------------------------------------------------------------------------------------

    def final(self, who: str, placed: Sequence[Placed], begin: int) -> None:
        """After everything healed, this is the master's log."""
        self._check_all(who, {each.record.offset: each.record for each in placed}, begin)
        self.counts["acknowledged"] += len(self.acknowledged)
        number = None
        for each in placed:
            if number is not None and each.record.number != number:
                raise Violation(QUEUE_DENSE, f"{self.name}: {who} has {each}, the queue goes on at {number}")
            number = each.record.number + 1

    def same(self, who: str, records: Sequence[Placed], other: str, others: Sequence[Placed]) -> None:
        """Two replicas have the same confirmed records, where both still have them."""
        mine = {each.record.offset: each for each in records}
        begin = min(mine, default=0)
        for each in others:
            found = mine.get(each.record.offset)
            if each.record.offset >= begin and found != each:
                raise Violation(CONFIRMED_SAME, f"{self.name}: {who} has {found}, {other} has {each}")

    def _check_all(
        self, who: str, there: Mapping[int, SimRecord], begin: int, epoch: int | None = None
    ) -> None:
        """Look for everything; in a master's log when it begins `epoch` for what older epochs wrote.

        Who was cut off may take over late: by then others lead newer epochs, of which it has nothing.
        """
        for acked in self.acknowledged.values():
            if epoch is None or acked.epoch <= epoch:
                self._look_for(acked, there, begin, who)
        limit = min(begin, self.retired)
        for offset, placed in self._confirmed.items():
            if epoch is not None and placed.epoch > epoch:
                continue
            if offset >= limit and there.get(offset) != placed.record:
                raise Violation(
                    CONFIRMED_KEPT,
                    f"{self.name}: {placed} was confirmed; {who} has {there.get(offset)}, from {begin} on",
                )

    def _look_for(self, acked: Acknowledged, there: Mapping[int, SimRecord], begin: int, who: str) -> None:
        """Only retention may have taken it; a log that begins behind it for another reason lacks it."""
        found = there.get(acked.offset)
        if acked.offset >= min(begin, self.retired) and (found is None or found.message != acked.message):
            raise Violation(ACKED_KEPT, f"{self.name}: {acked} is not in the log of {who}; there is {found}")
