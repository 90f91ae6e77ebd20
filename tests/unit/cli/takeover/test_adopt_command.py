"""What `adopt` says before it has met anybody."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from brokerset_cli.down import down
from brokerset_cli.folder import CHANGE_LOCK, MANIFEST, DataFolder
from brokerset_cli.folder import LOCK as UP_LOCK
from brokerset_cli.output import CommandFailed
from brokerset_cli.takeover import joined_set
from brokerset_cli.takeover.adopt import adopt
from brokerset_cli.takeover.adopt_plan import GroupFacts, Replica
from brokerset_cli.takeover.adopt_report import NO_CONTROLLERS, YOURS_EXIT, report
from brokerset_cli.takeover.adoption_journal import Finishing, Journal
from brokerset_cli.takeover.cluster_observation import Cluster
from brokerset_cli.takeover.steps import Standing, Step, blocked, done, ready, yours
from brokerset_rig.held_file import held_by_another_process
from brokerset_spec.set_memory import ControllerMemory, GroupMemory, JoinedCluster, SetMemory

JOINED = JoinedCluster("127.0.0.1:2", "127.0.0.1:1")
"""Nobody listens there."""

CLUSTER = Cluster("c", "n:1", "c:1", {})
GROUPS = (GroupFacts("g", 1, (Replica(1, "h:1", True, True, False),)),)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], 2, "--namesrv"),
        (["--back"], 1, "no brokers that joined another cluster"),
        (["--namesrv", "nonsense"], 2, "--namesrv"),
        (["--namesrv", "127.0.0.1:1"], 1, "127.0.0.1:1"),
        (["--namesrv", "127.0.0.1:1", "--accept", "magic"], 2, "magic"),
        (["--finish"], 1, "no brokers that joined another cluster"),
        (["--finish", "--back"], 2, "either --back or --finish"),
        (["--namesrv", "127.0.0.1:1", "--clients-moved"], 2, "together with --finish or --back"),
        (["--finish", "--stop-with", "true"], 2, "no Java broker runs any more"),
        (["--namesrv", "127.0.0.1:1", "--namesrv-port", "0"], 2, "together with --finish"),
        (["--finish", "--accept", "acl"], 2, "no Java broker runs any more"),
    ],
)
def test_what_cannot_begin_says_why(tmp_path: Path, arguments: list[str], code: int, said: str) -> None:
    """Without a cluster nothing is made, and the error names what is wrong."""
    folder = tmp_path / "ours"

    result = CliRunner().invoke(adopt, ["--data", str(folder), *arguments])

    assert result.exit_code == code, result.output
    assert said in result.output
    assert not folder.exists()


@pytest.mark.parametrize(
    ("standing", "code"),
    [
        (done(), 0),
        (ready(), 0),
        (yours("it runs", "stop it"), YOURS_EXIT),
        (blocked("it runs", "stop it"), 1),
    ],
)
def test_the_exit_code_says_whose_turn_it_is(
    standing: Standing, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scripts see whether all is done, the person is asked, or something stands against it."""
    steps = [Step("retire:g:1", "It is stopped.", *standing)]

    assert report(CLUSTER, GROUPS, (), steps, {}, False) == code
    assert ("retire:g:1: stop it" in capsys.readouterr().out) is (code > 0)


def test_an_obstacle_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    """An obstacle ends the command with 1, and is told."""
    assert report(CLUSTER, (), [NO_CONTROLLERS], (), {}, False) == 1
    assert "no broker names any controllers" in capsys.readouterr().err


def test_a_joined_set_keeps_the_cluster_that_it_joined(tmp_path: Path) -> None:
    """Another cluster that comes to the same name servers later is not taken for ours."""
    folder = DataFolder(tmp_path)
    folder.claim("adopted-c").release()
    assert joined_set.cluster_of(folder) is None

    folder.write_memory(SetMemory(uid="u", joined_cluster_of=JoinedCluster("c:1", "n:1")))
    manifest = joined_set.make_manifest("Trading", ["g"], 1, {})
    (tmp_path / MANIFEST).write_text(manifest.model_dump_json(by_alias=True, exclude_unset=True))

    assert joined_set.cluster_of(folder) == "Trading"


