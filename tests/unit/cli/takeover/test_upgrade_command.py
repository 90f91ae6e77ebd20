"""How `upgrade` asks, starts brokers and goes back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from brokerset_cli.main import main
from brokerset_cli.output import CommandFailed, fail
from brokerset_cli.takeover import upgrade, upgrade_acts, upgrade_back, upgrade_files
from brokerset_cli.takeover.adopt_plan import GroupFacts, Replica
from brokerset_cli.takeover.java_switchover import ACCEPTS, PERMISSION
from brokerset_cli.takeover.old_store import BACKUP, read_note, read_old_store
from brokerset_cli.takeover.steps import Step, ready
from brokerset_cli.takeover.upgrade_acts import UpgradeActs
from brokerset_cli.takeover.upgrade_back import Back
from brokerset_cli.takeover.upgrade_facts import (
    Act,
    Note,
    Origin,
    PutAside,
    SetPermission,
    StartBroker,
    StoreSeen,
    TakeNote,
    TruncateLog,
    World,
)
from brokerset_cli.takeover.upgrade_files import command_lock
from brokerset_cli.takeover.upgrade_observation import UpgradeObserver, Where, is_local
from brokerset_client.errors import BrokerUnreachable


def where(*stores: Path) -> Where:
    return Where(Origin.CLASSIC, stores, (), ("127.0.0.1:1",))


def flow_of(
    store: Path, monkeypatch: pytest.MonkeyPatch, plan: Callable[[list[Act]], Act | None], *, yes: bool
) -> tuple[upgrade.Upgrade, list[Act]]:
    """A flow with one step, for which `plan` says what is to be done after what was done; and that."""
    call, done = upgrade.Upgrade(where(store), start_with="", yes=yes, wait=0, quiet=True), list[Act]()

    async def observe(_: UpgradeObserver) -> World:
        return world_of(store)

    async def carry_out(_: UpgradeActs, act: Act, world: World) -> None:
        done.append(act)

    def steps(world: World) -> tuple[Step, ...]:
        act = plan(done)
        return (Step("logs", "A log is cut.", *ready(act=act)),) if act is not None else ()

    monkeypatch.setattr(UpgradeObserver, "observe", observe)
    monkeypatch.setattr(UpgradeActs, "carry_out", carry_out)
    monkeypatch.setattr(call, "plan", steps)
    return call, done


def carry_out(store: Path, act: Act, world: World | None = None) -> None:
    """One act, as the flow does it."""
    acts = UpgradeActs(where(store), start_with="")
    asyncio.run(acts.carry_out(act, world_of(store) if world is None else world))


def world_of(*stores: Path, replicas: GroupFacts | None = None) -> World:
    seen = tuple(StoreSeen(read_old_store(each), read_note(each)) for each in stores)
    return World(Origin.CLASSIC, "g", seen, replicas=replicas)


def made(store: Path) -> Path:
    (store / "config").mkdir(parents=True)
    return store


@pytest.mark.parametrize("yes", [False, True])
def test_what_changed_while_the_person_was_asked_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, yes: bool
) -> None:
    """An offset that is another one after the answer is asked for again; only what was agreed to is done."""
    store, asked, offset = made(tmp_path / "a"), list[int](), [100]
    call, done = flow_of(
        store, monkeypatch, lambda done: None if done else TruncateLog(str(store), offset[0]), yes=yes
    )

    def confirm(*_: object, **__: object) -> None:
        asked.append(offset[0])
        offset[0] = 200

    monkeypatch.setattr(click, "confirm", confirm)

    with command_lock([store]) as call.lock:
        asyncio.run(call.run())

    assert done == [TruncateLog(str(store), 100 if yes else 200)]
    assert asked == ([] if yes else [100, 200])


@pytest.mark.parametrize("named", ["elsewhere", "stores", "a/"])
def test_only_a_store_of_this_call_can_be_allowed_to_be_cut(tmp_path: Path, named: str) -> None:
    """A mistyped name would be a permission that nobody gets, and the upgrade would ask for it again."""
    store = made(tmp_path / "a")
    options = ["--controllers", "127.0.0.1:1", "--namesrv", "127.0.0.1:1", "--look", "--store", str(store)]

    result = CliRunner().invoke(main, ["upgrade", "classic", *options, "--accept-cut", f"{tmp_path}/{named}"])

    assert ("is none of the stores given with --store" in result.output) == (named != "a/")
    assert (result.exit_code == 2) == (named != "a/")


def test_what_has_no_effect_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that says yes and does not do it ends the command, which else went on permanently."""
    store, asked = made(tmp_path / "a"), list[str]()
    call, done = flow_of(store, monkeypatch, lambda done: TruncateLog(str(store), 1), yes=False)
    monkeypatch.setattr(click, "confirm", lambda text, **_: asked.append(text))

    with command_lock([store]) as call.lock, pytest.raises(CommandFailed, match="not seen to be done"):
        asyncio.run(call.run())

    assert len(asked) == 1
    assert len(done) == upgrade.REPEATS_MAX > upgrade_acts.SERVICE_SECONDS_MAX / upgrade_acts.OBSERVE_SECONDS


