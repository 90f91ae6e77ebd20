"""Stores as an upgrade reads, compares, cuts, prepares and puts them back."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from brokerset_cli.output import CommandFailed
from brokerset_cli.takeover import host_facts, upgrade_files
from brokerset_cli.takeover.log_compare import compare_digests, compare_logs, digests
from brokerset_cli.takeover.old_store import BACKUP, log_files, read_note, read_old_store
from brokerset_cli.takeover.upgrade_facts import Comparison, Extent, Flow, Likeness, Note, StoreSeen, World
from brokerset_formats.epochs import encode_epoch_file, history_of
from brokerset_formats.errors import FormatError
from brokerset_rig.made_stores import Place, message, unpack_fixture, write_log
from brokerset_runtime import files

FILE_BYTES = 4096
COUNT = 60
HOLD = (
    "import fcntl,sys;f=open(sys.argv[1],'a+b');fcntl.lockf(f,fcntl.LOCK_EX|fcntl.LOCK_NB,1,0);"
    "print('held',flush=True);sys.stdin.read()"
)
"""A program that holds the lock of a store until its input ends."""

OLD_EPOCHS = history_of([(1, 0), (4, 300)])


def made(path: Path, *, count: int = COUNT, other_from: int = COUNT, epochs: bool = True) -> list[Place]:
    """A store of so many messages; from `other_from` on they are others of the same size."""
    records = [message(n, body=(b"other" if n >= other_from else b"equal") * 9) for n in range(count)]
    places = write_log(path, records, file_size=FILE_BYTES)
    (path / "config").mkdir()
    (path / "config" / "topics.json").write_text(
        '{"dataVersion":{"counter":1,"timestamp":2},"topicConfigTable":{}}'
    )
    (path / "consumequeue" / "orders" / "0").mkdir(parents=True)
    (path / "consumequeue" / "orders" / "0" / ("0" * 20)).write_bytes(b"units")
    (path / "checkpoint").write_bytes(bytes(4096))
    (path / "lock").write_bytes(b"lock")
    if epochs:
        (path / "epochFileCheckpoint").write_bytes(encode_epoch_file(OLD_EPOCHS))
        (path / "epochFileCheckpoint.bak").write_bytes(encode_epoch_file(history_of([(1, 0)])))
    return places


def end_of(places: list[Place]) -> int:
    return places[-1].offset + len(places[-1].data)


def tree(path: Path) -> dict[str, str]:
    """What a store holds, but for what an upgrade keeps beside."""
    return {
        str(each.relative_to(path)): hashlib.sha256(each.read_bytes()).hexdigest()
        for each in sorted(path.rglob("*"))
        if each.is_file() and each.name != "lock" and BACKUP not in each.parts
    }


def extent(path: Path) -> Extent:
    found = read_old_store(path)
    assert found.end is not None
    return Extent(found.begin, found.end)


# -- reading ----------------------------------------------------------------------------------------------


def test_a_store_tells_its_log_epochs_and_release_and_is_not_changed(tmp_path: Path) -> None:
    """Everything is read; nothing is written, not even a lock."""
    places = made(tmp_path / "a")
    before = tree(tmp_path / "a")

    found = read_old_store(tmp_path / "a")

    assert (found.begin, found.end, found.last_record) == (0, end_of(places), places[-1].offset)
    assert found.epochs == ((1, 0), (4, 300))
    assert (found.release, found.clean, found.file_size, found.problem) == ("4.x", True, FILE_BYTES, "")
    assert found.locked_by is None
    assert tree(tmp_path / "a") == before


def test_empty_files_made_in_advance_and_torn_records_are_not_the_end(tmp_path: Path) -> None:
    """The end lies behind the last whole record, whatever follows."""
    places = made(tmp_path / "a")
    last = places[-1].file
    (last.parent / f"{int(last.name) + FILE_BYTES:020d}").write_bytes(bytes(FILE_BYTES))
    with last.open("r+b") as stream:
        stream.seek(places[-1].position + 90)
        stream.write(b"torn")

    assert read_old_store(tmp_path / "a").end == places[-1].offset


def test_a_running_broker_is_seen_by_its_lock(tmp_path: Path) -> None:
    """The lock that Java's brokers take (fcntl, first byte) names their process; asking does not take it."""
    made(tmp_path / "a")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "a" / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    holder.stdout.readline()
    try:
        assert read_old_store(tmp_path / "a", read_log=False).locked_by == holder.pid
        with pytest.raises(CommandFailed, match="is locked by process"):
            upgrade_files.prepare(tmp_path / "a", Note("classic", "g"), empty=False)
        assert read_old_store(tmp_path / "a", read_log=False).epochs == ((1, 0), (4, 300))
    finally:
        holder.stdin.close()
        holder.stdout.close()
        holder.wait(10)
    with (tmp_path / "a" / "lock").open("r+b") as stream:
        fcntl.lockf(stream, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        assert read_old_store(tmp_path / "a", read_log=False).problem == ""


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda path: (path / "dledger-n0").mkdir(), "log of a DLedger"),
        (lambda path: (path / "commitlog" / ("0" * 20)).write_bytes(b"short"), "different sizes"),
        (lambda path: (path / "commitlog" / f"{FILE_BYTES:020d}").unlink(), "does not follow"),
        (lambda path: (path / "epochFileCheckpoint").write_bytes(b"2\n3\n1-0\n"), None),
        (lambda path: [each.write_bytes(b"x") for each in path.glob("epoch*")], "cannot be read"),
    ],
)
def test_what_cannot_be_taken_is_named(
    tmp_path: Path, break_it: Callable[[Path], object], words: str | None
) -> None:
    """A damaged epoch file is read from its backup, as brokers do; without one the store is refused."""
    made(tmp_path / "a")
    break_it(tmp_path / "a")

    found = read_old_store(tmp_path / "a")

    assert words in found.problem if words else found.epochs == ((1, 0),)


