"""A broker without controllers: always master, with nobody to ask and nobody to follow it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from brokerset_broker.member.role import Role, RoleState
from brokerset_broker.requests.changes import ChangeLog
from brokerset_broker.services.role_services import RoleServices
from brokerset_runtime.remoting import Connection, Handler

if TYPE_CHECKING:
    from brokerset_broker.member.gateway.gateway import Guard

MASTER_ROLE_ID = 0


class Alone:
    """What `GroupMember` is to the broker, without a group."""

    forwarder = None
    """There is no master to pass requests on to."""

    def __init__(self, broker_id: int, changes: ChangeLog, services: RoleServices) -> None:
        """`broker_id` is the one of the settings: of another than 0 it is an old-style slave to its peers."""
        self.changes = changes
        self._broker_id = broker_id
        self._services = services

    def handlers(self, served: Mapping[int, Handler], guard: Guard | None = None) -> dict[int, Handler]:
        """The table for the server; `guard` is put around all of it."""
        return dict(served if guard is None else guard(served))

    def serves_writes(self) -> bool:
        """It always does."""
        return True

    def serves_reads(self) -> bool:
        """It always does."""
        return True

    def started(self) -> None:
        """The ports are open: services that a group's master has work from now on."""
        self._services.start()

    async def run(self) -> None:
        """Nothing to do, until cancelled."""
        await asyncio.Event().wait()

    async def hand_over_at_end(self) -> None:
        """Nobody takes over."""

    def stop_serving(self) -> None:
        """The server stops accepting; what comes all the same is served."""

    async def answer_at_end(self) -> None:
        """Nobody is waited for."""

    async def close(self) -> None:
        """Nothing is on its way."""

    async def written(self) -> None:
        """The files of config/ say it all."""

    def connection_closed(self, connection: Connection) -> None:
        """Nothing is held for it."""

    def role(self) -> RoleState:
        """Master, in no epoch."""
        return RoleState(Role.MASTER)

    def broker_id(self) -> int | None:
        """The id of the settings."""
        return self._broker_id

    def role_id(self) -> int | None:
        """The id that name servers are told."""
        return self._broker_id

    def loss_is_known(self) -> bool:
        """Nobody counts what a crash took."""
        return True

    def master_named(self, ha_address: str | None, address: str | None) -> None:
        """There is no master to follow."""

    def ha_address(self) -> str | None:
        """Slaves cannot connect."""
        return None

    def table(self) -> dict[str, str]:
        """Nothing is added to GET_BROKER_RUNTIME_INFO (28)."""
        return {}

    def problems(self) -> list[str]:
        """Nothing keeps it out of service."""
        return []
