"""Gives out again what was not acked in time, on the broker that leads (Java: PopReviveService).

Loads what is open, puts expired messages into their retry topics, appends old check points again, and saves
the progress as consumer offsets of CID_RMQ_SYS_REVIVE_GROUP.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.pop.check_points import OpenPoint
from brokerset_broker.requests.admission import Admission
from brokerset_broker.requests.pop.log import PopLog
from brokerset_broker.services.pop.forgetting import PopForgetting
from brokerset_broker.services.pop.loading import PopReader
from brokerset_broker.services.pop.lost_topics import make_lost_topics
from brokerset_broker.store.errors import PutStatus, StoreRefused
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.store.property_edits import edit_properties
from brokerset_broker.tables.groups import GroupManager
from brokerset_broker.tables.offsets import BROKER, OffsetManager
from brokerset_broker.tables.topics import TopicManager
from brokerset_formats.errors import FormatError
from brokerset_formats.hosts import Host
from brokerset_formats.names import is_retry_topic
from brokerset_formats.pop.names import RETRY_V1, RETRY_V2, REVIVE_GROUP, normal_topic, pop_retry_topic
from brokerset_formats.properties import Property, decode_properties
from brokerset_formats.records import Record, SysFlag, decode_record
from brokerset_runtime.clock import Clock

log = structlog.get_logger(__name__)

SLICE_SECONDS: Final = 0.001
"""Time that one step takes before others have their turn."""

TICK_SECONDS: Final = 0.1
"""Longest pause between two searches for what is due."""

PROGRESS_SECONDS: Final = 0.3
"""Pause between two steps of the progress; three of them bring it on."""

RETRY_SECONDS: Final = 1.0
"""Pause after the store refused something, or something went wrong that nobody expected."""

FINAL_RETRY_SECONDS: Final = 60.0
"""The same for a message that it will hardly take, as `maxMessageSize` has become smaller."""

GIVEN_UP_MS: Final = 600_000
"""So long it is known that a message came back whose handle seems to be good."""

APPLY_SECONDS: Final = 0.01
"""Pause before a record that was stored and is not in its queue yet is asked for again."""

ADVANCE_MAX: Final = 4_096
"""Records of a revive queue that one step passes over; about 0.3 ms."""

_HOST_BITS: Final = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6


class _Found:
    """Places of the revive queues that the progress may pass, when all before them is safe."""

    def __init__(self, wanted: dict[int, int], wave: int) -> None:
        self.wanted = wanted
        self.wave = wave
        """Of the commits of positions, that has to be done first."""
        self.batches: int | None = None
        """Batches of offsets that were written when it was."""


class PopRevival:
    """A `RoleService`: it runs where the broker leads."""

    name: Final = "pop"

    def __init__(
        self,
        *,
        live: LiveSettings,
        store: MessageStore,
        clock: Clock,
        log_of_pops: PopLog,
        topics: TopicManager,
        groups: GroupManager,
        offsets: OffsetManager,
        admission: Admission,
    ) -> None:
        self._live = live
        self._store = store
        self._clock = clock
        self._pops = log_of_pops
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._admission = admission
        self._reader = PopReader(
            live=live, store=store, clock=clock, topics=topics, groups=groups, offsets=offsets,
            pops=log_of_pops,
        )  # fmt: skip
        self._forgetting = PopForgetting(pops=log_of_pops, topics=topics, groups=groups)
        self._host = Host.from_text(live.current.broker_ip1, live.current.listen_port).encode()
        self._task: asyncio.Task[None] | None = None
        self._found: _Found | None = None
        self._saved_at = 0.0
        self._until = 0.0
        self.waits_since: float | None = None
        """Monotonic seconds: since when the store takes no message that is due; None if it does."""
        self.revived = 0
        """Messages that were put into retry topics since start."""
        self.copied = 0
        """Check points that were appended again since start."""

    # -- the role -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Called on the loop by a master, before it serves."""
        self._found = None
        self.waits_since = None
        self._forgetting.begin()
        self._pops.begin_loading()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def drain(self) -> None:
        """Write the acks of this turn, and commit what is safe."""
        self._pops.write_acks()
        self._pops.commit_positions()

    def stop(self) -> None:
        """Append nothing any more."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
            self._pops.stop()

    async def _run(self) -> None:
        while not await self._load():  # noqa: ASYNC110  # of a disk
            await asyncio.sleep(RETRY_SECONDS)
        while True:
            due = self._pops.points.next_due()
            pause = TICK_SECONDS if due is None else due - self._clock.monotonic()
            await asyncio.sleep(min(max(pause, 0.01), TICK_SECONDS))
            try:
                await self._step()
            except Exception:  # the edge of a task: without it nothing would come back any more
                log.error("reviving popped messages failed; it goes on soon", exc_info=True)
                await asyncio.sleep(RETRY_SECONDS)

    async def _load(self) -> bool:
        began = self._clock.monotonic()
        self._until = began + SLICE_SECONDS
        try:
            make_lost_topics(self._store, self._topics, self._groups)
            for is_there in self._reader.load(self._pops.points):
                if not is_there:
                    await asyncio.sleep(APPLY_SECONDS)
                await self._let_others()
        except Exception:  # the edge of a task
            log.critical("open check points cannot be read from the store; tried again", exc_info=True)
            self._pops.stop()
            self._pops.begin_loading()
            return False
        self._pops.loaded()
        points = self._pops.points
        if points.count:
            seconds = round(self._clock.monotonic() - began, 3)
            log.info("popped messages are known", check_points=points.count, messages=points.in_flight,
                     seconds=seconds)  # fmt: skip
        return True

    async def _step(self) -> None:
        pops = self._pops
        self._until = self._clock.monotonic() + SLICE_SECONDS
        for _ in self._reader.catch_up(pops.points):
            await self._let_others()
        pops.commit_positions()
        if self._admission.refuses_writes:
            return
        pops.write_acks()
        if not pops.pay_owed():
            await asyncio.sleep(RETRY_SECONDS)
            return
        began = self._clock.monotonic()
        for point in pops.points.due(began):
            pops.write_acks()  # those of the turn that has just ended come before
            try:
                if point.left and not await self._revive(point):
                    break
            except Exception:  # else it would be due never more
                pops.points.put_off(point, self._clock.monotonic() + FINAL_RETRY_SECONDS)
                raise
            self.waits_since = None
            await self._let_others()
            if self._admission.refuses_writes:
                return
        pops.counts.steps.add(self._clock.monotonic() - began)
        self._copy_old()
        pops.points.forget_early(self._clock.now_ms())
        self._forgetting.step(self._clock.monotonic())
        if self._clock.monotonic() >= self._saved_at + PROGRESS_SECONDS:
            self._saved_at = self._clock.monotonic()
            self._save()

    async def _let_others(self) -> None:
        """Give others their turn of the loop when this one has lasted long enough."""
        if self._clock.monotonic() >= self._until:
            await asyncio.sleep(0)
            self._until = self._clock.monotonic() + SLICE_SECONDS

    # -- revival ------------------------------------------------------------------------------------------

    async def _revive(self, point: OpenPoint) -> bool:
        """Give out the messages of a check point again, as far as the store takes them; whether it did.

        What was given out is recorded before others have their turn: they may ack the rest meanwhile.
        """
        done = tried = 0
        counts, of = self._pops.counts, (point.source.group, point.source.topic)
        pause, goes_on = RETRY_SECONDS, True
        while bits := point.left & ~tried & ~done:
            if self._clock.monotonic() >= self._until:
                self._settle(point, done)
                done = 0
                await self._let_others()
                self._pops.write_acks()
                continue
            if not self._is_wanted(point):
                self._pops.settle(point, point.left)
                return True
            bit = bits & -bits
            (offset,) = point.offsets(bit)
            record = None
            try:
                record = self._read(point, offset)
                if record is not None:
                    self._put(point, record)
                    counts.revived.add((*of, PutStatus.PUT_OK.value))
            except StoreRefused as refused:
                goes_on = refused.is_final or record is None  # one that cannot be read delays no other
                counts.revived.add((*of, refused.status.value))
                if self.waits_since is None and not goes_on:
                    self.waits_since = self._clock.monotonic()
                pause = FINAL_RETRY_SECONDS if refused.is_final else RETRY_SECONDS
                log.warning("a popped message waits for the store", topic=point.source.topic,
                            group=point.source.group, queue_offset=offset, reason=refused.reason)  # fmt: skip
                tried |= bit
                if not goes_on:
                    break
            else:
                done |= bit
        self._settle(point, done)
        if point.left:
            self._pops.points.put_off(point, self._clock.monotonic() + pause)
        else:
            counts.expired.add((*of, point.revive_queue))
        return goes_on

    def _settle(self, point: OpenPoint, bits: int) -> None:
        """Messages are out no more. An ack of one must be answered so, also when the check point stays open
        for others, and when the wall clock says that their time is not over."""
        points, now_ms = self._pops.points, self._clock.now_ms()
        points.came_back_ms = max(points.came_back_ms, now_ms)
        if bits != point.left or point.pop_time + point.invisible_ms > now_ms:
            for offset in point.offsets(bits):
                points.give_up(point, offset, now_ms + GIVEN_UP_MS)
        self._pops.settle(point, bits)

    def _is_wanted(self, point: OpenPoint) -> bool:
        """Whether the topic and the group are there still."""
        source = point.source
        topic = normal_topic(source.group, source.topic)
        group_matters = self._live.current.pop_revive_skip_if_group_absent
        if self._topics.get(topic) is not None and (
            not group_matters or self._groups.items.get(source.group) is not None
        ):
            return True
        log.info("popped messages are given up: their topic or group is gone", topic=topic,
                 group=source.group, messages=point.left.bit_count())  # fmt: skip
        return False

    def _read(self, point: OpenPoint, queue_offset: int) -> Record | None:
        """The message; None if the store has it no more. Raises `StoreRefused` if it cannot be read now.

        What lies behind the check point was not popped with it: the topic was deleted and made again.
        """
        topic, queue_id, store = point.source.topic, point.source.queue_id, self._store
        if queue_offset < store.queue_min(topic, queue_id):
            return None
        unit = store.unit(topic, queue_id, queue_offset)
        data = None if unit is None else store.read(unit[0], unit[1])
        if unit is None or data is None:
            if unit is not None and unit[0] < store.min_offset:
                return None
            if queue_offset >= store.tail(topic, queue_id)[0]:
                return None  # the topic was deleted and made again
            raise StoreRefused(PutStatus.SERVICE_NOT_AVAILABLE, "the message cannot be read yet")
        popped = store.unit(self._pops.topic, point.revive_queue, point.place)
        if popped is not None and popped[0] < unit[0]:
            return None
        try:
            return decode_record(data)
        except FormatError as error:
            log.error("a popped message cannot be read", topic=topic, queue_offset=queue_offset,
                      reason=error.reason)  # fmt: skip
            return None

    def _put(self, point: OpenPoint, record: Record) -> None:
        """Store a message in the group's retry topic. Raises `StoreRefused`."""
        source, settings = point.source, self._live.current
        topic = source.topic
        if not is_retry_topic(topic):
            flag = RETRY_V2 if settings.enable_retry_topic_v2 else RETRY_V1
            topic = pop_retry_topic(source.group, topic, flag)
        queues = 1
        if settings.use_separate_retry_queue:
            normal = self._topics.get(normal_topic(source.group, source.topic))
            queues = normal.write_queue_nums if normal is not None else 1
        config = self._topics.create_own(topic, queues)
        if config is None:
            raise StoreRefused(PutStatus.MESSAGE_ILLEGAL, f"topic[{topic}] cannot be made")
        queue_id = record.queue_id if settings.use_separate_retry_queue else 0
        known = decode_properties(record.properties)
        changes: dict[str, str | None] = {Property.ORIGIN_GROUP: source.group}
        if Property.RETRY_TOPIC not in known:
            changes[Property.RETRY_TOPIC] = record.topic
        if record.reconsume_times == 0 or Property.FIRST_POP_TIME not in known:
            changes[Property.FIRST_POP_TIME] = str(point.pop_time)
        appended = self._store.append(
            topic,
            queue_id if queue_id < config.write_queue_nums else 0,
            record.body,
            edit_properties(record.properties, changes),
            flag=record.flag,
            sys_flag=record.sys_flag & ~_HOST_BITS,
            born_timestamp=record.born_timestamp,
            born_host=self._host,
            reconsume_times=record.reconsume_times + (0 if point.suspend else 1),
        )
        self._pops.end = max(self._pops.end, appended.end)
        self.revived += 1

    # -- progress -----------------------------------------------------------------------------------------

    def _copy_old(self) -> None:
        """Append check points again that are far behind, so that a new master has little to read."""
        distance = self._live.current.pop_check_point_copy_distance
        until = self._clock.monotonic() + SLICE_SECONDS
        for queue in self._pops.points.queues.values():
            queue.advance(ADVANCE_MAX)
            while (point := queue.oldest_behind(distance)) is not None:
                try:
                    self._pops.copy(point)
                except StoreRefused:
                    return
                self.copied += 1
                queue.advance(ADVANCE_MAX)
                if self._clock.monotonic() >= until:
                    return

    def _save(self) -> None:
        """Bring the progress on by a step.

        What was found waits until all that it stands for is safe and the positions of its check points are
        consumer offsets; then until these have their record.
        """
        journal = self._offsets.journal
        found = self._found
        if found is None:
            read_to = self._pops.read_to  # what timers brought behind has not been read
            wanted = {
                number: min(queue.advance(ADVANCE_MAX), read_to.get(number, 0))
                for number, queue in self._pops.points.queues.items()
            }
            self._found = _Found(wanted, self._pops.commits.cover())
        elif found.batches is None:
            self._pops.commit_positions()
            if self._pops.commits.done >= found.wave:
                found.batches = -1 if journal is None else journal.batches
        elif journal is None or journal.batches != found.batches or not journal.has_offsets:
            self._found = None
            topic = self._pops.topic
            for queue_id, first in found.wanted.items():
                saved = self._offsets.query(REVIVE_GROUP, topic, queue_id)
                if first > 0 and (saved is None or saved < first - 1):
                    self._offsets.commit(REVIVE_GROUP, topic, queue_id, first - 1, BROKER)
