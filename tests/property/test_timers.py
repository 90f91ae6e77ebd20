"""Timer messages through crashes, failovers and jumps of the clock: never early, never lost, seldom twice.

The group's log is a list of what was appended. Members have a wheel and a timer log of bytes, and do what a
broker does with the decisions of `brokerset_broker.timers`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from brokerset_broker.timers.dequeue import Deliver, EarlierRolls, Outcome, Roll, SlotWalk
from brokerset_broker.timers.enqueue import (
    DeliverNow,
    Link,
    NoRoom,
    NotReached,
    RollNow,
    decide_take,
    make_unit,
)
from brokerset_broker.timers.messages import TimedMessage
from brokerset_broker.timers.progress import Progress, TimerState
from brokerset_broker.timers.put_decision import AtOnce, PutAside, WheelLoad, decide_put
from brokerset_broker.timers.recovery import recover, take_back
from brokerset_broker.timers.settings import TimerSettings
from brokerset_broker.timers.timer_log import TimerLog
from brokerset_broker.timers.wheel import TimerWheel
from brokerset_formats.config import DataVersion
from brokerset_formats.timer_files import (
    NO_POSITION,
    SLOT_SIZE,
    TimerUnit,
    decode_timer_checkpoint,
)
from brokerset_rig.examples import examples

SETTINGS = TimerSettings(wheel_slots=24, roll_window_slots=9, max_delay_ms=40_000)
BEHIND_MS_MAX = SETTINGS.wheel_ms - 12_000
SET_BACK_MS_MAX = SETTINGS.wheel_ms // 4
"""Three days and a half of the real wheel; see the limits in `DESIGN.md`."""
FILE_BYTES = 52 * 4 + 30
START_MS = 1_795_251_847_000
RECORD = 100
"""Bytes of each entry of the group's log."""


@dataclass(frozen=True)
class Put:
    """A record of the wheel's topic: a new message, or a copy that rolls."""

    message: TimedMessage
    deliver_ms: int


@dataclass(frozen=True)
class Out:
    """A record of the real topic."""

    key: str


Entry = Put | Out | Progress


class Group:
    """What all members have in common: the log, and the clock."""

    def __init__(self) -> None:
        self.now = START_MS
        self.entries: list[Entry] = []
        self.queue: list[int] = []
        """Places in `entries` of the records of the wheel's topic."""
        self.confirmed = 0
        self.rolled_late: set[str] = set()
        """Keys of what was taken after its slot to roll; a crash may make a second copy of it."""

    def append(self, entry: Entry) -> None:
        if isinstance(entry, Put):
            self.queue.append(len(self.entries))
        self.entries.append(entry)

    def truncate(self, length: int) -> None:
        del self.entries[length:]
        self.queue = [place for place in self.queue if place < length]

    def progress(self, length: int) -> Progress:
        found = [entry for entry in self.entries[:length] if isinstance(entry, Progress)]
        return found[-1] if found else Progress.fresh(START_MS, SETTINGS)

    def put(self, unit: TimerUnit) -> Put | None:
        place = unit.offset // RECORD
        entry = self.entries[place] if place < len(self.entries) else None
        return entry if isinstance(entry, Put) else None

    def message(self, unit: TimerUnit) -> TimedMessage | None:
        entry = self.put(unit)
        return None if entry is None else entry.message

    def queue_offset(self, unit: TimerUnit) -> int | None:
        entry = self.put(unit)
        return None if entry is None else entry.message.queue_offset


@dataclass
class Disk:
    """Wheel and log as they were written, and as they surely are on disk."""

    wheel: bytearray
    files: dict[int, bytearray]
    end: int = 0

    def copy(self) -> Disk:
        return Disk(bytearray(self.wheel), {base: bytearray(b) for base, b in self.files.items()}, self.end)


