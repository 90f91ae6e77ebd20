"""Files of queues that a thread makes ahead of their use: at work, on a full disk, and after a crash."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from brokerset_broker.store import MessageStore, StoreRefused, consume_queue
from brokerset_broker.store.segments import MappedFile
from brokerset_formats.queue_units import QueueUnit

Stores = Any  # the class of conftest.py, which cannot be imported by name

FILE_UNITS = 10


@pytest.fixture(autouse=True)
def steps_of_two_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of ten units takes its blocks in five steps; the next one is made at the last of them."""
    monkeypatch.setattr(consume_queue, "RESERVE_STEP_BYTES", 40)


def queue_files(stores: Stores) -> list[int]:
    """Numbers of the first units of the files of queue 0."""
    return sorted(int(path.name) // 20 for path in (stores.root / "consumequeue" / "T" / "0").iterdir())


def append(stores: Stores, store: MessageStore, count: int) -> list[int]:
    """Append, and let the thread do what it has to; returns the messages' numbers."""
    numbers = [stores.append(store).queue_offset for _ in range(count)]
    store._executor.submit(lambda: None).result()  # nothing else tells that it is idle
    return numbers


def test_the_loop_makes_only_the_first_file_of_a_queue(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every further one is there, and mapped, when its first unit comes."""
    makers: list[tuple[int, bool]] = []
    create = MappedFile.create.__func__  # type: ignore[attr-defined]  # of a method

    def noting(cls: type[MappedFile], path: Path, start: int, *args: Any) -> MappedFile:
        if path.parent.name == "0":
            makers.append((start // 20, threading.current_thread() is threading.main_thread()))
        made: MappedFile = create(cls, path, start, *args)
        return made

    monkeypatch.setattr(MappedFile, "create", classmethod(noting))
    store = stores.open()

    for _ in range(16):
        append(stores, store, 2)

    assert makers == [(0, True), (10, False), (20, False), (30, False)]
    assert store.queue_max("T", 0) == 32


def test_a_store_that_is_closed_leaves_no_file_without_units(stores: Stores) -> None:
    """As far as a store that was closed in order is concerned, files are as Java leaves them."""
    store = stores.open()
    append(stores, store, 9)
    assert queue_files(stores) == [0, 10]

    asyncio.run(store.close())

    assert queue_files(stores) == [0]


@pytest.mark.parametrize(
    "left",
    [
        pytest.param(bytes(200), id="made"),
        pytest.param(b"", id="half made"),
        pytest.param(os.urandom(199) + b"\1", id="random bytes"),
        pytest.param(QueueUnit(2**40, 100, 0).encode() * FILE_UNITS, id="units behind the log"),
        pytest.param(None, id="not begun"),
    ],
)
@pytest.mark.parametrize("count", [9, 10])
def test_a_crash_with_a_file_made_ahead_costs_nothing(stores: Stores, left: bytes | None, count: int) -> None:
    """A start takes no unit from it and deletes it; numbers go on, whether or not the file before is full."""
    store = stores.open()
    append(stores, store, count)
    stores.abandon_all()
    ahead = stores.root / "consumequeue" / "T" / "0" / f"{200:020d}"
    assert ahead.read_bytes() == bytes(200)
    if left is None:
        ahead.unlink()
    else:
        ahead.write_bytes(left)

    again = stores.open()
    append(stores, again, 0)

    assert again.queue_max("T", 0) == count
    assert ahead.read_bytes() == bytes(200)  # the start made it again, when it put the last units again
    assert append(stores, again, 15) == list(range(count, count + 15))
    assert again.get("T", 0, count, 15, 1 << 20).message_count > 0


def test_a_file_that_is_full_when_the_process_is_killed_is_followed_by_a_new_one(stores: Stores) -> None:
    """The first unit was put into a file that was made ahead: it is a file as any other from then on."""
    store = stores.open()
    append(stores, store, 9)
    append(stores, store, 2)
    stores.abandon_all()

    again = stores.open()

    assert queue_files(stores) == [0, 10]
    assert append(stores, again, 1) == [11]


def test_a_disk_that_is_full_ahead_of_time_refuses_nothing_until_the_file_is_needed(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left behind; when the disk has room again in time, nobody notices."""
    store = stores.open()
    append(stores, store, 8)
    allocate = os.posix_fallocate

    def full(descriptor: int, offset: int, length: int) -> None:
        if offset == 0:  # a new file
            raise OSError(errno.ENOSPC, "No space left on device")
        allocate(descriptor, offset, length)

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        assert append(stores, store, 2) == [8, 9]
        assert queue_files(stores) == [0]
        with pytest.raises(StoreRefused, match="no room for the consume queue"):
            append(stores, store, 1)

    assert append(stores, store, 3) == [10, 11, 12]
    assert queue_files(stores) == [0, 10]


def test_queues_that_go_take_what_was_made_ahead_with_them(stores: Stores) -> None:
    """Whether a topic is deleted, or the whole log starts from scratch."""
    store = stores.open()
    append(stores, store, 9)

    store.delete_topic("T")
    assert not (stores.root / "consumequeue" / "T").exists()

    append(stores, store, 9)
    assert queue_files(stores) == [0, 10]
    store.queues_table.forget_all()
    assert queue_files(stores) == [0]
