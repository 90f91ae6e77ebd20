"""Brokers of ours as a DLedger group, all in this process, with real sockets and files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from brokerset_broker.app import Broker
from brokerset_broker.member.dledger.ledger_member import LedgerMember
from brokerset_broker.member.dledger.member_settings import node_config
from brokerset_broker.member.role import Role
from brokerset_broker.store.ledger_store import LedgerStore
from brokerset_dledger.config import NodeConfig
from brokerset_rig.local_servers import Client, broker_settings, connected
from brokerset_rig.stack import free_ports
from brokerset_rig.waiting import until
from brokerset_spec.broker_settings import BrokerSettings

FILE_BYTES = 1 << 20


def patient_config(settings: BrokerSettings) -> NodeConfig:
    """Three brokers share one loop, with whatever else the machine does: no pause costs a leader."""
    return replace(node_config(settings), heartbeat=60, heartbeats_missed_max=25, promise_heartbeats=10)


class Group:
    """Three brokers, each of which can be ended and started again."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.folder = folder
        self.changes = changes
        ports = free_ports(3)
        self.peers = ";".join(f"n{number}-127.0.0.1:{port}" for number, port in enumerate(ports))
        self.brokers: dict[int, Broker] = {}
        self._running: dict[int, asyncio.Task[None]] = {}

    def store(self, number: int) -> Path:
        return self.folder / f"b{number}"

    async def start(self, number: int) -> Broker:
        values: dict[str, Any] = {
            "mapped_file_size_commit_log": FILE_BYTES,
            "max_message_size": 100_000,
            "enable_dledger_commit_log": True,
            "dledger_peers": self.peers,
            "dledger_self_id": f"n{number}",
            "dledger_brokerset_only": True,
        }
        broker = Broker(broker_settings(self.store(number), **(values | self.changes)))
        await broker.start()
        self.brokers[number] = broker
        self._running[number] = asyncio.create_task(broker.run())
        return broker

    async def stop(self, number: int) -> None:
        await self.brokers.pop(number).close()
        await self._running.pop(number)

    async def crash(self, number: int) -> None:
        """Nothing is handed over, nothing is written any more."""
        broker = self.brokers.pop(number)
        part = broker.part
        assert isinstance(part, LedgerMember)

        async def nothing() -> None:
            """A crash hands over to nobody."""

        part.hand_over_at_end = nothing  # type: ignore[method-assign]
        broker.store.abandon()
        await broker.close()
        await self._running.pop(number)

    async def leader(self, *, other_than: Broker | None = None) -> Broker:
        def found() -> list[Broker]:
            return [
                broker
                for broker in self.brokers.values()
                if broker is not other_than and member(broker).shell.may_serve() and leads(broker)
            ]

        await until(found)
        return found()[0]

    def followers(self) -> list[Broker]:
        return [broker for broker in self.brokers.values() if not leads(broker)]

    async def equal(self) -> None:
        """All members have dispatched the same."""
        await until(lambda: len({broker.store.max_offset for broker in self.brokers.values()}) == 1)
        await until(lambda: all(ledger_store(broker).is_dispatched for broker in self.brokers.values()))


def member(broker: Broker) -> LedgerMember:
    assert isinstance(broker.part, LedgerMember)
    return broker.part


def ledger_store(broker: Broker) -> LedgerStore:
    assert isinstance(broker.store, LedgerStore)
    return broker.store


def leads(broker: Broker) -> bool:
    return broker.part.role().role is Role.MASTER


@asynccontextmanager
async def group(folder: Path, **changes: Any) -> AsyncIterator[Group]:
    found = Group(folder, **changes)
    async with AsyncExitStack() as stack:
        for number in range(3):
            await found.start(number)

        async def end() -> None:
            for number in list(found.brokers):
                await found.stop(number)

        stack.push_async_callback(end)
        yield found


@asynccontextmanager
async def client_of(broker: Broker) -> AsyncIterator[Client]:
    async with connected(broker.port) as connection:
        yield Client(connection)
