"""What replication does with the epoch file."""

from __future__ import annotations

from contextlib import suppress

import pytest

from brokerset_broker.member.epoch_file import EpochFile
from brokerset_formats.epochs import EpochEntry, EpochHistory, common_entry, history_of
from brokerset_rig.fake_ha import MemoryDisk


def loaded(disk: MemoryDisk, log_end: int) -> EpochHistory:
    found = EpochFile(disk)
    found.load(log_end)
    return found.history


def test_the_first_epoch_owns_the_whole_log() -> None:
    """A log that is older than its group belongs to the first master's epoch from its first byte on."""
    epochs = EpochFile(MemoryDisk())

    assert epochs.begin_at(3, log_begin=100, log_end=500)
    assert epochs.begin_at(4, log_begin=100, log_end=700)
    assert not epochs.begin_at(3, log_begin=100, log_end=800)
    assert epochs.history == history_of([(3, 100), (4, 700)])


def test_a_replaced_history_is_on_disk() -> None:
    """After a cut the file has the epochs that are left, and its backup those of before."""
    disk = MemoryDisk()
    epochs = EpochFile(disk)
    epochs.extend((EpochEntry(1, 0), EpochEntry(2, 100), EpochEntry(3, 200)))
    epochs.replace(history_of([(1, 0)]))

    assert loaded(disk, 1_000) == history_of([(1, 0)])
    disk.delete("epochFileCheckpoint")
    assert loaded(disk, 1_000) == history_of([(1, 0), (2, 100), (3, 200)])


def test_an_empty_history_does_not_come_back_from_the_backup() -> None:
    """When no epoch is left, no reader finds the old ones."""
    disk = MemoryDisk()
    epochs = EpochFile(disk)
    epochs.extend((EpochEntry(1, 0),))
    epochs.extend((EpochEntry(2, 50),))
    epochs.replace(EpochHistory())

    assert disk.names() == ["epochFileCheckpoint"]
    assert loaded(disk, 1_000) == EpochHistory()


def test_epochs_of_deleted_files_are_forgotten() -> None:
    """What ended before the log begins goes, also from the file; the epoch that the log begins in stays."""
    disk = MemoryDisk()
    epochs = EpochFile(disk)
    epochs.replace(history_of([(1, 0), (2, 100), (3, 200), (5, 300)]))

    epochs.forget_before(200)
    assert loaded(disk, 1_000) == epochs.history == history_of([(3, 200), (5, 300)])
    epochs.forget_before(250)
    assert epochs.history.entries[0] == EpochEntry(3, 200)
    epochs.forget_before(900)
    assert epochs.history == history_of([(5, 300)])
    assert epochs.append(6, 900)


def test_told_epochs_are_appended_once() -> None:
    """Epochs that are known already, or older, are left out; one without bytes is replaced."""
    epochs = EpochFile(MemoryDisk())
    epochs.extend((EpochEntry(2, 0), EpochEntry(3, 100)))
    epochs.extend((EpochEntry(2, 0), EpochEntry(3, 100), EpochEntry(5, 100)))

    assert epochs.history == history_of([(2, 0), (5, 100)])


def test_the_newest_common_epoch() -> None:
    """Epochs are common when number and start are the same."""
    one, other = history_of([(1, 0), (2, 50), (4, 90)]), history_of([(1, 0), (2, 50), (3, 80), (4, 95)])

    assert common_entry(one, other) == EpochEntry(2, 50)
    assert common_entry(one, history_of([(9, 0)])) is None


class _Stops(Exception):
    """The process ends."""


class StoppingDisk(MemoryDisk):
    """Ends the process at a rename."""

    def __init__(self) -> None:
        super().__init__()
        self.renames_left = 1_000

    def rename(self, old: str, new: str) -> None:
        if not self.renames_left:
            raise _Stops
        self.renames_left -= 1
        super().rename(old, new)


def test_a_crash_between_renames_leaves_the_old_epochs_or_the_new() -> None:
    """Whichever rename of a change is the last one, the next start has a whole history to go on from."""
    seen = []
    for renames in (0, 1, 2):
        disk = StoppingDisk()
        epochs = EpochFile(disk)
        epochs.append(1, 0)
        epochs.append(2, 50)
        disk.renames_left = renames
        with suppress(_Stops):
            epochs.append(3, 80)
        disk.renames_left = 1_000
        seen.append(loaded(disk, 1_000).last_epoch)
        again = EpochFile(disk)
        again.load(1_000)
        assert again.append(5, 90)
        assert loaded(disk, 1_000) == again.history

    assert seen == [2, 2, 3]


def test_a_damaged_file_does_not_become_the_backup() -> None:
    """What was read from the backup stays there until the new file is in place."""
    disk = StoppingDisk()
    epochs = EpochFile(disk)
    epochs.append(1, 0)
    epochs.append(2, 50)
    disk.write("epochFileCheckpoint", b"2\n99\n1-")
    again = EpochFile(disk)
    again.load(1_000)
    disk.renames_left = 0
    with pytest.raises(_Stops):
        again.append(3, 80)

    assert loaded(disk, 1_000) == history_of([(1, 0)])


def test_an_incomplete_log_is_remembered_until_it_is_complete() -> None:
    """Over restarts, with the reason; an empty file counts, too."""
    disk = MemoryDisk()
    epochs = EpochFile(disk)
    epochs.set_incomplete("record at 16: wrong CRC")
    again = EpochFile(disk)
    again.load(0)
    assert again.incomplete == "record at 16: wrong CRC"

    again.set_incomplete("")

    assert disk.names() == []
    epochs.load(0)
    assert epochs.incomplete == ""
    disk.write("epochFileCheckpoint.incomplete", b"")
    epochs.load(0)
    assert epochs.incomplete


def test_what_the_disk_did_not_take_is_written_the_next_time() -> None:
    """Before a log is cut it must be on the disk that it lacks something, not only in memory."""

    class Full(MemoryDisk):
        is_full = True

        def sync(self, name: str) -> None:
            if self.is_full:
                raise OSError(28, "No space left on device")

    disk = Full()
    epochs = EpochFile(disk)
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            epochs.set_incomplete("record at 16: wrong CRC")
        assert epochs.incomplete

    disk.is_full = False
    epochs.set_incomplete("record at 16: wrong CRC")

    again = EpochFile(disk)
    again.load(0)
    assert again.incomplete == "record at 16: wrong CRC"
