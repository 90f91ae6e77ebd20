"""The files next to the identity, and the epoch file, on real folders and on one that forgets."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from brokerset_broker.member.epoch_file import EpochFile, EpochsDamaged
from brokerset_broker.member.membership.identity_folder import IdentityDamaged, IdentityFolder
from brokerset_broker.member.membership.registration import LOST_BOOT, FilesRead
from brokerset_formats.epochs import EpochEntry
from brokerset_formats.identity import BrokerIdentity, StartRecord
from brokerset_runtime.disk import RealDisk
from brokerset_sim.disk import SimDisk

IDENTITY = BrokerIdentity("c", "b", 3)
CLAIM = BrokerIdentity("c", "b", 3, "a:1;2")
RECORD = StartRecord("n0", "n1", (), "a:1;2", 4, 7, "boot")


@pytest.fixture
def folder(tmp_path: Path) -> IdentityFolder:
    return IdentityFolder(RealDisk(tmp_path))


def test_an_empty_folder_has_nothing(folder: IdentityFolder) -> None:
    """A new broker."""
    assert folder.read() == FilesRead()


def test_what_is_written_is_read(folder: IdentityFolder, tmp_path: Path) -> None:
    """In Java's format, without a line end, and nothing else stays in the folder."""
    folder.write_temp(CLAIM)
    folder.write_identity(IDENTITY)
    folder.write_start(RECORD)

    assert folder.read() == FilesRead(IDENTITY, CLAIM, RECORD)
    assert (tmp_path / "brokerIdentity").read_bytes() == b"c#b#3"
    assert (tmp_path / "brokerIdentity-temp").read_bytes() == b"c#b#3#a:1;2"
    folder.delete_temp()
    folder.delete_temp()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["brokerIdentity", "brokerIdentity-start"]


@pytest.mark.parametrize("data", [b"", b"c#b", b"c#b#x", b"c#b#3#a:1;2", b"\xff"])
def test_a_garbled_identity_is_named(folder: IdentityFolder, tmp_path: Path, data: bytes) -> None:
    """Guessing would make a second replica of the data."""
    (tmp_path / "brokerIdentity").write_bytes(data)

    with pytest.raises(IdentityDamaged, match=r"^brokerIdentity: .*empty the folder to join"):
        folder.read()


@pytest.mark.parametrize(
    "damage", [b"", b"1#n0#", RECORD.encode()[:-1], RECORD.encode().replace(b"n0", b"n9")]
)
def test_a_garbled_start_file_is_named(folder: IdentityFolder, tmp_path: Path, damage: bytes) -> None:
    """It decides whether this folder may go on."""
    folder.write_identity(IDENTITY)
    (tmp_path / "brokerIdentity-start").write_bytes(damage)

    with pytest.raises(IdentityDamaged, match=r"^brokerIdentity-start: .*restore it"):
        folder.read()


def test_a_deleted_identity_is_noticed(folder: IdentityFolder) -> None:
    """The start file shows that there was one."""
    folder.write_start(RECORD)

    with pytest.raises(IdentityDamaged, match="brokerIdentity: is missing, though brokerIdentity-start"):
        folder.read()


@pytest.mark.parametrize("data", [b"", b"c#b#3", b"c#b", b"\xff"])
def test_a_garbled_claim_is_dropped(folder: IdentityFolder, tmp_path: Path, data: bytes) -> None:
    """Nothing is known to hang on it but an unused id."""
    (tmp_path / "brokerIdentity-temp").write_bytes(data)

    assert folder.read() == FilesRead()


