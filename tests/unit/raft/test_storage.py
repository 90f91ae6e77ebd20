"""The storage of one node, on real files."""

from __future__ import annotations

import errno
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from brokerset_raft import log_records
from brokerset_raft.configuration import Configuration, Member
from brokerset_raft.messages import Entry, EntryKind, HardState, SnapshotMeta
from brokerset_raft.storage import INITIAL_NAME, Loaded, LogDamaged, Storage, StorageStopped
from brokerset_runtime.disk import RealDisk

SEGMENT_BYTES = 400


def entry(index: int, term: int = 1, data: bytes = b"some data") -> Entry:
    return Entry(index, term, EntryKind.DATA, data)


def entries(first: int, last: int, term: int = 1) -> list[Entry]:
    return [entry(index, term) for index in range(first, last + 1)]


def snapshot(index: int, term: int = 1, data: bytes = b"state") -> tuple[SnapshotMeta, bytes]:
    return SnapshotMeta(index, term, Configuration(), len(data), zlib.crc32(data)), data


def opened(folder: Path) -> tuple[Storage, Loaded]:
    storage = Storage(RealDisk(folder), segment_bytes=SEGMENT_BYTES)
    return storage, storage.load()


def filled(folder: Path, last: int = 40) -> Storage:
    """A log of several segments, two entries in each save."""
    storage, _ = opened(folder)
    storage.save(HardState(1, 2), [])
    for index in range(1, last, 2):
        storage.save(None, entries(index, index + 1))
    return storage


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("log-*"))


def test_an_empty_folder_is_a_new_node(tmp_path: Path) -> None:
    """Nothing is there, and loading leaves nothing."""
    _, loaded = opened(tmp_path)

    assert loaded == Loaded(HardState(), None, ())
    assert list(tmp_path.iterdir()) == []


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    """Hard state and entries survive over several segments, and saving goes on after that."""
    filled(tmp_path)
    assert len(segments(tmp_path)) > 3

    storage, loaded = opened(tmp_path)
    storage.save(HardState(5, None), [entry(41, 5)])

    assert loaded == Loaded(HardState(1, 2), None, tuple(entries(1, 40)))
    assert opened(tmp_path)[1] == Loaded(HardState(5, None), None, (*entries(1, 40), entry(41, 5)))


@pytest.mark.parametrize("first", [1, 2, 17, 40])
def test_new_entries_make_old_ones_void(tmp_path: Path, first: int) -> None:
    """From the first given index on only the new ones count, across segments and restarts."""
    storage = filled(tmp_path)

    storage.save(HardState(2, 3), [entry(first, 2), entry(first + 1, 2)])
    storage.save(None, entries(first + 1, first + 30, 3))

    expected = (*entries(1, first - 1), entry(first, 2), *entries(first + 1, first + 30, 3))
    assert opened(tmp_path)[1] == Loaded(HardState(2, 3), None, expected)


def test_a_snapshot_lets_old_segments_go(tmp_path: Path) -> None:
    """Segments below the older of two snapshots are deleted, and those without a snapshot never."""
    storage = filled(tmp_path)
    before = len(segments(tmp_path))
    storage.drop_below(30)
    assert len(segments(tmp_path)) == before

    storage.write_snapshot(*snapshot(20))
    storage.drop_below(40)
    between = len(segments(tmp_path))
    storage.write_snapshot(*snapshot(30))
    storage.write_snapshot(*snapshot(38))
    storage.drop_below(38)

    assert len(segments(tmp_path)) < between < before
    assert [meta.index for meta in storage.snapshots] == [30, 38]
    again, loaded = opened(tmp_path)
    assert loaded.snapshot == snapshot(38)[0]
    assert loaded.entries == tuple(entries(39, 40))
    assert loaded.hard_state == HardState(1, 2)
    assert again.snapshot_data(snapshot(38)[0]) == b"state"


