"""Brokers in controller mode with a real controller: what is served when, and as what."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from brokerset_broker.app import Broker
from brokerset_broker.membership.role import Role
from brokerset_controller.app import Controller
from brokerset_protocol.bodies.replicas import EpochEntryCache
from brokerset_protocol.bodies.routes import TopicRouteData
from brokerset_protocol.commands import Command
from brokerset_protocol.headers.controller import BrokerIdentityAnswer
from brokerset_rig.stack import free_ports
from brokerset_runtime.remoting import connect
from brokerset_spec.controller_settings import ControllerSettings

Run = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]
Setup = Any
"""The class of the fixture lives in conftest.py, which cannot be imported."""

GOLDEN = Path(__file__).parents[2] / "peers" / "golden" / "wire"
PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


def golden(name: str) -> tuple[dict[str, Any], Any]:
    """Header and body of what Java answered."""
    recorded = json.loads((GOLDEN / f"{name}.json").read_text())
    body = json.loads(recorded["body"]) if recorded["body"] else None
    return json.loads(recorded["header"]), body


class Place:
    """A controller with its name server, and brokers of one group."""

    def __init__(self, setup: Setup, folder: Path) -> None:
        self.setup = setup
        self.folder = folder
        controller, self.namesrv_port, self.http_port = free_ports(3, below=1)
        self.controller = f"127.0.0.1:{controller}"

    @asynccontextmanager
    async def controllers(self) -> AsyncIterator[Controller]:
        settings = ControllerSettings(
            controller_peers=f"n0-{self.controller}", controller_store_path=self.folder / "controller",
            bind_address="127.0.0.1", namesrv_listen_port=self.namesrv_port,
            kv_config_path=self.folder / "kv.json", raft_tick=10,
        )  # fmt: skip
        controller = Controller(settings)
        await controller.start()
        running = asyncio.create_task(controller.run())
        try:
            yield controller
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await controller.close()

    def broker(self, name: str = "store", **changes: Any) -> Any:
        """A broker on a folder of its own, as an async context."""
        settings: dict[str, Any] = {
            "enable_controller_mode": True, "controller_addr": self.controller,
            "namesrv_addr": f"127.0.0.1:{self.namesrv_port}", "store_path_root_dir": self.folder / name,
            "sync_broker_metadata_period": 100, "broker_heartbeat_interval": 100,
        }  # fmt: skip
        return self.setup.broker(**(settings | changes))

    async def route(self, topic: str) -> TopicRouteData | None:
        connection = await connect(f"127.0.0.1:{self.namesrv_port}")
        reply = await connection.call(Command(105, {"topic": topic}), 5)
        connection.close()
        await connection.wait_closed()
        return TopicRouteData.from_json(reply.body) if reply.code == 0 else None

    async def shown(self, topic: str, ids: dict[int, str]) -> None:
        """Wait until the name server shows exactly these ids of the group."""
        while True:
            found = await self.route(topic)
            if found is not None and [dict(b.broker_addrs) for b in found.broker_datas] == [ids]:
                return
            await asyncio.sleep(0.02)

    async def gone(self, topic: str) -> None:
        """Wait until no name server knows the topic."""
        while await self.route(topic) is not None:  # noqa: ASYNC110  # name servers tell nobody
            await asyncio.sleep(0.02)


@pytest.fixture
def place(setup: Setup, tmp_path: Path) -> Place:
    return Place(setup, tmp_path)


def member(broker: Broker) -> Any:
    assert broker.membership is not None
    return broker.membership


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition; the test's time-out bounds it."""
    while not condition():  # noqa: ASYNC110  # roles tell nobody
        await asyncio.sleep(0.005)


