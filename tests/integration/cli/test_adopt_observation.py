"""`brokerset adopt --look` in front of fakes that answer what Java's servers of 5.5.0 were recorded to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from brokerset_cli.main import main
from brokerset_client.controller_admin import ControllerAdmin
from brokerset_client.errors import RequestRefused
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_runtime.remoting import Connection, RemotingServer

GOLDEN = Path(__file__).parents[2] / "peers" / "golden" / "wire"
NAME_SERVER, LEADER, MASTER, SLAVE = 9876, 19878, 10911, 11911
"""Ports that the recordings name."""

OTHER_CONTROLLERS = ("127.0.0.1:19876", "127.0.0.1:19877")
BROKER = (
    "broker-28-runtime-info",
    "broker-1007-epoch-cache",
    "broker-26-config",
    "broker-21-all-topic-config",
    "broker-201-all-groups",
)
RECORDED = {
    NAME_SERVER: ("namesrv-106-cluster",),
    LEADER: ("controller-1005-metadata", "controller-1006-sync-state", "controller-1012-next-broker-id"),
    MASTER: BROKER,
    SLAVE: BROKER,
}
READS = {106, 26, 28, 1007, 21, 201, 30, 203, 1005, 1006, 1012, 21005}
"""Requests that change nothing."""


@dataclass
class JavaCluster:
    """Servers that answer as Java's did, with their own ports in place of the recorded ones."""

    ports: dict[int, int] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    asked: set[int] = field(default_factory=set)

    def address(self, recorded: int) -> str:
        return f"127.0.0.1:{self.ports[recorded]}"

    def own(self, text: str) -> str:
        for recorded, port in self.ports.items():
            text = text.replace(f"127.0.0.1:{recorded}", f"127.0.0.1:{port}")
        for address in OTHER_CONTROLLERS:
            text = text.replace(f"{address};", "").replace(f";{address}", "")
        return text

    def answer(self, recorded: int, connection: Connection, command: Command) -> Command:
        self.asked.add(command.code)
        for name in RECORDED[recorded]:
            if f"-{command.code}-" not in name:
                continue
            found = json.loads((GOLDEN / f"{name}.json").read_text())
            header, body = json.loads(found["header"]), self.own(found["body"])
            if command.code == RequestCode.GET_BROKER_CONFIG:
                kept = [line for line in body.splitlines() if line.partition("=")[0] not in self.settings]
                body = "\n".join([*kept, *(f"{name}={value}" for name, value in self.settings.items())])
            ext = {key: self.own(value) for key, value in header.get("extFields", {}).items()}
            return command.reply(header["code"], header.get("remark"), ext=ext, body=body.encode())
        return command.reply(3, f" request type {command.code} not supported")


@asynccontextmanager
async def java_cluster(**settings: str) -> AsyncIterator[JavaCluster]:
    """A name server, a controller, a master and a slave, all Java's; the brokers with these settings."""
    cluster = JavaCluster(settings=settings)
    async with AsyncExitStack() as running:
        for recorded in RECORDED:

            def handle(connection: Connection, command: Command, recorded: int = recorded) -> Command:
                return cluster.answer(recorded, connection, command)

            server = RemotingServer({code: handle for code in RequestCode})
            cluster.ports[recorded] = await server.listen("127.0.0.1", 0)
            running.push_async_callback(server.close)
        yield cluster


async def look(cluster: JavaCluster, folder: Path, *arguments: str) -> Result:
    """The command, in a thread of its own, for it has its own event loop."""
    where = ("--namesrv", cluster.address(NAME_SERVER), "--data", str(folder))
    return await asyncio.to_thread(CliRunner().invoke, main, ["adopt", *where, "--look", *arguments])


def test_a_look_shows_the_replicas_and_changes_nothing(tmp_path: Path) -> None:
    """Nothing stands against the recorded cluster; only questions were asked, and no folder was made."""

    async def scenario() -> None:
        async with java_cluster() as cluster:
            result = await look(cluster, tmp_path / "ours", "--json")

            found = json.loads(result.stdout)
            assert result.exit_code == 0, result.output
            assert found["obstacles"] == []
            assert found["controllers"] == cluster.address(LEADER)
            states = {step["name"]: step["state"] for step in found["steps"]}
            assert states == {
                "look": "done",
                "join": "ready",
                "catch-up": "later",
                "switch:broker-a": "later",
                "retire:broker-a:2": "later",
                "retire:broker-a:1": "later",
            }
            assert cluster.asked <= READS
            assert not (tmp_path / "ours").exists()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"enableControllerMode": "false"}, "brokerset upgrade classic"),
        ({"aclEnable": "true"}, "--accept acl"),
        ({"enableDLegerCommitLog": "true"}, "brokerset upgrade dledger"),
    ],
)
def test_what_stands_against_it_is_said_at_once(tmp_path: Path, settings: dict[str, str], said: str) -> None:
    """An obstacle ends the look with 1, names both brokers, and nothing was changed."""

    async def scenario() -> None:
        async with java_cluster(**settings) as cluster:
            result = await look(cluster, tmp_path / "ours")

            assert result.exit_code == 1
            assert result.output.count(said) == 2
            assert cluster.address(MASTER) in result.output
            assert cluster.address(SLAVE) in result.output
            assert cluster.asked <= READS

    asyncio.run(scenario())


def test_brokers_without_controllers_are_sent_to_the_upgrade(tmp_path: Path) -> None:
    """A classic cluster names no controllers, and learns the way to them."""

    async def scenario() -> None:
        async with java_cluster(controllerAddr="", enableControllerMode="false") as cluster:
            result = await look(cluster, tmp_path / "ours")

            assert result.exit_code == 1
            assert "brokerset upgrade classic" in result.output

    asyncio.run(scenario())


def test_javas_controllers_are_never_asked_to_forget_living_replicas() -> None:
    """They would forget the whole group: ids of living replicas are refused before anything is sent."""

    async def scenario() -> None:
        async with java_cluster() as cluster, ControllerAdmin(cluster.address(LEADER)) as admin:
            group = (await admin.groups(["broker-a"]))[0]

            assert group.cluster_name == "DefaultCluster"
            assert group.sync_state_set == (1, 2)
            with pytest.raises(RequestRefused):
                await admin.clean(group, [2], living=True)
            assert RequestCode.CLEAN_BROKER_DATA not in cluster.asked

    asyncio.run(scenario())
