"""Timer messages of one broker: opened when there are any, working as its role wants.

Every replica keeps wheel and log of its own, as far as the group's progress goes; the master delivers. The
progress is a record of the group's log (`tables/metadata`), or is in `config/timercheck` without a group.
In Java: `TimerMessageStore`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

import structlog

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.requests.admission import Admission
from brokerset_broker.services.timers.counts import TimerCounts
from brokerset_broker.services.timers.files import TimerFiles
from brokerset_broker.services.timers.links import TimerLinks
from brokerset_broker.services.timers.recount import Recount
from brokerset_broker.services.timers.work import NO_OFFSET, TimerReader, TimerWork
from brokerset_broker.store.errors import StoreRefused
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.store.releases import Releases
from brokerset_broker.timers.progress import Progress, TimerState
from brokerset_broker.timers.put_decision import TIMER_QUEUE_ID
from brokerset_broker.timers.recovery import Recovered, recover
from brokerset_broker.timers.settings import TimerSettings
from brokerset_formats import native
from brokerset_formats.config import DataVersion
from brokerset_formats.errors import FormatError
from brokerset_formats.names import TIMER_TOPIC
from brokerset_formats.timer_files import TimerCheckpoint, TimerMetrics
from brokerset_runtime.clock import Clock
from brokerset_runtime.files import write_atomically
from brokerset_spec.broker_settings import BrokerSettings

log = structlog.get_logger(__name__)

TURN_SECONDS: Final = 0.001
"""Work in one turn of the loop; then others get their turn."""

RETRY_SECONDS: Final = 1.0
"""Pause after the store or the disk refused something, or while this broker takes no writes."""

TIMER_SECONDS_MAX: Final = 1.0
"""Longest sleep while messages wait, so that a wall clock that was moved forward is noticed."""

FLUSH_SECONDS_MAX: Final = 10.0
"""Longest wait for the commit log before wheel and log are flushed; then it is left to the next time."""

QUIET_RECORD_MS: Final = 3_600_000
"""While messages wait and nothing is due, progress is written down so often: the wheel turns in 14 days."""

RECORDS_MAX: Final = 64
"""Progress records that are not confirmed; with more, none is written until some are."""

SNAPSHOT_BOUNDS_S: Final = (5, 60, 300, 900, 3_600, 14_400, 28_800, 86_400)
"""Times left for which waiting messages are counted (`timerDistList` of Java)."""

SNAPSHOT_SECONDS: Final = 15.0
"""How old those counts may be; they are made in a thread."""

METRICS_FLUSHES: Final = 10
"""Counters are written with every tenth flush."""

SILENCE_SECONDS: Final = 3 * 3_600.0
"""A slave that has heard nothing of the progress for so long keeps the log no longer than the settings say. A
master of ours writes it each hour while messages wait."""


def timer_settings(settings: BrokerSettings) -> TimerSettings:
    """What the settings of a broker say about timer messages."""
    return TimerSettings(
        enabled=settings.timer_wheel_enable,
        precision_ms=settings.timer_precision_ms,
        max_delay_ms=settings.timer_max_delay_sec * 1000,
        roll_window_slots=settings.timer_roll_window_slot,
        slot_count_max=settings.timer_congest_num_each_slot,
        topic_in_delete_key=settings.append_topic_for_timer_delete_key,
    )


class TimerService:
    """A `RoleService`, and what metadata knows as the progress of timers. All methods are called on the loop.

    Life: `load`, then `run` as a task next to `start` and `stop` as the role changes, `persist` at the end.
    """

    name: Final = "timers"

    def __init__(
        self,
        *,
        store: MessageStore,
        live: LiveSettings,
        clock: Clock,
        admission: Admission,
        is_subject: Callable[[str], bool],
        releases: Releases | None = None,
    ) -> None:
        """`is_subject` tells topics whose messages have an order, which timer messages have not; `releases`
        is the native way of deliveries, where there is one."""
        settings = live.current
        root = settings.store_path_root_dir
        self._store = store
        self._live = live
        self._clock = clock
        self._admission = admission
        self._is_subject = is_subject
        self._releases = releases
        self._in_group = settings.enable_controller_mode or settings.enable_dledger_commit_log
        self.settings = timer_settings(settings)
        """As they are in force."""
        self._files = TimerFiles(root, self.settings, settings.mapped_file_size_timer_log)
        self._metrics_path = root / "config" / "timermetrics"
        self.counts = TimerCounts()
        self._recount: Recount | None = None
        self.work: TimerWork | None = None
        """Wheel and log, once they are open."""
        self._progress: Progress | None = None
        """As metadata has it, while the files are not open."""
        self._leads = False
        self._has_files = False
        self._truncated: tuple[int, int] | None = None
        """Where the log was truncated before the files were open, and where the wheel's topic ended then."""
        self._open_wanted = asyncio.Event()
        self._dirty = asyncio.Event()
        self._timer: asyncio.Handle | None = None
        self._flushed_changes = -1
        self._flushes = 0
        self._flushing = asyncio.Lock()
        self._disk_failed = False
        self._snapshot: dict[int, int] = dict.fromkeys(SNAPSHOT_BOUNDS_S, 0)
        self._snapshot_at = 0.0
        self._snapshot_wanted = False
        self._sample = (clock.monotonic(), 0, 0)
        self._rates = (0.0, 0.0)
        self._version = DataVersion(timestamp=clock.now_ms())
        self._recorded_changes = -1
        self._recorded_read_ms = 0
        self._records: deque[tuple[int, Progress]] = deque()
        self._settled: Progress | None = None
        self._last_heard: tuple[float, int] | None = None
        self._silence_logged = False
        self.on_progress: Callable[[], None] | None = None
        """Writes the progress into the log; set while this broker leads a group."""
        live.on_change(lambda changed, _names: self._use(changed))

    def _use(self, settings: BrokerSettings) -> None:
        self.settings = replace(
            timer_settings(settings),
            precision_ms=self.settings.precision_ms,
            roll_window_slots=self.settings.roll_window_slots,
        )
        self._stop_parts()

    def _stop_parts(self) -> None:
        settings = self._live.current
        if self.work is not None:
            self.work.stop_parts(enqueue=settings.timer_stop_enqueue, dequeue=settings.timer_stop_dequeue)
            self._wake(0.0)

    # -- life ---------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the checkpoint. Blocks; raises OSError."""
        self._has_files = self._files.load()

    async def run(self) -> None:
        """Open the files when there is something to keep, and flush them, until cancelled."""
        await self._open_wanted.wait()
        while self.work is None:
            try:
                await self._open()
            except OSError as error:
                log.error(
                    "the files of timer messages cannot be opened, and none is delivered", error=str(error)
                )
                await asyncio.sleep(RETRY_SECONDS)
        while True:
            await self._dirty.wait()
            await asyncio.sleep(self._live.current.timer_flush_interval_ms / 1000)
            self._dirty.clear()
            try:
                await self._refresh()
                await self.persist()
                self._files.remove_before(self._store.min_offset, self._flushed_position)
            except OSError as error:
                log.error("timer messages cannot be written to the disk", error=str(error))
                self._changed()

    async def _refresh(self) -> None:
        """Measurements for whoever asks next."""
        began, enqueued, dequeued = self._sample
        now = self._clock.monotonic()
        self._sample = now, self.counts.enqueued.total(), self.counts.dequeued.total()
        seconds = max(now - began, 0.001)
        self._rates = (self._sample[1] - enqueued) / seconds, (self._sample[2] - dequeued) / seconds
        if self._snapshot_wanted and self.work is not None:
            self._snapshot_wanted, self._snapshot_at = False, now
            count = partial(self._files.wheel.distribution, self.work.state.write_ms, SNAPSHOT_BOUNDS_S)
            self._snapshot = await asyncio.to_thread(count)

    @property
    def _flushed_position(self) -> int:
        return 0 if self.work is None else self.work.flushed_position

    @property
    def _queue_end(self) -> int:
        return self._store.queue_end(TIMER_TOPIC, TIMER_QUEUE_ID)

    async def _open(self) -> None:
        progress = self._first_progress()
        queue_offset_max = min(progress.queue_offset, self._queue_end)
        recovered = await asyncio.to_thread(self._open_files, queue_offset_max)
        progress = self._progress or progress  # another may have come meanwhile
        state = TimerState(progress, recovered.queue_offset, recovered.log_end)
        self.work = work = TimerWork(
            state,
            store=self._store,
            files=self._files,
            settings=self.settings,
            clock=self._clock,
            counts=self.counts,
            is_subject=self._is_subject,
            releases=self._releases,
            links=self._links(),
        )
        self._has_files = True
        if self._truncated is not None:
            work.truncated(*self._truncated)
        work.follow(work.state)
        log.info(
            "timer messages are at work",
            taken=recovered.queue_offset,
            queue_end=self._queue_end,
            read_until=progress.read_ms,
            leads=self._leads,
        )
        self._stop_parts()
        if self._leads:
            self._lead(work)
        self._count_again(work)
        self._wake(0.0)

    def _links(self) -> TimerLinks | None:
        if native.core is None:
            return None
        return TimerLinks(native.core, self._store, self._files, self.settings, self.counts)

    def _first_progress(self) -> Progress:
        """What metadata says; else our part of the checkpoint, or that of a Java broker; else none."""
        found = self._progress or self._files.saved_progress()
        if found is not None:
            return found
        checkpoint, now_ms = self._files.checkpoint, self._clock.now_ms()
        if checkpoint.last_read_ms <= 0:
            return Progress.fresh(min(now_ms, self._first_store_ms(now_ms)), self.settings)
        return Progress.of_java(checkpoint, now_ms, self.settings)

    def _first_store_ms(self, default: int) -> int:
        """When the oldest message was stored. After a crash before the first progress it may be due already;
        its slot is read all the same, for it may be recalled by one that is behind it."""
        store = self._store
        unit = store.unit(TIMER_TOPIC, TIMER_QUEUE_ID, store.queue_min(TIMER_TOPIC, TIMER_QUEUE_ID))
        record = None if unit is None else TimerReader(store).record(unit[0])
        return default if record is None else record.store_timestamp

    def _open_files(self, queue_offset_max: int) -> Recovered:
        """In a thread: nobody else uses the files yet."""
        files = self._files
        files.open()
        if files.is_new:
            return Recovered(0, 0, None, False)
        try:
            if files.is_of_another_precision():
                raise FormatError("the wheel has another precision than the settings say")
            recovered = recover(
                files.wheel,
                files.log,
                files.checkpoint,
                queue_offset_max=queue_offset_max,
                queue_offset_of=TimerReader(self._store).queue_offset,
                record_offset_min=self._store.min_offset,
            )
        except FormatError as error:
            log.error("wheel and log of timer messages are of no use, and made again", reason=str(error))
            files.start_over()
            return Recovered(0, 0, None, False)
        files.truncate(recovered.log_end)
        return recovered

    # -- roles --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Deliver from now on; called on the loop by a master."""
        self._leads = True
        if self.work is not None:
            self._lead(self.work)
            self._count_again(self.work)
            self._wake(0.0)
        elif self._has_files or self._queue_end > 0:
            self._open_wanted.set()

    def _lead(self, work: TimerWork) -> None:
        self._records.clear()
        self._settled = work.state.progress
        self._recorded_changes = -1
        while work.take_back():
            pass
        work.lead()
        if self.on_progress is not None:
            self.on_progress()  # before anything is delivered: what only the file has is in the log then

    async def drain(self) -> None:
        """Deliver nothing any more, and undo what the group may not have, in small steps."""
        self._stop_leading()
        while self.work is not None and self.work.take_back():  # noqa: ASYNC110  # others get their turn
            await asyncio.sleep(0)

    def stop(self) -> None:
        """Deliver nothing any more until `start`; the log may be truncated after this."""
        self._stop_leading()
        while self.work is not None and self.work.take_back():
            pass

    def _stop_leading(self) -> None:
        if not self._leads:
            return
        settled = self.settled()
        self._leads = False
        self._cancel()
        if self.work is not None and self._in_group:
            assert settled is not None, "a master has a progress"
            self.work.follow(self.work.state.demoted(settled))
            self._changed()

    def arrived(self) -> None:
        """A message came into the wheel's topic."""
        if self.work is not None:
            if self._timer is None or self._leads:
                self._wake(0.0)
        elif self._leads:
            self._open_wanted.set()

    # -- progress, as metadata sees it --------------------------------------------------------------------

    def progress(self) -> Progress | None:
        """Where the group is, as this broker knows; `None` before there were timer messages."""
        return self._progress if self.work is None else self.work.state.progress

    def settled(self) -> Progress | None:
        """The same, as far as it is confirmed: what a broker that lacks the end of this log may believe."""
        if not (self._in_group and self._leads and self.work is not None):
            return self.progress()
        confirmed = self._store.confirmed_offset
        while self._records and self._records[0][0] <= confirmed:
            self._settled = self._records.popleft()[1]
        return self._settled

    def put(self, progress: Progress) -> None:
        """Learn a progress that the log or a master has."""
        if self._leads:
            return
        self._heard(self._store.log.store_timestamp)
        self._progress = progress
        if self.work is not None:
            self.work.follow(self.work.state.learned(progress))
            self._changed()
            self._wake(0.0)  # it takes back, or goes on
        elif progress.queue_offset > 0 or self._has_files:
            self._open_wanted.set()

    def put_checkpoint(self, checkpoint: TimerCheckpoint) -> None:
        """Learn what a Java master says of its progress."""
        if checkpoint.last_read_ms > 0:
            self.put(Progress.of_java(checkpoint, self._clock.now_ms(), self.settings))

    def truncated(self, offset: int) -> None:
        """The commit log was truncated at `offset`."""
        if self.work is not None:
            self.work.truncated(offset, self._queue_end)
            self._changed()
        else:
            before = self._truncated or (offset, self._queue_end)
            self._truncated = min(offset, before[0]), min(self._queue_end, before[1])

    def unrecorded(self) -> Progress | None:
        """A progress that the log does not have and should; `None` if there is none, or if it can wait."""
        work = self.work
        if not self._leads or work is None or len(self._records) >= RECORDS_MAX:
            return None
        progress = work.state.progress
        is_old = work.waits and progress.read_ms - self._recorded_read_ms > QUIET_RECORD_MS
        return progress if is_old or work.changes != self._recorded_changes else None

    def recorded(self, progress: Progress, end: int) -> None:
        """What `unrecorded` gave was written; its record ends at `end`."""
        assert self.work is not None, "it was asked"
        self._records.append((end, progress))
        self._recorded_changes, self._recorded_read_ms = self.work.changes, progress.read_ms

    def checkpoint(self) -> TimerCheckpoint:
        """What a Java slave is to know (GET_TIMER_CHECK_POINT)."""
        progress, work = self.settled(), self.work
        if work is None:
            saved = self._files.checkpoint
            if progress is None:
                return saved
            return replace(saved, last_read_ms=progress.read_ms, master_queue_offset=progress.queue_offset)
        state = work.state if progress is None else replace(work.state, progress=progress)
        return state.checkpoint(work.flushed_position, self._version)

    def metrics(self) -> TimerMetrics:
        """How many messages wait for which topic (GET_TIMER_METRICS)."""
        return self.counts.metrics(self._version)

    def needed_from(self) -> int:
        """From which offset of the commit log on messages wait; only a full disk deletes them.

        A Java master without timers never tells its slaves the progress: then from nowhere, after a while.
        """
        if self._master_is_silent():
            return NO_OFFSET
        if self.work is not None:
            return self.work.needed_from()
        return 0 if self._has_files or self._queue_end > 0 else NO_OFFSET

    def _heard(self, log_ms: int) -> None:
        """The progress was learned, or this broker leads; `log_ms`: the store time of the last message."""
        self._last_heard = self._clock.monotonic(), log_ms
        self._silence_logged = False

    def _master_is_silent(self) -> bool:
        """Whether messages were received for longer than the log is kept, and no word of the progress."""
        log_ms = self._store.log.store_timestamp
        if self._leads or not log_ms:
            self._heard(log_ms)
            return False
        if self._last_heard is None:  # since the start: the files say how far it was then
            progress = self.progress() or self._files.saved_progress()
            self._heard(log_ms if progress is None else min(progress.read_ms, log_ms))
        assert self._last_heard is not None, "it was noted"
        seconds, heard_ms = self._clock.monotonic() - self._last_heard[0], self._last_heard[1]
        reserved_ms = self._live.current.file_reserved_time * 3_600_000
        is_silent = seconds > SILENCE_SECONDS and log_ms - heard_ms > reserved_ms
        if is_silent and not self._silence_logged and self._has_files:
            self._silence_logged = True
            log.warning(
                "the master does not say how far timer messages are: files of the log go although some wait",
                hours=round((log_ms - heard_ms) / 3_600_000),
            )
        return is_silent

    # -- queries ------------------------------------------------------------------------------------------

    def slot_count(self, time_ms: int) -> int:
        """Messages that wait in the slot of a time."""
        return 0 if self.work is None else self._files.wheel.count(time_ms)

    def enqueue_lag(self) -> int:
        """Messages of the wheel's topic that were not taken yet."""
        taken = 0 if self.work is None else self.work.state.queue_offset
        return max(0, self._queue_end - taken) if self.work is not None or self._leads else 0

    def enqueue_latency_ms(self) -> int:
        """How long the oldest of those has been stored."""
        if self.work is None or not self.enqueue_lag():
            return 0
        number = self.work.state.queue_offset
        stored_ms = self._store.store_time_at(TIMER_TOPIC, TIMER_QUEUE_ID, number)
        return 0 if stored_ms is None else max(0, self._clock.now_ms() - stored_ms)

    def dequeue_latency_ms(self) -> int:
        """How long ago the slot that is read, or is read next, began; 0 while nothing waits."""
        work = self.work
        if work is None or not self._leads or not work.waits:
            return 0
        return max(0, self._clock.now_ms() - work.state.progress.read_ms)

    def snapshot(self) -> dict[int, int]:
        """Messages that wait, by the seconds that are left: for each bound those behind the one before."""
        if self.work is not None and self._clock.monotonic() - self._snapshot_at > SNAPSHOT_SECONDS:
            self._snapshot_wanted = True
            self._changed()
        return self._snapshot

    def status(self) -> dict[str, str]:
        """What GET_BROKER_RUNTIME_INFO (28) says of timers, in Java's names."""
        enqueues, dequeues = self._rates
        return {
            "timerReadBehind": str(self.dequeue_latency_ms() // 1000),
            "timerOffsetBehind": str(self.enqueue_lag()),
            "timerCongestNum": str(self.counts.total),
            "timerEnqueueTps": f"{enqueues:.1f}",
            "timerDequeueTps": f"{dequeues:.1f}",
        }

    # -- work ---------------------------------------------------------------------------------------------

    def _wake(self, seconds: float) -> None:
        self._cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_soon(self._turn) if seconds <= 0 else loop.call_later(seconds, self._turn)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _turn(self) -> None:
        self._timer = None
        work = self.work
        if work is None:
            return
        before = work.changes
        try:
            pause = self._work(work)
        except StoreRefused as refused:
            log.warning("timer messages wait for the store", reason=refused.reason)
            pause = RETRY_SECONDS
        except OSError as error:
            log.error("timer messages wait for the disk", error=str(error))
            pause = RETRY_SECONDS
        except Exception as error:  # the edge of a task: without its timer nothing would be delivered
            log.error("timer messages cannot be delivered", exc_info=error)
            pause = RETRY_SECONDS
        if work.changes != before:
            self._changed()
        if pause is not None:
            self._wake(pause)

    def _work(self, work: TimerWork) -> float | None:
        """One turn; seconds until the next one, `None` for when something comes."""
        if self._leads and self._admission.refuses_writes:
            return RETRY_SECONDS
        if work.take_back():
            return 0.0
        more = work.turn(TURN_SECONDS)
        if self._recount is not None and not self._recount.go_on():
            self._recount = None
        if more or self._recount is not None:
            return 0.0
        if not self._leads or not work.waits:
            return None
        slot_end = work.state.write_ms + self.settings.slot_ms
        return min(TIMER_SECONDS_MAX, max(0.001, (slot_end - self._clock.now_ms()) / 1000))

    def _changed(self) -> None:
        self._dirty.set()

    def _count_again(self, work: TimerWork) -> None:
        self._recount = Recount(self.counts, self._files.log, work, TimerReader(self._store))

    # -- disk ---------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Bring everything to the disk a last time. Raises OSError."""
        self._flushes = 0
        await self.persist()

    async def persist(self) -> None:
        """Bring everything to the disk: the commit log first, then log and wheel, then how far they are.

        Raises OSError.
        """
        async with self._flushing:
            if self.work is None:
                await self._persist_unopened()
            elif self.work.changes != self._flushed_changes and not self._disk_failed:
                await self._persist(self.work)

    async def _persist_unopened(self) -> None:
        """A broker that has left its group keeps what the group's log said."""
        progress = self._progress
        if progress is None or self._in_group or progress == self._files.saved_progress():
            return
        checkpoint = replace(self.checkpoint(), version=self._next_version())
        checkpoint = replace(checkpoint, queue_offset=min(checkpoint.queue_offset, progress.queue_offset))
        await asyncio.to_thread(self._files.write_checkpoint, checkpoint, progress)

    async def _persist(self, work: TimerWork) -> None:
        changes, state, end = work.changes, work.state, self._store.max_offset
        progress = self.settled() or state.progress
        if not await self._flushed(end):
            self._changed()
            return
        begin, position = work.flushed_position, state.log_position
        work.flushing_position = position
        checkpoint = replace(state, progress=progress).checkpoint(position, self._next_version())
        metrics = self._due_metrics()
        await asyncio.to_thread(self._write, (begin, position), checkpoint, progress, metrics)
        work.flushed_position = work.flushing_position
        self._flushed_changes = changes

    def _due_metrics(self) -> TimerMetrics | None:
        self._flushes += 1
        return self.metrics() if self._flushes % METRICS_FLUSHES == 1 else None

    def _write(
        self,
        log_range: tuple[int, int],
        checkpoint: TimerCheckpoint,
        progress: Progress,
        metrics: TimerMetrics | None,
    ) -> None:
        try:
            with self._store.guarding():
                self._files.sync(*log_range)
        except OSError:
            self._disk_failed = True  # a later sync proves nothing: the next start goes on from the last one
            raise
        self._files.write_checkpoint(checkpoint, progress)
        if metrics is not None:
            write_atomically(self._metrics_path, metrics.encode(), backup=True)

    async def _flushed(self, end: int) -> bool:
        if end <= self._store.flushed_offset:
            return True
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._store.when_flushed(end, partial(_set_once, done))
        try:
            async with asyncio.timeout(FLUSH_SECONDS_MAX):
                return await done
        except TimeoutError:
            return False

    def _next_version(self) -> DataVersion:
        self._version = self._version.next(self._clock.now_ms())
        return self._version


def _set_once(done: asyncio.Future[bool], value: bool) -> None:
    if not done.done():
        done.set_result(value)
