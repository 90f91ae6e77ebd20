"""Reading a slot that has ended: what is delivered, put aside again or dropped (Java: `dequeue`).

The chain of a slot goes from the newest unit back. Its messages are given oldest first, in one walk back that
notes every thousandth position or so, and one walk through each piece. So the walk holds some thousand
positions and the keys of the slot's recalls, whatever number of messages there is.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Final, Protocol

from brokerset_broker.timers.messages import TimedMessage
from brokerset_broker.timers.progress import Progress
from brokerset_broker.timers.timer_log import Stretch, chain_of
from brokerset_formats.timer_files import NO_POSITION, TimerUnit

PIECE_UNITS: Final = 1024
"""Units between two noted positions of a short chain."""

NOTED_MAX: Final = 1024
"""Positions that are noted; with more, every second is dropped and pieces become twice as long."""

PAUSE_UNITS: Final = 256
"""Units inspected without an outcome, after which a walk lets its caller ask what time it is."""

ROLLS_MAX: Final = 100_000
"""Rolls of an old master that a new one remembers; of further ones it makes a second copy."""


class DropReason(Enum):
    """Why a message of a slot is not given out."""

    RECALLED = "recalled"
    DONE = "done before"
    ROLLED = "put aside again by the master before"
    GONE = "its record cannot be read"


@dataclass(frozen=True, slots=True)
class Deliver:
    """Append it to its topic, with `messages.delivered_properties`."""

    unit: TimerUnit
    message: TimedMessage


@dataclass(frozen=True, slots=True)
class Roll:
    """Append it to the wheel's topic, with `messages.rolled_properties`."""

    unit: TimerUnit
    message: TimedMessage


@dataclass(frozen=True, slots=True)
class Drop:
    """Do nothing; `message` is missing where its record cannot be read."""

    unit: TimerUnit
    message: TimedMessage | None
    reason: DropReason


Outcome = Deliver | Roll | Drop

UnitAt = Callable[[int], TimerUnit]
"""Reads the unit at a position; FormatError if there is none."""


class Chain(Protocol):
    """`TimerLog.chain`."""

    def __call__(self, position: int, slot_ms: int, *, stop: int, begin: int, count_max: int) -> Stretch: ...


MessageOf = Callable[[TimerUnit], TimedMessage | None]
"""Reads the record of a unit; `None` if it is gone or unusable."""


class EarlierRolls:
    """Copies that an old master put aside again, and that its last progress does not tell.

    A new master, or one that starts again, notes all messages that it takes before it reads the first slot.
    Its own copies come behind those, and say nothing: there may be further messages with the same key, as
    when an application sends one message twice.
    """

    __slots__ = ("_begin", "_copies", "_end", "_until_ms")

    def __init__(self, begin: int, end: int) -> None:
        """Of messages in [begin, end) of the wheel's topic: from the progress with which the master begins to
        where the topic ended then."""
        self._begin = begin
        self._end = end
        self._copies: Counter[tuple[str, int, str, str, int, int]] = Counter()
        self._until_ms = 0

    def note(self, message: TimedMessage) -> None:
        """A message was taken. Those that did not roll, and those without a key, are not remembered."""
        if not self._begin <= message.queue_offset < self._end or len(self._copies) >= ROLLS_MAX:
            return
        if message.roll_times > 0 and message.unique_key:
            self._copies[_copy_key(message, message.roll_times)] += 1
            self._until_ms = max(self._until_ms, message.store_ms)

    def take(self, message: TimedMessage) -> bool:
        """Whether there is a copy of this message; each counts once."""
        key = _copy_key(message, message.roll_times + 1)
        if not message.unique_key or self._copies[key] <= 0:
            return False
        self._copies[key] -= 1
        return True

    def forget_before(self, read_ms: int) -> None:
        """Slots before `read_ms` are read; copies are forgotten when the old master read no later ones."""
        if read_ms > self._until_ms:
            self._copies.clear()

    def __len__(self) -> int:
        return len(self._copies)


def _copy_key(message: TimedMessage, roll_times: int) -> tuple[str, int, str, str, int, int]:
    return (
        message.unique_key,
        message.out_ms,
        message.delete_key,
        message.topic,
        message.queue_id,
        roll_times,
    )


