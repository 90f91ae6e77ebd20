"""How far stores may be read."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from brokerset_formats.checkpoints import StoreCheckpoint
from brokerset_rig.made_stores import Place, damage, locked_elsewhere, message, unpack_fixture, write_log
from brokerset_spark.kernels import Stop
from brokerset_spark.stores.ending import LogWalk
from brokerset_spark.stores.folder import LocalFolder
from brokerset_spark.stores.layout import look
from brokerset_spark.stores.reading import Outcome, read_range, split
from brokerset_spark.stores.tail import Bound, align, bound_of, is_expired, is_written


def made(
    store: Path, count: int = 60, *, size: int = 4096, entries: bool = False
) -> tuple[LocalFolder, list[Place]]:
    places = write_log(store, [message(n) for n in range(count)], file_size=size, entries=entries)
    return LocalFolder(store), places


def end_of(place: Place) -> int:
    return place.offset + len(place.data)


@pytest.mark.parametrize("entries", [False, True])
def test_end(tmp_path: Path, entries: bool) -> None:
    """The end of a log lies behind its last record, also when files were made in advance."""
    folder, places = made(tmp_path, entries=entries)
    log = look(folder).ledger if entries else look(folder).commit_log
    assert LogWalk(folder, log, entries=entries).measure().offset == end_of(places[-1])

    for _ in range(2):
        last = places[-1].file.parent / f"{log.end:020d}"
        last.write_bytes(bytes(4096))
        log = look(folder).ledger if entries else look(folder).commit_log
        found = LogWalk(folder, log, entries=entries).measure()

        assert found.offset == end_of(places[-1])
        assert found.stop is Stop.EMPTY
        assert found.last == places[-1].offset - (48 if entries else 0)
        assert found.held_back == found.last


def test_end_behind_a_closed_file(tmp_path: Path) -> None:
    """When a blank record closed the last file, the log ends behind the file, and its last record is sure."""
    folder, places = made(tmp_path, 60)
    last = [each for each in places if each.file != places[-1].file][-1]
    places[-1].file.write_bytes(bytes(4096))

    found = LogWalk(folder, look(folder).commit_log).measure()

    assert (found.offset, found.stop) == (int(places[-1].file.name), Stop.BLANK)
    assert (found.last, found.held_back) == (last.offset, found.offset)


def test_records_that_were_cut_off(tmp_path: Path) -> None:
    """Old records behind the end of a log are not found by any later range once the end is known."""
    folder, places = made(tmp_path, 40, size=1 << 14)
    changed = message(20, body=b"newer", store_timestamp=1_796_000_000_000)
    write_log(tmp_path / "other", [message(n) for n in range(20)] + [changed], file_size=1 << 14)
    content = bytearray(places[0].file.read_bytes())
    new = (tmp_path / "other" / "commitlog" / places[0].file.name).read_bytes()
    end = places[20].position + changed.size
    content[:end] = new[:end]
    places[0].file.write_bytes(bytes(content))
    log = look(folder).commit_log

    found = LogWalk(folder, log).measure()

    assert found.offset == end
    assert LogWalk(folder, log).find_newer(found) == -1
    offsets: list[int] = []
    for wanted in split(log.files, 300, bound=found.offset):
        for chunk in read_range(folder, wanted, Outcome(0, 0)):
            offsets += (chunk.starts + chunk.base).tolist()
    assert offsets == [each.offset for each in places[:21]]


def test_damage_is_not_taken_for_the_end(tmp_path: Path) -> None:
    """Newer records behind a bad one in the last file tell damage from an end."""
    folder, places = made(tmp_path, 40, size=1 << 14)
    damage(places[25])
    log = look(folder).commit_log

    found = LogWalk(folder, log).measure()

    assert (found.offset, found.stop) == (places[25].offset, Stop.BAD_MAGIC)
    assert LogWalk(folder, log).find_newer(found) == places[26].offset


def test_first_record_of_the_last_file_damaged(tmp_path: Path) -> None:
    """A last file that begins with damage, not with zeros, still belongs to the log."""
    folder, places = made(tmp_path, 60)
    first = next(each for each in places if each.file == places[-1].file)
    damage(first)
    log = look(folder).commit_log

    found = LogWalk(folder, log).measure()

    assert (found.offset, found.stop) == (first.offset, Stop.BAD_MAGIC)
    assert LogWalk(folder, log).find_newer(found) == places[places.index(first) + 1].offset


def test_bound_of_a_closed_store(tmp_path: Path) -> None:
    """A store that nobody writes is read to its end."""
    folder, places = made(tmp_path)

    assert bound_of(folder, look(folder)).offset == end_of(places[-1])


def test_bound_of_a_store_that_is_written(tmp_path: Path) -> None:
    """Without anything better the last record is held back; with a wrong CRC, it and the one before."""
    folder, places = made(tmp_path, 50, size=1 << 14)
    (tmp_path / "abort").touch()

    assert bound_of(folder, look(folder)) == Bound(
        places[-1].offset, "crc", LogWalk(folder, look(folder).commit_log).measure()
    )
    assert bound_of(folder, look(folder), mode="end").offset == end_of(places[-1])
    assert places[-1].record.body
    damage(places[-1], len(places[-1].data) - 60, b"\0")
    torn = bound_of(folder, look(folder))
    assert torn.offset in (places[-1].offset, places[-2].offset)


def test_bound_with_a_torn_body(tmp_path: Path) -> None:
    """A last record whose body is not there yet fails its CRC, so the one before it is held back."""
    folder, places = made(tmp_path, 51, size=1 << 14)
    (tmp_path / "abort").touch()
    body = places[-1].record.body
    damage(places[-1], places[-1].data.index(body), bytes(len(body)))

    assert bound_of(folder, look(folder)).offset == places[-2].offset


def test_bounds_that_were_told(tmp_path: Path) -> None:
    """The broker's confirmed offset goes before its checkpoint, and that before the records."""
    folder, places = made(tmp_path)
    (tmp_path / "abort").touch()
    (tmp_path / "checkpoint").write_bytes(StoreCheckpoint(confirm_phy_offset=places[30].offset).encode())
    facts = look(folder)

    assert bound_of(folder, facts) == Bound(places[30].offset, "checkpoint")
    assert bound_of(folder, facts, confirmed=places[40].offset) == Bound(places[40].offset, "confirm")
    assert bound_of(folder, facts, mode="checkpoint") == Bound(places[30].offset, "checkpoint")
    with pytest.raises(ValueError, match="confirmedOffset"):
        bound_of(folder, facts, mode="confirm")
    (tmp_path / "checkpoint").unlink()
    with pytest.raises(ValueError, match="tailBound=crc"):
        bound_of(folder, look(folder), mode="checkpoint")


