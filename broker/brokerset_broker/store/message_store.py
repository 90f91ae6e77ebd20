"""The message store of one broker: appending, reading, searching, and its life from load to close."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeAlias

import structlog

from brokerset_broker.store.checkpointing import Checkpointer, CheckpointFile
from brokerset_broker.store.commit_log import CommitLog
from brokerset_broker.store.confirmation import Confirmation
from brokerset_broker.store.consume_queue import NO_LIMIT, ConsumeQueue, QueueTail
from brokerset_broker.store.consume_queues import ConsumeQueues
from brokerset_broker.store.delay_levels import DelayLevels
from brokerset_broker.store.dispatch import (
    Arrivals,
    Derived,
    Dispatcher,
    derived,
    derived_of_batch,
    has_unit,
)
from brokerset_broker.store.errors import PutStatus, StoreRefused
from brokerset_broker.store.flush import Flusher
from brokerset_broker.store.folder import AbortFile, check_kind, check_served, lock_store
from brokerset_broker.store.index import IndexService
from brokerset_broker.store.log_recovery import DAMAGED_FOLDER, LogDamage, LogRecovery, RecoveryOptions
from brokerset_broker.store.observer import StoreObserver
from brokerset_broker.store.removal import Removal, RemovalFile, StorePaths, finish_removal
from brokerset_broker.store.results import Appended, AppendedBatch
from brokerset_broker.store.retention_task import RetentionTask
from brokerset_broker.store.store_reads import StoreReads
from brokerset_formats import light_queues
from brokerset_formats.batches import BatchItem
from brokerset_formats.hashing import crc31
from brokerset_formats.hosts import HOST_SIZE_V4, HOST_SIZE_V6, Host
from brokerset_formats.names import SCHEDULE_TOPIC
from brokerset_formats.properties import PROPERTIES_SIZE_MAX
from brokerset_formats.queue_units import UNIT_SIZE, units_struct
from brokerset_formats.records import (
    PROPERTIES_BESIDE_CRC_MAX,
    PROPERTY_CRC_SIZE,
    SysFlag,
    fixed_struct,
    property_crc_of,
    without_property_crc,
)
from brokerset_runtime.clock import Clock
from brokerset_runtime.files import FileLock
from brokerset_spec.broker_settings import RECORD_EXTRA_BYTES, BrokerSettings

log = structlog.get_logger(__name__)

OnArrival = Callable[[str, int, int, int | None], None]
"""Topic, queue id, number that the next message will get, tags code (None: several different ones)."""

TOPIC_SIZE_MAX = 255

DAMAGED_AGE_MS = 24 * 3_600_000
"""What a store whose log is damaged tells as the age of its oldest append: it can store nothing."""


_pack_size = struct.Struct(">H").pack

_LIGHT = light_queues.PROPERTIES_MARK

_HASH_SIGN = ord("#")
"""In the name `__CRC32#`, and in few properties else; bytes find a number ten times as fast as bytes."""

_NO_HOST_BITS = ~(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
"""A message that is stored again may name hosts of other sizes than its new record has."""

FILL_BYTES = 1024 * 1024
"""How many zeros are written ahead of the log with synchronous flushing, each time that they are used up.

