"""The end of an adoption in a world that is made up: cut off anywhere, and given again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from brokerset_cli.folder import MANIFEST, DataFolder
from brokerset_cli.output import CommandFailed
from brokerset_cli.takeover import finishing, joined_set
from brokerset_cli.takeover.adopt_plan import Replica
from brokerset_cli.takeover.adoption_journal import ADOPTION, Before, Finishing, Journal
from brokerset_cli.takeover.broker_queries import BrokerQueries
from brokerset_cli.takeover.finish_acts import FinishActs
from brokerset_cli.takeover.finish_observation import FinishObserver, owner_of
from brokerset_cli.takeover.finish_plan import FinishFacts, Owner, OwnGroup
from brokerset_cli.takeover.finishing import Finish
from brokerset_cli.takeover.steps import Step, StepState, current
from brokerset_spec.set_memory import ControllerMemory, GroupMemory, JoinedCluster, SetMemory

NAMES = ("g", "h")
CONTROLLERS = (ControllerMemory(0, 9876, 9877, 9878),)
CALLS_MAX = 10


class Killed(BaseException):
    """The command ends here, as with `kill -9`: nothing of it runs any more."""


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits between two observations."""
    monkeypatch.setattr(finishing, "OBSERVE_SECONDS", 0.0)
    monkeypatch.setattr(finishing, "OWN_OBSERVE_SECONDS", 0.0)


