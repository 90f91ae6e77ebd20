"""What must hold for ordered subjects, seen from outside: sends, handlers, effects, answers, records.

It knows what producers were asked to send and were told, when handlers start and end, which answers left and
arrived, and what broker groups confirmed. It computes nothing with the rules that it checks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from brokerset_formats.order_stamps import decode_stamp
from brokerset_formats.properties import Property, decode_properties
from brokerset_sim.history import Violation
from brokerset_sim.ordered_log import Entry

FENCED: Final = "an overtaken session claims, pulls and acknowledges nothing"
WAITS: Final = "under Strict a message waits for the completion of all before it"
ALONE: Final = "one handler of a key at a time"
EFFECTS: Final = "a resource that checks tokens sees each key in order"
STORED_ONCE: Final = "what is sent once is stored once"
KEPT: Final = "what is acknowledged is stored, where the producer was told"
SEALED: Final = "behind the end of a sealed queue is nothing"
LOG_ORDER: Final = "a queue has the messages of a key in the order of sending"
POSITION: Final = "a position never passes a message that was not handled"
EPOCHS: Final = "an ownership epoch is given once"
PERMISSION: Final = "nobody owns a partition while another one may consume it"
PRODUCERS: Final = "a producer epoch is given once"
HANDLED: Final = "every acknowledged message is handled"

Message = tuple[str, int]
"""Key, and number among those that were sent with it, from 1."""


def body_of(key: str, number: int) -> bytes:
    """What a message carries."""
    return f"{key}|{number}".encode()


def message_of(body: bytes) -> Message | None:
    """Which message that is."""
    key, bar, number = body.decode(errors="replace").rpartition("|")
    return (key, int(number)) if bar and number.isdigit() else None


@dataclass(slots=True)
class Sent:
    """What became of one message."""

    at: float
    stored: tuple[str, int, int] | None = None
    """Broker group, queue id, queue offset as the broker group confirmed it first."""

    acknowledged: bool = False
    failed: bool = False
    """The producer was told that it is not sent, or may be."""

    surely_not_stored: bool = False
    copies: int = 0


@dataclass(slots=True, eq=False)
class Handling:
    """One run of a handler."""

    message: Message
    group: str
    session: str
    token: int
    partition_id: int
    begun: float
    alive: Callable[[], bool]
    """Whether its process lives."""

    pauses: int
    """How often its process had been stopped when it began."""

    pauses_now: Callable[[], int]


@dataclass(slots=True)
class KeyState:
    """One key of a subject in one group of consumers."""

    completed: set[int] = field(default_factory=set)
    first: int = 0
    """The highest number that was handled first."""

    never: set[int] = field(default_factory=set)
    """Passed over when they were neither acknowledged nor handled: they must never come."""

    running: list[Handling] = field(default_factory=list)
    token: int = 0
    """The highest that the protected resource has seen."""

    effect_token: int = 0
    effect_last: int = 0
    """The number of the last effect, by that token."""

    effect_max: int = 0
    open_effect: Handling | None = None
    """The one that has begun at the resource, and not ended."""


@dataclass(slots=True)
class Owned:
    """A partition as a session may consume it, by what it was told."""

    epoch: int
    until: float
    """By the world's clock."""

    over: bool = False
    """It has released it, left, or was killed."""


