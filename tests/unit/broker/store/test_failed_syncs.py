"""After a failed sync: what can be read is not on the disk, and no start may take it for durable."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from brokerset_broker.store import MessageStore, mapping
from brokerset_broker.store.errors import StoreRefused
from brokerset_broker.store.removal import Removal
from brokerset_formats.records import decode_record
from brokerset_rig.page_cache import PAGE, PageCache

Stores = Any  # the class of conftest.py, which cannot be imported by name

SIZES = {"mapped_file_size_consume_queue": 8_000, "max_hash_slot_num": 2_000, "max_index_num": 3_000}
"""Files of several pages, so that one page can be lost and the next not."""

COUNT = 400


@pytest.fixture(params=[True, False], ids=["direct", "cached"])
def cache(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> PageCache:
    """The page cache below the store's files; one file system has direct input and output, one has not."""
    return PageCache(monkeypatch, direct_io=request.param)


def open_store(stores: Stores, **changes: Any) -> MessageStore:
    store: MessageStore = stores.open(**(SIZES | changes))
    return store


def fill(stores: Stores, store: MessageStore, first: int, count: int) -> None:
    for number in range(first, first + count):
        appended = stores.append(
            store, (b"%d" % number).ljust(100), b"UNIQ_KEY\x01id-%d\x02" % number, queue_id=0
        )
        assert appended.queue_offset == number, "an offset is given twice"
        stores.clock.advance(10)


def check(store: MessageStore, count: int, *, keys: bool = True) -> None:
    """All messages from 0 to `count` are in log, queue and index, once, and nothing else."""
    assert store.queue_max("T", 0) == count
    for number in range(count):
        unit = store.unit("T", 0, number)
        assert unit is not None, number
        record = decode_record(store.read(unit[0], unit[1]) or b"", verify_crc=True)
        assert (record.body.strip(), record.queue_offset) == (b"%d" % number, number)
        found = store.query("T", f"id-{number}", 32, 0, 2**62).records if keys else []
        assert not keys or unit[0] in {decode_record(raw).offset for raw in found}, f"no key of {number}"


def contains(part: str, path: str) -> bool:
    return part in path


async def sync_everything(store: MessageStore) -> None:
    """What the store does each 10 s."""
    await store.checkpoints.write(thorough=True)


def half_synced(stores: Stores) -> MessageStore:
    """A store with `COUNT` messages that are on the disk, and as many that are not yet."""
    store = open_store(stores)
    fill(stores, store, 0, COUNT)
    asyncio.run(sync_everything(store))
    fill(stores, store, COUNT, COUNT)
    return store


@pytest.mark.parametrize("part", ["commitlog", "consumequeue", "index"])
@pytest.mark.parametrize("end", ["killed", "closed"])
@pytest.mark.parametrize("then", ["evict", "lose_power"])
def test_a_restart_on_the_same_boot_makes_durable_what_a_failed_sync_dropped(
    stores: Stores, cache: PageCache, part: str, end: str, then: str
) -> None:
    """Whichever file the disk did not take, and however the process ended: after the next start everything is
    on the disk, and no queue offset is given a second time."""
    store = half_synced(stores)
    cache.fails = lambda path: f"/{part}/" in path
    asyncio.run(sync_everything(store))
    assert cache.failed
    cache.fails = lambda path: False
    with pytest.raises(StoreRefused, match="the disk does not take"):
        stores.append(store)
    asyncio.run(store.close()) if end == "closed" else store.abandon()

    store = open_store(stores)
    fill(stores, store, 2 * COUNT, 10)
    asyncio.run(store.close())
    getattr(cache, then)()

    store = open_store(stores)
    check(store, 2 * COUNT + 10)
    fill(stores, store, 2 * COUNT + 10, 1)


def test_pages_that_are_evicted_before_the_restart_are_made_again(stores: Stores, cache: PageCache) -> None:
    """Queues and index have holes then, and the log has everything: no offset is given a second time."""
    store = half_synced(stores)
    cache.fails = lambda path: "/consumequeue/" in path or "/index/" in path
    asyncio.run(sync_everything(store))
    cache.fails = lambda path: False
    store.abandon()
    cache.evict()

    check(open_store(stores), 2 * COUNT)


@pytest.mark.parametrize("part", ["consumequeue", "index"])
def test_a_failed_sync_is_never_tried_again(stores: Stores, cache: PageCache, part: str) -> None:
    """It would succeed without writing anything, and the checkpoint would say that all is on the disk."""
    store = open_store(stores)
    fill(stores, store, 0, COUNT)
    asyncio.run(sync_everything(store))
    before = store.checkpoints.file.content.marks
    fill(stores, store, COUNT, COUNT)
    cache.fails = lambda path: f"/{part}/" in path
    asyncio.run(sync_everything(store))
    cache.fails = lambda path: False

    asyncio.run(sync_everything(store))
    asyncio.run(store.close())

    assert store.checkpoints.file.content.marks == before
    assert (stores.root / "abort").exists(), "it was not closed in order"


