"""What a group has done with its timer messages, and where one broker of it stands.

`Progress` is the group's: the master writes it behind what it has delivered, into the same log. So whoever
has the record has the messages before it, and a new master delivers again only what came after it. Java's new
master begins where its last poll of the old one was, some seconds before.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from brokerset_broker.timers.settings import TimerSettings
from brokerset_formats.config import DataVersion, fields
from brokerset_formats.errors import FormatError
from brokerset_formats.timer_files import TimerCheckpoint

STEPS_MAX: Final = 16
"""Steps that are kept; when older ones go, messages may be delivered once more, and none is lost."""

JAVA_ROLL_LAG_MS: Final = 600_000
"""How much later than the record was stored a Java broker may have taken it, for the slots of its rolls."""

_HEAD: Final = struct.Struct(">BBqq")
"""Version, number of steps, roll lag, its end."""

_STEP: Final = struct.Struct(">qq")

_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Step:
    """Messages below `queue_offset` whose slot is before `read_ms` are done."""

    queue_offset: int
    """In the wheel's topic."""

    read_ms: int
    """Beginning of a slot."""

    def covers(self, other: Step) -> bool:
        """Whether all that `other` has done is done by this step, too."""
        return self.queue_offset >= other.queue_offset and self.read_ms >= other.read_ms


