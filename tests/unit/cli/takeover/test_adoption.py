"""Single acts of one call of `adopt`, before anybody is asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from brokerset_cli.folder import MARKER, DataFolder
from brokerset_cli.output import CommandFailed
from brokerset_cli.takeover import adoption as adoption_module
from brokerset_cli.takeover.adopt_plan import Facts, GroupFacts, Replica
from brokerset_cli.takeover.adoption import Adoption
from brokerset_cli.takeover.adoption_journal import Before, Journal
from brokerset_cli.takeover.broker_queries import Asker
from brokerset_cli.takeover.cluster_observation import Cluster
from brokerset_cli.takeover.java_switchover import HandOver
from brokerset_client.controller_admin import ControllerAdmin

CLUSTER = Cluster("c", "n:1", "c:1", {})
JAVA = Replica(1, "h:1", True, True, False)
GROUP = GroupFacts("g", 1, (JAVA,), counted=frozenset({1}))
CLOSED = Before("g", "h:1", {"brokerPermission": "6"})


def journal_of(folder: Path, *changed: Before) -> Journal:
    """The folder of an adoption in which these settings are to be put back."""
    folder.mkdir(exist_ok=True)
    (folder / MARKER).write_text(json.dumps({"brokerSet": "adopted-c", "format": 1}))
    journal = Journal(folder)
    journal.begin({"g": (1,)}, 1)
    for each in changed:
        journal.remember(each)
    return journal


def with_call(folder: Path, work: Callable[[Adoption], Awaitable[object]]) -> None:
    async def scenario() -> None:
        async with Asker() as asker, ControllerAdmin("127.0.0.1:1") as admin:
            await work(
                Adoption(
                    DataFolder(folder), asker, admin, CLUSTER,
                    host="h", replicas=None, stop_with=None, yes=True,
                )
            )  # fmt: skip

    asyncio.run(scenario())


def test_the_folder_stays_while_it_alone_knows_what_to_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Java broker that nobody counts went with its settings changed: the journal goes with the folder."""
    folder = tmp_path / "ours"
    journal_of(folder, CLOSED)

    def stop(_: DataFolder) -> bool:
        raise AssertionError("our brokers were stopped")

    monkeypatch.setattr(adoption_module, "stop_set", stop)
    with pytest.raises(CommandFailed, match=r"h:1 has not got back brokerPermission=6.*nothing was stopped"):
        with_call(folder, lambda call: call._leave(Facts((GROUP,), 1, folder=True)))

    assert Journal(folder).changed == (CLOSED,)


@pytest.mark.parametrize(("silent", "fails"), [("h:1", True), ("other:1", False)])
def test_a_silent_broker_of_another_group_does_not_keep_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent: str, fails: bool
) -> None:
    """Only the group whose broker does not get its settings back is given up."""
    journal_of(tmp_path, CLOSED)

    async def put_back(_: HandOver) -> tuple[Before, ...]:
        return (replace(CLOSED, address=silent),)

    monkeypatch.setattr(HandOver, "put_back_all", put_back)
    group = replace(GROUP, read_only="h:1")

    if fails:
        with pytest.raises(CommandFailed, match="h:1 does not get its settings back"):
            with_call(tmp_path, lambda call: call._switch(group, back=False))
    else:
        with_call(tmp_path, lambda call: call._switch(group, back=False))
