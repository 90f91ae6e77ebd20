"""Brokers of one group over links in memory, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from brokerset_broker.member.role import RoleState
from brokerset_broker.store.errors import PutStatus
from brokerset_rig.fake_ha import FakeBroker, FakeControllers, FakeNetwork
from brokerset_rig.waiting import until
from brokerset_spec.broker_settings import BrokerSettings


class Group:
    """Brokers 1 to n; the first is elected at once and the others follow it."""

    def __init__(self, size: int, settings: BrokerSettings) -> None:
        self.network = FakeNetwork()
        self.controllers = FakeControllers()
        self.brokers = {
            n: FakeBroker(n, self.network, self.controllers, settings) for n in range(1, size + 1)
        }

    def __getitem__(self, broker_id: int) -> FakeBroker:
        return self.brokers[broker_id]

    async def elect(self, broker_id: int, *, followers: tuple[int, ...] | None = None) -> RoleState:
        """Make a broker master; the others, or those named, follow it."""
        change = self.controllers.elect(broker_id)
        await self[broker_id].lead(change)
        for other, broker in self.brokers.items():
            if other != broker_id and (followers is None or other in followers):
                await broker.obey(change)
        return change

    async def in_sync(self, *broker_ids: int) -> None:
        """Wait until these are in sync, and the master knows it."""
        wanted = frozenset(broker_ids)
        master = self.brokers[self.controllers.master_id or 0]
        await until(
            lambda: (
                self.controllers.sync_state_set == wanted
                and master.replication.status().sync_state_set == wanted
                and not master.replication.status().pending_sets
            )
        )

    async def same(self, *broker_ids: int) -> None:
        """Wait until all have the same log, confirmed to its end."""
        master = self.brokers[self.controllers.master_id or 0]
        await until(
            lambda: all(
                self[n].log.data == master.log.data
                and self[n].log.confirmed_offset == master.log.max_offset
                and self[n].epochs.history == master.epochs.history
                for n in broker_ids
            )
        )


@asynccontextmanager
async def group_of(size: int, **changes: Any) -> AsyncIterator[Group]:
    """A group that runs; afterwards no log has found a promise broken."""
    group = Group(size, replace(BrokerSettings(), **changes))
    for broker in group.brokers.values():
        broker.start()
    try:
        yield group
    finally:
        for broker in group.brokers.values():
            await broker.stop()
    group.network.check()


async def answered(wait: Awaitable[PutStatus]) -> PutStatus:
    """The answer to a send. Raises `TimeoutError`."""
    async with asyncio.timeout(10):
        return await wait
