"""The transport of ordered subjects: whom it asks, how long it waits, and what happens when peers fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from brokerset_client import ClientInstance, NoQueue
from brokerset_client.controller_admin import ControllersUnavailable
from brokerset_client.errors import AnswerTimeout, BrokerUnreachable, ClientClosed, ClientError
from brokerset_client.instance import ROUTE_REFRESH_GAP_SECONDS
from brokerset_client.ordered import instance_transport
from brokerset_client.ordered.instance_transport import ControllersUnknown, InstanceTransport
from brokerset_client.routes import Route
from brokerset_protocol.bodies.controllers import ControllerMember, ControllerStatus
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.subject_words import CONTROLLERS_KEY, CONTROLLERS_NAMESPACE
from brokerset_runtime.remoting import Handler, RemotingServer

from .fake_broker import FakeCluster, refuse, say_nothing

HEARTBEAT = RequestCode.BROKERSET_CONSUMER_HEARTBEAT
WATCH = RequestCode.BROKERSET_ASSIGNMENT_CHANGED
CLAIM = RequestCode.BROKERSET_CLAIM_QUEUE


@dataclass
class FakeControllers:
    """Controllers that agree about who leads as far as the test wants."""

    believed: dict[int, int | None] = field(default_factory=dict)
    """By node: whom it takes for the leader."""
    silent: set[int] = field(default_factory=set)
    addresses: dict[int, str] = field(default_factory=dict)
    carried_out: list[tuple[int, int]] = field(default_factory=list)
    """Node and code of each request that was carried out."""
    parked: asyncio.Event = field(default_factory=asyncio.Event)
    """What long polls wait for."""
    servers: dict[int, RemotingServer] = field(default_factory=dict)

    async def start(self, *nodes: int) -> None:
        for node in nodes:
            handlers: dict[int, Handler] = {code: self._handler(node) for code in RequestCode}
            self.servers[node] = RemotingServer(handlers)
            port = await self.servers[node].listen("127.0.0.1", 0)
            self.addresses[node] = f"127.0.0.1:{port}"
            self.believed.setdefault(node, nodes[0])

    async def stop(self, *nodes: int) -> None:
        for node in nodes:
            server = self.servers.pop(node)
            for connection in list(server.connections.values()):
                connection.abort()
            await server.close(drain_seconds=0.1)

    def led_by(self, leader: int | None) -> None:
        self.believed = dict.fromkeys(self.believed, leader)

    def _handler(self, node: int) -> Handler:
        async def answer(command: Command) -> Command | None:
            if node in self.silent:
                await asyncio.Event().wait()
            leader = self.believed[node]
            if command.code == RequestCode.BROKERSET_CONTROLLER_STATUS:
                return command.reply(body=self._status(node, leader).to_json())
            if leader != node:
                return command.reply(ResponseCode.CONTROLLER_NOT_LEADER, "it does not lead")
            if command.code == WATCH:
                await self.parked.wait()
            self.carried_out.append((node, command.code))
            return command.reply(ext={"node": str(node)})

        return lambda _, command: answer(command)

    def _status(self, node: int, leader: int | None) -> ControllerStatus:
        members = tuple(
            ControllerMember(each, f"r:{each}", address, True) for each, address in self.addresses.items()
        )
        return ControllerStatus(node, "role", 1, leader, leader == node, 0, 0, 0, 0, members)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers are given up sooner than in production."""
    monkeypatch.setattr(instance_transport, "ATTEMPT_SECONDS", 0.3)
    monkeypatch.setattr(instance_transport, "PROBE_SECONDS", 0.2)
    monkeypatch.setattr(instance_transport, "SUSPECT_SECONDS", 0.5)


@asynccontextmanager
async def three_controllers() -> AsyncIterator[FakeControllers]:
    controllers = FakeControllers()
    await controllers.start(1, 2, 3)
    try:
        yield controllers
    finally:
        await controllers.stop(*list(controllers.servers))


