"""What name servers are told as a broker's address, and which name servers those are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from brokerset_broker.admission import Admission
from brokerset_broker.registration import Registrar
from brokerset_broker.settings_update import LiveSettings
from brokerset_broker.topics import TopicManager
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_protocol.headers.namesrv import RegisterBroker, UnRegisterBroker
from brokerset_runtime.clock import SystemClock
from brokerset_runtime.remoting import RemotingServer
from brokerset_spec.broker_settings import BrokerSettings

Run = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that no event tells of."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class NameServer:
    """Remembers who registered and who said goodbye."""

    def __init__(self) -> None:
        self.told: list[tuple[int, str]] = []
        self.goodbyes: list[str] = []
        self.changed = asyncio.Event()
        self.server = RemotingServer(
            {
                RequestCode.REGISTER_BROKER: self._register,
                RequestCode.UNREGISTER_BROKER: self._unregister,
            }
        )

    def _register(self, _connection: object, command: Command) -> Command:
        header = RegisterBroker.from_ext(command.ext)
        self.told.append((header.broker_id, header.broker_addr))
        self.changed.set()
        return command.reply()

    def _unregister(self, _connection: object, command: Command) -> Command:
        self.goodbyes.append(UnRegisterBroker.from_ext(command.ext).broker_addr)
        return command.reply()

    async def heard(self, told: tuple[int, str]) -> None:
        while told not in self.told:
            self.changed.clear()
            await self.changed.wait()


class Place:
    """A registrar whose role the test gives."""

    def __init__(self, folder: Path, namesrv_addr: str, **changes: Any) -> None:
        settings = BrokerSettings(
            store_path_root_dir=folder, namesrv_addr=namesrv_addr, broker_ip1="10.0.0.7", **changes
        )
        live = LiveSettings(settings)
        self.role: int | None = 0
        topics = TopicManager(live, SystemClock())
        topics.load()
        self.found: Sequence[str] = ()
        self.registrar = Registrar(
            live=live,
            topics=topics,
            admission=Admission("b", 6),
            role_id=lambda: self.role,
            resolver=self._resolve,
        )

    async def _resolve(self, host: str, port: int) -> Sequence[str]:
        if not self.found:
            raise OSError("no such name")
        return self.found


def test_a_master_is_told_under_the_masters_address_and_a_slave_under_its_own(
    run: Run, tmp_path: Path
) -> None:
    """And a broker that was master says goodbye as the slave it is: the other address is its successor's."""

    async def scenario() -> None:
        server = NameServer()
        port = await server.server.listen("127.0.0.1", 0)
        place = Place(
            tmp_path,
            f"127.0.0.1:{port}",
            advertised_address="orders-0-1.orders-0:10911",
            advertised_master_address="orders-0-master:10911",
        )
        async with asyncio.TaskGroup() as group:
            task = group.create_task(place.registrar.run())
            await server.heard((0, "orders-0-master:10911"))
            place.role = 2
            place.registrar.register_again()
            await server.heard((2, "orders-0-1.orders-0:10911"))
            place.role = 0
            place.registrar.register_again()
            await server.heard((0, "orders-0-master:10911"))
            place.role = 2
            await place.registrar.unregister()
            task.cancel()
        await server.server.close(0)

        assert server.goodbyes == ["orders-0-1.orders-0:10911"]

    run(scenario)


def test_without_other_addresses_its_own_is_told_in_every_role(run: Run, tmp_path: Path) -> None:
    """As RocketMQ does it."""

    async def scenario() -> None:
        server = NameServer()
        port = await server.server.listen("127.0.0.1", 0)
        place = Place(tmp_path, f"127.0.0.1:{port}")
        async with asyncio.TaskGroup() as group:
            task = group.create_task(place.registrar.run())
            await server.heard((0, "10.0.0.7:10911"))
            task.cancel()
        await server.server.close(0)

    run(scenario)


def test_name_servers_come_and_go_with_their_dns_records(run: Run, tmp_path: Path, monkeypatch: Any) -> None:
    """A name stands for all addresses behind it, and a failed look-up changes nothing."""
    monkeypatch.setattr("brokerset_broker.registration.LOOK_UP_SECONDS", 0.02)

    async def scenario() -> None:
        first, second = NameServer(), NameServer()
        async with AsyncExitStack() as stack:
            port = await first.server.listen("127.0.0.1", 0)
            assert await second.server.listen("127.0.0.2", port) == port
            stack.push_async_callback(first.server.close, 0)
            stack.push_async_callback(second.server.close, 0)
            place = Place(tmp_path, f"servers:{port}", fetch_namesrv_addr_by_dns_lookup=True)
            task = asyncio.create_task(place.registrar.run())
            stack.callback(task.cancel)

            place.found = ["127.0.0.1"]
            await first.heard((0, "10.0.0.7:10911"))
            place.found = ["127.0.0.1", "127.0.0.2"]
            await second.heard((0, "10.0.0.7:10911"))
            both = [f"127.0.0.1:{port}", f"127.0.0.2:{port}"]
            await until(lambda: sorted(place.registrar.registered) == both)
            place.found = ()
            told = len(first.told)
            place.registrar.register_again()
            while len(first.told) == told:
                first.changed.clear()
                await first.changed.wait()
            place.found = ["127.0.0.2"]
            await until(lambda: place.registrar.addresses == [f"127.0.0.2:{port}"])

    run(scenario)
