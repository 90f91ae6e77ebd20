"""`kubectl brokerset port-forward` with real sockets and processes; its kubectl forwards on this machine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from brokerset_cli.kubernetes.kubectl import Kubectl
from brokerset_cli.kubernetes.port_forward import Forwarding
from brokerset_formats.config import DataVersion, TopicConfig
from brokerset_namesrv.app import NameServer
from brokerset_protocol import headers
from brokerset_protocol.bodies.registration import RegisterBrokerBody, TopicConfigTable
from brokerset_protocol.bodies.routes import ClusterInfo, TopicRouteData
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_runtime.remoting import Connection, ConnectionClosed, RemotingServer, connect
from brokerset_spec.namesrv_settings import NamesrvSettings

SECONDS_MAX = 20.0
ECHO = 42
"""The request code that tells which broker answers."""


def pod(name: str) -> dict[str, Any]:
    """A pod of the set `orders`."""
    resource = name.rpartition("-")[0]
    controller = resource.endswith("-controller")
    labels = {
        "brokerset.io/set": "orders",
        "app.kubernetes.io/component": "controller" if controller else "broker",
    }
    if not controller:
        labels["brokerset.io/group"] = resource
    return {"metadata": {"name": name, "namespace": "shop", "uid": name, "labels": labels}}


class Cluster:
    """A name server and two brokers on this machine, which kubectl shows as pods of a set."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.brokers: dict[str, RemotingServer] = {}

    def write(self, name: str, value: object) -> None:
        """Let kubectl find this; at one stroke, because it may be read at any time."""
        (self.folder / "new").write_text(value if isinstance(value, str) else json.dumps(value))
        (self.folder / "new").rename(self.folder / name)

    def lead_to(self, name: str) -> None:
        """Let a pod be master."""
        endpoint = {"targetRef": {"kind": "Pod", "name": name}}
        self.write(
            "endpointslices.json", [{"metadata": {"name": "orders-0-master"}, "endpoints": [endpoint]}]
        )

    async def start_broker(self, name: str) -> None:
        """Start what answers as a broker."""

        def serve(connection: Connection, command: Command) -> Command:
            return command.reply(body=name.encode())

        server = self.brokers[name] = RemotingServer({ECHO: serve})
        self.write(f"{name}.port", str(await server.listen("127.0.0.1", 0)))

    async def kill_broker(self, name: str) -> None:
        """End it, and all its connections."""
        await self.brokers.pop(name).close(0)

    def running(self) -> list[int]:
        """Process ids of kubectls that still run."""
        file = self.folder / "pids"
        pids = [int(line) for line in file.read_text().split()] if file.exists() else []
        return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[Cluster]:
    """The set `orders` with a master `orders-0-0` and a slave `orders-0-1`."""
    found = Cluster(folder)
    found.write("brokersets.json", {"metadata": {"name": "orders", "namespace": "shop"}, "spec": {}})
    names = ("orders-0-0", "orders-0-1", "orders-controller-0", "orders-controller-1")
    found.write("pods.json", [pod(name) for name in names])
    found.lead_to("orders-0-0")
    server = NameServer(NamesrvSettings(kv_config_path=folder / "kv.json"))
    await server.start("127.0.0.1", 0)
    worker = asyncio.create_task(server.run())
    inside = await connect(f"127.0.0.1:{server.port}")
    for broker_id, address in ((0, "orders-0-master.shop.svc"), (2, "orders-0-1.orders-0.shop.svc")):
        header = headers.RegisterBroker(
            broker_name="orders-0",
            broker_addr=f"{address}:10911",
            cluster_name="DefaultCluster",
            ha_server_addr="10.0.0.1:10912",
            broker_id=broker_id,
        )
        topics = {name: TopicConfig(name, 4, 4) for name in ("TBW102", "orders")}
        body = RegisterBrokerBody(TopicConfigTable(DataVersion(1, 0, 1), topics)).to_json()
        await inside.call(Command(RequestCode.REGISTER_BROKER, header.to_ext(), body), SECONDS_MAX)
    found.write("orders-controller-1.port", str(server.port))  # controller 0 does not run
    for name in names[:2]:
        await found.start_broker(name)
    try:
        yield found
    finally:
        inside.close()
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
        for name in list(found.brokers):
            await found.kill_broker(name)
        await server.close()


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kubectl:
    """The kubectl of `forward_kubectl`."""
    program = tmp_path / "kubectl"
    program.write_text(
        f'#!/bin/sh\nexec {sys.executable} {Path(__file__).with_name("forward_kubectl.py")} "$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("FORWARD_KUBECTL", str(tmp_path))
    monkeypatch.setenv("KUBECTL", str(program))
    return Kubectl("shop")


async def who(address: str) -> str:
    """The broker that answers at an address, when one does."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            try:
                peer = await connect(address)
                try:
                    return (await peer.call(Command(ECHO), 2.0)).body.decode()
                finally:
                    peer.close()
                    await peer.wait_closed()
            except (ConnectionClosed, TimeoutError):
                await asyncio.sleep(0.05)


async def scenario_failover(folder: Path, kubectl: Kubectl) -> None:
    async with cluster(folder) as there:
        forwarding = Forwarding(kubectl, "orders", 0)
        try:
            port = await forwarding.start(0)
            running = asyncio.create_task(forwarding.run())
            client = await connect(f"127.0.0.1:{port}")
            answer = await client.call(
                Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"}), SECONDS_MAX
            )
            info = await client.call(Command(RequestCode.GET_BROKER_CLUSTER_INFO), SECONDS_MAX)
            addresses = TopicRouteData.from_json(answer.body).broker_datas[0].broker_addrs
            assert {each.partition(":")[0] for each in addresses.values()} == {"127.0.0.1"}
            assert ClusterInfo.from_json(info.body).broker_addr_table["orders-0"].broker_addrs == addresses
            assert await who(addresses[0]) == "orders-0-0"
            assert await who(addresses[2]) == "orders-0-1"

            kept = await connect(addresses[0])
            assert (await kept.call(Command(ECHO), SECONDS_MAX)).body == b"orders-0-0"
            await there.kill_broker("orders-0-0")
            there.lead_to("orders-0-1")
            async with asyncio.timeout(SECONDS_MAX):
                await kept.wait_closed()
            async with asyncio.timeout(SECONDS_MAX):
                while await who(addresses[0]) != "orders-0-1":  # noqa: ASYNC110  # only an answer tells
                    await asyncio.sleep(0.05)

            await there.start_broker("orders-0-0")
            there.lead_to("orders-0-0")
            async with asyncio.timeout(SECONDS_MAX):
                while await who(addresses[0]) != "orders-0-0":  # noqa: ASYNC110  # only an answer tells
                    await asyncio.sleep(0.05)
            client.close()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        finally:
            await forwarding.close()
        assert there.running() == []


def test_clients_follow_the_master_at_one_local_address(tmp_path: Path, kubectl: Kubectl) -> None:
    """Routes have local addresses, that of the master leads to the new one after a failover, and back.

    A name server that does not run is passed over, and at the end no kubectl is left.
    """
    asyncio.run(scenario_failover(tmp_path, kubectl))


async def scenario_kubectl_killed(folder: Path, kubectl: Kubectl) -> None:
    async with cluster(folder) as there:
        forwarding = Forwarding(kubectl, "orders", 0)
        try:
            port = await forwarding.start(0)
            for _ in range(2):
                client = await connect(f"127.0.0.1:{port}")
                request = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
                answer = await client.call(request, SECONDS_MAX)
                addresses = TopicRouteData.from_json(answer.body).broker_datas[0].broker_addrs
                assert await who(addresses[0]) == "orders-0-0"
                client.close()
                await client.wait_closed()
                for pid in there.running():
                    os.kill(pid, signal.SIGKILL)
        finally:
            await forwarding.close()


def test_a_kubectl_that_ends_is_started_again(tmp_path: Path, kubectl: Kubectl) -> None:
    """A lost way to a pod costs the connections on it, and the next one goes by a new kubectl."""
    asyncio.run(scenario_kubectl_killed(tmp_path, kubectl))


async def scenario_command(folder: Path) -> None:
    async with cluster(folder) as there:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "brokerset_cli.main", "kubernetes", "port-forward", "orders"),
            *("-n", "shop", "--namesrv-port", "0"),
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        lines: list[str] = []
        async with asyncio.timeout(SECONDS_MAX):
            while "Ctrl-C ends" not in "".join(lines):
                line = await process.stdout.readline()
                assert line, lines
                lines.append(line.decode())
        port = int(lines[-1].partition(f"{'127.0.0.1'}:")[2].partition(";")[0])
        assert any("orders-0: master" in line and "-> orders-0-0" in line for line in lines)
        assert (await (await connect(f"127.0.0.1:{port}")).call(Command(ECHO), SECONDS_MAX)).code == 3

        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(SECONDS_MAX):
            assert await process.wait() == 0
        assert there.running() == []


def test_the_command_says_what_it_forwards_and_ends_cleanly(tmp_path: Path, kubectl: Kubectl) -> None:
    """The command names the name server and the masters; Ctrl-C ends it and every kubectl, with success."""
    asyncio.run(scenario_command(tmp_path))
