"""`kubectl brokerset port-forward` with real sockets; its API server forwards on this machine."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from brokerset_acl.signatures import Credentials
from brokerset_cli.kubernetes.forwarding import Forwarding
from brokerset_cli.kubernetes.kube_api import ApiFailed, KubeApi
from brokerset_cli.kubernetes.streams import Streams
from brokerset_cli.output import CommandFailed
from brokerset_formats.config import DataVersion, TopicConfig
from brokerset_kube.kinds import POD
from brokerset_namesrv.app import NameServer
from brokerset_protocol import headers
from brokerset_protocol.bodies.registration import RegisterBrokerBody, TopicConfigTable
from brokerset_protocol.bodies.routes import ClusterInfo, TopicRouteData
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_rig.certificates import Certificates
from brokerset_rig.fake_kube import FakeKube, kubeconfig
from brokerset_runtime.remoting import Connection, ConnectionClosed, RemotingServer, connect
from brokerset_runtime.tls import Tls
from brokerset_spec.namesrv_settings import NamesrvSettings

SECONDS_MAX = 20.0
ECHO = 42
"""The request code that tells which broker answers."""

OWN = {"brokerset.io/set": "orders"}


AUTHORITIES = "orders-authorities"
SERVER_NAME = "orders-namesrv.shop.svc"
ROOT = Credentials("root", "root-key")
CHECKED: dict[str, Any] = {
    "authentication_enabled": True,
    "init_authentication_user": json.dumps({"username": "root", "password": "root-key"}),
    "inner_client_authentication_credentials": json.dumps({"accessKey": "inner", "secretKey": "inner-key"}),
}


class Secured:
    """Certificates of a set that takes TLS alone."""

    def __init__(self, folder: Path, name: str = SERVER_NAME) -> None:
        self.made = Certificates(folder / "tls")
        self.made.issue("pods", [name])
        self.file = self.made.config("pods", tls_client_serverName=name)
        self.tls = Tls(self.file)

    @property
    def authorities(self) -> str:
        """Whom to trust, in PEM."""
        return self.made.authority.certificate.decode()


def pod(name: str, **annotations: str) -> dict[str, Any]:
    """A pod of the set `orders`."""
    resource = name.rpartition("-")[0]
    controller = resource.endswith("-controller")
    labels = {**OWN, "app.kubernetes.io/component": "controller" if controller else "broker"}
    if not controller:
        labels["brokerset.io/group"] = resource
    metadata = {"name": name, "namespace": "shop", "labels": labels, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}


class Cluster:
    """A name server and two brokers on this machine, which an API server shows as pods of a set."""

    def __init__(self, kube: FakeKube, secured: Secured | None = None) -> None:
        self.kube = kube
        self.secured = secured
        self.brokers: dict[str, RemotingServer] = {}

    def lead_to(self, name: str) -> None:
        """Let a pod be master."""
        self.kube.put(
            {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {"name": "orders-0-master", "namespace": "shop", "labels": OWN},
                "endpoints": [{"targetRef": {"kind": "Pod", "name": name}}],
            }
        )

    async def start_broker(self, name: str) -> None:
        """Start what answers as a broker."""

        def serve(connection: Connection, command: Command) -> Command:
            return command.reply(body=name.encode())

        tls = None if self.secured is None else self.secured.tls
        server = self.brokers[name] = RemotingServer({ECHO: serve}, tls=tls)
        self.kube.ports[name, 10911] = await server.listen("127.0.0.1", 0)

    def trust(self, authorities: str) -> None:
        """Let the set's ConfigMap say whom to trust."""
        metadata = {"name": AUTHORITIES, "namespace": "shop"}
        data = {"ca.crt": authorities}
        self.kube.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})

    async def kill_broker(self, name: str) -> None:
        """End it, and all its connections."""
        await self.brokers.pop(name).close(0)

    async def end_of_connections(self) -> None:
        """Wait until nobody is connected to the API server for long."""
        async with asyncio.timeout(SECONDS_MAX):
            while self.kube.forwards or self.kube.watches:
                self.kube.bookmark()  # a server notices the end of a watch when it has something to tell
                await asyncio.sleep(0.01)


