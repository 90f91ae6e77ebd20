"""A message store whose commit log is replicated by a DLedger: what is appended is dispatched once a quorum
has it.

The leader dispatches as a follower does: from the log, what is committed. So nothing that may still be
truncated is in a queue, and no truncation reaches one, but for those of Java's leaders, who may truncate what
was committed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final, Protocol

import structlog

from brokerset_broker.store import answers
from brokerset_broker.store.checkpointing import lowered
from brokerset_broker.store.consume_queue import NO_LIMIT, QueueTail
from brokerset_broker.store.errors import PutStatus, StoreRefused
from brokerset_broker.store.folder import check_kind, check_served
from brokerset_broker.store.ledger import FileLedger
from brokerset_broker.store.ledger_log import LedgerLog
from brokerset_broker.store.message_store import MessageStore, OnArrival
from brokerset_broker.store.old_log import JoinedFiles, OldLog, ledger_folder, old_files, read_divided
from brokerset_broker.store.receiving import CommittedEntries, Step, holds_record
from brokerset_broker.store.results import Appended, AppendedBatch
from brokerset_formats.batches import BatchItem
from brokerset_formats.dledger import ENTRY_HEAD_SIZE, CurrentTerm
from brokerset_formats.hosts import Host
from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_formats.names import SYSTEM_TOPIC_PREFIX
from brokerset_formats.records import (
    Record,
    RecordHead,
    SysFlag,
    check_record,
    decode_record,
    encode_record,
    magic_for,
)
from brokerset_runtime.clock import Clock
from brokerset_spec.broker_settings import BrokerSettings

log = structlog.get_logger(__name__)

MORE_RESERVED_HOURS: Final = 1
"""Java's brokers keep a DLedger's files an hour longer than `fileReservedTime` says."""

WAITERS_MAX: Final = 65_536
"""Sends that wait to be committed; further ones are told at once that it takes too long."""

RETRY_SECONDS: Final = 1.0
"""When a queue had no room on the disk, dispatch tries again so much later."""

TERM_TOPIC: Final = f"{SYSTEM_TOPIC_PREFIX}BROKERSET_TERM"
"""Of the record with which a leader begins its term. Being marked as rolled back, it is in no queue."""

_OFFSET_IN_RECORD: Final = slice(28, 36)
"""Where a record says at which offset it is."""


class Appender(Protocol):
    """What leads the DLedger: `brokerset_dledger.Driver`."""

    @property
    def term(self) -> int:
        """The term of this member."""

    def require_appendable(self, count: int = 1) -> None:
        """Raises `LedgerRefused` if this member may not append so many records now."""

    def appended(self) -> None:
        """Records were put into the log in this turn of the loop."""


@dataclass(frozen=True, slots=True)
class _Waiter:
    end: int
    term: int
    """In another term other entries may stand below `end`."""

    answer: Callable[[PutStatus], None]
    deadline: float


class LedgerStore(MessageStore):
    """Life: as of `MessageStore`; `lead_with` comes between `load` and `start`.

    `ledger` and `current_term` are for the driver, which calls `committed`.
    """

    more_reserved_hours = MORE_RESERVED_HOURS
    log: LedgerLog

    def __init__(
        self,
        settings: BrokerSettings,
        clock: Clock,
        *,
        store_host: Host | None = None,
        on_arrival: OnArrival | None = None,
    ) -> None:
        """See `MessageStore`."""
        super().__init__(settings, clock, store_host=store_host, on_arrival=on_arrival)
        self._tails: dict[tuple[str, int], QueueTail] = {}
        self._appended_to = self._tails
        self._sync = False  # the driver syncs; what is dispatched may be read
        self._readable_end = NO_LIMIT
        self._entries = CommittedEntries(self.log, self.queues_table, self.dispatcher, self.arrivals)
        self._dispatch_timer: asyncio.TimerHandle | None = None
        self._is_empty = True
        self._generation = 0
        self._has_room = True
        """Whether the last dispatch found room in the queues."""

        self._waiting: deque[_Waiter] = deque()
        self._expiry: asyncio.TimerHandle | None = None
        self._appender: Appender | None = None
        self._timeout_s = settings.sync_flush_timeout / 1000
        self.on_dispatched: Callable[[int], None] | None = None
        """Gets the end of what is dispatched, as it grows."""

        self.on_stopped: Callable[[], None] | None = None
        """Called when nothing can be stored any more until the process ends."""

        self.on_truncated: Callable[[int], None] | None = None
        """Gets the new end when a leader of Java has truncated what was dispatched."""

        self.old_log = OldLog()
        """What the log was before the DLedger's."""

        self.current_term = CurrentTerm()
        """What was on the disk when the store was loaded."""

    def _make_log(self, executor: ThreadPoolExecutor) -> LedgerLog:
        settings = self._settings
        old = old_files(settings)
        self.ledger = FileLedger(
            ledger_folder(settings),
            data_file_bytes=settings.mapped_file_size_commit_log,
            record_of_term=self._record_of_term,
            patch=_patch_offset,
            is_whole=is_whole,
            first_position=old.end,
            executor=executor,
        )
        joined = JoinedFiles(old, self.ledger.files) if old.files else None
        return LedgerLog(self.ledger, executor, joined)

    def _check_kind(self) -> None:
        check_kind(self._root, self.log.files.folder, ledger=self.ledger.folder)

    # -- life ---------------------------------------------------------------------------------------------

    def _load(self, accept_damage: bool) -> None:
        clean = self.closed_cleanly = not self._abort.exists
        same_boot = self._abort.same_boot
        self.checkpoints.file.load()
        checkpoint = self.checkpoints.file.content
        if checkpoint.marks is None and not self._settings.accept_unserved_messages:
            check_served(self._root)
        self.old_log = read_divided(self._settings) or OldLog(self.log.divide)
        with self.guarding():
            self.current_term = self.ledger.open(
                keeps=(clean or same_boot) and not accept_damage, settle=not clean and not same_boot
            )
            if self._settings.dledger_accept_loss:
                log.warning(
                    "this member votes whatever it lacks; take dLegerAcceptLoss out again after this start"
                )
                self.ledger.end_recovery()
            elif self._may_lack_entries(cache_lost=not clean and not same_boot, accept_damage=accept_damage):
                self.ledger.begin_recovery()
        self._is_empty, self._generation = self.ledger.end_index < 0, self.ledger.generation
        if not self._is_empty and self.ledger.files.start != self.log.divide and self.log.divide:
            log.warning("the old log does not end where that of the DLedger begins", divide=self.log.divide)
            self.log.forget_old_files()  # a process that was about to do so has died
        self.queues_table.load()
        end = self.ledger.committed_position
        begin = self.log.min_offset
        if checkpoint.marks is not None:
            begin = max(begin, min(self.log.entry_at(checkpoint.marks.dispatched_offset), end))
        if clean:
            self.queues_table.truncate(begin)
        else:
            self.queues_table.rebuild_from(begin, cache_wrong=not same_boot)
        self.log.begin_at(max(begin, self.log.divide), checkpoint.physic_msg_timestamp)
        index_from = self._load_index(begin, clean=clean, same_boot=same_boot)
        self._dispatch_loaded(begin, index_from)
        self.queues_table.correct_min_offsets(self.log.min_offset)
        self.cache_lost = not clean and not same_boot
        self._abort.write(claims_boot=True)
        with self.guarding():
            self.checkpoints.sync_all()
        log.info("store recovered", clean=clean, read_from=begin, end=end, entries=self.ledger.end_index + 1)

    def _may_lack_entries(self, *, cache_lost: bool, accept_damage: bool) -> bool:
        """Whether this member may have acknowledged what its log lacks; groups of ours alone ask for it."""
        if not self._settings.dledger_brokerset_only:
            return False
        synced = self._settings.flush_disk_type == "SYNC_FLUSH"
        return self.ledger.end_index < 0 or accept_damage or (cache_lost and not synced)

    def _load_index(self, begin: int, *, clean: bool, same_boot: bool) -> int:
        """Open the index; returns from where its messages have to be put again, at most `begin`."""
        index, checkpoint = self.index, self.checkpoints.file.content
        if index is None:
            return begin
        if clean or (same_boot and checkpoint.marks is not None):
            index.load()
            missing = index.rebuild_from(begin)
        else:
            missing = index.load(checkpoint.index_msg_timestamp)
        return begin if missing is None else max(self.log.min_offset, min(begin, missing))

    def _dispatch_loaded(self, begin: int, index_from: int) -> None:
        if index_from < self.log.max_offset:  # the old log is dispatched record by record
            for head in self.log.records(index_from):
                if head.offset >= begin:
                    self.dispatcher.put(head)
                else:
                    self.dispatcher.put_index_of(head)
        while (step := self._entries.step(self.ledger.committed_position)) is Step.MORE:
            pass
        if step is not Step.WAITING:
            log.error("committed entries are not dispatched", reason=self._entries.problem)

    def remaining_old_log(self) -> OldLog:
        """What is left of the log before the DLedger's, as other members hear of it."""
        known = self.old_log if self.log.min_offset < self.log.divide else OldLog()
        return replace(known, begun=self.ledger.end_index >= 0)

    def _disk_failed(self, reason: str) -> None:
        super()._disk_failed(reason)
        if self.on_stopped is not None:
            self.on_stopped()

    @property
    def java_led_last(self) -> bool:
        """Whether a leader of Java wrote the newest entries: their term began without a record of ours,
        unless retention has deleted it."""
        ledger = self.ledger
        first, end = ledger.begin_index, ledger.end_index
        if end < 0:
            return False
        while first < end:  # terms grow with the index
            middle = (first + end) // 2
            first, end = (
                (first, middle) if ledger.entry(middle).term == ledger.end_term else (middle + 1, end)
            )
        body = ledger.entry(first).body
        return not (holds_record(body) and decode_record(body).topic == TERM_TOPIC)

    def lead_with(self, appender: Appender) -> None:
        """Who says whether, and in which term, this member may append."""
        self._appender = appender

        def leads(count: int) -> int:
            if count:
                appender.require_appendable(count)
            return appender.term

        self.log.leads = leads

    async def run(self) -> None:
        """Write checkpoints and delete old files, until cancelled; the driver flushes."""
        self.start()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.checkpoints.run(self._settings.flush_interval_consume_queue))
            tasks.create_task(self.retention.run())

    async def close(self, *, cleanly: bool = True) -> None:
        """See `MessageStore`; the DLedger's driver has ended before."""
        if self.abandoned:
            return
        self._appender = self.log.leads = None
        self._cancel_timers()
        self.answer_waiting(PutStatus.SERVICE_NOT_AVAILABLE)
        failed = self.checkpoints.failed
        if not failed:
            try:
                await asyncio.to_thread(self.ledger.close)
            except OSError as error:
                self.stop(f"the disk does not take the commit log: {error}")
        await super().close(cleanly=cleanly)

    def _cancel_timers(self) -> None:
        for timer in (self._dispatch_timer, self._expiry):
            if timer is not None:
                timer.cancel()
        self._dispatch_timer = self._expiry = None

    def abandon(self) -> None:
        """See `MessageStore`."""
        self._cancel_timers()
        self.answer_waiting(PutStatus.SERVICE_NOT_AVAILABLE)
        super().abandon()

    # -- appending ----------------------------------------------------------------------------------------

    def begin_leading(self) -> None:
        """A mastership begins: all of the log is dispatched, so the queues say which numbers come next."""
        assert self.is_dispatched, "queues of a new leader end where its log ends"
        self._tails.clear()

    @property
    def is_dispatched(self) -> bool:
        """Whether all of the log is committed and in its queues."""
        ledger = self.ledger
        return ledger.committed_index == ledger.end_index and self.log.max_offset >= ledger.committed_position

    def _open_queue(self, topic: str, queue_id: int) -> QueueTail:
        self._check_queue(topic, queue_id)
        tail = self._tails[topic, queue_id] = QueueTail(self.queues_table.open(topic, queue_id))
        return tail

    def append_batch(
        self,
        topic: str,
        queue_id: int,
        items: Sequence[BatchItem],
        *,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        reconsume_times: int = 0,
    ) -> AppendedBatch:
        """Store several messages of one queue, each in an entry of its own, as Java does; all or none."""
        if not items:
            raise StoreRefused(PutStatus.MESSAGE_ILLEGAL, "the batch has no messages")
        self._check_batch(topic, items, len(born_host))
        appended: list[Appended] = [
            self.append(
                topic,
                queue_id,
                item.body,
                item.properties,
                flag=item.flag,
                sys_flag=sys_flag,
                born_timestamp=born_timestamp,
                born_host=born_host,
                reconsume_times=reconsume_times,
            )
            for item in items
        ]
        last = appended[-1]
        return AppendedBatch(
            [each.offset for each in appended], appended[0].queue_offset, last.end, last.store_timestamp
        )

    def _check_batch(self, topic: str, items: Sequence[BatchItem], host_size: int) -> None:
        """Refuse the batch as a whole, before any of it is appended."""
        if self._refusal is not None:
            raise StoreRefused(PutStatus.SERVICE_NOT_AVAILABLE, self._refusal)
        for item in items:
            if len(item.body) > self.body_size_max or len(item.properties) > self.properties_size_max:
                raise self._too_large(len(item.body), len(item.properties))
        overhead = self._overhead[host_size] + len(topic.encode()) + 2
        total = sum(overhead + len(item.body) + len(item.properties) for item in items)
        if total > self.batch_size_max:
            raise StoreRefused(
                PutStatus.MESSAGE_ILLEGAL, f"a batch of {total} bytes; {self.batch_size_max} is the limit"
            )
        self.log.require(len(items), total)

    def _end_turn(self) -> None:
        """Have replicated what was appended in this turn of the loop."""
        self._turn_scheduled = False
        if self._appender is not None:
            self._appender.appended()
        self.announce()

    def forget_queues(self, topic: str, before: int) -> None:
        """See `MessageStore`; numbers go on where messages were appended since."""
        super().forget_queues(topic, before)
        for name, queue_id in [key for key in self._tails if key[0] == topic]:
            if self._tails[name, queue_id].last_end <= before:
                del self._tails[name, queue_id]

    # -- dispatch -----------------------------------------------------------------------------------------

    def committed(self) -> None:
        """More of the log is committed, or less: a leader of Java may truncate it."""
        ledger = self.ledger
        if ledger.end_index >= 0:
            start = ledger.files.start
            begins = self._is_empty and start != self.log.max_offset
            if begins or ledger.generation != self._generation:
                if not start == self.log.divide > 0:
                    self._drop_all()
                elif self.log.max_offset > start:  # else nothing of another leader's log was dispatched
                    self._truncate_dispatched(start)
            self._is_empty, self._generation = False, ledger.generation
        if ledger.committed_position < self.log.max_offset:
            self._truncate_dispatched(ledger.committed_position)
        self._dispatch()

    def _dispatch(self) -> None:
        """Put what is committed into queues and index; a slice in each turn of the loop."""
        if self._stopped is not None or (self._dispatch_timer is not None and not self._has_room):
            return
        step = self._entries.step(self.ledger.committed_position)
        self.announce()
        self._answer_dispatched()
        had_room, self._has_room = self._has_room, step is not Step.NO_ROOM
        match step:
            case Step.MORE:
                self._dispatch_soon(0.0)
            case Step.NO_ROOM:
                if had_room:
                    log.error("a queue has no room", reason=self._entries.problem)
                self._dispatch_soon(RETRY_SECONDS)
            case Step.FAILED:
                self.stop(self._entries.problem or "the log is damaged")
            case Step.WAITING:
                pass
        if self.on_dispatched is not None:
            self.on_dispatched(self.log.max_offset)

    def _dispatch_soon(self, seconds: float) -> None:
        if self.loop is not None and self._dispatch_timer is None:
            self._dispatch_timer = self.loop.call_later(seconds, self._dispatch_again)

    def _dispatch_again(self) -> None:
        self._dispatch_timer = None
        self._dispatch()

    def _truncate_dispatched(self, offset: int) -> None:
        log.error("committed messages are truncated, as the leader of Java says", offset=offset)
        self._lower_checkpoint(offset)
        self.log.begin_at(offset, self.log.store_timestamp)
        self.queues_table.truncate(offset)
        if self.index is not None and self.index.end_offset >= offset:
            self.index.truncate(offset)
        self._truncated(offset)

    def _drop_all(self) -> None:
        """Nothing of the log that this store had is there any more: the leader's begins elsewhere."""
        begin = self.ledger.files.start
        log.warning("the log begins elsewhere, as the leader's does", end=self.log.max_offset, begin=begin)
        self._lower_checkpoint(0)
        self.log.forget_old_files()
        self.log.begin_at(begin, self.log.store_timestamp)
        for queue in self.queues_table:
            queue.restart()
        if self.index is not None:
            self.index.truncate(0)
        self._truncated(begin)

    def _lower_checkpoint(self, offset: int) -> None:
        """A start after a crash must not count on what is about to go."""
        self.checkpoints.truncated(offset)
        try:
            with self.guarding():
                self.checkpoints.file.write(lowered(self.checkpoints.file.content, offset))
        except OSError as error:
            self.stop(f"the disk does not take the checkpoint: {error}")

    def _truncated(self, offset: int) -> None:
        self.arrivals.clear()
        self.dispatcher.truncate(offset)
        self.log.flushed_offset = min(self.log.flushed_offset, offset)
        if self.on_truncated is not None:
            self.on_truncated(offset)

    # -- waiting for the quorum ---------------------------------------------------------------------------

    @property
    def flushed_offset(self) -> int:
        """What is dispatched is as safe as the DLedger makes it."""
        return self.log.max_offset

    def when_flushed(self, end_offset: int, callback: Callable[[bool], None]) -> None:
        """Call `callback(True)` when a quorum has the log up to `end_offset`, with False if not in time."""
        self.when_committed(end_offset, lambda status: callback(status is PutStatus.PUT_OK))

    def when_committed(self, end: int, answer: Callable[[PutStatus], None]) -> None:
        """Answer when the log is committed and dispatched up to `end`, or why that did not happen in time."""
        if end <= self.log.max_offset:
            answer(PutStatus.PUT_OK)
        elif self._appender is None:
            answer(PutStatus.SERVICE_NOT_AVAILABLE)
        elif len(self._waiting) >= WAITERS_MAX:
            answer(PutStatus.FLUSH_SLAVE_TIMEOUT)
        else:
            loop = asyncio.get_running_loop()
            term, deadline = self._appender.term, loop.time() + self._timeout_s
            self._waiting.append(_Waiter(end, term, answer, deadline))
            if self._expiry is None:
                self._expiry = loop.call_later(self._timeout_s, self._expire)

    @property
    def waiting(self) -> int:
        """Sends that wait to be committed."""
        return len(self._waiting)

    def answer_waiting(self, status: PutStatus) -> None:
        """Answer everybody who waits: this member leads no more, or ends."""
        waiting, self._waiting = self._waiting, deque()
        for waiter in waiting:
            answers.give(waiter.answer, status)
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    def _answer_dispatched(self) -> None:
        """Answer who waits; who appended in an older term cannot know what became of that."""
        end, waiting = self.log.max_offset, self._waiting
        term = None if self._appender is None else self._appender.term
        while waiting and waiting[0].term != term:
            answers.give(waiting.popleft().answer, PutStatus.SERVICE_NOT_AVAILABLE)
        while waiting and waiting[0].end <= end:
            answers.give(waiting.popleft().answer, PutStatus.PUT_OK)

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        self._expiry = None
        now = loop.time()
        while self._waiting and self._waiting[0].deadline <= now:
            answers.give(self._waiting.popleft().answer, PutStatus.FLUSH_SLAVE_TIMEOUT)
        if self._waiting:
            self._expiry = loop.call_at(self._waiting[0].deadline, self._expire)

    def _record_of_term(self) -> bytes:
        now = max(self.now_ms(), self.log.store_timestamp)
        return encode_record(
            Record(
                topic=TERM_TOPIC,
                queue_id=0,
                queue_offset=0,
                offset=0,
                body=b"term",
                sys_flag=SysFlag.TRANSACTION_ROLLBACK,
                born_timestamp=now,
                born_host=self.store_host,
                store_timestamp=now,
                store_host=self.store_host,
                magic=magic_for(TERM_TOPIC.encode()),
            )
        )


def is_whole(body: bytes) -> bool:
    """Whether a power failure has left the body of an entry as it was written.

    Nobody can tell for a body that is no record; of one that is, the first page may be missing.
    """
    if not holds_record(body):
        return any(body[4:8]) or len(body) < ENTRY_HEAD_SIZE
    return isinstance(check_record(body, 0, len(body), verify_crc=True), RecordHead)


def _patch_offset(record: memoryview, position: int) -> None:
    if holds_record(record):
        record[_OFFSET_IN_RECORD] = (position + ENTRY_HEAD_SIZE).to_bytes(8, "big")