class World(FinishActs):
    """Two groups of two brokers in a folder whose memory and journal are real files."""

    def __init__(self, path: Path) -> None:
        folder, journal, brokers = DataFolder(path), Journal(path), BrokerQueries()
        super().__init__(folder, journal, brokers, FinishObserver(folder, journal, brokers))
        self.path = path
        self.runs = True
        self.under = "java"
        """Whose controllers the brokers that run belong to."""

        self.known: set[str] = set()
        """Groups that our controllers know."""

        self.java_answers = True
        self.java_knows_ours = True
        self.java_joins_at_stop = False
        """Whether a Java broker gets in sync right before our brokers stop, and is elected."""

        self.java_in_sync: tuple[str, ...] = ()
        self.next_id = 5
        self.acts: list[str] = []
        self.kill_at = -1
        """Before or after which act the command is killed; two places for each."""

        folder.claim("adopted-c").release()
        manifest = joined_set.make_manifest("c", list(NAMES), 2, {})
        (path / MANIFEST).write_text(manifest.model_dump_json(by_alias=True, exclude_unset=True))
        groups = {name: GroupMemory((0, 1), 2) for name in NAMES}
        memory = SetMemory(
            "uid", host="127.0.0.1", groups=groups, joined_cluster_of=JoinedCluster("j:9878", "j:9876")
        )
        folder.write_memory(memory)
        journal.begin({name: (1, 2) for name in NAMES}, 2)

    # -- as they are seen ---------------------------------------------------------------------------------

    async def observe(self) -> FinishFacts:
        memory, remembered, finished = self.folder.memory(), self.journal.read(), self.journal.finishing
        name_servers = joined_set.own_name_servers(memory)
        return FinishFacts(
            owner=owner_of(memory),
            folder=str(self.path),
            groups=tuple(self.group(name, owner_of(memory)) for name in NAMES),
            set_runs=self.runs,
            serving=self.runs,
            controllers_answer=self.runs,
            java_answers=self.java_answers,
            whole_seen=finished is not None,
            clients_moved=remembered is not None and remembered.clients_moved,
            own_begun=finished is not None and finished.own_since_ms > 0,
            name_servers=name_servers,
            java_name_servers="j:9876",
            java_controllers="j:9878",
            missing=() if name_servers and self.runs else ("g at o:1",),
            remembered=remembered is not None,
        )

    def group(self, name: str, standing: Owner) -> OwnGroup:
        replicas = tuple(Replica(n, f"o:{n}", self.runs, True, True) for n in (3, 4))
        if standing is Owner.JOINED:
            found = OwnGroup(name, 2, replicas if self.runs else (), 3 if self.runs else None)
            return replace(found, java_in_sync=self.java_in_sync if self.java_answers else ())
        if name in self.known and self.runs:
            return OwnGroup(name, 2, replicas, 3, known=True)
        return OwnGroup(name, 2, answered=2 if self.runs else 0)

    # -- acts ---------------------------------------------------------------------------------------------

    def act(self, name: str) -> Iterator[None]:
        """Yields once, where the effect belongs; the command may be killed before and behind it."""
        if self.kill_at == 2 * len(self.acts):
            self.kill_at = -1
            raise Killed
        self.acts.append(name)
        yield
        if self.kill_at == 2 * len(self.acts) - 1:
            self.kill_at = -1
            raise Killed

    async def put_back(self) -> None:
        for _ in self.act("put-back"):
            pass

    async def seen_whole(self) -> Finishing:
        for _ in self.act("seen-whole"):
            pass
        return Finishing("j:9878", "j:9876", {"g": ("j:1",)}, dict.fromkeys(NAMES, self.next_id))

    async def run_name_servers(self, facts: FinishFacts) -> None:
        for _ in self.act("name-servers"):
            assert self.runs, "controllers are started next to brokers that run"
            self.folder.write_memory(replace(self.folder.memory(), controllers=CONTROLLERS))

    def stop(self) -> None:
        for _ in self.act("stop"):
            remembered = self.journal.read()
            assert remembered is not None
            assert remembered.clients_moved, "clients have moved before brokers stop"
            assert remembered.finishing is not None
            assert remembered.finishing.own_since_ms > 0, "what is about to happen is on the disk before"
            assert remembered.finishing.ours == {name: (3, 4) for name in NAMES}
            self.runs = False
            if self.java_joins_at_stop:
                self.java_in_sync = ("j:1",)

    def start(self) -> None:
        for _ in self.act("start"):
            standing = owner_of(self.folder.memory())
            assert standing is not Owner.JOINED or self.java_answers, "they could not start"
            self.under = "java" if standing is Owner.JOINED else "ours"
            self.runs = True

    async def rebuild(self, names: list[str]) -> None:
        assert names
        for name in names:
            for _ in self.act(f"rebuild {name}"):
                assert self.under == "ours", "only brokers of ours are proposed to our controllers"
                assert name not in self.known, "a group is proposed once"
                self.known.add(name)

    async def leave_name_servers(self) -> None:
        for _ in self.act("leave"):
            memory = self.folder.memory()
            assert owner_of(memory) is not Owner.JOINED
            assert self.known == set(NAMES), "our controllers know all before anybody leaves"
            self.folder.write_memory(replace(memory, joined_cluster_of=None))

    async def forget(self) -> None:
        for _ in self.act("forget"):
            assert owner_of(self.folder.memory()) is Owner.ORDINARY
            assert self.journal.read() is not None, "what they are to forget is known"
            self.java_knows_ours = not self.java_answers

    # -- calls --------------------------------------------------------------------------------------------

    def call(self, *, clients_moved: bool = False, last: str | None = None) -> tuple[Step, ...]:
        """One call of the command with `--yes`."""

        return go(self, clients_moved=clients_moved, last=last)[1]

    def finish(self) -> tuple[Step, ...]:
        """Call again and again, until all of it is done."""
        for _ in range(CALLS_MAX):
            try:
                steps = self.call(clients_moved=True)
            except Killed:
                continue
            if current(steps) is None:
                return steps
        raise AssertionError(f"it does not end: {self.acts}")


def go(
    world: World, *, yes: bool = True, clients_moved: bool = False, last: str | None = None
) -> tuple[Finish, tuple[Step, ...]]:
    """One call of the command, and the steps at its end."""

    async def run() -> tuple[Finish, tuple[Step, ...]]:
        call = Finish(world, yes=yes, clients_moved=clients_moved)
        return call, await call.go(last)

    return asyncio.run(run())


def test_one_call_goes_to_the_clients_and_the_next_to_the_end(tmp_path: Path) -> None:
    """Nobody can have moved before our name servers ran, so the flag counts from the second call on."""
    world = World(tmp_path / "ours")

    first = current(world.call(clients_moved=True))
    second = world.call(clients_moved=True)

    assert first is not None
    assert (first.name, first.state) == ("clients", StepState.YOURS)
    assert current(second) is None
    assert [act for act in world.acts if act != "put-back"] == [
        "seen-whole", "name-servers",
        "seen-whole", "stop", "start", "rebuild g", "rebuild h", "leave", "forget",
    ]  # fmt: skip
    assert not (tmp_path / "ours" / ADOPTION).exists()
    assert world.folder.memory().joined_cluster_of is None
    assert not world.java_knows_ours