@pytest.mark.parametrize("archive", ["classic", "controller-mode", "killed"])
def test_stores_of_java_brokers_are_read_to_their_end(tmp_path: Path, archive: str) -> None:
    """The end is that of the last message which the Java broker itself gave out."""
    folder = unpack_fixture(tmp_path, archive)
    lines = [json.loads(line) for line in (folder / "expected.jsonl").read_text().splitlines()]
    last = max(int(line["commitLogOffset"]) for line in lines)

    found = read_old_store(folder / "broker-0" / "store")

    assert found.problem == ""
    assert found.release == "5.x"
    assert found.last_record is not None
    assert found.last_record >= last
    assert (found.epochs is not None) == (archive == "controller-mode")
    assert found.clean == (archive != "killed")


# -- comparing --------------------------------------------------------------------------------------------


def test_logs_are_compared_byte_by_byte(tmp_path: Path) -> None:
    """Equal, shorter, longer, different from a message on: with the offset and the number of messages."""
    whole = made(tmp_path / "whole")
    made(tmp_path / "short", count=40)
    apart = made(tmp_path / "apart", other_from=45)
    at = apart[45].offset

    def compared(master: str, slave: str) -> Comparison:
        return compare_logs(
            tmp_path / master, extent(tmp_path / master), tmp_path / slave, extent(tmp_path / slave)
        )

    assert compared("whole", "whole").likeness is Likeness.PREFIX
    assert compared("whole", "short").likeness is Likeness.PREFIX
    longer = compared("short", "whole")
    assert (longer.likeness, longer.common_end, longer.cut_messages) == (
        Likeness.LONGER,
        whole[40].offset,
        COUNT - 40,
    )
    other = compared("whole", "apart")
    assert (other.likeness, other.common_end, other.cut_messages) == (Likeness.APART, at, COUNT - 45)
    assert other.cut_bytes == end_of(apart) - at


def test_a_slave_that_lost_its_first_files_is_a_beginning_still_and_an_older_one_is_nothing(
    tmp_path: Path,
) -> None:
    """Files that retention deleted are not missed; a log that ends before its master's begins is refused."""
    made(tmp_path / "whole")
    made(tmp_path / "late")
    (tmp_path / "late" / "commitlog" / ("0" * 20)).unlink()
    made(tmp_path / "old", count=10)

    late = compare_logs(
        tmp_path / "whole", extent(tmp_path / "whole"), tmp_path / "late", extent(tmp_path / "late")
    )
    old = compare_logs(
        tmp_path / "late", extent(tmp_path / "late"), tmp_path / "old", extent(tmp_path / "old")
    )

    assert late.likeness is Likeness.PREFIX
    assert old.likeness is Likeness.NOTHING


def test_digests_say_the_same_as_bytes(tmp_path: Path) -> None:
    """A store on another host is compared by its digests: equal, shorter, longer, different."""
    made(tmp_path / "whole")
    made(tmp_path / "short", count=41)
    made(tmp_path / "apart", other_from=45)
    whole = tmp_path / "whole"

    def compared(master: Path, slave: str) -> Likeness:
        theirs = extent(tmp_path / slave)
        return compare_digests(master, extent(master), theirs, digests(tmp_path / slave, theirs)).likeness

    assert compared(whole, "whole") is Likeness.PREFIX
    assert compared(whole, "short") is Likeness.PREFIX
    assert compared(whole, "apart") is Likeness.APART
    assert compared(tmp_path / "short", "whole") is Likeness.LONGER