def test_a_damaged_snapshot_is_passed_over(tmp_path: Path) -> None:
    """The older one and the log after it have everything; without an older one the node does not start."""
    storage = filled(tmp_path)
    storage.write_snapshot(*snapshot(20))
    storage.write_snapshot(*snapshot(30))
    storage.drop_below(30)
    newest = sorted(tmp_path.glob("snapshot-*"))[-1]
    newest.write_bytes(newest.read_bytes()[:-1] + b"!")

    _, loaded = opened(tmp_path)
    assert loaded.snapshot == snapshot(20)[0]
    assert loaded.entries == tuple(entries(21, 40))

    for path in tmp_path.glob("snapshot-*"):
        path.unlink()
    with pytest.raises(LogDamaged, match="there is no snapshot"):
        opened(tmp_path)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "which"),
    [
        (lambda paths: flip(paths[1]), 1),
        (lambda paths: flip(paths[-1]), -1),
        (lambda paths: paths[0].write_bytes(b""), 0),
        (lambda paths: paths[2].write_bytes(paths[2].read_bytes()[:-3]), 2),
        (lambda paths: paths[1].write_bytes(paths[2].read_bytes()), 1),
    ],
)
def test_damage_is_named(tmp_path: Path, damage: Callable[[list[Path]], object], which: int) -> None:
    """File, reason and what to do are said, and nothing on the disk is changed."""
    filled(tmp_path, 46)
    paths = segments(tmp_path)
    damage(paths)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    with pytest.raises(LogDamaged, match="remove it from the group") as caught:
        opened(tmp_path)

    assert caught.value.name == paths[which].name
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_missing_segment_is_damage(tmp_path: Path) -> None:
    """What lies before the gap cannot stand for what is missing."""
    filled(tmp_path)
    segments(tmp_path)[2].unlink()

    with pytest.raises(LogDamaged, match="the log begins after entry"):
        opened(tmp_path)


def test_votes_are_not_forgotten(tmp_path: Path) -> None:
    """A snapshot without a log is no node that may vote."""
    storage = filled(tmp_path)
    storage.write_snapshot(*snapshot(40))
    for path in segments(tmp_path):
        path.unlink()

    with pytest.raises(LogDamaged, match="votes are lost"):
        opened(tmp_path)


@pytest.mark.parametrize(
    "saved", [(HardState(2, 3), []), (None, [entry(1, 1)]), (HardState(2, 1), [entry(1, 2)])]
)
def test_no_changed_bit_of_the_last_save_makes_a_node_forget_it(
    tmp_path: Path, saved: tuple[HardState | None, list[Entry]]
) -> None:
    """A vote or an entry that was synced last is there, or the node does not start and names the place."""
    disk = RealDisk(tmp_path)
    storage = Storage(disk)
    storage.load()
    storage.save(HardState(1, 2), [])
    begin = disk.size("log-0000000000000001")
    storage.save(*saved)
    content = disk.read("log-0000000000000001")

    for bit in range(8 * begin, 8 * len(content)):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        disk.write("log-0000000000000001", bytes(changed))
        with pytest.raises(LogDamaged, match="remove it from the group") as caught:
            opened(tmp_path)
        assert caught.value.name == "log-0000000000000001"
        assert begin <= caught.value.position <= bit // 8
        assert disk.read("log-0000000000000001") == changed


@pytest.mark.parametrize("filler", range(350, 362))
def test_a_vote_across_two_sectors_is_torn_when_one_is_lost_and_damaged_when_a_bit_changed(
    tmp_path: Path, filler: int
) -> None:
    """Losing the second sector never looks like a changed bit: no save ends in a sector with one set bit."""
    name = "log-0000000000000001"
    disk = RealDisk(tmp_path)
    storage = Storage(disk)
    storage.load()
    storage.save(HardState(1, 2), [Entry(1, 1, EntryKind.DATA, bytes(filler))])
    begin = disk.size(name)
    storage.save(HardState(2, 4), [])
    content = disk.read(name)
    sector = (len(content) - 1) // 512 * 512

    if begin < sector:
        disk.write(name, content[:sector] + bytes(len(content) - sector))
        assert opened(tmp_path)[1].hard_state == HardState(1, 2)
    for bit in range(8 * begin, 8 * len(content)):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        disk.write(name, bytes(changed))
        with pytest.raises(LogDamaged):
            opened(tmp_path)


@pytest.mark.parametrize("tail", [b"\0" * 3000, b"\0\0\0\x30torn", b"\0\0\0\x60" + b"torn" * 20])
def test_a_torn_end_is_cut_for_good(tmp_path: Path, tail: bytes) -> None:
    """It is gone from the file before anything is appended, so that it can never look like damage."""
    filled(tmp_path)
    last = segments(tmp_path)[-1]
    good = last.read_bytes()
    last.write_bytes(good + tail)

    storage, loaded = opened(tmp_path)

    assert loaded.entries == tuple(entries(1, 40))
    assert last.read_bytes() == good
    storage.save(None, [entry(41)])
    assert opened(tmp_path)[1].entries == tuple(entries(1, 41))


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"\0\0\0\x30to"])
def test_a_segment_that_never_began_is_removed(tmp_path: Path, content: bytes) -> None:
    """A crash while a segment was opened leaves nothing that counts."""
    filled(tmp_path)
    fresh = tmp_path / f"log-{len(segments(tmp_path)) + 1:016d}"
    fresh.write_bytes(content)
    (tmp_path / "snapshot.partial").write_bytes(b"half")
    (tmp_path / "log-1.tmp").write_bytes(b"half")

    storage, loaded = opened(tmp_path)

    assert loaded.entries == tuple(entries(1, 40))
    assert not fresh.exists() or fresh.read_bytes() != content
    assert not list(tmp_path.glob("*.tmp"))
    assert not (tmp_path / "snapshot.partial").exists()
    storage.save(None, [entry(41)])
    assert opened(tmp_path)[1].entries == tuple(entries(1, 41))