class Oracle:
    """Everything that was observed of one subject, and what follows from it."""

    def __init__(self, now: Callable[[], float], fail: Callable[[Violation], None], *, strict: bool) -> None:
        self.strict = strict
        self.sent: dict[Message, Sent] = {}
        self.keys: dict[tuple[str, str], KeyState] = {}
        """By consumer group and key."""

        self.counts: Counter[str] = Counter()
        self.queues: dict[tuple[str, int], list[Message | None]] = {}
        """Confirmed messages by broker group and queue id."""

        self.ends: dict[tuple[str, int], int] = {}
        """Ends of sealed queues, as brokers told them."""

        self.excused: dict[str, set[Message]] = {}
        """By consumer group: given up by a rule of the subscription (sent back, skipped)."""

        self.copied: dict[str, set[Message]] = {}
        """By consumer group: a copy was stored for retry."""

        self.subject = ""
        self.all_groups: tuple[str, ...] = ()
        self._claims: dict[tuple[str, str, str, int], tuple[int, float]] = {}
        """By group, broker group, topic and queue: the highest epoch whose claim was answered, and when."""

        self._checked: dict[tuple[str, str, int], int] = {}
        self._epochs: dict[tuple[str, int, int], str] = {}
        self._owned: dict[tuple[str, int], dict[str, Owned]] = {}
        self._producers: dict[int, str] = {}
        self._last_stored: dict[str, int] = {}
        self.note: Callable[..., None] = lambda *what: None
        self.open: dict[tuple[str, Message], None] = {}
        """Consumer groups and messages that are stored, and not handled by them."""

        self._now = now
        self._fail = fail

    def violated(self, invariant: str, text: str) -> None:
        """Something that must never happen did."""
        self._fail(Violation(invariant, text))

    # -- producers ----------------------------------------------------------------------------------------

    def sending(self, message: Message) -> None:
        """A producer was asked to send it."""
        assert message not in self.sent, "each is sent once"
        self.sent[message] = Sent(self._now())
        self.counts["sent"] += 1

    def acknowledged(self, message: Message, group_name: str | None, queue_offset: int | None) -> None:
        """The producer was told that it is stored."""
        sent = self.sent[message]
        sent.acknowledged = True
        self.counts["acknowledged"] += 1
        if sent.stored is None:
            self.violated(KEPT, f"{message} was acknowledged, and no broker group has confirmed it")
        elif self.strict and queue_offset is not None and sent.stored[2] != queue_offset:
            self.violated(KEPT, f"{message} is at {sent.stored}, its producer was told {queue_offset}")
        for (group, key), state in self.keys.items():
            if key == message[0] and message[1] in state.never and self.strict:
                self.violated(WAITS, f"{message} was passed over by {group}, and is acknowledged now")

    def refused(self, message: Message) -> None:
        """The producer did not take it."""
        self.counts["send refused"] += 1
        if self.sent.pop(message).stored is not None:
            self.violated(KEPT, f"{message} is stored, its producer did not take it")

    def failed(self, message: Message, *, maybe_stored: bool) -> None:
        """The producer was told that it gave up."""
        sent = self.sent[message]
        sent.failed = True
        self.counts["send failed"] += 1
        if not maybe_stored:
            sent.surely_not_stored = True
            if sent.stored is not None:
                self.violated(KEPT, f"{message} is stored, its producer was told that it is not")

    def producer_started(self, epoch: int, producer: str) -> None:
        """The controllers answered a start."""
        if self._producers.setdefault(epoch, producer) != producer:
            self.violated(PRODUCERS, f"epoch {epoch} was given to {self._producers[epoch]} and {producer}")

    # -- broker groups ------------------------------------------------------------------------------------

    def confirmed(self, group_name: str, entries: list[Entry]) -> None:
        """Records can be lost no more."""
        for entry in entries:
            if entry.topic == self.subject:
                self._confirmed(group_name, entry)

    def _confirmed(self, group_name: str, entry: Entry) -> None:
        queue = self.queues.setdefault((group_name, entry.queue_id), [])
        if entry.queue_offset != len(queue):
            self.violated(
                KEPT, f"{group_name} queue {entry.queue_id} goes on at {entry.queue_offset}, not {len(queue)}"
            )
        record = entry.record
        message = message_of(record.body)
        queue.append(message)
        end = self.ends.get((group_name, entry.queue_id))
        if end is not None and entry.queue_offset >= end:
            self.violated(SEALED, f"{message} is at {entry.queue_offset} of a queue that was sealed at {end}")
        if message is None:
            return
        stamp = decode_properties(record.properties).get(Property.ORDER_STAMP)
        if stamp is None:
            self.violated(KEPT, f"{message} is stored without a stamp")
            return
        self.note("stored", *message, group_name, entry.queue_id, entry.queue_offset, stamp)
        sent = self.sent.get(message)
        if sent is None:
            self.violated(KEPT, f"{message} was sent by nobody")
            return
        if sent.surely_not_stored:
            self.violated(KEPT, f"{message} is stored, its producer was told that it is not")
        sent.copies += 1
        self.counts["stored"] += 1
        if sent.stored is None:
            sent.stored = (group_name, entry.queue_id, entry.queue_offset)
            for group in self.all_groups:
                self.open[(group, message)] = None
            self._check_log_order(message, decode_stamp(stamp).partition_id)
        else:
            self.counts["stored again"] += 1
            if self.strict:
                self.violated(
                    STORED_ONCE,
                    f"{message} is at {sent.stored} and {group_name} {entry.queue_id} {entry.queue_offset}",
                )

    def _check_log_order(self, message: Message, partition_id: int) -> None:
        if not self.strict:
            return
        key, number = message
        last = self._last_stored.get(key, 0)
        if number < last:
            self.violated(
                LOG_ORDER, f"{message} is confirmed behind {last} of its key, in partition {partition_id}"
            )
        self._last_stored[key] = max(last, number)

    def sealed(self, group_name: str, queue_id: int, end: int) -> None:
        """A broker answered that a queue is sealed."""
        known = self.ends.setdefault((group_name, queue_id), end)
        has = len(self.queues.get((group_name, queue_id), ()))
        if known != end:
            self.violated(SEALED, f"{group_name} queue {queue_id} was sealed at {known}, and at {end}")
        if has != end:
            self.violated(
                SEALED, f"{group_name} queue {queue_id} is sealed at {end}, and {has} are confirmed"
            )
        self.counts["sealed"] += 1

    def master(self, group_name: str, node: object) -> None:
        """Another master serves."""
        self.counts["masters"] += 1

    # -- positions ----------------------------------------------------------------------------------------

    def position(self, group: str, group_name: str, queue_id: int, position: int) -> None:
        """A broker answered with the position of a group of consumers."""
        begin = self._checked.get((group, group_name, queue_id), 0)
        if position <= begin:
            return
        self._checked[(group, group_name, queue_id)] = position
        messages = self.queues.get((group_name, queue_id), [])
        if position > len(messages):
            self.violated(
                POSITION,
                f"{group} is at {position} of {group_name} queue {queue_id}, which ends at {len(messages)}",
            )
        for offset in range(begin, min(position, len(messages))):
            message = messages[offset]
            if message is None or message in self.copied.get(group, ()):
                continue
            if message[1] not in self._state(group, message[0]).completed:
                self.violated(
                    POSITION,
                    f"{group} has passed {message} at {offset} of {group_name} queue {queue_id} unhandled",
                )

    def sent_back(self, group: str, group_name: str, queue_id: int, queue_offset: int, *, dead: bool) -> None:
        """A broker answered that a copy of a message is stored."""
        messages = self.queues.get((group_name, queue_id), [])
        message = messages[queue_offset] if queue_offset < len(messages) else None
        if message is not None:
            self.copied.setdefault(group, set()).add(message)
            self.counts["dead letter" if dead else "sent back"] += 1
            if dead:
                self.excused.setdefault(group, set()).add(message)
                self.open.pop((group, message), None)

    def served(self, what: str, queue: tuple[str, str, str, int], epoch: int, taken_at: float) -> None:
        """A broker answers a claim, pull or ack of a session, which it took up at a time of the world.

        `queue` is the consumer group, the broker group, the topic and the queue id.
        """
        highest, claimed_at = self._claims.get(queue, (-1, 0.0))
        if epoch < highest and taken_at > claimed_at:
            self.violated(
                FENCED, f"{what} of {queue} by epoch {epoch}, taken up when {highest} had claimed it"
            )
        if what == "claim" and epoch > highest:
            self._claims[queue] = (epoch, self._now())

    # -- ownership ----------------------------------------------------------------------------------------

    def assigned(self, group: str, session: str, partitions: dict[int, int], until: float) -> None:
        """A session has got an answer to a heartbeat: what it may consume until a time of the world."""
        now = self._now()
        for partition_id, epoch in partitions.items():
            self.granted(group, session, partition_id, epoch)
            owners = self._owned.setdefault((group, partition_id), {})
            for other, owned in owners.items():
                if other == session or owned.over:
                    continue
                if owned.epoch < epoch and owned.until > now:
                    self.violated(
                        PERMISSION,
                        f"partition {partition_id} is {session}'s by {epoch}; {other} may consume it by"
                        f" {owned.epoch} for {owned.until - now:.3f} s",
                    )
                mine = owners.get(session)
                over = mine is not None and (mine.over or mine.epoch > epoch)
                if owned.epoch > epoch and until > now and not over:
                    self.violated(
                        PERMISSION,
                        f"{session} may go on with partition {partition_id} by {epoch} for {until - now:.3f}"
                        f" s; it is {other}'s by {owned.epoch}",
                    )
            mine = owners.get(session)
            if mine is None or mine.epoch < epoch:
                owners[session] = Owned(epoch, until)
            elif mine.epoch == epoch:
                mine.until = max(mine.until, until)

    def granted(self, group: str, session: str, partition_id: int, epoch: int) -> None:
        """An answer with a grant leaves a controller."""
        known = self._epochs.setdefault((group, partition_id, epoch), session)
        if known != session:
            self.violated(EPOCHS, f"epoch {epoch} of partition {partition_id} is {known}'s and {session}'s")

    def released(self, group: str, session: str, partition_id: int, epoch: int) -> None:
        """A session says that it has stopped."""
        owned = self._owned.get((group, partition_id), {}).get(session)
        if owned is not None and owned.epoch == epoch:
            owned.over = True

    def session_over(self, group: str, session: str) -> None:
        """It has left, or was killed."""
        for (each, _), owners in self._owned.items():
            if each == group and session in owners:
                owners[session].over = True

    # -- handlers -----------------------------------------------------------------------------------------

    def _state(self, group: str, key: str) -> KeyState:
        return self.keys.setdefault((group, key), KeyState())

    def handler_started(self, handling: Handling) -> None:
        """A handler begins with a message."""
        key, number = handling.message
        state = self._state(handling.group, key)
        self.counts["handler started"] += 1
        state.running = [each for each in state.running if each.alive()]
        for other in state.running:
            self._check_alone(other, handling)
        if number in state.never:
            self.violated(
                WAITS, f"{handling.message} comes behind {state.first} of its key in {handling.group}"
            )
        if number > state.first:
            self._check_first(state, handling)
            state.first = number
        elif number not in state.completed:
            self.counts["handled again before completion"] += 1
        state.running.append(handling)
        self._effect_begins(state, handling)

    def _check_alone(self, other: Handling, handling: Handling) -> None:
        if not self.strict:
            self.counts["overlap"] += 1
            return
        was_stopped = other.pauses_now() > other.pauses
        if not was_stopped or other.token >= handling.token:
            self.violated(
                ALONE,
                f"{handling.message} starts in {handling.session} by {handling.token};"
                f" {other.message} has run in {other.session} by {other.token} since {other.begun:.3f}",
            )
        self.counts["overlap with a stopped one"] += 1

    def _check_first(self, state: KeyState, handling: Handling) -> None:
        key, number = handling.message
        excused = self.excused.get(handling.group, ())
        for earlier in range(state.first, number) if state.first else range(1, number):
            if earlier == 0 or earlier in state.completed or (key, earlier) in excused:
                continue
            sent = self.sent.get((key, earlier))
            if not self.strict:
                self.counts["disorder"] += 1
            elif earlier == state.first:
                self.violated(
                    WAITS, f"{handling.message} starts in {handling.group}; {earlier} was not completed"
                )
            elif sent is not None and (sent.acknowledged or sent.stored is not None):
                self.violated(
                    WAITS, f"{handling.message} starts in {handling.group}; {earlier} was not handled"
                )
            else:
                state.never.add(earlier)

    def handled(self, group: str, message: Message) -> None:
        """A handler of a group has completed a message."""
        self._state(group, message[0]).completed.add(message[1])
        self.open.pop((group, message), None)
        self.counts["handled"] += 1

    def handler_ended(self, handling: Handling, *, completed: bool) -> None:
        """A handler returned, or failed."""
        state = self._state(handling.group, handling.message[0])
        if handling in state.running:
            state.running.remove(handling)
        if completed:
            self._effect_ends(state, handling)
            self.handled(handling.group, handling.message)
        else:
            self.counts["handler failed"] += 1
            if state.open_effect is handling:
                state.open_effect = None

    # -- the protected resource ---------------------------------------------------------------------------

    def _effect_begins(self, state: KeyState, handling: Handling) -> None:
        if not self.strict:
            return
        if handling.token < state.token:
            self.counts["effect refused"] += 1
            return
        before = state.open_effect
        if before is not None and before.token == handling.token and before.alive():
            self.violated(
                EFFECTS,
                f"{handling.message} begins while {before.message} has not ended, both by {before.token}",
            )
        state.token = handling.token
        state.open_effect = handling

    def _effect_ends(self, state: KeyState, handling: Handling) -> None:
        if not self.strict:
            return
        if handling.token < state.token or state.open_effect is not handling:
            self.counts["effect refused"] += 1
            return
        state.open_effect = None
        number = handling.message[1]
        if handling.token == state.effect_token and number < state.effect_last:
            self.violated(
                EFFECTS,
                f"{handling.message} takes effect behind {state.effect_last}, both by {handling.token}",
            )
        if number > state.effect_max:
            for earlier in range(state.effect_max + 1, number):
                sent = self.sent.get((handling.message[0], earlier))
                missed = (handling.message[0], earlier) not in self.excused.get(handling.group, ())
                if sent is not None and sent.stored is not None and missed:
                    self.violated(
                        EFFECTS,
                        f"{handling.message} takes effect before {earlier} has by any token that counts",
                    )
            state.effect_max = number
        state.effect_token, state.effect_last = handling.token, number
        self.counts["effects"] += 1

    def lost(self) -> list[Message]:
        """What was acknowledged and is not stored."""
        return [message for message, sent in self.sent.items() if sent.acknowledged and sent.stored is None]

    # -- the end ------------------------------------------------------------------------------------------

    def unhandled(self) -> list[tuple[str, Message]]:
        """What was stored and not handled by each group."""
        return list(self.open)