def test_facts_survive_the_way_to_another_host(tmp_path: Path) -> None:
    """What one host writes is what the other reads, and what the master's host found counts there."""
    made(tmp_path / "whole")
    made(tmp_path / "short", count=41)
    master = StoreSeen(read_old_store(tmp_path / "whole"), Note("identity", "g", "10.0.0.1:10911", True, 2))
    slave = StoreSeen(read_old_store(tmp_path / "short"))
    slave_facts = host_facts.read_facts(host_facts.facts_of("h2", World(Flow.IDENTITY, "g", (slave,)), ""))
    there = slave_facts.stores[0]
    found = host_facts.comparisons_with(master, (master, there), (slave_facts,), "h1")
    seen = World(Flow.IDENTITY, "g", (master, there), comparisons=found)
    master_facts = host_facts.read_facts(host_facts.facts_of("h1", seen, master.name))
    leader = master_facts.stores[0]
    back = host_facts.comparisons_with(leader, (slave, leader), (master_facts,), "h2")
    grown = StoreSeen(read_old_store(tmp_path / "whole"))

    assert (there.name, there.here) == (f"h2:{tmp_path / 'short'}", False)
    assert found[there.name].likeness is Likeness.PREFIX
    assert leader.note == master.note
    assert leader.store.epochs == ((1, 0), (4, 300))
    assert back[slave.name].likeness is Likeness.PREFIX
    assert host_facts.comparisons_with(leader, (grown, leader), (master_facts,), "h2") == {}
    with pytest.raises(FormatError, match="version 9"):
        host_facts.read_facts(b'{"version":9}')


# -- changing ---------------------------------------------------------------------------------------------


class Died(Exception):
    """The process was killed here."""