async def test_a_request_goes_to_the_leader_from_any_controller_that_is_named(cluster: FakeCluster) -> None:
    async with three_controllers() as controllers, ClientInstance(cluster.namesrv) as instance:
        controllers.led_by(3)
        transport = InstanceTransport(instance, controllers.addresses[1])

        answers = [await transport.ask_controllers(Command(HEARTBEAT), 2.0) for _ in range(3)]

        assert [answer.ext["node"] for answer in answers] == ["3", "3", "3"]
        assert controllers.carried_out == [(3, HEARTBEAT)] * 3
        assert set(transport.controllers) == set(controllers.addresses.values())


async def test_a_deposed_leader_is_left_for_its_successor(cluster: FakeCluster) -> None:
    async with three_controllers() as controllers, ClientInstance(cluster.namesrv) as instance:
        transport = InstanceTransport(instance, list(controllers.addresses.values()))
        await transport.ask_controllers(Command(HEARTBEAT), 2.0)
        controllers.led_by(2)

        answer = await transport.ask_controllers(Command(HEARTBEAT), 2.0)

        assert answer.ext["node"] == "2"


async def test_a_leader_that_died_is_replaced_although_a_follower_still_names_it(
    cluster: FakeCluster, quick: None
) -> None:
    async with three_controllers() as controllers, ClientInstance(cluster.namesrv) as instance:
        transport = InstanceTransport(instance, list(controllers.addresses.values()))
        await transport.ask_controllers(Command(HEARTBEAT), 2.0)
        await controllers.stop(1)
        controllers.believed.update({2: 1, 3: 3})

        answer = await transport.ask_controllers(Command(HEARTBEAT), 2.0)

        assert answer.ext["node"] == "3"


async def test_a_leader_that_says_nothing_is_given_up_within_the_time_of_the_request(
    cluster: FakeCluster, quick: None
) -> None:
    async with three_controllers() as controllers, ClientInstance(cluster.namesrv) as instance:
        transport = InstanceTransport(instance, list(controllers.addresses.values()))
        await transport.ask_controllers(Command(HEARTBEAT), 2.0)
        controllers.silent.add(1)
        controllers.believed.update({2: 2, 3: 1})

        answer = await transport.ask_controllers(Command(HEARTBEAT), 2.0)

        assert answer.ext["node"] == "2"


async def test_a_caller_without_time_does_not_make_others_leave_the_leader(cluster: FakeCluster) -> None:
    async with three_controllers() as controllers, ClientInstance(cluster.namesrv) as instance:
        transport = InstanceTransport(instance, controllers.addresses[1])
        await transport.ask_controllers(Command(HEARTBEAT), 2.0)
        with pytest.raises(AnswerTimeout):
            await transport.ask_controllers(Command(WATCH, {"waitMs": "10000"}), 0.05)
        began = asyncio.get_running_loop().time()

        await transport.ask_controllers(Command(HEARTBEAT), 2.0)

        assert asyncio.get_running_loop().time() - began < instance_transport.SUSPECT_SECONDS / 2