@dataclass(frozen=True, slots=True)
class Progress:
    """Which messages are done: delivered, recalled, or put aside again. Steps, of which none covers another.

    The last step is where the master stands: the next message to take, and the slot to read. There are more
    steps while a slot is partly delivered, and after the clock was set back until it has caught up.
    """

    steps: tuple[Step, ...] = (Step(0, 0),)

    roll_lag_ms: int = 0
    """Slots before `read_ms` that may have rolls left: those of a Java broker lie later than ours."""

    roll_lag_until_ms: int = 0
    """When such slots have all been read, and the lag ends."""

    @classmethod
    def fresh(cls, now_ms: int, settings: TimerSettings) -> Progress:
        """Of a group that has done nothing yet: whatever was due before is delivered when it is taken."""
        return cls((Step(0, settings.floor(now_ms)),))

    @classmethod
    def of_java(cls, checkpoint: TimerCheckpoint, now_ms: int, settings: TimerSettings) -> Progress:
        """What a checkpoint says that a Java broker wrote, or that a Java master answered."""
        if checkpoint.last_read_ms <= 0:
            return cls.fresh(now_ms, settings)
        step = Step(max(0, checkpoint.master_queue_offset), settings.floor(checkpoint.last_read_ms))
        until = settings.floor(now_ms) + settings.window_slots * settings.slot_ms + JAVA_ROLL_LAG_MS
        return cls((step,), JAVA_ROLL_LAG_MS, until)

    @property
    def queue_offset(self) -> int:
        """The next message of the wheel's topic to take."""
        return self.steps[-1].queue_offset

    @property
    def read_ms(self) -> int:
        """The slot to read next; all before are done, as far as their messages were taken."""
        return self.steps[-1].read_ms

    def is_done(self, queue_offset: int, slot_ms: int, *, rolls: bool = False) -> bool:
        """Whether a message with its unit in the slot needs nothing any more."""
        slot_ms += self.roll_lag_ms if rolls else 0
        return any(queue_offset < step.queue_offset and slot_ms < step.read_ms for step in self.steps)

    def taken(self, queue_offset: int) -> Progress:
        """All messages below `queue_offset` are in the wheel or done."""
        return self._with(self.steps[:-1], Step(max(self.queue_offset, queue_offset), self.read_ms))

    def passed(self, read_ms: int) -> Progress:
        """All slots before `read_ms` are done."""
        return self._with(self.steps[:-1], Step(self.queue_offset, max(self.read_ms, read_ms)))

    def delivered(self, queue_offset: int, slot_end_ms: int) -> Progress:
        """Of the slot that is being read, all messages below `queue_offset` are done."""
        steps, current = self.steps, self.steps[-1]
        part = Step(min(queue_offset, current.queue_offset), slot_end_ms)
        is_usual = len(steps) == 1 or (len(steps) == 2 and part.covers(steps[0]))
        if is_usual and not self.roll_lag_ms and not current.covers(part):
            return Progress((part, current))  # for each message of a slot; as `_with` would say
        return self._with((*steps[:-1], part), current)

    def rewound(self, read_ms: int) -> Progress:
        """The clock was set back to `read_ms`: go on there, and know what is done behind it."""
        if read_ms >= self.read_ms:
            return self
        return self._with(self.steps, Step(self.queue_offset, read_ms))

    def forgotten(self, queue_offset: int) -> Progress:
        """Nothing is known to be done of messages from `queue_offset` on."""
        steps = [Step(min(step.queue_offset, queue_offset), step.read_ms) for step in self.steps]
        return self._with(steps[:-1], steps[-1])

    def _with(self, older: Sequence[Step], current: Step) -> Progress:
        if len(self.steps) == 1 and not older and not self.roll_lag_ms:
            return Progress((current,))  # the usual case, for each message that is taken
        kept: list[Step] = []
        for step in sorted(older, key=lambda step: (-step.queue_offset, -step.read_ms)):
            if not current.covers(step) and not any(other.covers(step) for other in kept):
                kept.append(step)
        steps = (*reversed(kept[: STEPS_MAX - 1]), current)
        if self.roll_lag_ms and current.read_ms > self.roll_lag_until_ms:
            return Progress(steps)
        return replace(self, steps=steps)

    # -- JSON and bytes -----------------------------------------------------------------------------------

    def to_json(self) -> dict[str, object]:
        """As records of metadata hold it."""
        found: dict[str, object] = {"steps": [[step.queue_offset, step.read_ms] for step in self.steps]}
        if self.roll_lag_ms:
            found |= {"rollLagMs": self.roll_lag_ms, "rollLagUntilMs": self.roll_lag_until_ms}
        return found

    @classmethod
    def from_json(cls, found: Mapping[str, object]) -> Progress:
        """Read what `to_json` made; FormatError if it is something else."""
        steps = found.get("steps")
        if not isinstance(steps, list) or not 0 < len(steps) <= STEPS_MAX:
            raise FormatError(f"a timer progress needs 1 to {STEPS_MAX} steps")
        pairs = [step for step in steps if isinstance(step, list) and len(step) == 2]
        if len(pairs) != len(steps):
            raise FormatError("a step of a timer progress is a queue offset and a time")
        numbers = [(fields.as_integer(a, "queue offset"), fields.as_integer(b, "time")) for a, b in pairs]
        get = fields.get_integer
        lag, until = get(found, "rollLagMs", 0), get(found, "rollLagUntilMs", 0)
        progress = cls(tuple(Step(*pair) for pair in numbers), lag, until)
        try:
            return cls.decode(progress.encode())
        except struct.error as error:
            raise FormatError(f"a timer progress with a number too large: {error}") from error

    def encode(self) -> bytes:
        """The bytes of our part of `timercheck`."""
        head = _HEAD.pack(_VERSION, len(self.steps), self.roll_lag_ms, self.roll_lag_until_ms)
        return head + b"".join(_STEP.pack(step.queue_offset, step.read_ms) for step in self.steps)

    @classmethod
    def decode(cls, data: bytes) -> Progress:
        """Read what `encode` made; FormatError if it is something else, or of another version."""
        if len(data) < _HEAD.size:
            raise FormatError("the data ends inside a timer progress", len(data))
        version, count, lag, until = _HEAD.unpack_from(data)
        if version != _VERSION:
            raise FormatError(f"a timer progress of version {version} is not known here", 0)
        if not 0 < count <= STEPS_MAX or len(data) != _HEAD.size + count * _STEP.size or lag < 0:
            raise FormatError(f"a timer progress of {count} steps in {len(data)} bytes", 1)
        steps = tuple(Step(*fields) for fields in _STEP.iter_unpack(data[_HEAD.size :]))
        for older, newer in pairwise(steps):
            if older.queue_offset > newer.queue_offset or older.read_ms <= newer.read_ms:
                raise FormatError(f"steps of a timer progress in disorder: {older}, {newer}", _HEAD.size)
        return cls(steps, lag, until)