def start(call: UpgradeActs, store: Path) -> None:
    asyncio.run(call.carry_out(StartBroker(str(store)), world_of(store)))


def test_a_command_that_starts_a_service_and_ends_is_given_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`systemctl start` ends before the service locks the store: it is neither repeated nor a failure."""
    store = made(tmp_path / "a")
    (store / BACKUP).mkdir()
    monkeypatch.setattr(upgrade_acts, "OBSERVE_SECONDS", 0.01)
    call = UpgradeActs(where(store), start_with="sh -c 'echo {number} >> {store}/started'")

    start(call, store)
    call._started[store][0].wait(10)
    start(call, store)

    assert (store / "started").read_text() == "0\n"
    process, since = call._started[store]
    call._started[store] = process, since - upgrade_acts.SERVICE_SECONDS_MAX
    with pytest.raises(CommandFailed, match="has ended"):
        start(call, store)


def test_a_command_that_fails_is_told_at_once(tmp_path: Path) -> None:
    """Its last words are in the error."""
    store = made(tmp_path / "a")
    (store / BACKUP).mkdir()
    call = UpgradeActs(where(store), start_with="sh -c 'echo no such port; exit 3'")
    began = time.monotonic()

    start(call, store)
    call._started[store][0].wait(10)
    with pytest.raises(CommandFailed, match="no such port"):
        start(call, store)

    assert time.monotonic() - began < upgrade_acts.SERVICE_SECONDS_MAX


def test_words_of_the_start_command_are_filled_in_one_by_one() -> None:
    """A path with a blank stays one word, and braces of others stay as they are."""
    found = upgrade_acts.start_command("run '${HOME} {}' {store} b-{number}", Path("/my data/a"), 2)

    assert found == ["run", "${HOME} {}", "/my data/a", "b-2"]
    for text in ("broken 'quote", " "):
        with pytest.raises(click.BadParameter):
            upgrade_acts.start_command(text, Path("/a"), 0)


class FakeBrokerQueries:
    """A broker that answers, keeps what it is told, and may fail before it does."""

    def __init__(self, settings: dict[str, str], *, fails: bool = False) -> None:
        self.kept = dict(settings)
        self._fails = fails

    def __call__(self) -> FakeBrokerQueries:
        return self

    async def __aenter__(self) -> FakeBrokerQueries:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def settings(self, address: str) -> dict[str, str]:
        return self.kept

    async def measurements(self, address: str) -> dict[str, str]:
        return {"bootTimestamp": "1000", "runtime": "[ 0 days, 0 hours, 0 minutes, 9 seconds ]"}

    async def change(self, address: str, changes: dict[str, str]) -> None:
        if self._fails:
            raise BrokerUnreachable(address, "it is gone")
        self.kept.update(changes)


@pytest.mark.parametrize("value", [4, 6])
def test_a_permission_says_nothing_of_whether_every_send_is_turned_away(
    monkeypatch: pytest.MonkeyPatch, value: int
) -> None:
    """Who had brokerPermission=4 before took sends all the same: giving that back opens the broker."""
    broker = FakeBrokerQueries({ACCEPTS: "0", PERMISSION: "6"})
    monkeypatch.setattr(upgrade_acts, "BrokerQueries", broker)

    asyncio.run(upgrade_acts.set_permission("h:1", 4, closes=True))
    assert broker.kept == {ACCEPTS: str(10_000 + upgrade_acts.CLOSED_MS), PERMISSION: "4"}
    asyncio.run(upgrade_acts.set_permission("h:1", value, closes=False))
    assert broker.kept == {ACCEPTS: "0", PERMISSION: str(value)}


def test_what_a_master_allowed_is_on_the_disk_before_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its address, so that `--back` finds it; a broker that does not take it ends the command."""
    store = made(tmp_path / "a")
    monkeypatch.setattr(upgrade_acts, "BrokerQueries", FakeBrokerQueries({ACCEPTS: "0"}, fails=True))

    with pytest.raises(CommandFailed, match="did not take brokerPermission=4"):
        carry_out(store, SetPermission("h:1", 4, 4, str(store), closes=True))

    note = read_note(store)
    assert note is not None
    assert (note.permission, note.address) == (4, "h:1")