async def test_a_leader_that_was_not_connected_in_too_little_time_is_not_suspect(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that is not made in the time a caller had left says nothing about the controller."""
    async with three_controllers() as controllers, ClientInstance(cluster.namesrv) as instance:
        transport = InstanceTransport(instance, controllers.addresses[1])
        await transport.ask_controllers(Command(HEARTBEAT), 2.0)

        async def no_connection(address: str, _: Command, timeout: float) -> Command:
            await asyncio.sleep(timeout - instance_transport.EARLY_SECONDS / 2)  # timers may ring early
            raise BrokerUnreachable(address, "not connected in time")

        with monkeypatch.context() as patch:
            patch.setattr(instance, "call", no_connection)
            with pytest.raises(AnswerTimeout):
                await transport.ask_controllers(Command(HEARTBEAT), 0.05)

        assert transport._suspects == {}


async def test_without_a_leader_the_error_comes_in_time_and_says_why(
    cluster: FakeCluster, quick: None
) -> None:
    async with three_controllers() as controllers, ClientInstance(cluster.namesrv) as instance:
        controllers.led_by(None)
        transport = InstanceTransport(instance, list(controllers.addresses.values()))
        began = asyncio.get_running_loop().time()

        with pytest.raises(ControllersUnavailable, match="more than half of them must run"):
            await transport.ask_controllers(Command(HEARTBEAT), 1.0)

        assert asyncio.get_running_loop().time() - began < 3.0
        assert controllers.carried_out == []


async def test_a_long_poll_delays_no_other_request(cluster: FakeCluster, quick: None) -> None:
    """It waits for as long as it allows the controller to wait, longer than other requests."""
    async with three_controllers() as controllers, ClientInstance(cluster.namesrv) as instance:
        transport = InstanceTransport(instance, controllers.addresses[1])
        watch = asyncio.ensure_future(transport.ask_controllers(Command(WATCH, {"waitMs": "10000"}), 12.0))
        for _ in range(5):
            await asyncio.sleep(0.1)
            await transport.ask_controllers(Command(HEARTBEAT), 1.0)
        still_waits = not watch.done()
        controllers.parked.set()

        assert still_waits
        assert (await watch).ext["node"] == "1"
        assert controllers.carried_out == [(1, HEARTBEAT)] * 5 + [(1, WATCH)]


async def test_controllers_that_are_not_named_are_found_by_the_name_servers(cluster: FakeCluster) -> None:
    async with three_controllers() as controllers, ClientInstance(cluster.namesrv) as instance:
        transport = InstanceTransport(instance)
        with pytest.raises(ControllersUnknown, match="Name them"):
            await transport.ask_controllers(Command(HEARTBEAT), 1.0)
        cluster.kv[CONTROLLERS_NAMESPACE, CONTROLLERS_KEY] = ";".join(controllers.addresses.values())

        answer = await transport.ask_controllers(Command(HEARTBEAT), 1.0)

        assert answer.ext["node"] == "1"


async def test_who_waits_for_a_leader_is_not_left_waiting_when_the_client_is_closed(
    cluster: FakeCluster,
) -> None:
    async with three_controllers() as controllers:
        controllers.led_by(None)
        instance = ClientInstance(cluster.namesrv)
        await instance.start()
        transport = InstanceTransport(instance, list(controllers.addresses.values()))
        asking = asyncio.ensure_future(transport.ask_controllers(Command(HEARTBEAT), 20.0))
        await asyncio.sleep(0.1)

        await instance.close()

        with pytest.raises(ClientClosed):
            await asking


async def test_a_request_goes_to_the_master_of_the_broker_group(cluster: FakeCluster) -> None:
    await cluster.add_broker("a", 0)
    master = await cluster.add_broker("b", 0)
    await cluster.add_broker("b", 1)
    cluster.topics["s"] = {"a": 1, "b": 1}
    master.script(CLAIM, refuse(ResponseCode.BROKERSET_STALE_EPOCH))
    async with ClientInstance(cluster.namesrv) as instance:
        answer = await InstanceTransport(instance).ask_master("s", "b", Command(CLAIM), 1.0)

    assert answer.code == ResponseCode.BROKERSET_STALE_EPOCH
    assert len(master.seen(CLAIM)) == 1


async def test_a_master_that_moved_is_found_again(cluster: FakeCluster) -> None:
    """At once when it cannot be reached; with the next request when it answers that it does not serve.

    (statement 33)
    """
    first = await cluster.add_broker("a", 0)
    cluster.topics["s"] = {"a": 1}
    async with ClientInstance(cluster.namesrv) as instance:
        transport = InstanceTransport(instance)
        first.script(CLAIM, refuse(ResponseCode.SERVICE_NOT_AVAILABLE))
        refused = await transport.ask_master("s", "a", Command(CLAIM), 1.0)
        del cluster.brokers["a", 0]
        second = await cluster.add_broker("a", 0)
        second.script(CLAIM, refuse(ResponseCode.BROKERSET_STALE_EPOCH))
        after_refusal = await transport.ask_master("s", "a", Command(CLAIM), 1.0)
        await second.stop()
        del cluster.brokers["a", 0]
        third = await cluster.add_broker("a", 0)
        third.script(CLAIM, refuse(ResponseCode.BROKERSET_NOT_CLAIMED))
        await asyncio.sleep(ROUTE_REFRESH_GAP_SECONDS)
        after_death = await transport.ask_master("s", "a", Command(CLAIM), 1.0)
        await first.stop()

    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert after_refusal.code == ResponseCode.BROKERSET_STALE_EPOCH
    assert after_death.code == ResponseCode.BROKERSET_NOT_CLAIMED


async def test_what_was_sent_is_not_sent_again_by_the_transport(cluster: FakeCluster) -> None:
    """Whether a request without an answer was carried out is for the producer or consumer to find out."""
    broker = await cluster.add_broker("a", 0)
    cluster.topics["s"] = {"a": 1}
    broker.script(CLAIM, say_nothing)
    async with ClientInstance(cluster.namesrv) as instance:
        with pytest.raises(AnswerTimeout):
            await InstanceTransport(instance).ask_master("s", "a", Command(CLAIM), 0.2)

    assert len(broker.seen(CLAIM)) == 1


async def test_a_group_without_a_master_is_an_error_at_once_and_routes_are_not_read_all_the_time(
    cluster: FakeCluster,
) -> None:
    await cluster.add_broker("a", 1)
    cluster.topics["s"] = {"a": 1}
    async with ClientInstance(cluster.namesrv) as instance:
        transport = InstanceTransport(instance)
        began = asyncio.get_running_loop().time()
        for _ in range(5):
            with pytest.raises(NoQueue, match="no master"):
                await transport.ask_master("s", "a", Command(CLAIM), 5.0)
        seconds = asyncio.get_running_loop().time() - began

    assert cluster.asked["s"] <= 1 + seconds / ROUTE_REFRESH_GAP_SECONDS


async def test_a_dead_master_without_a_successor_is_an_error_at_once(cluster: FakeCluster) -> None:
    broker = await cluster.add_broker("a", 0)
    cluster.topics["s"] = {"a": 1}
    async with ClientInstance(cluster.namesrv) as instance:
        transport = InstanceTransport(instance)
        broker.script(CLAIM, refuse(ResponseCode.BROKERSET_STALE_EPOCH))
        await transport.ask_master("s", "a", Command(CLAIM), 1.0)
        await broker.stop()
        began = asyncio.get_running_loop().time()

        with pytest.raises(BrokerUnreachable):
            await transport.ask_master("s", "a", Command(CLAIM), 5.0)

        assert asyncio.get_running_loop().time() - began < 2.0


async def test_who_asks_while_the_route_is_read_waits_for_it(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The route that is known to be stale is given to nobody meanwhile (statement 33)."""
    await cluster.add_broker("a", 0)
    cluster.topics["s"] = {"a": 1}
    async with ClientInstance(cluster.namesrv) as instance:
        transport = InstanceTransport(instance)
        stale = await transport._route("s")
        go_on = asyncio.Event()
        read = instance.route

        async def slowly(topic: str, *, fresh: bool = False) -> Route:
            await go_on.wait()
            return await read(topic, fresh=fresh)

        monkeypatch.setattr(instance, "route", slowly)
        await asyncio.sleep(ROUTE_REFRESH_GAP_SECONDS)
        transport.route_is_stale("s")
        asking = [asyncio.ensure_future(transport._route("s")) for _ in range(3)]
        await asyncio.sleep(0.05)
        early = [each.done() for each in asking]
        go_on.set()
        routes = await asyncio.gather(*asking)

    assert early == [False] * 3
    assert all(route is not stale for route in routes)
    assert cluster.asked["s"] == 2


async def test_an_unreachable_name_server_does_not_hide_a_known_master(cluster: FakeCluster) -> None:
    """An older route is better than none."""
    broker = await cluster.add_broker("a", 0)
    cluster.topics["s"] = {"a": 1}
    broker.script(CLAIM, *[refuse(ResponseCode.SYSTEM_BUSY)] * 2)
    async with ClientInstance(cluster.namesrv) as instance:
        transport = InstanceTransport(instance)
        await transport.ask_master("s", "a", Command(CLAIM), 1.0)
        del cluster.topics["s"]

        answer = await transport.ask_master("s", "a", Command(CLAIM), 1.0)

        assert answer.code == ResponseCode.SYSTEM_BUSY


async def test_every_failure_is_an_error_of_the_client(cluster: FakeCluster) -> None:
    async with ClientInstance(cluster.namesrv) as instance:
        with pytest.raises(ClientError):
            await InstanceTransport(instance).ask_master("nothing", "a", Command(CLAIM), 1.0)