def test_a_received_snapshot_replaces_the_log(tmp_path: Path) -> None:
    """Pieces are stored in order, the whole is checked, and the log goes on after it, also after restarts."""
    storage = filled(tmp_path)
    meta, data = snapshot(100, 4, b"0123456789")

    assert storage.store_chunk(meta, 4, b"4567") == 0
    assert storage.store_chunk(meta, 0, b"0123") == 4
    assert storage.store_chunk(meta, 0, b"0123") == 4
    assert storage.store_chunk(meta, 4, b"456789") == 10
    assert storage.install_partial(meta) == data

    storage, loaded = opened(tmp_path)
    assert loaded == Loaded(HardState(1, 2), meta, ())
    storage.save(HardState(4, None), entries(101, 102, 4))
    storage.save(None, entries(103, 140, 4))
    storage.drop_below(100)
    assert storage.read_chunk(meta, 3, 4) == b"3456"
    assert storage.read_chunk(meta, 8, 100) == b"89"
    assert opened(tmp_path)[1] == Loaded(HardState(4, None), meta, tuple(entries(101, 140, 4)))


def test_a_received_snapshot_keeps_entries_that_agree(tmp_path: Path) -> None:
    """They were synced and counted; only a log that says otherwise at its index is void."""
    storage = filled(tmp_path)
    meta, data = snapshot(20)
    storage.store_chunk(meta, 0, data)
    assert storage.install_partial(meta) == data
    storage, loaded = opened(tmp_path)
    assert loaded.entries == tuple(entries(21, 40))

    other, data = snapshot(30, 2)
    storage.store_chunk(other, 0, data)
    storage.install_partial(other)

    storage, loaded = opened(tmp_path)
    assert loaded == Loaded(HardState(1, 2), other, ())
    storage.save(None, [entry(31, 2)])
    assert opened(tmp_path)[1].entries == (entry(31, 2),)


def test_a_wrong_snapshot_is_not_installed(tmp_path: Path) -> None:
    """Another CRC than promised means None; the transfer can begin again."""
    storage = filled(tmp_path)
    meta, data = snapshot(100)
    storage.store_chunk(meta, 0, b"wrong")

    assert storage.install_partial(meta) is None
    assert storage.install_partial(meta) is None
    assert storage.store_chunk(meta, 0, data) == len(data)
    assert storage.install_partial(meta) == data


def test_chunks_of_a_replaced_snapshot(tmp_path: Path) -> None:
    """Reading from a snapshot that is gone is an error that harms nothing."""
    storage = filled(tmp_path)

    with pytest.raises(FileNotFoundError):
        storage.read_chunk(snapshot(7)[0], 0, 10)
    storage.save(None, [entry(41)])


class BadDisk(RealDisk):
    """Its syncs fail on demand."""

    fails = False

    def sync(self, name: str) -> None:
        if self.fails:
            raise OSError(5, "Input/output error")
        super().sync(name)


def test_a_failed_sync_is_final(tmp_path: Path) -> None:
    """After it everything is refused, also when the disk seems to work again."""
    disk = BadDisk(tmp_path)
    storage = Storage(disk)
    storage.load()
    storage.save(HardState(1, 1), [entry(1)])
    disk.fails = True
    with pytest.raises(OSError, match="Input/output"):
        storage.save(None, [entry(2)])
    disk.fails = False

    meta, data = snapshot(1)
    for work in (
        lambda: storage.save(None, [entry(2)]),
        lambda: storage.write_snapshot(meta, data),
        lambda: storage.store_chunk(meta, 0, data),
    ):
        with pytest.raises(StorageStopped, match="failed before"):
            work()
    assert opened(tmp_path)[1].entries[0] == entry(1)


def test_too_large_entries_are_refused(tmp_path: Path) -> None:
    """Before anything of the save is written."""
    storage, _ = opened(tmp_path)

    with pytest.raises(ValueError, match="larger than"):
        storage.save(HardState(3, 1), [entry(1, data=bytes(log_records.ENTRY_BYTES_MAX + 1))])

    assert opened(tmp_path)[1] == Loaded(HardState(), None, ())