def test_brokers_of_another_cluster_are_not_deleted_behind_its_back(tmp_path: Path) -> None:
    """Its controllers would wait for their ids permanently, and nobody would know what to put back."""
    folder = DataFolder(tmp_path / "ours")
    folder.claim("adopted-c").release()
    Journal(folder.path).begin({"g": (1, 2)}, 2)

    result = CliRunner().invoke(down, ["--data", str(folder.path), "--purge", "--yes"])

    assert result.exit_code == 1
    assert f"brokerset adopt --data {folder.path} --back" in result.output
    assert folder.path.exists()


def joined_folder(
    path: Path, *, moved: bool = False, joined_cluster_of: JoinedCluster | None = JOINED
) -> DataFolder:
    """A set whose groups were seen to be whole, with controllers of its own; nothing runs, nobody answers."""
    folder = DataFolder(path)
    folder.claim("adopted-c").release()
    manifest = joined_set.make_manifest("c", ["g"], 2, {})
    (path / MANIFEST).write_text(manifest.model_dump_json(by_alias=True, exclude_unset=True))
    folder.write_memory(
        SetMemory(
            "uid", "127.0.0.1", (ControllerMemory(0, 1, 2, 3),), groups={"g": GroupMemory((0, 1), 2)},
            joined_cluster_of=joined_cluster_of,
        )
    )  # fmt: skip
    journal = Journal(path)
    journal.begin({"g": (1, 2)}, 2)
    journal.finish(Finishing(JOINED.controllers, JOINED.name_servers, {"g": ()}, {"g": 5}))
    if moved:
        journal.clients_have_moved()
    return folder


@pytest.mark.parametrize("joined_cluster_of", [JoinedCluster("", JOINED.name_servers), None])
def test_there_is_no_way_back_once_our_brokers_belong_to_our_controllers(
    tmp_path: Path, joined_cluster_of: JoinedCluster | None
) -> None:
    """It is refused with what goes on instead, and nothing is changed; `down --purge` says the same."""
    folder = joined_folder(tmp_path / "ours", moved=True, joined_cluster_of=joined_cluster_of)
    before = Journal(folder.path).read()

    back = CliRunner().invoke(adopt, ["--data", str(folder.path), "--back", "--clients-moved"])
    purge = CliRunner().invoke(down, ["--data", str(folder.path), "--purge", "--yes"])

    for result in (back, purge):
        assert result.exit_code == 1
        assert f"brokerset adopt --data {folder.path} --finish" in result.output
    assert "no way back" in back.output
    assert Journal(folder.path).read() == before
    assert folder.path.exists()


def test_clients_leave_our_name_servers_before_these_go(tmp_path: Path) -> None:
    """They would have nobody to ask: `--back` is refused until it is said that they use Java's again."""
    folder = joined_folder(tmp_path / "ours", moved=True)

    refused = CliRunner().invoke(adopt, ["--data", str(folder.path), "--back"])
    remembered = Journal(folder.path).read()
    begun = CliRunner().invoke(adopt, ["--data", str(folder.path), "--back", "--clients-moved", "--yes"])
    after = Journal(folder.path).read()

    assert refused.exit_code == 1
    assert f"give them {JOINED.name_servers} again" in refused.output
    assert remembered is not None
    assert remembered.clients_moved
    assert begun.exit_code == 1, "nobody answers at the addresses of the other cluster"
    assert after is not None
    assert after.finishing is None, "whole is to be seen again: Java brokers come back"
    assert not after.clients_moved


def test_a_look_at_the_way_back_forgets_nothing(tmp_path: Path) -> None:
    """Only the command that acts gives up what was seen."""
    folder = joined_folder(tmp_path / "ours")
    before = Journal(folder.path).read()

    CliRunner().invoke(adopt, ["--data", str(folder.path), "--back", "--look"])

    assert Journal(folder.path).read() == before


