"""How `upgrade` asks, starts brokers and goes back."""

from __future__ import annotations

import time
from pathlib import Path

import click
import pytest

from brokerset_cli.output import CommandFailed
from brokerset_cli.takeover import upgrade, upgrade_files
from brokerset_cli.takeover.old_store import BACKUP, read_note, read_old_store
from brokerset_cli.takeover.steps import Step, StepState
from brokerset_cli.takeover.upgrade_acts import Act, CutLog, TakeNote
from brokerset_cli.takeover.upgrade_facts import Flow, GroupSeen, Note, ReplicaSeen, StoreSeen, World
from brokerset_cli.takeover.upgrade_look import Looker, Where, is_local
from brokerset_cli.takeover.upgrade_plan import Plan

READY = Step("logs", "A log is cut.", StepState.READY)


def where(*stores: Path) -> Where:
    return Where(Flow.CLASSIC, stores, (), ("127.0.0.1:1",))


def work(store: Path, *, yes: bool = False, start_with: str = "") -> upgrade.Upgrade:
    return upgrade.Upgrade(where(store), start_with=start_with, yes=yes, wait=0, quiet=True)


def world_of(*stores: Path, replicas: GroupSeen | None = None) -> World:
    seen = tuple(StoreSeen(read_old_store(each), read_note(each)) for each in stores)
    return World(Flow.CLASSIC, "g", seen, replicas=replicas)


def made(store: Path) -> Path:
    (store / "config").mkdir(parents=True)
    return store


@pytest.mark.parametrize("yes", [False, True])
def test_what_changed_while_the_person_was_asked_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, yes: bool
) -> None:
    """An offset that is another one after the answer is asked for again; only what was agreed to is done."""
    store = made(tmp_path / "a")
    call, done, asked, offset = work(store, yes=yes), list[Act](), list[int](), [100]

    def look() -> tuple[World, Plan]:
        act = None if done else CutLog(str(store), offset[0])
        return world_of(store), Plan((READY,) if act else (), act, "")

    def confirm(*_: object, **__: object) -> bool:
        asked.append(offset[0])
        offset[0] = 200
        return True

    monkeypatch.setattr(call, "look", look)
    monkeypatch.setattr(call, "_do", lambda act, world: done.append(act))
    monkeypatch.setattr(click, "confirm", confirm)

    call.run()

    assert done == [CutLog(str(store), 100 if yes else 200)]
    assert asked == ([] if yes else [100, 200])


def test_what_has_no_effect_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that says yes and does not do it ends the command, which else went on for ever."""
    store = made(tmp_path / "a")
    call, done, asked = work(store), list[Act](), list[str]()
    plan = Plan((READY,), CutLog(str(store), 1), "")
    monkeypatch.setattr(click, "confirm", lambda text, **_: asked.append(text))
    monkeypatch.setattr(call, "look", lambda: (world_of(store), plan))
    monkeypatch.setattr(call, "_do", lambda act, world: done.append(act))

    with pytest.raises(CommandFailed, match="not seen to be done"):
        call.run()

    assert len(asked) == 1
    assert len(done) == upgrade.REPEATS_MAX > upgrade.SERVICE_SECONDS_MAX / upgrade.LOOK_SECONDS


def test_a_command_that_starts_a_service_and_ends_is_given_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`systemctl start` ends before the service locks the store: it is neither repeated nor a failure."""
    store = made(tmp_path / "a")
    (store / BACKUP).mkdir()
    monkeypatch.setattr(upgrade, "LOOK_SECONDS", 0.01)
    call = work(store, yes=True, start_with="sh -c 'echo {number} >> {store}/started'")

    call._start(store)
    call._started[store][0].wait(10)
    call._start(store)

    assert (store / "started").read_text() == "0\n"
    process, since = call._started[store]
    call._started[store] = process, since - upgrade.SERVICE_SECONDS_MAX
    with pytest.raises(CommandFailed, match="has ended"):
        call._start(store)


def test_a_command_that_fails_is_told_at_once(tmp_path: Path) -> None:
    """Its last words are in the error."""
    store = made(tmp_path / "a")
    (store / BACKUP).mkdir()
    call = work(store, yes=True, start_with="sh -c 'echo no such port; exit 3'")
    began = time.monotonic()

    call._start(store)
    call._started[store][0].wait(10)
    with pytest.raises(CommandFailed, match="no such port"):
        call._start(store)

    assert time.monotonic() - began < upgrade.SERVICE_SECONDS_MAX


def test_words_of_the_start_command_are_filled_in_one_by_one() -> None:
    """A path with a blank stays one word, and braces of others stay as they are."""
    found = upgrade.start_command("run '${HOME} {}' {store} b-{number}", Path("/my data/a"), 2)

    assert found == ["run", "${HOME} {}", "/my data/a", "b-2"]
    for text in ("broken 'quote", " "):
        with pytest.raises(click.BadParameter):
            upgrade.start_command(text, Path("/a"), 0)


def go_back(monkeypatch: pytest.MonkeyPatch, store: Path, replicas: GroupSeen | None = None) -> list[str]:
    monkeypatch.setattr(Looker, "look", lambda self: world_of(store, replicas=replicas))
    return upgrade.go_back(where(store), yes=True)


def test_a_permission_that_cannot_be_put_back_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped master keeps in its settings file that it takes no sends: the person learns what to set."""
    store = made(tmp_path / "a")
    upgrade_files.write_note(store, Note("classic", "g", "h:1", True, 1, 6))

    said = go_back(monkeypatch, store)

    assert any("h:1 does not answer" in each and "brokerPermission=6" in each for each in said)


def test_there_is_no_way_back_once_the_group_is_known_to_the_new_controllers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker on another host has run already, and took messages perhaps."""
    store = made(tmp_path / "a")
    upgrade_files.prepare(store, Note("classic", "g"), empty=True)
    known = GroupSeen(1, 1, (ReplicaSeen(1, "far:1", True, True),))

    with pytest.raises(CommandFailed, match="know g already"):
        go_back(monkeypatch, store, known)

    assert read_note(store) is not None
    assert go_back(monkeypatch, store)
    assert read_note(store) is None


def test_a_disk_that_refuses_is_an_error_with_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full or read-only disk ends the command with the file and what to do, not with a trace."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "manifest.json")

    monkeypatch.setattr(upgrade_files, "write_note", full)
    act = TakeNote(str(tmp_path), "h:1", True, 1)

    with pytest.raises(CommandFailed, match=r"manifest\.json .* No space left"):
        work(tmp_path, yes=True)._do(act, world_of())


@pytest.mark.parametrize(("address", "local"), [("127.0.0.1:1", True), ("192.0.2.1:1", False)])
def test_addresses_of_this_machine_are_known(address: str, local: bool) -> None:
    """192.0.2.0/24 is nobody's."""
    assert is_local(address) is local
