"""The leader's pushes to one follower: compare, truncate, append, commit.

Source: `DLedgerEntryPusher.EntryDispatcher` of DLedger 0.3.1.2. A thread polls there each millisecond; here
the node asks for the next push whenever something has happened.
"""

from __future__ import annotations

from dataclasses import dataclass

from brokerset_dledger.config import NodeConfig
from brokerset_dledger.ledger import Ledger, LedgerRefused
from brokerset_formats.dledger import LedgerEntry, LedgerRun
from brokerset_protocol.bodies.dledger import DLedgerCode, PushResponse, PushType

NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Push:
    """One push on its way; `epoch` tells apart those before and after a new comparison."""

    type: PushType
    entries: tuple[LedgerEntry, ...]
    epoch: int
    run: LedgerRun | None = None
    """The entries of an append in a group of ours alone."""

    @property
    def first_index(self) -> int:
        """Index of its first entry."""
        return self.entries[0].index if self.run is None else self.run.first_index

    @property
    def last_index(self) -> int:
        """Index of its last entry."""
        return self.entries[-1].index if self.run is None else self.run.last_index


class Pusher:
    """What the leader of one term knows of one follower, and what it sends next."""

    def __init__(self, config: NodeConfig, ledger: Ledger, now: int) -> None:
        self.state = PushType.COMPARE
        self.watermark = -1
        """The last index that the follower has as the leader has it, told in this term."""

        self._config = config
        self._ledger = ledger
        self._epoch = 0
        self._waits_for_answer = False
        self._retry_at = now
        self._compare_index = -1
        self._truncate_index = -1
        self._next_index = 0
        self._in_flight: dict[int, tuple[int, int]] = {}
        """By first index of an append: its last index, and when it was sent."""

        self._in_flight_entries = 0
        self._has_taken = False
        """Whether it has taken an entry since the last comparison; if not, its disk may be full."""

        self._pushed_at = now
        self._quota = (now, 0)

    def deadline(self) -> int:
        """When time alone makes something to push."""
        if self.state is not PushType.APPEND:
            return NEVER if self._waits_for_answer else self._retry_at
        if self._in_flight:
            oldest = next(iter(self._in_flight.values()))
            return oldest[1] + self._config.push_timeout
        if self._next_index <= self._ledger.end_index:
            return max(self._retry_at, self._quota[0] + 1_000)
        return self._pushed_at + self._config.commit_interval

    def next(self, now: int) -> Push | None:
        """The next push, if there is one to make now; ask until there is none."""
        if self.state is not PushType.APPEND:
            return self._compare_or_truncate(now)
        try:
            return self._append(now)
        except LedgerRefused:  # deleted meanwhile
            self._compare(now)
            return None

    def answered(self, push: Push, answer: PushResponse | None, now: int) -> None:
        """A push was answered, or could not be (None)."""
        if push.epoch != self._epoch:
            return
        match push.type:
            case PushType.COMPARE:
                self._compared(push.last_index, answer, now)
            case PushType.TRUNCATE:
                if answer is not None and answer.succeeded:
                    self._start_appending(push.last_index)
                else:
                    self._compare(now, pause=True)
            case PushType.APPEND:
                self._appended(push, answer, now)
            case PushType.COMMIT:
                if answer is not None and answer.code == DLedgerCode.INCONSISTENT_STATE:
                    self._compare(now)

    def start_again(self, now: int) -> None:
        """The follower has started without some of what it had acknowledged: it counts for nothing."""
        self.watermark = -1
        self._compare(now)

    # Finding where the logs part.

    def _compare(self, now: int, *, pause: bool = False) -> None:
        self.state = PushType.COMPARE
        self._epoch += 1
        self._waits_for_answer = False
        self._compare_index = -1
        self._in_flight.clear()
        self._in_flight_entries = 0
        self._retry_at = now + (self._config.push_retry if pause else 0)

    def _compare_or_truncate(self, now: int) -> Push | None:
        if self._waits_for_answer or now < self._retry_at or self._ledger.end_index < 0:
            return None
        if self.state is PushType.COMPARE:
            if not self._ledger.begin_index <= self._compare_index <= self._ledger.end_index:
                self._compare_index = self._ledger.end_index
            index = self._compare_index
        else:
            index = self._truncate_index
        try:
            entry = self._ledger.entry(index)
        except LedgerRefused:
            self._compare(now, pause=True)
            return None
        self._waits_for_answer = True
        return Push(self.state, (entry,), self._epoch)

    def _compared(self, index: int, answer: PushResponse | None, now: int) -> None:
        self._waits_for_answer = False
        begin, end = self._ledger.begin_index, self._ledger.end_index
        if answer is None or answer.code not in (DLedgerCode.SUCCESS, DLedgerCode.INCONSISTENT_STATE):
            self._retry_at = now + self._config.push_retry
        elif answer.succeeded:
            if answer.end_index == index:
                self._start_appending(index)
            else:
                self._truncate(index)
        elif answer.end_index < begin or answer.begin_index > end or index < answer.begin_index:
            self._truncate(begin)
        else:
            self._compare_index = answer.end_index if index > answer.end_index else index - 1
            if self._compare_index < begin:
                self._truncate(begin)

    def _truncate(self, index: int) -> None:
        self.state = PushType.TRUNCATE
        self._truncate_index = index

    def _start_appending(self, matched: int) -> None:
        self.state = PushType.APPEND
        self._epoch += 1
        self._waits_for_answer = False
        self._next_index = matched + 1
        self._has_taken = False
        self.watermark = max(self.watermark, matched)

    # Feeding it.

    def _append(self, now: int) -> Push | None:
        if self._in_flight:
            first, (last, sent_at) = next(iter(self._in_flight.items()))
            if now >= sent_at + self._config.push_timeout:
                self._in_flight[first] = last, now  # it stays the first
                return self._push_entries(first, last, now)
        if self._next_index <= self._ledger.end_index:
            room = self._config.in_flight_max - self._in_flight_entries
            full = room <= 0 or len(self._in_flight) >= self._config.pushes_in_flight_max
            if full or not self._has_quota(now):
                return None
            last = min(self._ledger.end_index, self._next_index + room - 1)
            push = self._push_entries(self._next_index, last, now)
            self._in_flight[self._next_index] = push.last_index, now
            self._in_flight_entries += push.last_index - self._next_index + 1
            self._next_index = push.last_index + 1
            return push
        due = now >= self._pushed_at + self._config.commit_interval
        if not self._in_flight and due:  # the last may be lost, or the follower started again since
            return self._push(PushType.COMMIT, (), now)
        return None

    def _push_entries(self, first: int, last: int, now: int) -> Push:
        if not self._config.alone:
            return self._push(PushType.APPEND, self._entries(first, last), now)
        self._pushed_at = now
        run = self._ledger.run(first, last, self._config.push_bytes_max)
        return Push(PushType.APPEND, (), self._epoch, run)

    def _entries(self, first: int, last: int) -> tuple[LedgerEntry, ...]:
        entries: list[LedgerEntry] = []
        size = 0
        for index in range(first, last + 1):
            entry = self._ledger.entry(index)
            size += entry.size
            if entries and size > self._config.push_bytes_max:
                break
            entries.append(entry)
        return tuple(entries)

    def _push(self, push_type: PushType, entries: tuple[LedgerEntry, ...], now: int) -> Push:
        self._pushed_at = now
        return Push(push_type, entries, self._epoch)

    def _has_quota(self, now: int) -> bool:
        """A follower that lags far gets so many bytes in a second, lest it takes the leader's disk."""
        try:
            behind = self._ledger.position(self._ledger.end_index) - self._ledger.position(self._next_index)
        except LedgerRefused:
            return True
        if behind < self._config.throttle_bytes:
            return True
        begun, size = self._quota
        if now >= begun + 1_000:
            begun, size = now, 0
        if size >= self._config.throttle_rate:
            return False
        self._quota = begun, size + self._config.push_bytes_max
        return True

    def _appended(self, push: Push, answer: PushResponse | None, now: int) -> None:
        first = push.first_index
        if answer is None:
            return  # pushed again when its time is over
        if answer.code == DLedgerCode.INCONSISTENT_STATE:
            self._compare(now, pause=not self._has_taken)
        elif answer.succeeded:
            in_flight = self._in_flight.pop(first, None)
            if in_flight is not None:
                self._in_flight_entries -= in_flight[0] - first + 1
                if in_flight[0] > push.last_index:  # pushed again with fewer entries
                    self._in_flight = {push.last_index + 1: (in_flight[0], 0)} | self._in_flight
                    self._in_flight_entries += in_flight[0] - push.last_index
            self.watermark = max(self.watermark, push.last_index)
            self._has_taken = True