class Member:
    """The thin shell around the decisions: it reads, writes and appends."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.disk = Disk(bytearray(SETTINGS.wheel_bytes), {})
        self.state = TimerState(group.progress(0), 0, 0)
        self.rolls = EarlierRolls(0, 0)
        self.walk: SlotWalk | None = None
        self.outcomes: Iterator[Outcome] = iter(())
        self.flush()

    @property
    def wheel(self) -> TimerWheel:
        return TimerWheel(self.disk.wheel, SETTINGS)

    @property
    def log(self) -> TimerLog:
        return TimerLog(FILE_BYTES, self.disk.files.get)

    # -- files --------------------------------------------------------------------------------------------

    def flush(self) -> None:
        self.flushed = self.disk.copy()
        self.flushed_entries = len(self.group.entries)
        self.checkpoint = self.state.checkpoint(self.state.log_position, DataVersion()).encode()

    def write(self, position: int, data: bytes) -> None:
        base = position - position % FILE_BYTES
        file = self.disk.files.setdefault(base, bytearray(FILE_BYTES))
        file[position - base : position - base + len(data)] = data
        assert len(file) == FILE_BYTES
        self.disk.end = position + len(data)

    def truncate(self, end: int) -> None:
        for base, file in list(self.disk.files.items()):
            if base >= end:
                del self.disk.files[base]
            elif base + FILE_BYTES > end:
                file[end - base :] = bytes(base + FILE_BYTES - end)
        self.disk.end = end

    def lose_power(self, rng: random.Random) -> None:
        """Pages of wheel and log that were not flushed are there or not, each by itself."""
        for position in range(0, len(self.disk.wheel), SLOT_SIZE):
            if rng.random() < 0.5:
                piece = slice(position, position + SLOT_SIZE)
                self.disk.wheel[piece] = self.flushed.wheel[piece]
        end = rng.randint(self.flushed.end, max(self.flushed.end, self.disk.end))
        self.truncate(end)
        if rng.random() < 0.5:
            for base in self.disk.files:
                if base <= end < base + FILE_BYTES:
                    garbage = rng.randbytes(min(40, base + FILE_BYTES - end))
                    self.disk.files[base][end - base : end - base + len(garbage)] = garbage

    def restart(self, progress: Progress) -> None:
        checkpoint = decode_timer_checkpoint(self.checkpoint)
        recovered = recover(
            self.wheel,
            self.log,
            checkpoint,
            queue_offset_max=min(progress.queue_offset, len(self.group.queue)),
            queue_offset_of=self.group.queue_offset,
        )
        self.truncate(recovered.log_end)
        self.state = TimerState(progress, recovered.queue_offset, recovered.log_end)
        self.walk = None

    # -- roles --------------------------------------------------------------------------------------------

    def lead(self) -> None:
        self.state = self.state.promoted(len(self.group.queue)).at(self.group.now, SETTINGS)
        self.rolls = EarlierRolls(self.state.progress.queue_offset, self.state.read_after)
        self.walk = None

    def learn(self, length: int) -> None:
        """It has the log up to there, and applies the metadata in it."""
        self.state = self.state.learned(self.group.progress(length))
        self.take_back()

    def follow(self) -> None:
        """Its log is truncated after this."""
        self.state = self.state.demoted(self.group.progress(self.group.confirmed))
        self.walk = None
        self.take_back()

    def take_back(self) -> None:
        if self.state.must_take_back:
            wanted = self.state.progress.queue_offset
            end = take_back(
                self.wheel,
                self.log,
                self.state.log_position,
                queue_offset=wanted,
                queue_offset_of=self.group.queue_offset,
            )
            self.truncate(end)
            self.state = self.state.took_back(wanted, end)

    # -- work ---------------------------------------------------------------------------------------------

    def step(self, walk_first: bool = False) -> bool:
        """One message taken, one outcome carried out, or some slots passed; whether there was anything."""
        self.state = self.state.at(self.group.now, SETTINGS)
        if self.walk is not None and not self.still_reads(self.walk):
            self.walk = None
        if walk_first and self.walk is not None:
            return self.go_on()
        return self.take() or (self.go_on() if self.walk is not None else self.read())

    def still_reads(self, walk: SlotWalk) -> bool:
        return self.state.may_read and self.reading == self.state.progress.read_ms

    def take(self) -> bool:
        queue_offset = self.state.queue_offset
        if queue_offset >= len(self.group.queue):
            return False
        place = self.group.queue[queue_offset]
        entry = self.group.entries[place]
        assert isinstance(entry, Put)
        position = self.state.log_position
        match decide_take(entry.message, self.state, SETTINGS):
            case NoRoom(read_ms):
                self.state = self.state.no_room(read_ms)
                return False
            case NotReached():
                return False
            case DeliverNow():
                self.deliver(entry)
            case RollNow():
                self.group.rolled_late.add(entry.message.unique_key)
                self.roll(entry)
            case Link() as link:
                unit = make_unit(
                    entry.message,
                    link,
                    previous_position=self.wheel.last_position(link.slot_ms),
                    write_ms=self.state.write_ms,
                    offset=place * RECORD,
                    size=RECORD,
                )
                where = self.log.place(position)
                self.write(position, where.blank)
                self.write(where.position, unit.encode())
                self.wheel.link(unit, where.position)
                position = self.disk.end
        self.rolls.note(entry.message)
        self.state = self.state.taken(queue_offset + 1, position)
        return True

    def read(self) -> bool:
        if not self.state.may_read:
            return False
        read_ms = self.state.progress.read_ms
        used = self.wheel.next_used(read_ms, self.state.read_end_ms)
        if used > read_ms:
            self.state = self.state.passed(used)
        else:
            self.begin(NO_POSITION)
        return True

    def begin(self, stop: int) -> None:
        self.reading = self.state.progress.read_ms
        self.walk = SlotWalk(
            self.reading,
            self.wheel.last_position(self.reading),
            unit_at=self.log.unit,
            message_of=self.group.message,
            progress=self.state.progress,
            earlier_rolls=self.rolls,
            stop_position=stop,
        )
        self.outcomes = self.walk.outcomes()

    def go_on(self) -> bool:
        assert self.walk is not None
        outcome = next(self.outcomes, None)
        if outcome is None:
            if self.wheel.last_position(self.reading) != self.walk.last_position:
                self.begin(self.walk.last_position)
            else:
                self.state = self.state.passed(self.reading + SETTINGS.slot_ms)
                self.walk = None
            return True
        entry = self.group.put(outcome.unit)
        assert entry is not None
        match outcome:
            case Deliver():
                self.deliver(entry)
            case Roll():
                self.roll(entry)
        self.state = self.state.delivered(entry.message.queue_offset, SETTINGS)
        return True

    def deliver(self, entry: Put) -> None:
        assert self.group.now >= entry.deliver_ms, "never early"
        assert not entry.message.delete_key, "a recall reaches no consumer"
        self.group.append(Out(entry.message.unique_key))

    def roll(self, entry: Put) -> None:
        copy = replace(
            entry.message,
            roll_times=entry.message.roll_times + 1,
            store_ms=self.group.now,
            queue_offset=len(self.group.queue),
        )
        self.group.append(replace(entry, message=copy))


class Timers(RuleBasedStateMachine):
    """A leader, a follower, and whatever happens to them."""

    @initialize(alone=st.booleans())
    def begin(self, alone: bool) -> None:
        """`alone`: a broker without a group, whose progress is in `timercheck`."""
        self.alone = alone
        self.group = Group()
        self.leader, self.follower = Member(self.group), Member(self.group)
        self.leader.lead()
        self.latest = START_MS
        self.sent = 0
        self.faults: list[int] = []
        """For each crash or promotion, how many messages had been sent."""
        self.recalled: dict[str, int] = {}
        """Keys that were recalled in time, and the place of the recall in the log. They count only while
        reading is not so far behind that messages do not fit the wheel: then slots are passed for room."""

    # -- clients ------------------------------------------------------------------------------------------

    @rule(delay=st.one_of(st.integers(0, 40_000), st.sampled_from([1, 1000, 9_000, 12_000, 13_000])))
    def send(self, delay: int) -> None:
        self.sent += 1
        self.put(f"m{self.sent}", {"TIMER_DELAY_MS": str(delay)}, "")

    @rule(delay=st.integers(0, 3_000), count=st.integers(2, 6))
    def send_some(self, delay: int, count: int) -> None:
        for _ in range(count):
            self.send(delay)

    @rule(data=st.data())
    def recall(self, data: st.DataObject) -> None:
        puts = [
            (place, entry)
            for place, entry in enumerate(self.group.entries)
            if isinstance(entry, Put) and entry.message.roll_times == 0 and not entry.message.delete_key
        ]
        if not puts:
            return
        _, target = data.draw(st.sampled_from(puts))
        key, out_ms = target.message.unique_key, target.message.out_ms
        place = len(self.group.entries)
        is_put = self.put(key, {"TIMER_DELIVER_MS": str(out_ms + 1), "TIMER_DEL_UNIQKEY": key}, key)
        if is_put and self.latest < out_ms + 1000 and not self.is_far_behind():
            self.recalled.setdefault(key, place)

    def put(self, key: str, properties: dict[str, str], delete_key: str) -> bool:
        """As a broker does with a send."""
        now = self.group.now
        decision = decide_put("t", 0, properties, settings=SETTINGS, now_ms=now, load=WheelLoad())
        if isinstance(decision, AtOnce):
            return False
        if isinstance(decision, PutAside):
            message = TimedMessage(
                len(self.group.queue), decision.out_ms, now, "t", 0, key, delete_key=delete_key
            )
            deliver = int(properties.get("TIMER_DELAY_MS", 0)) + now
            self.group.append(Put(message, deliver))
            return True
        return False

    # -- time ---------------------------------------------------------------------------------------------

    @rule(ms=st.integers(1, 4_000))
    def wait(self, ms: int) -> None:
        self.set_clock(self.group.now + ms)

    @rule(ms=st.sampled_from([-30_000, -5_000, -1_500, -300, 15_000, 60_000, 200_000]))
    def jump(self, ms: int) -> None:
        self.set_clock(self.group.now + ms)

    def set_clock(self, now: int) -> None:
        if self.alone and now - self.latest > 4_000:
            # The wheel must not turn once between two checkpoints: see the limits in `DESIGN.md`.
            now = min(now, self.latest + 15_000)
            while self.leader.step():
                pass
            self.leader.flush()
        self.group.now = max(now, self.latest - SET_BACK_MS_MAX)
        self.latest = max(self.latest, now)

    # -- members ------------------------------------------------------------------------------------------

    @rule(walks=st.lists(st.booleans(), min_size=1, max_size=12))
    def leader_works(self, walks: list[bool]) -> None:
        for walk_first in walks:
            self.leader.step(walk_first)

    @rule()
    def leader_does_all(self) -> None:
        while self.leader.step():
            pass

    @precondition(lambda self: not self.alone)
    @rule(count=st.integers(1, 8))
    def follower_works(self, count: int) -> None:
        self.follower.learn(self.group.confirmed)
        for _ in range(count):
            self.follower.step()

    @precondition(lambda self: not self.alone)
    @rule()
    def record_progress(self) -> None:
        self.group.append(Progress.decode(self.leader.state.progress.encode()))

    @rule()
    def confirm(self) -> None:
        self.group.confirmed = len(self.group.entries)

    @rule()
    def flush(self) -> None:
        self.leader.flush()
        self.follower.flush()

    # -- faults -------------------------------------------------------------------------------------------

    @rule(seed=st.integers(0, 2**32), power=st.booleans())
    def leader_restarts(self, seed: int, power: bool) -> None:
        """It leads again: in a group with its whole log, alone with what was on disk."""
        self.crash(self.leader, seed, power)
        if self.alone:
            if power:
                length = len(self.group.entries)
                self.truncate(random.Random(seed).randint(self.leader.flushed_entries, length))
            own = decode_timer_checkpoint(self.leader.checkpoint).own
            self.leader.restart(Progress.decode(own))
        else:
            self.leader.restart(self.group.progress(len(self.group.entries)))
        self.leader.lead()
        self.faults.append(self.sent)

    @precondition(lambda self: not self.alone)
    @rule(seed=st.integers(0, 2**32), power=st.booleans())
    def follower_restarts(self, seed: int, power: bool) -> None:
        self.crash(self.follower, seed, power)
        self.follower.restart(self.group.progress(self.group.confirmed))

    @precondition(lambda self: not self.alone)
    @rule()
    def wheel_is_lost(self) -> None:
        """Somebody deleted all files of the follower."""
        self.follower = Member(self.group)
        self.follower.restart(self.group.progress(self.group.confirmed))

    @precondition(lambda self: not self.alone)
    @rule(data=st.data(), crashed=st.booleans(), seed=st.integers(0, 2**32))
    def fail_over(self, data: st.DataObject, crashed: bool, seed: int) -> None:
        """The follower leads; what was not confirmed may be lost."""
        kept = data.draw(st.integers(self.group.confirmed, len(self.group.entries)))
        if crashed:
            self.crash(self.leader, seed, power=True)
            self.leader.restart(self.group.progress(self.group.confirmed))
        else:
            self.leader.follow()
        self.truncate(kept)
        self.leader, self.follower = self.follower, self.leader
        self.leader.learn(kept)
        self.leader.lead()
        self.faults.append(self.sent)

    def truncate(self, kept: int) -> None:
        self.group.truncate(kept)
        self.group.confirmed = min(self.group.confirmed, kept)
        self.recalled = {key: place for key, place in self.recalled.items() if place < kept}

    def crash(self, member: Member, seed: int, power: bool) -> None:
        if power:
            member.lose_power(random.Random(seed))

    @invariant()
    def recalls_need_room(self) -> None:
        if hasattr(self, "group") and self.is_far_behind():
            self.recalled.clear()

    def is_far_behind(self) -> bool:
        return self.latest - self.leader.state.progress.read_ms > BEHIND_MS_MAX

    # -- checks -------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Heal: after enough time everything was delivered, and nothing too often."""
        if not hasattr(self, "group"):
            return
        self.set_clock(self.latest + 1)
        self.recalls_need_room()
        for _ in range(100):
            while self.leader.step():
                pass
            self.set_clock(self.group.now + 1_000)
        assert self.leader.state.queue_offset == len(self.group.queue)

        places: dict[str, list[int]] = {}
        for place, entry in enumerate(self.group.entries):
            if isinstance(entry, Out):
                places.setdefault(entry.key, []).append(place)
        for entry in self.group.entries:
            if not isinstance(entry, Put) or entry.message.roll_times or entry.message.delete_key:
                continue
            key = entry.message.unique_key
            count = len(places.get(key, ()))
            since = sum(sent >= int(key[1:]) for sent in self.faults)
            assert count <= 1 + since or key in self.group.rolled_late, (
                f"{key} was delivered {count} times after {since} faults"
            )
            if key in self.recalled:
                assert all(place < self.recalled[key] for place in places.get(key, ())), f"{key} was recalled"
            elif not any(
                isinstance(other, Put) and other.message.delete_key == key for other in self.group.entries
            ):
                assert count >= 1, f"{key} was lost"


TestTimers = Timers.TestCase
# The same examples each time, but in `make full`: clocks that turn the wheel in seconds are drawn rarely, and
# are beyond what is promised (DESIGN.md, *Limits*).
IS_FULL = settings.get_current_profile_name() == "full"
TestTimers.settings = examples(150, stateful_step_count=40, deadline=None, derandomize=not IS_FULL)