One sync in so many bytes waits for the file system's journal, but takes as many bytes more to the disk.
"""


PlainMessage: TypeAlias = tuple[str, int, bytes, bytes, Derived, int, int, int, int]
"""Topic, queue id, body, properties, what is derived of them, flag, sysFlag, born time, reconsume times."""

Placed: TypeAlias = tuple[int, int, int]
"""Where a message is: offset and size of its record, number in its queue."""


class MessageStore(StoreReads):
    """Commit log, consume queues and index under one root folder; written by the event loop's thread alone.

    Life: `load`, `start` (or `run`), appends and reads, `close`. Appended messages are in their queue and in
    the index when `append` returns; `on_arrival` follows at the end of the turn of the loop.
    """

    more_reserved_hours = 0
    """So much longer than the settings say files of the log are kept."""

    def __init__(
        self,
        settings: BrokerSettings,
        clock: Clock,
        *,
        store_host: Host | None = None,
        on_arrival: OnArrival | None = None,
    ) -> None:
        """`store_host` is what records name as their broker; by default `brokerIP1` with `listenPort`.

        FormatError if that is no IP address.
        """
        self._settings = settings
        self._root = settings.store_path_root_dir
        self._clock = clock
        self.now_ms = clock.now_ms
        self.on_arrival: OnArrival | None = on_arrival
        self._executor = ThreadPoolExecutor(1, "store-files")
        self.log = self._make_log(self._executor)
        self.queues_table = ConsumeQueues(
            self._root / "consumequeue", settings.mapped_file_size_consume_queue, self._executor
        )
        self.index = (
            IndexService(
                self._root / "index",
                clock=clock,
                hash_slots=settings.max_hash_slot_num,
                indexes_max=settings.max_index_num,
            )
            if settings.message_index_enable
            else None
        )
        self.confirmation = Confirmation(self.log)
        self.observer: StoreObserver | None = None
        self.dispatcher = Dispatcher(
            self.queues_table, self.index, DelayLevels.parse(settings.message_delay_level)
        )
        self._table = self.queues_table.table
        self._appended_to: Mapping[tuple[str, int], ConsumeQueue | QueueTail] = self._table
        """The queues as appends see them."""

        self.arrivals = Arrivals()
        self._abort = AbortFile(self._root)
        self.guarding = self._abort.guarding
        """Around everything that syncs files of the store: notes a failure before anybody hears of it."""
        self._sync = settings.flush_disk_type == "SYNC_FLUSH"
        self.flusher = Flusher(
            self.log,
            settings.sync_flush_timeout,
            on_flushed=self._flushed,
            on_failure=lambda error: self._disk_failed(f"the disk does not take the commit log: {error}"),
            guarding=self.guarding,
        )
        self.checkpoints = Checkpointer(
            CheckpointFile(self._root / "checkpoint"),
            self.log,
            self.queues_table,
            self.index,
            self.dispatcher,
            self.flusher,
            on_failure=lambda error: self._disk_failed(f"the disk does not take the store: {error}"),
            confirmed=self.confirmation.to_keep,
            guarding=self.guarding,
        )
        self.paths = StorePaths(
            self.log.files.folder,
            self.log.files.segment_bytes,
            self._root / "consumequeue",
            self._root / "index",
        )
        self.removals = RemovalFile(self._root)
        self.retention = RetentionTask(
            settings,
            clock,
            self.log,
            self.queues_table,
            self.index,
            self._set_disk_full,
            more_hours=self.more_reserved_hours,
        )
        self.loop: asyncio.AbstractEventLoop | None = None
        """Where the store is at work; None before `start`."""
        self._turn_scheduled = False
        self._lock: FileLock | None = None
        self._refusal: str | None = "the store is not loaded"
        self._stopped: str | None = self._refusal
        self._follows: str | None = None
        self._disk_full = False
        self.damage: str | None = None
        """What is wrong with the log of a replicated store: it takes nothing before that is truncated."""
        self.left_damage: LogDamage | None = None
        """Damage that the start has found, and left as it was."""
        self.closed_cleanly = True
        """Whether the last process closed the store in order; known once it is loaded."""
        self.cache_lost = False
        """Whether the log may lack what was written and not synced; known once it is loaded."""
        self._readable_end = 0 if self._sync else NO_LIMIT
        self._announced_end = NO_LIMIT
        self.body_size_max = settings.max_message_size
        self.batch_size_max = settings.max_message_size + RECORD_EXTRA_BYTES
        self.serves_light_queues = settings.serves_light_queues
        self.light_queues_max = settings.max_lmq_consume_queue_num
        """No further ones are begun by a message that was put aside when there were fewer."""
        self._light_queues_full = False  # whether the log says so
        self.appends_crc = settings.appends_property_crc
        self.properties_size_max = PROPERTIES_BESIDE_CRC_MAX if self.appends_crc else PROPERTIES_SIZE_MAX
        """Bytes of properties that a client may send, the last separator included."""
        self.set_store_host(store_host or Host.from_text(settings.broker_ip1, settings.listen_port))

    def _make_log(self, executor: ThreadPoolExecutor) -> CommitLog:
        """The log, not opened."""
        settings = self._settings
        folder = settings.store_path_commit_log or self._root / "commitlog"
        return CommitLog(folder, settings.mapped_file_size_commit_log, executor)

    def set_store_host(self, host: Host) -> None:
        """Set what records name as their broker; for the time when a port of 0 has become a real one."""
        self.store_host = host
        self._store_host = host.encode()
        self._heads = {
            size: fixed_struct(size, len(self._store_host)).pack for size in (HOST_SIZE_V4, HOST_SIZE_V6)
        }
        # Bytes of a record besides body, properties, and topic with its length.
        self._overhead = {
            size: fixed_struct(size, len(self._store_host)).size + 2 for size in (HOST_SIZE_V4, HOST_SIZE_V6)
        }
        self._host_flags = {
            HOST_SIZE_V4: SysFlag.STORE_HOST_V6 if host.v6 else 0,
            HOST_SIZE_V6: SysFlag.BORN_HOST_V6 | (SysFlag.STORE_HOST_V6 if host.v6 else 0),
        }

    # -- life ---------------------------------------------------------------------------------------------

    def load(self, *, accept_damage: bool = False) -> None:
        """Open the folder and recover it if needed. Blocks; call it before serving.

        StoreUnusable if the folder is in use or of another kind, StoreCorrupt if something that surely was on
        disk is damaged. With `accept_damage` it goes on without what is behind a damage. A store that is
        replicated is opened with the damage instead (`damage`): others may have what it lacks.
        """
        self._check_kind()
        self._root.mkdir(parents=True, exist_ok=True)
        self._lock = lock_store(self._root)
        try:
            self._load(accept_damage)
        except BaseException:
            self._lock.release()
            self._lock = None
            raise
        self._stopped = None
        self._update_refusal()

    def _check_kind(self) -> None:
        check_kind(self._root, self.log.files.folder)

    def _load(self, accept_damage: bool) -> None:
        clean = self.closed_cleanly = not self._abort.exists
        self.checkpoints.file.load()
        if self.checkpoints.file.content.marks is None and not self._settings.accept_unserved_messages:
            check_served(self._root)
        removal = self.removals.load()
        if removal is not None:
            clean = False
            with self.guarding():
                finish_removal(removal, self.paths, self.checkpoints.file, again=True)
        self.log.files.load()
        checkpoint = self.checkpoints.file.content
        marks = checkpoint.marks
        if marks is not None and not clean:
            with self.guarding():
                if lacking := self.log.files.settle(marks.flushed_offset):
                    log.warning("the disk lacked what was in the page cache", bytes=lacking)
        self.queues_table.load()
        missing_from: int | None = None
        same_boot = self._abort.same_boot
        if self.index is not None and (clean or (same_boot and marks is not None)):
            self.index.load()
            if marks is not None and not clean:
                missing_from = self.index.rebuild_from(marks.dispatched_offset)
        elif self.index is not None:
            missing_from = self.index.load(checkpoint.index_msg_timestamp)
        options = RecoveryOptions(
            clean=clean,
            sync_failed=not clean and (removal is not None or not same_boot),
            verify_crc=self._settings.check_crc_on_recover,
            accept_damage=accept_damage,
            leave_damage=self.observer is not None,
        )
        recovery = LogRecovery(
            self.log,
            self.queues_table,
            self.index,
            self.dispatcher,
            checkpoint,
            self._root / DAMAGED_FOLDER,
            options,
        )
        with self.guarding():
            recovery.run(missing_from)
        self.cache_lost = not self.closed_cleanly and (
            not same_boot
            or (recovery.damage is None and marks is not None and self.log.max_offset < marks.written_offset)
        )
        if recovery.damage is None:
            self._abort.write(claims_boot=not self.cache_lost)
        self._note_lost(checkpoint.confirm_phy_offset)
        self.confirmation.load(checkpoint.confirm_phy_offset)
        if recovery.damage is None:
            with self.guarding():
                self.checkpoints.sync_all()
                self.removals.remove()
            if self.observer is None:
                self.loss_noted()
        else:
            self._leave_damage(recovery.damage)
        self.update_readable_end()
        if self.observer is not None:
            self.observer.loaded()

    def loss_noted(self) -> None:
        """That `cache_lost` is on the disk elsewhere, or nobody has to know; blocks; raises OSError."""
        if self.cache_lost and self.left_damage is None:
            self._abort.write(claims_boot=True)

    def _leave_damage(self, damage: LogDamage) -> None:
        """Nothing is written before the damage is truncated, so that the next start finds it again.

        Not even `abort`: a store that was closed in order counts as closed until it is changed.
        """
        log.error("the commit log is damaged", problem=damage.problem, offset=damage.offset)
        self.left_damage, self.damage = damage, damage.problem
        self.checkpoints.sealed = True
        marks = self.checkpoints.file.content.marks
        self.log.flushed_offset = min(marks.flushed_offset, damage.offset) if marks is not None else 0

    def write_removal(self, removal: Removal) -> None:
        """Make sure that a part of the log will be removed; blocks; raises OSError, and then it will not."""
        self.removals.write(removal)
        if self.left_damage is None:
            return
        try:
            self._abort.write(claims_boot=True)  # from here on the store is at work
        except OSError:
            self.removals.remove()
            raise

    def damage_is_truncated(self) -> None:
        """What was damaged is not in the log any more."""
        self.left_damage = self.damage = None
        self.checkpoints.sealed = False

    def _note_lost(self, confirmed: int) -> None:
        """Say it when the log has lost what was confirmed; the group has it, unless all lost it at once."""
        end = self.log.max_offset
        if self.observer is not None and end < confirmed:
            log.error(
                "the log has lost confirmed messages: this replica has to get them from another one",
                end=end,
                confirmed=confirmed,
                lost_bytes=confirmed - end,
            )

    def start(self) -> None:
        """Bind the store to the running event loop: from now on `on_arrival` is called."""
        self.loop = asyncio.get_running_loop()

    async def run(self) -> None:
        """Flush, write checkpoints and delete old files, until cancelled."""
        self.start()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.flusher.run(self._settings.flush_interval_commit_log))
            tasks.create_task(self.checkpoints.run(self._settings.flush_interval_consume_queue))
            tasks.create_task(self.retention.run())

    async def checkpoint(self) -> None:
        """Bring everything to the disk and write the checkpoint, now."""
        await self.checkpoints.write(thorough=True)

    async def close(self, *, cleanly: bool = True) -> None:
        """Refuse further messages, bring everything to the disk, and mark the store as closed in order.

        Without `mark` the next start finds a store that was not closed, as this one did.
        """
        if self._lock is None:
            return
        failed = self.checkpoints.failed
        self._stop("the store is closed")
        if self.observer is not None:
            await self.observer.closing()
        if self.arrivals and self.loop is not None:
            self._end_turn()
        if not failed:
            await self.flusher.flush()
        self.flusher.close()
        await asyncio.sleep(0)  # a flush that outlasted its time-out tells now whether it failed
        self.log.close()
        self.log.files.forget_prepared()
        for queue in self.queues_table:
            queue.files.forget_prepared()
        await self.checkpoints.finish(partial(self._closed, cleanly))
        self._executor.shutdown()
        self._lock.release()
        self._lock = None

    def _closed(self, cleanly: bool) -> None:
        if self.index is not None:
            self.index.close()
        if cleanly:
            self._abort.remove()

    def abandon(self) -> None:
        """Let go of the folder at once, as a crash would: nothing is flushed, and the next start recovers."""
        self._stop("the store was abandoned")
        self.flusher.close()
        self.log.close()
        self._executor.shutdown()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def follow(self, reason: str) -> None:
        """Refuse messages from now on, because a master sends what is to be stored."""
        self._follows = reason
        self._update_refusal()

    def lead(self) -> None:
        """Take messages again."""
        self._follows = None
        self._update_refusal()

    def stop(self, reason: str) -> None:
        """Refuse messages until the process ends: the disk failed, and `abort` claims no boot any more."""
        self._abort.void_boot()
        log.critical("the store takes nothing any more", reason=reason)
        self._disk_failed(reason)

    def _disk_failed(self, reason: str) -> None:
        self.checkpoints.failed = True
        self._stop(reason)

    def _stop(self, reason: str) -> None:
        self._stopped = self._stopped or reason
        self._update_refusal()

    def _set_disk_full(self, full: bool) -> None:
        if full != self._disk_full:
            log.warning("the disk is nearly full" if full else "the disk has room again", refuse=full)
        self._disk_full = full
        self._update_refusal()

    def _update_refusal(self) -> None:
        self._refusal = (
            self._stopped
            or self._follows
            or (
                f"the disk of {self.log.files.folder} is nearly full; delete something or add space"
                if self._disk_full
                else None
            )
        )

    # -- appending ----------------------------------------------------------------------------------------

    def append(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: bytes,
        *,
        flag: int,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
        tags_code: int | None = None,
    ) -> Appended:
        """Store one message; it is in its queue and in the index when this returns, and on disk later.

        `born_host` is 8 or 20 bytes: address and port. `tags_code` replaces what follows from the properties.
        A `__CRC32#` among the properties is left out; if so set, the record gets its own. What was stored
        before CRCs were, and is stored again, may have properties that are too long for one: it gets none.
        StoreRefused if the store cannot take it; then nothing has changed. One function, because calls of its
        parts would cost as much as their work.
        """
        if self._refusal is not None:
            raise StoreRefused(PutStatus.SERVICE_NOT_AVAILABLE, self._refusal)
        queue = self._appended_to.get((topic, queue_id)) or self._open_queue(topic, queue_id)
        if _HASH_SIGN in properties:
            properties = without_property_crc(properties)
        lights: Sequence[ConsumeQueue | QueueTail] = ()
        if _LIGHT in properties:
            properties, lights = self._with_light_queues(topic, properties, sys_flag)
        crc_size = 0
        if self.appends_crc:
            with_end = properties if not properties or properties[-1] == 2 else properties + b"\x02"
            if len(with_end) <= PROPERTIES_BESIDE_CRC_MAX:
                properties, crc_size = with_end, PROPERTY_CRC_SIZE
        host_size = len(born_host)
        body_size = len(body)
        properties_size = len(properties) + crc_size
        if body_size > self.body_size_max or properties_size > PROPERTIES_SIZE_MAX:
            raise self._too_large(body_size, properties_size)
        size = self._overhead[host_size] + body_size + len(queue.topic_field) + properties_size
        if queue.position >= queue.room_end:
            queue.make_room(1)
        commit_log = self.log
        offset = commit_log.max_offset
        if offset + size > commit_log.limit:
            offset = commit_log.make_room(size)
        now = self.now_ms()
        if now < commit_log.store_timestamp:
            now = commit_log.store_timestamp
        counted = not sys_flag & SysFlag.TRANSACTION_PREPARED
        queue_offset = queue.next_offset if counted else 0
        record = b"".join(
            (
                self._heads[host_size](
                    size,
                    queue.magic,
                    crc31(body),
                    queue_id,
                    flag,
                    queue_offset,
                    offset,
                    sys_flag & _NO_HOST_BITS | self._host_flags[host_size],
                    born_timestamp,
                    born_host,
                    now,
                    self._store_host,
                    reconsume_times,
                    prepared_transaction_offset,
                    body_size,
                ),
                body,
                queue.topic_field,
                properties_size.to_bytes(2, "big"),
                properties,
            )
        )
        if crc_size:
            record += property_crc_of(record)
        try:
            commit_log.put(offset, record, now)
        except OSError as error:
            raise self._not_taken(error) from error
        if isinstance(queue, ConsumeQueue):
            code, uniq_key, keys = derived(properties)
            if counted:
                if tags_code is None:
                    tags_code = (
                        code if topic != SCHEDULE_TOPIC else self.dispatcher.tags_code(topic, properties, now)
                    )
                queue.put(offset, size, tags_code)
                if not queue.arrival_pending or queue.arrival_tags != tags_code:
                    self.arrivals.note(queue, tags_code)
            self.dispatcher.put_index_keys(topic, uniq_key, keys, offset, now)
        elif counted:
            queue.next_offset += 1
            queue.last_end = offset + size
        for light in lights:
            if isinstance(light, ConsumeQueue):
                light.put(offset, size, tags_code or 0)
                self.arrivals.note(light, tags_code)
            else:
                light.next_offset += 1
                light.last_end = offset + size
        if not self._turn_scheduled:
            self.turn_soon()
        return Appended(offset, size, queue_offset, now)

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
        """Store several messages of one queue as neighbours, all or none; see `append`."""
        if self._refusal is not None:
            raise StoreRefused(PutStatus.SERVICE_NOT_AVAILABLE, self._refusal)
        if not items:
            raise StoreRefused(PutStatus.MESSAGE_ILLEGAL, "the batch has no messages")
        queue = self._appended_to.get((topic, queue_id)) or self._open_queue(topic, queue_id)
        assert isinstance(queue, ConsumeQueue), "a store that dispatches later has its own way with batches"
        appends_crc = self.appends_crc
        crc_size = PROPERTY_CRC_SIZE if appends_crc else 0
        texts = [text for _, _, text in items]
        if any([_HASH_SIGN in text for text in texts]):
            texts = [without_property_crc(text) if _HASH_SIGN in text else text for text in texts]
        if appends_crc:
            texts = [text if not text or text[-1] == 2 else text + b"\x02" for text in texts]
        if max(map(len, texts)) > self.properties_size_max:
            raise self._too_large(0, PROPERTIES_SIZE_MAX + 1)
        host_size = len(born_host)
        overhead = self._overhead[host_size] + len(queue.topic_field) + crc_size
        sizes = [overhead + len(body) + len(text) for (_, body, _), text in zip(items, texts, strict=True)]
        total = sum(sizes)
        if total > self.batch_size_max:
            raise StoreRefused(
                PutStatus.MESSAGE_ILLEGAL, f"a batch of {total} bytes; {self.batch_size_max} is the limit"
            )
        count = len(items)
        if queue.position + count * UNIT_SIZE > queue.room_end:
            queue.make_room(count)
        commit_log = self.log
        first = commit_log.max_offset
        if first + total > commit_log.limit:
            first = commit_log.make_room(total)
        now = max(self.now_ms(), commit_log.store_timestamp)
        pack_head = self._heads[host_size]
        sys_flag = sys_flag & _NO_HOST_BITS | self._host_flags[host_size]
        store_host, topic_field, magic = self._store_host, queue.topic_field, queue.magic
        queue_offset, offset = queue.next_offset, first
        parts: list[bytes] = []
        units: list[int] = []
        offsets: list[int] = []
        indexed: list[tuple[bytes | None, bytes | None, int]] = []
        each = zip(items, texts, sizes, derived_of_batch(texts), strict=True)
        for (flag, body, _), text, size, (code, uniq_key, keys) in each:
            record = (
                pack_head(
                    size,
                    magic,
                    crc31(body),
                    queue_id,
                    flag,
                    queue_offset,
                    offset,
                    sys_flag,
                    born_timestamp,
                    born_host,
                    now,
                    store_host,
                    reconsume_times,
                    0,
                    len(body),
                ),
                body,
                topic_field,
                _pack_size(len(text) + crc_size),
                text,
            )
            if appends_crc:
                data = b"".join(record)
                parts += (data, property_crc_of(data))
            else:
                parts += record
            units += (offset, size, code)
            offsets.append(offset)
            indexed.append((uniq_key, keys, offset))
            queue_offset += 1
            offset += size
        try:
            commit_log.put(first, b"".join(parts), now)
        except OSError as error:
            raise self._not_taken(error) from error
        result = AppendedBatch(offsets, queue.next_offset, offset, now)
        queue.put_many(units_struct(count).pack(*units), offset)
        codes = units[2::3]
        self.arrivals.note(queue, codes[0] if codes.count(codes[0]) == count else None)
        self.dispatcher.put_index_batch(topic, indexed, now)
        if not self._turn_scheduled:
            self.turn_soon()
        return result

    def append_run(self, messages: Sequence[PlainMessage], born_host: bytes) -> list[Placed] | None:
        """Store messages of one client as neighbours by one call, all or none; see `append`.

        None if one of them needs more than to be written: room for its record or its unit, a queue that is
        new, or a refusal. Then nothing has changed, and each may be given to `append`.
        """
        commit_log, table = self.log, self._table
        if (
            self._refusal is not None or self._appended_to is not table
        ):  # who dispatches later has its own way
            return None
        offset = first = commit_log.max_offset
        limit = commit_log.limit
        now = max(self.now_ms(), commit_log.store_timestamp)
        host_size = len(born_host)
        pack_head, overhead = self._heads[host_size], self._overhead[host_size]
        host_flags, store_host = self._host_flags[host_size], self._store_host
        appends_crc = self.appends_crc
        crc_size = PROPERTY_CRC_SIZE if appends_crc else 0
        properties_max, body_max = self.properties_size_max, self.body_size_max
        parts: list[bytes] = []
        placed: list[Placed] = []
        indexed: list[tuple[str, bytes | None, bytes | None, int, int]] = []
        units_of: dict[ConsumeQueue, list[int]] = {}
        for (
            topic,
            queue_id,
            body,
            properties,
            (code, uniq_key, keys),
            flag,
            sys_flag,
            born_timestamp,
            reconsume_times,
        ) in messages:
            queue = table.get((topic, queue_id))
            if queue is None:
                return None
            units = units_of.get(queue)
            if units is None:
                units = units_of[queue] = []
            before = len(units) // 3
            body_size, topic_field = len(body), queue.topic_field
            properties_size = len(properties) + crc_size
            size = overhead + body_size + len(topic_field) + properties_size
            if (
                offset + size > limit
                or queue.position + (before + 1) * UNIT_SIZE > queue.room_end
                or body_size > body_max
                or len(properties) > properties_max
            ):
                return None
            queue_offset = queue.next_offset + before
            record = (
                pack_head(
                    size,
                    queue.magic,
                    crc31(body),
                    queue_id,
                    flag,
                    queue_offset,
                    offset,
                    sys_flag & _NO_HOST_BITS | host_flags,
                    born_timestamp,
                    born_host,
                    now,
                    store_host,
                    reconsume_times,
                    0,
                    body_size,
                ),
                body,
                topic_field,
                _pack_size(properties_size),
                properties,
            )
            if appends_crc:
                data = b"".join(record)
                parts += (data, property_crc_of(data))
            else:
                parts += record
            units += (offset, size, code)
            if uniq_key is not None or keys is not None:
                indexed.append((topic, uniq_key, keys, offset, now))
            placed.append((offset, size, queue_offset))
            offset += size
        try:
            commit_log.put(first, b"".join(parts), now)
        except OSError as error:
            raise self._not_taken(error) from error
        for queue, units in units_of.items():
            count = len(units) // 3
            queue.put_many(units_struct(count).pack(*units), units[-3] + units[-2])
            codes = units[2::3]
            self.arrivals.note(queue, codes[0] if codes.count(codes[0]) == count else None)
        if indexed:
            self.dispatcher.put_index_run(indexed)
        if not self._turn_scheduled:
            self.turn_soon()
        return placed

    def _with_light_queues(
        self, topic: str, properties: bytes, sys_flag: int
    ) -> tuple[bytes, list[ConsumeQueue | QueueTail]]:
        """The properties with the number that the message gets in each of its light queues; these, with room.

        StoreRefused if the disk has no room; then nothing has changed.
        """
        names: tuple[str, ...] = ()
        if self.serves_light_queues and has_unit(sys_flag):
            names = light_queues.wanted_queues(topic, properties)
            if self.light_queues_with(names) > self.light_queues_max:
                names = self._known_light_queues(topic, names)
        queues = []
        for name in names:
            key = name, light_queues.QUEUE_ID
            queue = self._appended_to.get(key) or self._open_queue(*key)
            if queue.position >= queue.room_end:
                queue.make_room(1)
            queues.append(queue)
        offsets = tuple(queue.next_offset for queue in queues)
        return light_queues.with_offsets(properties, names, offsets), queues

    def _known_light_queues(self, topic: str, names: Sequence[str]) -> tuple[str, ...]:
        """Those that are there, when there are too many; the message is in its topic all the same."""
        known = tuple(name for name in names if name in self.queues_table.light)
        if len(known) < len(names) and not self._light_queues_full:
            self._light_queues_full = True
            log.error(
                "there are too many light queues: messages whose time has come are put into no new ones",
                light_queues_max=self.light_queues_max,
                topic=topic,
            )
        return known

    def _open_queue(self, topic: str, queue_id: int) -> ConsumeQueue | QueueTail:
        """A queue that is new to appends."""
        self._check_queue(topic, queue_id)
        return self.queues_table.open(topic, queue_id)

    @staticmethod
    def _check_queue(topic: str, queue_id: int) -> None:
        size = len(topic.encode())
        if not 0 < size <= TOPIC_SIZE_MAX or "/" in topic or "\0" in topic or topic in (".", ".."):
            raise StoreRefused(PutStatus.MESSAGE_ILLEGAL, f"{topic!r} cannot be the name of a topic")
        if queue_id < 0:
            raise StoreRefused(PutStatus.MESSAGE_ILLEGAL, f"queue id {queue_id} is negative")

    def _too_large(self, body_size: int, properties_size: int) -> StoreRefused:
        if properties_size > PROPERTIES_SIZE_MAX:
            return StoreRefused(
                PutStatus.PROPERTIES_SIZE_EXCEEDED,
                f"more than {self.properties_size_max} bytes of properties; send less",
            )
        return StoreRefused(
            PutStatus.MESSAGE_ILLEGAL, f"a body of {body_size} bytes; maxMessageSize is {self.body_size_max}"
        )

    def _not_taken(self, error: OSError) -> StoreRefused:
        """The disk does not take records though it gave blocks for them: nothing is stored any more."""
        self.stop(f"the disk does not take the commit log: {error}")
        return StoreRefused(PutStatus.SERVICE_NOT_AVAILABLE, self._refusal or "")

    # -- what follows an append -----------------------------------------------------------------------------

    def turn_soon(self) -> None:
        """Have what follows appends done when this turn of the loop ends."""
        if self.loop is not None and not self._turn_scheduled:
            self._turn_scheduled = True
            self.loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        """Announce what has arrived, and with synchronous flushing begin to flush it."""
        self._turn_scheduled = False
        if self._sync:
            if self._follows is None:  # else received bytes may be behind the end
                self.log.files.fill(self.log.max_offset, FILL_BYTES)
            self.flusher.kick()
        if self.observer is not None:
            self.observer.turn_ended()
        if self._readable_end == NO_LIMIT:  # else it is announced when it becomes readable
            self.announce()

    def announce(self) -> None:
        """Call `on_arrival` for each queue that has new readable messages."""
        if self.arrivals:
            self.arrivals.announce(self._readable_end, self.on_arrival or _nobody)

    def update_readable_end(self) -> None:
        """Go by what is confirmed and, with synchronous flushing, on the disk; `announce` does not follow."""
        end = self.confirmation.limit
        self._readable_end = min(end, self.log.flushed_offset) if self._sync else end
        self._announced_end = self._readable_end if self.confirmation.replicated else NO_LIMIT

    def _flushed(self) -> None:
        if self._sync:
            self.update_readable_end()
            self.announce()
        if self.observer is not None:
            self.observer.flushed()

    def catch_up_index(self) -> bool:
        """Index messages that it had no room for; False if there still is none."""
        return self.dispatcher.catch_up_index(self.log)

    def when_flushed(self, end_offset: int, callback: Callable[[bool], None]) -> None:
        """Call `callback(True)` when the log is on disk up to `end_offset`, with False if not in time."""
        self.flusher.when_flushed(end_offset, callback)

    async def flush(self) -> bool:
        """Bring the log to the disk as it is now; False if that failed or lasted over `syncFlushTimeout`."""
        return await self.flusher.flush()

    # -- state --------------------------------------------------------------------------------------------

    @property
    def append_age_ms(self) -> int | None:
        """How long the flush that is on its way has lasted; None without one. Without end when the log is
        damaged, so that controllers do not elect this replica."""
        return self.flusher.age_ms if self.damage is None else DAMAGED_AGE_MS

    @property
    def flushes_synchronously(self) -> bool:
        """Whether `flushDiskType` is SYNC_FLUSH."""
        return self._sync

    def delete_topic(self, topic: str, *, before: int = NO_LIMIT) -> None:
        """Delete the queues of a topic. Its records stay in the log until their files go.

        `before`: only queues without messages at or behind that offset of the log, for a replica that learns
        late that the topic was deleted there. A checkpoint follows soon: a recovery that began before it
        would bring the queues back.
        """
        self.queues_table.remove_topic(topic, before=before)

    def forget_queues(self, topic: str, before: int) -> None:
        """Delete the queues of a topic that have no message at or behind an offset of the log."""
        queues = [self._table[topic, queue_id] for queue_id in self.queues().get(topic, ())]
        old = [queue for queue in queues if queue.last_end <= before]
        if len(old) == len(queues):
            self.delete_topic(topic)
            return
        for queue in old:  # the topic was made again; these queues have nothing of the new one yet
            queue.restart()

    def resting_queues(self, before: int) -> Iterator[tuple[str, dict[int, int]]]:
        """The queues without a message at or behind an offset of the log: the next number, by topic."""
        for topic, queue_ids in self.queues().items():
            ends = {}
            for queue_id in queue_ids:
                queue = self._table.get((topic, queue_id))
                if queue is not None and queue.next_offset and queue.last_end <= before:
                    ends[queue_id] = queue.next_offset
            if ends:
                yield topic, ends

    def begin_queues(self, topic: str, ends: Mapping[int, int]) -> bool:
        """Let queues that nothing is known of go on with these numbers; whether any was one.

        The log has none of their messages any more. Raises `StoreRefused` when the disk is full.
        """
        begun = False
        for queue_id, number in ends.items():
            queue = self.queues_table.open(topic, queue_id)
            if queue.next_offset == 0 < number:
                queue.begin_empty(number)
                begun = True
        return begun

    def light_queues_with(self, names: Iterable[str]) -> int:
        """How many light queues there would be if these were among them."""
        light = self.queues_table.light
        return len(light) + sum(1 for name in names if name not in light)

    def tail(self, topic: str, queue_id: int) -> tuple[int, int]:
        """What was appended to a queue, readable or not: the number of the next message, and the offset
        behind the last one; 0 and 0 for an unknown queue."""
        queue = self._appended_to.get((topic, queue_id)) or self._table.get((topic, queue_id))
        return (queue.next_offset, queue.last_end) if queue is not None else (0, 0)

    @property
    def root(self) -> Path:
        """The folder of the store."""
        return self._root

    @property
    def stopped(self) -> str | None:
        """Why nothing can be stored until the process ends, appended or received; None if all is well."""
        return self._stopped

    @property
    def abandoned(self) -> bool:
        """Whether the store has let go of its folder, or never had it."""
        return self._lock is None

    @property
    def refusal(self) -> str | None:
        """Why messages are refused at the moment; None if they are taken."""
        return self._refusal


def _nobody(topic: str, queue_id: int, next_queue_offset: int, tags_code: int | None) -> None:
    """Nobody waits for messages."""