@asynccontextmanager
async def cluster(folder: Path, secured: Secured | None = None, **settings: Any) -> AsyncIterator[Cluster]:
    """The set `orders` with a master `orders-0-0` and a slave `orders-0-1`; `settings` of the name server."""
    async with FakeKube() as kube:
        (folder / "kubeconfig").write_text(kubeconfig(kube.url, "shop"))
        found = Cluster(kube, secured)
        tls: dict[str, Any] = {}
        annotations: dict[str, str] = {}
        if secured is not None:
            tls = {"secretName": "orders-tls", "trustConfigMap": AUTHORITIES, "mode": "enforcing"}
            annotations["brokerset.io/tls"] = "enforcing"
            settings["tls_config_file"] = secured.file
            found.trust(secured.authorities)
        kube.put(
            {
                "apiVersion": "brokerset.io/v1alpha1",
                "kind": "BrokerSet",
                "metadata": {"name": "orders", "namespace": "shop"},
                "spec": {"tls": tls},
            }
        )
        names = ("orders-0-0", "orders-0-1", "orders-controller-0", "orders-controller-1")
        for name in names:
            kube.put(pod(name, **annotations))
        found.lead_to("orders-0-0")
        server = NameServer(NamesrvSettings(kv_config_path=folder / "kv.json", **settings))
        await server.start("127.0.0.1", 0)
        worker = asyncio.create_task(server.run())
        inside = await connect(
            f"127.0.0.1:{server.port}", tls=None if secured is None else secured.tls, sign=ROOT.sign
        )
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
        kube.ports["orders-controller-1", 9876] = server.port  # controller 0 does not run
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


@asynccontextmanager
async def forwarding(
    folder: Path, secured: Secured | None = None, authorities: str | None = None, **settings: Any
) -> AsyncIterator[tuple[Cluster, Forwarding]]:
    """What forwards to that set; at the end no connection is left."""
    async with cluster(folder, secured, **settings) as there:
        with closing(KubeApi(kubeconfig=str(folder / "kubeconfig"))) as api:
            found = Forwarding(api, "orders", 0, authorities)
            try:
                yield there, found
            finally:
                await found.close()
            await there.end_of_connections()


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


async def routes(client: Connection) -> dict[int, str]:
    """Addresses of the brokers, as a name server tells them."""
    request = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
    answer = await client.call(request, SECONDS_MAX)
    return TopicRouteData.from_json(answer.body).broker_datas[0].broker_addrs


async def until_it_is(address: str, name: str) -> None:
    """Wait until this broker answers at an address."""
    async with asyncio.timeout(SECONDS_MAX):
        while await who(address) != name:  # noqa: ASYNC110  # only an answer tells
            await asyncio.sleep(0.05)


async def scenario_failover(folder: Path) -> None:
    async with forwarding(folder) as (there, forwards):
        port = await forwards.start(0)
        running = asyncio.create_task(forwards.run())
        client = await connect(f"127.0.0.1:{port}")
        addresses = await routes(client)
        info = await client.call(Command(RequestCode.GET_BROKER_CLUSTER_INFO), SECONDS_MAX)
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
        await until_it_is(addresses[0], "orders-0-1")

        await there.start_broker("orders-0-0")
        there.lead_to("orders-0-0")
        await until_it_is(addresses[0], "orders-0-0")
        client.close()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def test_clients_follow_the_master_at_one_local_address(tmp_path: Path) -> None:
    """Routes have local addresses, that of the master leads to the new one after a failover, and back.

    A name server that does not run is passed over, and at the end no connection is left.
    """
    asyncio.run(scenario_failover(tmp_path))


async def scenario_ways_lost(folder: Path) -> None:
    async with forwarding(folder) as (there, forwards):
        port = await forwards.start(0)
        for _ in range(2):
            client = await connect(f"127.0.0.1:{port}")
            addresses = await routes(client)
            assert await who(addresses[0]) == "orders-0-0"
            kept = await connect(addresses[0])
            assert (await kept.call(Command(ECHO), SECONDS_MAX)).body == b"orders-0-0"
            await there.kube.drop_forwards()
            async with asyncio.timeout(SECONDS_MAX):
                await kept.wait_closed()
            client.close()
            await client.wait_closed()


def test_a_way_that_is_lost_is_made_again(tmp_path: Path) -> None:
    """A lost way to a pod costs the connections on it, and the next one goes by a new way."""
    asyncio.run(scenario_ways_lost(tmp_path))


async def scenario_new_pod(folder: Path) -> None:
    async with forwarding(folder) as (there, forwards):
        port = await forwards.start(0)
        client = await connect(f"127.0.0.1:{port}")
        addresses = await routes(client)
        kept = await connect(addresses[2])
        assert (await kept.call(Command(ECHO), SECONDS_MAX)).body == b"orders-0-1"

        there.kube.remove("pods", "orders-0-1", "shop")
        there.kube.put(pod("orders-0-1"))
        await forwards.refresh()

        async with asyncio.timeout(SECONDS_MAX):
            await kept.wait_closed()
        assert await who(addresses[2]) == "orders-0-1"
        client.close()


def test_a_new_pod_of_the_same_name_gets_new_connections(tmp_path: Path) -> None:
    """A connection to the old one may hang for long, when its node was lost."""
    asyncio.run(scenario_new_pod(tmp_path))


