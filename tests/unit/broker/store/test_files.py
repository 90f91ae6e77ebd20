"""Files of fixed size, consume queue files, and which folders are refused."""

from __future__ import annotations

import asyncio
import errno
import mmap
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from brokerset_broker.store import StoreCorrupt, mapping
from brokerset_broker.store.checkpointing import CheckpointFile
from brokerset_broker.store.consume_queue import NO_LIMIT, ConsumeQueue
from brokerset_broker.store.folder import StoreUnusable
from brokerset_broker.store.segments import MappedFile, SegmentSequence
from brokerset_formats.queue_units import BLANK_UNIT, UNIT, UNIT_SIZE, QueueUnit
from brokerset_rig.held_file import held_by_another_process

Stores = Any  # the class of conftest.py, which cannot be imported by name

SIZE = 8192


def sequence(folder: Path, *names: str) -> SegmentSequence:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_bytes(bytes(SIZE))
    files = SegmentSequence(folder, SIZE)
    files.load()
    return files


def test_files_are_found_by_offset(tmp_path: Path) -> None:
    """Names tell the offsets; a sequence may begin at any multiple of the size."""
    files = sequence(tmp_path / "log", f"{SIZE:020d}", f"{2 * SIZE:020d}")

    assert (files.start, files.end) == (SIZE, 3 * SIZE)
    assert [files.find(offset) for offset in (0, SIZE - 1, 3 * SIZE)] == [None, None, None]
    assert files.find(SIZE) is files.find(2 * SIZE - 1) is files.files[0]
    assert files.find(2 * SIZE) is files.files[1]


def test_a_missing_folder_is_an_empty_sequence(tmp_path: Path) -> None:
    """Nothing is made before something is written."""
    files = SegmentSequence(tmp_path / "none", SIZE)
    files.load()

    assert (files.files, files.start, files.end) == ([], 0, 0)
    assert not (tmp_path / "none").exists()


def test_an_empty_last_file_is_deleted(tmp_path: Path) -> None:
    """A crash while a file was made leaves one without bytes."""
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / f"{SIZE:020d}").touch()

    files = sequence(tmp_path / "log", f"{0:020d}")

    assert len(files.files) == 1
    assert len(list((tmp_path / "log").iterdir())) == 1


@pytest.mark.parametrize(
    ("name", "size", "reason"),
    [
        (f"{SIZE:020d}", SIZE - 1, f"has {SIZE - 1} bytes instead of {SIZE}"),
        (f"{2 * SIZE:020d}", SIZE, "gap"),
        (f"{SIZE + 1:020d}", SIZE, "multiple"),
        ("notes.txt", SIZE, "no file of a message store"),
    ],
)
def test_files_that_do_not_belong_are_named(tmp_path: Path, name: str, size: int, reason: str) -> None:
    """A wrong length, a gap or a foreign file stops the start, as in RocketMQ."""
    sequence(tmp_path / "log", f"{0:020d}")
    (tmp_path / "log" / name).write_bytes(b"x" * size)

    with pytest.raises(StoreCorrupt, match=reason) as error:
        sequence(tmp_path / "log")

    assert error.value.path.name == name


def test_the_next_file_can_be_made_ahead(tmp_path: Path) -> None:
    """It is used when it is needed, or deleted when it is not."""
    files = sequence(tmp_path / "log", f"{0:020d}")
    with ThreadPoolExecutor(1) as executor:
        files.prepare_next(executor)
        assert files.add().start == SIZE
        files.prepare_next(executor)
        executor.submit(lambda: None).result()
        assert (tmp_path / "log" / f"{2 * SIZE:020d}").stat().st_size == SIZE

        files.forget_prepared()

    assert not (tmp_path / "log" / f"{2 * SIZE:020d}").exists()
    assert files.end == 2 * SIZE


def test_a_file_whose_making_ahead_has_not_begun_is_made_at_once(tmp_path: Path) -> None:
    """Nobody waits for what else the thread has to do; and it does not make the file a second time."""
    files = sequence(tmp_path / "log", f"{0:020d}")
    busy = threading.Event()
    with ThreadPoolExecutor(1) as executor:
        executor.submit(busy.wait)
        files.prepare_next(executor)
        assert files.add().start == SIZE
        files.prepare_next(executor)
        files.forget_prepared()
        busy.set()

    assert sorted(int(path.name) for path in (tmp_path / "log").iterdir()) == [0, SIZE]


