"""The message store as replication sees it: it leads, or it takes the bytes of a master (`ReplicaLog`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from brokerset_broker.store import mapping
from brokerset_broker.store.log_recovery import DAMAGED_FOLDER, keep_behind
from brokerset_broker.store.log_sources import LogSources
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.store.observer import StoreObserver
from brokerset_broker.store.received_bytes import ReceivedBytes
from brokerset_broker.store.receiving import ReceivedRecords, Step
from brokerset_broker.store.recovery import scan
from brokerset_broker.store.removal import Removal, finish_removal
from brokerset_broker.store.replica_log import LogSource, ReplicaLog, ReplicaLogFailed
from brokerset_broker.store.search import store_time_at
from brokerset_broker.store.segments import MappedFile, file_name
from brokerset_formats.records import Blank, RecordHead, RecordProblem, check_record

log = structlog.get_logger(__name__)

FOLLOWING = "this broker is a slave at the moment: its master sends what is to be stored"

ROOM_RETRY_S = 1.0
"""How long dispatching waits for space on the disk before it tries again."""

GATHER_S = 0.005
"""How long few received bytes wait for more before they are dispatched: a step, and telling everybody of it,
costs what twenty records do."""

GATHER_BYTES_MAX = 64 * 1024
"""So many bytes do not wait."""

QUEUES_PER_TURN = 32
"""Queues that are truncated before other work gets a turn."""


class StoreReplicaLog(ReplicaLog, StoreObserver):
    """`ReplicaLog` over a `MessageStore`. Make it before the store is loaded, or when nothing uses it yet.

    Between `max_offset` and `received_end` are bytes that no reader, flush or checkpoint knows of. They are
    dispatched in slices, in turns of the loop, so that receiving and acknowledging go on meanwhile.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._log = store.log
        self._records = ReceivedRecords(store.log, store.queues_table, store.dispatcher, store.arrivals)
        self._bytes = ReceivedBytes(store.log)
        self._sources = LogSources(store.log)
        self._following = False
        self._received_end = 0
        self._failure: str | None = None
        self._no_room: str | None = None
        self._scheduled: asyncio.Handle | None = None
        self._gathering = False
        """Whether what is scheduled waits for more bytes."""
        self._changing = False
        self._change: asyncio.Task[Any] | None = None
        self._on_confirmed: list[Callable[[int], None]] = []
        self._on_appended: list[Callable[[int], None]] = []
        self._on_acknowledged: list[Callable[[], None]] = []
        self._reported_confirmed = 0
        self._reported_flushed = 0
        self._telling = False
        self._advancing = False
        store.confirmation.replicated = True
        store.observer = self
        store.retention.after_delete = self.files_deleted
        self.loaded()

    # -- state --------------------------------------------------------------------------------------------

    @property
    def min_offset(self) -> int:
        return self._log.min_offset

    @property
    def max_offset(self) -> int:
        return self._log.max_offset

    @property
    def received_end(self) -> int:
        """End of the bytes that are there; damage that a start has found is not there."""
        if not self._following or self._store.left_damage is not None:
            return self._log.max_offset
        return self._received_end

    @property
    def acknowledged_end(self) -> int:
        """What a slave may acknowledge; nothing behind a record that is wrong."""
        if self._store.flushes_synchronously:
            return min(self._log.flushed_offset, self._log.max_offset)
        return self.received_end if self._failure is None else self._log.max_offset

    @property
    def confirmed_offset(self) -> int:
        return self._store.confirmation.offset

    @property
    def segment_bytes(self) -> int:
        return self._log.files.segment_bytes

    @property
    def following(self) -> bool:
        """Whether it takes bytes instead of appends."""
        return self._following

    @property
    def confirms_appends(self) -> bool:
        """Whether appends are confirmed at once, because no other replica is in sync; only while it leads."""
        return self._store.confirmation.appends

    def confirm_appends(self, on: bool) -> None:
        assert not (on and self._following), "a log that follows learns from its master what is confirmed"
        self._store.confirmation.appends = on
        self._confirmation_moved()

    def confirm(self, offset: int, *, partial: bool = False) -> None:
        self._store.confirmation.confirm(offset, partial=partial)
        if not self._gathering or self.received_end == self._log.max_offset:
            self._advance()  # else it counts when what is gathered has been dispatched, in a moment

    def on_confirmed(self, listener: Callable[[int], None]) -> None:
        self._on_confirmed.append(listener)

    def on_acknowledged(self, listener: Callable[[], None]) -> None:
        """Have `listener` called when more may be acknowledged because it is on the disk."""
        self._on_acknowledged.append(listener)

    def failure(self) -> str | None:
        """What is wrong with the log behind `max_offset`: a record that came, or damage of what was there."""
        return self._failure

    def _advance(self) -> None:
        confirmation = self._store.confirmation
        before = confirmation.offset
        if not confirmation.advance() and not self._advancing and self._store.loop is not None:
            self._advancing = True
            self._store.loop.call_soon(self._advance_further)
        if confirmation.offset != before:
            self._confirmation_moved()

    def _advance_further(self) -> None:
        self._advancing = False
        self._advance()

    def _confirmation_moved(self) -> None:
        self._store.update_readable_end()
        self._store.announce()
        self._tell_soon()

    def _tell_soon(self) -> None:
        if self._telling or not self._on_confirmed:
            return
        if self._store.loop is None:
            self._tell()
        else:
            self._telling = True
            self._store.loop.call_soon(self._tell)

    def _tell(self) -> None:
        self._telling = False
        offset = self.confirmed_offset
        if offset != self._reported_confirmed:
            self._reported_confirmed = offset
            for listener in self._on_confirmed:
                listener(offset)

    # -- what the store tells -----------------------------------------------------------------------------

    def loaded(self) -> None:
        """The store is open: what it has is what was received."""
        self._received_end = self._log.max_offset
        damage = self._store.left_damage
        if damage is not None:
            self._received_end, self._failure = damage.files_end, damage.problem
        self._reported_confirmed = self.confirmed_offset
        self._reported_flushed = self._log.flushed_offset
        self._store.update_readable_end()

    def files_deleted(self) -> None:
        """Retention has deleted old files."""
        self._sources.forget_deleted()

    def turn_ended(self) -> None:
        """There were appends: tell who sends them to slaves, before consumers hear of them."""
        for listener in self._on_appended:
            listener(self._log.max_offset)
        if self._store.confirmation.appends:
            self._tell_soon()

    def flushed(self) -> None:
        if self._store.flushes_synchronously and self._log.flushed_offset != self._reported_flushed:
            self._reported_flushed = self._log.flushed_offset
            for listener in self._on_acknowledged:
                listener()

    async def closing(self) -> None:
        """Finish what was begun, and dispatch what was received: it may have been acknowledged."""
        if self._change is not None:
            await asyncio.wait([self._change])
        if self._following:
            try:
                await self._finish()
            except ReplicaLogFailed as failure:
                log.warning("received bytes are left to the next start", reason=str(failure))
        self._sources.close()
        self._bytes.close()

    # -- leading ------------------------------------------------------------------------------------------

    def lead(self) -> None:
        assert not self._changing, "a log that is being truncated cannot lead"
        assert self.received_end == self._log.max_offset, "finish what was received before you lead"
        if self._following:
            self._following = False
            self._bytes.close()
            self._log.begin_at(self._log.max_offset, self._log.store_timestamp)
            self._store.confirmation.forget_targets()
        self._store.lead()

    def on_appended(self, listener: Callable[[int], None]) -> None:
        self._on_appended.append(listener)

    def view(self, offset: int, size: int) -> memoryview:
        file, size = self._part(offset, size)
        if file is None:
            return memoryview(b"")
        position = offset - file.start
        return file.view[position : position + size]

    def source(self, offset: int, size: int) -> LogSource:
        """The same as part of an open file. Raises `ReplicaLogFailed` if there is nothing at `offset`."""
        file, size = self._part(offset, size)
        if file is None:
            raise ReplicaLogFailed(f"the log ends at offset {self._log.max_offset}; nothing is at {offset}")
        try:
            return self._sources.source(file, offset - file.start, size)
        except OSError as error:
            raise ReplicaLogFailed(f"cannot open {file.path}: {error.strerror}") from error

    def _part(self, offset: int, size: int) -> tuple[MappedFile | None, int]:
        """The file that has `offset`, and how many bytes up to `size` there are; no file at the end."""
        end = self._log.max_offset
        if not self._log.min_offset <= offset <= end:
            raise ReplicaLogFailed(
                f"offset {offset} is not in the log, which reaches from {self._log.min_offset} to {end}"
            )
        file = self._log.files.find(offset)
        size = min(size, end - offset, file.end - offset if file is not None else 0)
        return (file, size) if size > 0 else (None, 0)

    # -- following ----------------------------------------------------------------------------------------

    def follow(self) -> None:
        confirmation = self._store.confirmation
        if not self._following:
            self._following = True
            if self._failure is None:
                self._received_end = self._log.max_offset
            self._log.begin_at(self._log.max_offset, self._log.store_timestamp)
            confirmation.appends = False
            self._store.update_readable_end()
        confirmation.forget_targets()
        self._store.follow(FOLLOWING)

    def room(self, size: int) -> memoryview:
        """Writable memory for the next bytes, until `received` or `room` is called. `ReplicaLogFailed`."""
        self._check_following()
        try:
            return self._bytes.room(self._received_end, size)
        except OSError as error:
            raise self._no_space(error) from error

    def _no_space(self, error: OSError) -> ReplicaLogFailed:
        return ReplicaLogFailed(
            f"no room for the commit log in {self._log.files.folder}: {error.strerror}; free some disk space"
        )

    def received(self, size: int) -> None:
        """`size` bytes of what `room` gave are in; whole records among them are dispatched soon.

        Raises `ReplicaLogFailed` if the disk does not take them.
        """
        assert self._following, "bytes are received by a log that follows"
        assert not self._changing, "nothing is received while the log is being truncated"
        try:
            written = self._bytes.write(self._received_end, size)
        except OSError as error:
            raise self._no_space(error) from error
        self._received_end += written
        if written < size:
            raise ReplicaLogFailed(
                f"the disk took {written} of {size} bytes of the log; free some disk space"
            )
        loop = self._store.loop
        if (
            loop is None
            or self._received_end - self._log.max_offset >= GATHER_BYTES_MAX
            or self._store.flushes_synchronously  # only what is dispatched is flushed and acknowledged
        ):
            if self._gathering and self._scheduled is not None:
                self._scheduled.cancel()
                self._scheduled, self._gathering = None, False
            self._schedule()
        elif self._scheduled is None:
            self._gathering = True
            self._scheduled = loop.call_later(GATHER_S, self._slice)

    def _check_following(self) -> None:
        if self._failure is not None:
            raise ReplicaLogFailed(self._failure)
        if not self._following or self._changing:
            raise ReplicaLogFailed("the log does not follow a master at the moment")
        if self._store.stopped is not None:
            raise ReplicaLogFailed(self._store.stopped)

    def _schedule(self, delay_s: float = 0.0) -> None:
        loop = self._store.loop
        if loop is None:
            while self._dispatch():
                pass
        elif self._scheduled is None:
            self._scheduled = (
                loop.call_later(delay_s, self._slice) if delay_s else loop.call_soon(self._slice)
            )

    def _slice(self) -> None:
        self._scheduled, self._gathering = None, False
        if not self._following or self._store.abandoned:
            return
        before = self._log.max_offset
        more = not self._changing and self._dispatch()
        if self._log.max_offset == before:
            self._advance()  # what was confirmed meanwhile
        if more:
            self._schedule()
        elif self._no_room is not None and not self._changing:
            self._schedule(ROOM_RETRY_S)

    def _dispatch(self) -> bool:
        """Dispatch a slice of what was received; False if it is of no use to go on now."""
        if self._failure is not None:
            return False
        before = self._log.max_offset
        step = self._records.step(self._received_end)
        if self._log.max_offset != before:
            self._advance()
            if self._store.flushes_synchronously and self._store.loop is not None:
                self._store.flusher.kick()
        if step is Step.FAILED:
            self._failed(self._records.problem or "a record is wrong")
        elif step is Step.NO_ROOM and self._no_room is None:
            log.error("received messages wait for room in their queues", reason=self._records.problem)
        self._no_room = self._records.problem if step is Step.NO_ROOM else None
        return step is Step.MORE

    def _failed(self, problem: str) -> None:
        """Take nothing more until the log is truncated at `max_offset`, or starts from scratch."""
        self._failure = self._store.damage = problem
        log.error("the log has a record that is wrong", problem=problem, offset=self._log.max_offset)

    async def _dispatch_all(self, end: int) -> None:
        """Dispatch up to `end` at least, as far as that goes, and let others have their turns."""
        while self._log.max_offset < end and self._dispatch():  # noqa: ASYNC110  # it works, it does not wait
            await asyncio.sleep(0)

    async def finish_received(self) -> int:
        if self._following:
            await self._alone(self._finish())
            self._advance()
        return self._log.max_offset

    async def _finish(self) -> None:
        await self._dispatch_all(self._received_end)
        problem = self._failure or self._no_room
        if problem is not None:
            raise ReplicaLogFailed(problem)
        begin, end = self._log.max_offset, self._received_end
        if begin < end:
            file = self._log.files.find(begin)
            assert file is not None, "what was received is in a file"
            try:
                await asyncio.to_thread(self._overwrite, file, begin - file.start, end - file.start)
            except OSError as error:
                raise self._stopped(error) from error
            self._received_end = begin

    # -- removing -----------------------------------------------------------------------------------------

    async def truncate(self, offset: int, *, keep_copy: bool) -> None:
        await self._alone(self._truncate(offset, keep_copy))

    async def begin_at(self, offset: int) -> None:
        if offset % self.segment_bytes:
            raise ReplicaLogFailed(
                f"a log cannot begin at offset {offset}: its files have {self.segment_bytes} bytes"
            )
        await self._alone(self._begin_at(offset))

    async def _alone(self, work: Coroutine[Any, Any, None]) -> None:
        """Do what must not end half-way: whoever waits for it may be cancelled, the work goes on."""
        if self._change is not None:
            work.close()
            raise ReplicaLogFailed("the log is being changed already")
        self._changing = True
        task = self._change = asyncio.ensure_future(work)
        task.add_done_callback(self._changed)
        await asyncio.shield(task)

    def _changed(self, task: asyncio.Task[Any]) -> None:
        self._change = None
        self._changing = False
        if not task.cancelled():
            task.exception()  # whoever waited for it knows; nobody may have
        if self._following and self._log.max_offset < self._received_end:
            self._schedule(ROOM_RETRY_S if self._no_room is not None else 0.0)

    async def _truncate(self, offset: int, keep_copy: bool) -> None:
        store = self._store
        await self._dispatch_all(offset)
        async with store.checkpoints.lock:
            if not self._begins_record(offset):
                await self._find_damage(offset)
                raise ReplicaLogFailed(f"cannot truncate at {offset}: no record begins there")
            end = self._received_end if self._following else self._log.max_offset
            if offset == end and self._failure is None:  # files may be missing from there on
                return
            await store.flusher.pause()
            try:
                removal = Removal(offset, self._log.files.start)
                copy = None
                try:
                    if keep_copy and offset < end:
                        copy = await asyncio.to_thread(self._keep, offset, end)
                    await asyncio.to_thread(store.write_removal, removal)
                except OSError as error:
                    raise ReplicaLogFailed(f"the disk takes no truncation: {error}") from error
                log.warning("truncating the log", offset=offset, end=end, copy=str(copy) if copy else None)
                self._end_at(offset)
                self._log.files.detach(offset)
                await self._remove(removal)
                await self._truncate_queues(offset)
                await self._removed()
            finally:
                store.flusher.resume()

    async def _begin_at(self, offset: int) -> None:
        store = self._store
        async with store.checkpoints.lock:
            await store.flusher.pause()
            try:
                removal = Removal(offset, offset, everything=True)
                try:
                    await asyncio.to_thread(store.write_removal, removal)
                except OSError as error:
                    raise ReplicaLogFailed(
                        f"the disk does not take what a new begin needs: {error}"
                    ) from error
                log.warning("the log starts from scratch", offset=offset, end=self._log.max_offset)
                self._end_at(offset)
                self._log.flushed_offset, self._log.flushed_timestamp = offset, 0
                self._log.files.files = []
                store.queues_table.forget_all()
                if store.index is not None:
                    store.index.forget_all()
                store.dispatcher.truncate(0)
                store.arrivals.clear()
                await self._remove(removal)
                path = self._log.files.folder / file_name(offset)
                self._log.files.files = [MappedFile(path, offset, self.segment_bytes)]
                store.confirmation.load(offset)
                store.update_readable_end()
                await self._removed()
            finally:
                store.flusher.resume()

    def _begins_record(self, offset: int) -> bool:
        """Whether the log can be truncated there. Raises `ReplicaLogFailed` for an unknown offset."""
        low, high = self._log.min_offset, self._log.max_offset
        if not low <= offset <= high:
            raise ReplicaLogFailed(f"cannot truncate at {offset}: the log reaches from {low} to {high}")
        file = self._log.files.find(offset)
        if file is None or offset in (file.start, high):
            return True
        position = offset - file.start
        found = check_record(file.view, position, file.size, verify_crc=False)
        if isinstance(found, RecordHead) and found.offset == offset:
            return True
        return isinstance(found, Blank) and found.size == file.size - position

    async def _find_damage(self, offset: int) -> None:
        """No record begins where one should: if one before it is damaged, the log ends there from now on."""
        file = self._log.files.find(offset)
        assert file is not None, "the log has the offset"
        found = await asyncio.to_thread(_first_wrong, file, offset)
        if found is None:
            return
        end = file.start + found.position
        self._received_end = max(self._received_end, self._log.max_offset)
        self._store.checkpoints.sealed = True
        self._log.begin_at(end, 0)
        self._store.flusher.truncate(end)
        self._store.confirmation.truncate(end)
        self._store.update_readable_end()
        self._failed(
            f"{file.path} at byte {found.position} (offset {end} of the log): {found.reason}; it was found"
            f" because no record begins at offset {offset}"
        )

    def _keep(self, offset: int, end: int) -> object:
        folder = self._store.root / DAMAGED_FOLDER
        return keep_behind(list(self._log.files.files), offset, folder, until=end, replace=False)

    def _end_at(self, offset: int) -> None:
        """From here on nobody reads what is going to be removed."""
        self._log.begin_at(offset, 0)
        self._received_end = offset
        self._failure = self._no_room = None
        self._store.damage_is_truncated()
        self._store.flusher.truncate(offset)
        self._store.confirmation.truncate(offset)
        self._store.update_readable_end()
        self._sources.close()
        self._bytes.close()

    async def _remove(self, removal: Removal) -> None:
        """Change the files. When the disk fails now, only the next start can finish what was begun."""

        files, flushed = self._log.files, self._log.flushed_offset

        def remove() -> None:
            files.forget_prepared()
            with self._store.guarding():
                files.sync(flushed, removal.offset)
                finish_removal(removal, self._store.paths, self._store.checkpoints.file)

        try:
            await asyncio.to_thread(remove)
        except OSError as error:
            raise self._stopped(error) from error
        self._log.flushed_offset = removal.offset

    async def _truncate_queues(self, offset: int) -> None:
        store = self._store
        try:
            newest_ms = 0
            for number, queue in enumerate(store.queues_table):
                if queue.last_end > offset:
                    queue.recover(offset)
                newest_ms = max(newest_ms, store_time_at(self._log, queue, queue.next_offset - 1) or 0)
                if number % QUEUES_PER_TURN == 0:
                    await asyncio.sleep(0)
            if store.index is not None and store.index.end_offset >= offset:
                store.index.truncate(offset)
        except OSError as error:
            raise self._stopped(error) from error
        store.dispatcher.truncate(offset)
        self._log.store_timestamp = self._log.flushed_timestamp = newest_ms

    async def _removed(self) -> None:
        """Everything is as it shall be: bring it to the disk, and only then forget what was to be done."""

        def finish() -> None:
            with self._store.guarding():
                self._store.checkpoints.sync_after_removal()
                self._store.removals.remove()

        try:
            await asyncio.to_thread(finish)
        except OSError as error:
            raise self._stopped(error) from error
        self._reported_flushed = self._log.flushed_offset
        self._reported_confirmed = self.confirmed_offset

    def _overwrite(self, file: MappedFile, begin: int, end: int) -> None:
        """Write zeros over the beginning of a record whose rest did not come, and bring them to the disk.

        A failure is final as any other: the flusher's next sync of this file would not hear of it again.
        """
        file.map[begin:end] = bytes(end - begin)
        with self._store.guarding():
            mapping.sync_range(file.map, begin, end)

    def _stopped(self, error: OSError) -> ReplicaLogFailed:
        reason = f"the disk failed in a truncation: {error}; restart the broker when it works again"
        self._store.stop(reason)
        return ReplicaLogFailed(reason)


def _first_wrong(file: MappedFile, offset: int) -> RecordProblem | None:
    """What ends the records of a file before `offset`; None when there is nothing wrong before it."""
    for found in scan(file.view, file.start, 0, verify_crc=True):
        if isinstance(found, RecordProblem):
            return found
        if isinstance(found, Blank) or found.offset + found.size > offset:
            return None
    return None