class SlotWalk:
    """One walk through the slot `slot_ms`, from its unit at `last_position` back to behind `stop_position`.

    A unit may be linked to the slot while it is read. So when all outcomes were carried out, compare: if the
    slot's last position is another one now, walk from there back to this walk's.
    """

    __slots__ = (
        "_begin_position", "_chain_at", "_keys", "_message_of", "_noted", "_piece_units", "_progress",
        "_rolls", "_slot_ms", "_stop_position", "_unit_at", "held_max", "last_position", "piece",
    )  # fmt: skip

    def __init__(
        self,
        slot_ms: int,
        last_position: int,
        *,
        unit_at: UnitAt,
        message_of: MessageOf,
        progress: Progress,
        earlier_rolls: EarlierRolls,
        stop_position: int = NO_POSITION,
        begin_position: int = 0,
        chain: Chain | None = None,
    ) -> None:
        """`begin_position` is where the log begins: units before it went with their records. `chain` reads
        many units at once; without it they are read one by one."""
        self.last_position = last_position
        self.held_max = 0
        """The largest number of positions and keys that the walk held at a time."""
        self._slot_ms = slot_ms
        self._stop_position = stop_position
        self._begin_position = begin_position
        self._unit_at = unit_at
        self._chain_at: Chain = partial(chain_of, unit_at) if chain is None else chain
        self._message_of = message_of
        self._progress = progress
        self._rolls = earlier_rolls
        self._keys: set[tuple[str, str]] = set()
        """Topics and keys of recalls: a message with the same key in another topic is another message."""
        self._noted = array("q")
        self.piece = array("q")
        """Positions of the units that come next, the last one first. Whoever has carried out some of them
        otherwise takes them away from here."""
        self._piece_units = PIECE_UNITS

    @property
    def held(self) -> int:
        """Positions and keys that the walk holds now."""
        return len(self._noted) + len(self.piece) + len(self._keys)

    def outcomes(self) -> Iterator[Outcome]:
        """What to do with each message, oldest first; recalls themselves give nothing.

        FormatError if the chain is damaged, with the position; `search` needs no chain.
        """
        return (outcome for outcome in self.steps() if outcome is not None)

    def steps(self) -> Iterator[Outcome | None]:
        """The same, with `None` where much was inspected since, so that a caller may do something else."""
        yield from self._inspect()
        while self._noted:
            piece = array("q")
            for found in self._stretches(self._noted.pop(), self._piece_units):
                piece.extend(found.positions)
                if len(found.positions) == PAUSE_UNITS:
                    yield None
            self.piece = piece
            self._count()
            while self.piece:
                unit = self._unit_at(self.piece.pop())
                if not unit.deletes or unit.rolls:
                    yield self._outcome(unit)

    def search(self, units: Callable[[], Iterator[tuple[int, TimerUnit]]]) -> Iterator[Outcome | None]:
        """The same without the chain: `units` gives all units that may be in the slot, oldest first."""
        for count, (_, unit) in enumerate(units()):
            if unit.slot_ms == self._slot_ms:
                self._note_recall(unit)
            if count % PAUSE_UNITS == PAUSE_UNITS - 1:
                yield None
        for count, (_, unit) in enumerate(units()):
            if unit.slot_ms == self._slot_ms and (not unit.deletes or unit.rolls):
                yield self._outcome(unit)
            elif count % PAUSE_UNITS == PAUSE_UNITS - 1:
                yield None

    def _note_recall(self, unit: TimerUnit) -> None:
        if unit.deletes and not unit.rolls:
            recall = self._message_of(unit)
            if recall is not None and recall.delete_key:
                self._keys.add((recall.topic, recall.delete_key))

    def _inspect(self) -> Iterator[None]:
        """Walk back once: the keys of recalls, and where pieces begin."""
        count = 0
        for found in self._stretches(self.last_position):
            positions = found.positions
            next_noted = -count % self._piece_units
            while next_noted < len(positions):
                self._noted.append(positions[next_noted])
                if len(self._noted) > NOTED_MAX:
                    self._noted = self._noted[::2]
                    self._piece_units *= 2
                self._count()
                next_noted += 1
                next_noted += -(count + next_noted) % self._piece_units
            count += len(positions)
            if found.has_recalls:
                for position in positions:
                    self._note_recall(self._unit_at(position))
            if len(positions) == PAUSE_UNITS:
                yield None
        self._count()

    def _stretches(self, position: int, units_max: int | None = None) -> Iterator[Stretch]:
        """The chain from `position` back, at most so many units of it. FormatError at a damage."""
        left = units_max
        while position != self._stop_position and position >= self._begin_position and left != 0:
            count_max = PAUSE_UNITS if left is None else min(PAUSE_UNITS, left)
            found = self._chain_at(
                position,
                self._slot_ms,
                stop=self._stop_position,
                begin=self._begin_position,
                count_max=count_max,
            )
            yield found
            position = found.following
            left = None if left is None else left - len(found.positions)

    @property
    def done_end(self) -> int | None:
        """Messages below this number in the wheel's topic are done, and of others only their records and
        units can say that they are not to be delivered; None if recalls have to be compared, too."""
        if self._keys:
            return None
        progress = self._progress
        return max((step.queue_offset for step in progress.steps if self._slot_ms < step.read_ms), default=0)

    def _outcome(self, unit: TimerUnit) -> Outcome:
        message = self._message_of(unit)
        if message is None:
            return Drop(unit, None, DropReason.GONE)
        if self._progress.is_done(message.queue_offset, self._slot_ms, rolls=unit.rolls):
            return Drop(unit, message, DropReason.DONE)
        if self._keys and message.unique_key and self._is_recalled(message):
            return Drop(unit, message, DropReason.RECALLED)
        if not unit.rolls:
            return Deliver(unit, message)
        if self._rolls.take(message):
            return Drop(unit, message, DropReason.ROLLED)
        return Roll(unit, message)

    def _is_recalled(self, message: TimedMessage) -> bool:
        return any((message.topic, key) in self._keys for key in message.delete_keys)

    def _count(self) -> None:
        self.held_max = max(self.held_max, self.held)
