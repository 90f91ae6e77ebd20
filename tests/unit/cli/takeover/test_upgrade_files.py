"""Stores as an upgrade cuts, prepares and puts them back."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from brokerset_cli.output import CommandFailed
from brokerset_cli.takeover import upgrade_files
from brokerset_cli.takeover.log_compare import compare_logs
from brokerset_cli.takeover.old_store import BACKUP, log_files, read_note, read_old_store
from brokerset_cli.takeover.upgrade_facts import Likeness, Note, StoreSeen
from brokerset_formats.epochs import encode_epoch_file, history_of
from brokerset_rig.old_stores import (
    HOLD,
    Died,
    dying_after,
    extent,
    made,
    through_crashes,
    tree,
)


def noted(store: Path) -> Note:
    found = read_note(store)
    assert found is not None
    return found


def prepare(store: Path, flow: str = "identity") -> None:
    upgrade_files.prepare(store, upgrade_files.note_of(store, flow, "g"), empty=False)


def truncate(store: Path, offset: int) -> None:
    upgrade_files.truncate_log(store, upgrade_files.note_of(store, "classic", "g"), offset)


def put_back(store: Path) -> None:
    upgrade_files.put_back(store, noted(store))


@pytest.mark.parametrize("epochs", [True, False])
def test_preparing_survives_a_crash_at_every_change_and_can_be_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epochs: bool
) -> None:
    """Old epochs lie in the backup, named by the manifest; the first epoch is 0; --back leaves no trace."""
    store = tmp_path / "a"
    made(store, epochs=epochs)
    before = tree(store)

    crashes = through_crashes(lambda: prepare(store), monkeypatch)
    found = read_old_store(store)
    note = noted(store)
    assert crashes > 3
    assert found.epochs == ((0, 0),)
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
            truncate(store, found.common_end)

    through_crashes(cut, monkeypatch)
    found = read_old_store(store)
    assert found.end == at
    assert not found.clean
    assert not (store / "consumequeue").exists()
    assert not (store / "checkpoint").exists()
    log = b"".join(each.read_bytes() for each in sorted((store / "commitlog").iterdir()))
    assert not any(log[at:])
    assert compare_logs(whole, extent(whole), store, extent(store)).likeness is Likeness.PREFIX

    put_back(store)
    assert tree(store) == before


@pytest.mark.parametrize("epochs", [True, False])
@pytest.mark.parametrize("again", [True, False])
def test_going_back_survives_a_crash_at_every_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epochs: bool, again: bool
) -> None:
    """A store that was cut and prepared is as it was, however often `--back` is killed; or goes on forth."""
    whole, store = tmp_path / "whole", tmp_path / "a"
    made(whole)
    at = made(store, other_from=25, epochs=epochs)[25].offset
    before = tree(store)

    def forward() -> None:
        note = upgrade_files.note_of(store, "classic", "g")
        if compare_logs(whole, extent(whole), store, extent(store)).likeness is Likeness.APART:
            upgrade_files.truncate_log(store, note, at)
        seen = StoreSeen(read_old_store(store), read_note(store))
        if not seen.prepared:
            prepare(store, "classic")

    def back() -> None:
        note = read_note(store)
        if note is not None:
            assert upgrade_files.put_back(store, note) == []

    if again:
        for count in range(200):
            forward()
            found = read_old_store(store)
            assert (found.end, found.epochs) == (at, ((0, 0),)), f"after a crash at change {count}"
            with monkeypatch.context() as patch:
                dying_after(count, patch)
                try:
                    back()
                    break
                except Died:
                    continue
    else:
        forward()
        assert through_crashes(back, monkeypatch) > 8
    back()

    assert tree(store) == before
    assert read_note(store) is None


def other_epochs(store: Path, *pairs: tuple[int, int]) -> None:
    (store / "epochFileCheckpoint").write_bytes(encode_epoch_file(history_of(list(pairs))))


def test_old_epochs_in_the_backup_are_never_replaced(tmp_path: Path) -> None:
    """A broker ran in between and has others: refused, nothing changed. Who moves them keeps both."""
    store, elsewhere = tmp_path / "a", tmp_path / "elsewhere"
    made(store)
    prepare(store)
    kept = store / BACKUP / "epochFileCheckpoint"
    first = kept.read_bytes()
    other_epochs(store, (1, 0), (4, 300), (9, 600))
    before, note = tree(store), upgrade_files.note_of(store, "identity", "g")

    with pytest.raises(CommandFailed, match="the store has another one by now") as told:
        upgrade_files.prepare(store, note, empty=False)

    assert f"move {kept} elsewhere" in told.value.advice
    assert tree(store) == before
    assert kept.read_bytes() == first
    kept.rename(elsewhere)
    upgrade_files.prepare(store, note, empty=False)
    assert read_old_store(store).epochs == ((0, 0),)
    put_back(store)
    assert read_old_store(store).epochs == ((1, 0), (4, 300), (9, 600))
    assert elsewhere.read_bytes() == first


def test_the_same_epochs_that_somebody_put_back_are_moved_again(tmp_path: Path) -> None:
    """By hand, from the backup: nothing is lost when they are moved there a second time."""
    store = tmp_path / "a"
    made(store)
    before = tree(store)
    prepare(store)
    for name in ("epochFileCheckpoint", "epochFileCheckpoint.bak"):
        (store / name).write_bytes((store / BACKUP / name).read_bytes())

    prepare(store)

    assert read_old_store(store).epochs == ((0, 0),)
    put_back(store)
    assert tree(store) == before


@pytest.mark.parametrize("epochs", [True, False])
def test_epochs_that_a_broker_wrote_since_are_kept_when_it_goes_back(tmp_path: Path, epochs: bool) -> None:
    """The old ones return, the others lie in the backup folder, and it is said."""
    store = tmp_path / "a"
    made(store, epochs=epochs)
    before = tree(store)
    prepare(store)
    (store / BACKUP / "epochFileCheckpoint.1").write_bytes(b"from before")
    other_epochs(store, (0, 0), (9, 600))
    written, note = (store / "epochFileCheckpoint").read_bytes(), noted(store)

    said = upgrade_files.put_back(store, note)

    kept = store / BACKUP / "epochFileCheckpoint.2"
    assert said == [f"the epochFileCheckpoint that a broker wrote since is in {kept}"]
    assert kept.read_bytes() == written
    assert (store / BACKUP / "epochFileCheckpoint.1").read_bytes() == b"from before"
    assert tree(store) == before


def test_the_manifest_names_the_epoch_file_that_was_not_there_before(tmp_path: Path) -> None:
    """Who puts a classic store back by hand has to delete it."""
    made(tmp_path / "a", epochs=False)

    upgrade_files.prepare(tmp_path / "a", Note("classic", "g"), empty=False)

    note = noted(tmp_path / "a")
    assert note.made == ("epochFileCheckpoint",)


def written_at(store: Path, offset: int) -> None:
    """What a broker that ran after a cut would leave."""
    file = next(each for each in log_files(store) if each.begin <= offset < each.begin + each.size)
    with file.path.open("r+b") as log:
        log.seek(offset - file.begin)
        log.write(b"written since")


def test_what_a_broker_wrote_after_a_cut_is_not_written_over_by_going_back(tmp_path: Path) -> None:
    """Refused, and nothing changed. Without the copy, the rest goes back, and what did not is said."""
    store = tmp_path / "a"
    at = made(store)[25].offset
    truncate(store, at)
    prepare(store, "classic")
    written_at(store, at + 40)
    (store / "consumequeue").mkdir()
    before, note = tree(store), noted(store)

    with pytest.raises(CommandFailed, match="was written since it was truncated") as told:
        upgrade_files.put_back(store, note)

    assert tree(store) == before
    assert read_note(store) == note
    assert f"move {store / BACKUP / 'cut'} elsewhere" in told.value.advice
    (store / BACKUP / "cut").rename(tmp_path / "elsewhere")
    assert upgrade_files.put_back(store, note) == [
        f"what was cut off from {at:,} on is not in {store / BACKUP / 'cut'} any more"
    ]
    assert read_old_store(store).epochs == ((1, 0), (4, 300))
    assert not any((store / "consumequeue").iterdir()), "queues of the whole log do not belong to this one"
    assert (store / BACKUP / "consumequeue").exists()


def test_a_second_cut_replaces_nothing_of_the_first(tmp_path: Path) -> None:
    """Queues that a broker built since, or another offset: refused, with what to move; nothing changed."""
    store = tmp_path / "a"
    places = made(store)
    truncate(store, places[25].offset)
    before = tree(store)

    with pytest.raises(CommandFailed, match="truncated elsewhere"):
        truncate(store, places[10].offset)
    assert tree(store) == before
    (store / "checkpoint").write_bytes(b"new")
    before = tree(store)
    with pytest.raises(CommandFailed, match="the store has another one by now") as told:
        truncate(store, places[25].offset)

    assert str(store / BACKUP / "checkpoint") in told.value.advice
    assert tree(store) == before


def test_what_a_broker_wrote_after_a_cut_is_not_cut_off_without_a_copy(tmp_path: Path) -> None:
    """The first copy stays, so that of a second cut has no place: refused, and nothing changed."""
    store = tmp_path / "a"
    at = made(store)[25].offset
    truncate(store, at)
    upgrade_files.truncate_log(
        store, upgrade_files.note_of(store, "classic", "g"), at
    )  # as after an interruption
    file = next(each for each in log_files(store) if each.begin <= at < each.begin + each.size)
    with file.path.open("r+b") as log:
        log.seek(at - file.begin + 40)
        log.write(b"new")
    before = tree(store)

    with pytest.raises(CommandFailed, match="has other bytes by now") as told:
        truncate(store, at)

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
    move = upgrade_files.move

    def watched(source: Path, target: Path) -> None:
        free.append(may_be_locked(store))
        move(source, target)

    monkeypatch.setattr(upgrade_files, "move", watched)

    prepare(store)
    put_back(store)

    assert free == [False] * 4
    assert may_be_locked(store)


def test_a_store_on_which_a_new_broker_has_run_is_not_put_back(tmp_path: Path) -> None:
    """Also when it ran after the command had looked: what it took is nowhere else."""
    store = tmp_path / "a"
    made(store)
    prepare(store)
    (store / "brokerIdentity").write_bytes(b"whatever it is")
    before, note = tree(store), noted(store)

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
    note = noted(tmp_path / "a")
    assert note.prepared


def test_controller_data_is_renamed_never_over_something(tmp_path: Path) -> None:
    """It lies alongside; a second folder of the same name is not taken for it."""
    (tmp_path / "controller").mkdir()

    target = upgrade_files.put_aside(tmp_path / "controller")
    (tmp_path / "controller").mkdir()

    assert target == tmp_path / "controller-upgrade-backup"
    with pytest.raises(CommandFailed, match="is there already"):
        upgrade_files.put_aside(tmp_path / "controller")
