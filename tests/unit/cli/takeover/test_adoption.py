"""Single acts of one call of `adopt`, before anybody is asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from brokerset_cli.folder import CHANGE_LOCK, MARKER, DataFolder
from brokerset_cli.folder import LOCK as UP_LOCK
from brokerset_cli.output import CommandFailed
from brokerset_cli.takeover import adoption as adoption_module
from brokerset_cli.takeover.adopt_plan import Facts, GroupFacts, Replica
from brokerset_cli.takeover.adoption import Adoption
from brokerset_cli.takeover.adoption_journal import Before, Journal
from brokerset_cli.takeover.broker_queries import BrokerQueries
from brokerset_cli.takeover.cluster_observation import Cluster
from brokerset_cli.takeover.java_switchover import Switchover
from brokerset_cli.takeover.steps import Step, ready
from brokerset_client.controller_admin import ControllerAdmin
from brokerset_rig.held_file import held_by_another_process

JAVA = Replica(1, "h:1", True, True, False)
GROUP = GroupFacts("g", 1, (JAVA,), counted=frozenset({1}))
DIED = GroupFacts("g", 1, (replace(JAVA, alive=False), Replica(2, "o:1", False, False, True)))
CLOSED = Before("g", "h:1", {"brokerPermission": "6"})
JOIN = Step("join", "Brokers start.", *ready())
LEAVE = Step("leave", "Ours leave.", *ready())
SWITCH = Step("switch:g", "Ours is elected.", *ready())
FACTS = Facts((GROUP,), 1, folder=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of an adoption, in which nothing runs."""
    found = tmp_path / "ours"
    found.mkdir()
    (found / MARKER).write_text(json.dumps({"brokerSet": "adopted-c", "format": 1}))
    return found


def journal_of(folder: Path, *changed: Before) -> Journal:
    """With settings that are to be put back."""
    journal = Journal(folder)
    journal.begin({"g": (1,)}, 1)
    for each in changed:
        journal.remember(each)
    return journal


def call(
    folder: Path, work: Callable[[Adoption], Awaitable[object]], *, stop_with: str | None = None
) -> None:
    async def scenario() -> None:
        async with BrokerQueries() as brokers, ControllerAdmin("127.0.0.1:1") as admin:
            cluster = Cluster("c", "n:1", "c:1", {})
            found = Adoption(DataFolder(folder), brokers, admin, cluster, host="h", stop_with=stop_with)
            try:
                await work(found)
            finally:
                if found._lock is not None:
                    found._lock.release()

    asyncio.run(scenario())


def test_two_calls_never_work_in_one_folder(folder: Path) -> None:
    """A second call would put back what the switchover of the first has just changed, so it is kept out."""
    with (
        held_by_another_process(folder / CHANGE_LOCK),
        pytest.raises(CommandFailed, match="another command changes the set"),
    ):
        call(folder, lambda adoption: adoption.go(None))


def test_a_set_that_a_call_before_has_started_is_taken_for_started(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`up` of a call that was cut off locks the folder a moment later: that is no failure of this call."""
    with held_by_another_process(folder / UP_LOCK):
        call(folder, lambda adoption: adoption.act(JOIN, FACTS))

    assert "what an earlier call has started runs" in capsys.readouterr().err


def test_a_set_that_does_not_start_is_a_failure(tmp_path: Path) -> None:
    """When nothing runs afterwards, the reason is told."""
    (tmp_path / "a-file-of-somebody").write_text("")

    with pytest.raises(CommandFailed, match="holds files that are not brokerset's"):
        call(tmp_path, lambda adoption: adoption.act(JOIN, FACTS))


@pytest.mark.parametrize("groups", [(GROUP,), (DIED,)])
def test_our_folder_goes_only_if_java_lives_when_ours_have_stopped(
    folder: Path, monkeypatch: pytest.MonkeyPatch, groups: tuple[GroupFacts, ...]
) -> None:
    """Java's last broker died while ours stopped: nothing is cleaned, and the copy in the folder is kept."""
    (folder / "messages").write_text("the last copy")

    async def seen(_: Adoption) -> tuple[GroupFacts, ...]:
        return groups

    monkeypatch.setattr(Adoption, "_groups", seen)
    if groups == (GROUP,):
        call(folder, lambda adoption: adoption.act(LEAVE, FACTS))
    else:
        with pytest.raises(CommandFailed, match="is kept"):
            call(folder, lambda adoption: adoption.act(LEAVE, FACTS))

    assert folder.exists() is (groups == (DIED,))


def test_what_the_stop_command_prints_is_no_result(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Standard output is the command's own JSON; the person still sees what their command prints."""
    retire = Step("retire:g:1", "It is stopped.", *ready())

    call(folder, lambda adoption: adoption.act(retire, FACTS), stop_with="echo {address} {group} {id}")

    said = capfd.readouterr()
    assert said.out == ""
    assert "h:1 g 1" in said.err


def test_the_folder_stays_while_it_alone_knows_what_to_put_back(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Java broker that nobody counts went with its settings changed: the journal goes with the folder."""
    journal_of(folder, CLOSED)

    def stop(_: DataFolder) -> bool:
        raise AssertionError("our brokers were stopped")

    monkeypatch.setattr(adoption_module, "stop_set", stop)
    with pytest.raises(CommandFailed, match=r"h:1 has not got back brokerPermission=6.*nothing was stopped"):
        call(folder, lambda adoption: adoption.act(LEAVE, FACTS))

    assert Journal(folder).changed == (CLOSED,)


@pytest.mark.parametrize(("silent", "fails"), [("h:1", True), ("other:1", False)])
def test_a_silent_broker_of_another_group_does_not_keep_this_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch, silent: str, fails: bool
) -> None:
    """Only the group whose broker does not get its settings back is given up."""
    journal_of(folder, CLOSED)

    async def put_back(_: Switchover) -> tuple[Before, ...]:
        return (replace(CLOSED, address=silent),)

    monkeypatch.setattr(Switchover, "put_back_all", put_back)
    facts = replace(FACTS, groups=(replace(GROUP, read_only="h:1"),))

    if fails:
        with pytest.raises(CommandFailed, match="h:1 does not get its settings back"):
            call(folder, lambda adoption: adoption.act(SWITCH, facts))
    else:
        call(folder, lambda adoption: adoption.act(SWITCH, facts))