@dataclass(frozen=True, slots=True)
class TimerState:
    """Where one broker stands. Every change gives a new value; the broker keeps the newest."""

    progress: Progress
    """Of the group: on a master the newest, on a slave the last one that was replicated."""

    queue_offset: int
    """The next message that this broker takes into its own wheel."""

    log_position: int
    """End of its own timer log."""

    write_ms: int = 0
    """The wheel's clock: beginning of the slot of now. Slots before it may be read."""

    leads: bool = False

    read_after: int = 0
    """No slot is read before all messages below this queue offset were taken: one of them may be in it."""

    read_limit_ms: int | None = None
    """The next message has no room in the wheel before the slots up to here are read; but no further ones."""

    @property
    def must_take_back(self) -> bool:
        """Whether a slave has taken more than its group's progress says, which `recovery.take_back` undoes.

        A master delivers what it takes too late without a unit. What only it knows of must be taken again.
        """
        return not self.leads and self.queue_offset > self.progress.queue_offset

    @property
    def may_read(self) -> bool:
        """Whether the slot `progress.read_ms` is to be read now."""
        may_begin = self.leads and (self.queue_offset >= self.read_after or self.read_limit_ms is not None)
        return may_begin and self.progress.read_ms < self.read_end_ms

    @property
    def read_end_ms(self) -> int:
        """Slots from here on are not read now."""
        return self.write_ms if self.read_limit_ms is None else min(self.write_ms, self.read_limit_ms)

    def at(self, now_ms: int, settings: TimerSettings) -> TimerState:
        """The clock says `now_ms`. It may have been set back: then slots to come are read once more."""
        write_ms = settings.floor(now_ms)
        progress = self.progress.rewound(write_ms) if self.leads else self.progress
        return replace(self, write_ms=write_ms, progress=progress)

    def taken(self, queue_offset: int, log_position: int) -> TimerState:
        """The messages below `queue_offset` were taken, and the timer log ends at `log_position`."""
        progress = self.progress.taken(queue_offset) if self.leads else self.progress
        return replace(
            self,
            queue_offset=queue_offset,
            log_position=log_position,
            progress=progress,
            read_limit_ms=None,
        )

    def delivered(self, queue_offset: int, settings: TimerSettings) -> TimerState:
        """In the slot that is being read this message and all before it are appended, or need nothing."""
        end_ms = self.progress.read_ms + settings.slot_ms
        return replace(self, progress=self.progress.delivered(queue_offset + 1, end_ms))

    def passed(self, read_ms: int) -> TimerState:
        """All slots before `read_ms` are done, because they were walked or are empty."""
        return replace(self, progress=self.progress.passed(min(read_ms, self.read_end_ms)))

    def no_room(self, read_ms: int) -> TimerState:
        """The next message has no room in the wheel: `enqueue.NoRoom` says what is to be read first.

        Where that happens before all was taken that the progress tells of, after the clock was set back by
        days, the rest of it is forgotten: slots are passed without those messages, which may come twice.
        """
        return replace(self, progress=self.progress.forgotten(self.queue_offset), read_limit_ms=read_ms)

    def learned(self, progress: Progress) -> TimerState:
        """A slave applied a progress record."""
        return self if self.leads else replace(self, progress=progress)

    def promoted(self, queue_end: int) -> TimerState:
        """It leads from now on; all metadata is applied, and the wheel's topic ends at `queue_end`.

        Slots are read once everything up to there was taken: what the old master took, which may be due, and
        what it put aside again, which is not to be put aside twice. Call `at` before anything else.
        """
        read_after = max(queue_end, self.progress.queue_offset)
        return replace(self, leads=True, read_after=read_after, read_limit_ms=None)

    def demoted(self, progress: Progress) -> TimerState:
        """It follows from now on; `progress` is the last one of its log that is confirmed.

        See `must_take_back`: what it did behind that may be truncated.
        """
        return replace(self, leads=False, progress=progress, read_after=0, read_limit_ms=None)

    def took_back(self, queue_offset: int, log_position: int) -> TimerState:
        """`recovery.take_back` was carried out."""
        return replace(self, queue_offset=queue_offset, log_position=log_position)

    def checkpoint(self, log_flush_position: int, version: DataVersion) -> TimerCheckpoint:
        """`config/timercheck`, once log, wheel and deliveries are on disk; Java reads it as its own."""
        return TimerCheckpoint(
            last_read_ms=self.progress.read_ms,
            log_flush_position=log_flush_position,
            queue_offset=min(self.queue_offset, self.progress.queue_offset),
            master_queue_offset=self.progress.queue_offset,
            version=version,
            own=self.progress.encode(),
        )