def test_a_file_made_ahead_that_cannot_be_mapped_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may have so many mappings only; the next call makes the file, or says why not."""

    def refused(descriptor: int, size: int) -> None:
        raise OSError(errno.ENOMEM, "no more mappings")

    files = sequence(tmp_path / "log", f"{0:020d}")
    monkeypatch.setattr(mmap, "mmap", refused)
    with ThreadPoolExecutor(1) as executor:
        files.prepare_next(executor)

    assert [int(path.name) for path in (tmp_path / "log").iterdir()] == [0]


def test_zeros_are_written_ahead_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the next page on, never over the end of the file, and again only when they are used up."""

    written: list[tuple[int, int]] = []
    real = os.pwrite

    def pwrite(descriptor: int, data: Any, position: int) -> int:
        written.append((position, len(data)))
        return real(descriptor, data, position)

    monkeypatch.setattr(os, "pwrite", pwrite)
    page = mmap.PAGESIZE
    file = MappedFile.create(tmp_path / f"{0:020d}", 0, 4 * page, 4 * page)
    file.map[:10] = b"x" * 10

    for position in (10, 11, 3 * page, 3 * page + 1, 4 * page):
        file.fill(position, 2 * page)

    assert written == [(page, 2 * page)]
    assert file.map[:] == b"x" * 10 + bytes(4 * page - 10)


def test_a_sync_has_the_zeros_ahead_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the first sync of each of their blocks would change the file system's journal all the same."""

    synced: list[tuple[int, int]] = []
    monkeypatch.setattr(mapping, "sync_range", lambda mapped, begin, end: synced.append((begin, end)))
    page = mmap.PAGESIZE
    file = MappedFile.create(tmp_path / f"{0:020d}", 0, 4 * page, 4 * page)
    assert len(file.map) == 4 * page
    file.fill(10, page)

    file.sync(0, 10)
    file.sync(10, 3 * page)

    assert synced == [(0, 2 * page), (10, 3 * page)]


def test_a_disk_that_takes_no_zeros_gets_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They only save time: whether the disk takes the log is for its sync to say."""

    calls: list[int] = []

    def failing(descriptor: int, data: Any, position: int) -> int:
        calls.append(position)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pwrite", failing)
    page = mmap.PAGESIZE
    file = MappedFile.create(tmp_path / f"{0:020d}", 0, 4 * page, 4 * page)

    file.fill(10, page)
    file.fill(3 * page, page)

    assert calls == [page]


def test_a_file_that_cannot_be_made_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk shows when a file is made, not when it is written."""

    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "posix_fallocate", full)

    with pytest.raises(OSError, match="full"):
        MappedFile.create(tmp_path / "file", 0, SIZE, SIZE)

    assert list(tmp_path.iterdir()) == []


def test_cutting_clears_what_is_behind(tmp_path: Path) -> None:
    """Later files go, and the rest of the last one becomes zeros; what was handed out stays readable."""
    files = sequence(tmp_path / "log", f"{0:020d}", f"{SIZE:020d}")
    for file in files.files:
        file.map[:] = b"x" * SIZE
    view = files.files[1].view[:10]

    removed = files.truncate(5000)
    files.files[0].clear(5000)

    assert [file.start for file in removed] == [SIZE]
    assert bytes(view) == b"x" * 10
    assert (tmp_path / "log" / f"{0:020d}").read_bytes() == b"x" * 5000 + bytes(SIZE - 5000)
    assert not (tmp_path / "log" / f"{SIZE:020d}").exists()


def queue(folder: Path) -> ConsumeQueue:
    queue = ConsumeQueue(folder, "T", 0, 200)
    queue.files.load()
    queue.recover()
    return queue


