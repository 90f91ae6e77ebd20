"""What a broker does for its timer messages, step by step: takes them, reads slots, delivers.

Everything is decided by `brokerset_broker.timers`; here it is carried out, in turns that are short.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, Protocol

import structlog

from brokerset_broker.services.timers.counts import TimerCounts
from brokerset_broker.services.timers.files import TimerFiles
from brokerset_broker.services.timers.links import TimerLinks
from brokerset_broker.store.errors import StoreRefused
from brokerset_broker.store.releases import ANY_QUEUE, Appends, Releases, Targets, store_again
from brokerset_broker.tables.metadata.records import METADATA_TOPIC
from brokerset_broker.timers import recovery
from brokerset_broker.timers.dequeue import Deliver, Drop, DropReason, EarlierRolls, Outcome, Roll, SlotWalk
from brokerset_broker.timers.enqueue import (
    DeliverNow,
    Link,
    NoRoom,
    NotReached,
    RollNow,
    Skip,
    decide_take,
    make_unit,
)
from brokerset_broker.timers.messages import (
    NEVER_ENQUEUED_MS,
    TimedMessage,
    delivered_properties,
    rolled_properties,
    timed_message,
)
from brokerset_broker.timers.progress import TimerState
from brokerset_broker.timers.put_decision import TIMER_QUEUE_ID
from brokerset_broker.timers.settings import TimerSettings
from brokerset_formats.errors import FormatError
from brokerset_formats.names import SEND_FORBIDDEN_TOPICS, TIMER_TOPIC
from brokerset_formats.records import Record, RecordHead, check_record, decode_record
from brokerset_formats.timer_files import NO_POSITION, TimerUnit
from brokerset_runtime.clock import Clock

log = structlog.get_logger(__name__)

STEPS_AT_ONCE: Final = 16
"""Messages taken, then outcomes carried out, before the other kind has its turn."""

SLOTS_AT_ONCE: Final = 8_192
"""Slots searched for the next one in use before the clock is asked again: half a millisecond."""

RELEASE_MESSAGES_MAX: Final = 128
RELEASE_BYTES_MAX: Final = 262_144
"""Messages, and bytes of them but for the last, that are delivered by one call: a third of a millisecond."""

TAKE_BACK_UNITS: Final = 256
"""Units taken back before others get their turn."""

OLDEST_AT_ONCE: Final = 256
"""Units that are passed at once in search of the oldest that waits."""

NO_OFFSET: Final = 2**63 - 1

_TOPIC_BYTES: Final = TIMER_TOPIC.encode()


class TimerStore(Appends, Protocol):
    """What is needed of a `MessageStore`."""

    @property
    def min_offset(self) -> int:
        """Offset of the oldest record."""

    def queue_end(self, topic: str, queue_id: int) -> int:
        """The number that the next message of a queue gets."""

    def queue_min(self, topic: str, queue_id: int) -> int:
        """The number of the oldest message of a queue that is still there."""

    def unit(self, topic: str, queue_id: int, queue_offset: int) -> tuple[int, int, int] | None:
        """Offset, size and tags code that the queue has for one message; None if it is not there."""

    def read(self, offset: int) -> memoryview | None:
        """The record at an offset of the log; None if there is none."""


class TimerReader:
    """Reads records of the wheel's topic."""

    def __init__(self, store: TimerStore) -> None:
        self._store = store

    def head(self, offset: int) -> RecordHead | None:
        """What a record of the wheel's topic at an offset of the log says; `None` if there is none."""
        data = self._store.read(offset)
        if data is None:
            return None
        head = check_record(data, 0, len(data), verify_crc=False)
        if not isinstance(head, RecordHead) or head.topic != _TOPIC_BYTES or head.offset != offset:
            return None
        return head

    def record(self, offset: int) -> Record | None:
        """The same with all that it has."""
        data = self._store.read(offset)
        try:
            record = None if data is None else decode_record(data)
        except FormatError:
            return None
        return record if record and record.topic == TIMER_TOPIC and record.offset == offset else None

    def message(self, unit: TimerUnit) -> TimedMessage | None:
        """What the record of a unit says; `None` if it is gone or unusable."""
        head = self.head(unit.offset)
        if head is None:
            return None
        try:
            return timed_message(head)
        except FormatError:
            return None

    def queue_offset(self, unit: TimerUnit) -> int | None:
        """The number of a unit's record in the wheel's topic; `None` if it is gone."""
        head = self.head(unit.offset)
        return None if head is None else head.queue_offset