def test_a_crash_is_remembered_though_the_next_process_is_closed_in_order(run: Run, place: Place) -> None:
    """A broker that is stopped before it has written down what the log lost leaves `abort` behind."""

    async def scenario() -> None:
        store = place.folder / "store"
        store.mkdir()
        (store / "abort").write_text("1\nan earlier boot\n")
        async with place.broker():
            pass  # without controllers it gets no id, so there is no start file yet
        assert (store / "abort").exists()
        async with place.controllers(), place.broker() as broker:
            await until(lambda: member(broker).role is Role.MASTER)
        assert not (store / "abort").exists()

    run(scenario)


def test_nothing_is_served_before_the_role_is_known(run: Run, setup: Setup, place: Place) -> None:
    """The port answers who is there and why it does not serve; no name server hears of the broker."""

    async def scenario() -> None:
        async with place.broker() as broker, setup.client(broker) as client:
            await until(lambda: member(broker).problem is not None)
            sent = await client.send("t")
            pulled = await client.pull("t", 0)
            who = await client.call(1007)
            info = json.loads((await client.call(28)).body)["table"]

            assert sent.code == pulled.code == 14
            assert "is not in service: no controller at" in (sent.remark or "")
            assert "check controllerAddr" in (pulled.remark or "")
            header = BrokerIdentityAnswer.from_ext(who.ext)
            assert (header.replica_id, header.nonce) == (None, member(broker).nonce)
            assert "no controller at" in (header.registration or "")
            assert info["brokersetRole"] == "none"
            assert "no controller at" in info["brokersetProblem"]
            assert info["brokerActive"] == "false"
            async with place.controllers():
                await until(lambda: member(broker).role is Role.MASTER)
                assert (await client.send("t")).code == 0
                await place.shown("t", {0: f"127.0.0.1:{broker.port}"})

    run(scenario)


def test_a_master_serves_and_says_so(run: Run, setup: Setup, place: Place) -> None:
    """1007 and 907 as Java's; topics carry the master epoch; the epoch begins at the end of the log."""

    async def scenario() -> None:
        async with place.controllers(), place.broker() as broker, setup.client(broker) as client:
            await until(lambda: member(broker).role is Role.MASTER)
            await client.send("t")
            epochs = await client.call(1007)
            status = await client.call(907)

            cache = EpochEntryCache.from_json(epochs.body)
            assert json.loads(epochs.body).keys() == golden("broker-1007-epoch-cache")[1].keys()
            assert (cache.broker_id, cache.broker_name, cache.max_offset) == (
                0, "broker-a", broker.store.max_offset,
            )  # fmt: skip
            assert [(e.epoch, e.start_offset) for e in cache.epoch_list] == [(1, 0)]
            expected = golden("broker-907-ha-status")[1]
            shown = json.loads(status.body)
            assert shown == expected | {
                "haConnectionInfo": [], "inSyncSlaveNums": 0,
                "masterCommitLogMaxOffset": broker.store.max_offset,
            }  # fmt: skip
            assert broker.topics.data_version.state_version == 1

    run(scenario)


def test_a_restarted_master_keeps_its_id_and_gets_a_later_epoch(run: Run, setup: Setup, place: Place) -> None:
    """Its messages are there, and its epoch file shows where each of its terms began."""

    async def scenario() -> None:
        async with place.controllers():
            async with place.broker() as first, setup.client(first) as client:
                await until(lambda: member(first).role is Role.MASTER)
                assert (await client.send("t", b"kept")).code == 0
                end, epoch = first.store.max_offset, member(first).now.epoch
                identity = (place.folder / "store" / "brokerIdentity").read_bytes()
            async with place.broker() as second, setup.client(second) as client:
                await until(lambda: member(second).role is Role.MASTER)

                assert identity == b"DefaultCluster#broker-a#1"
                assert (place.folder / "store" / "brokerIdentity").read_bytes() == identity
                assert member(second).incarnation == 2
                assert member(second).now.epoch > epoch
                assert setup.bodies(await client.pull("t", 0)) == [b"kept"]
                entries = second.membership._epochs.entries()
                assert [e.start_offset for e in entries] == [0, end]

    run(scenario)