def test_a_queue_that_does_not_begin_at_zero(tmp_path: Path) -> None:
    """The file before the first message is filled with place holders, byte for byte as RocketMQ does."""
    written = queue(tmp_path / "q")
    written.begin_at(13)
    written.put(5000, 100, -1)

    (path,) = (tmp_path / "q").iterdir()
    assert path.name == f"{200:020d}"
    assert path.read_bytes() == BLANK_UNIT * 3 + QueueUnit(5000, 100, -1).encode() + bytes(120)
    read = queue(tmp_path / "q")
    read.correct_min_offset(0)
    assert (read.min_offset, read.next_offset, read.last_end) == (13, 14, 5100)


def test_lost_messages_keep_their_numbers(tmp_path: Path) -> None:
    """Units without a message fill a gap, over files, and searches still work."""
    written = queue(tmp_path / "q")
    written.make_room(1)
    written.put(0, 100, 7)
    written.skip_to(15, 500)
    written.make_room(1)
    written.put(500, 100, 7)

    read = queue(tmp_path / "q")
    read.correct_min_offset(400)

    assert (read.next_offset, read.last_end, read.min_offset) == (16, 600, 1)
    assert read.unit(15) == (500, 100, 7)
    assert [read.end_below(offset) for offset in (0, 99, 100, 499, 599, 600)] == [1, 1, 1, 1, 15, 16]


def test_the_readable_end_is_found_near_the_end_and_far_from_it(tmp_path: Path) -> None:
    """Over files, among the last units and before them, with place holders between."""
    written = queue(tmp_path / "q")
    for number in range(30):
        written.make_room(1)
        written.put(number * 100, 100, 7)
    written.skip_to(33, 3_000)
    for number in range(33, 60):
        written.make_room(1)
        written.put(number * 100 - 300, 100, 7)

    for end in range(0, 5_700, 50):
        behind = [
            number
            for number in range(60)
            if (unit := written.unit(number))[0] + (0 if 30 <= number < 33 else unit[1]) > end
        ]
        assert written.end_below(end) == (behind[0] if behind else 60)


def test_a_queue_whose_messages_are_all_deleted_keeps_its_number(tmp_path: Path) -> None:
    """Minimum and maximum meet, so that numbers are never given twice."""
    written = queue(tmp_path / "q")
    for number in range(12):
        written.make_room(1)
        written.put(number * 100, 100, 0)

    written.correct_min_offset(600)
    assert written.min_offset == 6
    written.correct_min_offset(5000)

    assert (written.min_offset, written.next_offset) == (12, 12)
    assert written.last_unit_offsets() == [900, 1100]


def test_units_behind_the_log_are_cut(tmp_path: Path) -> None:
    """What follows is cleared, whatever it is."""
    written = queue(tmp_path / "q")
    for number in range(25):
        written.make_room(1)
        written.put(number * 100, 100, 0)

    written.recover(700)

    assert (written.next_offset, written.last_end) == (7, 700)
    (path,) = (tmp_path / "q").iterdir()
    assert path.read_bytes()[140:] == bytes(60)
    written.make_room(1)
    written.put(700, 50, 0)
    assert queue(tmp_path / "q").last_end == 750


def test_many_units_over_files(tmp_path: Path) -> None:
    """A batch of units is the same as one after the other."""
    many, single = queue(tmp_path / "many"), queue(tmp_path / "single")
    for start in range(0, 60, 20):
        many.make_room(20)
        many.put_many(
            b"".join(QueueUnit(n * 10, 10, n).encode() for n in range(start, start + 20)), (start + 20) * 10
        )
    for number in range(60):
        single.make_room(1)
        single.put(number * 10, 10, number)

    for path in sorted((tmp_path / "single").iterdir()):
        assert path.read_bytes() == (tmp_path / "many" / path.name).read_bytes()
    assert many.next_offset == single.next_offset == 60
    assert many.last_end == single.last_end


def test_a_long_queue_takes_its_blocks_in_growing_steps_and_a_short_one_takes_few(tmp_path: Path) -> None:
    """300,000 units ask 20 times, not 92; the next file is made when at most 80 % of them are written."""
    with ThreadPoolExecutor(1) as executor:
        long = ConsumeQueue(tmp_path / "q", "T", 0, 300_000 * UNIT_SIZE, executor)
        rooms: list[int] = []
        prepared: list[int] = []
        while long.next_offset < 300_000:
            long.make_room(1)
            rooms.append(long.room_end)
            if long.files._coming is not None:
                prepared.append(long.position)
            units = (long.room_end - long.position) // UNIT_SIZE
            long.put_many(bytes(units * UNIT_SIZE), 0)
        long.files.forget_prepared()

    assert rooms[0] <= 64 * 1024
    assert len(rooms) <= 20
    assert prepared[0] <= 0.8 * rooms[-1]