def dying_after(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the process die at its n-th change of the disk from now on."""
    left = [count]

    def stopping(real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **more: object) -> object:
            if not left[0]:
                raise Died
            left[0] -= 1
            return real(*args, **more)

        return call

    for name in ("rename", "unlink", "touch", "mkdir"):
        monkeypatch.setattr(Path, name, stopping(getattr(Path, name)))
    monkeypatch.setattr(upgrade_files, "write_atomically", stopping(files.write_atomically))
    monkeypatch.setattr(os, "fsync", stopping(os.fsync))


def through_crashes(work: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> int:
    """Do something that dies at its first change, then at its second, and so on, until it comes through."""
    for count in range(200):
        with monkeypatch.context() as patch:
            dying_after(count, patch)
            try:
                work()
                return count
            except Died:
                continue
    raise AssertionError("it never comes through")


@pytest.mark.parametrize("epochs", [True, False])
def test_preparing_survives_a_crash_at_every_change_and_can_be_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epochs: bool
) -> None:
    """Old epochs lie in the backup, named by the manifest; the first epoch is 0; --back leaves no trace."""
    store = tmp_path / "a"
    made(store, epochs=epochs)
    before = tree(store)

    def prepare() -> None:
        upgrade_files.prepare(store, upgrade_files.note_of(store, "identity", "g"), empty=False)

    crashes = through_crashes(prepare, monkeypatch)
    found = read_old_store(store)
    note = read_note(store)
    assert crashes > 3
    assert found.epochs == ((0, 0),)
    assert note is not None
    assert note.prepared
    assert set(note.moved) == ({"epochFileCheckpoint", "epochFileCheckpoint.bak"} if epochs else set())
    for name in note.moved:
        assert hashlib.sha256((store / BACKUP / name).read_bytes()).hexdigest() == before[name]

    upgrade_files.put_back(store, note)
    assert tree(store) == before
    assert read_note(store) is None


def test_cutting_survives_a_crash_at_every_change_and_can_be_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log ends where it was said, nothing stands behind it; --back brings all of it back."""
    whole, store = tmp_path / "whole", tmp_path / "a"
    made(whole)
    places = made(store, other_from=25)
    monkeypatch.setattr(upgrade_files, "ZERO_BYTES", 300)
    monkeypatch.setattr(upgrade_files, "PAGE_BYTES", 1)  # so small are the parts that a crash leaves whole
    before = tree(store)
    at = places[25].offset

    def cut() -> None:
        found = compare_logs(whole, extent(whole), store, extent(store))
        if found.likeness is Likeness.APART:
            assert found.common_end == at, "it parts at the same place after every crash"
            upgrade_files.cut_log(store, upgrade_files.note_of(store, "classic", "g"), found.common_end)

    through_crashes(cut, monkeypatch)
    found = read_old_store(store)
    assert found.end == at
    assert not found.clean
    assert not (store / "consumequeue").exists()
    assert not (store / "checkpoint").exists()
    log = b"".join(each.read_bytes() for each in sorted((store / "commitlog").iterdir()))
    assert not any(log[at:])
    assert compare_logs(whole, extent(whole), store, extent(store)).likeness is Likeness.PREFIX

    note = read_note(store)
    assert note is not None
    upgrade_files.put_back(store, note)
    assert tree(store) == before


def test_what_a_broker_wrote_after_a_cut_is_not_cut_off_without_a_copy(tmp_path: Path) -> None:
    """The first copy stays, so that of a second cut has no place: refused, and nothing changed."""
    store = tmp_path / "a"
    at = made(store)[25].offset
    upgrade_files.cut_log(store, upgrade_files.note_of(store, "classic", "g"), at)
    upgrade_files.cut_log(store, upgrade_files.note_of(store, "classic", "g"), at)  # as after an interruption
    file = next(each for each in log_files(store) if each.begin <= at < each.begin + each.size)
    with file.path.open("r+b") as log:
        log.seek(at - file.begin + 40)
        log.write(b"new")
    before = tree(store)

    with pytest.raises(CommandFailed, match="has other bytes by now") as told:
        upgrade_files.cut_log(store, upgrade_files.note_of(store, "classic", "g"), at)

    assert str(store / BACKUP / "cut") in told.value.advice
    assert tree(store) == before


def may_be_locked(store: Path) -> bool:
    """Whether a broker could start on a store now."""
    tried = subprocess.run(
        [sys.executable, "-c", HOLD, str(store / "lock")], stdin=subprocess.DEVNULL, capture_output=True
    )
    return tried.returncode == 0


def test_no_broker_can_start_while_a_store_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store's lock is held at every change of its epochs, forth and back, and free afterwards."""
    store = tmp_path / "a"
    made(store)
    free: list[bool] = []
    move = upgrade_files._move

    def watched(source: Path, target: Path) -> None:
        free.append(may_be_locked(store))
        move(source, target)

    monkeypatch.setattr(upgrade_files, "_move", watched)

    upgrade_files.prepare(store, Note("identity", "g"), empty=False)
    note = read_note(store)
    assert note is not None
    upgrade_files.put_back(store, note)

    assert free == [False] * 4
    assert may_be_locked(store)


def test_a_store_on_which_a_new_broker_has_run_is_not_put_back(tmp_path: Path) -> None:
    """Also when it ran after the command had looked: what it took is nowhere else."""
    store = tmp_path / "a"
    made(store)
    upgrade_files.prepare(store, Note("identity", "g"), empty=False)
    (store / "brokerIdentity").write_bytes(b"whatever it is")
    before, note = tree(store), read_note(store)
    assert note is not None

    with pytest.raises(CommandFailed, match="no way back"):
        upgrade_files.put_back(store, note)

    assert tree(store) == before
    assert read_note(store) == note


def test_a_manifest_alone_is_taken_back_while_the_broker_runs(tmp_path: Path) -> None:
    """Nothing of the store was changed, so nobody needs to stop."""
    store = tmp_path / "a"
    made(store)
    upgrade_files.write_note(store, Note("classic", "g", "10.0.0.1:10911", True, 2, 6))
    before = tree(store)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(store / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()

        upgrade_files.put_back(store, Note("classic", "g", "10.0.0.1:10911", True, 2, 6))

    assert tree(store) == before
    assert read_note(store) is None


def test_an_empty_log_gets_no_epoch(tmp_path: Path) -> None:
    """Java refuses an epoch that begins where the last one did; an empty store takes its master's."""
    (tmp_path / "a" / "config").mkdir(parents=True)

    upgrade_files.prepare(tmp_path / "a", Note("classic", "g"), empty=True)

    assert read_old_store(tmp_path / "a").epochs is None
    note = read_note(tmp_path / "a")
    assert note is not None
    assert note.prepared


def test_controller_data_is_renamed_never_over_something(tmp_path: Path) -> None:
    """It lies beside; a second folder of the same name is not taken for it."""
    (tmp_path / "controller").mkdir()

    target = upgrade_files.put_aside(tmp_path / "controller")
    (tmp_path / "controller").mkdir()

    assert target == tmp_path / "controller-upgrade-backup"
    with pytest.raises(CommandFailed, match="is there already"):
        upgrade_files.put_aside(tmp_path / "controller")