class TimerWork:
    """Wheel and log of one broker, open. All methods are called on the loop."""

    def __init__(
        self,
        state: TimerState,
        *,
        store: TimerStore,
        files: TimerFiles,
        settings: TimerSettings,
        clock: Clock,
        counts: TimerCounts,
        is_subject: Callable[[str], bool],
        releases: Releases | None = None,
        links: TimerLinks | None = None,
    ) -> None:
        """`state` is what recovery found. `is_subject` tells topics whose messages have an order. `releases`
        and `links` are the native ways of deliveries and of puts, many at once, where there is a core."""
        self._links = links
        self.state = state
        self._store = store
        self._files = files
        self._settings = settings
        self._clock = clock
        self._counts = counts
        self._is_subject = is_subject
        self._releases = releases
        self._targets = Targets(lambda topic: None if self._refusal(topic) else ANY_QUEUE)
        self._reader = TimerReader(store)
        self._rolls = EarlierRolls(0, 0)
        self._walk: SlotWalk | None = None
        self._steps: Iterator[Outcome | None] = iter(())
        self._reading_ms = 0
        self._pending: Outcome | None = None
        self._searches = False
        self._stop_enqueue = self._stop_dequeue = False
        self._oldest_read_ms = 0
        """All slots before were read when `oldest` was found."""
        self.oldest = files.log.begin
        """All units before this position of the log are in slots that have been read."""
        self.changes = 0
        """Grows with everything that a progress record or a checkpoint has to tell soon."""
        self.flushed_position = state.log_position
        """The log is on the disk up to here; lowered when units are taken back."""
        self.flushing_position = state.log_position
        """What is brought to the disk now ends here; lowered, too."""

    # -- roles --------------------------------------------------------------------------------------------

    def lead(self) -> None:
        """Deliver from now on; all metadata is applied."""
        self.state = self.state.promoted(self._queue_end).at(self._clock.now_ms(), self._settings)
        self._rolls = EarlierRolls(self.state.progress.queue_offset, self.state.read_after)
        self._forget_walk()

    def follow(self, state: TimerState) -> None:
        """Go on as a slave with a state that was demoted, or that has learned a progress."""
        self.state = state
        self._forget_walk()
        self._check_oldest()

    def take_back(self) -> bool:
        """Undo some of what only this broker, not its group, knows to be taken; whether there is more."""
        if not self.state.must_take_back:
            return False
        wanted = self.state.progress.queue_offset
        files, end = self._files, self.state.log_position
        position = recovery.take_back(
            files.wheel,
            files.log,
            end,
            queue_offset=wanted,
            queue_offset_of=self._reader.queue_offset,
            record_offset_min=self._store.min_offset,
            units_max=TAKE_BACK_UNITS,
        )
        is_done = position == end
        self._took_back(wanted if is_done else self.state.queue_offset, position)
        return not is_done

    def truncated(self, offset: int, queue_end: int) -> None:
        """The commit log was truncated at `offset`, and the wheel's topic ended at `queue_end` then: units of
        what is gone go, too. What came since is taken again."""
        files, end = self._files, self.state.log_position
        position, before = end, files.log.before(end)
        while before is not None and (unit := files.log.unit(before)).offset >= offset:
            files.wheel.unlink(unit, before)
            position, before = before, files.log.before(before)
        wanted = min(self.state.queue_offset, queue_end)
        if position < end or wanted < self.state.queue_offset:
            self._took_back(wanted, position)

    def _took_back(self, queue_offset: int, position: int) -> None:
        end = self.state.log_position
        self._files.truncate(position, end)
        self.flushed_position = min(self.flushed_position, position)
        self.flushing_position = min(self.flushing_position, position)
        self.oldest = min(self.oldest, position)
        self.state = self.state.took_back(queue_offset, position)
        self.changes += 1

    def _forget_walk(self) -> None:
        self._walk = self._pending = None
        self._steps = iter(())

    # -- turns --------------------------------------------------------------------------------------------

    @property
    def _queue_end(self) -> int:
        return self._store.queue_end(TIMER_TOPIC, TIMER_QUEUE_ID)

    def needed_from(self) -> int:
        """Offset in the commit log of the oldest record that waits; beyond all without one."""
        needed = NO_OFFSET
        with suppress(FormatError):
            if self.waits and self.oldest >= self._files.log.begin:
                needed = self._files.log.unit(self.oldest).offset
        found = self._store.unit(TIMER_TOPIC, TIMER_QUEUE_ID, self.state.queue_offset)
        return needed if found is None else min(needed, found[0])

    @property
    def waits(self) -> bool:
        """Whether a message may wait in the wheel."""
        return self.oldest < self.state.log_position

    def stop_parts(self, *, enqueue: bool, dequeue: bool) -> None:
        """Take no messages, read no slots (`timerStopEnqueue`, `timerStopDequeue`)."""
        self._stop_enqueue, self._stop_dequeue = enqueue, dequeue

    def turn(self, seconds: float) -> bool:
        """Work for so long at most; whether there is more to do now. Raises `StoreRefused` and OSError, and
        goes on from there when called again."""
        clock = self._clock
        deadline = clock.monotonic() + seconds
        rewound = self.state.progress.read_ms
        self.state = self.state.at(clock.now_ms(), self._settings)
        self._check_oldest()
        if self.state.progress.read_ms < rewound:
            log.warning("the clock was set back: slots of timer messages are read once more")
            self.changes += 1
        if self._walk is not None and not self._still_reads():
            self._forget_walk()
        more = True
        while more:
            more = self._repeat(self._take, deadline)
            more = self._repeat(self._read, deadline) or more
            if clock.monotonic() >= deadline:
                return more
        return self.pass_oldest()

    def _repeat(self, step: Callable[[], bool], deadline: float) -> bool:
        """Whether there is more to do. One step at least: each of both kinds has its turn."""
        monotonic = self._clock.monotonic
        for _ in range(STEPS_AT_ONCE):
            if not step():
                return False
            if monotonic() >= deadline:
                break
        return True

    def _check_oldest(self) -> None:
        """Slots that were read may have to be read again: then the oldest unit is searched from the begin."""
        if self.state.progress.read_ms < self._oldest_read_ms:
            self.oldest, self._oldest_read_ms = self._files.log.begin, self.state.progress.read_ms

    def pass_oldest(self) -> bool:
        """Go on in search of the oldest unit that waits; whether that takes longer."""
        files, read_ms, end = self._files, self.state.progress.read_ms, self.state.log_position
        self._oldest_read_ms = read_ms
        position = max(self.oldest, files.log.begin)
        self.oldest, is_found = position, position >= end
        if not is_found:
            self.oldest, is_found = files.log.passed(position, end, read_ms, OLDEST_AT_ONCE)
        return not is_found

    # -- taking -------------------------------------------------------------------------------------------

    def _take(self) -> bool:
        state = self.state
        queue_offset = state.queue_offset
        if self._stop_enqueue or queue_offset >= self._queue_end:
            return False
        if not state.leads and queue_offset >= state.progress.queue_offset:
            return False  # as `decide_take` would say, without reading the record
        if self._links is not None:
            linked = self._links.link(state)
            if linked is not None:
                return self._taken(*linked)
        found = self._store.unit(TIMER_TOPIC, TIMER_QUEUE_ID, queue_offset)
        if found is None:
            oldest = self._store.queue_min(TIMER_TOPIC, TIMER_QUEUE_ID)
            log.warning("timer messages were deleted before they were taken", begin=queue_offset, end=oldest)
            return self._taken(max(queue_offset + 1, oldest), state.log_position)
        offset, size, _ = found
        head = self._reader.head(offset)
        try:
            message = None if head is None else timed_message(head)
        except FormatError as error:
            log.error("a timer message cannot be read, and is dropped", offset=offset, reason=str(error))
            message = None
        if message is None:
            return self._taken(queue_offset + 1, state.log_position)
        position = state.log_position
        match decide_take(message, state, self._settings):
            case NoRoom(read_ms):
                self.state = state.no_room(read_ms)
                return False
            case NotReached():
                return False
            case DeliverNow() | RollNow() as decision:
                self._put(offset, message, NEVER_ENQUEUED_MS, rolls=isinstance(decision, RollNow))
            case Link() as link:
                position = self._link(message, link, offset, size)
            case Skip():
                pass
        self._rolls.note(message)
        return self._taken(queue_offset + 1, position)

    def _taken(self, queue_offset: int, position: int) -> bool:
        self.state = self.state.taken(queue_offset, position)
        self.changes += 1
        return True

    def _link(self, message: TimedMessage, link: Link, offset: int, size: int) -> int:
        """Write the unit; the log's new end."""
        files, state = self._files, self.state
        unit = make_unit(
            message,
            link,
            previous_position=files.wheel.last_position(link.slot_ms),
            write_ms=state.write_ms,
            offset=offset,
            size=size,
        )
        where = files.log.place(state.log_position)
        if where.blank:
            files.write(state.log_position, where.blank)
        data = unit.encode()
        files.write(where.position, data)
        files.wheel.link(unit, where.position)
        self._counts.linked(message)
        return where.position + len(data)

    # -- reading slots ------------------------------------------------------------------------------------

    def _still_reads(self) -> bool:
        return self.state.may_read and self._reading_ms == self.state.progress.read_ms

    def _read(self) -> bool:
        if self._stop_dequeue or not self.state.may_read:
            return False
        if self._walk is not None and self._still_reads():
            return self._go_on()
        read_ms, end_ms = self.state.progress.read_ms, self.state.read_end_ms
        if not self.waits:
            self._pass(end_ms)
            return True
        end_ms = min(end_ms, read_ms + SLOTS_AT_ONCE * self._settings.slot_ms)
        used_ms = self._files.wheel.next_used(read_ms, end_ms)
        if used_ms > read_ms:
            self._pass(used_ms)
        else:
            self._begin(NO_POSITION)
        return True

    def _pass(self, read_ms: int) -> None:
        self.state = self.state.passed(read_ms)
        self._rolls.forget_before(read_ms)

    def _begin(self, stop: int) -> None:
        self._reading_ms = self.state.progress.read_ms
        self._walk = SlotWalk(
            self._reading_ms,
            self._files.wheel.last_position(self._reading_ms),
            unit_at=self._files.log.unit,
            message_of=self._reader.message,
            progress=self.state.progress,
            earlier_rolls=self._rolls,
            stop_position=stop,
            begin_position=self._files.log.begin,
            chain=self._files.log.chain,
        )
        self._steps = self._walk.steps()
        self._pending = None
        self._searches = False

    def _go_on(self) -> bool:
        assert self._walk is not None
        if self._pending is None:
            if self._release(self._walk):
                return True
            try:
                self._pending = next(self._steps)
            except StopIteration:
                self._end_walk(self._walk)
                return True
            except FormatError as error:
                self._search(error)
                return True
        outcome = self._pending
        if outcome is None:
            return True
        self._carry_out(outcome)
        self._pending = None
        self._counts.done(outcome.unit)
        if outcome.message is not None:
            self.state = self.state.delivered(outcome.message.queue_offset, self._settings)
        self.changes += 1
        return True

    def _release(self, walk: SlotWalk) -> bool:
        """Deliver the messages that come next by one call, if they are plain; whether any was delivered."""
        releases, done_end = self._releases, walk.done_end
        if releases is None or done_end is None or not walk.piece:
            return False
        timer_log = self._files.log
        positions = walk.piece[: -RELEASE_MESSAGES_MAX - 1 : -1]
        file = timer_log.file_at(positions[0])
        if file is None:
            return False
        try:
            first_offset = timer_log.unit(positions[0]).offset
        except FormatError:
            return False
        now_ms = self._clock.now_ms()
        found = releases.timers(
            positions.tolist(),
            first_offset,
            file,
            slot_ms=self._reading_ms,
            done_end=done_end,
            now_ms=now_ms,
            bytes_max=RELEASE_BYTES_MAX,
            targets=self._targets.current(),
        )
        if found is None:
            return False
        del walk.piece[-found.messages :]
        self._counts.released(found, now_ms)
        self.state = self.state.delivered(found.newest, self._settings)
        self.changes += 1
        return True

    def _search(self, error: FormatError) -> None:
        """The chain of the slot is damaged: find its units in the log, which takes longer."""
        log.error(
            "the timer log is damaged" if self._searches else "the chain of a slot is damaged",
            slot_ms=self._reading_ms,
            reason=str(error),
        )
        if self._searches:  # what is behind the damage is lost
            self._steps = iter(())
            return
        self._begin(NO_POSITION)
        assert self._walk is not None
        self._searches = True
        begin, end = max(self.oldest, self._files.log.begin), self.state.log_position
        self._steps = self._walk.search(lambda: self._files.log.units(begin, end))

    def _end_walk(self, walk: SlotWalk) -> None:
        if self._files.wheel.last_position(self._reading_ms) != walk.last_position:
            self._begin(walk.last_position)  # some were linked meanwhile
            return
        self._walk = None
        self._pass(self._reading_ms + self._settings.slot_ms)
        self.changes += 1

    def _carry_out(self, outcome: Outcome) -> None:
        match outcome:
            case Drop(unit, _, reason):
                if reason is DropReason.GONE:
                    log.error("the record of a timer message is gone", offset=unit.offset)
                self._counts.dropped(reason)
            case Deliver(unit, message) | Roll(unit, message):
                self._put(unit.offset, message, unit.base_ms, rolls=isinstance(outcome, Roll))

    def _put(self, offset: int, message: TimedMessage, enqueued_ms: int, *, rolls: bool) -> None:
        record = self._reader.record(offset)
        if record is None:  # deleted since its head was read, while the store refused
            log.error("the record of a timer message is gone", offset=offset)
        elif rolls:
            self._roll(record, message, enqueued_ms)
        else:
            self._deliver(record, message, enqueued_ms)

    def _deliver(self, record: Record, message: TimedMessage, enqueued_ms: int) -> None:
        refusal = self._refusal(message.topic)
        if refusal is not None:
            log.error(refusal, topic=message.topic, offset=record.offset)
            return
        now_ms = self._clock.now_ms()
        properties = delivered_properties(record.properties, enqueued_ms=enqueued_ms, now_ms=now_ms)
        if self._append(message.topic, message.queue_id, record, properties):
            self._counts.delivered(message, now_ms, enqueued_ms)
            self._targets.learn(message.topic)

    def _refusal(self, topic: str) -> str | None:
        """Why messages for a topic are dropped; None if they are delivered."""
        if topic in SEND_FORBIDDEN_TOPICS or topic == METADATA_TOPIC:
            # Only a Java broker stores that: it lets clients send to the wheel's topic. Its own messages of
            # what was popped come through the wheel as well, to a topic that clients may not send to here.
            return "a timer message for a topic that only brokers write is dropped"
        if self._is_subject(topic):
            return "a timer message of a deleted topic is dropped: an ordered subject has its name now"
        return None

    def _roll(self, record: Record, message: TimedMessage, enqueued_ms: int) -> None:
        now_ms = self._clock.now_ms()
        properties = rolled_properties(record.properties, message, enqueued_ms=enqueued_ms, now_ms=now_ms)
        self._append(TIMER_TOPIC, TIMER_QUEUE_ID, record, properties)

    def _append(self, topic: str, queue_id: int, record: Record, properties: bytes) -> bool:
        try:
            store_again(self._store, record, topic, queue_id, properties)
        except StoreRefused as refused:
            if not refused.is_final:
                raise
            log.error(
                "a timer message cannot be stored any more, and is dropped",
                topic=topic,
                offset=record.offset,
                reason=refused.reason,
            )
            return False
        return True
