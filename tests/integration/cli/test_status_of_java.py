"""`brokerset status` in front of fakes that answer what Java's servers of 5.5.0 were recorded to answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from brokerset_cli import options as options_module
from brokerset_cli.main import main
from brokerset_cli.takeover.mix import ALL_JAVA
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_runtime.remoting import Connection, RemotingServer

GOLDEN = Path(__file__).parents[2] / "peers" / "golden" / "wire"
NAME_SERVER, LEADER, FOLLOWER, MASTER, SLAVE = 9876, 19878, 19876, 10911, 11911
"""Ports that the recordings name."""

RECORDED = {
    NAME_SERVER: ("namesrv-106-cluster",),
    LEADER: ("controller-1005-metadata", "controller-1006-sync-state"),
    FOLLOWER: ("controller-1005-metadata",),
    MASTER: ("broker-28-runtime-info", "broker-1007-epoch-cache", "broker-26-config"),
    SLAVE: ("broker-28-runtime-info", "broker-1007-epoch-cache"),
}


def recording(name: str) -> tuple[dict[str, Any], str]:
    """Header and body of a recorded answer."""
    found = json.loads((GOLDEN / f"{name}.json").read_text())
    return json.loads(found["header"]), found["body"]


@dataclass
class JavaCluster:
    """Servers that answer as Java's did, with their own ports in place of the recorded ones."""

    ports: dict[int, int] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)
    knows: bool = True
    """Whether the controllers know the groups that they are asked about."""

    def address(self, recorded: int) -> str:
        return f"127.0.0.1:{self.ports[recorded]}"

    def own(self, text: str) -> str:
        for recorded, port in self.ports.items():
            text = text.replace(f"127.0.0.1:{recorded}", f"127.0.0.1:{port}")
        return text

    def answer(self, recorded: int, connection: Connection, command: Command) -> Command:
        self.asked.append(command.code)
        for name in RECORDED[recorded]:
            header, body = recording(name)
            if f"-{command.code}-" not in name:
                continue
            ext = {key: self.own(value) for key, value in header.get("extFields", {}).items()}
            if recorded == FOLLOWER:
                ext["isLeader"] = "false"
            if recorded == SLAVE:
                body = body.replace('"brokerId":0', '"brokerId":2')
            if command.code == RequestCode.CONTROLLER_GET_SYNC_STATE_DATA and not self.knows:
                body = '{"replicasInfoTable":{}}'
            return command.reply(header["code"], header.get("remark"), ext=ext, body=self.own(body).encode())
        return command.reply(3, f" request type {command.code} not supported")


@asynccontextmanager
async def java_cluster(*absent: int) -> AsyncIterator[JavaCluster]:
    """A name server, two of three controllers, a master and a slave, all Java's; some of them not there."""
    cluster = JavaCluster()
    async with AsyncExitStack() as running:
        for recorded in RECORDED:

            def handle(connection: Connection, command: Command, recorded: int = recorded) -> Command:
                return cluster.answer(recorded, connection, command)

            server = RemotingServer({code: handle for code in RequestCode})
            cluster.ports[recorded] = await server.listen("127.0.0.1", 0)
            if recorded in absent:
                await server.close()
            else:
                running.push_async_callback(server.close)
        yield cluster


async def status(
    cluster: JavaCluster, *arguments: str, name_server: str | None = None, controllers: str | None = None
) -> Result:
    """The command, in a thread of its own, for it has its own event loop."""
    where = ("--namesrv", name_server or cluster.address(NAME_SERVER))
    told = controllers or f"{cluster.address(LEADER)};{cluster.address(FOLLOWER)}"
    return await asyncio.to_thread(
        CliRunner().invoke, main, ["status", *where, "--controller", told, *arguments]
    )


def test_a_cluster_of_javas_is_shown_with_its_mix_and_nothing_fails() -> None:
    async def scenario() -> None:
        async with java_cluster() as cluster:
            result = await status(cluster)

            assert result.exit_code == 0, result.output
            assert "Controllers of Java's, n2 leads" in result.output
            assert "broker-a: master 1, epoch 1; in sync: 1, 2 (epoch 2)\n" in result.output
            assert "mix: Java master 1, Java slave 2, Java controllers. Does not hold: " in result.output
            assert (
                "Java's controllers: no lease, so a master that is cut off can be read from" in result.output
            )
            assert "Java master broker-a/1 has allAckInSyncStateSet=false" in result.output
            assert "Java slave broker-a/2: metadata by polling, up to 10 s" in result.output

    asyncio.run(scenario())


