"""Wheel and log of timer messages after a crash, a truncation, or from a Java broker (Java: `recover`).

Whoever starts carries out, in this order: `recover`, truncate the timer log to `log_end` with zeros behind
it, take messages from `queue_offset` on. A slave also calls `take_back` before its commit log is truncated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from brokerset_broker.timers.timer_log import TimerLog
from brokerset_broker.timers.wheel import TimerWheel
from brokerset_formats.timer_files import TimerCheckpoint, TimerUnit

QueueOffsetOf = Callable[[TimerUnit], int | None]
"""Queue offset of a unit's record in the wheel's topic; `None` if the commit log has no such record."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """What is left after a start."""

    log_end: int
    """The timer log is truncated here; what is behind is damaged, or will be taken again."""

    queue_offset: int
    """The next message to take."""

    relinked_from: int | None
    """From which position on units were linked to emptied slots, `None` if none had to be."""

    is_rebuilt: bool
    """Whether the wheel did not fit the log, and was made from the whole of it."""


def recover(
    wheel: TimerWheel,
    log: TimerLog,
    checkpoint: TimerCheckpoint,
    *,
    queue_offset_max: int,
    queue_offset_of: QueueOffsetOf,
    record_offset_min: int = 0,
) -> Recovered:
    """Make wheel and log fit each other and the commit log.

    `queue_offset_max` is what the progress and the queue's end allow; `record_offset_min` is the begin of the
    commit log. With a checkpoint of ours nothing below its flush position can be damaged. Java writes the
    position before it flushes, and begins two files earlier; so does this with a checkpoint of Java.
    """
    is_ours = bool(checkpoint.own)
    start = max(log.begin, log.place(checkpoint.log_flush_position).position)
    if not is_ours:
        start = log.file_before(start)
    elif start > log.begin and log.valid_end(_last_before(log, start)) < start:
        start = log.begin  # units are missing that were on disk
    end = log.valid_end(start)
    relinked_from = wheel.reset_beyond(end)
    is_rebuilt = not _link(wheel, log, min(start, end if relinked_from is None else relinked_from), end)
    if is_rebuilt:
        wheel.clear()
        _link(wheel, log, log.begin, end)
    queue_offset = checkpoint.queue_offset
    newest = _newest_queue_offset(log, end, queue_offset_of, record_offset_min)
    if newest is not None and (not is_ours or end < checkpoint.log_flush_position):
        queue_offset = newest + 1
    elif newest is None and is_ours and end < checkpoint.log_flush_position:
        queue_offset = 0
    if not is_ours:
        queue_offset = min(queue_offset, checkpoint.master_queue_offset)
    queue_offset = max(0, min(queue_offset, queue_offset_max))
    end = take_back(
        wheel,
        log,
        end,
        queue_offset=queue_offset,
        queue_offset_of=queue_offset_of,
        record_offset_min=record_offset_min,
    )
    return Recovered(end, queue_offset, relinked_from, is_rebuilt)


def take_back(
    wheel: TimerWheel,
    log: TimerLog,
    end: int,
    *,
    queue_offset: int,
    queue_offset_of: QueueOffsetOf,
    record_offset_min: int = 0,
    units_max: int | None = None,
) -> int:
    """Undo all units of messages from `queue_offset` on, or whose record is gone; the new end of the log.

    Units are in the order of the queue, so the walk back ends at the first that stays. Units of records that
    expired (before `record_offset_min`) stay. With `units_max` it may end before: call it again with what it
    returned until that stays the same.
    """
    position = log.before(end)
    count = 0
    while position is not None and count != units_max:
        count += 1
        unit = log.unit(position)
        if unit.offset < record_offset_min:
            break
        found = queue_offset_of(unit)
        if found is not None and found < queue_offset:
            break
        wheel.unlink(unit, position)
        end = position
        position = log.before(position)
    return end


def _last_before(log: TimerLog, position: int) -> int:
    found = log.before(position)
    return log.begin if found is None else found


def _link(wheel: TimerWheel, log: TimerLog, start: int, end: int) -> bool:
    """Link each unit of [start, end) that its slot does not know; whether the wheel fits what was before."""
    for position, unit in log.units(max(log.begin, start), end):
        last = wheel.last_position(unit.slot_ms)
        if last < position:
            if last != unit.previous_position and unit.previous_position >= log.begin:
                return False
            wheel.link(unit, position)
    return True


def _newest_queue_offset(
    log: TimerLog, end: int, queue_offset_of: QueueOffsetOf, record_offset_min: int
) -> int | None:
    position = log.before(end)
    while position is not None:
        unit = log.unit(position)
        if unit.offset < record_offset_min:
            return None
        found = queue_offset_of(unit)
        if found is not None:
            return found
        position = log.before(position)
    return None