@pytest.mark.parametrize("java_answers", [True, False])
@pytest.mark.parametrize("place", range(28))
def test_a_call_that_is_killed_anywhere_is_given_again_and_finishes(
    tmp_path: Path, place: int, java_answers: bool
) -> None:
    """Before and behind each act. Java's controllers may have ended when every group was seen to be ours."""
    world = World(tmp_path / "ours")
    world.call(last="whole")
    world.java_answers = java_answers
    world.kill_at = 2 * len(world.acts) + place

    world.finish()

    assert world.runs
    assert world.under == "ours"
    assert world.known == set(NAMES)
    assert owner_of(world.folder.memory()) is Owner.ORDINARY
    assert not (tmp_path / "ours" / ADOPTION).exists()
    assert world.acts.count("stop") <= 2
    assert world.acts.count("forget") >= 1


def test_a_kill_behind_the_last_act_finds_no_place(tmp_path: Path) -> None:
    """The places above are all of them: each act of the shortest way has two."""
    world = World(tmp_path / "ours")
    world.call(last="whole")
    before = len(world.acts)

    world.finish()

    assert 2 * (len(world.acts) - before) <= 28


def test_a_stop_before_the_set_knows_whose_it_is_goes_on_without_java(tmp_path: Path) -> None:
    """Our brokers have stopped, and Java's controllers with them: they could not start as guests any more."""
    world = World(tmp_path / "ours")
    world.call()
    world.kill_at = 2 * len(world.acts) + 5  # behind `stop`
    with pytest.raises(Killed):
        world.call(clients_moved=True)
    world.java_answers = False

    assert owner_of(world.folder.memory()) is Owner.JOINED
    assert not world.runs
    assert current(world.call()) is None
    assert world.acts.count("stop") == 2, "an `up` that was killed may have left something behind"


def test_a_java_broker_that_is_elected_in_the_moment_of_the_stop_is_not_left_behind(tmp_path: Path) -> None:
    """It may take messages that ours lack: nothing is started under our controllers, and a way on is said."""
    world = World(tmp_path / "ours")
    world.call()
    world.java_joins_at_stop = True

    for _ in range(2):
        step = current(world.call(clients_moved=True))

        assert step is not None
        assert (step.name, step.state) == ("own", StepState.BLOCKED)
        assert "j:1 counts as in sync" in step.detail
        assert "`brokerset up --detach" in step.hint
    assert owner_of(world.folder.memory()) is Owner.JOINED
    assert "start" not in world.acts

    world.start()  # as the hint says; they follow it, are elected again, and it is stopped
    world.java_in_sync, world.java_joins_at_stop = (), False

    world.finish()
    assert world.under == "ours"


def test_ids_that_were_given_after_the_first_look_are_remembered_before_our_brokers_stop(
    tmp_path: Path,
) -> None:
    """Clients may take weeks to move, and brokers may come and go meanwhile."""
    world = World(tmp_path / "ours")
    world.call()
    world.next_id = 9

    world.call(clients_moved=True, last="own")

    remembered = world.journal.read()
    assert remembered is not None
    assert remembered.finishing is not None
    assert remembered.finishing.next_ids == {"g": 9, "h": 9}
    assert remembered.finishing.ours == {"g": (3, 4), "h": (3, 4)}


def test_the_pause_is_measured_from_the_stop_to_the_masters(tmp_path: Path) -> None:
    """For each group; a call that only finds masters has measured nothing."""
    world = World(tmp_path / "ours")
    world.call()

    one, _ = go(world, clients_moved=True, last="own")
    other, _ = go(world)

    assert set(one.pauses) == set(NAMES)
    assert all(0 < seconds < 60 for seconds in one.pauses.values())
    assert other.pauses == {}


