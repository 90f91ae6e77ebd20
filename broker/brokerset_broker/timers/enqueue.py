"""Which slot a waiting message belongs to, and what becomes of it when it is taken (Java: `doEnqueue`).

The slot follows from the record alone. In Java it follows from the clock of the broker that takes the record;
so a slave has the rolls of its master in other slots, and loses those between both at a promotion.
"""

from __future__ import annotations

from dataclasses import dataclass

from brokerset_broker.timers.messages import TimedMessage
from brokerset_broker.timers.progress import TimerState
from brokerset_broker.timers.settings import TimerSettings
from brokerset_formats.hashing import java_hash
from brokerset_formats.timer_files import TimerMagic, TimerUnit, base_and_delay


@dataclass(frozen=True, slots=True)
class NotReached:
    """The master has not taken it, as far as a slave knows; try again when it has learned more."""


@dataclass(frozen=True, slots=True)
class NoRoom:
    """Its slot lies beyond the wheel; try again when all slots before `read_ms` are read."""

    read_ms: int


@dataclass(frozen=True, slots=True)
class Skip:
    """It needs nothing: it is done, or a recall that is too late."""


@dataclass(frozen=True, slots=True)
class DeliverNow:
    """Its slot is over: it goes to its topic without a unit."""


@dataclass(frozen=True, slots=True)
class RollNow:
    """The slot in which it was to roll is over: it goes into the wheel's topic again without a unit."""


@dataclass(frozen=True, slots=True)
class Link:
    """It gets a unit in the slot."""

    slot_ms: int
    rolls: bool


TakeDecision = NotReached | NoRoom | Skip | DeliverNow | RollNow | Link


def slot_of(message: TimedMessage, settings: TimerSettings) -> tuple[int, bool]:
    """Time of the message's slot, and whether it is one to roll in.

    A message that waits for less than the window has the slot of its time. One that waits longer rolls after
    the window; or after half of it if less than a third of the window would remain, too little for the next
    turn.
    """
    precision, window = settings.slot_ms, settings.window_slots
    base_ms = settings.floor(message.store_ms)
    beyond = message.out_ms - base_ms - window * precision
    if beyond < 0:
        return settings.floor(message.out_ms), False
    return base_ms + (window // 2 if beyond < window // 3 * precision else window) * precision, True


def decide_take(message: TimedMessage, state: TimerState, settings: TimerSettings) -> TakeDecision:
    """What becomes of the message at `state.queue_offset`.

    Never early: a slot before `progress.read_ms` is over by the clock of `state`, if `state.at` was called
    since the clock moved.
    """
    progress = state.progress
    slot_ms, rolls = slot_of(message, settings)
    if not state.leads and message.queue_offset >= progress.queue_offset:
        return NotReached()
    if message.delete_key and not rolls:
        # What it recalls may be a copy that is behind it in the queue, and not done where this one is.
        if slot_ms < progress.read_ms:
            return Skip()
    elif progress.is_done(message.queue_offset, slot_ms, rolls=rolls):
        return Skip()
    if slot_ms < progress.read_ms and message.queue_offset >= progress.queue_offset:
        return RollNow() if rolls else DeliverNow()
    slot_ms = max(slot_ms, progress.read_ms)
    if slot_ms >= progress.read_ms + settings.wheel_ms:
        return NoRoom(slot_ms - settings.wheel_ms + settings.slot_ms)
    return Link(slot_ms, rolls)


def make_unit(
    message: TimedMessage, link: Link, *, previous_position: int, write_ms: int, offset: int, size: int
) -> TimerUnit:
    """The unit of a message whose record has `size` bytes at `offset` of the commit log.

    `previous_position` is the slot's last one, `write_ms` the wheel's clock.
    """
    magic = TimerMagic.DEFAULT
    if link.rolls:
        magic |= TimerMagic.ROLL
    if message.delete_key:
        magic |= TimerMagic.DELETE
    base_ms, delay_ms = base_and_delay(link.slot_ms, write_ms)
    return TimerUnit(previous_position, int(magic), base_ms, delay_ms, offset, size, java_hash(message.topic))