def test_epochs_are_kept_in_javas_format_with_a_backup(tmp_path: Path) -> None:
    """The file has all of them, the backup all but the last."""
    epochs = EpochFile(RealDisk(tmp_path))
    epochs.load(0)

    assert epochs.append(1, 0)
    assert epochs.append(3, 100)
    assert epochs.append(3, 200)  # known already: it goes on where it began

    again = EpochFile(RealDisk(tmp_path))
    again.load(300)
    assert again.entries() == (EpochEntry(1, 0), EpochEntry(3, 100))
    assert (tmp_path / "epochFileCheckpoint").read_text().splitlines()[2:] == ["1-0", "3-100"]
    assert (tmp_path / "epochFileCheckpoint.bak").read_text().splitlines()[2:] == ["1-0"]


def test_an_epoch_without_data_is_replaced(tmp_path: Path) -> None:
    """Two masters in a row wrote nothing in between."""
    epochs = EpochFile(RealDisk(tmp_path))
    epochs.append(1, 0)

    assert epochs.append(2, 0)

    assert epochs.entries() == (EpochEntry(2, 0),)


def test_an_epoch_that_the_log_has_passed_is_refused(tmp_path: Path) -> None:
    """Epochs grow in every epoch file."""
    epochs = EpochFile(RealDisk(tmp_path))
    epochs.append(5, 0)

    assert not epochs.append(4, 100)
    assert epochs.history.last_epoch == 5


def test_a_torn_epoch_file_is_read_from_its_backup(tmp_path: Path) -> None:
    """As Java does."""
    epochs = EpochFile(RealDisk(tmp_path))
    epochs.append(1, 0)
    epochs.append(2, 10)
    (tmp_path / "epochFileCheckpoint").write_bytes(b"2\n99\n1-")

    epochs.load(100)

    assert epochs.entries() == (EpochEntry(1, 0),)


def test_unreadable_epochs_are_named(tmp_path: Path) -> None:
    """No file is no damage, an unreadable one without a backup is."""
    (tmp_path / "epochFileCheckpoint").write_bytes(b"x")

    with pytest.raises(EpochsDamaged, match=r"^epochFileCheckpoint: "):
        EpochFile(RealDisk(tmp_path)).load(0)


def test_epochs_behind_the_end_of_the_log_go(tmp_path: Path) -> None:
    """What they held was lost with the page cache."""
    epochs = EpochFile(RealDisk(tmp_path))
    epochs.append(1, 0)
    epochs.append(2, 500)

    epochs.load(400)

    assert epochs.entries() == (EpochEntry(1, 0),)
    assert epochs.highest_read == 2  # the group has had it: it must not be given again


def test_what_was_read_survives_a_power_failure() -> None:
    """A process killed between rename and sync leaves names that only the page cache has; reading keeps them.

    Else a claim could be granted, and then be forgotten: its id would be burned.
    """
    disk = SimDisk(random.Random(1))
    killed = disk.handle()
    killed.write("brokerIdentity-temp.tmp", CLAIM.encode())
    killed.sync("brokerIdentity-temp.tmp")
    killed.rename("brokerIdentity-temp.tmp", "brokerIdentity-temp")
    before = dict(disk.durable())

    found = IdentityFolder(disk.handle()).read()

    assert before == {}
    assert found.temp == CLAIM
    assert disk.durable() == {"brokerIdentity-temp": CLAIM.encode()}


def test_a_loss_is_noted_in_the_start_file(folder: IdentityFolder) -> None:
    """Whoever starts next tells the controllers so, whatever becomes of this process; the rest stays."""
    assert folder.note_loss()  # without a start file nobody counts on this replica
    folder.write_identity(IDENTITY)
    record = StartRecord(last_nonce="n0", boot_id="boot")
    folder.write_start(record)

    assert folder.note_loss()

    assert folder.read().start == replace(record, boot_id=LOST_BOOT)


def test_a_loss_cannot_be_noted_in_a_damaged_start_file(folder: IdentityFolder, tmp_path: Path) -> None:
    """It is left as it is, for somebody has to mend it."""
    (tmp_path / "brokerIdentity-start").write_bytes(b"garbage")

    assert not folder.note_loss()

    assert (tmp_path / "brokerIdentity-start").read_bytes() == b"garbage"
