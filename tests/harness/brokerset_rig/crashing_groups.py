"""Groups of brokers of ours in this process, under real controllers or as a DLedger, whose master can crash."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from brokerset_broker.app import Broker
from brokerset_broker.member.role import Role
from brokerset_rig.controller_group import ControllerGroup
from brokerset_rig.local_servers import broker_settings
from brokerset_rig.stack import free_ports
from brokerset_rig.waiting import until


class CrashingGroup:
    """Brokers by number; each has a store of its own, which outlives it."""

    def __init__(self, folder: Path, settings: dict[int, dict[str, Any]]) -> None:
        self._folder = folder
        self._settings = settings
        self.brokers: dict[int, Broker] = {}
        self._running: dict[int, asyncio.Task[None]] = {}

    async def start(self, number: int) -> Broker:
        """Start one, on the store that it had before."""
        broker = Broker(broker_settings(self._folder / f"b{number}", **self._settings[number]))
        await broker.start()
        self.brokers[number] = broker
        self._running[number] = asyncio.create_task(broker.run())
        return broker

    async def stop(self, number: int) -> None:
        """End one in order."""
        await self.brokers.pop(number).close()
        await self._running.pop(number)

    async def crash(self, broker: Broker) -> None:
        """End one as SIGKILL would: nothing is handed over, nothing is written any more."""
        number = next(each for each, other in self.brokers.items() if other is broker)
        del self.brokers[number]

        async def nothing() -> None:
            """A crash hands over to nobody."""

        broker.part.hand_over_at_end = nothing  # type: ignore[method-assign]
        broker.store.abandon()
        await broker.close()
        await self._running.pop(number)

    async def master(self) -> Broker:
        """The one that leads and takes writes, once there is one."""

        def found() -> list[Broker]:
            return [each for each in self.brokers.values() if _serves(each)]

        await until(found)
        return found()[0]

    async def end(self) -> None:
        """End all that run."""
        for number in list(self.brokers):
            await self.stop(number)


def _serves(broker: Broker) -> bool:
    return broker.part.role().role is Role.MASTER and not broker.admission.refuses_writes


@asynccontextmanager
async def controlled_group(folder: Path, **changes: Any) -> AsyncIterator[CrashingGroup]:
    """Two brokers and a controller; both are in sync."""
    (port,) = free_ports(1)
    controllers = ControllerGroup(
        folder / "controllers", 1, enable_name_server=True, namesrv_listen_port=port,
        kv_config_path=folder / "kv.json", raft_tick=10,
    )  # fmt: skip
    settings: dict[str, Any] = {
        "enable_controller_mode": True, "controller_addr": controllers.address(0),
        "sync_broker_metadata_period": 100, "broker_heartbeat_interval": 100,
    }  # fmt: skip
    group = CrashingGroup(folder, {number: {**settings, **changes} for number in (1, 2)})
    async with AsyncExitStack() as stack:
        await controllers.start(0)
        stack.push_async_callback(controllers.stop, 0)
        stack.push_async_callback(group.end)
        await group.start(1)
        await group.master()
        await group.start(2)
        await until(lambda: _in_sync(group) == 2)
        yield group


def _in_sync(group: CrashingGroup) -> int:
    return max(len(broker.part.role().sync_state_set) for broker in group.brokers.values())


@asynccontextmanager
async def dledger_group(folder: Path, **changes: Any) -> AsyncIterator[CrashingGroup]:
    """Three brokers that elect their leader."""
    ports = free_ports(3)
    peers = ";".join(f"n{number}-127.0.0.1:{port}" for number, port in enumerate(ports))
    settings: dict[str, Any] = {
        "enable_dledger_commit_log": True, "dledger_peers": peers, "dledger_brokerset_only": True,
        "mapped_file_size_commit_log": 1 << 20, "max_message_size": 100_000,
    }  # fmt: skip
    group = CrashingGroup(
        folder, {number: {**settings, "dledger_self_id": f"n{number}", **changes} for number in range(3)}
    )
    async with AsyncExitStack() as stack:
        stack.push_async_callback(group.end)
        for number in range(3):
            await group.start(number)
        yield group