@pytest.mark.parametrize("arguments", [[], ["--finish", "--look"]])
def test_a_set_on_its_way_out_is_shown_and_nothing_is_done(tmp_path: Path, arguments: list[str]) -> None:
    """Without --finish, and with --look, the steps are shown; the first also says how it goes on."""
    folder = joined_folder(tmp_path / "ours", joined_cluster_of=JoinedCluster("", JOINED.name_servers))
    before = Journal(folder.path).read(), folder.memory()

    result = CliRunner().invoke(adopt, ["--data", str(folder.path), *arguments])
    as_json = CliRunner().invoke(adopt, ["--data", str(folder.path), *arguments, "--json"])

    assert result.exit_code == 0, result.output
    assert ("--finish` goes on" in result.output) is (not arguments)
    states = {each["name"]: each["state"] for each in json.loads(as_json.stdout)["steps"]}
    assert states == {
        "whole": "done", "name-servers": "done", "clients": "done", "own": "ready", "leave": "later",
    }  # fmt: skip
    assert (Journal(folder.path).read(), folder.memory()) == before


def test_a_joined_set_whose_controllers_are_gone_cannot_start(tmp_path: Path) -> None:
    """Their set does not run, and would wait for Java's controllers permanently: that is said, with 1."""
    folder = joined_folder(tmp_path / "ours", moved=True)

    result = CliRunner().invoke(adopt, ["--data", str(folder.path), "--finish", "--yes"])

    assert result.exit_code == 1
    assert "our brokers do not run, and the controllers 127.0.0.1:2 do not answer" in result.output
    assert "start those controllers again" in result.output


def test_the_end_of_the_end_can_be_repeated(tmp_path: Path) -> None:
    """A call that was killed behind the last step is given again: nothing is left to do, with 0."""
    folder = joined_folder(tmp_path / "ours", joined_cluster_of=None)
    Journal(folder.path).end()

    result = CliRunner().invoke(adopt, ["--data", str(folder.path), "--finish", "--yes"])
    as_json = CliRunner().invoke(adopt, ["--data", str(folder.path), "--finish", "--yes", "--json"])

    assert result.exit_code == 0, result.output
    assert "namesrvAddr=127.0.0.1:1" in result.output
    assert "Do not start the old Java brokers again" in result.output
    assert json.loads(as_json.stdout)["nameServers"] == "127.0.0.1:1"


def test_a_second_call_is_kept_out_of_the_end(tmp_path: Path) -> None:
    """Two calls would stop and start the same brokers; the way back is kept out as well."""
    folder = joined_folder(tmp_path / "ours")
    before = Journal(folder.path).read()

    with held_by_another_process(folder.path / CHANGE_LOCK):
        for option in ("--finish", "--back"):
            result = CliRunner().invoke(adopt, ["--data", str(folder.path), option, "--yes"])

            assert result.exit_code == 1
            assert "another command changes the set" in result.output
    assert Journal(folder.path).read() == before


def test_whose_the_brokers_are_is_never_changed_while_up_runs(tmp_path: Path) -> None:
    """`up` would write what it remembers over it, and go on with the other controllers."""
    folder = joined_folder(tmp_path / "ours")
    before = folder.memory()

    with (
        held_by_another_process(folder.path / UP_LOCK),
        pytest.raises(CommandFailed, match="is in use"),
    ):
        joined_set.under_own_controllers(folder)

    assert folder.memory() == before
    joined_set.under_own_controllers(folder)
    assert folder.memory().joined_cluster_of == JoinedCluster("", JOINED.name_servers)


def test_a_join_that_was_cut_off_at_once_has_joined_nobody(tmp_path: Path) -> None:
    """The journal is the first that is written: there is nothing to give back, nor to finish."""
    folder = DataFolder(tmp_path / "ours")
    folder.claim("adopted-c").release()
    Journal(folder.path).begin({"g": (1, 2)}, 2)

    for option in ("--back", "--finish"):
        result = CliRunner().invoke(adopt, ["--data", str(folder.path), option])

        assert result.exit_code == 1
        assert "no brokers that joined another cluster" in result.output