@pytest.mark.parametrize("part", ["commitlog", "consumequeue", "index"])
def test_a_failed_sync_voids_the_boot(stores: Stores, cache: PageCache, part: str) -> None:
    """The next start hears that the page cache is not to be trusted, the one after it does not any more."""
    store = open_store(stores)
    fill(stores, store, 0, 10)
    assert len(abort_lines(stores)) == 2
    assert abort_lines(stores)[1]
    cache.fails = lambda path: f"/{part}/" in path
    asyncio.run(sync_everything(store))
    cache.fails = lambda path: False
    store.abandon()

    assert abort_lines(stores)[1] == ""
    store = open_store(stores)
    assert (store.closed_cleanly, store.cache_lost) == (False, True)
    assert abort_lines(stores)[1]
    store.abandon()
    assert not open_store(stores).cache_lost


def abort_lines(stores: Stores) -> list[str]:
    return Path(stores.root / "abort").read_text().split("\n")[:2]


def test_a_sync_that_fails_at_a_start_voids_the_boot_too(stores: Stores, cache: PageCache) -> None:
    """Such a start does not go on; the next one writes everything once more."""
    store = half_synced(stores)
    store.abandon()
    cache.fails = lambda path: "/consumequeue/" in path
    with pytest.raises(OSError, match="Input/output"):
        open_store(stores)
    cache.fails = lambda path: False
    assert abort_lines(stores)[1] == ""

    store = open_store(stores)
    assert store.cache_lost
    asyncio.run(store.close())
    cache.lose_power()

    check(open_store(stores), 2 * COUNT)


def test_what_the_kernel_could_not_write_unnoticed_is_written_again(stores: Stores, cache: PageCache) -> None:
    """Pages may be lost before anybody syncs, and the process killed before it could hear of it: so every
    start after a kill compares with the disk what is not surely on it. This leaves out the key index."""
    store = half_synced(stores)
    store.abandon()
    cache.write_back_fails_unnoticed()

    store = open_store(stores)
    assert not store.cache_lost
    asyncio.run(store.close())
    cache.lose_power()

    check(open_store(stores), 2 * COUNT, keys=False)


def test_zeros_that_the_kernel_could_not_write_spoil_no_record_in_their_place(
    stores: Stores, cache: PageCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk has zeros there as well, but such a page is not brought to it before it was forgotten."""
    monkeypatch.setattr(mapping, "SETTLE_CHUNK_BYTES", PAGE)  # else they are written again with a record

    async def append_unsynced(store: MessageStore) -> None:
        store.start()
        await store.flusher.pause()
        fill(stores, store, 0, 5)
        await asyncio.sleep(0)

    store = open_store(stores, flush_disk_type="SYNC_FLUSH")
    asyncio.run(append_unsynced(store))
    assert store.log.files.files[0].filled > store.max_offset
    store.abandon()
    cache.write_back_fails_unnoticed()

    store = open_store(stores, flush_disk_type="SYNC_FLUSH")
    fill(stores, store, 5, 200)
    asyncio.run(sync_everything(store))
    store.abandon()
    cache.lose_power()

    check(open_store(stores), 205)


def test_a_log_that_ends_before_what_was_written_has_lost_pages(stores: Stores, cache: PageCache) -> None:
    """Though the boot is the same: the checkpoint told how far the log was in the page cache."""
    store = half_synced(stores)
    asyncio.run(store.checkpoints.write(thorough=False))
    store.abandon()
    cache.write_back_fails_unnoticed()
    cache.evict()

    store = open_store(stores)

    assert store.cache_lost
    check(store, store.queue_max("T", 0))
    assert COUNT <= store.queue_max("T", 0) < 2 * COUNT


def test_what_was_cut_does_not_come_back(stores: Stores, cache: PageCache) -> None:
    """The zeros of a cut whose sync failed can be read afterwards, and the disk still has the old records."""
    store = open_store(stores)
    fill(stores, store, 0, 2 * COUNT)
    unit = store.unit("T", 0, COUNT)
    assert unit is not None
    asyncio.run(sync_everything(store))
    store.removals.write(Removal(unit[0], 0))
    store.abandon()
    for part in ("/commitlog/", "/consumequeue/"):
        cache.fails = partial(contains, part)
        with pytest.raises(OSError, match="Input/output"):
            open_store(stores)
    cache.fails = lambda path: False
    asyncio.run(open_store(stores).close())
    cache.lose_power()

    store = open_store(stores)
    check(store, COUNT)
    asyncio.run(store.close())
    (stores.root / "checkpoint").unlink()
    (stores.root / "abort").touch()
    check(open_store(stores), COUNT)


def test_a_queue_that_lost_its_end_though_the_store_was_closed_gets_it_back(
    stores: Stores, cache: PageCache
) -> None:
    """The end of the log is compared with the queues at every start; a topic that was deleted stays away, and
    one that was made again keeps its new numbers."""
    store = open_store(stores)
    for topic in ("gone", "again"):
        for _ in range(30):
            stores.append(store, topic=topic)
        store.delete_topic(topic)
    stores.append(store, topic="again")
    fill(stores, store, 0, 2 * COUNT)
    asyncio.run(store.close())
    path = stores.root / "consumequeue" / "T" / "0" / f"{8_000:020d}"
    content = path.read_bytes()
    path.write_bytes(content[:2_000].ljust(len(content), b"\0"))

    store = open_store(stores)

    check(store, 2 * COUNT)
    assert (store.queue_max("gone", 0), store.queue_max("again", 0)) == (0, 1)
    fill(stores, store, 2 * COUNT, 1)
