"""Folders of small durable files."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from pathlib import Path

import pytest

from brokerset_runtime.disk import OPEN_FILES_MAX, DiskThread, RealDisk, replace_file


def test_files_are_written_read_and_cut(tmp_path: Path) -> None:
    """Content is what was written, appended and cut, also by one name after the other."""
    disk = RealDisk(tmp_path / "new" / "folder")

    disk.write("a", b"0123")
    disk.append("a", b"456789")
    disk.truncate("a", 8)
    disk.append("a", b"!")
    disk.append("b", b"other")
    disk.sync("a")
    disk.sync("b")
    disk.sync_folder()

    assert disk.names() == ["a", "b"]
    assert disk.read("a") == b"01234567!"
    assert disk.read_at("a", 3, 4) == b"3456"
    assert disk.read_at("a", 100, 4) == b""
    assert disk.size("a") == 9
    disk.close()
    disk.close()


def test_names_change(tmp_path: Path) -> None:
    """A renamed file replaces the one that had the name, and appends go to the right one after that."""
    disk = RealDisk(tmp_path)
    disk.append("a", b"old")
    disk.append("b", b"new")

    disk.rename("b", "a")
    disk.append("a", b"er")
    disk.append("b", b"again")
    disk.write("a", disk.read("a"))
    disk.sync("a")
    disk.delete("b")
    disk.delete("b")

    assert disk.names() == ["a"]
    assert disk.read("a") == b"newer"
    disk.close()


def test_missing_files_are_told(tmp_path: Path) -> None:
    """Reading, measuring and syncing what is not there raises `FileNotFoundError`."""
    disk = RealDisk(tmp_path)

    for work in (disk.read, disk.size, disk.sync, lambda name: disk.read_at(name, 0, 1)):
        with pytest.raises(FileNotFoundError):
            work("none")


def test_few_files_stay_open(tmp_path: Path) -> None:
    """Appending to many files in turns works with a bounded number of open ones."""
    disk = RealDisk(tmp_path)
    names = [f"f{n:02d}" for n in range(3 * OPEN_FILES_MAX)]

    for part in (b"one", b"two"):
        for name in names:
            disk.append(name, part)
            disk.sync(name)

    assert all(disk.read(name) == b"onetwo" for name in names)
    assert len(disk._open) <= OPEN_FILES_MAX
    disk.close()


def test_replace_file(tmp_path: Path) -> None:
    """The new content is there and no temporary file is left."""
    disk = RealDisk(tmp_path)

    replace_file(disk, "a", b"one")
    replace_file(disk, "a", b"two")

    assert disk.names() == ["a"]
    assert disk.read("a") == b"two"


async def test_disk_thread_keeps_the_order() -> None:
    """Work runs outside the loop's thread, one after the other, awaited or not; errors come back."""

    done: list[tuple[int, int]] = []

    def note(n: int) -> None:
        done.append((n, threading.get_ident()))

    def fail() -> None:
        raise OSError(5, "Input/output error")

    thread = DiskThread("test")
    pending = [thread(partial(note, n)) for n in range(5)]
    with pytest.raises(OSError, match="Input/output"):
        await thread(fail)
    thread.close()
    thread.close()
    await asyncio.gather(*pending)

    assert [n for n, _ in done] == [0, 1, 2, 3, 4]
    assert {ident for _, ident in done}.isdisjoint({threading.get_ident()})