class GroupNews(LocalFolder):
    """A folder whose broker tells what it confirmed."""

    confirmed: int | None = None

    def confirmed_offset(self) -> int | None:
        return self.confirmed


def test_the_broker_that_gives_out_a_store_tells_its_bound(tmp_path: Path) -> None:
    """What the folder's broker confirmed goes before the checkpoint, unless something else is asked for."""
    _, places = made(tmp_path)
    (tmp_path / "abort").touch()
    (tmp_path / "checkpoint").write_bytes(StoreCheckpoint(confirm_phy_offset=places[30].offset).encode())
    folder = GroupNews(tmp_path)
    folder.confirmed = places[20].offset + 3
    facts = look(folder)

    for mode in ("auto", "confirm"):
        assert bound_of(folder, facts, mode=mode) == Bound(places[20].offset + 3, "confirm")
    assert bound_of(folder, facts, confirmed=places[10].offset) == Bound(places[10].offset, "confirm")
    assert bound_of(folder, facts, mode="checkpoint") == Bound(places[30].offset, "checkpoint")


def test_committed_entries(tmp_path: Path) -> None:
    """A DLedger is read up to the entry that its checkpoint says is committed."""
    folder = LocalFolder(unpack_fixture(tmp_path, "dledger") / "broker-1" / "store")
    facts = look(folder)
    whole = bound_of(folder, facts)
    assert whole == Bound(LogWalk(folder, facts.ledger, entries=True).measure().offset, "committed")

    checkpoint = next(folder.root.glob("dledger-*/checkpoint"))
    checkpoint.write_text("committedIndex=9\nendIndex=629\n")

    bound = bound_of(folder, look(folder)).offset
    entries = 0
    for wanted in split(facts.ledger.files, 1 << 20, entries=True, bound=bound):
        outcome = Outcome(0, 0)
        entries += sum(len(chunk.starts) for chunk in read_range(folder, wanted, outcome))
        assert outcome.stop is Stop.RANGE_END
    assert entries == 10


def test_lock_of_a_broker(tmp_path: Path) -> None:
    """A broker that holds the store's lock is seen, and asking does not take the lock."""
    folder, _ = made(tmp_path, 5)
    (tmp_path / "lock").write_text("lock")
    assert not is_written(folder, look(folder))

    with locked_elsewhere(tmp_path / "lock"):
        assert is_written(folder, look(folder))
    assert not is_written(folder, look(folder))

    (tmp_path / "abort").touch()
    assert is_written(folder, look(folder))
    with (tmp_path / "lock").open("r+") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)


def test_aligned(tmp_path: Path) -> None:
    """A confirmed offset inside a record is taken back to where the record begins."""
    folder, places = made(tmp_path)
    log = look(folder).commit_log

    for inside in (1, 30, len(places[33].data) - 1):
        assert align(folder, log, places[33].offset + inside) == places[33].offset
        assert align(folder, log, places[33].offset + inside, since=places[30].offset) == places[33].offset
    assert align(folder, log, places[33].offset) == places[33].offset


def test_expired(tmp_path: Path) -> None:
    """A file that is gone has expired if the log begins behind it now; from the middle it is missing."""
    folder, places = made(tmp_path)
    files = look(folder).commit_log.files
    first, middle = split(files[:1], 4096)[0], split(files[2:3], 4096)[0]

    os.unlink(tmp_path / middle.path)
    assert not is_expired(folder, middle)
    os.unlink(tmp_path / first.path)
    assert is_expired(folder, first)
    with pytest.raises(FileNotFoundError):
        list(read_range(folder, first, Outcome(0, 0)))
    assert places
