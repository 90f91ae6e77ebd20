"""What `adopt` says before it has met anybody."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from brokerset_cli.down import down
from brokerset_cli.folder import LOCK as UP_LOCK
from brokerset_cli.folder import MANIFEST, MARKER, DataFolder
from brokerset_cli.output import CommandFailed
from brokerset_cli.takeover import guest_set
from brokerset_cli.takeover.adopt import adopt
from brokerset_cli.takeover.adopt_plan import Facts, GroupFacts, Replica
from brokerset_cli.takeover.adopt_report import NO_CONTROLLERS, YOURS_EXIT, report
from brokerset_cli.takeover.adoption import LOCK, Adoption
from brokerset_cli.takeover.asking import Asker
from brokerset_cli.takeover.cluster_look import Cluster
from brokerset_cli.takeover.handover_journal import Journal
from brokerset_cli.takeover.steps import Step, StepState
from brokerset_client.controller_admin import ControllerAdmin
from brokerset_spec.set_memory import GuestOf, SetMemory

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
    ("state", "code"),
    [
        (StepState.DONE, 0),
        (StepState.READY, 0),
        (StepState.YOURS, YOURS_EXIT),
        (StepState.BLOCKED, 1),
    ],
)
def test_the_exit_code_says_whose_turn_it_is(
    state: StepState, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scripts see whether all is done, the person is asked, or something stands against it."""
    steps = [Step("retire:g:1", "It is stopped.", state, hint="stop it")]

    assert report(CLUSTER, GROUPS, (), steps, {}, False) == code
    assert ("retire:g:1: stop it" in capsys.readouterr().out) == (
        state in (StepState.YOURS, StepState.BLOCKED)
    )


def test_an_obstacle_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    """An obstacle ends the command with 1, and is told."""
    assert report(CLUSTER, (), [NO_CONTROLLERS], (), {}, False) == 1
    assert "no broker names any controllers" in capsys.readouterr().err


@contextmanager
def held_by_another_process(path: Path) -> Iterator[None]:
    """A file that somebody else has locked."""
    hold = "import sys; from pathlib import Path; from brokerset_runtime.files import lock_file\n"
    hold += "lock = lock_file(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    arguments = [sys.executable, "-c", hold, str(path)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        yield
        other.communicate()


def mark(folder: Path) -> None:
    """Make it the folder of the cluster's set."""
    (folder / MARKER).write_text(json.dumps({"brokerSet": "adopted-c", "format": 1}))


def test_two_calls_never_work_in_one_folder(tmp_path: Path) -> None:
    """A second call would put back what the hand-over of the first has just changed, so it is kept out."""
    mark(tmp_path)

    with (
        held_by_another_process(tmp_path / LOCK),
        pytest.raises(CommandFailed, match="another `brokerset adopt` works"),
    ):
        asyncio.run(_with_call(tmp_path, lambda call: call.go(back=False, last=None)))


def test_a_set_that_a_call_before_has_started_is_taken_for_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`up` of a call that was cut off locks the folder a moment later: that is no failure of this call."""
    mark(tmp_path)
    step = Step("join", "Brokers start.", StepState.READY)
    facts = Facts(GROUPS, 1)

    with held_by_another_process(tmp_path / UP_LOCK):
        asyncio.run(_with_call(tmp_path, lambda call: call._act(step, facts, back=False)))

    assert "what an earlier call has started runs" in capsys.readouterr().err


def test_a_set_that_does_not_start_is_a_failure(tmp_path: Path) -> None:
    """When nothing runs afterwards, the reason is told."""
    (tmp_path / "a-file-of-somebody").write_text("")
    step = Step("join", "Brokers start.", StepState.READY)

    with pytest.raises(CommandFailed, match="holds files that are not brokerset's"):
        asyncio.run(_with_call(tmp_path, lambda call: call._act(step, Facts(GROUPS, 1), back=False)))


IN_SYNC = GroupFacts("g", 1, (Replica(1, "h:1", True, True, False),), counted=frozenset({1}))
DIED = GroupFacts("g", 1, (Replica(1, "h:1", False, True, False), Replica(2, "o:1", False, False, True)))


@pytest.mark.parametrize("groups", [(IN_SYNC,), (DIED,)])
def test_our_folder_goes_only_if_java_lives_when_ours_have_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: tuple[GroupFacts, ...]
) -> None:
    """Java's last broker died while ours stopped: nothing is cleaned, and the copy in the folder is kept."""
    folder = tmp_path / "ours"
    folder.mkdir()
    mark(folder)
    (folder / "messages").write_text("the last copy")

    async def leave(call: Adoption) -> None:
        async def seen() -> tuple[GroupFacts, ...]:
            return groups

        monkeypatch.setattr(call, "_groups", seen)
        await call._leave(Facts((IN_SYNC,), 1, folder=True))

    if groups == (IN_SYNC,):
        asyncio.run(_with_call(folder, leave))
    else:
        with pytest.raises(CommandFailed, match="is kept"):
            asyncio.run(_with_call(folder, leave))

    assert folder.exists() is (groups == (DIED,))


def test_what_the_stop_command_prints_is_no_result(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Standard output is the command's own JSON; the person still sees what their command prints."""
    step = Step("retire:g:1", "It is stopped.", StepState.READY)

    async def stop(folder: Path) -> None:
        async with Asker() as asker, ControllerAdmin("127.0.0.1:1") as admin:
            call = Adoption(
                DataFolder(folder), asker, admin, CLUSTER,
                host="h", replicas=None, stop_with="echo {address} {group} {id}", yes=True,
            )  # fmt: skip
            await call._act(step, Facts(GROUPS, 1), back=False)

    asyncio.run(stop(tmp_path))

    said = capfd.readouterr()
    assert said.out == ""
    assert "h:1 g 1" in said.err


def test_a_guest_keeps_the_cluster_that_it_joined(tmp_path: Path) -> None:
    """Another cluster that comes to the same name servers later is not taken for ours."""
    mark(tmp_path)
    folder = DataFolder(tmp_path)
    assert guest_set.cluster_of(folder) is None

    folder.write_memory(SetMemory(uid="u", guest_of=GuestOf("c:1", "n:1")))
    manifest = guest_set.make_manifest("Trading", ["g"], 1, {})
    (tmp_path / MANIFEST).write_text(manifest.model_dump_json(by_alias=True, exclude_unset=True))

    assert guest_set.cluster_of(folder) == "Trading"


async def _with_call(folder: Path, work: Callable[[Adoption], Awaitable[object]]) -> None:
    async with Asker() as asker, ControllerAdmin("127.0.0.1:1") as admin:
        await work(
            Adoption(
                DataFolder(folder), asker, admin, CLUSTER, host="h", replicas=None, stop_with=None, yes=True
            )
        )


def test_brokers_of_another_cluster_are_not_deleted_behind_its_back(tmp_path: Path) -> None:
    """Its controllers would wait for their ids for ever, and nobody would know which settings to put back."""
    folder = DataFolder(tmp_path / "ours")
    folder.claim("adopted-c").release()
    Journal(folder.path).begin({"g": (1, 2)}, 2)

    result = CliRunner().invoke(down, ["--data", str(folder.path), "--purge", "--yes"])

    assert result.exit_code == 1
    assert f"brokerset adopt --data {folder.path} --back" in result.output
    assert folder.path.exists()
