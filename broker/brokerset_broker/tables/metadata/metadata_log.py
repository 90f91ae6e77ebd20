"""Metadata of a broker in controller mode: changed by way of the log, and the same on every replica."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

import structlog

from brokerset_broker.store import answers
from brokerset_broker.store.errors import PutStatus, StoreRefused
from brokerset_broker.tables.metadata import records
from brokerset_broker.tables.metadata.applier import Applier
from brokerset_broker.tables.metadata.journal import Journal
from brokerset_broker.tables.metadata.key_locks import KeyLocks
from brokerset_broker.tables.metadata.polling import APPLIED_OFFSET_FIELD, Master, PollFailed, Polls, poll
from brokerset_broker.tables.metadata.records import (
    Change,
    DelayPut,
    GroupsPut,
    SnapshotBegin,
    SnapshotEnd,
    TimersPut,
    TopicsPut,
)
from brokerset_broker.tables.metadata.snapshot import ChunkPacker, MetadataState
from brokerset_broker.tables.metadata.stamp import Stamp, StampFile
from brokerset_broker.tables.metadata.store_source import MetadataStore, Written
from brokerset_broker.tables.metadata.tables import Tables
from brokerset_formats.config import SubscriptionGroupConfig, TopicConfig
from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.errors import Rejected
from brokerset_runtime.disk import RunBlocking
from brokerset_runtime.peer_requests import Asker
from brokerset_spec.broker_settings import BrokerSettings

log = structlog.get_logger(__name__)

OFFSETS_SECONDS: Final = 0.05
"""Offsets whose clients were not told wait so long for their record."""

DELAY_SECONDS: Final = 1.0
"""Delay progress is written so often, if it changed."""

TICK_SECONDS: Final = 1.0
"""How often it is checked whether a master must be asked or a snapshot is due."""

POLL_SECONDS: Final = 5.0
"""A Java master is asked for its tables so often (its own slaves do every 3 to 10 s)."""

CHANGES_MAX: Final = 4_096
"""Told changes on their way; one more is refused."""

LATER_MAX: Final = 1_024
"""Changes that nobody waits for; one more is dropped, and tried again when its cause comes again."""

CHANGE_SECONDS_MAX: Final = 15.0
"""Longest wait for a change, in case the time-out of replication does not tell."""

KEEP_NOTHING: Final = 2**63 - 1
"""`keep_from` when retention may delete whatever it wants."""

WhenConfirmed = Callable[[int, Callable[[PutStatus], None]], None]
"""Calls back when the log is confirmed up to an offset, or why that did not happen in time."""

_CODES: Final = {
    PutStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    PutStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
}


class MetadataUnreadable(Exception):
    """The log has metadata that this program cannot read: it must not lead."""


@dataclass(frozen=True, slots=True)
class MetadataStatus:
    """What status and metrics show."""

    leading: bool
    applied_offset: int
    behind_bytes: int
    """Of the log that is confirmed and not applied yet."""

    exact: bool
    """Whether the state is precisely what the log says; false after a start until the next snapshot."""

    complete: bool
    """False while records are missing and the master has to be asked for its tables."""

    snapshot_from: int
    """Where the newest complete snapshot needs the log from; -1 without one."""

    waiting: int
    """Changes whose clients wait."""

    problem: str | None
    """Why metadata is not applied any more."""


def rejection(status: PutStatus) -> Rejected:
    """The answer to a change that was not confirmed."""
    code = _CODES.get(status, ResponseCode.SERVICE_NOT_AVAILABLE)
    if code == ResponseCode.SERVICE_NOT_AVAILABLE:
        return Rejected(code, f"{status.value}: this broker is not the master any more; ask the master again")
    return Rejected(
        code, f"{status.value}: the change is stored, but not confirmed yet; look whether it was made"
    )


class MetadataLog:
    """The journal of one broker. All methods are called on the loop.

    Life: `load` once the store and the managers are loaded; then `run` as a task next to `start_following`,
    `lead`, `stop_leading` as the role changes.
    """

    def __init__(
        self,
        *,
        settings: Callable[[], BrokerSettings],
        store: MetadataStore,
        tables: Tables,
        stamp: StampFile,
        run_blocking: RunBlocking,
        when_confirmed: WhenConfirmed,
        asker: Asker | None = None,
        master: Callable[[], Master | None] = lambda: None,
    ) -> None:
        """`master` tells whom to ask for tables, while following; nobody is asked without an `asker`."""
        self._settings = settings
        self._store = store
        self._tables = tables
        self._stamp = stamp
        self._run_blocking = run_blocking
        self._when_confirmed = when_confirmed
        self._asker = asker
        self._master = master
        self._applier = Applier(store, tables)
        self._journal = Journal()
        self._locks = KeyLocks()
        self._leading = False
        self._following = False
        self._driving = False
        self._pump_scheduled = False
        self._turn_scheduled = False
        self._changing = 0
        self._new_groups: dict[str, SubscriptionGroupConfig] = {}
        self._turn_waiters: list[Callable[[PutStatus], None]] = []
        self._waiters: dict[int, list[Callable[[PutStatus], None]]] = {}
        self._ends: list[int] = []
        self._unapplied: deque[tuple[int, int]] = deque()
        self._written_end = 0
        self._taken_over_end = 0
        self._later: dict[str, TopicConfig] = {}
        self._later_wanted = asyncio.Event()
        self._snapshot_lock = asyncio.Lock()
        self._snapshot_written = 0
        self._replaces = False
        self._stamped = -1
        self._must_ask = False
        self._polled = False
        self._polled_at = 0.0
        self._polls = Polls()
        self.epoch = 0
        """Of the mastership of this broker, while it leads."""

    # -- life ---------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Find out where to go on; the managers have loaded their files, the store is open. Blocks."""
        self._tables.freeze(True)
        applier, store = self._applier, self._store
        stamp = self._stamp.load()
        if stamp is not None and stamp.applied_offset >= store.min_offset:
            self._stamped = stamp.applied_offset
            applier.begin_at(min(stamp.applied_offset, store.max_offset), exact=False)
            self._tables.offsets.put_resets(stamp.resets)
            if stamp.timers is not None:
                self._tables.timers.put(stamp.timers)
            found = applier.find_snapshot(store.confirmed_offset)
            if found is not None:
                _, end, applier.snapshot_end = found
                applier.snapshot_from = end.replay_from
        else:
            self._resume(store.confirmed_offset)
        log.info("metadata begins", stamp=stamp, applied=applier.applied, must_ask=self._must_ask)

    def _resume(self, limit: int) -> None:
        """The state does not reach to where the log begins: restore a snapshot, or ask the master."""
        if self._applier.restore_newest(limit):
            self._must_ask = False
            return
        self._must_ask = self._store.min_offset > 0
        self._applier.begin_at(self._store.min_offset, exact=False)

    async def run(self) -> None:
        """Write what is quiet, stamps and snapshots, and ask masters, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._write_offsets())
            tasks.create_task(self._write_delay())
            tasks.create_task(self._write_stamps())
            tasks.create_task(self._carry_out_later())
            tasks.create_task(self._check_regularly())

    async def close(self) -> None:
        """Write the stamp a last time; the log is still open, nothing is changed any more."""
        try:
            await self.write_stamp()
        except OSError as error:
            log.error("the metadata stamp cannot be written", reason=str(error))

    # -- roles --------------------------------------------------------------------------------------------

    async def start_following(self) -> None:
        """Apply what is confirmed, as it is confirmed; returns when that is done for now."""
        if self._leading:
            self.stop_leading()
        self._following = True
        self._tables.freeze(True)
        await self._drive(lambda: self._store.confirmed_offset)

    async def lead(self, epoch: int) -> None:
        """Apply everything up to the end of the log, then lead. Raises `MetadataUnreadable`."""
        if self._leading:
            self.stop_leading()
        self._following = False
        await self._drive(lambda: self._store.max_offset)
        if self._applier.problem is not None:
            raise MetadataUnreadable(self._applier.problem)
        if self._must_ask:
            log.warning("leading without all metadata: records before the log's start were never told")
        self._must_ask = self._polled = False
        self.epoch = epoch
        self._journal.clear()
        self._journal.delay = dict(self._tables.delay.offsets().offsets)
        tables = self._tables
        tables.release_all()
        tables.freeze(False)
        tables.offsets.journal = tables.ordered.journal = tables.order_locks.journal = self._journal
        tables.groups.on_created = self._group_created
        tables.topics.on_created = self._topic_created
        tables.topics.change_later = self._change_later
        tables.timers.on_progress = self._flush_timers
        # What was applied may not be confirmed: nobody is answered by it before it is.
        self._written_end = self._taken_over_end = self._applier.applied
        self._replaces = not self._applier.exact
        self._leading = True
        self._following = True

    def stop_leading(self) -> None:
        """Answer who waits with SERVICE_NOT_AVAILABLE and change nothing any more.

        What was changed in memory and did not get into the log of the next master stays until its first
        snapshot.
        """
        if not self._leading:
            return
        self._leading = False
        tables = self._tables
        tables.freeze(True)
        tables.offsets.journal = tables.ordered.journal = tables.order_locks.journal = None
        tables.groups.on_created = None
        tables.topics.on_created = tables.topics.change_later = None
        tables.timers.on_progress = None
        tables.release_all()
        self._journal.clear()
        self._new_groups.clear()
        self._later.clear()
        self._unapplied.clear()
        self._applier.own.clear()
        self._applier.exact = False
        waiting = [*self._turn_waiters]
        self._turn_waiters.clear()
        for end in sorted(self._waiters):
            waiting += self._waiters[end]
        self._waiters.clear()
        self._ends.clear()
        for callback in waiting:
            answers.give(callback, PutStatus.SERVICE_NOT_AVAILABLE)

    def truncated(self, offset: int) -> None:
        """The log was truncated at `offset`, or starts from scratch there."""
        self._tables.timers.truncated(offset)
        applier = self._applier
        if applier.applied <= offset and not applier.restoring:
            applier.begin_at(applier.applied, exact=applier.exact)
            return
        log.warning("applied metadata was truncated", applied=applier.applied, cut=offset)
        if self._stamped > offset:
            self._stamped = offset
            with suppress(OSError):  # the next stamp says so, too
                self._stamp.save(Stamp(offset, self.epoch, self._tables.waiting_resets()))
        applier.snapshot_from = applier.snapshot_end = -1
        if self._polled or not applier.restore_newest(offset):
            applier.begin_at(min(offset, applier.applied), exact=False)
        self._pump()

    # -- going along the log ------------------------------------------------------------------------------

    def confirmed(self, offset: int) -> None:
        """The log is confirmed up to `offset`: apply, and answer who waits for that."""
        if not self._following:
            return
        if (
            self._ends
            or self._unapplied
            or self._must_ask
            or self._driving
            or not self._applier.pass_over(offset)
        ):
            self._pump()

    def _pump(self) -> None:
        """Apply a turn's worth, now; the rest in later turns."""
        if self._driving or not self._following:
            return
        if self._turn(self._store.confirmed_offset) and not self._pump_scheduled:
            self._pump_scheduled = True
            asyncio.get_running_loop().call_soon(self._pump_again)

    def _pump_again(self) -> None:
        self._pump_scheduled = False
        self._pump()

    async def _drive(self, limit: Callable[[], int]) -> None:
        self._driving = True
        try:
            while self._turn(limit()):  # noqa: ASYNC110  # others get their turn of the loop
                await asyncio.sleep(0)
        finally:
            self._driving = False

    def _turn(self, limit: int) -> bool:
        applier = self._applier
        if not self._leading and not applier.restoring and applier.has_gap():
            self._resume(limit)
        more = applier.advance(limit)
        if applier.exact:
            self._must_ask = False
        applied = applier.applied
        while self._unapplied and self._unapplied[0][1] <= applied:
            self._unapplied.popleft()
        answered = min(applied, self._store.confirmed_offset)
        while self._ends and self._ends[0] <= answered:
            for callback in self._waiters.pop(heapq.heappop(self._ends), ()):
                answers.give(callback, PutStatus.PUT_OK)
        return more

    # -- told changes -------------------------------------------------------------------------------------

    @property
    def leading(self) -> bool:
        """Whether changes are taken here."""
        return self._leading

    async def change(self, keys: Sequence[str], decide: Callable[[], Sequence[Change]]) -> None:
        """Make a change that somebody is told of; it is confirmed and in the tables when this returns.

        `keys` name what is changed; `decide` is called when nobody else changes these, reads the tables,
        and may raise `Rejected`. `Rejected` is raised, too, when this broker does not lead, or the change is
        not confirmed in time: then it may still come about.
        """
        self._check_leading()
        if self._changing >= CHANGES_MAX:
            raise Rejected(ResponseCode.SYSTEM_BUSY, f"{CHANGES_MAX} changes are on their way; try again")
        self._changing += 1
        try:
            async with asyncio.timeout(CHANGE_SECONDS_MAX), self._locks.hold(keys):
                self._check_leading()
                changes = decide()
                self.flush()
                # Without a change, what is there may have been changed a moment ago.
                end = self._write_answered_later(changes) if changes else self._written_end
                await self._confirmed_at(end)
        except TimeoutError:
            raise rejection(PutStatus.FLUSH_SLAVE_TIMEOUT) from None
        finally:
            self._changing -= 1

    def _check_leading(self) -> None:
        if not self._leading:
            raise rejection(PutStatus.SERVICE_NOT_AVAILABLE)

    def _write_answered_later(self, changes: Sequence[Change]) -> int:
        """Write records that will be applied when they are confirmed; the offset behind the last."""
        end = 0
        for change in changes:
            self._tables.hold(change)
            written = 0
            try:
                for kind, body in records.encode(change):
                    record = self._store.append(kind, body)
                    self._unapplied.append((record.offset, record.end))
                    end = self._written_end = record.end
                    written += 1
            except StoreRefused as refused:
                if not written:  # else its first records will be applied, and release what they held
                    self._tables.release(change)
                raise Rejected(ResponseCode.SERVICE_NOT_AVAILABLE, refused.reason) from refused
        return end

    async def _confirmed_at(self, end: int) -> None:
        done: asyncio.Future[PutStatus] = asyncio.get_running_loop().create_future()
        self._when_applied(end, lambda status: None if done.done() else done.set_result(status))
        status = await done
        if status is not PutStatus.PUT_OK:
            raise rejection(status)

    def _when_applied(self, end: int, callback: Callable[[PutStatus], None]) -> None:
        if min(self._applier.applied, self._store.confirmed_offset) >= end:
            callback(PutStatus.PUT_OK)
            return
        waiting = self._waiters.get(end)
        if waiting is not None:
            waiting.append(callback)
            return
        self._waiters[end] = [callback]
        heapq.heappush(self._ends, end)
        self._when_confirmed(end, partial(self._ended, self.epoch, end))

    def _ended(self, epoch: int, end: int, status: PutStatus) -> None:
        """Replication says what became of the log up to `end`."""
        if not self._leading or epoch != self.epoch:
            return
        if status is PutStatus.PUT_OK:
            self._pump()
            return
        for callback in self._waiters.pop(end, ()):
            answers.give(callback, status)

    # -- quiet changes ------------------------------------------------------------------------------------

    def when_offsets_confirmed(self, callback: Callable[[PutStatus], None]) -> None:
        """Call back when all offsets committed so far are confirmed; they are written in this turn."""
        if not self._leading:
            callback(PutStatus.SERVICE_NOT_AVAILABLE)
        elif self._journal.has_offsets:
            self._turn_waiters.append(callback)
            self._schedule_turn()
        else:
            self._when_applied(self._written_end, callback)

    def when_order_stored(self, callback: Callable[[PutStatus], None]) -> None:
        """Call back when all locks of ordered pops, and the offsets before them, are confirmed."""
        self.when_offsets_confirmed(callback)

    def _schedule_turn(self) -> None:
        if not self._turn_scheduled:
            self._turn_scheduled = True
            asyncio.get_running_loop().call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._turn_scheduled = False
        if not self._leading:
            return
        self._flush_groups()
        waiting, self._turn_waiters = self._turn_waiters, []
        if not waiting:
            return
        stored = self._flush_offsets()
        for callback in waiting:
            if stored:
                self._when_applied(self._written_end, partial(answers.give, callback))
            else:
                answers.give(callback, PutStatus.SERVICE_NOT_AVAILABLE)

    def flush(self) -> None:
        """Write everything quiet that has no record yet."""
        if self._leading:
            self._flush_groups()
            self._flush_offsets()
            self._flush_delay()
            self._flush_timers()
            self.flush_producers()

    def _flush_groups(self) -> None:
        if not self._new_groups:
            return
        groups = tuple(self._new_groups.values())
        if self._append_own(GroupsPut(groups, if_absent=True)) is not None:
            self._new_groups.clear()

    def _flush_offsets(self) -> bool:
        """Whether all offsets have a record now, what Shared groups have acknowledged above them, and ordered
        pops.

        A range that a group's position has passed is not in its record any more: so offsets come first.
        """
        return self._flush_positions() and self._flush_acks() and self._flush_order_locks()

    def _flush_order_locks(self) -> bool:
        locks = self._journal.take_order_locks(self._tables.order_locks.locks)
        if locks is None or self._append_own(locks) is not None:
            return True
        for key, queues in locks.locks.items():
            for queue_id in queues:
                self._journal.order_lock_changed(key, queue_id)
        return False

    def _flush_acks(self) -> bool:
        acks = self._journal.take_acks(self._tables.ordered.state.shared_acks)
        if acks is None or self._append_own(acks) is not None:
            return True
        for key in acks.acks:
            self._journal.acks_changed(key)
        return False

    def _flush_positions(self) -> bool:
        batch = self._journal.take_offsets(self._tables.offsets.replicated)
        if batch is None or self._append_own(batch) is not None:
            self._journal.batches += 1
            return True
        for key, queues in batch.offsets.items():
            for queue_id in queues:
                self._journal.offset_changed(key, queue_id)
        for key, taken in batch.resets_taken.items():
            for queue_id in taken:
                self._journal.reset_taken(key, queue_id)
        return False

    def _flush_delay(self) -> None:
        now = self._tables.delay.offsets().offsets
        if now == self._journal.delay:
            return
        if self._append_own(DelayPut(dict(now))) is not None:
            self._journal.delay = dict(now)

    def _flush_timers(self) -> None:
        timers = self._tables.timers
        progress = timers.unrecorded()
        if progress is None:
            return
        written = self._append_own(TimersPut(progress))
        if written is not None:
            timers.recorded(progress, written.end)

    @property
    def replicated(self) -> bool:
        """Changes are records of the group's log."""
        return True

    @property
    def taken_over_end(self) -> int:
        """All that this mastership found in the log, confirmed or not, lies below this offset."""
        return self._taken_over_end

    def flush_producers(self) -> None:
        """Write what ordered subjects' queues have got of their producers since the last time.

        It counts messages that may be lost with this mastership. So it is applied once it is confirmed, and
        not now: a table that counts a lost message answers that it is stored.
        """
        if not self._leading or len(self._unapplied) >= CHANGES_MAX:
            return  # nothing is confirmed for long: one record later has all of it
        live = self._tables.ordered.live
        changed = live.take_changes()
        if changed is None:
            return
        try:
            self._write_answered_later([changed])
        except Rejected as rejected:
            log.warning("producers cannot be written now", reason=rejected.remark)
            live.not_written(changed)

    def _group_created(self, group: SubscriptionGroupConfig) -> None:
        self._new_groups[group.group_name] = group
        self._schedule_turn()

    def _topic_created(self, topic: TopicConfig) -> bool:
        return self._append_own(TopicsPut((topic,), if_absent=True)) is not None

    def _append_own(self, change: Change | SnapshotBegin | SnapshotEnd) -> Written | None:
        """Write what is in the tables already; the last record, `None` if the store refuses."""
        last: Written | None = None
        try:
            for kind, body in records.encode(change):
                last = self._store.append(kind, body)
                self._applier.own[last.queue_offset] = None
                self._written_end = last.end
        except StoreRefused as refused:
            log.warning("metadata cannot be written now", what=type(change).__name__, reason=refused.reason)
            return None
        return last

    def _change_later(self, topic: TopicConfig) -> None:
        if len(self._later) < LATER_MAX:
            self._later[topic.topic_name] = topic
            self._later_wanted.set()

    # -- snapshots ----------------------------------------------------------------------------------------

    async def write_snapshot(self) -> bool:
        """Write the whole state, over several turns of the loop; False if that was interrupted."""
        async with self._snapshot_lock:
            self._check_leading()
            epoch = self.epoch
            self.flush()
            replay_from = self._unapplied[0][0] if self._unapplied else -1
            begin = self._append_own(SnapshotBegin(epoch, replay_from))
            if begin is None:
                return False
            self._snapshot_written = begin.offset
            packer = ChunkPacker()
            for chunk in self._tables.pack(packer, begin.offset if replay_from < 0 else replay_from):
                kind, body = records.encode_chunk(begin.queue_offset, chunk)
                try:
                    written = self._store.append(kind, body)
                except StoreRefused as refused:
                    log.warning("a snapshot cannot be finished", reason=refused.reason)
                    return False
                self._applier.own[written.queue_offset] = None
                await asyncio.sleep(0)
                if not self._leading or self.epoch != epoch:
                    return False
            replay_from = begin.offset if replay_from < 0 else replay_from
            # What was committed meanwhile may be in the chunks. It gets its records before the end, so that a
            # replica that restores the snapshot has no more than one that passed it over.
            self.flush()
            end = SnapshotEnd(
                begin.queue_offset,
                replay_from,
                packer.chunks,
                packer.entries,
                packer.checksum,
                self._replaces,
            )
            if self._append_own(end) is None:
                return False
            self._replaces = False
            log.info("snapshot of metadata written", epoch=epoch, entries=packer.entries, begin=begin.offset)
            return True

    def keep_from(self) -> int:
        """Retention keeps the log from this offset on: the newest complete snapshot begins there.

        Without one a restart has the files of config/ alone, so what is behind their stamp stays.
        """
        start = self._applier.snapshot_from
        if start >= 0:
            return start
        return KEEP_NOTHING if self._must_ask else max(0, self._stamped)

    # -- files --------------------------------------------------------------------------------------------

    async def write_stamp(self) -> None:
        """Write the files of config/, then how far they are. Raises OSError."""
        applier = self._applier
        if applier.restoring or self._must_ask:
            return
        applied = applier.applied
        if applied == self._stamped:
            return
        stamp = Stamp(applied, self.epoch, self._tables.waiting_resets(), self._tables.timers.settled())
        await self._tables.saved()
        if self._tables.changed_queues:
            self._tables.changed_queues = False
            await self._store.checkpoint()
        if applied > applier.applied:  # truncated meanwhile
            return
        await self._run_blocking(lambda: self._stamp.save(stamp))
        self._stamped = applied
        if applied > applier.applied:  # truncated while it was written: `truncated` could not know of it
            timers = self._tables.timers.settled()
            shorter = Stamp(applier.applied, self.epoch, self._tables.waiting_resets(), timers)
            await self._run_blocking(lambda: self._stamp.save(shorter))
            self._stamped = shorter.applied_offset

    # -- masters that are asked ---------------------------------------------------------------------------

    async def poll_master(self, master: Master) -> None:
        """Ask a master for its tables and take them over. Raises `PollFailed`."""
        assert self._asker is not None, "who asks needs somebody to ask with"
        end = self._store.max_offset
        polled = await poll(self._asker, master.address)
        if self._leading or self._master() != master:
            return
        if master.is_ours:
            if polled.applied_offset is None:
                raise PollFailed(f"{master.address} does not lead (yet)")
            if polled.applied_offset < self._store.min_offset:
                raise PollFailed(f"{master.address} has applied less than this log begins with")
            end = polled.applied_offset
        state = polled.state if master.is_ours else self._with_own_offsets(polled.state)
        # Masters are not asked for ordered subjects: what this broker knows of them stays.
        kept = replace(state, ordered=self._tables.ordered.state, order_locks=self._tables.order_locks.copy())
        self._tables.take_over(kept)
        if polled.timers is not None:
            self._tables.timers.put_checkpoint(polled.timers)
        self._applier.begin_at(end, exact=False)
        self._must_ask = False
        self._polled = not master.is_ours
        if master.is_ours:
            log.info("metadata taken over from the master", master=master.address, applied=end)
        self._pump()

    def _with_own_offsets(self, state: MetadataState) -> MetadataState:
        """A Java master may lack offsets that it never got from its own master; its slaves merge, too."""
        own = {key: dict(queues) for key, queues in self._tables.offsets.replicated.items()}
        return replace(state, offsets={**own, **state.offsets})

    def answer_ext(self) -> dict[str, str]:
        """Fields for answers that carry a table: up to where the log is in it."""
        return {APPLIED_OFFSET_FIELD: str(self._applier.applied)} if self._leading else {}

    async def _ask_master(self) -> None:
        master = self._master()
        if self._asker is None or self._leading or not self._following or master is None:
            self._polls.ended_well()
            return
        now = asyncio.get_running_loop().time()
        if master.is_ours:
            if not self._must_ask:
                self._polls.ended_well()
                return
        elif now - self._polled_at < POLL_SECONDS:
            return
        self._polled_at = now
        try:
            await self.poll_master(master)
        except PollFailed as failed:
            if self._polls.failed(str(failed), now):
                log.warning("metadata was not polled", reason=str(failed))
        else:
            self._polls.ended_well()

    # -- tasks --------------------------------------------------------------------------------------------

    async def _write_offsets(self) -> None:
        while True:
            await asyncio.sleep(OFFSETS_SECONDS)
            if self._leading:
                self._flush_groups()
                self._flush_offsets()

    async def _write_delay(self) -> None:
        while True:
            await asyncio.sleep(DELAY_SECONDS)
            if self._leading:
                self._flush_delay()
                self._flush_timers()
                self.flush_producers()

    async def _write_stamps(self) -> None:
        while True:
            await asyncio.sleep(self._settings().flush_consumer_offset_interval / 1000)
            try:
                await self.write_stamp()
            except OSError as error:
                log.error("the metadata stamp cannot be written", reason=str(error))

    async def _carry_out_later(self) -> None:
        while True:
            await self._later_wanted.wait()
            self._later_wanted.clear()
            while self._later:
                topic = self._later.pop(next(iter(self._later)))
                try:
                    await self.change([topic.topic_name], partial(self._later_topic, topic))
                except Rejected as rejected:
                    log.warning("a topic was not changed", topic=topic.topic_name, reason=rejected.remark)

    def _later_topic(self, topic: TopicConfig) -> Sequence[Change]:
        current = self._tables.topics.get(topic.topic_name)
        return () if current is None or current == topic else (TopicsPut((topic,)),)

    async def _check_regularly(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            await self._ask_master()
            grown = self._store.max_offset - self._snapshot_written
            if self._leading and grown > self._settings().mapped_file_size_commit_log:
                with suppress(Rejected):  # it does not lead any more
                    await self.write_snapshot()

    # -- status -------------------------------------------------------------------------------------------

    @property
    def covers_log(self) -> bool:
        """Whether no record is missing between the tables and the begin of the log.

        Who lacks some must not be elected before a master has told its tables.
        """
        return not self._must_ask and (self._leading or not self._applier.has_gap())

    def trouble(self) -> tuple[str, str] | None:
        """Why tables of a master that must be asked do not come, and what to do; None when all is well."""
        return self._polls.problem(asyncio.get_running_loop().time())

    def status(self) -> MetadataStatus:
        """How things are."""
        applier = self._applier
        return MetadataStatus(
            leading=self._leading,
            applied_offset=applier.applied,
            behind_bytes=max(0, self._store.confirmed_offset - applier.applied),
            exact=applier.exact,
            complete=not self._must_ask and not applier.restoring,
            snapshot_from=applier.snapshot_from,
            waiting=len(self._turn_waiters) + sum(map(len, self._waiters.values())),
            problem=applier.problem,
        )