def test_scripts_get_makes_roles_and_what_holds() -> None:
    async def scenario() -> None:
        async with java_cluster() as cluster:
            result = await status(cluster, "--json")

            view = json.loads(result.stdout)
            assert view["healthy"]
            assert view["controllersMake"] == "Java"
            assert [each["nativeCore"] for each in view["brokers"]] == [None, None]
            assert [(c["make"], c["role"], c["answers"]) for c in view["controllers"]] == [
                ("Java", "leader", True),
                ("Java", "follower", True),
            ]
            assert view["groupsUnlisted"] is None
            (group,) = view["groups"]
            assert group["nextBrokerId"] is None
            assert (group["masterId"], group["masterEpoch"], group["syncStateSet"]) == (1, 1, [1, 2])
            assert group["mix"]["holds"] == ALL_JAVA.holds
            assert group["mix"]["brokers"] == {
                "1": {"make": "Java", "version": "V5_5_0"},
                "2": {"make": "Java", "version": "V5_5_0"},
            }

    asyncio.run(scenario())


def test_nothing_but_questions_is_sent_to_javas_servers() -> None:
    async def scenario() -> None:
        async with java_cluster() as cluster:
            await status(cluster)

            questions = {26, 28, 106, 1005, 1006, 1007, 21001, 21005}
            assert set(cluster.asked) == questions

    asyncio.run(scenario())


def test_a_follower_alone_leads_to_its_leader() -> None:
    async def scenario() -> None:
        async with java_cluster() as cluster:
            result = await status(cluster, controllers=cluster.address(FOLLOWER))

            assert result.exit_code == 0, result.output
            assert "Controllers of Java's, n2 leads" in result.output
            assert cluster.address(LEADER) in result.output
            assert "broker-a: master 1, epoch 1" in result.output

    asyncio.run(scenario())


def test_without_name_servers_it_is_said_that_the_groups_are_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java's controllers cannot list them, and nobody who could was given: that is no healthy cluster."""

    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(main, ["status", *arguments])

    async def scenario() -> None:
        async with java_cluster(NAME_SERVER) as cluster:
            monkeypatch.setattr(options_module, "DEFAULT_NAMESRV", cluster.address(NAME_SERVER))
            where = ("--controller", f"{cluster.address(LEADER)};{cluster.address(FOLLOWER)}")
            text = await asyncio.to_thread(invoke, *where)
            view = json.loads((await asyncio.to_thread(invoke, *where, "--json")).stdout)

            assert text.exit_code == 1
            assert "Controllers of Java's, n2 leads" in text.output
            assert "Groups: not known" in text.output
            assert "give the cluster's name servers with --namesrv HOST:PORT" in text.output
            assert f"{cluster.address(NAME_SERVER)}, asked for them, told none" in text.output
            assert view["groups"] == []
            assert "Java's controllers cannot list them" in view["groupsUnlisted"]
            assert view["groupsUnlisted"] in view["problems"]

    monkeypatch.chdir(tmp_path)  # where no set has run
    asyncio.run(scenario())


def test_name_servers_of_another_cluster_are_said_to_be_that() -> None:
    """The controllers know none of their groups: that is not the same as a cluster without groups."""

    async def scenario() -> None:
        async with java_cluster() as cluster:
            cluster.knows = False
            result = await status(cluster)

            assert result.exit_code == 1
            assert "know none of the groups of" in result.output
            assert "(broker-a)" in result.output

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("absent", "problem"),
    [
        (LEADER, "none of Java's controllers leads (1 answer)"),
        (FOLLOWER, "the controller at {address} does not answer"),
    ],
    ids=["leader", "follower"],
)
def test_a_controller_of_javas_that_is_gone_is_a_problem(absent: int, problem: str) -> None:
    async def scenario() -> None:
        async with java_cluster(absent) as cluster:
            result = await status(cluster)

            assert result.exit_code == 1
            assert problem.format(address=cluster.address(absent)) in result.output

    asyncio.run(scenario())