def test_a_slave_stands_by(run: Run, setup: Setup, place: Place) -> None:
    """It refuses sends in Java's words, is shown under its id, and tells 907 that it is no master."""

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(place.controllers())
            first = await stack.enter_async_context(place.broker("a"))
            await until(lambda: member(first).role is Role.MASTER)
            second = await stack.enter_async_context(place.broker("b"))
            await until(lambda: member(second).role is Role.SLAVE)
            client = await stack.enter_async_context(setup.client(second))
            sent = await client.send("TBW102")
            status = json.loads((await client.call(907)).body)
            epochs = EpochEntryCache.from_json((await client.call(1007)).body)
            created = await client.call(
                17, topic="x", defaultTopic="TBW102", readQueueNums=1, writeQueueNums=1, perm=6,
                topicFilterType="SINGLE_TAG", topicSysFlag=0, order="false",
            )  # fmt: skip

            refusal = golden("broker-310-send-slave")[0]
            assert (sent.code, sent.remark) == (refusal["code"], refusal["remark"])
            assert created.code == 1
            assert member(second).broker_id == 2
            assert (epochs.broker_id, epochs.epoch_list) == (2, ())
            assert status["master"] is False
            assert status.keys() == golden("broker-907-ha-status-slave")[1].keys()
            assert member(second).now.master_address == f"127.0.0.1:{first.port}"
            await place.shown("TBW102", {0: f"127.0.0.1:{first.port}", 2: f"127.0.0.1:{second.port}"})

    run(scenario)


def test_an_overtaken_broker_leaves_the_name_servers(run: Run, setup: Setup, place: Place) -> None:
    """A copy of its folder was taken for it while it could not be heard: it refuses everything."""

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(place.controllers())
            broker = await stack.enter_async_context(place.broker())
            await until(lambda: member(broker).role is Role.MASTER)
            client = await stack.enter_async_context(setup.client(broker))
            await place.shown("TBW102", {0: f"127.0.0.1:{broker.port}"})
            registration = member(broker)._registration  # as if the controllers knew a later start
            registration.nonce = "older"
            registration._record = replace(registration.record, last_nonce="older")
            await until(lambda: member(broker).role is Role.NONE)

            assert (await client.send("t")).code == 14
            assert (await client.pull("t", 0)).code == 14
            assert not broker.delay._running
            await place.gone("TBW102")

    run(scenario)


def test_readiness_and_metrics(run: Run, setup: Setup, place: Place) -> None:
    """Not ready while there is no role, with the reason; the page lists the metrics of controller mode."""

    def get(path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{place.http_port}{path}", timeout=5) as answer:
                return int(answer.status), str(answer.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    async def scenario() -> None:
        async with place.broker(http_port=place.http_port) as broker:
            await until(lambda: member(broker).problem is not None and bool(broker.http_port))
            code, text = await asyncio.to_thread(get, "/readyz")
            assert code == 503
            assert "no controller at" in text
            async with place.controllers():
                await until(lambda: member(broker).role is Role.MASTER and bool(broker.registrar.registered))
                await until(lambda: bool(member(broker).heartbeat_ages))
                assert (await asyncio.to_thread(get, "/readyz"))[0] == 200
                scraped = (await asyncio.to_thread(get, "/metrics"))[1]

        section = PAGE.read_text().split("\n## Broker in controller mode\n")[1].split("\n## ")[0]
        documented = re.findall(r"^\| `(\w+)` \| gauge \| (?:`(\w+)` )?\| (.+) \|$", section, re.M)
        assert len(documented) == 7
        for name, label, meaning in documented:
            shown = re.search(rf"^# HELP {name} (.+)$", scraped, re.M)
            assert shown is not None, name
            assert meaning.startswith(shown[1])
            assert not label or f'{label}="' in scraped.split(f"\n{name}{{")[1].split("}")[0], name
        assert re.search(r'brokerset_broker_role\{.*role="master"\} 1.0', scraped)
        assert re.search(r"brokerset_broker_master_epoch\{.*\} 1.0", scraped)

    run(scenario)