async def scenario_bytes(folder: Path) -> None:
    async with forwarding(folder) as (there, forwards):
        await forwards.start(0)
        block = bytes(range(256)) * 4096
        server = await asyncio.start_server(send_back, "127.0.0.1", 0)
        there.kube.ports["orders-0-0", 10911] = server.sockets[0].getsockname()[1]
        port = next(line for line in forwards.lines() if "orders-0-0 127" in line).rpartition(":")[2]
        reader, writer = await asyncio.open_connection("127.0.0.1", int(port))

        writer.write(len(block).to_bytes(4, "big") + block)
        async with asyncio.timeout(SECONDS_MAX):
            received = await reader.read(-1)

        assert received == block
        writer.close()
        server.close()


async def send_back(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send one block back, and close at once."""
    size = int.from_bytes(await reader.readexactly(4), "big")
    writer.write(await reader.readexactly(size))
    writer.close()


def test_all_bytes_arrive_before_the_end(tmp_path: Path) -> None:
    """A megabyte there and back, and then the pod closes: nothing of it is lost."""
    asyncio.run(scenario_bytes(tmp_path))


async def scenario_tls(folder: Path) -> None:
    secured = Secured(folder)
    async with forwarding(folder, secured) as (_, forwards):
        port = await forwards.start(0)
        client = await connect(f"127.0.0.1:{port}")
        addresses = await routes(client)
        assert await who(addresses[0]) == "orders-0-0"
        assert await who(addresses[2]) == "orders-0-1"

        by_itself = await connect(addresses[0], tls=secured.tls)
        assert (await by_itself.call(Command(ECHO), SECONDS_MAX)).body == b"orders-0-0"
        by_itself.close()
        client.close()


def test_plain_clients_reach_pods_that_take_tls_alone(tmp_path: Path) -> None:
    """The bytes are encrypted here, for pods that show the set's certificate; who speaks TLS gets through."""
    asyncio.run(scenario_tls(tmp_path))


async def scenario_tls_bytes(folder: Path) -> None:
    secured = Secured(folder)
    async with forwarding(folder, secured) as (there, forwards):
        await forwards.start(0)
        block = bytes(range(256)) * 4096
        server = await asyncio.start_server(send_back, "127.0.0.1", 0, ssl=secured.tls.server)
        there.kube.ports["orders-0-0", 10911] = server.sockets[0].getsockname()[1]
        port = next(line for line in forwards.lines() if "orders-0-0 127" in line).rpartition(":")[2]
        reader, writer = await asyncio.open_connection("127.0.0.1", int(port))

        writer.write(len(block).to_bytes(4, "big") + block)
        async with asyncio.timeout(SECONDS_MAX):
            received = await reader.read(-1)

        assert received == block
        writer.close()
        server.close()


def test_all_bytes_arrive_by_tls_before_the_end(tmp_path: Path) -> None:
    """A megabyte there and back in records of TLS, and then the pod closes: nothing of it is lost."""
    asyncio.run(scenario_tls_bytes(tmp_path))


async def scenario_another_certificate(folder: Path, secured: Secured, trusted: str) -> str:
    async with forwarding(folder, secured) as (there, forwards):
        there.trust(trusted)
        with pytest.raises(CommandFailed) as raised:
            await forwards.start(0)
        return raised.value.message


def test_nobody_but_the_set_is_connected_to(tmp_path: Path) -> None:
    """A certificate for another name, or of another authority, ends the command with the reason."""
    for name in "ab":
        (tmp_path / name).mkdir()
    other_name = Secured(tmp_path / "a", "payments-namesrv.shop.svc")
    good = Secured(tmp_path / "b")

    said = asyncio.run(scenario_another_certificate(tmp_path, other_name, other_name.authorities))
    assert "orders-controller-1: the other end's certificate is refused" in said
    assert SERVER_NAME in said
    said = asyncio.run(scenario_another_certificate(tmp_path, good, other_name.authorities))
    assert "orders-controller-1: the other end's certificate is refused" in said
    said = asyncio.run(scenario_another_certificate(tmp_path, good, "nothing"))
    assert f"ConfigMap {AUTHORITIES}" in said
    assert "has no certificate in PEM" in said


async def scenario_no_right_to_trust(folder: Path) -> None:
    secured = Secured(folder)
    async with forwarding(folder, secured) as (there, forwards):
        there.kube.forbidden.add(("get", "configmaps"))
        with pytest.raises(ApiFailed, match=f"ConfigMap {AUTHORITIES}.*forbidden") as raised:
            await forwards.start(0)
        assert raised.value.trouble.name == "FORBIDDEN"
        assert "--authorities FILE" in raised.value.advice
    async with forwarding(folder, secured, secured.authorities) as (there, forwards):
        there.kube.forbidden.add(("get", "configmaps"))
        client = await connect(f"127.0.0.1:{await forwards.start(0)}")
        assert await who((await routes(client))[0]) == "orders-0-0"
        client.close()


def test_whom_to_trust_can_be_given_by_who_may_not_read_it(tmp_path: Path) -> None:
    """The error names the ConfigMap and the option; with the option nothing of it is read."""
    asyncio.run(scenario_no_right_to_trust(tmp_path))


async def scenario_new_authority(folder: Path) -> None:
    secured = Secured(folder)
    async with forwarding(folder, secured) as (there, forwards):
        client = await connect(f"127.0.0.1:{await forwards.start(0)}")
        addresses = await routes(client)
        secured.made.renew_authority("next")
        secured.made.issue("pods", [SERVER_NAME])
        assert secured.tls.refresh()
        there.trust(secured.authorities)

        there.kube.forbidden.add(("get", "configmaps"))
        await forwards.refresh()  # says so, and goes on with those before
        there.kube.forbidden.clear()
        await forwards.refresh()

        assert await who(addresses[0]) == "orders-0-0"
        client.close()


def test_a_new_authority_is_trusted_when_the_set_says_so(tmp_path: Path) -> None:
    """Authorities are read again while ports are forwarded; a right that is lost meanwhile ends nothing."""
    asyncio.run(scenario_new_authority(tmp_path))


async def scenario_signed(folder: Path) -> None:
    async with forwarding(folder, Secured(folder), **CHECKED) as (_, forwards):
        port = await forwards.start(0)
        unsigned = await connect(f"127.0.0.1:{port}")
        signed = await connect(f"127.0.0.1:{port}", sign=ROOT.sign)
        listing = RequestCode.GET_BROKER_CLUSTER_INFO

        assert (await routes(unsigned))[0].startswith("127.0.0.1:")
        refused = await unsigned.call(Command(listing), SECONDS_MAX)
        served = await signed.call(Command(listing), SECONDS_MAX)

        assert (refused.code, served.code) == (ResponseCode.NO_PERMISSION, ResponseCode.SUCCESS)
        unsigned.close()
        signed.close()


def test_signatures_of_clients_reach_name_servers_that_check_them(tmp_path: Path) -> None:
    """The list of brokers is for a client that signs as an administrator; routes are for everybody."""
    asyncio.run(scenario_signed(tmp_path))


async def scenario_refused(folder: Path) -> str:
    async with forwarding(folder) as (there, forwards):
        there.kube.forbidden.add(("get", "pods/portforward"))
        with pytest.raises(ApiFailed, match="pods is forbidden") as raised:
            await forwards.start(0)
        return raised.value.trouble.name


def test_a_missing_right_is_told_at_the_start(tmp_path: Path) -> None:
    """In the API server's words, which a websocket that is refused does not show."""
    assert asyncio.run(scenario_refused(tmp_path)) == "FORBIDDEN"


async def scenario_another_user(folder: Path) -> set[str]:
    async with cluster(folder) as there:
        with closing(KubeApi(as_user="jane", kubeconfig=str(folder / "kubeconfig"))) as api:
            async with Streams(api) as streams, streams.forward("orders-0-0", 10911):
                return {call.user for call in there.kube.calls}


def test_a_way_is_made_as_another_user(tmp_path: Path) -> None:
    """Rights of that user count, not one's own."""
    assert asyncio.run(scenario_another_user(tmp_path)) == {"jane"}


async def scenario_login_over(folder: Path) -> bytes:
    async with cluster(folder) as there:
        there.kube.logs["orders-0-0"] = "hello\n"
        with closing(KubeApi(kubeconfig=str(folder / "kubeconfig"))) as api:
            await asyncio.to_thread(api.objects, POD)
            there.kube.tokens = {"new"}
            (folder / "kubeconfig").write_text(kubeconfig(there.kube.url, "shop", token="new"))
            async with (
                Streams(api) as streams,
                streams.read(POD.path("shop", "orders-0-0", "log"), {}) as content,
            ):
                return await content.read()


def test_a_login_that_is_over_is_made_again(tmp_path: Path) -> None:
    """What is followed for hours outlives a token."""
    assert asyncio.run(scenario_login_over(tmp_path)) == b"hello\n"


async def scenario_command(folder: Path) -> None:
    async with cluster(folder) as there:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "brokerset_cli.main", "kubernetes", "port-forward", "orders"),
            *("--kubeconfig", str(folder / "kubeconfig"), "--namesrv-port", "0"),
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
        await there.end_of_connections()


def test_the_command_says_what_it_forwards_and_ends_cleanly(tmp_path: Path) -> None:
    """The command names the name server and the masters; Ctrl-C ends it and all connections, with success."""
    asyncio.run(scenario_command(tmp_path))
