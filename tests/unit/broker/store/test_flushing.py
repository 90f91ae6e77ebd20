"""Flushing, arrivals, checkpoints, retention: what happens besides appending."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from functools import partial
from typing import Any

import pytest

from brokerset_broker.store import GetStatus, MessageStore, StoreRefused, flush, mapping
from brokerset_broker.store.retention_task import DiskUse, RetentionTask
from brokerset_formats.checkpoints import SyncedOffsets, decode_checkpoint
from brokerset_rig.failing_answers import Answers
from brokerset_rig.waiting import until

Stores = Any  # the class of conftest.py, which cannot be imported by name


def waiter(store: MessageStore, end: int) -> asyncio.Future[bool]:
    future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    store.when_flushed(end, lambda done: None if future.done() else future.set_result(done))
    return future


class SlowDisk:
    """`msync` that waits until it is let go, and may fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self.go = threading.Event()
        self.error: OSError | None = None
        real = mapping.sync_range

        def sync_range(mapped: Any, begin: int, end: int) -> None:
            self.calls += 1
            assert self.go.wait(20)
            if self.error is not None:
                raise self.error
            real(mapped, begin, end)

        monkeypatch.setattr(mapping, "sync_range", sync_range)


async def test_one_flush_answers_many(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody who waits when a flush begins is answered by it; those who come later by the next."""

    store = stores.open()
    disk = SlowDisk(monkeypatch)
    first = [waiter(store, stores.append(store).end) for _ in range(50)]
    await asyncio.sleep(0.01)
    second = [waiter(store, stores.append(store).end) for _ in range(50)]
    await asyncio.sleep(0.01)
    assert store.flushed_offset == 0
    assert not any(future.done() for future in first)

    disk.go.set()

    assert all(await asyncio.gather(*first, *second))
    assert disk.calls == 2
    assert store.flushed_offset == store.max_offset
    assert await waiter(store, store.max_offset)
    await store.close()


def test_a_flushing_thread_ends_when_its_work_is_done() -> None:
    """In the order in which it was told; one that was told nothing was never begun."""

    done: list[int] = []
    thread = flush.SyncThread()
    for number in range(100):
        thread.submit(partial(done.append, number))

    thread.close()

    assert done == list(range(100))
    flush.SyncThread().close()


async def test_a_failed_flush_is_final(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who wait are told, nothing is accepted any more, and no later flush says that it is on disk."""

    store = stores.open()
    disk = SlowDisk(monkeypatch)
    disk.error = OSError(errno.EIO, "Input/output error")
    disk.go.set()
    appended = stores.append(store)

    assert not await waiter(store, appended.end)

    disk.error = None
    with pytest.raises(StoreRefused, match="does not take the commit log"):
        stores.append(store)
    assert not await store.flush()
    assert store.flushed_offset == 0
    assert store.get("T", 0, 0, 1, 100).status is GetStatus.FOUND
    await store.close()
    assert (stores.root / "abort").exists()


async def test_an_answer_that_fails_ends_no_other(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others hear what became of theirs, in time, too late or never, and the next flush begins."""

    store, answers = stores.open(sync_flush_timeout=20), Answers()

    def wait_for(end: int) -> None:
        store.when_flushed(end, answers.fail)
        store.when_flushed(end, answers.take)

    wait_for(stores.append(store).end)
    await until(lambda: answers.given == [True])
    disk = SlowDisk(monkeypatch)
    wait_for(stores.append(store).end)
    await until(lambda: answers.given == [True, False])
    wait_for(stores.append(store).end)
    store.flusher.truncate(0)
    assert answers.given == [True, False, False]
    disk.error = OSError(errno.EIO, "Input/output error")
    wait_for(stores.append(store).end)
    disk.go.set()
    await until(lambda: store.flusher.failed)

    assert answers.given == [True, False, False, False]
    assert answers.reported == [f"at {done}" for done in answers.given]
    await store.close()


async def test_a_slow_flush_is_told(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """After `syncFlushTimeout` a waiter hears False; the flush goes on."""

    store = stores.open(sync_flush_timeout=20)
    disk = SlowDisk(monkeypatch)

    assert not await waiter(store, stores.append(store).end)

    disk.go.set()
    async with asyncio.timeout(10):
        while not await store.flush():  # this one may take longer than the time-out, too
            pass
    await store.close()


async def test_arrivals_are_announced_once_a_turn(stores: Stores) -> None:
    """Each queue that got messages is named once, with the next number; different tags become None."""

    arrived: list[tuple[str, int, int, int | None]] = []
    store = stores.open()
    store.on_arrival = lambda *arrival: arrived.append(arrival)
    store.start()
    for _ in range(3):
        stores.append(store, tags_code=5)
    stores.append(store, queue_id=1, tags_code=5)
    stores.append(store, queue_id=1, tags_code=6)
    assert arrived == []

    await asyncio.sleep(0)

    assert arrived == [("T", 0, 3, 5), ("T", 1, 2, None)]
    await asyncio.sleep(0)
    assert len(arrived) == 2
    stores.append(store, tags_code=7)
    await asyncio.sleep(0)
    assert arrived[2:] == [("T", 0, 4, 7)]
    await store.close()


async def test_synchronous_flushing_shows_what_is_on_disk(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With SYNC_FLUSH a message is readable, and announced, when it is on disk."""

    arrived: list[int] = []
    store = stores.open(flush_disk_type="SYNC_FLUSH")
    store.on_arrival = lambda topic, queue_id, following, tags: arrived.append(following)
    store.start()
    disk = SlowDisk(monkeypatch)
    stores.append(store)
    await asyncio.sleep(0.01)
    stores.append(store)
    await asyncio.sleep(0.01)
    assert store.get("T", 0, 0, 9, 999).status is GetStatus.NO_MESSAGE_IN_QUEUE
    assert store.queue_max("T", 0) == 2
    at_the_end = store.get("T", 0, 2, 9, 999)
    assert (at_the_end.status, at_the_end.next_queue_offset) == (GetStatus.OFFSET_OVERFLOW_ONE, 2)
    assert store.get("T", 0, 3, 9, 999).status is GetStatus.NO_MESSAGE_IN_QUEUE
    arrived.clear()

    disk.go.set()
    await until(lambda: store.flushed_offset == store.max_offset)

    assert arrived[-1] == 2
    assert store.get("T", 0, 0, 9, 999).message_count == 2
    await store.close()


@pytest.mark.parametrize(("kind", "ahead"), [("SYNC_FLUSH", True), ("ASYNC_FLUSH", False)])
async def test_zeros_are_ahead_of_a_log_that_is_synced_often(stores: Stores, kind: str, ahead: bool) -> None:
    """With SYNC_FLUSH the blocks behind the end have been written; without it that would cost more."""

    store = stores.open(flush_disk_type=kind)
    store.start()

    stores.append(store)
    await asyncio.sleep(0)

    assert (store.log.files.files[0].filled > store.max_offset) is ahead
    await store.close()


async def test_no_zeros_are_written_over_what_is_received(stores: Stores) -> None:
    """A log that follows has bytes behind its end, even in a turn in which it has appended."""

    store = stores.open(flush_disk_type="SYNC_FLUSH")
    store.start()
    stores.append(store)
    store.follow("it follows")
    file = store.log.files.files[0]
    file.map[8192:8200] = b"received"

    await asyncio.sleep(0)

    assert file.map[8192:8200] == b"received"
    file.map[8192:8200] = bytes(8)
    await store.close()


async def test_everything_is_flushed_in_time(stores: Stores) -> None:
    """A running store brings messages to the disk without being asked, then says so in the checkpoint."""

    store = stores.open(flush_interval_commit_log=5, flush_interval_consume_queue=5)
    task = asyncio.create_task(store.run())
    for _ in range(30):
        stores.append(store, b"x" * 1000, b"KEYS\x01k\x02")
    path = stores.root / "checkpoint"
    wanted = SyncedOffsets(store.max_offset, store.max_offset, store.max_offset)

    await until(lambda: decode_checkpoint(path.read_bytes()).marks == wanted)

    assert decode_checkpoint(path.read_bytes()).physic_msg_timestamp == stores.clock.now_ms()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await store.close()


def retention(stores: Stores, store: MessageStore, *, used: int = 10, **changes: Any) -> RetentionTask:
    return RetentionTask(
        stores.settings(delete_commit_log_files_interval=0, **changes),
        stores.clock,
        store.log,
        store.queues_table,
        store.index,
        store._set_disk_full,
        measure=lambda path: DiskUse(used, 100 - used),
    )


def fill(stores: Stores, store: MessageStore, files: int) -> None:
    while len(store.log.files.files) < files or store.max_offset % 65_536 < 30_000:
        stores.append(store, b"x" * 15_000, b"KEYS\x01k\x02")
        stores.clock.advance(1)


def touch(stores: Stores, store: MessageStore, count: int, age_hours: float) -> None:
    now = stores.clock.now_ms() / 1000
    for number, file in enumerate(store.log.files.files):
        age = age_hours if number < count else 0
        os.utime(file.path, (now, now - age * 3600))


async def test_old_files_are_deleted(stores: Stores) -> None:
    """Expired files go at the hour of deletion, with what pointed to them; the rest stays."""

    store = stores.open()
    fill(stores, store, 5)
    touch(stores, store, 3, 73)
    hour = time.localtime(stores.clock.now_ms() / 1000).tm_hour
    count = store.queue_max("T", 0)

    assert await retention(stores, store, delete_when=f"{(hour + 5) % 24:02d}").check() == 0
    assert await retention(stores, store, delete_when=f"{hour:02d}").check() == 3

    assert store.min_offset == 3 * 65_536
    assert not (stores.root / "commitlog" / f"{0:020d}").exists()
    assert store.queue_max("T", 0) == count
    unit = store.unit("T", 0, store.queue_min("T", 0))
    assert unit is not None
    assert unit[0] == store.min_offset
    assert store.get("T", 0, 0, 1, 100).status is GetStatus.OFFSET_TOO_SMALL
    await store.close()
    again = stores.open()
    assert (again.min_offset, again.queue_min("T", 0)) == (3 * 65_536, store.queue_min("T", 0))
    stores.append(again)


async def test_an_administrator_can_ask_for_deletion(stores: Stores) -> None:
    """Once, at any hour; what has not expired stays."""

    store = stores.open()
    fill(stores, store, 3)
    touch(stores, store, 1, 73)
    hour = time.localtime(stores.clock.now_ms() / 1000).tm_hour
    task = retention(stores, store, delete_when=f"{(hour + 5) % 24:02d}")

    task.request()

    assert await task.check() == 1
    assert await task.check() == 0


async def test_a_nearly_full_disk(stores: Stores) -> None:
    """Above the warning level messages are refused and the oldest files go; below it they are taken again."""

    store = stores.open()
    fill(stores, store, 3)
    touch(stores, store, 0, 0)

    assert await retention(stores, store, used=95).check() > 0
    with pytest.raises(StoreRefused, match="nearly full"):
        stores.append(store)
    assert len(store.log.files.files) >= 1

    await retention(stores, store, used=50).check()
    stores.append(store)