def test_a_closed_master_is_opened_again_with_what_it_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--back` while it runs: 4 if it had 4, and no send is turned away any more."""
    store = made(tmp_path / "a")
    upgrade_files.write_note(store, Note("classic", "g", "h:1", True, 1, 4))
    broker = FakeBrokerQueries({ACCEPTS: "99999", PERMISSION: "4"})
    monkeypatch.setattr(upgrade_acts, "BrokerQueries", broker)

    said = go_back(monkeypatch, store, port_open=True)

    assert broker.kept == {ACCEPTS: "0", PERMISSION: "4"}
    assert said == Back(("h:1 has brokerPermission=4 again", f"{store} is as it was"), ())


# -- back -------------------------------------------------------------------------------------------------


def go_back(
    monkeypatch: pytest.MonkeyPatch,
    store: Path,
    replicas: GroupFacts | None = None,
    *,
    data: tuple[Path, ...] = (),
    port_open: bool = False,
    problem: str = "",
) -> Back:
    async def observe(_: UpgradeObserver, *, logs: bool) -> World:
        assert not logs, "nobody needs to read logs for that"
        seen = world_of(store, replicas=replicas)
        stores = tuple(replace(each, port_open=port_open) for each in seen.stores)
        return replace(seen, stores=stores, controllers_problem=problem)

    monkeypatch.setattr(UpgradeObserver, "observe", observe)
    said: list[str] = []
    going = upgrade_back.go_back(replace(where(store), old_data=data), yes=True, say=said.append)
    found = asyncio.run(going)
    assert found.left == tuple(said)
    return found


def observed(monkeypatch: pytest.MonkeyPatch, *worlds: World) -> None:
    """What is seen, one observation after the other."""
    seen = iter(worlds)

    async def observe(_: UpgradeObserver, *, logs: bool) -> World:
        return next(seen)

    monkeypatch.setattr(UpgradeObserver, "observe", observe)


def test_a_permission_that_cannot_be_put_back_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped master keeps in its settings file that it takes no sends: the person learns what to set."""
    store = made(tmp_path / "a")
    upgrade_files.write_note(store, Note("classic", "g", "h:1", True, 1, 6))

    (said,) = go_back(monkeypatch, store).left

    assert said.startswith("h:1 does not answer")
    assert "set brokerPermission=6 and startAcceptSendRequestTimeStamp=0 in its settings file" in said


def test_what_is_left_is_said_before_it_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after that, the command has told what the manifest knew."""
    store = made(tmp_path / "a")
    upgrade_files.write_note(store, Note("classic", "g", "h:1", True, 1, 4))
    said: list[str] = []

    def die(line: str) -> None:
        said.append(line)
        raise KeyboardInterrupt

    observed(monkeypatch, world_of(store), world_of(store))
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(upgrade_back.go_back(where(store), yes=True, say=die))

    assert "brokerPermission=4" in said[0]
    assert read_note(store) is not None


def test_there_is_no_way_back_once_the_group_is_known_to_the_new_controllers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker on another host has run already, and took messages perhaps."""
    store = made(tmp_path / "a")
    upgrade_files.prepare(store, Note("classic", "g"), empty=True)
    known = GroupFacts("g", 1, (Replica(1, "far:1", True, True),))

    with pytest.raises(CommandFailed, match="know g already"):
        go_back(monkeypatch, store, known)

    assert read_note(store) is not None
    assert go_back(monkeypatch, store).done
    assert read_note(store) is None


def test_controllers_that_cannot_be_asked_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker elsewhere may have run; who goes back without asking them is told so."""
    store = made(tmp_path / "a")
    upgrade_files.prepare(store, Note("classic", "g"), empty=True)

    said = go_back(monkeypatch, store, problem="none answers")

    assert "could not be asked (none answers)" in said.done[-1]
    assert go_back(monkeypatch, store, problem="none answers") == Back((), ())


def test_a_controllers_folder_that_stands_in_two_places_is_left_to_the_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which one is the old one's is said, and what to do. The next call says it again, until it is done."""
    store, data = made(tmp_path / "a"), tmp_path / "controller"
    aside = tmp_path / "controller-upgrade-backup"
    for folder in (data, aside):
        folder.mkdir()
    wanted = f"{data} was not put back: the old controllers' data is in {aside}"

    (said,) = go_back(monkeypatch, store, data=(data,)).left

    assert said.startswith(wanted)
    assert f"move it elsewhere, then rename {aside} to {data}" in said
    assert go_back(monkeypatch, store, data=(data,)).left == (said,)
    data.rmdir()
    assert go_back(monkeypatch, store, data=(data,)) == Back((f"{data} is in its place again",), ())
    assert go_back(monkeypatch, store, data=(data,)) == Back((), ())
    data.rmdir()
    (lost,) = go_back(monkeypatch, store, data=(data,)).left
    assert lost.startswith(f"neither {data} nor {aside} is there")


def test_a_folder_that_was_moved_comes_back_without_being_named_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest of the first store has it, from before it was moved."""
    store, data = made(tmp_path / "a"), tmp_path / "controller"
    data.mkdir()
    with monkeypatch.context() as dying:
        dying.setattr(upgrade_files, "put_aside", lambda folder: fail("died"))
        with pytest.raises(CommandFailed, match="died"):
            carry_out(store, PutAside(str(data)))
    note = read_note(store)
    assert note is not None
    assert note.aside == (str(data),)
    carry_out(store, PutAside(str(data)))
    assert not data.exists()

    said = go_back(monkeypatch, store)

    assert said.done[0] == f"{data} is in its place again"
    assert data.is_dir()


def test_what_came_while_the_person_was_asked_stops_the_way_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new broker was started before the answer: refused, nothing changed."""
    store = made(tmp_path / "a")
    upgrade_files.prepare(store, Note("classic", "g"), empty=True)
    known = GroupFacts("g", 1, (Replica(1, "far:1", True, True),))
    observed(monkeypatch, world_of(store), world_of(store, replicas=known))
    monkeypatch.setattr(click, "confirm", lambda *_, **__: True)

    with pytest.raises(CommandFailed, match="know g already"):
        asyncio.run(upgrade_back.go_back(where(store), yes=False, say=print))

    assert read_note(store) is not None


# -- errors -----------------------------------------------------------------------------------------------


def test_a_manifest_that_cannot_be_read_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    """Not a trace; forth and back."""
    store = made(tmp_path / "a")
    (store / BACKUP).mkdir()
    (store / BACKUP / "manifest.json").mkdir()

    calls = (
        lambda: UpgradeObserver(where(store)).observe(),
        lambda: upgrade_back.go_back(where(store), yes=True, say=print),
    )
    for call in calls:
        with pytest.raises(CommandFailed, match=r"manifest\.json cannot be read") as told:
            asyncio.run(call())
        assert "repeat this" in told.value.advice


def test_a_disk_that_refuses_is_an_error_with_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full or read-only disk ends the command with the file and what to do, not with a trace."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "manifest.json")

    monkeypatch.setattr(upgrade_files, "write_note", full)
    act = TakeNote(str(tmp_path), "h:1", True, 1)

    with pytest.raises(CommandFailed, match=r"manifest\.json .* No space left"):
        carry_out(tmp_path, act, world_of())


@pytest.mark.parametrize(("address", "local"), [("127.0.0.1:1", True), ("192.0.2.1:1", False)])
def test_addresses_of_this_machine_are_known(address: str, local: bool) -> None:
    """192.0.2.0/24 is nobody's."""
    assert is_local(address) is local