def test_a_set_that_does_not_start_says_why_and_the_next_call_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of the start ends the command, though it comes from another thread."""
    world = World(tmp_path / "ours")
    world.call()

    def fails() -> None:
        raise CommandFailed("the set did not start: no room")

    with monkeypatch.context() as patch:
        patch.setattr(world, "start", fails)
        with pytest.raises(CommandFailed, match="no room"):
            world.call(clients_moved=True)

    assert owner_of(world.folder.memory()) is Owner.OWN
    assert current(world.call()) is None


def test_own_stops_at_a_question_that_is_not_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --yes the step without a way back is asked for, by its title; no means that nothing is done."""
    world = World(tmp_path / "ours")
    world.call()
    world.journal.clients_have_moved()
    asked: list[str] = []

    def confirm(text: str, **_: object) -> bool:
        asked.append(text)
        raise KeyboardInterrupt

    monkeypatch.setattr("click.confirm", confirm)

    with pytest.raises(KeyboardInterrupt):
        go(world, yes=False)

    assert len(asked) == 1
    assert "There is no way back" in asked[0]
    assert "stop" not in world.acts


@pytest.mark.parametrize(("answer", "moved"), [(True, True), (False, False)])
def test_at_a_terminal_it_is_asked_whether_clients_have_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bool, moved: bool
) -> None:
    """The question names our name servers; no ends the call with the step as the person's."""
    world = World(tmp_path / "ours")
    world.call()
    asked: list[str] = []

    def confirm(text: str, **_: object) -> bool:
        asked.append(text)
        return answer

    monkeypatch.setattr("click.confirm", confirm)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)

    step = current(go(world, yes=False, last="clients")[1])

    remembered = world.journal.read()
    assert remembered is not None
    assert remembered.clients_moved is moved
    assert (step is None) is moved
    assert asked == ["clients: Do all clients use namesrvAddr=127.0.0.1:9876?"]


# -- the journal ------------------------------------------------------------------------------------------


def test_a_journal_of_an_earlier_release_is_read(tmp_path: Path) -> None:
    """What it does not have yet has not happened."""
    value = {"groups": {"g": [1, 2]}, "replicas": 2, "changed": []}
    (tmp_path / ADOPTION).write_text(json.dumps(value))

    found = Journal(tmp_path).read()

    assert found is not None
    assert found.finishing is None
    assert found.clients_moved is False


def test_what_is_remembered_survives_every_other_change(tmp_path: Path) -> None:
    """Each field is written whole, under the names that every release reads."""
    journal = Journal(tmp_path)
    journal.begin({"g": (1, 2)}, 2)
    journal.remember(Before("g", "j:1", {"brokerPermission": "6"}))
    journal.elects("j:1", 77)
    journal.finish(Finishing("j:9878", "j:9876", {"g": ("j:1", "j:2")}, {"g": 5}))
    journal.clients_have_moved()
    journal.begin_own({"g": (3, 4)})

    written = json.loads((tmp_path / ADOPTION).read_bytes())

    assert written["finishing"].pop("ownSinceMs") > 0
    assert written == {
        "groups": {"g": [1, 2]},
        "replicas": 2,
        "changed": [
            {"group": "g", "address": "j:1", "settings": {"brokerPermission": "6"}, "elected_ms": 77}
        ],
        "finishing": {
            "controllers": "j:9878",
            "nameServers": "j:9876",
            "java": {"g": ["j:1", "j:2"]},
            "nextIds": {"g": 5},
            "ours": {"g": [3, 4]},
        },
        "clientsMoved": True,
    }
    found = Journal(tmp_path).read()
    assert found is not None
    assert found.changed == (Before("g", "j:1", {"brokerPermission": "6"}, 77),)
    assert found.finishing is not None
    assert found.finishing.java == {"g": ("j:1", "j:2")}

    journal.go_back()

    found = Journal(tmp_path).read()
    assert found is not None
    assert (found.groups, found.finishing, found.clients_moved) == ({"g": (1, 2)}, None, False)


def test_going_back_where_nothing_is_remembered_writes_nothing(tmp_path: Path) -> None:
    """Also in a folder without a journal."""
    Journal(tmp_path).go_back()

    assert not (tmp_path / ADOPTION).exists()


def test_the_end_of_a_journal_can_be_repeated(tmp_path: Path) -> None:
    """A call that was killed right behind it is given again."""
    journal = Journal(tmp_path)
    journal.begin({"g": (1,)}, 1)

    journal.end()
    journal.end()

    assert journal.read() is None
