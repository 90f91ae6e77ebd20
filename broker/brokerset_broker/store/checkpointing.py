"""Saying on disk how far the store is on disk: the checkpoint, and the flushes that come before it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import structlog

from brokerset_broker.store import mapping
from brokerset_broker.store.commit_log import CommitLog
from brokerset_broker.store.consume_queues import ConsumeQueues
from brokerset_broker.store.dispatch import Dispatcher
from brokerset_broker.store.errors import StoreCorrupt
from brokerset_broker.store.flush import Flusher
from brokerset_broker.store.index import IndexService
from brokerset_formats.checkpoints import CHECKPOINT_SIZE, StoreCheckpoint, SyncedOffsets, decode_checkpoint
from brokerset_formats.errors import FormatError
from brokerset_runtime.files import sync_folder

log = structlog.get_logger(__name__)

DERIVED_INTERVAL_S = 10.0
"""How often queues and index are brought to the disk.

They can be made again from the log, so this only bounds what a start after a power failure has to read.
More often would cost: index pages are written at random, and the next write to each that was synced is a page
fault.
"""


class CheckpointFile:
    """The file `checkpoint`: read at start, written after each flush."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.content = StoreCheckpoint()

    def load(self) -> None:
        """Read the file; a missing or empty one counts as all zeros. StoreCorrupt if it is too short."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            data = b""
        if data:
            try:
                self.content = decode_checkpoint(data)
            except FormatError as error:
                raise StoreCorrupt(self._path, error.position, error.reason) from error

    def write(self, content: StoreCheckpoint, *, sync: bool = True) -> None:
        """Replace the content in place, and bring it to the disk if `sync`; blocks; raises OSError.

        The file keeps its blocks, so a full disk does not matter. The CRC of our marks shows a torn write.
        What is not
        synced is there after a crash of the process, and after one of the machine an older checkpoint is as
        true.
        """
        is_new = not self._path.exists()
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if os.fstat(descriptor).st_size < CHECKPOINT_SIZE:
                os.ftruncate(descriptor, CHECKPOINT_SIZE)
                mapping.reserve(self._path, 0, CHECKPOINT_SIZE)
            os.pwrite(descriptor, content.encode(), 0)
            if sync or is_new:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if is_new:
            sync_folder(self._path.parent)
        self.content = content


def lowered(content: StoreCheckpoint, offset: int) -> StoreCheckpoint:
    """A checkpoint that claims nothing behind `offset`, because the log is going to be truncated there."""
    marks = content.marks
    if marks is not None:
        marks = SyncedOffsets(
            min(marks.flushed_offset, offset),
            min(marks.dispatched_offset, offset),
            min(marks.written_offset, offset),
        )
    return replace(content, confirm_phy_offset=min(content.confirm_phy_offset, offset), marks=marks)


class Checkpointer:
    """Syncs log, then queues and index, then writes the checkpoint: so it never says too much."""

    def __init__(
        self,
        file: CheckpointFile,
        commit_log: CommitLog,
        queues: ConsumeQueues,
        index: IndexService | None,
        dispatcher: Dispatcher,
        flusher: Flusher,
        on_failure: Callable[[OSError], None],
        confirmed: Callable[[], int | None] = lambda: None,
        guarding: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`confirmed` tells how far all in-sync replicas are; None without replication. `guarding` is entered
        in the thread that syncs, and sees a failure before anybody else."""
        self.file = file
        self._log = commit_log
        self._queues = queues
        self._index = index
        self._dispatcher = dispatcher
        self._flusher = flusher
        self._on_failure = on_failure
        self._confirmed = confirmed
        self._guarding = guarding
        self._synced = (0, 0)
        self.sealed = False
        """Whether the checkpoint stays as it is: the log is damaged, and it tells the next start so."""
        self.failed = False
        """Whether the disk did not take something. This is final: the kernel calls the pages clean now, so a
        second sync would succeed without writing them."""
        self.lock = asyncio.Lock()
        """Held while log, queues, index and checkpoint go to the disk in this order, or are truncated."""

    def sync_all(self) -> None:
        """Bring everything to the disk in this thread: after recovery, and at the end. Raises OSError."""
        begin, end, store_timestamp = (
            self._log.flushed_offset,
            self._log.max_offset,
            self._log.store_timestamp,
        )
        if not begin:
            marks = self.file.content.marks
            begin = min(marks.flushed_offset, end) if marks is not None else self._log.min_offset
        self._log.files.sync(begin, end)
        self._log.flushed_offset, self._log.flushed_timestamp = end, store_timestamp
        self._sync_derived()
        self._synced = (self._complete_end(end), store_timestamp)
        self.file.write(self._content())

    def truncated(self, offset: int) -> None:
        """What is synced of queues and index behind `offset` of the log counts no more."""
        self._synced = (min(self._synced[0], offset), self._synced[1])

    def sync_after_removal(self) -> None:
        """Bring queues, index and checkpoint to the disk in this thread; the log itself is there. OSError."""
        log = self._log
        self._sync_derived()
        self._synced = (self._complete_end(log.flushed_offset), log.flushed_timestamp)
        self.file.write(self._content())

    def _guarded(self, work: Callable[[], None]) -> None:
        with self._guarding():
            work()

    def _sync_derived(self) -> None:
        for queue in self._queues:
            queue.sync()
        if self._index is not None:
            self._index.flush()

    def _complete_end(self, end: int) -> int:
        """`end`, or less if the index lacks messages before it."""
        missing = self._dispatcher.index_missing_from
        return end if missing is None else min(end, missing)

    def _content(self) -> StoreCheckpoint:
        dispatched, store_timestamp = self._synced
        flushed = self._log.flushed_offset
        old = self.file.content
        confirmed = self._confirmed()
        if confirmed is None:
            confirmed = flushed if old.confirm_phy_offset else 0
        return StoreCheckpoint(
            physic_msg_timestamp=self._log.flushed_timestamp,
            logics_msg_timestamp=store_timestamp,
            index_msg_timestamp=self._index.flushed_timestamp if self._index else old.index_msg_timestamp,
            confirm_phy_offset=confirmed,
            marks=SyncedOffsets(flushed, min(dispatched, flushed), self._complete_end(self._log.max_offset)),
        )

    async def finish(self, then: Callable[[], None]) -> None:
        """Bring everything to the disk and do `then`, which says so; not after a failure, nor when sealed."""

        def work() -> None:
            self.sync_all()
            then()

        async with self.lock:
            if not self.failed and not self.sealed:
                await asyncio.to_thread(self._guarded, work)

    async def run(self, interval_ms: int) -> None:
        """Write checkpoints and let the index catch up, until cancelled or the disk fails."""
        loop = asyncio.get_running_loop()
        last = loop.time()
        while not self._flusher.failed and not self.failed:
            await asyncio.sleep(interval_ms / 1000)
            self._dispatcher.catch_up_index(self._log)
            thorough = loop.time() - last >= DERIVED_INTERVAL_S
            if thorough:
                last = loop.time()
            if self._log.flushed_offset > 0:
                await self.write(thorough=thorough)

    async def write(self, *, thorough: bool) -> None:
        """Write the checkpoint if it has changed; `thorough` syncs log, queues and index first."""
        async with self.lock:
            await self._write(thorough=thorough)

    async def _write(self, *, thorough: bool) -> None:
        if self.sealed or self.failed:
            return
        dispatched = (self._log.max_offset, self._log.store_timestamp)
        try:
            thorough = thorough and dispatched[0] != self._synced[0]
            if thorough:
                if not await self._flusher.flush():
                    return
                await asyncio.to_thread(self._guarded, self._sync_derived)
                self._synced = (self._complete_end(dispatched[0]), dispatched[1])
            content = self._content()
            if content != self.file.content:
                await asyncio.to_thread(self._guarded, partial(self.file.write, content, sync=thorough))
        except OSError as error:
            self.failed = True
            log.critical("the disk did not take queues, index or checkpoint", error=str(error))
            self._on_failure(error)
