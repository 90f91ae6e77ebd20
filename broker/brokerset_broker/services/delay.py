"""Delivers delayed messages when their time has come (Java: ScheduleMessageService).

One timer for each level that has messages, set to the moment when the oldest is due: the messages of a level
become due in the order of their queue. Nothing runs while nothing waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import structlog

from brokerset_broker.requests.admission import Admission
from brokerset_broker.store.delay_levels import DelayLevels
from brokerset_broker.store.errors import StoreRefused
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.store.releases import ANY_QUEUE, Releases, Targets, store_again
from brokerset_broker.store.results import GetStatus
from brokerset_broker.tables.config_files import ConfigFile
from brokerset_formats.config import DataVersion, DelayOffsets
from brokerset_formats.errors import FormatError
from brokerset_formats.names import SCHEDULE_TOPIC
from brokerset_formats.properties import Property, find_property
from brokerset_formats.records import Record, decode_record
from brokerset_runtime.clock import Clock

log = structlog.get_logger(__name__)

TURN_MESSAGES_MAX: Final = 32
"""Messages of one level delivered in one turn of the loop; then others get their turn."""

TURN_BYTES_MAX: Final = 262_144
"""Bytes of one such turn."""

RELEASE_MESSAGES_MAX: Final = 128
"""Messages of one level that are delivered by one call, where the native core does that, in place of
`TURN_MESSAGES_MAX`."""

RETRY_SECONDS: Final = 1.0
"""Pause after the store refused a message. Java waits 10 s; a change of the role passes quicker than that."""

TIMER_SECONDS_MAX: Final = 10.0
"""Longest sleep of a level's timer, so that a wall clock that was moved forward is noticed."""

FLUSH_SECONDS_MAX: Final = 10.0
"""Longest wait for the disk before progress is written down; then it is left to the next time."""

VERSION_STEP: Final = 200
"""Deliveries after which the data version grows, as in Java."""

_FILE: Final = "delayOffset.json"


class _Level:
    """Progress of one level. Its timer is set exactly while it has something to wait for."""

    __slots__ = ("number", "queue_offset", "timer")

    def __init__(self, number: int) -> None:
        self.number = number
        self.queue_offset = 0
        self.timer: asyncio.Handle | None = None


