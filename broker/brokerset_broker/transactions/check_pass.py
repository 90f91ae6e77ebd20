"""One pass of checks over the half topic: who is asked, what is appended again, what is given up. Pure.

Source: `TransactionalMessageServiceImpl.check` of Java 5.5. A master makes a pass each
`transactionCheckInterval`. `check_pass` is a generator: it yields what is to be done (`Step`), and is sent
the answer that the step names.

Each open half that is checked is appended to the half topic again, with its counter raised, as Java does, so
that either make can carry on the store of the other. The progress then passes the old copy. So nothing is
ever deleted inside of the half topic, and it grows by one record for each check: `check_max` of them where
nobody ever answers. What lies below the progress goes with the log's retention, and a half that was given
up is not appended again.

A half of which nobody is asked, because it is immune or no producer of its group is connected, stays at its
place, and the progress before it. So that a new master has little to read, it is moved behind the others
(appended again, not counted) when it has been there for `stay_ms`, or `stay_halves_max` others have come.

Other than Java:

* What is resolved is known from `Resolved`: no op records are read, and no clocks of ops are compared.
* A half that cannot be read, or names no target, is given up; one that cannot be appended again is checked
  as it is, and the progress waits for it. Later halves are checked in the same pass (issue 9500).
* A copy that is made while a half is immune does not count as a check (issue 8311), nor does one while no
  producer can be asked. Such a half is given up at the age of `reserved_ms` by its producer's clock; where
  that is ahead, its copies count.
* Whether a half is too young for a check is a matter of when it was stored. A producer's clock decides on
  immunity, and a half that seems older than the log's retention by it is given up only after it was checked,
  or has waited for a producer for `stay_ms`.
* A pass ends at the halves that were there when it began, so what it appends does not prolong it.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from brokerset_broker.transactions.resolved import Resolved, State
from brokerset_formats.errors import FormatError
from brokerset_formats.message_ids import encode_offset_id
from brokerset_formats.names import CHECK_MAX_TIME_TOPIC
from brokerset_formats.records import Record
from brokerset_formats.transactions import (
    Message,
    check_body,
    check_times_of,
    copy_of_half,
    immunity_ms_of,
    origin_of,
    target_of,
    to_given_up,
    unique_key_of,
)
from brokerset_protocol.headers.send import CheckTransactionState

READ_COST: Final = 16
"""Halves that are passed over in the time in which one is read and appended again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckLimits:
    """Settings of a pass; times in milliseconds."""

    transaction_timeout_ms: int = 6_000
    """For so long after it was stored a half is left alone (`transactionTimeOut`)."""
    check_max: int = 15
    """Checks after which a half is given up (`transactionCheckMax`)."""
    reserved_ms: int = 72 * 3_600_000
    """Age at which a half is given up (`fileReservedTime`)."""
    stay_ms: int = 600_000
    """A half of which nobody is asked is moved after so long: a new master reads the log from there on."""
    stay_halves_max: int = 10_000
    """It is moved, too, when it is so far behind the newest half: those that have ended since are known."""
    give_up_topic: str = CHECK_MAX_TIME_TOPIC
    step_halves_max: int = 512
    """Halves that are passed over between two steps."""


@dataclass(frozen=True, slots=True)
class ReadHalf:
    """Read the half there; the answer is a `Record` or `NoHalf`."""

    queue_offset: int


@dataclass(frozen=True, slots=True)
class NoHalf:
    """There is no record that can be read; the queue goes on at `next_queue_offset`."""

    next_queue_offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class Append:
    """Append the message before anything else happens; the answer is a `Place` or `NotAppended`."""

    message: Message
    supersedes: int | None = None
    """Queue offset of a half that the message is a copy of, if Java is to be kept from checking that."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a message was stored."""

    queue_offset: int
    offset: int
    store_timestamp: int


@dataclass(frozen=True, slots=True)
class NotAppended:
    """The store did not take the message; `permanently` not if trying again would not help."""

    permanently: bool
    reason: str


