"""A registrar of brokers whose role and DNS a test gives, and name servers that tell what they were told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.outside.name_servers import Registrar
from brokerset_broker.requests.admission import Admission
from brokerset_broker.tables.topics import TopicManager
from brokerset_protocol.bodies.registration import RegisterBrokerBody
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_protocol.headers.namesrv import RegisterBroker, UnRegisterBroker
from brokerset_rig.waiting import until
from brokerset_runtime.clock import SystemClock
from brokerset_runtime.remoting import RemotingServer
from brokerset_spec.broker_settings import BrokerSettings


class NameServer:
    """Remembers who registered and who said goodbye, and whether it knows the broker after all that.

    While `hears_goodbyes` is not set a goodbye takes no effect, and gets no answer.
    """

    def __init__(self) -> None:
        self.told: list[tuple[int, str]] = []
        self.topics: list[int] = []
        self.leaving: list[str] = []
        self.forgotten = 0
        self.known = False
        self.changed = asyncio.Event()
        self.hears_goodbyes = asyncio.Event()
        self.hears_goodbyes.set()
        self.server = RemotingServer(
            {
                RequestCode.REGISTER_BROKER: self._register,
                RequestCode.UNREGISTER_BROKER: self._unregister,
            }
        )
        self.address = ""

    @classmethod
    @asynccontextmanager
    async def started(cls, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[NameServer]:
        found = cls()
        found.address = f"{host}:{await found.server.listen(host, port)}"
        try:
            yield found
        finally:
            await found.server.close(0)

    @property
    def connections(self) -> set[int]:
        return set(self.server.connections)

    def _register(self, _connection: object, command: Command) -> Command:
        header = RegisterBroker.from_ext(command.ext)
        body = RegisterBrokerBody.from_body(command.body, compressed=False, version=command.version)
        self.told.append((header.broker_id, header.broker_addr))
        self.topics.append(len(body.topics))
        self.known = True
        self.changed.set()
        return command.reply()

    async def _unregister(self, _connection: object, command: Command) -> Command:
        self.leaving.append(UnRegisterBroker.from_ext(command.ext).broker_addr)
        await self.hears_goodbyes.wait()
        self.known = False
        self.forgotten += 1
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
        self.live = LiveSettings(settings)
        self.role: int | None = 0
        self.topics = TopicManager(self.live, SystemClock())
        self.topics.load()
        self.found: Sequence[str] = ()
        self.of_name: dict[str, Sequence[str]] = {}
        self.asked: list[str] = []
        self.registrar = Registrar(
            live=self.live,
            topics=self.topics,
            admission=Admission("b", 6),
            role_id=lambda: self.role,
            resolver=self._resolve,
        )

    async def _resolve(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        found = self.of_name.get(host, self.found)
        if not found:
            raise OSError("no such name")
        return found

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Registrar]:
        """A task that fails fails the test."""
        task = asyncio.create_task(self.registrar.run())
        try:
            yield self.registrar
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def use(self, *servers: str) -> None:
        """As UPDATE_BROKER_CONFIG does."""
        self.live.update({"namesrvAddr": ";".join(servers)})

    async def registered_at(self, *servers: str) -> None:
        await until(lambda: self.registrar.registered == self.registrar.addresses == list(servers))
