"""The simulated disk keeps what POSIX promises, and nothing more."""

from __future__ import annotations

import contextlib
import random

import pytest

from brokerset_runtime.disk import replace_file
from brokerset_sim.disk import PAGE_BYTES, FrozenDisk, ProcessGone, SimDisk


def _disks(count: int = 300) -> list[SimDisk]:
    return [SimDisk(random.Random(number)) for number in range(count)]


def _after_power_loss(disk: SimDisk, name: str) -> bytes | None:
    disk.lose_power()
    return disk.content().get(name)


def test_what_is_synced_survives() -> None:
    """Content after `sync` under a name after `sync_folder` is there after any power failure."""
    for disk in _disks(50):
        handle = disk.handle()
        handle.write("a", b"kept")
        handle.sync("a")
        handle.sync_folder()
        handle.append("a", b" maybe")

        assert (_after_power_loss(disk, "a") or b"").startswith(b"kept")


def test_unsynced_names_may_vanish_or_stay() -> None:
    """A new file whose folder was not synced is gone in some futures and there in others."""
    found = set()
    for disk in _disks():
        handle = disk.handle()
        handle.write("a", b"x")
        handle.sync("a")
        found.add(_after_power_loss(disk, "a"))

    assert found == {None, b"x"}


def test_unsynced_appends_are_cut_torn_or_zeroed() -> None:
    """Some futures keep a prefix, some hold zeros where data should be, some keep it all or nothing."""
    data = bytes(range(1, 251))
    found = set()
    for disk in _disks():
        handle = disk.handle()
        handle.write("a", b"")
        handle.sync("a")
        handle.sync_folder()
        handle.append("a", data)
        found.add(_after_power_loss(disk, "a"))

    assert {b"", data} <= found
    assert any(content and data.startswith(content) and content != data for content in found)
    assert any(content and 0 in content for content in found)


def test_an_unsynced_cut_may_be_undone() -> None:
    """A truncated file has its old length again in some futures."""
    found = set()
    for disk in _disks():
        handle = disk.handle()
        handle.write("a", b"long content")
        handle.sync("a")
        handle.sync_folder()
        handle.truncate("a", 4)
        found.add(_after_power_loss(disk, "a"))

    assert found == {b"long content", b"long"}


def test_a_failed_sync_drops_what_was_dirty_though_a_later_one_succeeds() -> None:
    """It can be read until the power fails; only what is written once more is on the disk."""
    for disk in _disks(50):
        handle = disk.handle()
        handle.write("a", b"k" * PAGE_BYTES)
        handle.sync("a")
        handle.sync_folder()
        handle.append("a", b"d" * PAGE_BYTES)
        disk.fail_sync = True
        with pytest.raises(OSError, match="Input/output"):
            handle.sync("a")
        handle.append("a", b"later")
        handle.sync("a")

        assert handle.read("a") == b"k" * PAGE_BYTES + b"d" * PAGE_BYTES + b"later"
        assert _after_power_loss(disk, "a") == b"k" * PAGE_BYTES + bytes(PAGE_BYTES) + b"later"


def test_what_a_failed_sync_dropped_is_durable_when_it_is_written_again() -> None:
    """A page is written whole, so a write to a part of it brings all of it to the disk."""
    for disk in _disks(50):
        handle = disk.handle()
        handle.write("a", b"kept")
        handle.sync("a")
        handle.sync_folder()
        handle.append("a", b" dropped")
        disk.fail_sync = True
        with contextlib.suppress(OSError):
            handle.sync("a")
        handle.append("a", b" and back")
        handle.sync("a")

        assert _after_power_loss(disk, "a") == b"kept dropped and back"


def test_a_replaced_file_is_old_or_new() -> None:
    """`replace_file` interrupted anywhere leaves one of the two contents, whole."""
    found = set()
    for number, disk in enumerate(_disks(200)):
        replace_file(disk.handle(), "a", b"old")
        _interrupt(disk, number % 5)
        found.add(_after_power_loss(disk, "a"))

    assert found == {b"old", b"new"}


def _interrupt(disk: SimDisk, steps: int) -> None:
    """Replace the file, and let the process die after so many steps."""
    last = disk.operations + steps

    def stop() -> None:
        handle.gone = disk.operations > last

    handle = disk.handle(stop)
    with contextlib.suppress(ProcessGone):
        replace_file(handle, "a", b"new")


def test_a_dead_process_changes_nothing() -> None:
    """A handle whose process is gone refuses everything."""
    disk = SimDisk(random.Random(1))
    handle = disk.handle()
    handle.gone = True

    with pytest.raises(ProcessGone):
        handle.write("a", b"x")

    assert disk.content() == {}


def test_a_killed_process_loses_nothing_that_it_wrote() -> None:
    """Only the power failure takes the page cache."""
    disk = SimDisk(random.Random(1))
    disk.handle().write("a", b"x")

    assert disk.content() == {"a": b"x"}
    assert disk.durable() == {}


def test_a_failed_sync_is_reported_once() -> None:
    """A disk that fails raises `OSError` and has kept nothing new."""
    disk = SimDisk(random.Random(1))
    handle = disk.handle()
    handle.write("a", b"x")
    disk.fail_sync = True

    with pytest.raises(OSError, match="Input/output"):
        handle.sync("a")

    assert disk.durable() == {}


def test_deleted_files_may_come_back() -> None:
    """A deletion counts once the folder is synced."""
    found = set()
    for disk in _disks(100):
        handle = disk.handle()
        replace_file(handle, "a", b"x")
        handle.delete("a")
        found.add(_after_power_loss(disk, "a"))

    assert found == {None, b"x"}


def test_a_frozen_copy_reads_like_a_disk() -> None:
    """Checkers read durable content through the same interface, and change nothing by it."""
    disk = SimDisk(random.Random(1))
    replace_file(disk.handle(), "a", b"0123456789")

    frozen = FrozenDisk(disk.durable())
    frozen.append("a", b"!")
    frozen.truncate("a", 3)
    frozen.rename("a", "b")

    assert (frozen.names(), frozen.read("b"), frozen.read_at("b", 1, 1), frozen.size("b")) == (
        ["b"],
        b"012",
        b"1",
        3,
    )
    assert disk.durable() == {"a": b"0123456789"}
    frozen.delete("b")
    with pytest.raises(FileNotFoundError):
        frozen.read("b")