class DelayService:
    """Moves due messages from the schedule topic to where they were sent, at least once each.

    A `RoleService`: it runs where the broker leads.
    """

    name: Final = "delay"

    def __init__(
        self,
        *,
        store: MessageStore,
        clock: Clock,
        levels: DelayLevels,
        config_folder: Path,
        admission: Admission,
        is_subject: Callable[[str], bool],
        releases: Releases | None = None,
    ) -> None:
        """`is_subject` tells topics whose messages have an order, which delayed ones have not; `releases` is
        the native way, where there is one."""
        self._store = store
        self._releases = releases
        self._targets = Targets(lambda topic: None if is_subject(topic) else ANY_QUEUE)
        self._is_subject = is_subject
        self._clock = clock
        self._table = levels
        self._file = ConfigFile(config_folder / _FILE, lambda: self._confirmed.encode)
        self._confirmed = DelayOffsets()
        self._admission = admission
        self._levels = {number: _Level(number) for number in range(1, levels.highest + 1)}
        self._version = DataVersion(timestamp=clock.now_ms())
        self._running = False
        self._changed = False
        self._delivered_end = 0
        self._delivered_since_version = 0
        self.delivered = 0
        """Messages delivered since start."""

    # -- progress -----------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the progress of earlier runs. Raises `ConfigDamaged` if file and copy are unreadable."""
        saved = self._file.load(DelayOffsets.decode)
        if saved is None:
            return
        self._version = saved.data_version
        for number, queue_offset in saved.offsets.items():
            level = self._levels.get(number)
            if level is not None:
                level.queue_offset = queue_offset

    def offsets(self) -> DelayOffsets:
        """The progress as the file and request 45 hold it."""
        return DelayOffsets(
            self._version,
            {level.number: level.queue_offset for level in self._levels.values() if level.queue_offset > 0},
        )

    def put(self, levels: Mapping[int, int], *, whole: bool = False) -> bool:
        """Set progress that the log or a master has; `whole`: other levels have none. Whether it differed."""
        changed = False
        for level in self._levels.values():
            wanted = levels.get(level.number, 0 if whole else level.queue_offset)
            if wanted != level.queue_offset:
                level.queue_offset = wanted
                changed = True
        if changed:
            self._changed = True
            self._version = self._version.next(self._clock.now_ms())
        return changed

    def progress(self) -> dict[int, tuple[int, int]]:
        """For each used level the next queue offset to deliver, and the end of its queue."""
        ends = {number: self._store.queue_max(SCHEDULE_TOPIC, number - 1) for number in self._levels}
        return {number: (self._levels[number].queue_offset, end) for number, end in ends.items() if end > 0}

    async def persist(self) -> None:
        """Write the progress down, once what was delivered is on the disk itself.

        The other way round a power failure could take a message that the progress says was delivered.
        """
        if not self._changed:
            return
        self._changed = False
        progress = self.offsets()
        if self._delivered_end > self._store.flushed_offset and not await self._flushed(self._delivered_end):
            self._changed = True
            return
        self._confirmed = progress
        self._file.touch()
        try:
            await self._file.saved()
        except OSError:
            self._changed = True
            raise

    async def _flushed(self, end: int) -> bool:
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._store.when_flushed(end, lambda ok: None if done.done() else done.set_result(ok))
        try:
            async with asyncio.timeout(FLUSH_SECONDS_MAX):
                return await done
        except TimeoutError:
            return False

    # -- delivery -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Deliver from now on; called on the loop by a master."""
        self._running = True
        for level in self._levels.values():
            self._wake(level, 0.0)

    async def drain(self) -> None:
        """Nothing is half done between two turns of the loop."""

    def stop(self) -> None:
        """Deliver nothing any more until `start`."""
        self._running = False
        for level in self._levels.values():
            if level.timer is not None:
                level.timer.cancel()
                level.timer = None

    def arrived(self, queue_id: int) -> None:
        """A message was put aside; the level's timer is set if it slept."""
        level = self._levels.get(queue_id + 1)
        if self._running and level is not None and level.timer is None:
            self._wake(level, self._table.delay_ms(level.number) / 1000)

    def _wake(self, level: _Level, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        if seconds <= 0:
            level.timer = loop.call_soon(self._turn, level)
        else:
            level.timer = loop.call_later(min(seconds, TIMER_SECONDS_MAX), self._turn, level)

    def _turn(self, level: _Level) -> None:
        level.timer = None
        if not self._running:
            return
        try:
            pause = self._deliver_due(level)
        except StoreRefused as refused:
            log.warning("delayed message waits for the store", level=level.number, reason=refused.reason)
            pause = RETRY_SECONDS
        except FormatError as error:
            log.error(
                "unreadable delayed message stops its level",
                level=level.number,
                queue_offset=level.queue_offset,
                reason=str(error),
            )
            pause = TIMER_SECONDS_MAX
        except Exception as error:  # the edge of a task: without its timer a level would stand still
            log.error("delivery failed", level=level.number, queue_offset=level.queue_offset, exc_info=error)
            pause = TIMER_SECONDS_MAX
        if pause is not None and level.timer is None:
            self._wake(level, pause)

    def _deliver_due(self, level: _Level) -> float | None:
        """Deliver what is due, at most one turn's worth; seconds until the next turn, `None` for never."""
        if self._release(level):
            return 0.0
        result = self._store.get(
            SCHEDULE_TOPIC, level.number - 1, level.queue_offset, TURN_MESSAGES_MAX, TURN_BYTES_MAX, None
        )
        if result.status is not GetStatus.FOUND:
            if result.next_queue_offset != level.queue_offset:
                level.queue_offset = result.next_queue_offset
                self._changed = True
                if level.queue_offset < result.max_queue_offset:
                    return 0.0
            return self._until_readable(level)
        if self._admission.refuses_writes:
            return RETRY_SECONDS
        data = b"".join(result.parts)
        position = 0
        while position < len(data):
            record = decode_record(data, position)
            now_ms = self._clock.now_ms()
            due_ms = self._table.due_ms(level.number, record.store_timestamp, now_ms)
            if due_ms > now_ms:
                return (due_ms - now_ms) / 1000
            self._deliver(record)
            level.queue_offset = record.queue_offset + 1
            position += record.size
        level.queue_offset = max(level.queue_offset, result.next_queue_offset)
        return 0.0

    def _until_readable(self, level: _Level) -> float | None:
        """Seconds until the next look at messages that are there and are not confirmed yet; None without any.

        Nobody tells when those become readable which came before this broker was started.
        """
        if level.queue_offset >= self._store.queue_end(SCHEDULE_TOPIC, level.number - 1):
            return None
        return min(RETRY_SECONDS, self._table.delay_ms(level.number) / 1000)

    def _release(self, level: _Level) -> bool:
        """Deliver what is due by one call, if it is plain; whether anything was delivered."""
        releases = self._releases
        if releases is None or self._admission.refuses_writes:
            return False
        source = self._store.plain_source(
            SCHEDULE_TOPIC, level.number - 1, level.queue_offset, RELEASE_MESSAGES_MAX
        )
        if source is None:
            return False
        stored_max = self._clock.now_ms() - self._table.delay_ms(level.number)
        found = releases.delayed(source, stored_max, TURN_BYTES_MAX, self._targets.current())
        if found is None:
            return False
        count, end = found
        self._changed = True
        level.queue_offset += count
        self._count(count, end)
        return True

    def _deliver(self, record: Record) -> None:
        topic = find_property(record.properties, Property.REAL_TOPIC.encode())
        queue = find_property(record.properties, Property.REAL_QID.encode())
        self._changed = True
        if topic is None or queue is None or not queue.isdigit():
            log.error("delayed message without a destination is dropped", offset=record.offset)
            return
        if self._is_subject(topic.decode()):
            log.error(
                "delayed message of a deleted topic is dropped: an ordered subject has its name now",
                topic=topic.decode(),
                offset=record.offset,
            )
            return
        try:
            appended = store_again(self._store, record, topic.decode(), int(queue), record.properties)
        except StoreRefused as refused:
            if not refused.is_final:
                raise
            log.error(
                "delayed message cannot be stored any more; it stays in the schedule topic only",
                topic=topic.decode(),
                offset=record.offset,
                reason=refused.reason,
            )
            return
        self._targets.learn(topic.decode())
        self._count(1, appended.end)

    def _count(self, count: int, end: int) -> None:
        """Messages were delivered, and the log ends there."""
        self._delivered_end = end
        self.delivered += count
        self._delivered_since_version += count
        if self._delivered_since_version >= VERSION_STEP:
            self._delivered_since_version = 0
            self._version = self._version.next(self._clock.now_ms())