class FullDisk(RealDisk):
    """It takes only so many bytes more, and, as a file system does, the part of a write that still fits."""

    left = 1 << 30

    def write(self, name: str, data: bytes) -> None:
        super().write(name, data[: self.left])
        self._take(len(data))

    def append(self, name: str, data: bytes) -> None:
        super().append(name, data[: self.left])
        self._take(len(data))

    def _take(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            self.left = 0
            raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("left", [0, 1, 30, 60, 100, 150, 250])
def test_a_full_disk_costs_nothing_that_was_synced(tmp_path: Path, left: int) -> None:
    """The node stops, cannot start while there is no room, and has everything once there is."""
    disk = FullDisk(tmp_path)
    storage = Storage(disk, segment_bytes=SEGMENT_BYTES)
    storage.load()
    storage.save(HardState(1, 1), entries(1, 3))
    disk.left = left
    saved = 3

    def save_on() -> None:
        nonlocal saved
        while True:
            storage.save(None, [entry(saved + 1)])
            saved += 1

    with pytest.raises(OSError, match="No space left"):
        save_on()
    with pytest.raises(StorageStopped, match="No space left"):
        storage.save(HardState(2, 2), [])
    with pytest.raises(OSError, match="No space left"):
        Storage(disk, segment_bytes=SEGMENT_BYTES).load()

    again, loaded = opened(tmp_path)

    assert loaded.hard_state == HardState(1, 1)
    assert list(loaded.entries) == entries(1, saved)
    again.save(HardState(2, 2), entries(saved + 1, saved + 5))
    assert list(opened(tmp_path)[1].entries) == entries(1, saved + 5)
    assert not list(tmp_path.glob("*.tmp"))


def _members(*node_ids: int, port: int = 1) -> Configuration:
    return Configuration(tuple(Member(n, f"h{n}:{port}", f"h{n}:9878") for n in node_ids))


def _began(disk: RealDisk, given: Configuration) -> Configuration:
    storage = Storage(disk)
    storage.load()
    return storage.initial_members(given)


def test_a_node_with_data_keeps_the_members_it_began_with_whatever_its_settings_say(tmp_path: Path) -> None:
    """No entry names the first members: told to join, or of others, a node with data knows them still."""
    began = Storage(RealDisk(tmp_path))
    began.load()
    assert began.initial_members(_members(1, 2, 3)) == _members(1, 2, 3)
    began.save(HardState(1, 2), [])
    for given in (Configuration(), _members(1, 2, 3, 4, 5)):
        assert _began(RealDisk(tmp_path), given) == _members(1, 2, 3)
    moved = _members(1, 2, 3, port=7)
    assert _began(RealDisk(tmp_path), moved) == moved
    assert _began(RealDisk(tmp_path), Configuration()) == moved


def test_a_node_that_never_took_part_takes_its_settings(tmp_path: Path) -> None:
    """A mistake in the list of members can be corrected as long as nothing was voted or stored."""
    assert _began(RealDisk(tmp_path), _members(1, 2)) == _members(1, 2)
    assert _began(RealDisk(tmp_path), _members(1, 2, 3)) == _members(1, 2, 3)


def test_a_first_member_that_is_told_to_join_is_still_a_first_member(tmp_path: Path) -> None:
    """The others have formed the group before it took part: they count it, so it must know them."""
    assert _began(RealDisk(tmp_path / "first"), _members(1, 2, 3)) == _members(1, 2, 3)
    assert _began(RealDisk(tmp_path / "first"), Configuration()) == _members(1, 2, 3)
    assert _began(RealDisk(tmp_path / "emptied"), Configuration()) == Configuration()


def test_data_from_before_first_members_were_remembered_takes_them_from_settings_that_name_some(
    tmp_path: Path,
) -> None:
    """GroupState to join it does not know them; put right, it does, for good."""
    old = Storage(RealDisk(tmp_path))
    old.load()
    old.save(HardState(1, 2), [])
    assert _began(RealDisk(tmp_path), Configuration()) == Configuration()
    assert _began(RealDisk(tmp_path), _members(1, 2, 3)) == _members(1, 2, 3)
    assert _began(RealDisk(tmp_path), Configuration()) == _members(1, 2, 3)


def test_damaged_first_members_stop_the_node(tmp_path: Path) -> None:
    """With wrong members a node could elect itself."""
    _began(RealDisk(tmp_path), _members(1, 2, 3))
    path = tmp_path / INITIAL_NAME
    path.write_bytes(path.read_bytes().replace(b"h1", b"h9"))
    with pytest.raises(LogDamaged, match="CRC of the first members"):
        _began(RealDisk(tmp_path), _members(1, 2, 3))