def advised(path: Path, flag: str) -> bool:
    """Whether the mapping of a file has a flag, by the name that the kernel shows."""
    mappings = Path("/proc/self/smaps").read_text().split(str(path), 1)[1]
    return flag in mappings.partition("VmFlags:")[2].partition("\n")[0].split()


def test_the_kernel_reads_single_pages_of_queues_and_index_and_reads_the_log_ahead(stores: Stores) -> None:
    """A first write to a new page fills the page cache with neither the rest of the file, nor a slot's."""
    store = stores.open()
    stores.append(store, properties=b"KEYS\x01k\x02")

    (index,) = (stores.root / "index").iterdir()
    assert advised(stores.root / "consumequeue" / "T" / "0" / f"{0:020d}", "rr")
    assert advised(index, "rr")
    assert not advised(stores.root / "commitlog" / f"{0:020d}", "rr")


def test_a_locked_store_is_refused(stores: Stores) -> None:
    """A store that another process has open is named, with that process."""
    stores.root.mkdir()
    with held_by_another_process(stores.root / "lock") as holder:
        with pytest.raises(StoreUnusable, match=f"process {holder} has this store open"):
            stores.open()

        assert sorted(path.name for path in stores.root.iterdir()) == ["lock"]
    stores.open()


@pytest.mark.parametrize("name", ["dledger-n0", "batchconsumequeue/T", "consumequeue_ext/T"])
def test_stores_of_other_kinds_are_refused(stores: Stores, name: str) -> None:
    """Nothing is changed in a store that cannot be served."""
    (stores.root / name).mkdir(parents=True)

    with pytest.raises(StoreUnusable, match=name):
        stores.open()

    assert sorted(path.name for path in stores.root.iterdir()) == [name.split("/")[0]]


def test_a_java_store_with_undelivered_messages_is_refused_unless_accepted(stores: Stores) -> None:
    """What is pending is named and counted, and nothing is changed; a store that we opened is not asked."""
    store = stores.open()
    for _ in range(3):
        stores.append(store, topic="rmq_sys_REVIVE_LOG_c")
    asyncio.run(store.close())
    checkpoint = CheckpointFile(stores.root / "checkpoint")
    checkpoint.load()
    checkpoint.write(replace(checkpoint.content, marks=None))

    for _ in range(2):
        with pytest.raises(StoreUnusable, match=r"left 3 check points .*acceptUnservedMessages=true"):
            stores.open()
        assert not (stores.root / "abort").exists()
    asyncio.run(stores.open(accept_unserved_messages=True).close())

    stores.open()


def test_several_paths_are_refused(stores: Stores, tmp_path: Path) -> None:
    """`storePathCommitLog` with several folders is not supported."""
    with pytest.raises(StoreUnusable, match="several paths"):
        stores.open(store_path_commit_log=Path(f"{tmp_path}/a,{tmp_path}/b"))


def test_a_foreign_queue_is_named(stores: Stores) -> None:
    """A folder that is no queue stops the start."""
    (stores.root / "consumequeue" / "T" / "mine").mkdir(parents=True)

    with pytest.raises(StoreCorrupt, match="mine: is no queue"):
        stores.open()


def test_a_queue_with_garbage_behind_its_end_is_read(tmp_path: Path) -> None:
    """A crash may leave a unit whose record would end behind all numbers; recovery drops it later."""
    written = queue(tmp_path / "q")
    written.make_room(1)
    written.put(0, 100, 7)
    UNIT.pack_into(written.map, UNIT_SIZE, NO_LIMIT - 10, 100, 7)

    read = queue(tmp_path / "q")

    assert (read.next_offset, read.last_end) == (2, NO_LIMIT)
    read.recover(100)
    assert (read.next_offset, read.last_end) == (1, 100)
