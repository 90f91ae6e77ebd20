"""Writing a manager's file: one write for many changes, and never an older state over a newer one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

from brokerset_broker.tables.config_files import ConfigFile


class Counter:
    """Something to save: a number, and how often it was encoded."""

    def __init__(self) -> None:
        self.value = 0
        self.encoded = 0

    def snapshot(self) -> bytes:
        self.encoded += 1
        return str(self.value).encode()


async def test_many_waiters_share_a_write(tmp_path: Path) -> None:
    """Changes made while a write is under way are written together by the next one."""

    counter = Counter()

    def snapshot() -> Callable[[], bytes]:
        data = counter.snapshot()
        return lambda: data

    file = ConfigFile(tmp_path / "config" / "file", snapshot)

    async def change() -> None:
        counter.value += 1
        file.touch()
        await file.saved()

    await asyncio.gather(*(change() for _ in range(50)))
    await file.saved()

    assert (tmp_path / "config/file").read_bytes() == b"50"
    assert counter.encoded <= 2


async def test_a_write_that_was_left_behind_overwrites_nothing(tmp_path: Path) -> None:
    """A cancelled task cannot stop its thread; what was persisted after it stays."""

    started, go_on = threading.Event(), threading.Event()
    value = b"old"

    def snapshot() -> Callable[[], bytes]:
        data = value

        def encode() -> bytes:
            if data == b"old":
                started.set()
                assert go_on.wait(10)
            return data

        return encode

    file = ConfigFile(tmp_path / "file", snapshot)
    file.touch()
    writing = asyncio.create_task(file.saved())
    await asyncio.to_thread(started.wait, 10)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    value = b"new"
    file.touch()
    persisting = asyncio.create_task(asyncio.to_thread(file.persist))
    go_on.set()
    await persisting

    assert (tmp_path / "file").read_bytes() == b"new"


async def test_changes_are_written_without_anybody_waiting(tmp_path: Path) -> None:
    """The background task writes what was touched."""

    counter = Counter()
    written = threading.Event()

    def snapshot() -> Callable[[], bytes]:
        data = counter.snapshot()

        def encode() -> bytes:
            written.set()
            return data

        return encode

    file = ConfigFile(tmp_path / "file", snapshot)
    task = asyncio.create_task(file.run(0.0))
    counter.value = 7
    file.touch()
    await asyncio.to_thread(written.wait, 10)
    await file.saved()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert (tmp_path / "file").read_bytes() == b"7"
