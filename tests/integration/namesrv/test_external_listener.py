"""A name server's second port, for clients outside the cluster, over real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from brokerset_formats.config import DataVersion, TopicConfig
from brokerset_namesrv.app import NameServer
from brokerset_protocol import headers
from brokerset_protocol.bodies.registration import RegisterBrokerBody, TopicConfigTable
from brokerset_protocol.bodies.routes import ClusterInfo, TopicRouteData
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.external_routes import ExternalAddresses
from brokerset_rig.local_servers import connected, running_name_server
from brokerset_runtime.remoting import Connection, ConnectionClosed

SECONDS_MAX = 10.0
MASTER = "orders-0-master.shop.svc:10911"
OUTSIDE = "mq.example.com:30011"


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@asynccontextmanager
async def name_server(folder: Path, *, connections_max: int = 10) -> AsyncIterator[NameServer]:
    """A name server with a listener for outside clients; its file of addresses is `folder`/outside.json."""
    outside: dict[str, Any] = {
        "external_listen_port": free_port(), "external_connections_max": connections_max,
        "external_addresses_path": folder / "outside.json",
    }  # fmt: skip
    async with running_name_server(folder, **outside) as server:
        yield server


def registration(ha_address: str = "10.0.0.1:10912") -> Command:
    """Master and topic of a group."""
    header = headers.RegisterBroker(
        broker_name="orders-0",
        broker_addr=MASTER,
        cluster_name="DefaultCluster",
        ha_server_addr=ha_address,
        broker_id=0,
    )
    topics = {name: TopicConfig(name, 4, 4) for name in ("TBW102", "orders")}
    body = RegisterBrokerBody(TopicConfigTable(DataVersion(1, 0, 1), topics)).to_json()
    return Command(RequestCode.REGISTER_BROKER, header.to_ext(), body)


async def route(peer: Connection) -> Command:
    """Ask for a route."""
    return await peer.call(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"}), SECONDS_MAX)


async def test_outside_clients_get_outside_addresses_and_inside_ones_the_others(tmp_path: Path) -> None:
    """Each port answers with its own addresses; a new file counts at once, an unreadable one does not."""

    async with (
        name_server(tmp_path) as server,
        connected(server.port) as inside,
        connected(server.external_port) as outside,
    ):
        assert (await inside.call(registration(), SECONDS_MAX)).code == ResponseCode.SUCCESS
        nowhere = await route(outside)
        assert nowhere.code == ResponseCode.TOPIC_NOT_EXIST
        assert "outside" in (nowhere.remark or "")

        (tmp_path / "outside.json").write_bytes(ExternalAddresses({"orders-0": OUTSIDE}).to_json())
        async with asyncio.timeout(SECONDS_MAX):
            while (answer := await route(outside)).code:  # noqa: ASYNC110  # only an answer tells
                await asyncio.sleep(0.02)

        groups = TopicRouteData.from_json(answer.body).broker_datas
        info = await outside.call(Command(RequestCode.GET_BROKER_CLUSTER_INFO), SECONDS_MAX)
        seen_inside = TopicRouteData.from_json((await route(inside)).body).broker_datas
        assert groups[0].broker_addrs == {0: OUTSIDE}
        found = ClusterInfo.from_json(info.body).broker_addr_table["orders-0"]
        assert found.broker_addrs == {0: OUTSIDE}
        assert seen_inside[0].broker_addrs == {0: MASTER}

        (tmp_path / "outside.json").write_text("half a fi", encoding="ascii")
        await asyncio.sleep(1.5)  # one reading of the file later
        assert TopicRouteData.from_json((await route(outside)).body).broker_datas == groups


async def test_the_address_outside_goes_with_the_master_though_the_file_stays(tmp_path: Path) -> None:
    """The next master registers the same address inside, and its own IP: routes have its node outside."""

    hosts = {"orders-0/10.0.0.1": OUTSIDE, "orders-0/10.0.0.2": "other.example.com:30011"}
    (tmp_path / "outside.json").write_bytes(ExternalAddresses({"orders-0": OUTSIDE}, hosts=hosts).to_json())
    told = []
    async with (
        name_server(tmp_path) as server,
        connected(server.port) as inside,
        connected(server.external_port) as outside,
    ):
        for ha_address in ("10.0.0.1:10912", "10.0.0.2:10912"):
            assert (await inside.call(registration(ha_address), SECONDS_MAX)).code == ResponseCode.SUCCESS
            group = TopicRouteData.from_json((await route(outside)).body).broker_datas[0]
            told.append(group.broker_addrs[0])

    assert told == [OUTSIDE, "other.example.com:30011"]


async def test_nothing_can_be_changed_from_outside(tmp_path: Path) -> None:
    """Registrations, settings, permissions and the key-value table are refused on the outside port."""

    async with name_server(tmp_path) as server, connected(server.external_port) as outside:
        refused = [
            await outside.call(registration(), SECONDS_MAX),
            await outside.call(
                Command(RequestCode.PUT_KV_CONFIG, {"namespace": "a", "key": "b", "value": "c"}), SECONDS_MAX
            ),
            await outside.call(Command(RequestCode.UPDATE_NAMESRV_CONFIG, {}, b"a=b"), SECONDS_MAX),
            await outside.call(
                Command(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "orders-0"}), SECONDS_MAX
            ),
        ]

        assert {each.code for each in refused} == {ResponseCode.REQUEST_CODE_NOT_SUPPORTED}
        assert server.table.broker_count == 0


async def test_the_outside_port_has_its_own_limit_of_connections(tmp_path: Path) -> None:
    """A connection above the limit is closed; those inside do not count, and are not kept from anything."""

    async with name_server(tmp_path, connections_max=1) as server, connected(server.external_port) as first:
        async with connected(server.external_port) as second:
            try:
                await route(second)
                served = True
            except ConnectionClosed:
                served = False
        async with connected(server.port) as inside:
            assert (await route(inside)).code == ResponseCode.TOPIC_NOT_EXIST

        assert not served
        assert (await route(first)).code == ResponseCode.TOPIC_NOT_EXIST