@dataclass(frozen=True, slots=True)
class CanAsk:
    """Whether a producer of the half's group is there to be asked; the answer is a bool."""

    half: Record


@dataclass(frozen=True, slots=True)
class SendCheck:
    """Ask a producer of the half's group (`check_request`), if there still is one; no answer."""

    half: Record


@dataclass(frozen=True, slots=True)
class GivenUp:
    """The half is given up, or unusable: count it, and say so in the log; no answer."""

    queue_offset: int
    reason: str
    half: Record | None


@dataclass(frozen=True, slots=True)
class Pause:
    """Let others have their turn; no answer."""


@dataclass(frozen=True, slots=True)
class SaveProgress:
    """Save the progress of the group on both topics, when all that was appended is on disk; no answer."""

    half_progress: int
    op_progress: int


Step = ReadHalf | Append | CanAsk | SendCheck | GivenUp | Pause | SaveProgress
Answer = Record | NoHalf | Place | NotAppended | bool | None


class _StoreEnds(Exception):
    """The store takes nothing at the moment: the pass ends."""


@dataclass(slots=True)
class _Pass:
    resolved: Resolved
    limits: CheckLimits
    started_ms: int
    position: int
    end: int
    left: int | None = None
    """The first half that stays open at its place: the progress ends there."""

    def run(self) -> Generator[Step, Answer, None]:
        cost = 0
        while self.position < self.end:
            state = self.resolved.state_at(self.position)
            if state is State.OPEN or state is State.UNKNOWN:
                cost += READ_COST
                if not (yield from self._visit()):
                    return
            else:
                self.position += 1
                cost += 1
            if cost >= self.limits.step_halves_max:
                cost = 0
                self.advance()
                yield Pause()

    def advance(self) -> None:
        """What was passed is over; in small steps, as it takes time."""
        self.resolved.advance(self.position if self.left is None else self.left)

    def _leave(self, queue_offset: int) -> None:
        if self.left is None:
            self.left = queue_offset

    def _visit(self) -> Generator[Step, Answer, bool]:
        """One half that was open a moment ago; whether the pass goes on."""
        half = yield ReadHalf(self.position)
        if isinstance(half, NoHalf):
            yield from self._skip(half)
            return True
        assert isinstance(half, Record), "the answer to ReadHalf"
        assert half.queue_offset == self.position, "the half that was asked for"
        if half.store_timestamp + self.limits.transaction_timeout_ms >= self.started_ms:
            return False  # all behind it are younger
        self.resolved.half_stored(half)
        state = self.resolved.state_at(self.position)  # an answer may have come while it was read
        if state is State.OPEN:
            yield from self._check(half)
        self.position += 1
        return True

    def _skip(self, gap: NoHalf) -> Generator[Step, Answer, None]:
        yield GivenUp(self.position, gap.reason, None)
        following = min(max(gap.next_queue_offset, self.position + 1), self.end)
        for queue_offset in self.resolved.tracked_below(following):
            if queue_offset >= self.position:
                self.resolved.given_up(queue_offset)
        self.position = following

    def _check(self, half: Record) -> Generator[Step, Answer, None]:
        problem = self._unusable(half)
        if problem is not None:
            yield from self._give_up(half, problem)
            return
        if self._is_immune(half):
            yield from self._put_off(half, 0)
            return
        if not (yield CanAsk(half)):
            age_ms = self.started_ms - half.born_timestamp
            if age_ms > self.limits.reserved_ms and origin_of(half) != half.queue_offset:
                yield from self._give_up(half, "older than the log is kept, and no producer came to be asked")
            else:
                yield from self._put_off(half, check_times_of(half) + 1 if age_ms < 0 else 0)
            return
        message = copy_of_half(half, check_times_of(half) + 1)
        copy = yield from self._append(message, half)
        if copy is None:
            self._leave(self.position)
            copy = half
        yield SendCheck(copy)

    def _put_off(self, half: Record, check_times: int) -> Generator[Step, Answer, None]:
        """Nobody is asked; `check_times` is 0 where that is not to count."""
        stay_ms = min(self.limits.stay_ms, self.limits.reserved_ms // 2)
        is_new = self.started_ms - half.store_timestamp < stay_ms
        stays = is_new and self.end - half.queue_offset <= self.limits.stay_halves_max
        if stays or (yield from self._append(copy_of_half(half, check_times), half)) is None:
            self._leave(self.position)

    def _unusable(self, half: Record) -> str | None:
        try:
            target_of(half)
        except FormatError as error:
            return error.reason
        if check_times_of(half) >= self.limits.check_max:
            return f"no answer to {check_times_of(half)} checks"
        not_asked = check_times_of(half) == 0
        since = max(half.born_timestamp, half.store_timestamp) if not_asked else half.born_timestamp
        if self.started_ms - since > self.limits.reserved_ms:
            return "older than the log is kept"
        return None

    def _give_up(self, half: Record, reason: str) -> Generator[Step, Answer, None]:
        answer = yield Append(to_given_up(half, self.limits.give_up_topic))
        if isinstance(answer, NotAppended):
            if not answer.permanently:
                raise _StoreEnds
            reason = f"{reason}; not stored: {answer.reason}"
        self.resolved.given_up(half.queue_offset)
        yield GivenUp(half.queue_offset, reason, half)

    def _append(self, message: Message, half: Record) -> Generator[Step, Answer, Record | None]:
        """Append a copy, which from then on stands for the half; None if the store never takes it."""
        # Java takes an immune copy for ended when its first copy is named in an op record.
        supersedes = None if immunity_ms_of(half) is not None else half.queue_offset
        answer = yield Append(message, supersedes)
        if isinstance(answer, NotAppended):
            if not answer.permanently:
                raise _StoreEnds
            return None
        assert isinstance(answer, Place), "the answer to Append"
        copy = replace(
            half,
            queue_offset=answer.queue_offset,
            offset=answer.offset,
            store_timestamp=answer.store_timestamp,
            properties=message.properties,
        )
        self.resolved.half_stored(copy)
        return copy

    def _is_immune(self, half: Record) -> bool:
        """By the producer's clock, which may be ahead: then for at most twice the time. Not for longer than
        the log is kept."""
        immunity_ms = immunity_ms_of(half)
        if immunity_ms is None:
            return False
        return abs(self.started_ms - half.born_timestamp) <= min(immunity_ms, self.limits.reserved_ms)


def check_pass(
    resolved: Resolved, limits: CheckLimits, *, started_ms: int
) -> Generator[Step, Answer, SaveProgress]:
    """One pass over the halves that there are now; its last step saves the progress, if there is any.

    `started_ms`: the broker's clock as the pass begins, but not less than the newest store timestamp, which
    another master may have given. Between two steps other requests may be served, but `Append` is to be
    carried out at once. Give the generator up (`close`) when the role ends: what it has appended is found by
    the next pass, and is not appended twice.
    """
    before = SaveProgress(resolved.half_progress, resolved.op_progress)
    walk = _Pass(resolved, limits, started_ms, resolved.half_progress, resolved.half_end)
    with suppress(_StoreEnds):  # the half at the position stays, and the next pass comes to it again
        yield from walk.run()
    walk.advance()
    progress = SaveProgress(resolved.half_progress, resolved.op_progress)
    if progress != before:
        yield progress
    return progress


def check_request(half: Record, broker_name: str) -> tuple[CheckTransactionState, bytes]:
    """Header and body of CHECK_TRANSACTION_STATE for a half that `SendCheck` names (`sendCheckMessage`)."""
    unique_key = unique_key_of(half).decode("utf-8", "replace") or None
    header = CheckTransactionState(
        topic=half.topic,
        tran_state_table_offset=half.queue_offset,
        commit_log_offset=half.offset,
        msg_id=unique_key,
        transaction_id=unique_key,
        offset_msg_id=encode_offset_id(half.store_host, half.offset),
        broker_name=broker_name,
    )
    return header, check_body(half)
