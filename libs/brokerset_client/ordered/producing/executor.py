"""One executor: the messages of a partition in their order, one request in flight, and its sequences.

What it guarantees under Strict: the log of the partition has its messages once, in the order of `append`.

* There is one request at a time, and it is repeated **unchanged** until the broker has said what became of
  it. So the broker can tell a repetition by its sequences.
* A sequence is used again only after an answer that says that it is not stored, and never will be.
* A request that is illegal is halved, with the sequences that its messages have, until the illegal message is
  alone. It fails. If no attempt can have stored it, those behind it move up by one sequence.
* The broker expects a lower sequence (`Gap`): it has lost what it had confirmed, or the illegal message was
  not stored. It keeps one number for a producer, so nothing from that number on is stored, and a repetition
  that still travels is refused like this one. Hence everything unconfirmed gets sequences from 0 of a new
  epoch. What was lost stays lost: its sender was answered.
* The queue does not know the producer, though it has confirmed messages of this epoch (`UnknownProducer`): it
  has forgotten whether messages with an unknown outcome are stored. They fail (`OutcomeLost`), under Strict
  as well: to send them could store them twice. Everything else goes on in a new epoch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from brokerset_client.ordered.producing.errors import MessageRefused, OutcomeLost
from brokerset_client.ordered.producing.outcomes import (
    Confirmed,
    Fenced,
    Gap,
    Illegal,
    NotOpen,
    Outcome,
    Sealed,
    Unclear,
    UnknownProducer,
)
from brokerset_client.ordered.producing.outgoing import Attempt, Batch, ExecutorKey, Failed, Outgoing, Stored
from brokerset_client.ordered.producing.settings import ProducerSettings


@dataclass(frozen=True, slots=True)
class Settled:
    """What an answer has decided; the caller answers the senders."""

    stored: Stored | None = None
    failed: tuple[Failed, ...] = ()


class Executor:
    """State machine of one partition. Times are seconds of one monotonic clock; `roll` draws from [0, 1)."""

    __slots__ = (
        "assigned",
        "closing",
        "confirmed",
        "epoch",
        "failures",
        "gone",
        "gone_tries",
        "key",
        "needs_epoch",
        "next_sequence",
        "not_before",
        "outstanding",
        "queue_id",
        "sealed",
        "settings",
        "waiting",
        "wake_planned",
    )

    def __init__(self, key: ExecutorKey, queue_id: int, epoch: int, settings: ProducerSettings) -> None:
        self.key = key
        self.queue_id = queue_id
        self.settings = settings
        self.epoch = epoch
        self.next_sequence = 0
        self.confirmed = False
        """Whether the broker has confirmed anything of this epoch."""
        self.needs_epoch = False
        self.waiting: deque[Outgoing] = deque()
        """Messages without a sequence."""
        self.assigned: deque[Batch] = deque()
        """Messages with sequences. The first batch is in flight; others come from one that was halved."""
        self.outstanding = False
        """An attempt has not ended."""
        self.not_before = 0.0
        self.wake_planned: float | None = None
        """The caller's: for when it has planned to come again."""
        self.failures = 0
        """Attempts in a row that said nothing."""
        self.closing = False
        """The route names other partitions: no new batch, only the ones in flight are settled."""
        self.sealed = False
        self.gone = False
        """No route lists the partition any more."""
        self.gone_tries = 0

    @property
    def idle(self) -> bool:
        """Whether it has no message."""
        return not self.waiting and not self.assigned

    @property
    def settled(self) -> bool:
        """Whether nothing of it can be stored without our knowing, so that its messages may go elsewhere."""
        return self.sealed or not (self.outstanding or any(batch.unknown for batch in self.assigned))

    def append(self, message: Outgoing) -> None:
        """A message behind all others."""
        self.waiting.append(message)

    def offer(self, now: float) -> Attempt | None:
        """The next attempt, if one may start now; the caller sends it and brings the outcome."""
        if self.outstanding or self.needs_epoch or now < self.not_before:
            return None
        if not self.assigned:
            if self.closing or not self.waiting:
                return None
            self._assign()
        if not self.assigned:
            return None
        batch = self.assigned[0]
        batch.attempts += 1
        for message in batch.messages:
            message.tries += 1
        self.outstanding = True
        return Attempt(self.key, self.queue_id, batch)

    def wake_at(self) -> float | None:
        """When the next attempt may start, if only time is missing."""
        if self.outstanding or self.needs_epoch or self.idle or (self.closing and not self.assigned):
            return None
        return self.not_before

    def answered(self, outcome: Outcome, now: float, roll: Callable[[], float]) -> Settled:
        """The attempt has ended."""
        self.outstanding = False
        batch = self.assigned[0]
        match outcome:
            case Confirmed(queue_offset):
                return self._confirmed(batch, queue_offset)
            case Sealed(next_sequence):
                self.sealed = True
                return self._stored_prefix(batch, next_sequence)
            case NotOpen():
                settings = self.settings
                spread = settings.not_open_max_ms - settings.not_open_first_ms
                self.not_before = now + (settings.not_open_first_ms + spread * roll()) / 1000
                for message in batch.messages:
                    message.tries -= 1
            case Illegal(reason):
                return self._illegal(batch, reason)
            case Gap(next_sequence) if next_sequence is not None and next_sequence < batch.first_sequence:
                self._back_off(now, roll)
                self._need_epoch()
            case Gap() | UnknownProducer():
                self._back_off(now, roll)
                return self._forgotten(batch)
            case Unclear():
                batch.unknown = True
                self._back_off(now, roll)
            case Fenced():
                batch.unknown = True
        return self._give_up_gone(outcome)

    def begin_epoch(self, epoch: int) -> None:
        """Sequences start from 0 in an epoch that nobody has used."""
        assert epoch > self.epoch
        assert not self.assigned
        self.epoch = epoch
        self.next_sequence = 0
        self.confirmed = False
        self.needs_epoch = False

    def drain(self) -> list[Outgoing]:
        """All messages in order, for other partitions; only when `settled`."""
        assert self.settled
        self._unassign()
        messages = [message for message in self.waiting if not message.finished]
        self.waiting.clear()
        return messages

    def abandon(self) -> tuple[Outgoing, ...]:
        """Under BestTried: the messages of the batch in flight, which go elsewhere or have failed.

        If an attempt may have stored them the sequences stay used; the broker says (`Gap`) if they are not.
        """
        assert not self.outstanding
        batch = self.assigned.popleft()
        if not batch.unknown:
            self._unassign()
            self.next_sequence = batch.first_sequence
        return tuple(message for message in batch.messages if not message.finished)

    # -- inside -------------------------------------------------------------------------------------------

    def _assign(self) -> None:
        messages: list[Outgoing] = []
        size = 0
        while self.waiting and len(messages) < self.settings.batch_messages_max:
            message = self.waiting[0]
            if message.finished:
                self.waiting.popleft()
                continue
            if messages and (message.sys_flag or size + message.size > self.settings.batch_bytes_max):
                break
            messages.append(self.waiting.popleft())
            size += message.size
            if message.sys_flag:
                break
        if messages:
            batch = Batch(tuple(messages), self.epoch, self.next_sequence)
            self.assigned.append(batch)
            self.next_sequence = batch.end_sequence

    def _unassign(self) -> None:
        """Take the sequences from all messages: none of them is stored, and none ever will be."""
        for batch in reversed(self.assigned):
            self.next_sequence = batch.first_sequence
            self.waiting.extendleft(reversed(batch.messages))
        self.assigned.clear()

    def _need_epoch(self) -> None:
        self._unassign()
        self.needs_epoch = True

    def _back_off(self, now: float, roll: Callable[[], float]) -> None:
        self.failures += 1
        delay_ms = self.settings.backoff.delay_ms(self.failures) * (0.5 + 0.5 * roll())
        self.not_before = now + delay_ms / 1000

    def _stored(self, batch: Batch, count: int, queue_offset: int | None, *, first: int = 0) -> Stored | None:
        numbers = [at for at in range(first, count) if not batch.messages[at].finished]
        if not numbers:
            return None
        return Stored(
            self.key,
            self.queue_id,
            tuple(batch.messages[at] for at in numbers),
            tuple(batch.first_sequence + at for at in numbers),
            batch.epoch,
            None if queue_offset is None else tuple(queue_offset + at for at in numbers),
        )

    def _confirmed(self, batch: Batch, queue_offset: int | None) -> Settled:
        self.assigned.popleft()
        self.failures = 0
        self.not_before = 0.0
        self.confirmed = True
        return Settled(self._stored(batch, len(batch.messages), queue_offset))

    def _stored_prefix(self, batch: Batch, next_sequence: int | None) -> Settled:
        """The end of a failed master's log may have had a part of the batch, before the seal came."""
        if next_sequence is None or next_sequence <= batch.first_sequence:
            return Settled()
        count = min(next_sequence - batch.first_sequence, len(batch.messages))
        self.assigned.popleft()
        rest = batch.messages[count:]
        if rest:
            self.assigned.appendleft(Batch(rest, batch.epoch, batch.first_sequence + count))
        return Settled(self._stored(batch, count, None))

    def _illegal(self, batch: Batch, reason: str) -> Settled:
        self.failures = 0
        self.not_before = 0.0
        self.assigned.popleft()
        count = len(batch.messages)
        if count > 1:
            middle = count // 2
            for messages, first in (
                (batch.messages[middle:], batch.first_sequence + middle),
                (batch.messages[:middle], batch.first_sequence),
            ):
                self.assigned.appendleft(Batch(messages, batch.epoch, first, unknown=batch.unknown))
            return Settled()
        if not batch.unknown:
            # What is unknown was so before it was halved. So nothing behind this one is, either.
            assert not any(other.unknown for other in self.assigned)
            self._unassign()
            self.next_sequence = batch.first_sequence
        (message,) = batch.messages
        if message.finished:
            return Settled()
        text = f"the broker refuses message {message.message_id} for {self.key.subject!r}: {reason}"
        return Settled(failed=(Failed(message, MessageRefused(text, maybe_stored=batch.unknown)),))

    def _forgotten(self, batch: Batch) -> Settled:
        failed: list[Failed] = []
        if self.confirmed:
            text = (
                f"{self.key.broker_group} has lost what it knew of this producer in partition "
                f"{self.key.partition_id} of {self.key.subject!r}, and the answer for this message was lost"
            )
            failed = self._lose(text)
        self._need_epoch()
        return Settled(failed=tuple(failed))

    def _lose(self, text: str) -> list[Failed]:
        """Give up what may be stored, and keep the rest."""
        failed = []
        kept: deque[Batch] = deque()
        for batch in self.assigned:
            if not batch.unknown:
                kept.append(batch)
                continue
            failed += [
                Failed(message, OutcomeLost(text, maybe_stored=True))
                for message in batch.messages
                if not message.finished
            ]
        self.assigned = kept
        return failed

    def _give_up_gone(self, outcome: Outcome) -> Settled:
        """A partition that is in no route was sealed, drained and removed; nobody may be left to ask."""
        if not self.gone:
            return Settled()
        self.gone_tries += 1
        denied = isinstance(outcome, NotOpen) or (isinstance(outcome, Unclear) and outcome.gone)
        if not denied and self.gone_tries < self.settings.gone_tries_max:
            return Settled()
        text = (
            f"partition {self.key.partition_id} of {self.key.subject!r} was removed before the answer of "
            f"{self.key.broker_group} for this message came"
        )
        return Settled(failed=tuple(self._lose(text)))
