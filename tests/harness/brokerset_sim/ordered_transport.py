"""`OrderedTransport` of the world `ordered`: commands over the simulated network, routes that lag."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from brokerset_client.errors import AnswerTimeout, BrokerUnreachable, NoQueue
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.commands import Command
from brokerset_runtime.remoting.connection import ConnectionClosed, RequestTimeout
from brokerset_sim.network import SimAsker
from brokerset_sim.ordered_time import RatedProcess

if TYPE_CHECKING:
    from brokerset_sim.ordered_world import OrderedWorld

ATTEMPT_SECONDS: Final = 3.0
"""How long one controller may take, besides what the request lets it wait."""

SEARCH_SECONDS: Final = 0.05
ROUTE_SECONDS: Final = 0.2
"""A route is not read again sooner."""


class SimTransport:
    """Implements `OrderedTransport` for one process."""

    def __init__(self, world: OrderedWorld, process: RatedProcess) -> None:
        self._world = world
        self._asker = SimAsker(world.network, process)
        self._dice = world.random_for(f"transport {process.name}")
        self._leader = self._dice.randrange(world.plan.controllers)
        self._routes: dict[str, str] = {}
        """Addresses of masters by broker group, as they were read last."""

        self._read: dict[str, float] = {}
        self._stale = False

    async def ask_controllers(self, command: Command, timeout: float) -> Command:
        """As `OrderedTransport.ask_controllers`; whoever leads next is asked again."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while (left := deadline - loop.time()) > 0:
            address = self._world.controllers[self._leader].address
            wait = int(command.ext.get("waitMs") or 0) / 1000
            try:
                answer = await self._asker.ask(
                    address, _copied(command), max(0.001, min(left, ATTEMPT_SECONDS + wait))
                )
            except (ConnectionClosed, RequestTimeout):
                self._next()
            else:
                if answer.code != ResponseCode.CONTROLLER_NOT_LEADER:
                    return answer
                self._next()
            await asyncio.sleep(min(SEARCH_SECONDS, max(0.001, deadline - loop.time())))
        raise AnswerTimeout(f"no controller carried out request {command.code} in {timeout:g} s")

    def _next(self) -> None:
        self._leader = (self._leader + 1) % self._world.plan.controllers

    async def ask_master(self, topic: str, broker_group: str, command: Command, timeout: float) -> Command:
        """As `OrderedTransport.ask_master`."""
        deadline = asyncio.get_running_loop().time() + timeout
        address = await self._route(broker_group, deadline)
        if address is None:
            raise NoQueue(f"broker group {broker_group} has no master now")
        left = max(0.001, deadline - asyncio.get_running_loop().time())
        try:
            return await self._asker.ask(address, _copied(command), left)
        except RequestTimeout as error:
            self._routes.pop(broker_group, None)
            raise AnswerTimeout(str(error)) from error
        except ConnectionClosed as error:
            self._routes.pop(broker_group, None)
            raise BrokerUnreachable(address, str(error)) from error

    def route_is_stale(self, topic: str) -> None:
        """As `OrderedTransport.route_is_stale`."""
        self._routes.clear()

    async def _route(self, broker_group: str, deadline: float) -> str | None:
        known = self._routes.get(broker_group)
        if known is not None:
            return known
        loop = asyncio.get_running_loop()
        gap = self._read.get(broker_group, -ROUTE_SECONDS) + ROUTE_SECONDS - loop.time()
        if gap > 0:
            await asyncio.sleep(min(gap, max(0.001, deadline - loop.time())))
        await asyncio.sleep(0.001 + self._dice.random() * 0.01)
        self._read[broker_group] = loop.time()
        address = self._world.names.get(broker_group)
        if address is not None:
            self._routes[broker_group] = address
        return address


def _copied(command: Command) -> Command:
    """A command that is sent again needs a number of its own."""
    return replace(command, ext=dict(command.ext))
